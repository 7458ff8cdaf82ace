//! Simple paths into objects (`.spec.color`): selectable fields and the scale subresource.

use serde_json::{Map, Value};

use super::{Kind, Node};

/// A path of field names from the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimplePath(Box<[Box<str>]>);

impl SimplePath {
    /// Reads `.a.b`; also names in brackets (`.a['b.c']`). None for other paths.
    pub fn parse(text: &str) -> Option<Self> {
        let mut names: Vec<Box<str>> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(quoted) = rest.strip_prefix("['") {
                let (name, after) = quoted.split_once("']")?;
                names.push(name.into());
                rest = after;
            } else {
                let after = rest.strip_prefix('.')?;
                let end = after.find(['.', '[']).unwrap_or(after.len());
                if end == 0 {
                    return None;
                }
                names.push(after[..end].into());
                rest = &after[end..];
            }
        }
        (!names.is_empty()).then(|| Self(names.into()))
    }

    /// Reads `.a.b` as the scale subresource does: what stands between the dots is a name, whatever it is.
    pub fn dotted(text: &str) -> Option<Self> {
        let names = text.strip_prefix('.').unwrap_or(text).split('.');
        (!text.is_empty()).then(|| Self(names.map(Into::into).collect()))
    }

    /// The field names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    /// The first field name.
    pub fn root(&self) -> &str {
        self.0.first().map_or("", |name| name)
    }

    /// The value at the path.
    pub fn get<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.names().try_fold(value, |value, name| value.get(name))
    }

    /// As [`SimplePath::get`]. The error is a value on the way that is no object, and how many names lead to where it was
    /// looked into.
    ///
    /// # Errors
    /// When a value on the way is neither an object nor null.
    pub fn find<'a>(&self, value: &'a Value) -> Result<Option<&'a Value>, (usize, &'a Value)> {
        let mut at = value;
        for (i, name) in self.names().enumerate() {
            at = match at {
                Value::Object(map) => match map.get(name) {
                    Some(next) => next,
                    None => return Ok(None),
                },
                Value::Null => return Ok(None),
                other => return Err((i + 1, other)),
            };
        }
        Ok(Some(at))
    }

    /// Writes a value at the path, with the objects that lead there. False when something that is
    /// no object stands in the way.
    pub fn set(&self, value: &mut Value, new: Value) -> bool {
        let Some((last, parents)) = self.0.split_last() else {
            return false;
        };
        let mut at = value;
        for name in parents {
            let Some(map) = at.as_object_mut() else {
                return false;
            };
            at = map
                .entry(name.to_string())
                .or_insert_with(|| Value::Object(Map::new()));
        }
        match at.as_object_mut() {
            Some(map) => {
                map.insert(last.to_string(), new);
                true
            }
            None => false,
        }
    }

    /// Whether the path is declared by a schema, and the schema at its end.
    ///
    /// # Errors
    /// Why it is not.
    pub fn resolve<'n>(&self, node: &'n Node) -> Result<&'n Node, String> {
        let mut at = node;
        for name in self.names() {
            at = match at.entry(name) {
                Some(next) => next,
                None => return Err(format!("does not refer to a valid field: {name}")),
            };
        }
        Ok(at)
    }
}

impl std::fmt::Display for SimplePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for name in self.names() {
            write!(f, ".{name}")?;
        }
        Ok(())
    }
}

/// A value as field selectors compare it; empty when it is missing.
pub fn selectable(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Whether objects can be selected by values of a schema.
pub fn is_selectable(node: &Node) -> bool {
    matches!(
        node.kind,
        Some(Kind::String | Kind::Boolean | Kind::Integer)
    )
}
