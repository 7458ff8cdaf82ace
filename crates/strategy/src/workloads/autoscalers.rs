//! Autoscalers of pods.

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::super::fields;
use super::super::json::{
    at, at_mut, default_unset, has, int_at, list_at, object_mut, set, str_at,
};
use super::super::{KindInfo, Strategy, meta, resources};

/// Longest period of a scaling policy, in seconds.
const PERIOD_MAX: i64 = 1800;
/// Longest stabilization window, in seconds.
const WINDOW_MAX: i64 = 3600;

pub(super) struct Autoscaler(pub(super) KindInfo);

impl Strategy for Autoscaler {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let Some(spec) = at_mut(obj, &["spec"]) else {
            return;
        };
        default_unset(spec, "minReplicas", 1);
        if self.0.version == "v1" {
            return;
        }
        if list_at(spec, &["metrics"]).is_empty() {
            let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}});
            set(spec, "metrics", json!([cpu]));
        }
        if let Some(behavior) = at_mut(spec, &["behavior"]).filter(|b| b.is_object()) {
            behavior_defaults(behavior);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let references = ScaleReferences {
            target: None,
            objects_ratcheted: false,
        };
        autoscaler(at(obj, &["spec"]), 1, &references, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let stored = at(old, &["spec"]);
        let lower = i64::from(int_at(stored, &["minReplicas"]) != Some(0));
        let invalid = |metric: &Value| {
            let described = at(metric, &["object", "describedObject"]);
            str_at(metric, &["type"]) == "Object"
                && has(metric, &["object"])
                && api_version_fault(described, true).is_some()
        };
        let references = ScaleReferences {
            target: Some(at(stored, &["scaleTargetRef"])),
            objects_ratcheted: list_at(stored, &["metrics"]).iter().any(invalid),
        };
        autoscaler(at(new, &["spec"]), lower, &references, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let counts = ["currentReplicas", "desiredReplicas"];
        let status = at(new, &["status"]);
        fields::counts(status, &counts, &Path::new("status"), &mut errors);
        errors
    }
}

/// Both directions have rules once one of them is spoken of.
fn behavior_defaults(behavior: &mut Value) {
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    for (direction, policies) in [
        ("scaleUp", json!([pods, percent])),
        ("scaleDown", json!([percent])),
    ] {
        if object_mut(behavior, direction).is_none() {
            continue;
        }
        let Some(rules) = at_mut(behavior, &[direction]) else {
            continue;
        };
        default_unset(rules, "selectPolicy", "Max");
        default_unset(rules, "policies", policies);
        if direction == "scaleUp" {
            default_unset(rules, "stabilizationWindowSeconds", 0);
        }
    }
}

/// What is let through of references to objects because it was stored before.
struct ScaleReferences<'a> {
    /// The target that the stored object has.
    target: Option<&'a Value>,
    /// Whether metrics of objects had versions that are none.
    objects_ratcheted: bool,
}

fn autoscaler(spec: &Value, lower: i64, references: &ScaleReferences<'_>, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let least = int_at(spec, &["minReplicas"]);
    let most = int_at(spec, &["maxReplicas"]).unwrap_or(0);
    if let Some(least) = least.filter(|least| *least < lower) {
        let fault = format!("must be greater than or equal to {lower}");
        errors.push(FieldError::invalid(
            &path.child("minReplicas"),
            least,
            fault,
        ));
    }
    let at_most = path.child("maxReplicas");
    if most == 0 {
        let why = "must be set and greater than 0";
        errors.push(FieldError::required(&at_most, why));
    } else if most < 0 {
        let fault = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(&at_most, most, fault));
    }
    if least.is_some_and(|least| most < least) {
        let fault = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&at_most, most, fault));
    }
    scale_target(spec, references.target, &path, errors);
    let metrics = list_at(spec, &["metrics"]);
    let at_metrics = path.child("metrics");
    for (i, metric) in metrics.iter().enumerate() {
        metric_spec(metric, references, &at_metrics.index(i), errors);
    }
    let wakes = |metric: &Value| matches!(str_at(metric, &["type"]), "Object" | "External");
    if least == Some(0) && !metrics.iter().any(wakes) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(&at_metrics, why));
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = at(spec, &["behavior", direction]);
        if !rules.is_null() {
            scaling_rules(rules, &path.child("behavior").child(direction), errors);
        }
    }
}

