//! What a migration means to the definition of a custom kind: condition `StorageMigrating`, and that afterwards objects are
//! stored in one version only.

use davit_client::ObjectKey;
use davit_reconcile::{Context, Error};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Who applies them, as upstream's controller is called.
const MANAGER: &str = "migration-runner-controller";
const CONDITION: &str = "StorageMigrating";

/// Says on the definition of a resource, if it has one, that a migration runs.
pub(super) async fn begin(
    client: &kube::Client,
    resource: &ObjectKey,
    migration: &str,
) -> Result<(), Error> {
    let words = format!("Migration {migration} is running");
    apply(client, resource, |definition| Applied {
        condition: condition(definition, "True", "MigrationRunning", &words),
        stored: stored_versions(definition),
    })
    .await
}

/// Says that it does no more. Where the definition has not changed meanwhile, all objects are in the version in which they are
/// stored now.
pub(super) async fn finish(
    client: &kube::Client,
    resource: &ObjectKey,
    succeeded: bool,
) -> Result<(), Error> {
    apply(client, resource, |definition| {
        finished(definition, succeeded)
    })
    .await
}

/// What is applied to the status of a definition.
#[derive(Debug, PartialEq)]
struct Applied {
    condition: Value,
    /// Applied in any case: what a manager leaves out that it has applied before is removed.
    stored: Vec<String>,
}

fn finished(definition: &CustomResourceDefinition, succeeded: bool) -> Applied {
    let status = definition.status.as_ref();
    let mut conditions = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten();
    let began = conditions.find(|c| c.type_ == CONDITION);
    let generation = definition.metadata.generation;
    let is_as_before = began.is_some_and(|c| c.observed_generation == generation);
    let (reason, words) = match (succeeded, is_as_before) {
        (true, true) => (
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated",
        ),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
        ),
        (false, _) => ("MigrationFailed", "The migration has failed"),
    };
    let mut versions = definition.spec.versions.iter();
    let now = versions.find(|version| version.storage);
    let stored = match now {
        Some(now) if succeeded && is_as_before => vec![now.name.clone()],
        _ => stored_versions(definition),
    };
    Applied {
        condition: condition(definition, "False", reason, words),
        stored,
    }
}

fn stored_versions(definition: &CustomResourceDefinition) -> Vec<String> {
    let status = definition.status.as_ref();
    status
        .and_then(|status| status.stored_versions.clone())
        .unwrap_or_default()
}

fn condition(
    definition: &CustomResourceDefinition,
    status: &str,
    reason: &str,
    words: &str,
) -> Value {
    json!({
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": words,
        "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "observedGeneration": definition.metadata.generation,
    })
}

async fn apply(
    client: &kube::Client,
    resource: &ObjectKey,
    make: impl FnOnce(&CustomResourceDefinition) -> Applied,
) -> Result<(), Error> {
    let api: kube::Api<CustomResourceDefinition> = kube::Api::all(client.clone());
    let name = format!("{}.{}", resource.name, resource.namespace);
    let found = api.get_opt(&name).await;
    let Some(definition) = found.context(|| format!("read definition {name}"))? else {
        return Ok(());
    };
    let applied = make(&definition);
    let patch = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        // nothing may have come between
        "metadata": {"name": name, "resourceVersion": definition.metadata.resource_version},
        "status": {"conditions": [applied.condition], "storedVersions": applied.stored},
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = api.patch_status(&name, &params, &Patch::Apply(patch)).await;
    written.context(|| format!("write the status of definition {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(generation: i64, began_at: i64) -> CustomResourceDefinition {
        let version =
            |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage});
        serde_json::from_value(json!({
            "metadata": {"name": "things.example.com", "generation": generation},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [version("v1", false), version("v2", true)],
            },
            "status": {
                "storedVersions": ["v1", "v2"], "acceptedNames": {"plural": "things", "kind": "Thing"},
                "conditions": [{"type": CONDITION, "status": "True", "observedGeneration": began_at}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn old_versions_are_left_out_only_where_all_objects_are_in_the_new_one() {
        let stored = |definition: &CustomResourceDefinition, succeeded| {
            let applied = finished(definition, succeeded);
            assert_eq!(applied.condition["status"], "False");
            applied.stored
        };
        assert_eq!(stored(&definition(3, 3), true), ["v2"]);
        assert_eq!(stored(&definition(3, 3), false), ["v1", "v2"]);
        // The definition was changed while objects were written.
        assert_eq!(stored(&definition(4, 3), true), ["v1", "v2"]);
    }
}
