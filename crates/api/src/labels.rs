//! Label selectors: the query language (`a=b,c in (d,e),!f,g>1`) and the typed `LabelSelector`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::field::{self, ErrorList, FieldError, Path, quote};
use crate::{SortedValues, names};

mod parse;

/// What labels are read from.
pub trait Labels {
    /// The value of a label.
    fn get_label(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for Map<String, Value> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

/// An absent or other-typed value has no labels.
impl Labels for Value {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }
}

impl<L: Labels + ?Sized> Labels for Option<&L> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.and_then(|l| l.get_label(key))
    }
}

/// How a requirement relates a label to its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `=`
    Equals,
    /// `==`
    DoubleEquals,
    /// `!=`; also matches objects without the label.
    NotEquals,
    /// `in`
    In,
    /// `notin`; also matches objects without the label.
    NotIn,
    /// The label is there.
    Exists,
    /// `!`; the label is not there.
    DoesNotExist,
    /// `>`; both are integers.
    GreaterThan,
    /// `<`; both are integers.
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
    sorted: SortedValues,
}

/// Why a selector is refused; the text is that of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

impl Requirement {
    /// A requirement, checked as Kubernetes checks it.
    ///
    /// # Errors
    /// When key or values are malformed or their number does not fit the operator.
    pub fn new(
        key: impl Into<String>,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Self, SelectorError> {
        let requirement = Requirement {
            key: key.into(),
            operator,
            sorted: SortedValues::new(values.clone()),
            values,
        };
        let errors = requirement.check();
        if errors.is_empty() {
            Ok(requirement)
        } else {
            Err(SelectorError(field::aggregate(&errors)))
        }
    }

    fn check(&self) -> ErrorList {
        let mut errors: ErrorList = check_key(&self.key, &Path::new("key"));
        let path = Path::new("values");
        let list = || Value::from(self.values.clone());
        let wrong_number = match self.operator {
            Operator::In | Operator::NotIn => self
                .values
                .is_empty()
                .then_some("for 'in', 'notin' operators, values set can't be empty"),
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => (self.values.len()
                != 1)
                .then_some("exact-match compatibility requires one single value"),
            Operator::Exists | Operator::DoesNotExist => (!self.values.is_empty())
                .then_some("values set must be empty for exists and does not exist"),
            Operator::GreaterThan | Operator::LessThan => (self.values.len() != 1)
                .then_some("for 'Gt', 'Lt' operators, exactly one value is required"),
        };
        if let Some(text) = wrong_number {
            errors.push(FieldError::invalid(&path, list(), text));
        }
        if matches!(self.operator, Operator::GreaterThan | Operator::LessThan) {
            for (i, value) in self.values.iter().enumerate() {
                if value.parse::<i64>().is_err() {
                    errors.push(FieldError::invalid(
                        &path.index(i),
                        value.as_str(),
                        "for 'Gt', 'Lt' operators, the value must be an integer",
                    ));
                }
            }
        }
        for (i, value) in self.values.iter().enumerate() {
            let faults = names::check_label_value(value);
            if !faults.is_empty() {
                errors.push(FieldError::invalid(
                    &path.index(i).key(&self.key),
                    value.as_str(),
                    faults.join("; "),
                ));
            }
        }
        errors
    }

    /// The label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The relation.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values, in the order given.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether labels meet the requirement.
    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        let value = labels.get_label(&self.key);
        let listed = |v: &str| self.sorted.contains(v);
        match self.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => value.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => value.is_none_or(|v| !listed(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => self.compare(value).is_some_and(|(v, r)| v > r),
            Operator::LessThan => self.compare(value).is_some_and(|(v, r)| v < r),
        }
    }

    fn compare(&self, value: Option<&str>) -> Option<(i64, i64)> {
        let reference = self.values.first()?;
        Some((value?.parse().ok()?, reference.parse().ok()?))
    }
}

fn check_key(key: &str, path: &Path) -> ErrorList {
    let faults = names::check_qualified_name(key);
    if faults.is_empty() {
        Vec::new()
    } else {
        vec![FieldError::invalid(path, key, faults.join("; "))]
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let key = &self.key;
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// A set of requirements that must all be met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    /// Matches no object, whatever its labels.
    nothing: bool,
}

impl Selector {
    /// Matches everything.
    pub fn everything() -> Self {
        Selector::default()
    }

    /// Matches nothing.
    pub fn nothing() -> Self {
        Selector {
            requirements: Vec::new(),
            nothing: true,
        }
    }

    /// Matches objects that meet all requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Selector {
            requirements,
            nothing: false,
        }
    }

