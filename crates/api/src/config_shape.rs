//! Which fields a configuration file has. A field that is misspelt, or an object where a list should be, would be a setting that
//! does not hold: files that decide who may what are refused as a whole, others say all that nobody knows.

use serde_json::Value;

use crate::field::Path;

/// What a value may be.
#[derive(Debug)]
pub enum ConfigShape {
    /// A text, a number or a truth value.
    Scalar,
    /// Something that others judge.
    Any,
    /// A list of such.
    List(&'static ConfigShape),
    /// An object with these fields.
    Object(&'static [(&'static str, ConfigShape)]),
    /// An object with any keys and such values.
    Map(&'static ConfigShape),
}

/// A value that does not have its shape.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {fault}")]
pub struct ShapeError {
    /// The value's path; `file` for the whole.
    pub field: String,
    /// What is wrong.
    pub fault: ShapeFault,
}

/// What is wrong with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeFault {
    /// Nobody reads a field of this name.
    #[error("unknown field")]
    Unknown,
    /// It is a list or an object.
    #[error("must be a single value")]
    NoScalar,
    /// It is something else.
    #[error("must be a list")]
    NoList,
    /// It is something else.
    #[error("must be an object")]
    NoObject,
}

impl ConfigShape {
    /// Whether a value has this shape; what is null is absent.
    ///
    /// # Errors
    /// The first value that has not.
    pub fn check(&self, value: &Value) -> Result<(), ShapeError> {
        self.faults(value).into_iter().next().map_or(Ok(()), Err)
    }

    /// The paths of the fields that nobody reads. Values of a wrong type are left to who gives them their type.
    pub fn unknown_fields(&self, value: &Value) -> impl Iterator<Item = String> {
        let faults = self.faults(value).into_iter();
        let unknown = faults.filter(|error| error.fault == ShapeFault::Unknown);
        unknown.map(|error| error.field)
    }

    fn faults(&self, value: &Value) -> Vec<ShapeError> {
        let mut found = Vec::new();
        self.look(value, &Path::root(), &mut found);
        found
    }

    fn look(&self, value: &Value, at: &Path, found: &mut Vec<ShapeError>) {
        let fault = match (self, value) {
            (Self::Any, _) | (_, Value::Null) => return,
            (Self::Scalar, Value::Array(_) | Value::Object(_)) => ShapeFault::NoScalar,
            (Self::Scalar, _) => return,
            (Self::List(inner), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    inner.look(item, &at.index(index), found);
                }
                return;
            }
            (Self::Object(fields), Value::Object(entries)) => {
                for (key, item) in entries {
                    let path = at.child(key);
                    match fields.iter().find(|(name, _)| name == key) {
                        Some((_, inner)) => inner.look(item, &path, found),
                        None => found.push(ShapeError::new(&path, ShapeFault::Unknown)),
                    }
                }
                return;
            }
            (Self::Map(inner), Value::Object(entries)) => {
                for (key, item) in entries {
                    inner.look(item, &at.child(key), found);
                }
                return;
            }
            (Self::List(_), _) => ShapeFault::NoList,
            (Self::Object(_) | Self::Map(_), _) => ShapeFault::NoObject,
        };
        found.push(ShapeError::new(at, fault));
    }
}

impl ShapeError {
    fn new(at: &Path, fault: ShapeFault) -> Self {
        let field = match at.as_str() {
            "" => "file",
            path => path,
        };
        Self {
            field: field.to_owned(),
            fault,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_nobody_knows_and_what_is_no_list_is_found() {
        const RULE: ConfigShape = ConfigShape::Object(&[("claim", ConfigShape::Scalar)]);
        const FILE: ConfigShape = ConfigShape::Object(&[
            ("rules", ConfigShape::List(&RULE)),
            ("free", ConfigShape::Any),
        ]);
        let said = |value: Value| FILE.check(&value).map_err(|error| error.to_string());
        for fine in [
            json!({}),
            json!({"rules": null, "free": {"a": [1]}}),
            json!({"rules": [{"claim": true}, {"claim": null}]}),
        ] {
            assert_eq!(said(fine), Ok(()));
        }
        for (value, why) in [
            (json!({"rule": []}), "rule: unknown field"),
            (json!({"rules": {"claim": "a"}}), "rules: must be a list"),
            (json!({"rules": ["a"]}), "rules[0]: must be an object"),
            (
                json!({"rules": [{}, {"clam": 1}]}),
                "rules[1].clam: unknown field",
            ),
            (
                json!({"rules": [{"claim": []}]}),
                "rules[0].claim: must be a single value",
            ),
            (json!([]), "file: must be an object"),
        ] {
            assert_eq!(said(value), Err(why.to_owned()));
        }
    }

    #[test]
    fn all_that_nobody_reads_is_told() {
        const FILE: ConfigShape = ConfigShape::Object(&[
            (
                "labels",
                ConfigShape::Map(&ConfigShape::Object(&[("a", ConfigShape::Any)])),
            ),
            ("list", ConfigShape::List(&ConfigShape::Any)),
        ]);
        let value = json!({"labels": {"x": {"a": 1, "b": 2}, "y": 3}, "list": {}, "other": null});
        let unknown: Vec<_> = FILE.unknown_fields(&value).collect();
        assert_eq!(unknown, ["labels.x.b", "other"]);
    }
}
