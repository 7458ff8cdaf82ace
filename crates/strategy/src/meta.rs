//! Metadata: what every object has in common.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each, quote};
use davit_api::names::{self, NameRule};
use serde_json::{Value, json};

use super::KindInfo;
use super::json::{at, bool_at, entries_at, int_at, list_at, same, str_at};

/// Bytes of all annotations of an object together.
const ANNOTATIONS_MAX: usize = 256 * 1024;
/// The longest name of a manager of fields, in bytes.
pub const MANAGER_MAX: usize = 128;
/// The longest name of the subresource by which fields are owned, in bytes.
const SUBRESOURCE_MAX: usize = 256;
const IMMUTABLE: &str = "field is immutable";

/// Which rule names of a kind follow.
pub(super) fn name_rule(group: &str, kind: &str) -> NameRule {
    match (group, kind) {
        ("", "Namespace" | "Service") | ("apps", "StatefulSet") => NameRule::Label,
        // events of core/v1 and requests for certificates are called as their authors like
        ("rbac.authorization.k8s.io", _)
        | ("", "Event")
        | ("certificates.k8s.io", "CertificateSigningRequest")
        | ("certificates.k8s.io", "ClusterTrustBundle")
        | ("apiregistration.k8s.io", "APIService")
        | ("policy", "PodDisruptionBudget")
        | ("", "ComponentStatus") => NameRule::PathSegment,
        ("resource.k8s.io", "DeviceClass") | ("", "ReplicationController") => NameRule::LongName,
        ("networking.k8s.io", "IPAddress")
        | ("internal.apiserver.k8s.io", "StorageVersion")
        | ("coordination.k8s.io", "LeaseCandidate") => NameRule::Own,
        _ => NameRule::Subdomain,
    }
}

/// All faults of the metadata of a new object.
pub fn validate(kind: &KindInfo, obj: &Value) -> ErrorList {
    let meta = at(obj, &["metadata"]);
    let path = Path::new("metadata");
    let mut errors = ErrorList::new();
    let generate = str_at(meta, &["generateName"]);
    if !generate.is_empty() {
        let faults = kind.name_rule.check(generate, true);
        errors.extend(invalid_each(&path.child("generateName"), generate, faults));
    }
    let name = str_at(meta, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "name or generateName is required",
        ));
    } else {
        let faults = kind.name_rule.check(name, false);
        errors.extend(invalid_each(&path.child("name"), name, faults));
    }
    let namespace = str_at(meta, &["namespace"]);
    let at_namespace = path.child("namespace");
    if kind.namespaced && namespace.is_empty() {
        errors.push(FieldError::required(&at_namespace, ""));
    } else if kind.namespaced {
        let faults = names::check_dns1123_label(namespace);
        errors.extend(invalid_each(&at_namespace, namespace, faults));
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden(
            &at_namespace,
            "not allowed on this type",
        ));
    }
    // who counts it sets it itself, the others keep what they are given
    super::fields::not_negative(meta, "generation", &path, &mut errors);
    changeable(kind, meta, &path, &mut errors);
    errors
}

/// All faults of the metadata of an updated object.
pub fn validate_update(kind: &KindInfo, new: &Value, old: &Value) -> ErrorList {
    let (meta, stored) = (at(new, &["metadata"]), at(old, &["metadata"]));
    let path = Path::new("metadata");
    let mut errors = ErrorList::new();
    if !at(stored, &["deletionTimestamp"]).is_null() {
        let texts = |of| {
            list_at(of, &["finalizers"])
                .iter()
                .filter_map(Value::as_str)
        };
        let known: HashSet<&str> = texts(stored).collect();
        let added = texts(meta).filter(|f| !known.contains(f)).map(quote);
        let added: Vec<String> = added.collect();
        if !added.is_empty() {
            errors.push(FieldError::forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            ));
        }
    }
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        immutable(
            at(meta, &[key]),
            at(stored, &[key]),
            &path.child(key),
            &mut errors,
        );
    }
    let generate = str_at(meta, &["generateName"]);
    if !generate.is_empty() {
        let path = path.child("generateName");
        let faults = NameRule::PathSegment.check(generate, true);
        errors.extend(invalid_each(&path, generate, faults));
        if is_checked_again(kind) && kind.name_rule != NameRule::PathSegment {
            let faults = kind.name_rule.check(generate, true);
            errors.extend(invalid_each(&path, generate, faults));
        }
    }
    let generation = |m| int_at(m, &["generation"]).unwrap_or(0);
    if generation(meta) < generation(stored) {
        let fault = "must not be decremented";
        errors.push(FieldError::invalid(
            &path.child("generation"),
            generation(meta),
            fault,
        ));
    }
    changeable(kind, meta, &path, &mut errors);
    errors
}

