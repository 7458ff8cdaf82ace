//! JSON patch (RFC 6902), with the limits and the sentences of the library that Kubernetes uses.

use serde_json::{Map, Value};

use super::PatchError;
use crate::decode::{Encoding, parse};

/// Most operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Most bytes that the `copy` operations of one patch may add, and most that `add` and `replace`
/// may make of it.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// A parsed JSON patch.
#[derive(Debug, Clone)]
pub struct JsonPatch {
    operations: Vec<Operation>,
}

#[derive(Debug, Clone)]
struct Operation {
    verb: Verb,
    path: String,
}

#[derive(Debug, Clone)]
enum Verb {
    Add(Value),
    Remove,
    Replace(Value),
    Move(String),
    Copy(String),
    Test(Value),
}

impl JsonPatch {
    /// Parses a patch.
    ///
    /// # Errors
    /// When it is no list of operations, or has more than [`MAX_OPERATIONS`].
    pub fn parse(body: &[u8]) -> Result<Self, PatchError> {
        let malformed = |text: String| PatchError::Malformed(text);
        let value = parse(body, Encoding::Json).map_err(|e| {
            let text = e.to_string();
            let text = text
                .rsplit_once("json parse error: ")
                .map_or(&*text, |t| t.1);
            malformed(text.to_owned())
        })?;
        let Value::Array(list) = value else {
            return Err(malformed(format!(
                "json: cannot unmarshal {} into Go value of type jsonpatch.Patch",
                go_word(&value)
            )));
        };
        if list.len() > MAX_OPERATIONS {
            return Err(PatchError::TooLarge(format!(
                "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                list.len()
            )));
        }
        let operations = list.into_iter().map(operation).collect::<Result<_, _>>()?;
        Ok(JsonPatch { operations })
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Applies the patch; all of it or nothing.
    ///
    /// # Errors
    /// When a path is missing, a test fails or copies add too much.
    pub fn apply(&self, document: &Value) -> Result<Value, PatchError> {
        let mut document = document.clone();
        let mut copied = 0;
        for operation in &self.operations {
            operation.apply(&mut document, &mut copied)?;
        }
        Ok(document)
    }
}

fn operation(value: Value) -> Result<Operation, PatchError> {
    let malformed = |text: &str| PatchError::Malformed(text.to_owned());
    let Value::Object(mut fields) = value else {
        return Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type jsonpatch.Operation",
            go_word(&value)
        )));
    };
    let text = |fields: &Map<String, Value>, key: &str| {
        fields.get(key).and_then(Value::as_str).map(str::to_owned)
    };
    let path = text(&fields, "path").ok_or_else(|| malformed("missing path in patch operation"))?;
    if !path.is_empty() && !path.starts_with('/') {
        return Err(malformed("path of a patch operation must start with '/'"));
    }
    let from = || text(&fields, "from").ok_or_else(|| malformed("missing from in patch operation"));
    let verb = match text(&fields, "op").unwrap_or_default().as_str() {
        "remove" => Verb::Remove,
        "move" => Verb::Move(from()?),
        "copy" => Verb::Copy(from()?),
        "test" => Verb::Test(fields.remove("value").unwrap_or(Value::Null)),
        op @ ("add" | "replace") => {
            let add = op == "add";
            let value = fields
                .remove("value")
                .ok_or_else(|| malformed("missing value in patch operation"))?;
            if add {
                Verb::Add(value)
            } else {
                Verb::Replace(value)
            }
        }
        other => {
            return Err(PatchError::Malformed(format!("Unexpected kind: {other}")));
        }
    };
    Ok(Operation { verb, path })
}

