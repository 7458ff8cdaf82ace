//! Persistent volumes.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::access::now;
use super::fields::{optional_choice, required};
use super::json::{
    at, at_mut, default, default_unset, has, is_empty, keep, list_at, object_mut, remove, same,
    set, str_at,
};
use super::{
    KindInfo, Strategy, access, fields, meta, pod_defaults, resources, selectors, volumes,
};

/// Kinds of volumes that are no more: their field, the name that warnings show, and the minor versions of Kubernetes 1 in which
/// they were deprecated and went.
const GONE: [(&str, &str, [u8; 2]); 6] = [
    ("cephfs", "cephfs", [28, 31]),
    ("photonPersistentDisk", "photonPersistentDisk", [11, 16]),
    ("scaleIO", "scaleIO", [16, 22]),
    ("storageos", "storageOS", [22, 25]),
    ("glusterfs", "glusterfs", [25, 26]),
    ("rbd", "rbd", [28, 31]),
];

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

pub(super) struct PersistentVolume(pub(super) KindInfo);

impl Strategy for PersistentVolume {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        if let Some(spec) = at_mut(obj, &["spec"]) {
            default(spec, "persistentVolumeReclaimPolicy", "Retain");
            default(spec, "volumeMode", "Filesystem");
            if let Some(host) = at_mut(spec, &["hostPath"]) {
                default_unset(host, "type", "");
            }
            pod_defaults::legacy_volume(spec);
            pod_defaults::round_quantities(spec, &["capacity"]);
        }
        if let Some(status) = object_mut(obj, "status") {
            status.entry("phase").or_insert_with(|| json!("Pending"));
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now()});
        set(obj, "status", status);
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let recycles = str_at(obj, &["spec", "persistentVolumeReclaimPolicy"]) == "Recycle";
        let text = "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the \
                    recommended approach is to use dynamic provisioning.";
        let recycled = recycles.then(|| text.to_owned());
        let given = GONE.iter().filter(|(kind, ..)| has(obj, &["spec", *kind]));
        let gone = given.map(|(_, shown, [deprecated, gone])| {
            format!("spec.{shown}: deprecated in v1.{deprecated}, non-functional in v1.{gone}+")
        });
        recycled.into_iter().chain(gone).collect()
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        persistent_volume(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        persistent_volume(new, &mut errors);
        persistent_volume_update(new, old, &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status_and_metadata(new, old);
        let same_of = |key| same(at(new, &["status", key]), at(old, &["status", key]));
        let phase_stays = same_of("phase");
        let given = has(new, &["status", TRANSITION]);
        let untouched = !given || same_of(TRANSITION);
        let Some(status) = at_mut(new, &["status"]) else {
            return;
        };
        if phase_stays && !given {
            keep(status, at(old, &["status"]), TRANSITION);
        } else if !phase_stays && untouched {
            set(status, TRANSITION, now());
        }
    }
}

/// Since when the volume is in its phase.
const TRANSITION: &str = "lastPhaseTransitionTime";

fn persistent_volume_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let spec = Path::new("spec");
    let changed = |(kind, source): (&str, &Value)| {
        let before = at(old, &["spec", kind]);
        let mut source = source.clone();
        // what grows volumes may learn a secret later
        if kind == "csi" && !has(before, &["controllerExpandSecretRef"]) {
            remove(&mut source, "controllerExpandSecretRef");
        }
        !same(&source, before)
    };
    if volume_sources(new).into_iter().any(changed) {
        let path = spec.child("persistentvolumesource");
        let why = "spec.persistentvolumesource is immutable after creation";
        errors.push(FieldError::forbidden(&path, why));
    }
    let mode = |volume| at(volume, &["spec", "volumeMode"]);
    meta::immutable(mode(new), mode(old), &Path::new("volumeMode"), errors);
    let affinity = |volume| at(volume, &["spec", "nodeAffinity"]);
    if !affinity(old).is_null() {
        let path = Path::new("nodeAffinity");
        meta::immutable(affinity(new), affinity(old), &path, errors);
    }
    let key = "volumeAttributesClassName";
    if has(old, &["spec", key]) && !has(new, &["spec", key]) {
        let why = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(&spec.child(key), why));
    }
}

/// The members of a volume's spec that are no source of a volume.
const NO_SOURCE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn volume_sources(volume: &Value) -> Vec<(&str, &Value)> {
    super::json::entries_at(volume, &["spec"])
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, value)| !NO_SOURCE.contains(key) && !value.is_null())
        .collect()
}

