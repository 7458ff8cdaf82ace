//! What each target promises about any input.

pub mod access;
pub mod objects;
pub mod registry;
pub mod requests;
pub mod wire;

use std::sync::LazyLock;

use davit_api::fields::FieldSelector;
use davit_api::kinds::{ResourceRow, builtin};
use davit_api::labels::Selector;
use davit_api::quantity::Quantity;
use davit_cel::{Env, Type, Value as CelValue};
use davit_schema::apply::{FieldManager, Filter, Schema, ignore_times, strip};
use davit_schema::decode::{Encoding, decode_value, parse};
use davit_schema::patch::{JsonPatch, merge_patch, strategic_merge_patch};
use davit_schema::structural::{SchemaCheck, Structural, check_schema};
use davit_schema::{defaults, validate};
use serde_json::Value;

/// The kind that a byte stands for.
fn row(byte: u8) -> &'static ResourceRow {
    let rows = &builtin().resources;
    &rows[usize::from(byte) % rows.len()]
}

/// What is before and after the first NUL.
fn halves(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = data.iter().position(|byte| *byte == 0)?;
    Some((&data[..at], &data[at + 1..]))
}

/// Any configuration applied to, and any update of, any object of any kind: who applies the same again changes nothing.
pub fn apply(data: &[u8]) {
    let [kind, body @ ..] = data else { return };
    let Some((live, applied)) = halves(body) else {
        return;
    };
    let parsed = |bytes| parse(bytes, Encoding::Yaml).ok().filter(Value::is_object);
    let (Some(live), Some(mut applied)) = (parsed(live), parsed(applied)) else {
        return;
    };
    let (types, row) = (&builtin().types, row(*kind));
    let api_version = row.api_version();
    let manager = FieldManager {
        schema: Schema::new(types, row.type_id),
        api_version: &api_version,
        kind: row.kind,
        subresource: "",
        filter: &Filter::All,
        versions: None,
        now: "2024-01-01T00:00:00Z",
    };
    let Ok(live) = decode_value(types, row.type_id, live) else {
        return;
    };
    let live = manager.update(None, live.object, "first");
    applied["apiVersion"] = api_version.clone().into();
    applied["kind"] = row.kind.into();
    strip(&mut applied);
    let Ok(once) = manager.apply(Some(&live), &applied, "second", true) else {
        return;
    };
    let Ok(once) = decode_value(types, row.type_id, once) else {
        return;
    };
    // What nobody manages, because only empty lists were ever written, gets its managers at the next apply.
    if once.object["metadata"]["managedFields"].is_null() {
        return;
    }
    if let Ok(again) = manager.apply(Some(&once.object), &applied, "second", false)
        && let Ok(mut again) = decode_value(types, row.type_id, again)
    {
        ignore_times(&once.object, &mut again.object);
        assert_eq!(again.object, once.object, "the same configuration again");
    }
}

/// Any text as an expression: compiled, estimated and run within its budget.
pub fn cel(data: &[u8]) {
    const BUDGET: u64 = 100_000;
    static ENV: LazyLock<Env> = LazyLock::new(|| {
        Env::kubernetes()
            .variable("self", Type::Dyn)
            .variable("x", Type::Int)
            .variable("l", Type::list(Type::String))
            .open_objects()
            .build()
    });
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(program) = ENV.compile(text) else {
        return;
    };
    let _estimated = program.cost_estimate();
    let own = davit_cel::value(&serde_json::json!({"a": [1, "b", {"c": null}]}));
    let texts = vec![CelValue::from("a"), CelValue::from("b")];
    let variables = [
        ("self", own),
        ("x", CelValue::Int(7)),
        ("l", CelValue::list(texts)),
    ];
    if let Ok((_, cost)) = program.eval(&variables, BUDGET) {
        assert!(cost <= BUDGET, "{cost} of {BUDGET}");
    }
}

/// Any answer of a conversion webhook: what is believed is the object that was asked about.
pub fn conversion(data: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let sent = crate::make::converted_objects();
    if let Ok(converted) =
        davit_registry::custom::check_conversion_answer(answer, "u", "v1", &sent, "example.com/v2")
    {
        assert_eq!(converted.len(), sent.len());
        for (was, is) in sent.iter().zip(&converted) {
            assert_eq!(is["apiVersion"], "example.com/v2");
            for key in ["name", "uid", "resourceVersion", "finalizers"] {
                assert_eq!(was["metadata"][key], is["metadata"][key], "{key}");
            }
        }
    }
}

/// Any body, decoded as any kind: what comes out decodes to itself.
pub fn decode(data: &[u8]) {
    let [kind, encoding, body @ ..] = data else {
        return;
    };
    let (types, row) = (&builtin().types, row(*kind));
    let encoding = if encoding % 2 == 0 {
        Encoding::Json
    } else {
        Encoding::Yaml
    };
    match davit_schema::decode::decode(types, row.type_id, body, encoding) {
        Err(error) => drop(error.status(row.kind, row.version, body)),
        Ok(decoded) => {
            let again = decode_value(types, row.type_id, decoded.object.clone());
            let again = again.map(|again| again.object).ok();
            assert_eq!(again.as_ref(), Some(&decoded.object));
            let mut object = decoded.object;
            defaults::apply(types, row.type_id, &mut object);
            let _faults = validate::validate(types, row.type_id, &object);
        }
    }
}