impl Operation {
    fn apply(&self, document: &mut Value, copied: &mut usize) -> Result<(), PatchError> {
        let path = &self.path;
        match &self.verb {
            Verb::Add(value) => add(document, path, value.clone(), "add"),
            Verb::Remove => remove(document, path, "remove").map(drop),
            Verb::Replace(value) => {
                let slot = find_mut(document, path).ok_or_else(|| missing("replace", path))?;
                *slot = value.clone();
                Ok(())
            }
            Verb::Move(from) => {
                if path
                    .strip_prefix(from.as_str())
                    .is_some_and(|r| r.starts_with('/'))
                {
                    return Err(missing("move", path));
                }
                let value = remove(document, from, "move")?;
                add(document, path, value, "move")
            }
            Verb::Copy(from) => {
                let value = find(document, from).ok_or_else(|| missing("copy", from))?;
                let value = value.clone();
                *copied += size(&value);
                if *copied > MAX_COPIED_BYTES {
                    return Err(PatchError::Unprocessable(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                    )));
                }
                add(document, path, value, "copy")
            }
            Verb::Test(expected) => {
                let found = find(document, path);
                let equal = found.map_or(expected.is_null(), |found| same(found, expected));
                if equal {
                    Ok(())
                } else {
                    Err(PatchError::Unprocessable(format!(
                        "testing value {path} failed: test failed"
                    )))
                }
            }
        }
    }
}

/// `doc is missing path` or `doc is missing key`, for which kubectl looks.
fn missing(verb: &str, path: &str) -> PatchError {
    let what = if verb == "replace" { "key" } else { "path" };
    PatchError::Unprocessable(format!(
        "{verb} operation does not apply: doc is missing {what}: {path}: missing value"
    ))
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

fn find<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = document;
    for token in path.split('/').skip(1) {
        at = match at {
            Value::Object(map) => map.get(&unescape(token))?,
            Value::Array(items) => items.get(index(token, items.len())?)?,
            _ => return None,
        };
    }
    Some(at)
}

fn find_mut<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let mut at = document;
    for token in path.split('/').skip(1) {
        at = match at {
            Value::Object(map) => map.get_mut(&unescape(token))?,
            Value::Array(items) => {
                let i = index(token, items.len())?;
                items.get_mut(i)?
            }
            _ => return None,
        };
    }
    Some(at)
}

/// An index below `len`; negative ones count from the end, as the original allows.
fn index(token: &str, len: usize) -> Option<usize> {
    let digits = token.strip_prefix('-').unwrap_or(token);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: usize = digits.parse().ok()?;
    if token.starts_with('-') {
        len.checked_sub(n).filter(|i| *i < len)
    } else {
        (n < len).then_some(n)
    }
}