fn persistent_volume(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    modes_required(spec, "", &path, errors);
    access_modes(spec, &path, errors);
    capacity(spec, &path.child("capacity"), errors);
    let policies = ["Delete", "Recycle", "Retain"];
    let key = "persistentVolumeReclaimPolicy";
    optional_choice(spec, key, &policies, &path, errors);
    let affinity = at(spec, &["nodeAffinity"]);
    let path_of_affinity = path.child("nodeAffinity").child("required");
    if has(affinity, &["required"]) {
        selectors::node_selector(at(affinity, &["required"]), &path_of_affinity, errors);
    } else if !affinity.is_null() {
        let why = "must specify required node constraints";
        errors.push(FieldError::required(&path_of_affinity, why));
    }
    source(spec, str_at(obj, &["metadata", "name"]), &path, errors);
    let is_root = |path: &str| !path.is_empty() && path.split('/').all(|p| matches!(p, "" | "."));
    if is_root(str_at(spec, &["hostPath", "path"])) && str_at(spec, &[key]) == "Recycle" {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden(&path.child(key), why));
    }
    let check = names::check_dns1123_subdomain;
    fields::optional_name(spec, "storageClassName", check, &path, errors);
    volumes::volume_mode(spec, &path, errors);
    attributes_class_name(spec, &path, errors);
}

/// Faults of a volume that stands in an attachment: it is one of a driver, and of no claim.
pub(super) fn inline(spec: &Value, path: &Path, errors: &mut ErrorList) {
    const CONTEXT: &str = "in the context of inline volumes";
    for key in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
        if !is_empty(at(spec, &[key])) {
            let why = format!("may not be specified {CONTEXT}");
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    if !has(spec, &["csi"]) {
        let why = format!("has to be specified {CONTEXT}");
        errors.push(FieldError::required(&path.child("csi"), why));
    }
    modes_required(spec, "", path, errors);
    access_modes(spec, path, errors);
    for (key, only, why) in [
        (
            "persistentVolumeReclaimPolicy",
            "Retain",
            "may only be Retain",
        ),
        (
            "volumeMode",
            "Filesystem",
            "may not specify volumeMode other than Filesystem",
        ),
    ] {
        let given = str_at(spec, &[key]);
        if !given.is_empty() && given != only {
            let why = format!("{why} {CONTEXT}");
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    source(spec, "", path, errors);
    attributes_class_name(spec, path, errors);
}

fn capacity(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let capacity = at(spec, &["capacity"]);
    if is_empty(capacity) {
        errors.push(FieldError::required(path, ""));
    }
    let entries = capacity.as_object().map_or(0, serde_json::Map::len);
    if entries > 1 || !has(capacity, &["storage"]) {
        let supported = ["storage"];
        errors.push(FieldError::not_supported(
            path,
            capacity.clone(),
            &supported,
        ));
    }
    for (name, value) in super::json::entries_at(capacity, &[]) {
        let path = path.key(name);
        let Ok(quantity) = Quantity::from_json(value) else {
            resources::amount("storage", value, &path, errors);
            continue;
        };
        if quantity.value() < 0 {
            let fault = "must be a valid resource quantity";
            errors.push(FieldError::invalid(&path, quantity.value(), fault));
        }
        if quantity.signum() <= 0 {
            let amount = value.as_str().unwrap_or_default();
            let fault = "must be greater than zero";
            errors.push(FieldError::invalid(&path, amount, fault));
        }
    }
}

/// The sources of volumes in the order in which they are looked at: the first one counts.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn source(spec: &Value, name: &str, path: &Path, errors: &mut ErrorList) {
    let mut is_first = true;
    for kind in SOURCES.iter().filter(|kind| has(spec, &[kind])) {
        if is_first || *kind == "flexVolume" {
            of_source(kind, spec, name, path, errors);
        } else {
            let why = "may not specify more than 1 volume type";
            let at_other = path.child(volumes::legacy::other(kind));
            errors.push(FieldError::forbidden(&at_other, why));
        }
        is_first = false;
    }
    if is_first {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn of_source(kind: &str, spec: &Value, name: &str, path: &Path, errors: &mut ErrorList) {
    let source = at(spec, &[kind]);
    let at_source = path.child(volumes::legacy::field(kind));
    match kind {
        "hostPath" => volumes::host_path(source, &at_source, errors),
        "csi" => driver(source, &at_source, errors),
        "flexVolume" => volumes::flex_volume(source, &at_source, errors),
        "nfs" => volumes::nfs(source, &at_source, errors),
        "local" => {
            required(source, "path", &at_source, errors);
            volumes::fs_type(source, &at_source, errors);
            if !has(spec, &["nodeAffinity"]) {
                let why = "Local volume requires node affinity";
                errors.push(FieldError::required(&path.child("nodeAffinity"), why));
            }
        }
        "iscsi" => volumes::iscsi::validate(source, Some(name), &at_source, errors),
        kind => volumes::legacy::of_persistent_volume(kind, source, &at_source, errors),
    }
}

fn driver(csi: &Value, path: &Path, errors: &mut ErrorList) {
    let name = str_at(csi, &["driver"]);
    fields::driver_name(name, &path.child("driver"), errors);
    required(csi, "volumeHandle", path, errors);
    for key in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let secret = at(csi, &[key]);
        if !secret.is_null() {
            let path = path.child(key);
            let name = names::check_dns1123_subdomain;
            fields::name(secret, "name", name, &path, errors);
            let namespace = names::check_dns1123_label;
            fields::name(secret, "namespace", namespace, &path, errors);
        }
    }
}

fn attributes_class_name(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(class) = at(spec, &["volumeAttributesClassName"]).as_str() else {
        return;
    };
    let at_class = path.child("volumeAttributesClassName");
    if class.is_empty() {
        let why = "an empty string is disallowed";
        errors.push(FieldError::required(&at_class, why));
    } else {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(&at_class, class, faults));
    }
    if at(spec, &["csi"]).is_null() {
        let why = "has to be specified when using volumeAttributesClassName";
        errors.push(FieldError::required(&path.child("csi"), why));
    }
}

/// A volume or claim says how it may be used.
pub(super) fn modes_required(spec: &Value, why: &str, path: &Path, errors: &mut ErrorList) {
    if list_at(spec, &["accessModes"]).is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), why));
    }
}