fn scale_target(spec: &Value, stored: Option<&Value>, path: &Path, errors: &mut ErrorList) {
    let target = at(spec, &["scaleTargetRef"]);
    let stays = |stored: &Value| {
        let text = |key| str_at(target, &[key]) == str_at(stored, &[key]);
        text("apiVersion") && text("kind")
    };
    // of the kinds of the core group this is the only one that scales
    let core = str_at(target, &["kind"]) == "ReplicationController";
    let lenient = stored.is_some_and(stays);
    reference(target, core, lenient, &path.child("scaleTargetRef"), errors);
}

fn reference(of: &Value, core: bool, lenient: bool, path: &Path, errors: &mut ErrorList) {
    for key in ["kind", "name"] {
        fields::name(of, key, names::check_path_segment, path, errors);
    }
    if let Some(fault) = api_version_fault(of, core).filter(|_| !lenient) {
        let version = str_at(of, &["apiVersion"]);
        errors.push(FieldError::invalid(
            &path.child("apiVersion"),
            version,
            fault,
        ));
    }
}

fn api_version_fault(reference: &Value, core: bool) -> Option<String> {
    let version = str_at(reference, &["apiVersion"]);
    match version.split('/').count() {
        _ if version == "/" && !core => Some("apiVersion must specify API group".to_owned()),
        1 if !core => Some("apiVersion must specify API group".to_owned()),
        2 if version.starts_with('/') && !core => {
            Some("apiVersion must specify API group".to_owned())
        }
        1 | 2 => None,
        _ => Some(format!("unexpected GroupVersion string: {version}")),
    }
}

const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: [&str; 5] = [
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];

fn metric_spec(
    metric: &Value,
    references: &ScaleReferences<'_>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let kind = str_at(metric, &["type"]);
    let at_kind = path.child("type");
    if kind.is_empty() {
        let why = "must specify a metric source type";
        errors.push(FieldError::required(&at_kind, why));
    }
    let known = SOURCES.iter().find(|(name, _)| *name == kind);
    if known.is_none() {
        errors.push(FieldError::not_supported(&at_kind, kind, &TYPES));
    }
    let given: Vec<&str> = SOURCES
        .iter()
        .map(|(_, key)| *key)
        .filter(|key| has(metric, &[key]))
        .collect();
    if let Some(first) = given.first() {
        let source = at(metric, &[first]);
        let path = path.child(first);
        metric_source(source, first, references.objects_ratcheted, &path, errors);
    }
    let wanted = known.map(|(_, key)| *key);
    match wanted {
        Some(key) if !given.contains(&key) => {
            let why = "must populate information for the given metric source";
            errors.push(FieldError::required(&path.child(key), why));
        }
        Some(_) => {}
        // said twice, as in the original
        None => errors.push(FieldError::not_supported(&at_kind, kind, &TYPES)),
    }
    if given.len() != 1 {
        for key in given.iter().filter(|key| Some(**key) != wanted) {
            let why = "must populate the given metric source only";
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
}

fn metric_source(of: &Value, key: &str, ratcheted: bool, path: &Path, errors: &mut ErrorList) {
    match key {
        "resource" => {
            if str_at(of, &["name"]).is_empty() {
                let why = "must specify a resource name";
                errors.push(FieldError::required(&path.child("name"), why));
            }
        }
        "containerResource" => container_source(of, path, errors),
        _ => {
            if key == "object" {
                let path = path.child("describedObject");
                reference(at(of, &["describedObject"]), true, ratcheted, &path, errors);
            }
            metric_name(at(of, &["metric"]), &path.child("metric"), errors);
        }
    }
    let target = at(of, &["target"]);
    let path = path.child("target");
    metric_target(target, &path, errors);
    let [value, average, utilization] =
        ["value", "averageValue", "averageUtilization"].map(|key| has(target, &[key]));
    let at_average = path.child("averageValue");
    match key {
        "object" if !value && !average => {
            let why = "must set either a target value or averageValue";
            errors.push(FieldError::required(&at_average, why));
        }
        "external" if !value && !average => {
            let why = "must set either a target value for metric or a per-pod target";
            errors.push(FieldError::required(&at_average, why));
        }
        "external" if value && average => {
            let why = "may not set both a target value for metric and a per-pod target";
            errors.push(FieldError::forbidden(&path.child("value"), why));
        }
        "pods" if !average => {
            let why = "must specify a positive target averageValue";
            errors.push(FieldError::required(&at_average, why));
        }
        "resource" | "containerResource" if !utilization && !average => {
            let why = "must set either a target raw value or a target utilization";
            let path = path.child("averageUtilization");
            errors.push(FieldError::required(&path, why));
        }
        "resource" | "containerResource" if utilization && average => {
            let why = "may not set both a target raw value and a target utilization";
            errors.push(FieldError::forbidden(&at_average, why));
        }
        _ => {}
    }
}

fn container_source(of: &Value, path: &Path, errors: &mut ErrorList) {
    match str_at(of, &["name"]) {
        "" => {
            let why = "must specify a resource name";
            errors.push(FieldError::required(&path.child("name"), why));
        }
        name => resources::container_resource_name(name, &path.child("name"), errors),
    }
    if str_at(of, &["container"]).is_empty() {
        let why = "must specify a container";
        errors.push(FieldError::required(&path.child("container"), why));
    } else {
        fields::name(of, "container", names::check_dns1123_label, path, errors);
    }
}

fn metric_name(metric: &Value, path: &Path, errors: &mut ErrorList) {
    if str_at(metric, &["name"]).is_empty() {
        let why = "must specify a metric name";
        errors.push(FieldError::required(&path.child("name"), why));
    } else {
        fields::name(metric, "name", names::check_path_segment, path, errors);
    }
}

fn metric_target(target: &Value, path: &Path, errors: &mut ErrorList) {
    let kind = str_at(target, &["type"]);
    if kind.is_empty() {
        let why = "must specify a metric target type";
        errors.push(FieldError::required(&path.child("type"), why));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let fault = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&path.child("type"), kind, fault));
    }
    for key in ["value", "averageValue"] {
        let value = at(target, &[key]);
        let positive = || Quantity::from_json(value).is_ok_and(|q| q.signum() > 0);
        if !value.is_null() && !positive() {
            let fault = "must be positive";
            errors.push(FieldError::invalid(&path.child(key), value.clone(), fault));
        }
    }
    if let Some(share) = int_at(target, &["averageUtilization"]).filter(|share| *share < 1) {
        let path = path.child("averageUtilization");
        errors.push(FieldError::invalid(&path, share, "must be greater than 0"));
    }
}

