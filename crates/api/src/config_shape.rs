//! Which fields a configuration file has. A rule that is misspelt, or an object where a list of rules should be, would be a
//! rule that does not hold: files about access and admission are refused as a whole.

use serde_json::Value;

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
}

/// A value that does not have its shape.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct ShapeError {
    /// The value's path.
    pub field: String,
    /// What is wrong.
    pub detail: String,
}

impl ConfigShape {
    /// Whether a value has this shape; what is null is absent.
    ///
    /// # Errors
    /// The first value that has not.
    pub fn check(&self, value: &Value) -> Result<(), ShapeError> {
        self.check_at(value, "")
    }

    fn check_at(&self, value: &Value, at: &str) -> Result<(), ShapeError> {
        let wrong = |detail: String| {
            let field = if at.is_empty() { "file" } else { at };
            Err(ShapeError {
                field: field.to_owned(),
                detail,
            })
        };
        match (self, value) {
            (Self::Any, _) | (_, Value::Null) => Ok(()),
            (Self::Scalar, Value::Array(_) | Value::Object(_)) => {
                wrong("must be a single value".to_owned())
            }
            (Self::Scalar, _) => Ok(()),
            (Self::List(inner), Value::Array(items)) => {
                let mut items = items.iter().enumerate();
                items.try_for_each(|(index, item)| inner.check_at(item, &format!("{at}[{index}]")))
            }
            (Self::Object(fields), Value::Object(entries)) => {
                entries.iter().try_for_each(|(key, item)| {
                    let path = match at {
                        "" => key.clone(),
                        at => format!("{at}.{key}"),
                    };
                    match fields.iter().find(|(name, _)| name == key) {
                        Some((_, inner)) => inner.check_at(item, &path),
                        None => Err(ShapeError {
                            field: path,
                            detail: "unknown field".to_owned(),
                        }),
                    }
                })
            }
            (Self::List(_), _) => wrong("must be a list".to_owned()),
            (Self::Object(_), _) => wrong("must be an object".to_owned()),
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
}