/// Any patch on any pod.
pub fn patch(data: &[u8]) {
    let Some((document, patch)) = halves(data) else {
        return;
    };
    let Ok(document) = parse(document, Encoding::Json) else {
        return;
    };
    let types = &builtin().types;
    let Some(root) = types.id("core/v1.Pod") else {
        return;
    };
    if let Ok(patch) = JsonPatch::parse(patch) {
        let _patched = patch.apply(&document);
    }
    let Ok(patch) = parse(patch, Encoding::Json) else {
        return;
    };
    if let Ok(merged) = merge_patch(document.clone(), patch.clone()) {
        let again = merge_patch(merged.clone(), patch.clone());
        assert_eq!(again.ok(), Some(merged), "a merge patch again");
    }
    if let Ok(patched) = strategic_merge_patch(types, root, document, patch) {
        let _decoded = decode_value(types, root, patched);
    }
}

/// Any bytes as a protobuf object: what comes out can be written and read again.
pub fn protobuf(data: &[u8]) {
    use davit_schema::protobuf::{decode, encode, envelope};
    let _enveloped = envelope(data);
    let [kind, raw @ ..] = data else { return };
    let (types, row) = (&builtin().types, row(*kind));
    let Ok(value) = decode(types, row.type_id, raw) else {
        return;
    };
    if let Ok(written) = encode(types, row.type_id, &value) {
        let read = decode(types, row.type_id, &written);
        assert!(read.is_ok(), "what was written can be read: {read:?}");
    }
}

/// Any bytes as what etcd has of an object: what is read can be written, and reads the same again.
pub fn stored(data: &[u8]) {
    use davit_kubestore::{Codec, keys};
    let [kind, stored @ ..] = data else { return };
    let row = builtin().storage_row(row(*kind));
    let group = if row.group.is_empty() {
        "core"
    } else {
        row.group
    };
    let key = format!("/registry/{group}/{}/d/x", row.plural);
    let codec = Codec::default();
    let stored = bytes::Bytes::copy_from_slice(stored);
    let _stale = codec.is_stale(&key, &stored);
    let _key = std::str::from_utf8(&stored).map(keys::from_kubernetes);
    let Ok(value) = codec.decode(&key, &stored) else {
        return;
    };
    if let Ok(written) = codec.encode(&key, &value) {
        let read = codec.decode(&key, &written);
        assert!(read.is_ok(), "what was written can be read: {read:?}");
    }
}

/// Any text as a quantity: the canonical form has the same value.
pub fn quantity(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        assert_eq!(Quantity::parse(&printed).ok(), Some(quantity), "{printed}");
        let kept = Quantity::canonicalize(text);
        let kept = kept.ok().and_then(|kept| Quantity::parse(&kept).ok());
        assert_eq!(kept, Some(quantity));
        let _values = (
            quantity.value(),
            quantity.milli_value(),
            quantity + quantity,
        );
    }
}

/// Any text as a selector: the printed form means the same.
pub fn selectors(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(selector) = Selector::parse(text) {
        let printed = selector.to_string();
        let again = Selector::parse(&printed).map(|again| again.to_string());
        assert_eq!(again.ok().as_ref(), Some(&printed));
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let printed = selector.to_string();
        assert_eq!(FieldSelector::parse(&printed).ok(), Some(selector));
    }
}

/// Any schema of a custom kind and any object of it: what the schema let in stays as it is.
pub fn structural(data: &[u8]) {
    let Some((schema, object)) = halves(data) else {
        return;
    };
    let Ok(schema) = serde_json::from_slice::<Value>(schema) else {
        return;
    };
    let at = davit_api::field::Path::new("schema");
    let faults = check_schema(&schema, &at, SchemaCheck::default());
    let Ok(parsed) = Structural::parse(&schema) else {
        return;
    };
    if !faults.is_empty() {
        return;
    }
    for encoding in [Encoding::Json, Encoding::Yaml] {
        let Ok(decoded) = parsed.decode(object, encoding) else {
            continue;
        };
        let mut kept = decoded.object;
        parsed.default(&mut kept);
        let _faults = parsed.validate(&kept, None);
        let mut again = kept.clone();
        parsed.prune(&mut again);
        assert_eq!(again, kept, "pruned already");
        parsed.default(&mut again);
        assert_eq!(again, kept, "defaults already");
    }
}

/// Any answer of an admission webhook: it is believed or refused.
pub fn webhook(data: &[u8]) {
    let Ok(answer) = serde_json::from_slice(data) else {
        return;
    };
    for version in ["v1", "v1beta1"] {
        for mutating in [true, false] {
            let _verdict = davit_admission::check_webhook_answer(&answer, version, "u", mutating);
        }
    }
}
