//! Writing `metadata.resourceVersion` into the JSON text of an object.
//!
//! The store's bytes hold no resourceVersion, for it is known only after they are
//! written. Parsing and printing the object to add it would cost more than all the
//! rest of a list; this finds the place in one pass over the text.

use std::ops::Range;

const FIELD: &str = "resourceVersion";

/// What stands before it in metadata of built-in kinds.
const BEFORE: [&[u8]; 5] = [
    b"\"name\"",
    b"\"generateName\"",
    b"\"namespace\"",
    b"\"selfLink\"",
    b"\"uid\"",
];

/// The object with its `metadata.resourceVersion` set; other bytes are unchanged. Built-in kinds have their fields as
/// they are declared, beginning with `kind`: it goes after `uid`. In an object whose keys are sorted they stay sorted.
/// `None` if the text is not a JSON object or its metadata is not one.
pub(crate) fn with_resource_version(json: &[u8], revision: u64) -> Option<Vec<u8>> {
    let edit = edit(json, revision)?;
    let mut text = Vec::with_capacity(json.len() + edit.text.len());
    edit.write(json, &mut text);
    Some(text)
}

/// Appends the JSON text of an object with its `metadata.resourceVersion` set; the text as it is if it is no object.
pub fn append_with_resource_version(json: &[u8], revision: u64, to: &mut Vec<u8>) {
    match edit(json, revision) {
        Some(edit) => edit.write(json, to),
        None => to.extend_from_slice(json),
    }
}

/// Text that goes in the place of other text.
struct Edit {
    range: Range<usize>,
    text: String,
}

impl Edit {
    fn write(&self, json: &[u8], to: &mut Vec<u8>) {
        to.extend_from_slice(&json[..self.range.start]);
        to.extend_from_slice(self.text.as_bytes());
        to.extend_from_slice(&json[self.range.end..]);
    }
}

fn edit(json: &[u8], revision: u64) -> Option<Edit> {
    let mut outer = Fields::of(json, 0)?;
    let mut declared = None;
    while let Some(field) = outer.next_field()? {
        let key = &json[field.key.clone()];
        let declared = *declared.get_or_insert(key == b"\"kind\"");
        if key == b"\"metadata\"" {
            return in_metadata(json, field.value.start, revision, declared);
        }
    }
    let empty = json
        .get(outer.start..outer.position)?
        .iter()
        .all(u8::is_ascii_whitespace);
    let comma = if empty { "" } else { "," };
    let text = format!("\"metadata\":{{\"{FIELD}\":\"{revision}\"}}{comma}");
    let range = outer.start..outer.start;
    Some(Edit { range, text })
}

/// The text of the field `metadata` of an object, where it has one.
pub fn metadata_of(json: &[u8]) -> Option<&[u8]> {
    json.get(metadata_range(json)?)
}

/// Where the text of the field `metadata` of an object lies, where it has one.
pub fn metadata_range(json: &[u8]) -> Option<Range<usize>> {
    let mut fields = Fields::of(json, 0)?;
    while let Some(field) = fields.next_field()? {
        if &json[field.key] == b"\"metadata\"" {
            return Some(field.value);
        }
    }
    None
}

/// Writes into `to` an object of a built-in kind without the `managedFields` of its metadata; they are often the most of it, and
/// are declared last there. `metadata` is where its text lies ([`metadata_range`]).
pub fn copy_without_owners(json: &[u8], metadata: Range<usize>, to: &mut Vec<u8>) {
    // Quotes in texts have a backslash before them, and no list in maps of the metadata has a name: this is the field.
    const FIELD: &[u8] = b",\"managedFields\":[";
    to.clear();
    let fields = &json[metadata.clone()];
    let cut = fields.windows(FIELD.len()).position(|text| text == FIELD);
    match cut {
        Some(cut) => {
            to.extend_from_slice(&json[..metadata.start + cut]);
            to.push(b'}');
            to.extend_from_slice(&json[metadata.end..]);
        }
        None => to.extend_from_slice(json),
    }
}

/// Takes `metadata.resourceVersion` out of the JSON text of an object; other bytes are unchanged.
pub fn remove_resource_version(json: &mut String) {
    if let Some(range) = resource_version_field(json.as_bytes()) {
        json.replace_range(range, "");
    }
}

/// Where the field lies, with the comma that goes with it.
fn resource_version_field(json: &[u8]) -> Option<Range<usize>> {
    let mut outer = Fields::of(json, 0)?;
    let metadata = loop {
        let field = outer.next_field()??;
        if &json[field.key] == b"\"metadata\"" {
            break field.value.start;
        }
    };
    let quoted = format!("\"{FIELD}\"");
    let mut fields = Fields::of(json, metadata)?;
    let mut before = None;
    loop {
        let field = fields.next_field()??;
        if &json[field.key.clone()] == quoted.as_bytes() {
            let range = match (before, fields.next_field()?) {
                (Some(end), _) => end..field.value.end,
                (None, Some(next)) => field.key.start..next.key.start,
                (None, None) => field.key.start..field.value.end,
            };
            return Some(range);
        }
        before = Some(field.value.end);
    }
}