    /// Parses the query language of `labelSelector`.
    ///
    /// # Errors
    /// With the texts of Kubernetes.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Selector::new)
    }

    /// The selector of a plain map of labels, all of which must be equal.
    ///
    /// # Errors
    /// When a key or value is malformed.
    pub fn from_labels(labels: &Map<String, Value>) -> Result<Self, SelectorError> {
        labels
            .iter()
            .map(|(k, v)| {
                let value = v.as_str().unwrap_or_default().to_owned();
                Requirement::new(k.as_str(), Operator::Equals, vec![value])
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Selector::new)
    }

    /// The selector of a typed `LabelSelector`: an absent one matches nothing, an empty one
    /// everything.
    ///
    /// # Errors
    /// When an operator is unknown, or a key or value is malformed.
    pub fn from_label_selector(selector: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(Value::Object(selector)) = selector else {
            return Ok(Selector::nothing());
        };
        let mut requirements = Vec::new();
        if let Some(Value::Object(labels)) = selector.get("matchLabels") {
            requirements.extend(Selector::from_labels(labels)?.requirements);
        }
        if let Some(Value::Array(expressions)) = selector.get("matchExpressions") {
            for expression in expressions {
                requirements.push(expression_requirement(expression)?);
            }
        }
        Ok(Selector::new(requirements))
    }

    /// Whether labels meet all requirements.
    pub fn matches<L: Labels + ?Sized>(&self, labels: &L) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    /// Whether there is no requirement: everything matches.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether nothing can match.
    pub fn is_nothing(&self) -> bool {
        self.nothing
    }

    /// The requirements, ordered by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The one value that a label must have, if the selector demands one.
    pub fn requires_exact_match(&self, label: &str) -> Option<&str> {
        let r = self.requirements.iter().find(|r| r.key == label)?;
        let exact = matches!(
            r.operator,
            Operator::Equals | Operator::DoubleEquals | Operator::In
        );
        match r.values.as_slice() {
            [one] if exact => Some(one),
            _ => None,
        }
    }
}

fn expression_requirement(expression: &Value) -> Result<Requirement, SelectorError> {
    let text = |k: &str| expression[k].as_str().unwrap_or_default();
    let operator = match text("operator") {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => {
            return Err(SelectorError(format!(
                "{} is not a valid label selector operator",
                quote(other)
            )));
        }
    };
    let values = expression["values"]
        .as_array()
        .map(|list| {
            list.iter()
                .map(|v| v.as_str().unwrap_or_default().to_owned())
                .collect()
        })
        .unwrap_or_default();
    Requirement::new(text("key"), operator, values)
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Selector {
    type Err = SelectorError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Selector::parse(s)
    }
}

/// What is wrong with a typed `LabelSelector` at a path.
pub fn validate_label_selector(selector: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(Value::Object(labels)) = selector.get("matchLabels") {
        errors.extend(validate_labels(labels, &path.child("matchLabels")));
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    for (i, expression) in expressions.into_iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let empty = expression["values"].as_array().is_none_or(Vec::is_empty);
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" if empty => errors.push(FieldError::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !empty => errors.push(FieldError::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(
                &path.child("operator"),
                other,
                "not a valid selector operator",
            )),
        }
        let key = expression["key"].as_str().unwrap_or_default();
        errors.extend(field::invalid_each(
            &path.child("key"),
            key,
            names::check_qualified_name(key),
        ));
        for (j, value) in expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            let value = value.as_str().unwrap_or_default();
            errors.extend(field::invalid_each(
                &path.child("values").index(j),
                value,
                names::check_label_value(value),
            ));
        }
    }
    errors
}

/// What is wrong with a map of labels at a path.
pub fn validate_labels(labels: &Map<String, Value>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, value) in labels {
        errors.extend(field::invalid_each(
            path,
            key,
            names::check_qualified_name(key),
        ));
        let value = value.as_str().unwrap_or_default();
        errors.extend(field::invalid_each(
            path,
            value,
            names::check_label_value(value),
        ));
    }
    errors
}

#[cfg(test)]
mod tests;
