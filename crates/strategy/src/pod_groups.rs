//! Groups of pods that are scheduled together, and the workloads that describe such groups
//! (`scheduling.k8s.io/v1alpha2`). What the table of kinds states, limits, formats and fields that never change, is not
//! repeated here.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::fields::required;
use super::json::{at, has, int_at, list_at, str_at};
use super::{KindInfo, Strategy, meta, status_conditions};

/// Fields of a group that are of a gate and nothing else: the table does not say that they never change.
const OF_GATES: [&str; 4] = [
    "schedulingConstraints",
    "disruptionMode",
    "priorityClassName",
    "priority",
];
/// The highest priority that is not the system's own.
const HIGHEST_PRIORITY: i64 = 1_000_000_000;

/// A group.
pub(super) struct PodGroupRules(pub(super) KindInfo);

impl Strategy for PodGroupRules {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let (spec, path) = (at(obj, &["spec"]), Path::new("spec"));
        let template = at(spec, &["podGroupTemplateRef"]);
        if !template.is_null() {
            let path = path.child("podGroupTemplateRef");
            one_of(template, &["workload"], &path, &mut errors);
            let workload = at(template, &["workload"]);
            if !workload.is_null() {
                let path = path.child("workload");
                required(workload, "workloadName", &path, &mut errors);
                required(workload, "podGroupTemplateName", &path, &mut errors);
            }
        }
        group(spec, &path, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for field in OF_GATES {
            meta::immutable_at(new, old, &["spec", field], &mut errors);
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let conditions = list_at(new, &["status", "conditions"]);
        let path = Path::new("status").child("conditions");
        status_conditions::validate(conditions, &path, &mut errors);
        let claims = list_at(new, &["spec", "resourceClaims"]);
        let statuses = list_at(new, &["status", "resourceClaimStatuses"]);
        let path = Path::new("status").child("resourceClaimStatuses");
        claim_statuses(statuses, claims, &path, &mut errors);
        errors
    }
}

/// Each is of a claim that the group lists.
fn claim_statuses(statuses: &[Value], claims: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, status) in statuses.iter().enumerate() {
        let (name, path) = (str_at(status, &["name"]), path.index(i));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        if claims.iter().all(|claim| str_at(claim, &["name"]) != name) {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&path.child("name"), name, why));
        }
    }
}

/// Templates of groups.
pub(super) struct WorkloadRules(pub(super) KindInfo);

impl Strategy for WorkloadRules {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        let (spec, path) = (at(obj, &["spec"]), Path::new("spec"));
        let controller = at(spec, &["controllerRef"]);
        if !controller.is_null() {
            let path = path.child("controllerRef");
            required(controller, "kind", &path, &mut errors);
            required(controller, "name", &path, &mut errors);
        }
        let (templates, path) = (
            list_at(spec, &["podGroupTemplates"]),
            path.child("podGroupTemplates"),
        );
        if templates.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        let mut seen = HashSet::new();
        for (i, template) in templates.iter().enumerate() {
            let path = path.index(i);
            required(template, "name", &path, &mut errors);
            let name = str_at(template, &["name"]);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path, name));
            }
            group(template, &path, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let templates = |workload| list_at(workload, &["spec", "podGroupTemplates"]);
        if templates(new).is_empty() && !templates(old).is_empty() {
            let path = Path::new("spec").child("podGroupTemplates");
            errors.push(FieldError::required(&path, ""));
        }
        errors
    }
}

/// What groups and their templates have in common.
fn group(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let policy = at(spec, &["schedulingPolicy"]);
    let at_policy = path.child("schedulingPolicy");
    one_of(policy, &["basic", "gang"], &at_policy, errors);
    let gang = at(policy, &["gang"]);
    if !gang.is_null() && gang["minCount"].as_i64().is_none_or(|n| n == 0) {
        // Negative ones are below the minimum of the table.
        let path = at_policy.child("gang").child("minCount");
        errors.push(FieldError::required(&path, ""));
    }
    let topology = list_at(spec, &["schedulingConstraints", "topology"]);
    let at_topology = path.child("schedulingConstraints").child("topology");
    for (i, constraint) in topology.iter().enumerate() {
        required(constraint, "key", &at_topology.index(i), errors);
    }
    let class = str_at(spec, &["priorityClassName"]);
    if !class.is_empty() {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(
            &path.child("priorityClassName"),
            class,
            faults,
        ));
    }
    if let Some(priority) = int_at(spec, &["priority"]).filter(|p| *p > HIGHEST_PRIORITY) {
        let fault = format!("must be less than or equal to {HIGHEST_PRIORITY}");
        errors.push(FieldError::invalid(
            &path.child("priority"),
            priority,
            fault,
        ));
    }
    let (claims, path) = (
        list_at(spec, &["resourceClaims"]),
        path.child("resourceClaims"),
    );
    let mut seen = HashSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let (name, path) = (str_at(claim, &["name"]), path.index(i));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        let ways = ["resourceClaimName", "resourceClaimTemplateName"];
        one_of(claim, &ways, &path, errors);
        required(claim, "name", &path, errors);
    }
}

