//! Discovery documents: legacy lists and the aggregated form.
//!
//! The aggregated documents are made once for each state of the registry and kept with their
//! ETag; the legacy ones are small and made on request.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use davit_api::kinds::SubresourceRow;
use davit_registry::{ResourceInfo, Snapshot};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256, Sha512};

use crate::aggregation::{AggregationView, RemoteVersion};

/// A document with its entity tag.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) body: Bytes,
    /// Upper-case hex SHA-512 of the body, without quotes.
    pub(crate) hash: String,
}

impl Tagged {
    pub(crate) fn new(body: Vec<u8>) -> Self {
        let hash = upper_hex(&Sha512::digest(&body));
        Self {
            body: Bytes::from(body),
            hash,
        }
    }
}

pub(crate) fn upper_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // writing to a String cannot fail
        let _ = write!(text, "{byte:02X}");
    }
    text
}

/// `GET /api`.
pub(crate) fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [
            { "clientCIDR": "0.0.0.0/0", "serverAddress": server_address }
        ],
    })
}

/// `GET /apis`.
pub(crate) fn api_groups(snapshot: &Snapshot, view: &AggregationView) -> Value {
    let groups: Vec<Value> = view
        .groups(snapshot)
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_value(group, versions))
        .collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// `GET /apis/{group}`.
pub(crate) fn api_group(snapshot: &Snapshot, view: &AggregationView, group: &str) -> Option<Value> {
    let groups = view.groups(snapshot);
    let (group, versions) = groups
        .iter()
        .find(|(name, _)| name == group && !name.is_empty())?;
    let mut value = group_value(group, versions);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

fn group_value(group: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// `GET /api/v1` and `GET /apis/{group}/{version}`.
pub(crate) fn api_resources(snapshot: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for info in snapshot.of_group_version(group, version) {
        resources.push(resource_value(info));
        resources.extend(
            info.row
                .subresources
                .iter()
                .map(|sub| subresource_value(info, sub)),
        );
    }
    if resources.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": resources,
    });
    if !group.is_empty() {
        list["apiVersion"] = json!("v1");
    }
    Some(list)
}

fn resource_value(info: &ResourceInfo) -> Value {
    let row = &info.row;
    let mut value = json!({
        "name": row.plural,
        "singularName": row.singular,
        "namespaced": row.namespaced,
        "kind": row.kind,
        "verbs": info.discovered_verbs(),
    });
    if !row.short_names.is_empty() {
        value["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        value["categories"] = json!(row.categories);
    }
    if info.row.has_verb("create") && !info.is_virtual() && !info.is_computed() {
        value["storageVersionHash"] = json!(storage_version_hash(info));
    }
    value
}

fn storage_version_hash(info: &ResourceInfo) -> String {
    let storage = &info.storage;
    let name = format!(
        "{}/{}/{}",
        storage.group(),
        storage.stored_version(),
        storage.kind()
    );
    STANDARD.encode(&Sha256::digest(name.as_bytes())[..8])
}

fn subresource_value(info: &ResourceInfo, sub: &SubresourceRow) -> Value {
    let row = &info.row;
    let mut value = json!({
        "name": format!("{}/{}", row.plural, sub.name),
        "singularName": "",
        "namespaced": row.namespaced,
        "kind": sub.kind,
        "verbs": subresource_verbs(sub),
    });
    if sub.group != row.group || sub.version != row.version {
        value["group"] = json!(sub.group);
        value["version"] = json!(sub.version);
    }
    value
}

/// Versions of the aggregated discovery API that clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregatedVersion {
    V2,
    V2Beta1,
}

impl AggregatedVersion {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2Beta1 => "v2beta1",
        }
    }
}

