//! JSON patch (RFC 6902), with the limits and the sentences of the library that Kubernetes uses.

use serde_json::{Map, Value};

use super::PatchError;
use crate::decode::{Encoding, parse, repeated_fields};
use crate::raw::{MAX_DEPTH, is_deeper};

/// Most operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Most bytes that the `copy` operations of one patch may add, and most that `add` and `replace`
/// may make of it.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// Most elements of arrays that the operations of one patch may move aside: enough for any patch of arrays of some
/// thousands. Without it a patch of [`MAX_OPERATIONS`] insertions before a million elements took minutes.
pub const MAX_SHIFTED: usize = 50_000_000;

/// A parsed JSON patch.
#[derive(Debug, Clone)]
pub struct JsonPatch {
    /// Or why one cannot be done. The original reads an operation when it is its turn: what comes before may fail first.
    operations: Vec<Result<Operation, String>>,
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

/// What strict field validation says of a JSON patch: members that its operations do not have, and those said twice.
pub fn json_patch_faults(body: &[u8]) -> Vec<String> {
    const MEMBERS: [&str; 4] = ["op", "path", "from", "value"];
    let mut faults = repeated_fields(body);
    let operations: Vec<Map<String, Value>> = serde_json::from_slice(body).unwrap_or_default();
    for (i, operation) in operations.iter().enumerate() {
        let unknown = operation
            .keys()
            .filter(|key| !MEMBERS.contains(&key.as_str()));
        faults.extend(unknown.map(|key| format!("unknown field \"[{i}].{key}\"")));
    }
    faults
        .iter()
        .map(|fault| format!("json patch {fault}"))
        .collect()
}

impl JsonPatch {
    /// Parses a patch.
    ///
    /// # Errors
    /// When it is no list of operations, or has more than [`MAX_OPERATIONS`].
    pub fn parse(body: &[u8]) -> Result<Self, PatchError> {
        let malformed = |text: String| PatchError::Malformed(text);
        let value = parse(body, Encoding::Json).map_err(|e| {
            PatchError::of_parser(e, |text| {
                let text = text.rsplit_once("json parse error: ").map_or(text, |t| t.1);
                text.to_owned()
            })
        })?;
        let list = match value {
            Value::Array(list) => list,
            // A list of Go's without anything in it: what Knative's webhooks answer when they have nothing to change.
            Value::Null => Vec::new(),
            value => {
                return Err(malformed(format!(
                    "error decoding patch: json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
                    go_word(&value)
                )));
            }
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
    /// When a path is missing, a test fails, copies add too much or insertions and removals move too much.
    pub fn apply(&self, document: &Value) -> Result<Value, PatchError> {
        let mut document = document.clone();
        let mut spent = Spent::default();
        for operation in &self.operations {
            let operation = operation.as_ref();
            let operation = operation.map_err(|why| PatchError::Unprocessable(why.clone()))?;
            operation.apply(&mut document, &mut spent)?;
        }
        Ok(document)
    }
}

/// What the operations so far have cost.
#[derive(Debug, Default)]
struct Spent {
    /// Bytes of copies.
    copied: usize,
    /// Elements moved aside.
    shifted: usize,
    /// Elements of values that were put somewhere.
    nested: usize,
}

impl Spent {
    /// Refuses a value that would stand deeper in the document than a body may be: values within values, put one into the
    /// other by thousands of operations, would make a document that no stack is deep enough for.
    fn nest(&mut self, path: &str, value: &Value) -> Result<(), String> {
        let above = path.matches('/').count();
        let left = MAX_DEPTH.checked_sub(above);
        if left.is_none_or(|left| is_deeper(value, left, &mut self.nested)) {
            return Err("exceeded max depth".to_owned());
        }
        if self.nested > MAX_SHIFTED {
            return Err(format!(
                "the values that the operations of the patch move have more than {MAX_SHIFTED} elements"
            ));
        }
        Ok(())
    }

    /// Counts the elements from `at` on.
    fn shift(&mut self, items: &[Value], at: usize) -> Result<(), String> {
        self.shifted += items.len().saturating_sub(at);
        if self.shifted > MAX_SHIFTED {
            return Err(format!(
                "the operations of the patch move more than {MAX_SHIFTED} elements of arrays"
            ));
        }
        Ok(())
    }
}

/// One operation of a patch, or why it is none.
///
/// # Errors
/// When it is neither an object nor null, which is an object without anything in it.
fn operation(value: Value) -> Result<Result<Operation, String>, PatchError> {
    match value {
        Value::Object(fields) => Ok(read(fields)),
        Value::Null => Ok(read(Map::new())),
        value => Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type jsonpatch.Operation",
            go_word(&value)
        ))),
    }
}