/// Faults of the access modes of a volume or claim.
pub(super) fn access_modes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("accessModes");
    let (mut one_pod, mut others) = (false, false);
    for mode in list_at(spec, &["accessModes"]) {
        let mode = mode.as_str().unwrap_or_default();
        if !ACCESS_MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&path, mode, &ACCESS_MODES));
        }
        one_pod |= mode == "ReadWriteOncePod";
        others |= mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode);
    }
    if one_pod && others {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{faults, none};

    fn volume(change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example.com", "volumeHandle": "h"}}});
        change(&mut obj["spec"]);
        obj
    }

    #[test]
    fn faults_of_volumes() {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (
                |s| s["capacity"] = Value::Null,
                "spec.capacity: Required value\nspec.capacity: Unsupported value: null: supported values: \"storage\"",
            ),
            (
                |s| s["capacity"]["cpu"] = json!("1"),
                "spec.capacity: Unsupported value: {\"cpu\":\"1\",\"storage\":\"1Gi\"}: supported values: \"storage\"",
            ),
            (
                |s| s["capacity"]["storage"] = json!("-1"),
                "spec.capacity[storage]: Invalid value: -1: must be a valid resource quantity\n\
                 spec.capacity[storage]: Invalid value: \"-1\": must be greater than zero",
            ),
            (
                |s| {
                    s["csi"] = Value::Null;
                    s["glusterfs"] =
                        json!({"endpoints": "e", "path": "p", "endpointsNamespace": ""});
                },
                "spec.glusterfs.endpointsNamespace: Invalid value: \"\": if the endpointnamespace is set, it must be a valid namespace name",
            ),
            (
                |s| {
                    s["csi"] = Value::Null;
                    s["azureFile"] =
                        json!({"secretName": "s", "shareName": "s", "secretNamespace": ""});
                },
                "spec.azureFile.secretNamespace: Required value",
            ),
            (
                |s| {
                    s["csi"] = Value::Null;
                    s["cinder"] = json!({"volumeID": "i", "secretRef": {"name": "s"}});
                },
                "spec.cinder.secretRef.namespace: Required value",
            ),
            (
                |s| s["accessModes"] = json!([]),
                "spec.accessModes: Required value",
            ),
            (
                |s| s["nodeAffinity"] = json!({}),
                "spec.nodeAffinity.required: Required value: must specify required node constraints",
            ),
            (
                |s| s["csi"]["nodePublishSecretRef"] = json!({}),
                "spec.csi.nodePublishSecretRef.name: Required value\nspec.csi.nodePublishSecretRef.namespace: Required value",
            ),
            (
                |s| s["hostPath"] = json!({"path": "/x"}),
                "spec.csi: Forbidden: may not specify more than 1 volume type",
            ),
        ];
        for (change, wanted) in cases {
            assert_eq!(
                faults("", "v1", "PersistentVolume", &volume(change)),
                *wanted
            );
        }
        none(
            "",
            "v1",
            "PersistentVolume",
            &volume(|s| {
                s["accessModes"] = json!(["ReadWriteOncePod", "ReadWriteOncePod"]);
                s["csi"]["nodeStageSecretRef"] = json!({});
            }),
        );
    }
}
