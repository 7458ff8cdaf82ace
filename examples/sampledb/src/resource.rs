//! SampleDB, the custom resource. Its definition is `deploy/crd.yaml`; these are the same fields for the program.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

pub(crate) const GROUP: &str = "demo.davit.dev";
pub(crate) const VERSION: &str = "v1";
pub(crate) const KIND: &str = "SampleDB";
pub(crate) const PLURAL: &str = "sampledbs";

/// A database and what is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SampleDb {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: DatabaseSpec,
    #[serde(default)]
    pub(crate) status: DatabaseStatus,
}

/// What is wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DatabaseSpec {
    pub(crate) engine: crate::engine::Engine,
    /// Version of the layout of the data; it only rises.
    pub(crate) version: u32,
    pub(crate) storage: DatabaseStorage,
    pub(crate) backup: DatabaseBackup,
    /// Whether a last backup is taken before the data of a deleted database goes.
    pub(crate) deletion_snapshot: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restore_from: Option<RestoreFrom>,
}

/// The claim for the data, and the one for the backups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DatabaseStorage {
    pub(crate) size: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<String>,
}

/// When backups are taken, and how many are kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DatabaseBackup {
    pub(crate) schedule: String,
    pub(crate) keep: u32,
}

/// A backup with which the database begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RestoreFrom {
    /// The claim with the backups, `NAME-backup` of the database that took them.
    pub(crate) claim: String,
    /// One of its backups; the newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DatabaseStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<String>,
    /// Version of the data that are there; absent until the database was set up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u32>,
    /// When the last backup was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_backup: Option<Time>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
}

impl kube::Resource for SampleDb {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl DatabaseStatus {
    pub(crate) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFINITION: &str = include_str!("../deploy/crd.yaml");

    /// What a test or a user writes, and what the definition's defaults make of it.
    #[test]
    fn the_definition_has_the_fields_of_the_program() {
        let definition: serde_json::Value = serde_saphyr::from_str(DEFINITION).unwrap();
        let names = &definition["spec"]["names"];
        assert_eq!(names["kind"], KIND);
        assert_eq!(definition["metadata"]["name"], format!("{PLURAL}.{GROUP}"));
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["name"], VERSION);
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        let whole: SampleDb = serde_json::from_value(serde_json::json!({
            "metadata": {},
            "spec": {"engine": "redis", "version": 1, "storage": {"size": "1Gi", "class": "standard"},
                "backup": {"schedule": "0 3 * * *", "keep": 7}, "deletionSnapshot": true,
                "restoreFrom": {"claim": "a-backup", "file": "b"}},
            "status": {"observedGeneration": 1, "phase": "Running", "version": 1, "lastBackup": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let whole = serde_json::to_value(&whole).unwrap();
        for part in ["spec", "status"] {
            same_fields(&whole[part], &schema[part], part);
        }
    }

    fn same_fields(value: &serde_json::Value, schema: &serde_json::Value, path: &str) {
        let Some(fields) = value.as_object() else {
            return;
        };
        let known = schema["properties"].as_object().unwrap();
        let names = |map: &serde_json::Map<_, _>| {
            map.keys()
                .cloned()
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(fields), names(known), "{path}");
        for (name, field) in fields {
            same_fields(field, &known[name], &format!("{path}.{name}"));
        }
    }
}
