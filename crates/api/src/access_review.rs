//! Access reviews (`authorization.k8s.io`): their faults, and how a list request would carry their selectors.

use crate::field::{ErrorList, FieldError, Path, invalid_each};
use crate::fields::FieldSelector;
use crate::labels::Selector;
use crate::names::{check_label_value, check_qualified_name};
use serde_json::Value;

/// Which selector of an access review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// `fieldSelector`.
    Field,
    /// `labelSelector`.
    Label,
}

impl Requirement {
    /// The member of the attributes that has such requirements.
    fn field(self) -> &'static str {
        match self {
            Self::Field => "fieldSelector",
            Self::Label => "labelSelector",
        }
    }
}

/// Faults of what is asked about: the spec of any access review.
pub fn spec_faults(spec: &Value) -> ErrorList {
    let path = Path::new("spec");
    let given = ["resourceAttributes", "nonResourceAttributes"].map(|key| spec[key].is_object());
    let mut faults = ErrorList::new();
    match given {
        [true, true] => {
            let why = "cannot be specified in combination with resourceAttributes";
            let path = path.child("nonResourceAttributes");
            let given = spec["nonResourceAttributes"].clone();
            faults.push(FieldError::invalid(&path, given, why));
        }
        [false, false] => {
            let why =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            let path = path.child("resourceAttributes");
            faults.push(FieldError::invalid(&path, Value::Null, why));
        }
        _ => {}
    }
    validate(&spec["resourceAttributes"], &mut faults);
    faults
}

/// The fault of a spec that names nobody.
pub fn no_subject(spec: &Value) -> Option<FieldError> {
    let path = Path::new("spec").child("user");
    let why = "at least one of user or group must be specified";
    let named = spec["user"].as_str().is_some_and(|user| !user.is_empty());
    let grouped = spec["groups"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    (!named && !grouped).then(|| FieldError::invalid(&path, "", why))
}

/// A review is no object that is kept: it has no metadata but what is `allowed`.
pub fn has_metadata(review: &Value, allowed: &[&str], why: &str) -> Option<FieldError> {
    let metadata = review["metadata"].as_object()?;
    let is_extra = |key: &String| key != "managedFields" && !allowed.contains(&key.as_str());
    let extra = metadata.keys().any(is_extra);
    extra.then(|| FieldError::invalid(&Path::new("metadata"), review["metadata"].clone(), why))
}

/// Whether a text stands in a selector for itself, and cannot be read as several.
fn is_plain(text: &str, kind: Requirement) -> bool {
    let plain = |c: char| match kind {
        Requirement::Label => c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'),
        Requirement::Field => {
            !c.is_control() && !c.is_whitespace() && !matches!(c, '\\' | ',' | '=' | '!')
        }
    };
    text.chars().all(plain)
}

/// The selector of an access review as a list request would carry it. What cannot be said in it, or what would say
/// something else there, is left out: fewer conditions never allow more.
pub fn selector(attributes: &Value, kind: Requirement) -> String {
    read(attributes, kind).text
}

/// What is left out of the selectors of an access review, in upstream's words.
pub fn ignored(attributes: &Value) -> String {
    let told = [Requirement::Field, Requirement::Label].map(|kind| {
        let read = read(attributes, kind);
        let part = if read.text.is_empty() {
            ""
        } else {
            "partially "
        };
        let field = kind.field();
        let told = format!("spec.resourceAttributes.{field} {part}ignored due to parse error");
        read.leaves_out.then_some(told)
    });
    told.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Faults of the selectors of an access review.
fn validate(attributes: &Value, faults: &mut ErrorList) {
    for kind in [Requirement::Field, Requirement::Label] {
        let path = Path::new("spec").child("resourceAttributes");
        let selector = &attributes[kind.field()];
        if selector.is_object() {
            validate_one(selector, kind, &path.child(kind.field()), faults);
        }
    }
}

fn validate_one(selector: &Value, kind: Requirement, path: &Path, faults: &mut ErrorList) {
    let raw = selector["rawSelector"].as_str().unwrap_or_default();
    let requirements = selector["requirements"].as_array();
    let requirements = requirements.map(Vec::as_slice).unwrap_or_default();
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        faults.push(FieldError::invalid(&path.child("rawSelector"), raw, why));
    }
    let path_of_all = path.child("requirements");
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        faults.push(FieldError::required(&path_of_all, why));
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let path = path_of_all.index(index);
        let text = |key: &str| requirement[key].as_str().unwrap_or_default();
        let (key, values) = (text("key"), values(requirement));
        let path_of_values = path.child("values");
        match text("operator") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                faults.push(FieldError::required(&path_of_values, why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                faults.push(FieldError::forbidden(&path_of_values, why));
            }
            _ => {}
        }
        let path_of_key = path.child("key");
        match kind {
            Requirement::Field if key.is_empty() => {
                faults.push(FieldError::required(&path_of_key, "must be specified"));
            }
            Requirement::Field => {}
            Requirement::Label => {
                faults.extend(invalid_each(&path_of_key, key, check_qualified_name(key)));
                for (index, value) in values.iter().enumerate() {
                    let path = path_of_values.index(index);
                    faults.extend(invalid_each(&path, value, check_label_value(value)));
                }
            }
        }
    }
}

