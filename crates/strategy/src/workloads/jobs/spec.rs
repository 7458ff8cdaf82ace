//! The spec of a job, also in cron jobs.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::super::fields::{not_negative, optional_choice};
use super::super::super::json::{at, has, int_at, is_empty, list_at, repeats, str_at};
use super::super::super::pod_spec;
use super::indexes;

/// Bounds on Indexed jobs, which keep `completedIndexes` and `failedIndexes` short.
const MAX_PARALLELISM: i64 = 100_000;
const MAX_FAILED_INDEXES: i64 = 100_000;
/// Above so many completions a limit for each index is bound to less.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_PARALLELISM_OF_MANY: i64 = 10_000;
const MAX_FAILED_INDEXES_OF_MANY: i64 = 10_000;

const MAX_MANAGED_BY: usize = 63;
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_POD_CONDITIONS: usize = 20;
const MAX_SUCCEEDED_INDEXES: usize = 64 * 1024;

pub(in super::super) fn validate(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for key in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        not_negative(spec, key, path, errors);
    }
    if has(spec, &["maxFailedIndexes"]) && !has(spec, &["backoffLimitPerIndex"]) {
        let why = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(
            &path.child("backoffLimitPerIndex"),
            why,
        ));
    }
    if let Some(manager) = at(spec, &["managedBy"]).as_str() {
        managed_by(manager, &path.child("managedBy"), errors);
    }
    optional_choice(
        spec,
        "completionMode",
        &["NonIndexed", "Indexed"],
        path,
        errors,
    );
    if is_indexed(spec) {
        indexed(spec, path, errors);
    } else {
        for key in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            let value = at(spec, &[key]);
            if !value.is_null() {
                let fault = "requires indexed completion mode";
                errors.push(FieldError::invalid(&path.child(key), value.clone(), fault));
            }
        }
    }
    let policy = at(spec, &["podFailurePolicy"]);
    if !policy.is_null() {
        failure_policy(policy, spec, &path.child("podFailurePolicy"), errors);
    }
    let replacement: &[&str] = match policy.is_null() {
        true => &["Failed", "TerminatingOrFailed"],
        false => &["Failed"],
    };
    optional_choice(spec, "podReplacementPolicy", replacement, path, errors);
    template(spec, &path.child("template"), errors);
}

/// What may surprise about a spec at a path.
pub(in super::super) fn warnings(spec: &Value, path: &str) -> Vec<String> {
    let number = |key: &str| int_at(spec, &[key]).unwrap_or(0);
    let many = number("completions") > MANY_COMPLETIONS;
    if !is_indexed(spec) || !many || number("parallelism") <= MAX_PARALLELISM_OF_MANY {
        return Vec::new();
    }
    vec![format!(
        "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
    )]
}

fn is_indexed(spec: &Value) -> bool {
    str_at(spec, &["completionMode"]) == "Indexed"
}

fn template(spec: &Value, path: &Path, errors: &mut ErrorList) {
    pod_spec::validate_template(at(spec, &["template"]), path, errors);
    let path = path.child("spec").child("restartPolicy");
    let policy = str_at(spec, &["template", "spec", "restartPolicy"]);
    if matches!(policy, "Always" | "") {
        errors.push(FieldError::required(
            &path,
            "valid values: \"OnFailure\", \"Never\"",
        ));
    } else if !["OnFailure", "Never"].contains(&policy) {
        let known = ["OnFailure", "Never"];
        errors.push(FieldError::not_supported(&path, policy, &known));
    } else if policy != "Never" && has(spec, &["podFailurePolicy"]) {
        let fault = "only \"Never\" is supported when podFailurePolicy is specified";
        errors.push(FieldError::invalid(&path, policy, fault));
    }
}

