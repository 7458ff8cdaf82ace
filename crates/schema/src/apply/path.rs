//! Paths to fields: how the fields and elements of an object are told apart, and their order.

use std::cmp::Ordering;
use std::fmt;

use davit_api::field::quote;
use serde_json::Value;

/// One step of a path.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of a struct or an entry of a map.
    Field(String),
    /// The element of a list whose key fields have these values, ordered by name.
    Key(Vec<(String, Value)>),
    /// The element of a set that is this scalar.
    Value(Value),
    /// The element of a list at a position.
    Index(i64),
}

/// A path from the root of an object.
pub type Path = Vec<PathElement>;

impl PathElement {
    /// A field of a name.
    pub fn field(name: impl Into<String>) -> Self {
        PathElement::Field(name.into())
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => {
                for ((an, av), (bn, bv)) in a.iter().zip(b) {
                    let order = an.cmp(bn).then_with(|| compare(av, bv));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (PathElement::Value(a), PathElement::Value(b)) => compare(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(fields) => {
                f.write_str("[")?;
                for (i, (name, value)) in fields.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={}", text(value))?;
                }
                f.write_str("]")
            }
            PathElement::Value(value) => write!(f, "[={}]", text(value)),
            PathElement::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// A path as conflicts name it: `.spec.ports[port=80,protocol="TCP"].name`.
pub fn display(path: &[PathElement]) -> String {
    path.iter().map(PathElement::to_string).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(s) => quote(s),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| format!("{k}={}", text(v)))
            .collect(),
        other => other.to_string(),
    }
}

/// The order of values of any type: numbers (by value, whole or not), texts, booleans, lists,
/// objects, null.
pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => {
                let number = |n: &serde_json::Number| n.as_f64().unwrap_or_default();
                number(x).total_cmp(&number(y))
            }
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let each = x.iter().zip(y).map(|(x, y)| compare(x, y));
            each.fold(Ordering::Equal, Ordering::then)
                .then(x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let each = x
                .iter()
                .zip(y)
                .map(|((xk, xv), (yk, yv))| xk.cmp(yk).then_with(|| compare(xv, yv)));
            each.fold(Ordering::Equal, Ordering::then)
                .then(x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values are the same; numbers by value.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter()
                    .all(|(key, x)| y.get(key).is_some_and(|y| equal(x, y)))
        }
        (Value::Number(_), Value::Number(_)) => compare(a, b) == Ordering::Equal,
        _ => a == b,
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}