/// Exactly one of these fields has to be there.
fn one_of(union: &Value, fields: &[&str], path: &Path, errors: &mut ErrorList) {
    let quoted: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
    let all = quoted.join(", ");
    let given: Vec<&str> = fields
        .iter()
        .filter(|field| has(union, &[field]))
        .copied()
        .collect();
    match given.len() {
        0 => {
            let fault = format!("must specify one of: {all}");
            errors.push(FieldError::invalid(path, "", fault));
        }
        1 => {}
        _ => {
            let given = format!("{{{}}}", given.join(", "));
            let fault = format!("must specify exactly one of: {all}");
            errors.push(FieldError::invalid(path, given, fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn faults(kind: &str, spec: &serde_json::Value) -> Vec<String> {
        let object = json!({"metadata": {"name": "x", "namespace": "default"}, "spec": spec});
        let strategy = crate::strategy("scheduling.k8s.io", "v1alpha2", kind);
        let errors = strategy.validate(&object);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_group_has_one_policy() {
        let of = |policy| faults("PodGroup", &json!({"schedulingPolicy": policy}));
        assert!(of(json!({"basic": {}})).is_empty());
        assert!(of(json!({"gang": {"minCount": 1}})).is_empty());
        assert_eq!(
            of(json!({})),
            ["spec.schedulingPolicy: Invalid value: \"\": must specify one of: `basic`, `gang`"]
        );
        assert_eq!(
            of(json!({"basic": {}, "gang": {"minCount": 2}})),
            [
                "spec.schedulingPolicy: Invalid value: \"{basic, gang}\": must specify exactly one of: `basic`, `gang`"
            ]
        );
        assert_eq!(
            of(json!({"gang": {"minCount": 0}})),
            ["spec.schedulingPolicy.gang.minCount: Required value"]
        );
        let basic = json!({"basic": {}});
        let template = json!({"schedulingPolicy": basic, "podGroupTemplateRef": {}});
        assert_eq!(
            faults("PodGroup", &template),
            ["spec.podGroupTemplateRef: Invalid value: \"\": must specify one of: `workload`"]
        );
    }

    #[test]
    fn a_topology_has_a_key_that_stays() {
        let spec = |topology: serde_json::Value| json!({"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": topology}});
        assert!(faults("PodGroup", &spec(json!([{"key": "rack"}]))).is_empty());
        assert_eq!(
            faults("PodGroup", &spec(json!([{"key": ""}]))),
            ["spec.schedulingConstraints.topology[0].key: Required value"]
        );
        let group = |topology: serde_json::Value| {
            json!({"metadata": {"name": "x", "namespace": "default", "resourceVersion": "1"},
                "spec": spec(topology)})
        };
        let strategy = crate::strategy("scheduling.k8s.io", "v1alpha2", "PodGroup");
        let of = |key: &str| group(json!([{"key": key}]));
        assert!(strategy.validate_update(&of("a"), &of("a")).is_empty());
        let errors = strategy.validate_update(&of("a"), &of("b"));
        let told = errors.iter().map(ToString::to_string).collect::<String>();
        assert!(
            told.starts_with("spec.schedulingConstraints: Invalid value")
                && told.ends_with("field is immutable"),
            "{told}"
        );
    }

    #[test]
    fn the_priority_of_a_group_is_a_users_and_stays() {
        let spec = |class: &str, priority: i64| json!({"schedulingPolicy": {"basic": {}}, "priorityClassName": class, "priority": priority});
        assert!(faults("PodGroup", &spec("high", 1_000_000_000)).is_empty());
        assert!(faults("PodGroup", &spec("", -5)).is_empty());
        let told = faults("PodGroup", &spec("No Class", 1_000_000_001));
        assert!(
            told[0].starts_with("spec.priorityClassName: Invalid value: \"No Class\""),
            "{told:?}"
        );
        assert_eq!(
            told[1],
            "spec.priority: Invalid value: 1000000001: must be less than or equal to 1000000000"
        );
        let template = json!({"podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}, "priority": 2_000_000_000}]});
        let told = faults("Workload", &template);
        assert!(told[0].starts_with("spec.podGroupTemplates[0].priority: Invalid value"));
        let group = |priority: i64, mode: &str| {
            let mut spec = spec("", priority);
            spec["disruptionMode"] = json!(mode);
            json!({"metadata": {"name": "x", "namespace": "default", "resourceVersion": "1"}, "spec": spec})
        };
        let strategy = crate::strategy("scheduling.k8s.io", "v1alpha2", "PodGroup");
        let changed = |new: serde_json::Value| {
            let errors = strategy.validate_update(&new, &group(1, "Pod"));
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(changed(group(1, "Pod")).is_empty());
        for (new, field) in [
            (group(2, "Pod"), "priority"),
            (group(1, "PodGroup"), "disruptionMode"),
        ] {
            let told = changed(new);
            assert!(
                told[0].starts_with(&format!("spec.{field}: Invalid value"))
                    && told[0].ends_with("field is immutable"),
                "{told:?}"
            );
        }
    }

    #[test]
    fn claims_of_a_group_name_one_thing_each() {
        let of = |claims: serde_json::Value| {
            let spec = json!({"schedulingPolicy": {"basic": {}}, "resourceClaims": claims});
            faults("PodGroup", &spec)
        };
        let named = |name: &str| json!({"name": name, "resourceClaimName": "c"});
        let made = json!({"name": "made", "resourceClaimTemplateName": "t"});
        assert!(of(json!([named("a"), named("b"), made])).is_empty());
        assert_eq!(
            of(json!([named("a"), named("a")])),
            ["spec.resourceClaims[1]: Duplicate value: \"a\""]
        );
        let both = json!({"name": "a", "resourceClaimName": "c", "resourceClaimTemplateName": "t"});
        assert_eq!(
            of(json!([{"name": "a"}, both]))[0],
            "spec.resourceClaims[0]: Invalid value: \"\": must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        );
        assert_eq!(
            of(json!([{"resourceClaimName": "c"}])),
            ["spec.resourceClaims[0].name: Required value"]
        );
    }

    #[test]
    fn a_status_tells_of_claims_that_the_group_lists() {
        let strategy = crate::strategy("scheduling.k8s.io", "v1alpha2", "PodGroup");
        let group = |statuses: serde_json::Value| {
            json!({"metadata": {"name": "x", "namespace": "default", "resourceVersion": "1"}, "spec": {
                "schedulingPolicy": {"basic": {}}, "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]},
                "status": {"resourceClaimStatuses": statuses}})
        };
        let of = |statuses: serde_json::Value| {
            let errors = strategy.validate_status_update(&group(statuses), &group(json!([])));
            let texts = errors.iter().map(ToString::to_string);
            texts.collect::<Vec<_>>()
        };
        let told = |name: &str| json!({"name": name, "resourceClaimName": "c"});
        assert!(of(json!([told("a")])).is_empty() && of(json!([{"name": "a"}])).is_empty());
        assert_eq!(
            of(json!([told("b")])),
            [
                "status.resourceClaimStatuses[0].name: Invalid value: \"b\": must match the name of an entry in `spec.resourceClaims`"
            ]
        );
        assert_eq!(
            of(json!([told("a"), told("a")])),
            ["status.resourceClaimStatuses[1]: Duplicate value: \"a\""]
        );
    }

    #[test]
    fn a_workload_has_templates_of_different_names() {
        let template = |name: &str| json!({"name": name, "schedulingPolicy": {"basic": {}}});
        let of = |templates| faults("Workload", &json!({"podGroupTemplates": templates}));
        assert!(of(json!([template("a"), template("b")])).is_empty());
        assert_eq!(of(json!([])), ["spec.podGroupTemplates: Required value"]);
        assert_eq!(
            of(json!([template("a"), template("a")])),
            ["spec.podGroupTemplates[1]: Duplicate value: \"a\""]
        );
    }
}