fn aggregated(
    snapshot: &Snapshot,
    view: &AggregationView,
    core: bool,
    version: AggregatedVersion,
) -> Value {
    let items: Vec<Value> = view
        .groups(snapshot)
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    if let Some(remote) = view.find(group, version) {
                        return aggregated_remote(remote);
                    }
                    let resources: Vec<Value> = snapshot
                        .of_group_version(group, version)
                        .map(|info| aggregated_resource(info))
                        .collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({ "name": group })
            };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{}", version.name()),
        "metadata": {},
        "items": items,
    })
}

/// A version that another server answers: as that server describes it, stale when it no longer does.
fn aggregated_remote(remote: &RemoteVersion) -> Value {
    let freshness = if remote.fresh { "Current" } else { "Stale" };
    let mut version = json!({ "version": remote.version, "freshness": freshness });
    if !remote.resources.is_empty() {
        version["resources"] = json!(*remote.resources);
    }
    version
}

fn aggregated_resource(info: &ResourceInfo) -> Value {
    let row = &info.row;
    let mut value = Map::new();
    value.insert("resource".into(), json!(row.plural));
    value.insert(
        "responseKind".into(),
        response_kind(info, row.group, row.version, row.kind),
    );
    let scope = if row.namespaced {
        "Namespaced"
    } else {
        "Cluster"
    };
    value.insert("scope".into(), json!(scope));
    value.insert("singularResource".into(), json!(row.singular));
    value.insert("verbs".into(), json!(info.discovered_verbs()));
    if !row.short_names.is_empty() {
        value.insert("shortNames".into(), json!(row.short_names));
    }
    if !row.categories.is_empty() {
        value.insert("categories".into(), json!(row.categories));
    }
    if !row.subresources.is_empty() {
        let subresources: Vec<Value> = row
            .subresources
            .iter()
            .map(|sub| {
                json!({
                    "subresource": sub.name,
                    "responseKind": response_kind(info, sub.group, sub.version, sub.kind),
                    "verbs": subresource_verbs(sub),
                })
            })
            .collect();
        value.insert("subresources".into(), json!(subresources));
    }
    Value::Object(value)
}

/// Which kind answers: group and version are told where they are not those of the resource, and of custom kinds.
fn response_kind(info: &ResourceInfo, group: &str, version: &str, kind: &str) -> Value {
    let own = info.custom.is_none() && (group, version) == (info.row.group, info.row.version);
    let (group, version) = if own { ("", "") } else { (group, version) };
    json!({ "group": group, "version": version, "kind": kind })
}

/// What is told of a subresource: those that connect are reached by several methods.
fn subresource_verbs(sub: &SubresourceRow) -> &[&'static str] {
    match sub.name {
        "proxy" => &["create", "delete", "get", "patch", "update"],
        "attach" | "exec" | "portforward" => &["create", "get"],
        _ => &sub.verbs,
    }
}

/// The aggregated documents of the latest state of the registry.
#[derive(Debug, Default)]
pub(crate) struct AggregatedCache(Mutex<Vec<CachedDocument>>);

#[derive(Debug)]
struct CachedDocument {
    generation: (u64, u64),
    core: bool,
    version: AggregatedVersion,
    document: Arc<Tagged>,
}

impl AggregatedCache {
    /// The document of `/api` (`core`) or `/apis`.
    pub(crate) fn get(
        &self,
        snapshot: &Snapshot,
        view: &AggregationView,
        core: bool,
        version: AggregatedVersion,
    ) -> Arc<Tagged> {
        let generation = (snapshot.generation(), view.generation);
        let mut held = self.0.lock();
        held.retain(|cached| {
            cached.generation.0 >= generation.0 && cached.generation.1 >= generation.1
        });
        let found = held.iter().find(|cached| {
            cached.generation == generation && cached.core == core && cached.version == version
        });
        if let Some(cached) = found {
            return Arc::clone(&cached.document);
        }
        let mut body = aggregated(snapshot, view, core, version)
            .to_string()
            .into_bytes();
        body.push(b'\n');
        let document = Arc::new(Tagged::new(body));
        let shared = Arc::clone(&document);
        held.push(CachedDocument {
            generation,
            core,
            version,
            document: shared,
        });
        document
    }
}