/// Faults of the name, and of the base of a generated one, under a rule that is the kind's own.
pub(super) fn own_rule(
    obj: &Value,
    errors: &mut ErrorList,
    fault: impl Fn(&str) -> Option<String>,
) {
    let path = Path::new("metadata");
    for key in ["generateName", "name"] {
        let name = str_at(obj, &["metadata", key]);
        if let Some(fault) = fault(name).filter(|_| !name.is_empty()) {
            errors.push(FieldError::invalid(&path.child(key), name, fault));
        }
    }
}

/// Whether an update of a kind is held against all that is asked of a new object, the name included.
fn is_checked_again(kind: &KindInfo) -> bool {
    match (&*kind.group, &*kind.kind) {
        ("", "Event" | "PodTemplate" | "ReplicationController" | "ResourceQuota")
        | ("certificates.k8s.io", "PodCertificateRequest")
        | ("networking.k8s.io", "NetworkPolicy" | "ServiceCIDR")
        | ("resource.k8s.io", "DeviceTaintRule" | "ResourcePoolStatusRequest" | "ResourceSlice")
        | ("storage.k8s.io", "CSIDriver") => false,
        ("apps", kind) => kind == "ControllerRevision",
        ("batch", kind) => kind == "Job",
        (group, _) => matches!(
            group,
            "" | "admissionregistration.k8s.io"
                | "certificates.k8s.io"
                | "discovery.k8s.io"
                | "flowcontrol.apiserver.k8s.io"
                | "networking.k8s.io"
                | "node.k8s.io"
                | "resource.k8s.io"
                | "storage.k8s.io"
                | "storagemigration.k8s.io"
        ),
    }
}

/// Labels, annotations, owner references and finalizers.
fn changeable(kind: &KindInfo, meta: &Value, path: &Path, errors: &mut ErrorList) {
    labels(at(meta, &["labels"]), &path.child("labels"), errors);
    annotations(
        at(meta, &["annotations"]),
        &path.child("annotations"),
        errors,
    );
    owners(
        list_at(meta, &["ownerReferences"]),
        &path.child("ownerReferences"),
        errors,
    );
    finalizers(
        kind,
        list_at(meta, &["finalizers"]),
        &path.child("finalizers"),
        errors,
    );
    managers(
        list_at(meta, &["managedFields"]),
        &path.child("managedFields"),
        errors,
    );
}

/// Who owns fields has a name that can be told: each field that is in conflict names its owner.
fn managers(entries: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, entry) in entries.iter().enumerate() {
        let path = path.index(i);
        manager_name(str_at(entry, &["manager"]), &path.child("manager"), errors);
        if str_at(entry, &["subresource"]).len() > SUBRESOURCE_MAX {
            let path = path.child("subresource");
            errors.push(FieldError::too_long(&path, SUBRESOURCE_MAX));
        }
    }
}

/// Faults of the name of a manager of fields, in requests and in objects.
pub fn manager_name(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.len() > MANAGER_MAX {
        // Of what is longer not each character is told: each would show the whole.
        errors.push(FieldError::too_long(path, MANAGER_MAX));
        return;
    }
    for (at, c) in name.char_indices().filter(|(_, c)| c.is_control()) {
        let why = format!(
            "invalid character U+{:04X} (at position {at})",
            u32::from(c)
        );
        errors.push(FieldError::invalid(path, name, why));
    }
}

/// Faults of the labels and annotations of a pod template.
pub(super) fn template(meta: &Value, path: &Path, errors: &mut ErrorList) {
    labels(at(meta, &["labels"]), &path.child("labels"), errors);
    annotations(
        at(meta, &["annotations"]),
        &path.child("annotations"),
        errors,
    );
}

