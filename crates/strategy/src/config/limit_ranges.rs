//! Limit ranges.

use std::collections::{BTreeSet, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::Value;

use super::super::json::{at, entries_at, has, list_at, list_mut, object_mut, str_at};
use super::super::{KindInfo, Strategy, meta, pod_defaults, resources};

/// The resource lists of a limit.
const BOUNDS: [&str; 5] = [
    "max",
    "min",
    "default",
    "defaultRequest",
    "maxLimitRequestRatio",
];

pub(super) struct LimitRange(pub(super) KindInfo);

impl Strategy for LimitRange {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        for item in list_mut(obj, &["spec", "limits"]) {
            for list in BOUNDS {
                pod_defaults::round_quantities(item, &[list]);
            }
            if str_at(item, &["type"]) != "Container" {
                continue;
            }
            // limits follow from the maximum, requests from the limits, then from the minimum
            for (from, to) in [
                ("max", "default"),
                ("default", "defaultRequest"),
                ("min", "defaultRequest"),
            ] {
                let Some(source) = at(item, &[from]).as_object().cloned() else {
                    continue;
                };
                let Some(target) = object_mut(item, to) else {
                    continue;
                };
                for (name, value) in source {
                    target.entry(name).or_insert(value);
                }
            }
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        limits(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        limits(new, &mut errors);
        errors
    }
}

fn limits(obj: &Value, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, item) in list_at(obj, &["spec", "limits"]).iter().enumerate() {
        let path = Path::new("spec").child("limits").index(i);
        let kind = str_at(item, &["type"]);
        limit_type(kind, &path.child("type"), errors);
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        limit(item, kind, &path, errors);
    }
}

fn limit_type(kind: &str, path: &Path, errors: &mut ErrorList) {
    const STANDARD: [&str; 3] = ["Container", "PersistentVolumeClaim", "Pod"];
    let faults = names::check_qualified_name(kind);
    if faults.is_empty() && !kind.contains('/') && !STANDARD.contains(&kind) {
        let fault = "must be a standard limit type or fully qualified";
        errors.push(FieldError::invalid(path, kind, fault));
    }
    errors.extend(invalid_each(path, kind, faults));
}

fn limit(item: &Value, kind: &str, path: &Path, errors: &mut ErrorList) {
    const LISTS: [&str; 5] = [
        "max",
        "min",
        "default",
        "defaultRequest",
        "maxLimitRequestRatio",
    ];
    let mut resources = BTreeSet::new();
    for list in LISTS {
        if kind == "Pod" && list.starts_with("default") {
            if entries_at(item, &[list]).next().is_some() {
                let why = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&path.child(list), why));
            }
            continue;
        }
        for (name, _) in entries_at(item, &[list]) {
            let path = path.child(list).key(name);
            if matches!(kind, "Pod" | "Container") {
                resources::container_resource_name(name, &path, errors);
            } else {
                resources::name(name, &path, errors);
            }
            resources.insert(name);
        }
    }
    let storage = |list| has(item, &[list, "storage"]);
    if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(&path.child("limits"), why));
    }
    for name in resources {
        ordered(item, kind, name, path, errors);
        ratio(item, name, path, errors);
    }
}

/// The amount of a resource in one of the lists, if the list has it.
fn amount(item: &Value, list: &str, name: &str) -> Option<Quantity> {
    let value = at(item, &[list, name]);
    (!value.is_null())
        .then(|| Quantity::from_json(value).ok())
        .flatten()
}

