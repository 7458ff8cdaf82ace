//! Conditions in a status: what those of every kind have in common.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::json::{at, int_at, repeats, str_at};

const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;
const REASON_TEXT: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
                           alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
const REASON_FORMAT: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";

/// All faults of conditions of the common type.
pub(super) fn validate(conditions: &[Value], path: &Path, errors: &mut ErrorList) {
    let twins = repeats(conditions.iter().map(|c| at(c, &["type"]).as_str()));
    for ((i, condition), is_twin) in conditions.iter().enumerate().zip(twins) {
        let path = path.index(i);
        let kind = at(condition, &["type"]);
        if is_twin {
            errors.push(FieldError::duplicate(&path.child("type"), kind.clone()));
        }
        validate_one(condition, &path, errors);
    }
}

fn validate_one(condition: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |key: &str| str_at(condition, &[key]);
    let kind = text("type");
    let faults = names::check_qualified_name(kind);
    errors.extend(invalid_each(&path.child("type"), kind, faults));
    if !STATUSES.contains(&text("status")) {
        let path = path.child("status");
        errors.push(FieldError::not_supported(&path, text("status"), &STATUSES));
    }
    let generation = int_at(condition, &["observedGeneration"]).unwrap_or(0);
    if generation < 0 {
        let why = "must be greater than or equal to zero";
        let path = path.child("observedGeneration");
        errors.push(FieldError::invalid(&path, generation, why));
    }
    if at(condition, &["lastTransitionTime"]).is_null() {
        errors.push(FieldError::required(&path.child("lastTransitionTime"), ""));
    }
    let (reason, at_reason) = (text("reason"), path.child("reason"));
    if reason.is_empty() {
        errors.push(FieldError::required(&at_reason, ""));
    } else if !is_reason(reason) {
        let examples = [
            "my_name",
            "MY_NAME",
            "MyName",
            "ReasonA,ReasonB",
            "ReasonA:ReasonB",
        ];
        let why = names::regex_text(REASON_TEXT, REASON_FORMAT, &examples);
        errors.push(FieldError::invalid(&at_reason, reason, why));
    }
    if reason.len() > REASON_MAX {
        errors.push(FieldError::too_long(&at_reason, REASON_MAX));
    }
    if text("message").len() > MESSAGE_MAX {
        errors.push(FieldError::too_long(&path.child("message"), MESSAGE_MAX));
    }
}

fn is_reason(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_,:".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(inner)
}

/// As [`validate`] for kinds that ask for no more than types, each once.
pub(super) fn types(conditions: &[Value], path: &Path, errors: &mut ErrorList) {
    let twins = repeats(conditions.iter().map(|c| str_at(c, &["type"])));
    for ((i, condition), is_twin) in conditions.iter().enumerate().zip(twins) {
        let path = path.index(i).child("type");
        let kind = str_at(condition, &["type"]);
        if is_twin {
            errors.push(FieldError::duplicate(&path, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn faults_of_conditions() {
        let good = json!({"type": "a.b/C", "status": "True", "reason": "A_b", "lastTransitionTime": "2024-01-01T00:00:00Z"});
        let faults = |conditions: &[Value]| {
            let mut errors = ErrorList::new();
            validate(conditions, &Path::new("c"), &mut errors);
            let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
            shown.join("\n")
        };
        assert_eq!(faults(std::slice::from_ref(&good)), "");
        assert_eq!(
            faults(&[good.clone(), good.clone()]),
            "c[1].type: Duplicate value: \"a.b/C\""
        );
        let mut bad = good;
        bad["status"] = json!("yes");
        bad["reason"] = json!("1");
        bad["lastTransitionTime"] = json!(null);
        bad["observedGeneration"] = json!(-1);
        let found = faults(&[bad]);
        for place in [
            "status: Unsupported",
            "reason: Invalid",
            "lastTransitionTime: Required",
            "observedGeneration: Invalid",
        ] {
            assert!(found.contains(&format!("c[0].{place}")), "{found}");
        }
    }
}