fn scaling_rules(rules: &Value, path: &Path, errors: &mut ErrorList) {
    let at_window = path.child("stabilizationWindowSeconds");
    if let Some(window) = int_at(rules, &["stabilizationWindowSeconds"]) {
        if window < 0 {
            let fault = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(&at_window, window, fault));
        } else if window > WINDOW_MAX {
            let fault = format!("must be less than or equal to {WINDOW_MAX}");
            errors.push(FieldError::invalid(&at_window, window, fault));
        }
    }
    if let Some(word) = at(rules, &["selectPolicy"]).as_str() {
        const WORDS: [&str; 3] = ["Disabled", "Max", "Min"];
        if !WORDS.contains(&word) {
            let path = path.child("selectPolicy");
            errors.push(FieldError::not_supported(&path, word, &WORDS));
        }
    }
    let policies = list_at(rules, &["policies"]);
    let at_policies = path.child("policies");
    if policies.is_empty() {
        let why = "must specify at least one Policy";
        errors.push(FieldError::required(&at_policies, why));
    }
    for (i, policy) in policies.iter().enumerate() {
        scaling_policy(policy, &at_policies.index(i), errors);
    }
    if let Ok(tolerance) = Quantity::from_json(at(rules, &["tolerance"]))
        && tolerance.signum() < 0
    {
        let fault = "must be greater than or equal to 0";
        let path = path.child("tolerance");
        errors.push(FieldError::invalid(&path, tolerance.to_string(), fault));
    }
}

