//! Whether an object fits its schema, in the words of the original.

use std::collections::BTreeSet;

use davit_api::field::quote;
use davit_api::kinds::ListType;
use serde_json::Value;

use super::path::{Path, PathElement, display};
use super::typed::{Atom, Scalar, Schema, TypeRef};

/// So many faults are told: a body has room for a million.
const TOLD: usize = 1_000;

/// What is wrong with an object: path and reason of each fault.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<(String, String)>);

impl Faults {
    /// The sentence of the original; none if there are no faults.
    pub(super) fn text(&self) -> Option<String> {
        let line = |(path, why): &(String, String)| match path.as_str() {
            "" => why.clone(),
            path => format!("{path}: {why}"),
        };
        match &self.0[..] {
            [] => None,
            [one] => Some(line(one)),
            many => {
                let lines: Vec<String> = many.iter().map(|f| format!("  {}", line(f))).collect();
                Some(format!("errors:\n{}", lines.join("\n")))
            }
        }
    }

    fn add(&mut self, path: &[PathElement], why: String) {
        if self.0.len() < TOLD {
            self.0.push((display(path), why));
        }
    }
}

/// Checks an object. Elements that stand twice in a list are faults unless `duplicates` are
/// allowed.
pub(super) fn check(schema: Schema<'_>, object: &Value, duplicates: bool) -> Faults {
    let mut walker = Walker {
        schema,
        duplicates,
        path: Vec::new(),
        faults: Faults::default(),
    };
    walker.value(schema.root(), object);
    walker.faults
}

struct Walker<'t> {
    schema: Schema<'t>,
    duplicates: bool,
    path: Path,
    faults: Faults,
}

impl<'t> Walker<'t> {
    fn value(&mut self, ty: TypeRef<'t>, value: &Value) {
        match (self.schema.atom(ty, Some(value)), value) {
            (_, Value::Null) => {}
            (Atom::Scalar(scalar), value) => {
                if let Some(why) = scalar_fault(scalar, value) {
                    self.faults.add(&self.path, why);
                }
            }
            (Atom::List(list), Value::Array(items)) => {
                let mut seen = BTreeSet::new();
                for (i, item) in items.iter().enumerate() {
                    let step = if list.kind == ListType::Atomic {
                        PathElement::Index(i as i64)
                    } else {
                        match self.schema.element(&list, item) {
                            Ok(step) => step,
                            Err(why) => {
                                self.faults.add(&self.path, format!("element {i}: {why}"));
                                return;
                            }
                        }
                    };
                    if !seen.insert(step.clone()) && !self.duplicates {
                        let why = format!("duplicate entries for key {step}");
                        self.faults.add(&self.path, why);
                    }
                    self.path.push(step);
                    self.value(list.item, item);
                    self.path.pop();
                }
            }
            (Atom::List(_), value) => {
                let why = format!("expected list, got {}", go_value(value));
                self.faults.add(&self.path, why);
            }
            (Atom::Map(map), Value::Object(entries)) => {
                for (key, value) in entries {
                    self.path.push(PathElement::field(key));
                    match self.schema.entry(&map, key) {
                        TypeRef::None => {
                            let why = "field not declared in schema".to_owned();
                            self.faults.add(&self.path, why);
                            self.path.pop();
                            return;
                        }
                        ty => self.value(ty, value),
                    }
                    self.path.pop();
                }
            }
            (Atom::Map(_), value) => {
                let why = format!("expected map, got {}", go_value(value));
                self.faults.add(&self.path, why);
            }
            (Atom::None, _) => {
                let why = "schema error: invalid atom: inlined".to_owned();
                self.faults.add(&self.path, why);
            }
        }
    }
}

fn scalar_fault(scalar: Scalar, value: &Value) -> Option<String> {
    match (scalar, value) {
        (Scalar::Number, Value::Number(_))
        | (Scalar::String, Value::String(_))
        | (Scalar::Bool, Value::Bool(_))
        | (Scalar::Any, Value::Number(_) | Value::String(_) | Value::Bool(_)) => None,
        (Scalar::Number, other) => Some(format!(
            "expected numeric (int or float), got {}",
            go_type(other)
        )),
        (Scalar::String, other) => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            go_syntax(other)
        )),
        (Scalar::Bool, other) => Some(format!("expected boolean, got {}", go_value(other))),
        (Scalar::Any, other) => Some(format!("expected any scalar, got {}", go_value(other))),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as Go prints the wrapper around it by `%v`.
fn go_value(value: &Value) -> String {
    format!("&{{{}}}", plain(value))
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(plain).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let map: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{k}:{}", plain(v)))
                .collect();
            format!("map[{}]", map.join(" "))
        }
        other => other.to_string(),
    }
}

/// A value as Go prints it by `%#v`.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(s) => quote(s),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let map: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{}:{}", quote(k), go_syntax(v)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", map.join(", "))
        }
        other => other.to_string(),
    }
}
