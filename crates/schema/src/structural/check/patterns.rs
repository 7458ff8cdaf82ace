//! The regular expressions of a schema: whether they are any, and what they cost. They are kept compiled as long as the
//! schema is served, so that what all of them take together has a limit, too.

use std::collections::HashMap;

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use crate::structural::compat::{self, PatternError};

/// Bytes of an expression's text.
const LONGEST: usize = 64 << 10;
/// What an expression counts for: the least of these that it fits into, bytes.
const SIZES: [usize; 3] = [32 << 10, 1 << 20, compat::LARGEST];
/// What all expressions of a schema may count for; the same one counts once.
const TOGETHER: usize = 128 << 20;

/// Adds what is wrong with the expressions of a schema that stands at `path`.
pub(super) fn check(schema: &Value, path: &Path, errors: &mut ErrorList) {
    let mut patterns = Patterns {
        known: HashMap::new(),
        left: TOGETHER,
    };
    patterns.look(schema, path, errors);
}

struct Patterns<'a> {
    known: HashMap<&'a str, Option<String>>,
    left: usize,
}

impl<'a> Patterns<'a> {
    fn look(&mut self, schema: &'a Value, path: &Path, errors: &mut ErrorList) {
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str) {
            self.one(pattern, &path.child("pattern"), errors);
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, inner) in properties.into_iter().flatten() {
            self.look(inner, &path.child("properties").key(name), errors);
        }
        for key in ["items", "additionalProperties", "not"] {
            if let Some(inner) = schema.get(key).filter(|inner| inner.is_object()) {
                self.look(inner, &path.child(key), errors);
            }
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            let list = schema.get(key).and_then(Value::as_array);
            for (i, inner) in list.into_iter().flatten().enumerate() {
                self.look(inner, &path.child(key).index(i), errors);
            }
        }
    }

    fn one(&mut self, pattern: &'a str, at: &Path, errors: &mut ErrorList) {
        if pattern.len() > LONGEST {
            errors.push(FieldError::too_long(at, LONGEST));
            return;
        }
        let fault = match self.known.get(pattern) {
            Some(fault) => fault.clone(),
            None => {
                let fault = self.compile(pattern);
                self.known.insert(pattern, fault.clone());
                fault
            }
        };
        if let Some(why) = fault {
            errors.push(FieldError::invalid(at, pattern, why));
        }
    }

    /// What is wrong with an expression. Trying costs as much as having.
    fn compile(&mut self, pattern: &str) -> Option<String> {
        for size in SIZES {
            let Some(left) = self.left.checked_sub(size) else {
                let why = "the regular expressions of the schema are too large together";
                return Some(why.to_owned());
            };
            match compat::regex(pattern, size) {
                Ok(_) => {
                    self.left = left;
                    return None;
                }
                Err(PatternError::TooLarge) => self.left = left,
                Err(fault @ PatternError::Syntax(_)) => return Some(invalid(&fault)),
            }
        }
        Some(invalid(&PatternError::TooLarge))
    }
}

fn invalid(fault: &PatternError) -> String {
    format!("must be a valid regular expression, but isn't: {fault}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(schema: &Value) -> Vec<String> {
        let mut errors = ErrorList::new();
        check(schema, &Path::new("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_is_looked_at_wherever_it_stands() {
        let bad = json!({"pattern": "("});
        let found = faults(&json!({
            "properties": {"a": {"items": bad}, "b": {"additionalProperties": bad}},
            "allOf": [{"pattern": "^ok$"}, {"not": bad}],
        }));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found
                .iter()
                .any(|e| e.starts_with("spec.allOf[1].not.pattern: Invalid value"))
        );
    }

    #[test]
    fn large_ones_are_refused() {
        let found = faults(&json!({"pattern": "((a{1000}){1000}){1000}"}));
        assert!(
            found[0].ends_with("but isn't: expression too large"),
            "{found:?}"
        );
        let found = faults(&json!({"pattern": "a".repeat(LONGEST + 1)}));
        assert!(found[0].starts_with("spec.pattern: Too long"), "{found:?}");
    }

    #[test]
    fn many_together_have_a_limit_and_the_same_counts_once() {
        let large = |n: usize| format!("(a{{500}}){{20}}{n}");
        let same: Vec<Value> = (0..1000).map(|_| json!({"pattern": large(0)})).collect();
        assert_eq!(faults(&json!({"allOf": same})), Vec::<String>::new());
        let many: Vec<Value> = (0..1000).map(|n| json!({"pattern": large(n)})).collect();
        let found = faults(&json!({"allOf": many}));
        assert!(!found.is_empty() && found.len() < 1000);
        assert!(found[0].contains("too large together"), "{found:?}");
        let small: Vec<Value> = (0..1000)
            .map(|n| json!({"pattern": format!("^{n}$")}))
            .collect();
        assert_eq!(faults(&json!({"allOf": small})), Vec::<String>::new());
    }
}