fn read(mut fields: Map<String, Value>) -> Result<Operation, String> {
    let value = fields.remove("value").unwrap_or(Value::Null);
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let op = text("op").unwrap_or_else(|| "unknown".to_owned());
    let undecoded =
        |what: &str, why: &str| format!("{op} operation failed to decode {what}: {why}");
    let path = || {
        let why = match op.as_str() {
            "replace" | "test" => "operation missing path field: missing value",
            _ => "missing value",
        };
        text("path").ok_or_else(|| undecoded("path", why))
    };
    let from = || {
        let why = "operation, missing from field: missing value";
        text("from").ok_or_else(|| undecoded("from", why))
    };
    let verb = match op.as_str() {
        "remove" => Verb::Remove,
        "move" => Verb::Move(from()?),
        "copy" => Verb::Copy(from()?),
        "add" => Verb::Add(value),
        "replace" => Verb::Replace(value),
        "test" => Verb::Test(value),
        other => return Err(format!("Unexpected kind: {other}")),
    };
    let path = path()?;
    Ok(Operation { verb, path })
}

impl Operation {
    fn apply(&self, document: &mut Value, spent: &mut Spent) -> Result<(), PatchError> {
        let path = &self.path;
        match &self.verb {
            Verb::Add(value) => {
                let place = place(document, path).ok_or_else(|| missing("add", path))?;
                let added = spent.nest(path, value);
                let added = added.and_then(|()| add(place, value.clone(), spent));
                added.map_err(|why| failed("add for path", path, &why))
            }
            Verb::Remove => {
                let place = place(document, path).ok_or_else(|| missing("remove", path))?;
                let removed =
                    remove(place, spent).map_err(|why| failed("remove for path", path, &why));
                removed.map(drop)
            }
            Verb::Replace(value) => {
                let nested = spent.nest(path, value);
                nested.map_err(|why| failed("replace for path", path, &why))?;
                replace(document, path, value)
            }
            Verb::Move(from) => {
                let source = place(document, from).ok_or_else(|| missing_from("move", from))?;
                let key = unescape(from.rsplit('/').next().unwrap_or_default());
                let value =
                    remove(source, spent).map_err(|why| failed("move for path", &key, &why))?;
                let target = place(document, path).ok_or_else(|| missing_to("move", path))?;
                let moved = spent.nest(path, &value);
                let moved = moved.and_then(|()| add(target, value, spent));
                moved.map_err(|why| failed("move for path", path, &why))
            }
            Verb::Copy(from) => {
                let source = place(document, from).ok_or_else(|| missing_from("copy", from))?;
                // As the original: what an object does not have is copied as null.
                let value = get(&source).map_err(|why| failed("copy for from", from, &why))?;
                let value = value.cloned().unwrap_or(Value::Null);
                spent.copied += size(&value);
                let copied = spent.copied;
                if copied > MAX_COPIED_BYTES {
                    return Err(PatchError::Unprocessable(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                    )));
                }
                let target = place(document, path).ok_or_else(|| missing_to("copy", path))?;
                let added = spent.nest(path, &value);
                let added = added.and_then(|()| add(target, value, spent));
                added.map_err(|why| {
                    PatchError::Unprocessable(format!(
                        "error while adding value during copy: {why}"
                    ))
                })
            }
            Verb::Test(expected) => test(document, path, expected),
        }
    }
}

/// As the original, and other than RFC 6902: what an object does not have is set.
fn replace(document: &mut Value, path: &str, value: &Value) -> Result<(), PatchError> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            let text = "replace operation value must be object or array";
            return Err(PatchError::Unprocessable(text.to_owned()));
        }
        *document = value.clone();
        return Ok(());
    }
    match place(document, path).ok_or_else(|| missing("replace", path))? {
        PatchTarget::Member(map, key) => drop(map.insert(key, value.clone())),
        PatchTarget::Item(items, token) => {
            let at = index(&token, items.len()).map_err(|_| {
                PatchError::Unprocessable(format!(
                    "replace operation does not apply: doc is missing key: {path}: missing value"
                ))
            })?;
            items[at] = value.clone();
        }
    }
    Ok(())
}

