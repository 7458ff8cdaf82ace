//! What is particular to a kind: defaults that depend on other fields, what a write may change,
//! what is valid, which fields can be selected, how it is deleted.
//!
//! Handlers run every kind through one fixed order, the one of upstream's generic registry:
//!
//! - create: decode, static defaults (schema), [`Strategy::default`], mutating admission,
//!   [`Strategy::prepare_for_create`], [`Strategy::validate`], validating admission, commit;
//! - update and patch: the same with [`Strategy::prepare_for_update`] and
//!   [`Strategy::validate_update`];
//! - a subresource that writes the parent object: [`Strategy::prepare_subresource_update`] and
//!   [`Strategy::validate_subresource_update`].
//!
//! System-owned metadata (uid, times, generation of the stored object) has been set or restored by
//! the handler before a strategy prepares an object.
//!
//! Objects are plain JSON values which schema decoding has already brought into the declared
//! shape (no unknown fields, no wrong types). A strategy never sees I/O, clocks or other objects.
//!
//! The rules that custom kinds write in CEL are in `davit_validationrules`.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use davit_api::field::ErrorList;
use davit_api::kinds;
use serde_json::Value;

mod access;
mod app_armor;
mod claims;
mod cluster;
mod conditions;
mod config;
mod containers;
pub mod crd;
mod events;
mod fields;
mod flowcontrol;
mod json;
#[cfg(test)]
mod likeness;
mod meta;
mod namespaces;
mod network;
mod nodes;
mod persistent_volumes;
mod pod_certificates;
mod pod_defaults;
mod pod_groups;
mod pod_spec;
mod pods;
mod policies;
mod resource;
mod resources;
mod scheduling;
mod selectors;
mod signers;
mod signing_requests;
mod status_conditions;
mod storage;
#[cfg(test)]
mod testing;
mod trust_bundles;
mod volumes;
mod windows;
mod workloads;

pub use access::KindInfo;
pub use meta::{
    MANAGER_MAX, manager_name, validate as validate_metadata,
    validate_update as validate_metadata_update,
};
pub use resource::admin_requests;

/// Deletion propagation that applies when the caller asks for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The owner goes first, its dependents are collected afterwards.
    Background,
    /// Dependents are kept and lose their owner reference.
    Orphan,
    /// The kind has no dependents: it goes, whatever the caller asks for.
    Unsupported,
}

/// The rules of one kind. The defaults of the methods are those of a kind without rules of its
/// own; methods never panic on objects that schema decoding let through.
pub trait Strategy: Send + Sync {
    /// Which kind this is and what its row in the kinds table says.
    fn kind(&self) -> &KindInfo;

    /// Defaults that depend on other fields. Idempotent; runs after the static defaults of the
    /// schema, on every decode (create, update, patch result).
    fn default(&self, _obj: &mut Value) {}

    /// Resets what a creator may not choose: status, generation. Runs after mutating admission,
    /// when name and uid are known: jobs derive labels from them. Idempotent.
    fn prepare_for_create(&self, obj: &mut Value) {
        access::reset_status(self.kind(), obj);
        access::first_generation(self.kind(), obj);
    }

