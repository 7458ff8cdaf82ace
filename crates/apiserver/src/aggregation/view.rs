//! What discovery and OpenAPI tell of aggregated groups.

use std::collections::HashMap;
use std::sync::Arc;

use davit_api::kinds::compare_versions;
use davit_registry::{Snapshot, group_priority};
use davit_schema::openapi::Foreign;
use serde_json::Value;

use crate::openapi::Document;

/// A version of a group that another server answers.
#[derive(Debug, Clone)]
pub(crate) struct RemoteVersion {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) group_priority: i64,
    pub(crate) version_priority: i64,
    /// Entries of aggregated discovery; the last that were seen.
    pub(crate) resources: Arc<Vec<Value>>,
    /// Whether the backend confirms them.
    pub(crate) fresh: bool,
    /// Its OpenAPI v3 document.
    pub(crate) openapi: Option<Arc<Document>>,
    /// What is merged of its OpenAPI v2 document.
    pub(crate) openapi_v2: Option<Arc<Foreign>>,
}

impl PartialEq for RemoteVersion {
    fn eq(&self, other: &Self) -> bool {
        let hash = |v: &Self| v.openapi.as_ref().map(|document| document.hash.clone());
        (
            &self.group,
            &self.version,
            self.group_priority,
            self.version_priority,
            self.fresh,
        ) == (
            &other.group,
            &other.version,
            other.group_priority,
            other.version_priority,
            other.fresh,
        ) && self.resources == other.resources
            && hash(self) == hash(other)
            && self.openapi_v2 == other.openapi_v2
    }
}

/// All of them at one moment.
#[derive(Debug, Default)]
pub(crate) struct AggregationView {
    /// Counts changes.
    pub(crate) generation: u64,
    pub(crate) versions: Vec<RemoteVersion>,
}

/// Versions of this server's own groups have no priorities that matter beside each other.
const LOCAL_VERSION: i64 = 15;

impl AggregationView {
    /// The version of a group, if a backend answers it.
    pub(crate) fn find(&self, group: &str, version: &str) -> Option<&RemoteVersion> {
        self.versions
            .iter()
            .find(|v| v.group == group && v.version == version)
    }

    /// All groups in order of preference, those served here and those of backends, each with its
    /// versions in order of preference.
    pub(crate) fn groups(&self, snapshot: &Snapshot) -> Vec<(String, Vec<String>)> {
        let local = snapshot.groups();
        if self.versions.is_empty() {
            return local;
        }
        let mut groups: HashMap<String, (i64, Vec<(i64, String)>)> = HashMap::new();
        for (group, versions) in local {
            let priority = i64::from(group_priority(&group));
            let versions = versions.into_iter().map(|v| (LOCAL_VERSION, v)).collect();
            groups.insert(group, (priority, versions));
        }
        for remote in &self.versions {
            let entry = groups.entry(remote.group.clone()).or_default();
            entry.0 = entry.0.max(remote.group_priority);
            entry.1.retain(|(_, version)| *version != remote.version);
            entry
                .1
                .push((remote.version_priority, remote.version.clone()));
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|(a, (a_priority, _)), (b, (b_priority, _))| {
            b_priority.cmp(a_priority).then(a.cmp(b))
        });
        groups
            .into_iter()
            .map(|(group, (_, mut versions))| {
                versions.sort_by(|a, b| b.0.cmp(&a.0).then(compare_versions(&b.1, &a.1)));
                (group, versions.into_iter().map(|(_, v)| v).collect())
            })
            .collect()
    }
}