fn in_metadata(json: &[u8], start: usize, revision: u64, declared: bool) -> Option<Edit> {
    let quoted = format!("\"{FIELD}\"");
    let mut fields = Fields::of(json, start)?;
    let mut last = None;
    // Where the field belongs: before the first key that comes after it.
    let mut place = None;
    while let Some(field) = fields.next_field()? {
        let key = &json[field.key.clone()];
        if key == quoted.as_bytes() {
            return Some(Edit {
                range: field.value,
                text: format!("\"{revision}\""),
            });
        }
        let after = if declared {
            !BEFORE.contains(&key)
        } else {
            key > quoted.as_bytes()
        };
        if place.is_none() && after {
            place = Some(field.key.start);
        }
        last = Some(field.value.end);
    }
    let text = format!("{quoted}:\"{revision}\"");
    let (at, text) = match (place, last) {
        (Some(place), _) => (place, format!("{text},")),
        (None, Some(end)) => (end, format!(",{text}")),
        (None, None) => (fields.start, text),
    };
    Some(Edit {
        range: at..at,
        text,
    })
}

/// A field of an object: where its quoted key and its value lie.
struct Field {
    key: Range<usize>,
    value: Range<usize>,
}

/// The fields of an object, in order.
struct Fields<'a> {
    json: &'a [u8],
    /// Just after the opening brace.
    start: usize,
    position: usize,
    first: bool,
}

impl<'a> Fields<'a> {
    fn of(json: &'a [u8], at: usize) -> Option<Self> {
        let at = skip_space(json, at);
        (json.get(at) == Some(&b'{')).then_some(Self {
            json,
            start: at + 1,
            position: at + 1,
            first: true,
        })
    }

    /// The next field, `Some(None)` at the end of the object, `None` if the text is
    /// broken.
    fn next_field(&mut self) -> Option<Option<Field>> {
        self.position = skip_space(self.json, self.position);
        match self.json.get(self.position)? {
            b'}' => return Some(None),
            b',' if !self.first => self.position = skip_space(self.json, self.position + 1),
            _ if self.first => {}
            _ => return None,
        }
        self.first = false;
        let key = self.position..end_of_string(self.json, self.position)?;
        let colon = skip_space(self.json, key.end);
        if self.json.get(colon) != Some(&b':') {
            return None;
        }
        let start = skip_space(self.json, colon + 1);
        let value = start..end_of_value(self.json, start)?;
        self.position = value.end;
        Some(Some(Field { key, value }))
    }
}

fn skip_space(json: &[u8], from: usize) -> usize {
    let rest = json.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace())
        .count()
}