    /// Keeps what a writer of the main resource may not change (status) and raises the generation
    /// when the rest of the object changed.
    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(self.kind(), new, old);
        access::next_generation(self.kind(), new, old);
    }

    /// All errors of a new object, metadata included.
    fn validate(&self, obj: &Value) -> ErrorList {
        meta::validate(self.kind(), obj)
    }

    /// All errors of an update, metadata included. Complete: the handler need not call
    /// [`Strategy::validate`] as well.
    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        meta::validate_update(self.kind(), new, old)
    }

    /// Keeps everything but the status (and the metadata a status writer may change).
    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        if access::status_writes_metadata(self.kind()) {
            access::keep_all_but_status_and_metadata(new, old);
        } else {
            access::keep_all_but_status(new, old);
        }
    }

    /// All errors of a status update, metadata included.
    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        meta::validate_update(self.kind(), new, old)
    }

    /// As [`Strategy::prepare_status_update`] for any subresource that writes the parent object
    /// (`status`, `approval`, `finalize`, `ephemeralcontainers`, `resize`).
    fn prepare_subresource_update(&self, _subresource: &str, new: &mut Value, old: &Value) {
        self.prepare_status_update(new, old);
    }

    /// As [`Strategy::validate_status_update`] for any subresource that writes the parent object.
    fn validate_subresource_update(
        &self,
        _subresource: &str,
        new: &Value,
        old: &Value,
    ) -> ErrorList {
        self.validate_status_update(new, old)
    }

    /// Names of the selectable fields besides `metadata.name` and `metadata.namespace`.
    fn field_names(&self) -> &[&'static str] {
        &[]
    }

    /// The selectable fields of one object besides `metadata.name` and `metadata.namespace`, one
    /// entry for each of [`Strategy::field_names`].
    fn fields(&self, _obj: &Value) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Another name of a selectable field (`spec.host` of pods); the label itself otherwise.
    fn field_alias<'a>(&self, label: &'a str) -> &'a str {
        label
    }

    /// Whether a PUT of a missing object creates it.
    fn allow_create_on_update(&self) -> bool {
        access::is_created_by_update(self.kind())
    }

    /// Whether a PUT without resourceVersion is accepted.
    fn allow_unconditional_update(&self) -> bool {
        access::takes_unconditional_update(self.kind())
    }

    /// Whether DELETE answers with the object instead of a `Status`.
    fn returns_deleted_object(&self) -> bool {
        access::returns_deleted_object(self.kind())
    }

    /// Seconds of graceful deletion. `None`: the kind has no graceful deletion and goes at once;
    /// `Some(0)`: this object goes at once. `requested` is what DeleteOptions ask for.
    fn grace_period(&self, _obj: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Propagation when the caller sends none.
    fn default_propagation(&self) -> Propagation {
        Propagation::Background
    }

    /// Finalizers that this kind keeps in its spec instead of its metadata (namespaces): while
    /// they are present the object stays, marked for deletion.
    fn spec_finalizers(&self, _obj: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Warnings for the creator of this object about what [`Strategy::prepare_for_create`], which comes after, changes.
    fn preparation_warnings(&self, _obj: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Warnings for the creator of this object, beside those for all writers.
    fn create_warnings(&self, _obj: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Warnings for the writer of this object (`Warning` response headers).
    fn warnings(&self, _obj: &Value) -> Vec<String> {
        Vec::new()
    }

    /// As [`Strategy::warnings`] for the writer of an object that was there.
    fn update_warnings(&self, new: &Value, _old: &Value) -> Vec<String> {
        self.warnings(new)
    }

    /// Warnings for a DELETE; `policy_given` tells whether the caller chose a propagation.
    fn delete_warnings(&self, _obj: &Value, _policy_given: bool) -> Vec<String> {
        Vec::new()
    }
}

/// The rules of a built-in kind in one of its versions. Handlers ask for the stored version and
/// convert to and from it.
///
/// A kind the table does not know gets rules without peculiarities, those of a namespaced kind
/// with a status subresource.
pub fn strategy(group: &str, version: &str, kind: &str) -> Arc<dyn Strategy> {
    let found = BUILT_IN.get(group).into_iter().flatten().find(|strategy| {
        let info = strategy.kind();
        info.version == version && info.kind == kind
    });
    match found {
        Some(strategy) => Arc::clone(strategy),
        None => Arc::new(Generic::new(KindInfo::custom("", "", "", true, true))),
    }
}

type OfGroup = Vec<Arc<dyn Strategy>>;

static BUILT_IN: LazyLock<HashMap<&'static str, OfGroup>> = LazyLock::new(|| {
    let mut groups: HashMap<&'static str, OfGroup> = HashMap::new();
    for row in &kinds::builtin().resources {
        let status = row.subresource("status").is_some();
        let info = KindInfo::built_in(row.group, row.version, row.kind, row.namespaced, status);
        groups
            .entry(row.group)
            .or_default()
            .push(build(info).into());
    }
    groups
});

/// The strategy of a kind; those without rules of their own share [`Generic`].
fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.group {
        "" => core_kinds(info),
        "apps" | "batch" | "autoscaling" | "policy" => workloads::build(info),
        "discovery.k8s.io" | "networking.k8s.io" => network::build(info),
        "storage.k8s.io" => storage::build(info),
        "resource.k8s.io" => resource::build(info),
        "events.k8s.io" => Box::new(events::Event(info)),
        _ => cluster::build(info),
    }
}

fn core_kinds(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "Pod" => Box::new(pods::Pod(info)),
        "Node" => Box::new(nodes::Node(info)),
        "Namespace" => Box::new(namespaces::Namespace(info)),
        "ConfigMap" => Box::new(config::ConfigMap(info)),
        "Secret" => Box::new(config::Secret(info)),
        "Event" => Box::new(events::Event(info)),
        "Service" | "Endpoints" => network::build(info),
        "PersistentVolume" => Box::new(persistent_volumes::PersistentVolume(info)),
        "PersistentVolumeClaim" => Box::new(claims::PersistentVolumeClaim(info)),
        "ReplicationController" | "PodTemplate" => workloads::build(info),
        _ => config::build(info),
    }
}

/// Rules of a kind without peculiarities: metadata is checked, status is kept apart.
#[derive(Debug)]
pub struct Generic {
    info: KindInfo,
}

impl Generic {
    /// The rules of `info`.
    pub fn new(info: KindInfo) -> Self {
        Self { info }
    }
}

impl Strategy for Generic {
    fn kind(&self) -> &KindInfo {
        &self.info
    }
}

#[cfg(test)]
mod tests;