/// Faults of label keys and values.
pub(super) fn labels(labels: &Value, path: &Path, errors: &mut ErrorList) {
    for (key, value) in entries_at(labels, &[]) {
        errors.extend(invalid_each(path, key, names::check_qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid_each(path, value, names::check_label_value(value)));
    }
}

/// Faults of annotation keys, and of their size.
pub(super) fn annotations(annotations: &Value, path: &Path, errors: &mut ErrorList) {
    let mut size = 0;
    for (key, value) in entries_at(annotations, &[]) {
        let faults = names::check_qualified_name(&key.to_lowercase());
        errors.extend(invalid_each(path, key, faults));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

fn owners(owners: &[Value], path: &Path, errors: &mut ErrorList) {
    let (mut controller, mut several): (Option<String>, bool) = (None, false);
    // As in the original the faults do not say which of the owners it is.
    for owner in owners {
        let version = str_at(owner, &["apiVersion"]);
        let slashes = version.matches('/').count();
        if version.is_empty() || version.ends_with('/') || slashes > 1 {
            let fault = "version must not be empty";
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                version,
                fault,
            ));
        }
        for key in ["kind", "name", "uid"] {
            if str_at(owner, &[key]).is_empty() {
                errors.push(FieldError::invalid(
                    &path.child(key),
                    "",
                    "must not be empty",
                ));
            }
        }
        if version == "v1" && str_at(owner, &["kind"]) == "Event" {
            let fault = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, owner.clone(), fault));
        }
        if bool_at(owner, &["controller"]) {
            let name = format!("{}/{}", str_at(owner, &["kind"]), str_at(owner, &["name"]));
            // Told once: it shows all of them.
            if let Some(first) = controller.as_ref().filter(|_| !several) {
                several = true;
                let fault = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                );
                errors.push(FieldError::invalid(path, owners.to_vec(), fault));
            } else {
                controller.get_or_insert(name);
            }
        }
    }
}

fn finalizers(kind: &KindInfo, finalizers: &[Value], path: &Path, errors: &mut ErrorList) {
    const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let names = || finalizers.iter().filter_map(Value::as_str);
    for finalizer in names() {
        let faults = names::check_qualified_name(finalizer);
        errors.extend(invalid_each(path, finalizer, faults));
    }
    if ["orphan", "foregroundDeletion"]
        .iter()
        .all(|f| finalizers.contains(&json!(f)))
    {
        let fault = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(path, finalizers.to_vec(), fault));
    }
    if !has_qualified_finalizers(kind) {
        return;
    }
    for (i, finalizer) in names().enumerate() {
        if !finalizer.contains('/') && !STANDARD.contains(&finalizer) {
            let fault = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(i), finalizer, fault));
        }
    }
}

/// Whether finalizers of a kind need a domain before their name. Custom kinds, those of the API server itself and disruption
/// budgets take others, too.
fn has_qualified_finalizers(kind: &KindInfo) -> bool {
    const GROUPS: [&str; 15] = [
        "",
        "apps",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    ];
    // Of core events upstream validates next to nothing, as it always did.
    let is_core_event = kind.group.is_empty() && kind.kind == "Event";
    !is_core_event && GROUPS.contains(&&*kind.group)
}

/// A warning about a name that is no DNS label, of an object whose name is used where only labels are good.
pub(super) fn label_warning(obj: &Value, used_in: &str) -> Vec<String> {
    let faults = names::check_dns1123_label(str_at(obj, &["metadata", "name"]));
    if faults.is_empty() {
        return Vec::new();
    }
    let faults = faults.join(" ");
    vec![format!(
        "metadata.name: this is used in {used_in}, which can result in surprising behavior; a DNS label is recommended: [{faults}]"
    )]
}

/// `field is immutable`, when the value changed.
pub(super) fn immutable(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    if !same(new, old) {
        errors.push(FieldError::invalid(path, new.clone(), IMMUTABLE));
    }
}

/// As [`immutable`] for a member of the object.
pub(super) fn immutable_at(new: &Value, old: &Value, keys: &[&str], errors: &mut ErrorList) {
    let path = keys.iter().fold(Path::root(), |path, key| path.child(key));
    immutable(at(new, keys), at(old, keys), &path, errors);
}