fn values(requirement: &Value) -> Vec<&str> {
    let values = requirement["values"].as_array().into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

struct Read {
    text: String,
    leaves_out: bool,
}

fn read(attributes: &Value, kind: Requirement) -> Read {
    let given = &attributes[kind.field()];
    if let Some(raw) = given["rawSelector"].as_str().filter(|raw| !raw.is_empty()) {
        let leaves_out = match kind {
            Requirement::Field => FieldSelector::parse(raw).is_err(),
            Requirement::Label => raw.parse::<Selector>().is_err(),
        };
        let text = if leaves_out { "" } else { raw }.to_owned();
        return Read { text, leaves_out };
    }
    let requirements = given["requirements"].as_array();
    let requirements = requirements.map(Vec::as_slice).unwrap_or_default();
    let terms: Vec<String> = requirements
        .iter()
        .filter_map(|requirement| term(requirement, kind))
        .collect();
    Read {
        leaves_out: terms.len() < requirements.len(),
        text: terms.join(","),
    }
}

/// A requirement as a selector says it.
fn term(requirement: &Value, kind: Requirement) -> Option<String> {
    let key = requirement["key"].as_str()?;
    let values = values(requirement);
    let operator = requirement["operator"].as_str()?;
    let words = [key].into_iter().chain(values.iter().copied());
    if key.is_empty() || !words.into_iter().all(|word| is_plain(word, kind)) {
        return None;
    }
    match (operator, values.as_slice(), kind) {
        ("In", [value], _) => Some(format!("{key}={value}")),
        ("NotIn", [value], _) => Some(format!("{key}!={value}")),
        ("In", several, Requirement::Label) => Some(format!("{key} in ({})", several.join(","))),
        ("NotIn", several, Requirement::Label) => {
            Some(format!("{key} notin ({})", several.join(",")))
        }
        ("Exists", _, Requirement::Label) => Some(key.to_owned()),
        ("DoesNotExist", _, Requirement::Label) => Some(format!("!{key}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A requirement about one field said something about another.
    #[test]
    fn a_requirement_is_one_condition() {
        let of = |key: &str, value: &str| {
            let given =
                json!({"requirements": [{"key": key, "operator": "In", "values": [value]}]});
            let attributes = json!({"fieldSelector": given, "labelSelector": given});
            [Requirement::Field, Requirement::Label].map(|kind| selector(&attributes, kind))
        };
        assert_eq!(of("spec.nodeName", "n1"), ["spec.nodeName=n1"; 2]);
        for (key, value) in [
            ("metadata.name", "a,spec.nodeName=n1"),
            ("metadata.name=a,spec.nodeName", "n1"),
            ("!x", "n1"),
            ("a", "b\\"),
            ("", "a"),
            ("a", "b c"),
        ] {
            assert_eq!(of(key, value), ["", ""], "{key} {value}");
        }
    }
}
