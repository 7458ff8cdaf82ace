//! Persistent volumes, claims and storage.k8s.io.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::containers::{choice, optional_choice, required};
use super::json::{
    at, at_mut, default, default_unset, has, is_empty, list_at, object_mut, remove, same, set,
    str_at,
};
use super::{
    Generic, KindInfo, Strategy, access, meta, pod_defaults, resources, selectors, volumes,
};

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "PersistentVolume" => Box::new(PersistentVolume(info)),
        "PersistentVolumeClaim" => Box::new(PersistentVolumeClaim(info)),
        "StorageClass" => Box::new(StorageClass(info)),
        "CSIDriver" => Box::new(CsiDriver(info)),
        "CSINode" => Box::new(CsiNode(info)),
        "VolumeAttachment" => Box::new(Fixed {
            info,
            paths: &[&["spec"]],
        }),
        "VolumeAttributesClass" => Box::new(Fixed {
            info,
            paths: &[&["driverName"], &["parameters"]],
        }),
        "CSIStorageCapacity" => Box::new(Fixed {
            info,
            paths: &[&["nodeTopology"], &["storageClassName"]],
        }),
        _ => Box::new(Generic::new(info)),
    }
}

/// A kind whose only rule is that parts of it never change.
pub(super) struct Fixed {
    pub(super) info: KindInfo,
    pub(super) paths: &'static [&'static [&'static str]],
}

impl Strategy for Fixed {
    fn kind(&self) -> &KindInfo {
        &self.info
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.info, new, old);
        for path in self.paths {
            meta::immutable_at(new, old, path, &mut errors);
        }
        errors
    }
}

struct PersistentVolume(KindInfo);

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
        set(obj, "status", json!({"phase": "Pending"}));
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        persistent_volume(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        persistent_volume(new, &mut errors);
        let changed = |(kind, source): (&str, &Value)| !same(source, at(old, &["spec", kind]));
        if volume_sources(new).into_iter().any(changed) {
            let path = Path::new("spec").child("persistentvolumesource");
            let why = "spec.persistentvolumesource is immutable after creation";
            errors.push(FieldError::forbidden(&path, why));
        }
        meta::immutable_at(new, old, &["spec", "volumeMode"], &mut errors);
        errors
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
        [("local", local)] => {
            required(local, "path", &path.child("local"), errors);
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
}

fn access_modes(spec: &Value, path: &Path, errors: &mut ErrorList) {
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

struct PersistentVolumeClaim(KindInfo);

impl Strategy for PersistentVolumeClaim {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        claim_defaults(obj);
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        set(obj, "status", json!({"phase": "Pending"}));
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        claim_spec(at(obj, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        claim_spec(at(new, &["spec"]), &Path::new("spec"), &mut errors);
        claim_update(new, old, &mut errors);
        errors
    }
}

/// Defaults of a claim, also of the templates in stateful sets.
pub(super) fn claim_defaults(claim: &mut Value) {
    if let Some(spec) = at_mut(claim, &["spec"]) {
        default(spec, "volumeMode", "Filesystem");
    }
    if let Some(status) = object_mut(claim, "status") {
        status.entry("phase").or_insert_with(|| json!("Pending"));
    }
}

/// Faults of the spec of a claim.
pub(super) fn claim_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    access_modes(spec, path, errors);
    let selector = at(spec, &["selector"]);
    selectors::label_selector(selector, &path.child("selector"), errors);
    let wanted = at(spec, &["resources", "requests", "storage"]);
    let at_resources = path.child("resources");
    if wanted.is_null() {
        errors.push(FieldError::required(&at_resources.key("storage"), ""));
    } else if Quantity::from_json(wanted).is_ok_and(|q| q.signum() <= 0) {
        let path = at_resources.child("requests").key("storage");
        let wanted = wanted.as_str().unwrap_or_default();
        errors.push(FieldError::invalid(
            &path,
            wanted,
            "must be greater than zero",
        ));
    }
    resources::volume(at(spec, &["resources"]), &at_resources, errors);
    let class = str_at(spec, &["storageClassName"]);
    if !class.is_empty() {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(&path.child("storageClassName"), class, faults));
    }
    volumes::volume_mode(spec, path, errors);
}

fn claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let stored = at(old, &["spec"]);
    let mut rest = at(new, &["spec"]).clone();
    let bound = str_at(old, &["status", "phase"]) == "Bound";
    if str_at(stored, &["volumeName"]).is_empty() {
        super::json::keep(&mut rest, stored, "volumeName");
    }
    if bound {
        super::json::keep(&mut rest, stored, "volumeAttributesClassName");
        if let Some(r) = at_mut(&mut rest, &["resources"]) {
            super::json::keep(r, at(stored, &["resources"]), "requests");
        }
    }
    if !has(stored, &["storageClassName"]) {
        remove(&mut rest, "storageClassName");
    }
    if !same(&rest, stored) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden(&path, why));
    }
    let wanted =
        |claim| Quantity::from_json(at(claim, &["spec", "resources", "requests", "storage"]));
    let has_now = Quantity::from_json(at(old, &["status", "capacity", "storage"])).ok();
    if let (Ok(now), Ok(before)) = (wanted(new), wanted(old))
        && now < before
        && has_now.is_some_and(|capacity| now <= capacity)
    {
        let path = path.child("resources").child("requests").child("storage");
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(&path, why));
    }
}

