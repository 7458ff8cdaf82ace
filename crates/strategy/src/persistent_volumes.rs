//! Persistent volumes.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::access::now;
use super::containers::{optional_choice, required};
use super::json::{
    at, at_mut, default, default_unset, has, is_empty, keep, list_at, object_mut, remove, same, set,
};
use super::{KindInfo, Strategy, access, meta, pod_defaults, resources, selectors, volumes};

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
        }
        if let Some(status) = object_mut(obj, "status") {
            status.entry("phase").or_insert_with(|| json!("Pending"));
        }
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now()});
        set(obj, "status", status);
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
    meta::immutable_at(new, old, &["spec", "volumeMode"], errors);
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
    access_modes(spec, &path, errors);
    let capacity = at(spec, &["capacity"]);
    let at_capacity = path.child("capacity");
    if is_empty(capacity) {
        errors.push(FieldError::required(&at_capacity, ""));
    } else if !has(capacity, &["storage"]) {
        let supported = ["storage"];
        let given = capacity
            .as_object()
            .map(|c| c.keys().cloned().collect::<Vec<_>>());
        let given = json!(given.unwrap_or_default());
        errors.push(FieldError::not_supported(&at_capacity, given, &supported));
    }
    for (name, value) in super::json::entries_at(capacity, &[]) {
        let path = at_capacity.key(name);
        resources::amount(name, value, &path, errors);
        if Quantity::from_json(value).is_ok_and(Quantity::is_zero) {
            let amount = value.as_str().unwrap_or_default();
            errors.push(FieldError::invalid(
                &path,
                amount,
                "must be greater than zero",
            ));
        }
    }
    let policies = ["Delete", "Recycle", "Retain"];
    optional_choice(
        spec,
        "persistentVolumeReclaimPolicy",
        &policies,
        &path,
        errors,
    );
    let sources = volume_sources(obj);
    match sources.as_slice() {
        [] => errors.push(FieldError::required(&path, "must specify a volume type")),
        [("hostPath", host)] => volumes::host_path(host, &path.child("hostPath"), errors),
        [("csi", csi)] => {
            for key in ["driver", "volumeHandle"] {
                required(csi, key, &path.child("csi"), errors);
            }
        }
        [("flexVolume", flex)] => volumes::flex_volume(flex, &path.child("flexVolume"), errors),
        [("local", local)] => {
            required(local, "path", &path.child("local"), errors);
            volumes::fs_type(local, &path.child("local"), errors);
            if !has(spec, &["nodeAffinity"]) {
                let why = "Local volume requires node affinity";
                errors.push(FieldError::required(&path.child("nodeAffinity"), why));
            }
        }
        [_] => {}
        [_, rest @ ..] => {
            for (kind, _) in rest {
                let why = "may not specify more than 1 volume type";
                errors.push(FieldError::forbidden(&path.child(kind), why));
            }
        }
    }
    let affinity = at(spec, &["nodeAffinity", "required"]);
    if !affinity.is_null() {
        let path = path.child("nodeAffinity").child("required");
        selectors::node_selector(affinity, &path, errors);
    }
    volumes::volume_mode(spec, &path, errors);
    attributes_class_name(spec, &path, errors);
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

/// Faults of the access modes of a volume or claim.
pub(super) fn access_modes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let modes = list_at(spec, &["accessModes"]);
    let path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(
            &path,
            "at least 1 access mode is required",
        ));
    }
    for mode in modes.iter().filter_map(Value::as_str) {
        if !ACCESS_MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&path, mode, &ACCESS_MODES));
        }
    }
    if modes.len() > 1 && modes.iter().any(|m| m == "ReadWriteOncePod") {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path, why));
    }
}
