//! The row of a kind as strategies see it, and the bookkeeping every kind shares: status kept
//! apart, generation counted.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::json::{at, int_at, keep, object_mut, remove, same, set};
use davit_api::names::NameRule;

/// What a strategy knows of its kind.
#[derive(Clone, Debug)]
pub struct KindInfo {
    /// API group, empty for core.
    pub group: Cow<'static, str>,
    /// Version of the objects this strategy is given.
    pub version: Cow<'static, str>,
    /// Kind as in the object.
    pub kind: Cow<'static, str>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether status is written by a subresource of its own.
    pub has_status: bool,
    /// Whether `metadata.generation` counts changes.
    pub tracks_generation: bool,
    pub(super) name_rule: NameRule,
}

/// Kinds whose DELETE answers with the object (upstream's list).
const RETURN_DELETED: &[(&str, &str)] = &[
    ("", "PersistentVolume"),
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "PodTemplate"),
    ("", "ResourceQuota"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("resource.k8s.io", "DeviceClass"),
    ("resource.k8s.io", "DeviceTaintRule"),
    ("resource.k8s.io", "ResourceClaim"),
    ("resource.k8s.io", "ResourceClaimTemplate"),
    ("resource.k8s.io", "ResourcePoolStatusRequest"),
    ("resource.k8s.io", "ResourceSlice"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storage.k8s.io", "VolumeAttributesClass"),
];

/// Kinds that count changes in `metadata.generation`.
const TRACK_GENERATION: &[(&str, &str)] = &[
    ("", "Pod"),
    ("", "PodTemplate"),
    ("", "ReplicationController"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "CronJob"),
    ("batch", "Job"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "IngressClass"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
    ("resource.k8s.io", "DeviceClass"),
    ("resource.k8s.io", "DeviceTaintRule"),
    ("resource.k8s.io", "ResourceSlice"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("storage.k8s.io", "CSIDriver"),
];

/// That of them which has its first one for ever.
const NEVER_COUNTED: (&str, &str) = ("scheduling.k8s.io", "PriorityClass");

/// Those of them that begin to count at the first change.
const FROM_FIRST_CHANGE: (&str, &str) = ("storage.k8s.io", "CSIDriver");

/// Kinds of which a PUT must say which version it replaces.
const CONDITIONAL_UPDATE: &[(&str, &str)] = &[
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    (
        "admissionregistration.k8s.io",
        "ValidatingAdmissionPolicyBinding",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("certificates.k8s.io", "ClusterTrustBundle"),
    ("certificates.k8s.io", "PodCertificateRequest"),
    ("coordination.k8s.io", "Lease"),
    ("coordination.k8s.io", "LeaseCandidate"),
    ("internal.apiserver.k8s.io", "StorageVersion"),
    ("node.k8s.io", "RuntimeClass"),
    ("policy", "PodDisruptionBudget"),
    ("resource.k8s.io", "ResourcePoolStatusRequest"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "CSIStorageCapacity"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storagemigration.k8s.io", "StorageVersionMigration"),
];

/// Kinds whose missing objects a PUT creates.
const CREATED_BY_UPDATE: &[(&str, &str)] = &[
    ("", "Endpoints"),
    ("", "Event"),
    ("", "LimitRange"),
    ("", "Service"),
    ("coordination.k8s.io", "Lease"),
    ("coordination.k8s.io", "LeaseCandidate"),
    ("node.k8s.io", "RuntimeClass"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
];

impl KindInfo {
    /// A kind of the built-in table.
    pub(super) fn built_in(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        namespaced: bool,
        has_status: bool,
    ) -> Self {
        Self {
            tracks_generation: TRACK_GENERATION.contains(&(group, kind)),
            name_rule: super::meta::name_rule(group, kind),
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            namespaced,
            has_status,
        }
    }

    /// A custom kind: names are DNS subdomains, the generation counts.
    pub fn custom(group: &str, version: &str, kind: &str, namespaced: bool, status: bool) -> Self {
        Self {
            group: Cow::Owned(group.to_owned()),
            version: Cow::Owned(version.to_owned()),
            kind: Cow::Owned(kind.to_owned()),
            namespaced,
            has_status: status,
            tracks_generation: true,
            name_rule: NameRule::Subdomain,
        }
    }
}

fn is_among(kind: &KindInfo, kinds: &[(&str, &str)]) -> bool {
    kinds.contains(&(&*kind.group, &*kind.kind))
}

pub(super) fn takes_unconditional_update(kind: &KindInfo) -> bool {
    !is_among(kind, CONDITIONAL_UPDATE)
}

pub(super) fn is_created_by_update(kind: &KindInfo) -> bool {
    is_among(kind, CREATED_BY_UPDATE)
}

pub(super) fn returns_deleted_object(kind: &KindInfo) -> bool {
    is_among(kind, RETURN_DELETED)
}

pub(super) fn reset_status(kind: &KindInfo, obj: &mut Value) {
    if kind.has_status {
        remove(obj, "status");
    }
}

pub(super) fn first_generation(kind: &KindInfo, obj: &mut Value) {
    if kind.tracks_generation
        && !is_among(kind, &[FROM_FIRST_CHANGE])
        && let Some(meta) = object_mut(obj, "metadata")
    {
        meta.insert("generation".to_owned(), json!(1));
    }
}

pub(super) fn keep_status(kind: &KindInfo, new: &mut Value, old: &Value) {
    if kind.has_status {
        keep(new, old, "status");
    }
}

/// Raises the generation when anything but metadata and status changed; some kinds count changes of
/// parts of the metadata too.
pub(super) fn next_generation(kind: &KindInfo, new: &mut Value, old: &Value) {
    let counts = kind.tracks_generation && !is_among(kind, &[NEVER_COUNTED]);
    if !counts || same_desired_state(kind, new, old) {
        return;
    }
    let next = int_at(old, &["metadata", "generation"]).unwrap_or(0) + 1;
    if let Some(meta) = new.get_mut("metadata") {
        set(meta, "generation", next);
    }
}

fn same_desired_state(kind: &KindInfo, new: &Value, old: &Value) -> bool {
    let relevant = |key: &str| {
        let apart = kind.has_status && key == "status";
        !apart && !matches!(key, "apiVersion" | "kind" | "metadata")
    };
    let keys = |v: &Value| -> Vec<String> {
        v.as_object()
            .map(|o| o.keys().filter(|k| relevant(k)).cloned().collect())
            .unwrap_or_default()
    };
    keys(new)
        .iter()
        .chain(&keys(old))
        .all(|k| same(at(new, &[k]), at(old, &[k])))
        && match (&*kind.group, &*kind.kind) {
            ("apps", "Deployment") => same_metadata("annotations", new, old),
            ("discovery.k8s.io", "EndpointSlice") => same_metadata("labels", new, old),
            _ => true,
        }
}

fn same_metadata(key: &str, new: &Value, old: &Value) -> bool {
    same(at(new, &["metadata", key]), at(old, &["metadata", key]))
}

/// A status write: everything but status comes from the stored object; of the metadata only what
/// names the version written (resourceVersion, uid) and managedFields are the writer's.
pub(super) fn keep_all_but_status(new: &mut Value, old: &Value) {
    let mut writer = std::mem::replace(new, old.clone());
    if let Some(version) = remove(&mut writer, "apiVersion") {
        set(new, "apiVersion", version);
    }
    keep(new, &writer, "status");
    if let (Some(meta), Some(written)) = (new.get_mut("metadata"), writer.get("metadata")) {
        for key in ["resourceVersion", "uid", "managedFields"] {
            keep(meta, written, key);
        }
    }
}

/// As [`keep_all_but_status`], but labels, annotations and finalizers are the writer's too:
/// upstream lets status writers of the older kinds change them, save the labels of a Deployment.
pub(super) fn keep_all_but_status_and_metadata(new: &mut Value, old: &Value) {
    let meta = remove(new, "metadata");
    keep_all_but_status(new, old);
    if let Some(mut meta) = meta {
        if at(old, &["kind"]) == "Deployment" {
            keep(&mut meta, at(old, &["metadata"]), "labels");
        }
        set(new, "metadata", meta);
    }
}

/// Whether a status writer may change labels, annotations and finalizers.
pub(super) fn status_writes_metadata(kind: &KindInfo) -> bool {
    match (&*kind.group, &*kind.kind) {
        ("networking.k8s.io", "ServiceCIDR") => false,
        (group, _) => matches!(
            group,
            "" | "apps" | "batch" | "autoscaling" | "policy" | "networking.k8s.io"
        ),
    }
}

/// Now, to the second, as it stands in objects.
pub(super) fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