struct StorageClass(KindInfo);

impl Strategy for StorageClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        default(obj, "reclaimPolicy", "Delete");
        default(obj, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        storage_class(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for key in ["parameters", "provisioner", "reclaimPolicy"] {
            if !same(at(new, &[key]), at(old, &[key])) {
                let why = format!("updates to {key} are forbidden.");
                errors.push(FieldError::forbidden(&Path::new(key), why));
            }
        }
        meta::immutable_at(new, old, &["volumeBindingMode"], &mut errors);
        storage_class(new, &mut errors);
        errors
    }
}

fn storage_class(obj: &Value, errors: &mut ErrorList) {
    let root = Path::root();
    let provisioner = str_at(obj, &["provisioner"]);
    let path = Path::new("provisioner");
    if provisioner.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        let faults = names::check_qualified_name(&provisioner.to_lowercase());
        errors.extend(invalid_each(&path, provisioner, faults));
    }
    choice(obj, "reclaimPolicy", &["Delete", "Retain"], &root, errors);
    choice(
        obj,
        "volumeBindingMode",
        &["Immediate", "WaitForFirstConsumer"],
        &root,
        errors,
    );
}

struct CsiDriver(KindInfo);

impl Strategy for CsiDriver {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default_unset(spec, "attachRequired", true);
        for key in [
            "podInfoOnMount",
            "storageCapacity",
            "requiresRepublish",
            "seLinuxMount",
        ] {
            default_unset(spec, key, false);
        }
        default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if list_at(spec, &["volumeLifecycleModes"]).is_empty() {
            set(spec, "volumeLifecycleModes", json!(["Persistent"]));
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        if str_at(obj, &["metadata", "name"]).len() > names::LABEL_MAX {
            let path = Path::new("metadata").child("name");
            errors.push(FieldError::too_long(&path, names::LABEL_MAX));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for key in ["attachRequired", "volumeLifecycleModes"] {
            meta::immutable_at(new, old, &["spec", key], &mut errors);
        }
        errors
    }
}

struct CsiNode(KindInfo);

impl Strategy for CsiNode {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        csi_node(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        csi_node(new, &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status(new, old);
    }
}

fn csi_node(obj: &Value, errors: &mut ErrorList) {
    let mut seen = Vec::new();
    for (i, driver) in list_at(obj, &["spec", "drivers"]).iter().enumerate() {
        let path = Path::new("spec").child("drivers").index(i);
        for key in ["name", "nodeID"] {
            required(driver, key, &path, errors);
        }
        let name = str_at(driver, &["name"]);
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        seen.push(name);
    }
}