/// Least, default request, default and most of a resource are in this order.
fn ordered(item: &Value, kind: &str, name: &str, path: &Path, errors: &mut ErrorList) {
    // the lower list, the higher one, and which of them is blamed with which value
    const ORDER: [(&str, &str, &str, &str); 6] = [
        ("min", "max", "min", "min"),
        ("min", "defaultRequest", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "max", "defaultRequest", "defaultRequest"),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "defaultRequest",
        ),
        ("min", "default", "default", "min"),
        ("default", "max", "default", "max"),
    ];
    let of = |list: &str| {
        let counts = kind != "Pod" || !list.starts_with("default");
        counts.then(|| amount(item, list, name)).flatten()
    };
    let noun = |list: &str| match list {
        "defaultRequest" => "default request",
        "min" => "min",
        "max" => "max",
        _ => "default",
    };
    for (lower, upper, blamed, shown) in ORDER {
        let (Some(low), Some(high)) = (of(lower), of(upper)) else {
            continue;
        };
        if low > high {
            let upper = match (lower, upper) {
                ("defaultRequest", "default") => "default limit",
                _ => noun(upper),
            };
            let fault = format!(
                "{} value {low} is greater than {upper} value {high}",
                noun(lower)
            );
            let shown = if shown == lower { low } else { high };
            let path = path.child(blamed).key(name);
            errors.push(FieldError::invalid(&path, shown.to_string(), fault));
        }
    }
    if let (Some(limit), Some(request)) = (of("default"), of("defaultRequest"))
        && !resources::overcommit_allowed(name)
        && limit != request
    {
        let fault =
            format!("default value {limit} must equal to defaultRequest value {request} in {name}");
        let path = path.child("defaultRequest").key(name);
        errors.push(FieldError::invalid(&path, request.to_string(), fault));
    }
}

/// The most a limit may be of its request is at least one, and no more than least and most allow.
fn ratio(item: &Value, name: &str, path: &Path, errors: &mut ErrorList) {
    // whole numbers above this have no thousandths in 64 bits
    const MILLI_MAX: i64 = i64::MAX / 1000;
    let Some(ratio) = amount(item, "maxLimitRequestRatio", name) else {
        return;
    };
    let path = path.child("maxLimitRequestRatio").key(name);
    if ratio.milli_value() < 1000 {
        let fault = format!("ratio {ratio} is less than 1");
        errors.push(FieldError::invalid(&path, ratio.to_string(), fault));
    }
    let (Some(least), Some(most)) = (amount(item, "min", name), amount(item, "max", name)) else {
        return;
    };
    let fine = [ratio, least, most].iter().all(|q| q.value() < MILLI_MAX);
    let (asked, least, most) = if fine {
        let asked = ratio.milli_value() as f64 / 1000.0;
        (asked, least.milli_value(), most.milli_value())
    } else {
        (ratio.value() as f64, least.value(), most.value())
    };
    let possible = most as f64 / least as f64;
    if asked > possible {
        let fault = format!("ratio {ratio} is greater than max/min = {possible:.6}");
        errors.push(FieldError::invalid(&path, ratio.to_string(), fault));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{faults, none};

    fn limit_range(item: Value) -> Value {
        json!({"metadata": {"name": "l", "namespace": "default"}, "spec": {"limits": [item]}})
    }

    #[test]
    fn lists_that_are_not_given_do_not_count() {
        for item in [
            json!({"type": "Pod", "min": {"cpu": "100m"}, "max": {"cpu": "2"}}),
            json!({"type": "Container", "min": {"cpu": "100m"}, "default": {"memory": "1Gi"}}),
            json!({"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}),
            json!({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"},
                "maxLimitRequestRatio": {"cpu": "2"}}),
        ] {
            none("", "v1", "LimitRange", &limit_range(item));
        }
    }

    #[test]
    fn faults_of_limit_ranges() {
        let cases = [
            (
                json!({"type": "Pods"}),
                "spec.limits[0].type: Invalid value: \"Pods\": must be a standard limit type or fully qualified",
            ),
            (
                json!({"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            ),
            (
                json!({"type": "Pod", "default": {"cpu": "2"}}),
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            ),
            (
                json!({"type": "Container", "min": {"cpu": "2"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}),
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1\": min value 2 is greater than default request value 1\n\
                 spec.limits[0].default[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1",
            ),
            (
                json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
                "spec.limits[0].default[cpu]: Invalid value: \"1\": default value 2 is greater than max value 1",
            ),
            (
                json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
                "spec.limits[0].defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1",
            ),
            (
                json!({"type": "PersistentVolumeClaim"}),
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            ),
            (
                json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "800m"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"800m\": ratio 800m is less than 1",
            ),
            (
                json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "4"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"4\": ratio 4 is greater than max/min = 2.000000",
            ),
        ];
        for (item, wanted) in cases {
            assert_eq!(faults("", "v1", "LimitRange", &limit_range(item)), wanted);
        }
    }
}