/// What an object does not have is null.
fn test(document: &mut Value, path: &str, expected: &Value) -> Result<(), PatchError> {
    let found = if path.is_empty() {
        Some(&*document)
    } else {
        let place = place(document, path).ok_or_else(|| {
            PatchError::Unprocessable(format!(
                "test operation does not apply: is missing path: {path}: missing value"
            ))
        })?;
        match place {
            PatchTarget::Member(map, key) => map.get(&key),
            PatchTarget::Item(items, token) => {
                let at = index(&token, items.len());
                Some(&items[at.map_err(|why| failed("test for path", path, &why))?])
            }
        }
    };
    if found.map_or(expected.is_null(), |found| same(found, expected)) {
        return Ok(());
    }
    Err(PatchError::Unprocessable(format!(
        "testing value {path} failed: test failed"
    )))
}

/// For this text kubectl looks.
fn missing(verb: &str, path: &str) -> PatchError {
    let shown = match verb {
        "replace" => path.to_owned(),
        _ => format!("{path:?}"),
    };
    PatchError::Unprocessable(format!(
        "{verb} operation does not apply: doc is missing path: {shown}: missing value"
    ))
}

fn missing_from(verb: &str, path: &str) -> PatchError {
    PatchError::Unprocessable(format!(
        "{verb} operation does not apply: doc is missing from path: {path}: missing value"
    ))
}

fn missing_to(verb: &str, path: &str) -> PatchError {
    PatchError::Unprocessable(format!(
        "{verb} operation does not apply: doc is missing destination path: {path}: missing value"
    ))
}

fn failed(what: &str, path: &str, why: &str) -> PatchError {
    PatchError::Unprocessable(format!("error in {what}: '{path}': {why}"))
}

fn unescape(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// Where the last part of a path leads, which need not be there.
enum PatchTarget<'a> {
    Member(&'a mut Map<String, Value>, String),
    Item(&'a mut Vec<Value>, String),
}

/// The place that a path names; nothing for the whole document, and where what it is to be in is missing.
fn place<'a>(document: &'a mut Value, path: &str) -> Option<PatchTarget<'a>> {
    let (parent, token) = path.rsplit_once('/')?;
    let mut at = document;
    for token in parent.split('/').skip(1) {
        at = match at {
            Value::Object(map) => map.get_mut(&unescape(token))?,
            Value::Array(items) => {
                let i = index(token, items.len()).ok()?;
                items.get_mut(i)?
            }
            _ => return None,
        };
    }
    match at {
        Value::Object(map) => Some(PatchTarget::Member(map, unescape(token))),
        Value::Array(items) => Some(PatchTarget::Item(items, token.to_owned())),
        _ => None,
    }
}

/// An index below `len`; negative ones count from the end.
fn index(token: &str, len: usize) -> Result<usize, String> {
    let number: i64 = token
        .parse()
        .map_err(|_| format!("strconv.Atoi: parsing {token:?}: invalid syntax"))?;
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let at = if number < 0 { number + len } else { number };
    usize::try_from(at)
        .ok()
        .filter(|_| at < len)
        .ok_or_else(|| {
            format!("Unable to access invalid index: {number}: invalid index referenced")
        })
}

fn get<'a>(place: &'a PatchTarget<'_>) -> Result<Option<&'a Value>, String> {
    match place {
        PatchTarget::Member(map, key) => Ok(map.get(key)),
        PatchTarget::Item(items, token) => Ok(items.get(index(token, items.len())?)),
    }
}

fn add(place: PatchTarget<'_>, value: Value, spent: &mut Spent) -> Result<(), String> {
    match place {
        PatchTarget::Member(map, key) => drop(map.insert(key, value)),
        PatchTarget::Item(items, token) if token == "-" => items.push(value),
        // One past the end is a place to add at.
        PatchTarget::Item(items, token) => {
            let at = index(&token, items.len() + 1).map_err(|why| match token.parse::<i64>() {
                Ok(_) => why,
                Err(_) => format!("value was not a proper array index: '{token}': {why}"),
            })?;
            spent.shift(items, at)?;
            items.insert(at, value);
        }
    }
    Ok(())
}