fn add(document: &mut Value, path: &str, value: Value, verb: &str) -> Result<(), PatchError> {
    let Some((parent, token)) = path.rsplit_once('/') else {
        *document = value;
        return Ok(());
    };
    let error = || missing(verb, path);
    match find_mut(document, parent).ok_or_else(error)? {
        Value::Object(map) => {
            map.insert(unescape(token), value);
        }
        Value::Array(items) => {
            let at = match token {
                "-" => items.len(),
                // One past the end is a place to add at.
                _ => index(token, items.len() + 1).ok_or_else(|| {
                    PatchError::Unprocessable(format!(
                        "{verb} operation does not apply: doc is missing path: {path}: invalid index referenced"
                    ))
                })?,
            };
            items.insert(at, value);
        }
        _ => return Err(error()),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, verb: &str) -> Result<Value, PatchError> {
    let error = || missing(verb, path);
    let (parent, token) = path.rsplit_once('/').ok_or_else(error)?;
    match find_mut(document, parent).ok_or_else(error)? {
        Value::Object(map) => map.remove(&unescape(token)).ok_or_else(error),
        Value::Array(items) => {
            let at = index(token, items.len()).ok_or_else(error)?;
            Ok(items.remove(at))
        }
        _ => Err(error()),
    }
}

/// Equality by value: numbers compare as numbers.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}

/// Bytes of a value when written.
fn size(value: &Value) -> usize {
    serde_json::to_vec(value).map_or(0, |v| v.len())
}

fn go_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(document: &Value, patch: &Value) -> Result<Value, PatchError> {
        JsonPatch::parse(patch.to_string().as_bytes())?.apply(document)
    }

    #[test]
    fn operations() {
        let doc = json!({"a": {"b": [1, 2, 3]}, "c~/d": 1});
        for (patch, expected) in [
            (
                json!([{"op": "add", "path": "/a/b/1", "value": 9}]),
                json!({"a": {"b": [1, 9, 2, 3]}, "c~/d": 1}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/-", "value": 9}]),
                json!({"a": {"b": [1, 2, 3, 9]}, "c~/d": 1}),
            ),
            (
                json!([{"op": "remove", "path": "/a/b/-1"}, {"op": "remove", "path": "/c~0~1d"}]),
                json!({"a": {"b": [1, 2]}}),
            ),
            (
                json!([{"op": "replace", "path": "/a/b/0", "value": null}]),
                json!({"a": {"b": [null, 2, 3]}, "c~/d": 1}),
            ),
            (
                json!([{"op": "move", "from": "/a/b", "path": "/e"}]),
                json!({"a": {}, "e": [1, 2, 3], "c~/d": 1}),
            ),
            (
                json!([{"op": "copy", "from": "/a/b/0", "path": "/f"},
                       {"op": "test", "path": "/f", "value": 1.0},
                       {"op": "test", "path": "/gone", "value": null}]),
                json!({"a": {"b": [1, 2, 3]}, "c~/d": 1, "f": 1}),
            ),
            (json!([{"op": "add", "path": "", "value": {}}]), json!({})),
        ] {
            assert_eq!(apply(&doc, &patch).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn what_does_not_apply() {
        let doc = json!({"a": {"b": [1]}});
        for patch in [
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            json!([{"op": "add", "path": "/a/b/3", "value": 1}]),
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/x", "value": 1}]),
            json!([{"op": "move", "from": "/a", "path": "/a/c"}]),
            json!([{"op": "copy", "from": "/x", "path": "/y"}]),
            json!([{"op": "test", "path": "/a/b/0", "value": 2}]),
        ] {
            let error = apply(&doc, &patch).unwrap_err();
            assert!(matches!(error, PatchError::Unprocessable(_)), "{patch}");
            assert_eq!(error.status().code, 422);
        }
        let error = apply(&doc, &json!([{"op": "replace", "path": "/x", "value": 1}]));
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("doc is missing key")
        );
    }

    #[test]
    fn malformed() {
        for (patch, text) in [
            (
                "{}",
                "json: cannot unmarshal object into Go value of type jsonpatch.Patch",
            ),
            (
                "[{]",
                "invalid character ']' looking for beginning of object key string",
            ),
            (
                "[1]",
                "json: cannot unmarshal number into Go value of type jsonpatch.Operation",
            ),
            (
                "[{\"op\":\"jump\",\"path\":\"/a\"}]",
                "Unexpected kind: jump",
            ),
            (
                "[{\"op\":\"add\",\"path\":\"/a\"}]",
                "missing value in patch operation",
            ),
        ] {
            let error = JsonPatch::parse(patch.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), text);
            assert_eq!(error.status().code, 400);
        }
        let many = vec![json!({"op": "test", "path": "", "value": 1}); MAX_OPERATIONS + 1];
        let error = JsonPatch::parse(Value::from(many).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.status().code, 413);
    }

    #[test]
    fn copies_are_limited() {
        let doc = json!({"a": "x".repeat(1024 * 1024)});
        let copy = |to: &str| json!({"op": "copy", "from": "/a", "path": to});
        assert!(apply(&doc, &json!([copy("/b"), copy("/c")])).is_ok());
        let error = apply(&doc, &json!([copy("/b"), copy("/c"), copy("/d")])).unwrap_err();
        assert_eq!(error.status().code, 422);
    }
}
