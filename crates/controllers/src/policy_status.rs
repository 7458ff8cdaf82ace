//! The status of ValidatingAdmissionPolicies: what their expressions get wrong about the kinds they are for.

use async_trait::async_trait;
use davit_cel::policy::{CustomKind, names_custom_groups, type_check};
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

struct PolicyStatus {
    client: kube::Client,
    policies: Informer<ValidatingAdmissionPolicy>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("validatingadmissionpolicy-status-controller") else {
        return;
    };
    let policies = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        watcher::Config::default(),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    let queue = spawner.controller(PolicyStatus {
        client: spawner.client.clone(),
        policies: policies.clone(),
    });
    spawner.feed(&policies, &queue, |policy: &ValidatingAdmissionPolicy| {
        vec![ObjectKey::of(policy)]
    });
}

impl PolicyStatus {
    /// The custom kinds of this moment; policies are few and change rarely, so no copy is kept.
    async fn definitions(&self) -> Result<Vec<Value>, Error> {
        let api: kube::Api<CustomResourceDefinition> = kube::Api::all(self.client.clone());
        let found = api.list(&ListParams::default()).await;
        let found = found.context(|| "list custom resource definitions".to_owned())?;
        let values = found.items.iter().map(|definition| {
            serde_json::to_value(&definition.spec)
                .map_err(|error| Error::Invalid(format!("a custom resource definition: {error}")))
        });
        values.collect()
    }
}

/// The versions that the `spec`s of definitions serve.
fn custom_kinds(specs: &[Value]) -> Vec<CustomKind<'_>> {
    let mut kinds = Vec::new();
    for spec in specs {
        let versions = spec["versions"].as_array().into_iter().flatten();
        for version in versions.filter(|version| version["served"] == true) {
            kinds.push(CustomKind {
                group: spec["group"].as_str().unwrap_or_default(),
                version: version["name"].as_str().unwrap_or_default(),
                kind: spec["names"]["kind"].as_str().unwrap_or_default(),
                plural: spec["names"]["plural"].as_str().unwrap_or_default(),
                schema: &version["schema"]["openAPIV3Schema"],
            });
        }
    }
    kinds
}

#[async_trait]
impl Reconcile for PolicyStatus {
    const NAME: &'static str = "validatingadmissionpolicy-status";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(policy) = self.policies.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let generation = policy.metadata.generation;
        let status = policy.status.as_ref();
        if status.is_some_and(|s| s.observed_generation == generation && s.type_checking.is_some())
        {
            return Ok(Next::Wait);
        }
        let spec = serde_json::to_value(&policy.spec)
            .map_err(|error| Error::Invalid(format!("policy {}: {error}", key.name)))?;
        let definitions = if names_custom_groups(&spec) {
            self.definitions().await?
        } else {
            Vec::new()
        };
        let warnings: Vec<_> = type_check(&spec, &custom_kinds(&definitions))
            .into_iter()
            .map(|found| json!({ "fieldRef": found.field, "warning": found.warning }))
            .collect();
        let mut checking = json!({});
        if !warnings.is_empty() {
            checking["expressionWarnings"] = json!(warnings);
        }
        let patch = json!({
            "metadata": { "uid": policy.metadata.uid },
            "status": { "observedGeneration": generation, "typeChecking": checking },
        });
        let api: kube::Api<ValidatingAdmissionPolicy> = kube::Api::all(self.client.clone());
        let params = PatchParams::default();
        gone_is_none(
            api.patch_status(&key.name, &params, &Patch::Merge(patch))
                .await,
        )
        .context(|| {
            format!(
                "write the status of validating admission policy {}",
                key.name
            )
        })?;
        Ok(Next::Wait)
    }
}
