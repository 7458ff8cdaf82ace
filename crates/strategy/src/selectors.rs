//! Label selectors and node selectors.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::json::{at, entries_at, is_empty, list_at, str_at};
use super::meta;

const NEEDS_VALUES: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const NO_VALUES: &str = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
const BAD_OPERATOR: &str = "not a valid selector operator";

/// Faults of a label selector.
pub(super) fn label_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    meta::labels(
        at(selector, &["matchLabels"]),
        &path.child("matchLabels"),
        errors,
    );
    for (i, requirement) in list_at(selector, &["matchExpressions"]).iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = list_at(requirement, &["values"]);
        match str_at(requirement, &["operator"]) {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(FieldError::required(&path.child("values"), NEEDS_VALUES));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.push(FieldError::forbidden(&path.child("values"), NO_VALUES));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                BAD_OPERATOR,
            )),
        }
        let key = str_at(requirement, &["key"]);
        errors.extend(invalid_each(
            &path.child("key"),
            key,
            names::check_qualified_name(key),
        ));
        for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
            let at_value = path.child("values").index(i);
            errors.extend(invalid_each(
                &at_value,
                value,
                names::check_label_value(value),
            ));
        }
    }
}

/// Whether a label selector selects everything.
pub(super) fn is_empty_selector(selector: &Value) -> bool {
    is_empty(at(selector, &["matchLabels"])) && is_empty(at(selector, &["matchExpressions"]))
}

/// Whether a well-formed label selector matches labels.
pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    entries_at(selector, &["matchLabels"]).all(|(k, v)| label(k) == v.as_str())
        && list_at(selector, &["matchExpressions"]).iter().all(|r| {
            let value = label(str_at(r, &["key"]));
            let named = value.is_some_and(|v| {
                list_at(r, &["values"])
                    .iter()
                    .any(|wanted| wanted.as_str() == Some(v))
            });
            match str_at(r, &["operator"]) {
                "In" => named,
                "NotIn" => !named,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Faults of a node selector (terms that are alternatives).
pub(super) fn node_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    let terms = list_at(selector, &["nodeSelectorTerms"]);
    let path = path.child("nodeSelectorTerms");
    if terms.is_empty() {
        let why = "must have at least one node selector term";
        errors.push(FieldError::required(&path, why));
    }
    for (i, term) in terms.iter().enumerate() {
        node_selector_term(term, &path.index(i), errors);
    }
}

/// Faults of one term of a node selector.
pub(super) fn node_selector_term(term: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, requirement) in list_at(term, &["matchExpressions"]).iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = list_at(requirement, &["values"]);
        let at_values = path.child("values");
        match str_at(requirement, &["operator"]) {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(FieldError::required(&at_values, NEEDS_VALUES));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.push(FieldError::forbidden(&at_values, NO_VALUES));
            }
            "Gt" | "Lt" if values.len() != 1 => {
                let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&at_values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                BAD_OPERATOR,
            )),
        }
        let key = str_at(requirement, &["key"]);
        errors.extend(invalid_each(
            &path.child("key"),
            key,
            names::check_qualified_name(key),
        ));
    }
    for (i, requirement) in list_at(term, &["matchFields"]).iter().enumerate() {
        node_field(requirement, &path.child("matchFields").index(i), errors);
    }
}

fn node_field(requirement: &Value, path: &Path, errors: &mut ErrorList) {
    let values = list_at(requirement, &["values"]);
    match str_at(requirement, &["operator"]) {
        "In" | "NotIn" => {
            if values.len() != 1 {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(&path.child("values"), why));
            }
        }
        other => errors.push(FieldError::invalid(
            &path.child("operator"),
            other,
            BAD_OPERATOR,
        )),
    }
    let key = str_at(requirement, &["key"]);
    if key == "metadata.name" {
        for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
            let at_value = path.child("values").index(i);
            errors.extend(invalid_each(
                &at_value,
                value,
                names::check_dns1123_subdomain(value),
            ));
        }
    } else {
        let fault = "not a valid field selector key";
        errors.push(FieldError::invalid(&path.child("key"), key, fault));
    }
}
