//! The status of ValidatingAdmissionPolicies: what their expressions get wrong about the kinds they are for.

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use async_trait::async_trait;
use davit_cel::policy::type_check;
use davit_client::{Informer, ObjectKey};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::json;

struct PolicyStatus {
    client: kube::Client,
    policies: Informer<ValidatingAdmissionPolicy>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let policies = Informer::spawn(
        kube::Api::all(spawner.client.clone()),
        watcher::Config::default(),
        spawner.tasks,
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
        let warnings: Vec<_> = type_check(&spec)
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