fn scaling_policy(policy: &Value, path: &Path, errors: &mut ErrorList) {
    let kind = str_at(policy, &["type"]);
    if !matches!(kind, "Pods" | "Percent") {
        let path = path.child("type");
        errors.push(FieldError::not_supported(&path, kind, &["Percent", "Pods"]));
    }
    for key in ["value", "periodSeconds"] {
        let number = int_at(policy, &[key]).unwrap_or(0);
        if number <= 0 {
            let fault = "must be greater than zero";
            errors.push(FieldError::invalid(&path.child(key), number, fault));
        } else if key == "periodSeconds" && number > PERIOD_MAX {
            let fault = format!("must be less than or equal to {PERIOD_MAX}");
            errors.push(FieldError::invalid(&path.child(key), number, fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy;
    use crate::testing::{faults, none, update_faults};

    const KIND: (&str, &str, &str) = ("autoscaling", "v2", "HorizontalPodAutoscaler");

    fn hpa(change: impl FnOnce(&mut Value)) -> Value {
        let mut obj = json!({"metadata": {"name": "h", "namespace": "default"}, "spec": {"maxReplicas": 3,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        change(&mut obj["spec"]);
        obj
    }

    #[test]
    fn rules_of_both_directions_are_filled_in() {
        let mut obj =
            hpa(|s| s["behavior"] = json!({"scaleDown": {"stabilizationWindowSeconds": 60}}));
        strategy(KIND.0, KIND.1, KIND.2).default(&mut obj);
        let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
        let wanted = json!({
            "scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [percent]},
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, percent]},
        });
        assert_eq!(obj["spec"]["behavior"], wanted);
    }

    #[test]
    fn faults_of_autoscalers() {
        type Change = fn(&mut Value);
        let cases: &[(Change, &str)] = &[
            (
                |s| s["maxReplicas"] = json!(0),
                "spec.maxReplicas: Required value: must be set and greater than 0\n\
                 spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
            ),
            (
                |s| s["minReplicas"] = json!(0),
                "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1\n\
                 spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
            ),
            (
                |s| s["scaleTargetRef"]["apiVersion"] = json!("v1"),
                "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group",
            ),
            (
                |s| s["scaleTargetRef"]["apiVersion"] = json!("a/b/c"),
                "spec.scaleTargetRef.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            ),
            (
                |s| s["scaleTargetRef"]["name"] = json!("a/b"),
                "spec.scaleTargetRef.name: Invalid value: \"a/b\": may not contain '/'",
            ),
            (
                |s| s["metrics"] = json!([{"type": "Disk"}]),
                "spec.metrics[0].type: Unsupported value: \"Disk\": supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"\n\
                 spec.metrics[0].type: Unsupported value: \"Disk\": supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"",
            ),
            (
                |s| s["metrics"] = json!([{"type": "Pods"}]),
                "spec.metrics[0].pods: Required value: must populate information for the given metric source",
            ),
            (
                |s| s["metrics"] = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 0}}}]),
                "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
            ),
            (
                |s| {
                    s["metrics"] = json!([{"type": "External", "external": {"metric": {"name": "m"}, "target": {"type": "Value"}},
                "resource": {"name": "cpu", "target": {}}}]);
                },
                "spec.metrics[0].external.target.averageValue: Required value: must set either a target value for metric or a per-pod target\n\
                 spec.metrics[0].resource: Forbidden: must populate the given metric source only",
            ),
            (
                |s| {
                    s["behavior"] = json!({"scaleUp": {"selectPolicy": "Best", "stabilizationWindowSeconds": 3601,
                "policies": [{"type": "Pods", "value": 0, "periodSeconds": 1801}]}});
                },
                "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600\n\
                 spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Best\": supported values: \"Disabled\", \"Max\", \"Min\"\n\
                 spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero\n\
                 spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
            ),
        ];
        for (change, wanted) in cases {
            assert_eq!(faults(KIND.0, KIND.1, KIND.2, &hpa(change)), *wanted);
        }
        none(KIND.0, KIND.1, KIND.2, &hpa(|_| {}));
        let core = |s: &mut Value| {
            s["scaleTargetRef"] =
                json!({"apiVersion": "v1", "kind": "ReplicationController", "name": "r"});
        };
        none(KIND.0, KIND.1, KIND.2, &hpa(core));
    }

    #[test]
    fn what_was_stored_stays_possible() {
        let old = hpa(|s| s["scaleTargetRef"]["apiVersion"] = json!("v1"));
        let mut new = old.clone();
        new["spec"]["maxReplicas"] = json!(9);
        assert_eq!(update_faults(KIND.0, KIND.1, KIND.2, &new, &old), "");
        new["spec"]["scaleTargetRef"]["kind"] = json!("Other");
        assert_ne!(update_faults(KIND.0, KIND.1, KIND.2, &new, &old), "");
    }
}
