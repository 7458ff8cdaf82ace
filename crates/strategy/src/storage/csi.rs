//! Storage drivers, what nodes know of them, and what space they have.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::super::fields;
use super::super::fields::{not_negative, optional_choice, required};
use super::super::json::{
    at, at_mut, default, default_unset, int_at, list_at, remove, repeats, same, set, str_at,
};
use super::super::{KindInfo, Strategy, access, meta, selectors};

/// How long a driver's name for a node may be.
const NODE_ID_MAX: usize = 256;

pub(super) struct CsiDriver(pub(super) KindInfo);

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
        driver_spec(at(obj, &["spec"]), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        driver_spec(at(new, &["spec"]), &mut errors);
        // the original calls the field so
        for (key, shown) in [
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        ] {
            let of = |obj| at(obj, &["spec", key]);
            let path = Path::new("spec").child(shown);
            meta::immutable(of(new), of(old), &path, &mut errors);
        }
        errors
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let spec = at(obj, &["spec"]);
        let asks = !list_at(spec, &["tokenRequests"]).is_empty();
        let is_unset = at(spec, &[TOKEN_IN_SECRETS]).is_null();
        let warned = (asks && is_unset).then(|| TOKEN_WARNING.to_owned());
        warned.into_iter().collect()
    }

    fn update_warnings(&self, new: &Value, old: &Value) -> Vec<String> {
        let tokens = |obj| at(obj, &["spec", "tokenRequests"]);
        if same(tokens(new), tokens(old)) {
            return Vec::new();
        }
        self.warnings(new)
    }
}

const TOKEN_WARNING: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
const TOKEN_IN_SECRETS: &str = "serviceAccountTokenInSecrets";

fn driver_spec(spec: &Value, errors: &mut ErrorList) {
    const LEAST_PERIOD: i64 = 10;
    let path = Path::new("spec");
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    optional_choice(spec, "fsGroupPolicy", &policies, &path, errors);
    let tokens = list_at(spec, &["tokenRequests"]);
    token_requests(tokens, &path.child("tokenRequests"), errors);
    for mode in list_at(spec, &["volumeLifecycleModes"]) {
        let modes = ["Persistent", "Ephemeral"];
        let mode = mode.as_str().unwrap_or_default();
        if !modes.contains(&mode) {
            let path = path.child("volumeLifecycleModes");
            errors.push(FieldError::not_supported(&path, mode, &modes));
        }
    }
    let key = "nodeAllocatableUpdatePeriodSeconds";
    if let Some(period) = int_at(spec, &[key]).filter(|p| *p < LEAST_PERIOD) {
        let fault = format!("must be greater than or equal to {LEAST_PERIOD} seconds");
        errors.push(FieldError::invalid(&path.child(key), period, fault));
    }
    let given = at(spec, &[TOKEN_IN_SECRETS]);
    if !given.is_null() && tokens.is_empty() {
        let fault = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        let path = path.child(TOKEN_IN_SECRETS);
        errors.push(FieldError::invalid(&path, given.clone(), fault));
    }
}

fn token_requests(tokens: &[Value], path: &Path, errors: &mut ErrorList) {
    let twins = repeats(tokens.iter().map(|t| str_at(t, &["audience"])));
    for ((i, token), is_twin) in tokens.iter().enumerate().zip(twins) {
        let path = path.index(i);
        let audience = str_at(token, &["audience"]);
        if is_twin {
            let path = path.child("audience");
            errors.push(FieldError::duplicate(&path, audience));
            continue;
        }
        let path = path.child("expirationSeconds");
        match int_at(token, &["expirationSeconds"]) {
            Some(seconds) if seconds < 600 => {
                let fault = "may not specify a duration less than 10 minutes";
                errors.push(FieldError::invalid(&path, seconds, fault));
            }
            Some(seconds) if seconds > 1 << 32 => {
                let fault = "may not specify a duration larger than 2^32 seconds";
                errors.push(FieldError::invalid(&path, seconds, fault));
            }
            _ => {}
        }
    }
}

pub(super) struct CsiNode(pub(super) KindInfo);

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
    let mut seen = HashSet::new();
    for (i, driver) in list_at(obj, &["spec", "drivers"]).iter().enumerate() {
        let path = Path::new("spec").child("drivers").index(i);
        let name = str_at(driver, &["name"]);
        fields::driver_name(name, &path.child("name"), errors);
        required(driver, "nodeID", &path, errors);
        let id = str_at(driver, &["nodeID"]);
        if id.len() > NODE_ID_MAX {
            let why = format!("must be {NODE_ID_MAX} characters or less");
            errors.push(FieldError::invalid(&path.child("nodeID"), id, why));
        }
        let allocatable = at(driver, &["allocatable"]);
        not_negative(allocatable, "count", &path.child("allocatable"), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        topology_keys(list_at(driver, &["topologyKeys"]), &path, errors);
    }
}

