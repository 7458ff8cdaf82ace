//! `FieldsV1`, the form in which sets of fields stand in `metadata.managedFields`.

use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::Set;

/// A text or object is no `FieldsV1`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseFieldsError {
    /// A key is too short to have a type.
    #[error("key must be 2 characters long:")]
    Short,
    /// A key has no colon behind its type.
    #[error("missing colon: {0}")]
    Colon(String),
    /// What stands behind the type is not what the type wants.
    #[error("invalid path element {0}")]
    Element(String),
    /// Something else stands where an object should.
    #[error("expected a map")]
    Shape,
}

impl Set {
    /// The set in the form of `fieldsV1`.
    pub fn to_fields_v1(&self) -> Value {
        let mut out = Map::new();
        for (step, child) in &self.children {
            let Value::Object(mut below) = child.to_fields_v1() else {
                continue;
            };
            if self.members.contains(step) && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            out.insert(format(step), Value::Object(below));
        }
        for step in &self.members {
            out.entry(format(step))
                .or_insert_with(|| Value::Object(Map::new()));
        }
        Value::Object(out)
    }

    /// Reads a set from the form of `fieldsV1`. Steps of types that are not known are left out.
    ///
    /// # Errors
    /// When it has another form.
    pub fn from_fields_v1(fields: &Value) -> Result<Set, ParseFieldsError> {
        read(fields).map(|(set, _)| set.unwrap_or_default())
    }
}

/// What stands below a step, if anything, and whether the step itself is a member.
fn read(fields: &Value) -> Result<(Option<Set>, bool), ParseFieldsError> {
    let entries = match fields {
        Value::Object(entries) => entries,
        Value::Null => return Ok((None, true)),
        _ => return Err(ParseFieldsError::Shape),
    };
    let mut set: Option<Set> = None;
    let mut is_member = false;
    for (key, below) in entries {
        if key == "." {
            is_member = true;
            continue;
        }
        let Some(step) = parse(key)? else {
            continue;
        };
        let (below, child_is_member) = read(below)?;
        let set = set.get_or_insert_default();
        if let Some(below) = below {
            set.children.insert(step.clone(), below);
        }
        if child_is_member {
            set.members.insert(step);
        }
    }
    let leaf = set.is_none();
    Ok((set, is_member || leaf))
}

/// Reads one key; none for types that are not known.
fn parse(key: &str) -> Result<Option<PathElement>, ParseFieldsError> {
    if key.len() < 2 {
        return Err(ParseFieldsError::Short);
    }
    if key.as_bytes()[1] != b':' {
        return Err(ParseFieldsError::Colon(key.to_owned()));
    }
    let error = || ParseFieldsError::Element(key.to_owned());
    let text = &key[2..];
    Ok(Some(match key.as_bytes()[0] {
        b'f' => PathElement::Field(text.to_owned()),
        b'v' => PathElement::Value(serde_json::from_str(text).map_err(|_| error())?),
        b'k' => {
            let fields: Map<String, Value> = serde_json::from_str(text).map_err(|_| error())?;
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            PathElement::Key(fields)
        }
        b'i' => PathElement::Index(text.parse().map_err(|_| error())?),
        _ => return Ok(None),
    }))
}

fn format(step: &PathElement) -> String {
    match step {
        PathElement::Field(name) => format!("f:{name}"),
        PathElement::Key(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}:{}", Value::from(&**name), escaped(value)))
                .collect();
            format!("k:{{{}}}", fields.join(","))
        }
        PathElement::Value(value) => format!("v:{}", escaped(value)),
        PathElement::Index(i) => format!("i:{i}"),
    }
}

/// JSON text in which, as Go writes it, nothing could be taken for markup.
pub(super) fn escaped(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    // These characters stand only inside of texts.
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}