fn managed_by(manager: &str, path: &Path, errors: &mut ErrorList) {
    if manager.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    match manager.split_once('/') {
        Some((host, name)) if !host.is_empty() && !name.is_empty() => {
            let faults = names::check_dns1123_subdomain(host);
            errors.extend(invalid_each(path, host, faults));
            let allowed = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
            if !name.chars().all(allowed) {
                let fault = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
                errors.push(FieldError::invalid(path, name, fault));
            }
        }
        _ => {
            let fault = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, manager, fault));
        }
    }
    if manager.len() > MAX_MANAGED_BY {
        errors.push(FieldError::too_long(path, MAX_MANAGED_BY));
    }
}

fn indexed(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let number = |key: &str| int_at(spec, &[key]);
    let at_most = |key: &str, most: i64, when: &str, errors: &mut ErrorList| {
        if let Some(n) = number(key).filter(|n| *n > most) {
            let fault = format!("must be less than or equal to {most}{when}");
            errors.push(FieldError::invalid(&path.child(key), n, fault));
        }
    };
    let Some(completions) = number("completions") else {
        let why = "when completion mode is Indexed";
        errors.push(FieldError::required(&path.child("completions"), why));
        return;
    };
    let when = " when completion mode is Indexed";
    at_most("parallelism", MAX_PARALLELISM, when, errors);
    if let Some(failed) = number("maxFailedIndexes").filter(|n| *n > completions) {
        let fault = "must be less than or equal to completions";
        errors.push(FieldError::invalid(
            &path.child("maxFailedIndexes"),
            failed,
            fault,
        ));
    }
    at_most("maxFailedIndexes", MAX_FAILED_INDEXES, "", errors);
    if completions > MANY_COMPLETIONS && has(spec, &["backoffLimitPerIndex"]) {
        if !has(spec, &["maxFailedIndexes"]) {
            let why = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.push(FieldError::required(&path.child("maxFailedIndexes"), why));
        }
        let when = format!(
            " when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
        );
        at_most("parallelism", MAX_PARALLELISM_OF_MANY, &when, errors);
        at_most(
            "maxFailedIndexes",
            MAX_FAILED_INDEXES_OF_MANY,
            &when,
            errors,
        );
    }
    let policy = at(spec, &["successPolicy"]);
    if !policy.is_null() {
        success_policy(policy, completions, &path.child("successPolicy"), errors);
    }
}

fn failure_policy(policy: &Value, spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("rules");
    let rules = list_at(policy, &["rules"]);
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&path, rules.len(), MAX_RULES));
    }
    let containers = ["containers", "initContainers"];
    let containers = containers.map(|list| list_at(spec, &["template", "spec", list]));
    let containers = containers.into_iter().flatten();
    let names: HashSet<&str> = containers.map(|c| str_at(c, &["name"])).collect();
    for (place, rule) in rules.iter().enumerate() {
        failure_rule(rule, spec, &names, &path.index(place), errors);
    }
}