/// As in the original the driver is blamed.
fn topology_keys(keys: &[Value], path: &Path, errors: &mut ErrorList) {
    for (key, is_twin) in keys.iter().zip(repeats(keys)) {
        let text = key.as_str().unwrap_or_default();
        if text.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
        if is_twin {
            errors.push(FieldError::duplicate(path, text));
        }
        errors.extend(invalid_each(path, text, names::check_qualified_name(text)));
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
    // the first of a name
    let before = list_at(old, &["spec", "drivers"]).iter().rev();
    let before: HashMap<&str, &Value> = before.map(|d| (str_at(d, &["name"]), d)).collect();
    for driver in list_at(new, &["spec", "drivers"]) {
        if let Some(before) = before.get(str_at(driver, &["name"])) {
            meta::immutable(&fixed(driver), &fixed(before), &path, errors);
        }
    }
}

pub(super) struct CsiStorageCapacity(pub(super) KindInfo);

impl Strategy for CsiStorageCapacity {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        capacity(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for key in ["nodeTopology", "storageClassName"] {
            meta::immutable_at(new, old, &[key], &mut errors);
        }
        capacity(new, &mut errors);
        errors
    }
}

fn capacity(obj: &Value, errors: &mut ErrorList) {
    let topology = at(obj, &["nodeTopology"]);
    selectors::label_selector(topology, &Path::new("nodeTopology"), errors);
    let class = str_at(obj, &["storageClassName"]);
    let faults = names::check_dns1123_subdomain(class);
    errors.extend(invalid_each(&Path::new("storageClassName"), class, faults));
    if let Ok(capacity) = Quantity::from_json(at(obj, &["capacity"]))
        && capacity.signum() < 0
    {
        let fault = "must be greater than or equal to 0";
        let path = Path::new("capacity");
        errors.push(FieldError::invalid(&path, capacity.to_string(), fault));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{faults, none};

    const GROUP: &str = "storage.k8s.io";

    #[test]
    fn faults_of_drivers() {
        let driver = |spec: Value| json!({"metadata": {"name": "d.example.com"}, "spec": spec});
        let cases = [
            (
                json!({"volumeLifecycleModes": ["Some"]}),
                "spec.volumeLifecycleModes: Unsupported value: \"Some\": supported values: \"Persistent\", \"Ephemeral\"",
            ),
            (
                json!({"fsGroupPolicy": "Some"}),
                "spec.fsGroupPolicy: Unsupported value: \"Some\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
            ),
            (
                json!({"tokenRequests": [{"audience": "a", "expirationSeconds": 1}, {"audience": "a"}]}),
                "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes\n\
                 spec.tokenRequests[1].audience: Duplicate value: \"a\"",
            ),
            (
                json!({"nodeAllocatableUpdatePeriodSeconds": 9}),
                "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 9: must be greater than or equal to 10 seconds",
            ),
            (
                json!({"serviceAccountTokenInSecrets": false}),
                "spec.serviceAccountTokenInSecrets: Invalid value: false: serviceAccountTokenInSecrets is set but no tokenRequests are specified",
            ),
            (json!({}), ""),
        ];
        for (spec, wanted) in cases {
            assert_eq!(faults(GROUP, "v1", "CSIDriver", &driver(spec)), wanted);
        }
        // longer than what nodes and volumes may name, which is what kube-apiserver takes
        let mut long = driver(json!({}));
        long["metadata"]["name"] = json!("d".repeat(64));
        assert_eq!(faults(GROUP, "v1", "CSIDriver", &long), "");
    }

    #[test]
    fn faults_of_nodes_drivers() {
        let node =
            |driver: Value| json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}});
        let cases = [
            (
                json!({}),
                "spec.drivers[0].name: Required value\nspec.drivers[0].nodeID: Required value",
            ),
            (
                json!({"name": "D.example.com", "nodeID": "n", "topologyKeys": ["a", "a"]}),
                "spec.drivers[0]: Duplicate value: \"a\"",
            ),
            (
                json!({"name": "d", "nodeID": "n", "allocatable": {"count": -1}}),
                "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
            ),
        ];
        for (driver, wanted) in cases {
            assert_eq!(faults(GROUP, "v1", "CSINode", &node(driver)), wanted);
        }
    }

    #[test]
    fn faults_of_capacities() {
        let of = |mut part: Value| {
            part["metadata"] = json!({"name": "c", "namespace": "default"});
            part
        };
        let found = faults(GROUP, "v1", "CSIStorageCapacity", &of(json!({})));
        assert!(
            found.starts_with("storageClassName: Invalid value: \"\""),
            "{found}"
        );
        let obj = of(
            json!({"storageClassName": "c", "nodeTopology": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}),
        );
        let wanted = "nodeTopology.matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator";
        assert_eq!(faults(GROUP, "v1", "CSIStorageCapacity", &obj), wanted);
        none(
            GROUP,
            "v1",
            "CSIStorageCapacity",
            &of(json!({"storageClassName": "c", "nodeTopology": {}})),
        );
    }
}
