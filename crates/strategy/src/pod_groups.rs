//! Groups of pods that are scheduled together, and the workloads that describe such groups
//! (`scheduling.k8s.io/v1alpha2`). What the table of kinds states, limits, formats and fields that never change, is not
//! repeated here.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::fields::required;
use super::json::{at, has, list_at, str_at};
use super::{KindInfo, Strategy, meta, status_conditions};

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
        meta::validate_update(&self.0, new, old)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let conditions = list_at(new, &["status", "conditions"]);
        let path = Path::new("status").child("conditions");
        status_conditions::validate(conditions, &path, &mut errors);
        errors
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