fn failure_rule(
    rule: &Value,
    spec: &Value,
    containers: &HashSet<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
    supported(rule, "action", &ACTIONS, path, errors);
    let action = str_at(rule, &["action"]);
    if action == "FailIndex" && !has(spec, &["backoffLimitPerIndex"]) {
        let fault = "requires the backoffLimitPerIndex to be set";
        errors.push(FieldError::invalid(&path.child("action"), action, fault));
    }
    let codes = at(rule, &["onExitCodes"]);
    let conditions = list_at(rule, &["onPodConditions"]);
    if !codes.is_null() {
        exit_codes(codes, containers, &path.child("onExitCodes"), errors);
    }
    let at_conditions = path.child("onPodConditions");
    if conditions.len() > MAX_POD_CONDITIONS {
        errors.push(FieldError::too_many(
            &at_conditions,
            conditions.len(),
            MAX_POD_CONDITIONS,
        ));
    }
    for (place, pattern) in conditions.iter().enumerate() {
        let path = at_conditions.index(place);
        let type_ = str_at(pattern, &["type"]);
        errors.extend(invalid_each(
            &path.child("type"),
            type_,
            names::check_qualified_name(type_),
        ));
        supported(
            pattern,
            "status",
            &["False", "True", "Unknown"],
            &path,
            errors,
        );
    }
    let fault = match (codes.is_null(), conditions.is_empty()) {
        (false, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
        (true, true) => "specifying one of OnExitCodes and OnPodConditions is required",
        _ => return,
    };
    errors.push(FieldError::invalid_unshown(path, fault));
}

/// A value of a closed set; the error about an absent one names the set.
fn supported(of: &Value, key: &str, values: &[&str], path: &Path, errors: &mut ErrorList) {
    if is_empty(at(of, &[key])) {
        let quoted: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
        let why = format!("valid values: [{}]", quoted.join(" "));
        errors.push(FieldError::required(&path.child(key), why));
    } else {
        optional_choice(of, key, values, path, errors);
    }
}

fn exit_codes(of: &Value, containers: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    supported(of, "operator", &["In", "NotIn"], path, errors);
    if let Some(name) = at(of, &["containerName"]).as_str()
        && !containers.contains(name)
    {
        let fault = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(
            &path.child("containerName"),
            name,
            fault,
        ));
    }
    let path = path.child("values");
    let values = list_at(of, &["values"]);
    if values.is_empty() {
        let none = Value::Array(Vec::new());
        errors.push(FieldError::invalid(
            &path,
            none,
            "at least one value is required",
        ));
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(&path, values.len(), MAX_EXIT_CODES));
    }
    let codes: Vec<i64> = values.iter().filter_map(Value::as_i64).collect();
    for ((place, code), is_twin) in codes.iter().enumerate().zip(repeats(&codes)) {
        if *code == 0 && str_at(of, &["operator"]) == "In" {
            let fault = "must not be 0 for the In operator";
            errors.push(FieldError::invalid(&path.index(place), 0, fault));
        }
        if is_twin {
            errors.push(FieldError::duplicate(&path.index(place), *code));
        }
    }
    if !codes.is_sorted() {
        errors.push(FieldError::invalid(
            &path,
            values.to_vec(),
            "must be ordered",
        ));
    }
}

fn success_policy(policy: &Value, completions: i64, path: &Path, errors: &mut ErrorList) {
    let path = path.child("rules");
    let rules = list_at(policy, &["rules"]);
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&path, why));
    }
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&path, rules.len(), MAX_RULES));
    }
    for (place, rule) in rules.iter().enumerate() {
        success_rule(rule, completions, &path.index(place), errors);
    }
}