fn remove(place: PatchTarget<'_>, spent: &mut Spent) -> Result<Value, String> {
    match place {
        PatchTarget::Member(map, key) => map
            .remove(&key)
            .ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value")),
        PatchTarget::Item(items, token) => {
            let at = index(&token, items.len())?;
            spent.shift(items, at)?;
            Ok(items.remove(at))
        }
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
    fn strict_validation_finds_what_operations_do_not_have() {
        let body =
            br#"[{"op":"add","path":"/a","value":1,"value":2},{"op":"remove","path":"/b","x":1}]"#;
        assert_eq!(
            json_patch_faults(body),
            [
                r#"json patch duplicate field "[0].value""#,
                r#"json patch unknown field "[1].x""#,
            ]
        );
        assert!(json_patch_faults(br#"[{"op":"copy","from":"/a","path":"/b"}]"#).is_empty());
        assert!(json_patch_faults(b"null").is_empty());
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
            (
                json!([{"op": "replace", "path": "", "value": {}}]),
                json!({}),
            ),
            // other than RFC 6902, as the original
            (
                json!([{"op": "replace", "path": "/g", "value": {"h": 1}}, {"op": "copy", "from": "/gone", "path": "/i"}]),
                json!({"a": {"b": [1, 2, 3]}, "c~/d": 1, "g": {"h": 1}, "i": null}),
            ),
            (
                json!([{"op": "add", "path": "/a/b/-1", "value": 9}, {"op": "add", "path": "/e"}]),
                json!({"a": {"b": [1, 2, 3, 9]}, "c~/d": 1, "e": null}),
            ),
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
            json!([{"op": "replace", "path": "/x/y", "value": 1}]),
            json!([{"op": "replace", "path": "/a/b/1", "value": 1}]),
            json!([{"op": "replace", "path": "", "value": 1}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "move", "from": "/a", "path": "/a/c"}]),
            json!([{"op": "move", "from": "/x", "path": "/y"}]),
            json!([{"op": "copy", "from": "/x/z", "path": "/y"}]),
            json!([{"op": "copy", "from": "", "path": "/y"}]),
            json!([{"op": "test", "path": "/x/y", "value": null}]),
            json!([{"op": "test", "path": "/a/b/0", "value": 2}]),
        ] {
            let error = apply(&doc, &patch).unwrap_err();
            assert!(matches!(error, PatchError::Unprocessable(_)), "{patch}");
            assert_eq!(error.status().code, 422);
        }
        for (patch, text) in [
            (
                json!([{"op": "replace", "path": "/a/b/1", "value": 1}]),
                "replace operation does not apply: doc is missing key: /a/b/1: missing value",
            ),
            (
                json!([{"op": "remove", "path": "/x"}]),
                "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value",
            ),
            (
                json!([{"op": "add", "path": "/x/y", "value": 1}]),
                "add operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
        ] {
            assert_eq!(apply(&doc, &patch).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn null_is_a_patch_without_operations() {
        assert!(JsonPatch::parse(b" null\n").unwrap().is_empty());
        let one = json!({"a": 1});
        assert_eq!(JsonPatch::parse(b"null").unwrap().apply(&one).unwrap(), one);
    }

    #[test]
    fn malformed() {
        for (patch, code, text) in [
            (
                "{}",
                400,
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                "[{]",
                400,
                "invalid character ']' looking for beginning of object key string",
            ),
            (
                "[1]",
                400,
                "json: cannot unmarshal number into Go value of type jsonpatch.Operation",
            ),
        ] {
            let error = JsonPatch::parse(patch.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), text);
            assert_eq!(error.status().code, code, "{patch}");
        }
        let many = vec![json!({"op": "test", "path": "", "value": 1}); MAX_OPERATIONS + 1];
        let error = JsonPatch::parse(Value::from(many).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.status().code, 413);
    }

    /// As the original ends each, in the order in which it looks.
    #[test]
    fn what_is_no_operation() {
        let doc = json!({"a": {"b": [1]}});
        let path = "operation failed to decode path";
        let from = "operation failed to decode from: operation, missing from field: missing value";
        for (patch, text) in [
            (json!([null]), "Unexpected kind: unknown"),
            (json!([{}]), "Unexpected kind: unknown"),
            (json!([{"op": 1, "path": "/a"}]), "Unexpected kind: unknown"),
            (json!([{"op": "jump"}]), "Unexpected kind: jump"),
            (
                json!([{"op": "add", "path": "/z", "value": 1}, null]),
                "Unexpected kind: unknown",
            ),
            (
                json!([{"op": "test", "path": "/x", "value": 1}, null]),
                "testing value /x failed: test failed",
            ),
            (
                json!([{"op": "add", "path": null}]),
                &format!("add {path}: missing value"),
            ),
            (
                json!([{"op": "remove", "path": 3}]),
                &format!("remove {path}: missing value"),
            ),
            (
                json!([{"op": "replace"}]),
                &format!("replace {path}: operation missing path field: missing value"),
            ),
            (
                json!([{"op": "test"}]),
                &format!("test {path}: operation missing path field: missing value"),
            ),
            (json!([{"op": "move"}]), &format!("move {from}")),
            (
                json!([{"op": "copy", "from": null}]),
                &format!("copy {from}"),
            ),
            (
                json!([{"op": "add", "path": "a", "value": 1}]),
                "add operation does not apply: doc is missing path: \"a\": missing value",
            ),
            (
                json!([{"op": "copy", "from": "a", "path": "/b"}]),
                "copy operation does not apply: doc is missing from path: a: missing value",
            ),
        ] {
            let error = apply(&doc, &patch).unwrap_err();
            assert_eq!(error.to_string(), text, "{patch}");
            assert_eq!(error.status().code, 422, "{patch}");
        }
    }

    /// Made by tests/peers/go/jsonpatch; the texts are clients' to read, too.
    #[test]
    fn random_patches_end_as_the_original_ends_them() {
        let cases = include_str!("../../testdata/json-patch.jsonl");
        for line in cases.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let ended = match apply(&case["doc"], &case["patch"]) {
                Ok(result) => ("result", result),
                Err(error) => ("error", Value::from(error.to_string())),
            };
            assert_eq!(Some(&ended.1), case.get(ended.0), "{line}");
        }
    }

    #[test]
    fn what_is_moved_aside_is_limited() {
        let doc = json!({"a": vec![0; 600_000], "b": [1, 2]});
        let attacks = [
            json!({"op": "add", "path": "/a/0", "value": 1}),
            json!({"op": "remove", "path": "/a/0"}),
            json!({"op": "move", "from": "/a/0", "path": "/a/1"}),
            json!({"op": "copy", "from": "/b/0", "path": "/a/0"}),
        ];
        for operation in attacks {
            let error = apply(&doc, &Value::from(vec![operation; 100])).unwrap_err();
            assert!(error.to_string().contains("elements of arrays"), "{error}");
            assert_eq!(error.status().code, 422);
        }
        // at the end nothing moves, and of short arrays every patch may move all
        let append = json!({"op": "add", "path": "/a/-", "value": 1});
        assert!(apply(&doc, &Value::from(vec![append; MAX_OPERATIONS])).is_ok());
        let first = json!({"op": "add", "path": "/b/0", "value": 1});
        assert!(apply(&json!({"b": []}), &Value::from(vec![first; MAX_OPERATIONS])).is_ok());
    }

    /// Each of these ended the process: what they made was deeper than any stack.
    #[test]
    fn what_is_nested_is_limited() {
        let nested = (0..100).fold(json!({}), |below, _| json!({"a": below}));
        let inner = |times: usize| "/a".repeat(times * 100);
        let adds = |verb: &str| {
            let one = |n| json!({"op": verb, "path": format!("{}/a", inner(n)), "value": nested});
            (0..120).map(one).collect::<Vec<_>>()
        };
        let add = json!({"op": "add", "path": "/b", "value": nested});
        let moves = [
            json!({"op": "move", "from": "/a", "path": format!("/b{}/a", inner(1))}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
            add.clone(),
        ];
        let moves: Vec<Value> = moves.iter().cycle().take(3000).cloned().collect();
        let copy = json!({"op": "copy", "from": "/a", "path": format!("/b{}/a", inner(1))});
        for patch in [
            adds("add"),
            adds("replace"),
            [vec![add.clone()], moves].concat(),
            vec![add, copy],
        ] {
            let error = apply(&json!({"a": nested}), &Value::from(patch)).unwrap_err();
            assert!(error.to_string().contains("exceeded max depth"), "{error}");
            assert_eq!(error.status().code, 422);
        }
        // as deep as a body may be, and no deeper
        for (levels, fits) in [(18, true), (19, true), (20, false)] {
            let value = (1..levels).fold(json!({}), |below, _| json!([below]));
            let path = format!("{}/a", inner(1));
            let patch = json!([{"op": "add", "path": path, "value": value}]);
            let done = apply(&json!({"a": nested}), &patch);
            assert_eq!(done.is_ok(), fits, "{levels}");
        }
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
