//! The kinds of storage.k8s.io.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::containers::{choice, required};
use super::json::{
    at, at_mut, default, default_unset, int_at, is_empty, list_at, remove, same, set, str_at,
};
use super::{Generic, KindInfo, Strategy, access, meta};

pub(super) fn build(info: KindInfo) -> Box<dyn Strategy> {
    match &*info.kind {
        "StorageClass" => Box::new(StorageClass(info)),
        "CSIDriver" => Box::new(CsiDriver(info)),
        "CSINode" => Box::new(CsiNode(info)),
        "VolumeAttachment" => Box::new(Fixed {
            info,
            paths: &[&["spec"]],
        }),
        "VolumeAttributesClass" => Box::new(VolumeAttributesClass(info)),
        "CSIStorageCapacity" => Box::new(Fixed {
            info,
            paths: &[&["nodeTopology"], &["storageClassName"]],
        }),
        _ => Box::new(Generic::new(info)),
    }
}

/// How long a driver's name for a node may be.
const NODE_ID_MAX: usize = 256;

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
        fixed(
            &["parameters", "provisioner", "reclaimPolicy"],
            new,
            old,
            &mut errors,
        );
        meta::immutable_at(new, old, &["volumeBindingMode"], &mut errors);
        storage_class(new, &mut errors);
        errors
    }
}

fn storage_class(obj: &Value, errors: &mut ErrorList) {
    let root = Path::root();
    provisioner(obj, "provisioner", errors);
    parameters(obj, errors);
    choice(obj, "reclaimPolicy", &["Delete", "Retain"], &root, errors);
    choice(
        obj,
        "volumeBindingMode",
        &["Immediate", "WaitForFirstConsumer"],
        &root,
        errors,
    );
}

/// Members of which a change is refused with a sentence of its own.
fn fixed(keys: &[&str], new: &Value, old: &Value, errors: &mut ErrorList) {
    for key in keys {
        if !same(at(new, &[key]), at(old, &[key])) {
            let why = format!("updates to {key} are forbidden.");
            errors.push(FieldError::forbidden(&Path::new(key), why));
        }
    }
}

fn provisioner(obj: &Value, key: &str, errors: &mut ErrorList) {
    let name = str_at(obj, &[key]);
    let path = Path::new(key);
    if name.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        let faults = names::check_qualified_name(&name.to_lowercase());
        errors.extend(invalid_each(&path, name, faults));
    }
}

fn parameters(obj: &Value, errors: &mut ErrorList) {
    const ENTRIES: usize = 512;
    const BYTES: usize = 256 << 10;
    let path = Path::new("parameters");
    let (mut entries, mut bytes) = (0, 0);
    for (key, value) in super::json::entries_at(obj, &["parameters"]) {
        entries += 1;
        bytes += key.len() + value.as_str().unwrap_or_default().len();
        if key.is_empty() && entries <= ENTRIES {
            errors.push(FieldError::invalid(&path, "", "field can not be empty."));
        }
    }
    if entries > ENTRIES {
        errors.push(FieldError::too_long(&path, ENTRIES));
    } else if bytes > BYTES {
        errors.push(FieldError::too_long(&path, BYTES));
    }
}

struct VolumeAttributesClass(KindInfo);

impl Strategy for VolumeAttributesClass {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        attributes_class(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        fixed(&["driverName", "parameters"], new, old, &mut errors);
        attributes_class(new, &mut errors);
        errors
    }
}

fn attributes_class(obj: &Value, errors: &mut ErrorList) {
    provisioner(obj, "driverName", errors);
    parameters(obj, errors);
    if is_empty(at(obj, &["parameters"])) {
        let why = "must contain at least one key/value pair";
        errors.push(FieldError::required(&Path::new("parameters"), why));
    }
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
        drivers_stay(new, old, &mut errors);
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
        let id = str_at(driver, &["nodeID"]);
        if id.len() > NODE_ID_MAX {
            let why = format!("must be {NODE_ID_MAX} characters or less");
            errors.push(FieldError::invalid(&path.child("nodeID"), id, why));
        }
        if let Some(count) = int_at(driver, &["allocatable", "count"]).filter(|count| *count < 0) {
            let path = path.child("allocatable").child("count");
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(&path, count, why));
        }
        let name = str_at(driver, &["name"]);
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        seen.push(name);
    }
}

/// Of a driver that stays, only how many volumes it takes may change.
fn drivers_stay(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("drivers");
    let fixed = |driver: &Value| {
        let mut driver = driver.clone();
        remove(&mut driver, "allocatable");
        driver
    };
    for driver in list_at(new, &["spec", "drivers"]) {
        let before = list_at(old, &["spec", "drivers"]).iter();
        let mut before = before.filter(|d| str_at(d, &["name"]) == str_at(driver, &["name"]));
        if let Some(before) = before.next() {
            meta::immutable(&fixed(driver), &fixed(before), &path, errors);
        }
    }
}