fn success_rule(rule: &Value, completions: i64, path: &Path, errors: &mut ErrorList) {
    let indexes = at(rule, &["succeededIndexes"]).as_str();
    let count = int_at(rule, &["succeededCount"]);
    if indexes.is_none() && count.is_none() {
        let why = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(path, why));
    }
    let mut named = None;
    if let Some(text) = indexes {
        let path = path.child("succeededIndexes");
        if text.len() > MAX_SUCCEEDED_INDEXES {
            errors.push(FieldError::too_long(&path, MAX_SUCCEEDED_INDEXES));
        }
        match indexes::total(text, completions) {
            Ok(total) => named = Some(total),
            Err(fault) => {
                let fault = format!("error parsing succeededIndexes: {fault}");
                errors.push(FieldError::invalid(&path, text, fault));
                named = Some(0);
            }
        }
    }
    not_negative(rule, "succeededCount", path, errors);
    let bounds = [
        (Some(completions), "the number of specified completions"),
        (
            named,
            "the number of indexes in the specified succeededIndexes field",
        ),
    ];
    for (most, what) in bounds {
        if let (Some(count), Some(most)) = (count, most)
            && count > most
        {
            let fault = format!("must be less than or equal to {most} ({what})");
            errors.push(FieldError::invalid(
                &path.child("succeededCount"),
                count,
                fault,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The faults of a spec that has these fields beside those it needs.
    fn faults(fields: Value) -> Vec<String> {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File"}], "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1});
        let mut spec = json!({"template": {"spec": pod}});
        for (key, value) in fields.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut errors = ErrorList::new();
        validate(&spec, &Path::new("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn limits_for_each_index_are_for_indexed_jobs() {
        let fault = "requires indexed completion mode";
        let found = faults(json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 1}));
        assert_eq!(
            found,
            [
                format!("spec.backoffLimitPerIndex: Invalid value: 1: {fault}"),
                format!("spec.maxFailedIndexes: Invalid value: 1: {fault}"),
            ]
        );
        let indexed = json!({"completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimitPerIndex": 1});
        assert_eq!(faults(indexed.clone()), Vec::<String>::new());
        let mut more = indexed.clone();
        more["maxFailedIndexes"] = json!(4);
        assert_eq!(
            faults(more),
            ["spec.maxFailedIndexes: Invalid value: 4: must be less than or equal to completions"]
        );
        let mut many = indexed;
        many["completions"] = json!(100_001);
        assert_eq!(
            faults(many),
            [
                "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000"
            ]
        );
        let alone = json!({"completionMode": "Indexed", "completions": 1, "maxFailedIndexes": 1});
        assert_eq!(
            faults(alone),
            ["spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified"]
        );
    }

    #[test]
    fn rules_about_failures_name_what_they_match() {
        let of = |rule: Value| faults(json!({"podFailurePolicy": {"rules": [rule]}}));
        let at = "spec.podFailurePolicy.rules[0]";
        let good = json!({"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [1, 2]}});
        assert_eq!(of(good), Vec::<String>::new());
        assert_eq!(
            of(
                json!({"action": "FailIndex", "onPodConditions": [{"type": "A", "status": "Maybe"}]})
            ),
            [
                format!(
                    "{at}.action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"
                ),
                format!(
                    "{at}.onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\""
                ),
            ]
        );
        assert_eq!(
            of(json!({"action": "Count"})),
            [format!(
                "{at}: Invalid value: specifying one of OnExitCodes and OnPodConditions is required"
            )]
        );
        assert_eq!(
            of(
                json!({"action": "Count", "onExitCodes": {"containerName": "d", "operator": "In", "values": [2, 0, 2]}})
            ),
            [
                format!(
                    "{at}.onExitCodes.containerName: Invalid value: \"d\": must be one of the container or initContainer names in the pod template"
                ),
                format!(
                    "{at}.onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator"
                ),
                format!("{at}.onExitCodes.values[2]: Duplicate value: 2"),
                format!("{at}.onExitCodes.values: Invalid value: [2,0,2]: must be ordered"),
            ]
        );
    }

    #[test]
    fn rules_about_success_fit_the_completions() {
        let of = |rule: Value| {
            faults(
                json!({"completionMode": "Indexed", "completions": 5, "successPolicy": {"rules": [rule]}}),
            )
        };
        let at = "spec.successPolicy.rules[0]";
        assert_eq!(
            of(json!({"succeededIndexes": "0,2-3", "succeededCount": 2})),
            Vec::<String>::new()
        );
        assert_eq!(
            of(json!({"succeededIndexes": "0-1", "succeededCount": 3})),
            [format!(
                "{at}.succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)"
            )]
        );
        assert_eq!(
            of(json!({"succeededIndexes": "5"})),
            [format!(
                "{at}.succeededIndexes: Invalid value: \"5\": error parsing succeededIndexes: too large index: \"5\""
            )]
        );
        assert_eq!(
            of(json!({})),
            [format!(
                "{at}: Required value: at least one of succeededCount or succeededIndexes must be specified"
            )]
        );
    }

    #[test]
    fn managers_are_named_by_a_domain() {
        assert_eq!(
            faults(json!({"managedBy": "acme.io/foo"})),
            Vec::<String>::new()
        );
        assert_eq!(
            faults(json!({"managedBy": "foo"})),
            [
                "spec.managedBy: Invalid value: \"foo\": must be a domain-prefixed path (such as \"acme.io/foo\")"
            ]
        );
    }
}
