//! Classes of storage: which one a claim or a volume has, which one is the default, when and by whom volumes are made.

use crate::annotations::{BETA_IS_DEFAULT_CLASS, BETA_STORAGE_CLASS, IS_DEFAULT_CLASS};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::cmp::Reverse;

/// The provisioner of classes whose volumes are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// What the names of provisioners that Kubernetes itself brings begin with.
pub const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// When the claims of a class are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingMode {
    /// As soon as a volume is there.
    Immediate,
    /// When a pod that uses the claim is scheduled.
    WaitForFirstConsumer,
}

fn annotated(meta: &ObjectMeta) -> Option<&str> {
    let annotations = meta.annotations.as_ref()?;
    annotations.get(BETA_STORAGE_CLASS).map(String::as_str)
}

/// The class that a claim names. `None` is a claim that takes the default class, `Some("")` one that wants none.
pub fn claim_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let field = || claim.spec.as_ref()?.storage_class_name.as_deref();
    annotated(&claim.metadata).or_else(field)
}

/// The class of a volume, empty for none.
pub fn volume_class(volume: &PersistentVolume) -> &str {
    let field = || volume.spec.as_ref()?.storage_class_name.as_deref();
    annotated(&volume.metadata).or_else(field).unwrap_or("")
}

/// Whether a class is marked as a default.
pub fn is_default(class: &StorageClass) -> bool {
    let annotations = class.metadata.annotations.as_ref();
    let marked = |key| annotations.and_then(|a| a.get(key)).map(String::as_str) == Some("true");
    marked(IS_DEFAULT_CLASS) || marked(BETA_IS_DEFAULT_CLASS)
}

/// The class of claims that name none: the newest of those marked as default, of equally old ones the first by name.
pub fn default_class<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> Option<&'a StorageClass> {
    let marked = classes.into_iter().filter(|class| is_default(class));
    marked.min_by_key(|class| {
        let created = class.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (Reverse(created), class.metadata.name.as_deref())
    })
}

/// When claims of a class are bound. One that does not exist binds at once, as far as there is something to bind to.
pub fn binding_mode(class: Option<&StorageClass>) -> BindingMode {
    match class.and_then(|class| class.volume_binding_mode.as_deref()) {
        Some("WaitForFirstConsumer") => BindingMode::WaitForFirstConsumer,
        _ => BindingMode::Immediate,
    }
}

/// Whether volumes can be made for claims of the class.
pub fn can_provision(class: &StorageClass) -> bool {
    !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(name: &str, created: &str, annotations: serde_json::Value) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": name, "creationTimestamp": created, "annotations": annotations},
            "provisioner": "p",
        }))
        .unwrap()
    }

    #[test]
    fn the_newest_default_wins_then_the_name() {
        let (new, old) = ("2026-02-02T00:00:00Z", "2026-01-01T00:00:00Z");
        let marked = json!({IS_DEFAULT_CLASS: "true"});
        let beta = json!({BETA_IS_DEFAULT_CLASS: "true"});
        let classes = [
            class("a", old, marked.clone()),
            class(
                "newest",
                "2026-03-03T00:00:00Z",
                json!({IS_DEFAULT_CLASS: "yes"}),
            ),
            class("c", new, marked),
            class("b", new, beta),
        ];
        let name = |classes: &[StorageClass]| {
            default_class(classes).and_then(|class| class.metadata.name.clone())
        };
        assert_eq!(name(&classes).as_deref(), Some("b"));
        assert_eq!(name(&classes[..2]).as_deref(), Some("a"));
        assert_eq!(name(&classes[1..2]), None);
    }

    #[test]
    fn the_annotation_wins_over_the_field() {
        let claim = |annotations, spec| -> PersistentVolumeClaim {
            let claim = json!({"metadata": {"annotations": annotations}, "spec": spec});
            serde_json::from_value(claim).unwrap()
        };
        let both = claim(
            json!({BETA_STORAGE_CLASS: "old"}),
            json!({"storageClassName": "new"}),
        );
        assert_eq!(claim_class(&both), Some("old"));
        assert_eq!(
            claim_class(&claim(json!({}), json!({"storageClassName": ""}))),
            Some("")
        );
        assert_eq!(claim_class(&claim(json!({}), json!({}))), None);
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"annotations": {BETA_STORAGE_CLASS: "old"}}, "spec": {"storageClassName": "new"},
        }))
        .unwrap();
        assert_eq!(volume_class(&volume), "old");
        assert_eq!(volume_class(&PersistentVolume::default()), "");
    }

    #[test]
    fn modes_and_provisioners() {
        let mut class = class("a", "2026-01-01T00:00:00Z", json!({}));
        assert_eq!(binding_mode(None), BindingMode::Immediate);
        assert_eq!(binding_mode(Some(&class)), BindingMode::Immediate);
        class.volume_binding_mode = Some("WaitForFirstConsumer".to_owned());
        assert_eq!(
            binding_mode(Some(&class)),
            BindingMode::WaitForFirstConsumer
        );
        assert!(can_provision(&class));
        class.provisioner = NO_PROVISIONER.to_owned();
        assert!(!can_provision(&class));
        class.provisioner.clear();
        assert!(!can_provision(&class));
    }
}