/// The end of the string that begins at `from`.
fn end_of_string(json: &[u8], from: usize) -> Option<usize> {
    if json.get(from) != Some(&b'"') {
        return None;
    }
    let mut at = from + 1;
    loop {
        at += json
            .get(at..)?
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\'))?;
        if json[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The end of the value that begins at `from`. Brackets are counted, not matched.
fn end_of_value(json: &[u8], from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = from;
    loop {
        match json.get(at)? {
            b'"' => {
                at = end_of_string(json, at)?;
                if depth == 0 {
                    return Some(at);
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return (at > from).then_some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b',' if depth == 0 => return (at > from).then_some(at),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn set(json: &str) -> Option<String> {
        let mut appended = b"head".to_vec();
        append_with_resource_version(json.as_bytes(), 42, &mut appended);
        let set = with_resource_version(json.as_bytes(), 42);
        let same = set.as_deref().unwrap_or(json.as_bytes());
        assert_eq!(appended, [b"head", same].concat());
        set.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_field_goes_to_its_place() {
        let cases = [
            ("{}", r#"{"metadata":{"resourceVersion":"42"}}"#),
            (
                r#"{"a":1}"#,
                r#"{"metadata":{"resourceVersion":"42"},"a":1}"#,
            ),
            (
                r#"{"metadata":{}}"#,
                r#"{"metadata":{"resourceVersion":"42"}}"#,
            ),
            (
                r#"{"metadata":{"name":"a"}}"#,
                r#"{"metadata":{"name":"a","resourceVersion":"42"}}"#,
            ),
            (
                r#"{"data":{"metadata":"{\"}"},"metadata":{"name":"a","uid":"u"},"z":[1]}"#,
                r#"{"data":{"metadata":"{\"}"},"metadata":{"name":"a","resourceVersion":"42","uid":"u"},"z":[1]}"#,
            ),
            (
                r#"{"metadata":{"resourceVersion":"7","uid":"u"}}"#,
                r#"{"metadata":{"resourceVersion":"42","uid":"u"}}"#,
            ),
            (
                r#"{"kind":"Pod","metadata":{"name":"a","uid":"u","generation":1}}"#,
                r#"{"kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"42","generation":1}}"#,
            ),
            (
                r#"{"kind":"Pod","metadata":{"labels":{}}}"#,
                r#"{"kind":"Pod","metadata":{"resourceVersion":"42","labels":{}}}"#,
            ),
            (
                r#"{ "metadata" : { "annotations" : {"resourceVersion":"1"} , "uid" : 1 } }"#,
                r#"{ "metadata" : { "annotations" : {"resourceVersion":"1"} , "resourceVersion":"42","uid" : 1 } }"#,
            ),
        ];
        for (before, after) in cases {
            assert_eq!(set(before).as_deref(), Some(after), "{before}");
            let whole: Value = serde_json::from_str(after).unwrap();
            let part = metadata_of(after.as_bytes()).unwrap();
            let part: Value = serde_json::from_slice(part).unwrap();
            assert_eq!(part, whole["metadata"]);
        }
    }

    #[test]
    fn the_field_is_taken_out_again() {
        let cases = [
            r#"{"kind":"Pod","metadata":{"name":"a","uid":"u","generation":1}}"#,
            r#"{"kind":"Pod","metadata":{"labels":{}}}"#,
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"name":"a"},"z":{"resourceVersion":"1"}}"#,
            r#"{"data":{"metadata":"{\"}"},"metadata":{"name":"a","uid":"u"},"z":[1]}"#,
        ];
        for case in cases {
            let mut text = set(case).unwrap();
            remove_resource_version(&mut text);
            assert_eq!(text, case);
            remove_resource_version(&mut text);
            assert_eq!(text, case);
        }
        for case in ["", "{}", "1", r#"{"metadata":1}"#, r#"{"metadata":{"#] {
            let mut text = case.to_owned();
            remove_resource_version(&mut text);
            assert_eq!(text, case);
        }
    }

    #[test]
    fn what_is_no_object_is_left_alone() {
        for text in [
            "",
            "1",
            "[]",
            "{",
            r#"{"a""#,
            r#"{"a":"#,
            r#"{"metadata":1}"#,
            r#"{"a":"\"#,
        ] {
            assert_eq!(set(text), None, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn fields() -> impl Strategy<Value = Map<String, Value>> {
        let key = prop_oneof![
            Just("metadata".to_owned()),
            Just("resourceVersion".to_owned()),
            Just("uid".to_owned()),
            Just("name".to_owned()),
            ".{0,6}",
        ];
        prop::collection::btree_map(key, value(), 0..6).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn it_does_what_a_parser_would(
            mut object in fields(),
            metadata in prop::option::of(fields()),
            revision: u64,
            pretty: bool,
        ) {
            object.remove("metadata");
            if let Some(metadata) = metadata {
                object.insert("metadata".to_owned(), Value::Object(metadata));
            }
            let mut expected = Value::Object(object);
            let text = if pretty {
                serde_json::to_string_pretty(&expected).unwrap()
            } else {
                expected.to_string()
            };
            if expected.get("metadata").is_none() {
                expected["metadata"] = json!({});
            }
            expected["metadata"]["resourceVersion"] = json!(revision.to_string());
            let bytes = with_resource_version(text.as_bytes(), revision).unwrap();
            let found: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&found, &expected);
            let mut text = String::from_utf8(bytes).unwrap();
            remove_resource_version(&mut text);
            let found: Value = serde_json::from_str(&text).unwrap();
            if let Some(metadata) = expected["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn no_text_makes_it_panic(text in r#"[{}\[\]",:\\ a1metadata]{0,40}"#) {
            let _ = with_resource_version(text.as_bytes(), 1);
            let _ = with_resource_version(format!("{{{text}").as_bytes(), 1);
            let _ = with_resource_version(format!("{{\"metadata\":{{{text}").as_bytes(), 1);
        }
    }

    #[test]
    fn owners_of_fields_are_left_out() {
        let metadata = concat!(
            r#"{"name":"p","labels":{"a":"x"},"annotations":"#,
            r#"{"a":",\"managedFields\":[","managedFields":"[","z":"\\"}"#,
        );
        let owners = r#","managedFields":[{"manager":"m","fieldsV1":{"f:managedFields":{}}}]"#;
        let object = |owners: &str| {
            format!(r#"{{"kind":"Pod","metadata":{metadata}{owners}}},"spec":{{"nodeName":"n"}}}}"#)
        };
        for owned in [object(owners), object("")] {
            let mut left = b"of another".to_vec();
            let at = metadata_range(owned.as_bytes()).unwrap();
            copy_without_owners(owned.as_bytes(), at, &mut left);
            assert_eq!(String::from_utf8(left).unwrap(), object(""));
        }
    }
}
