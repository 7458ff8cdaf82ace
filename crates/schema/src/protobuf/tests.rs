use davit_api::kinds::builtin;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn bytes(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![(number << 3) | 2, u8::try_from(inner.len()).unwrap()];
    out.extend_from_slice(inner);
    out
}

#[test]
fn a_config_map_in_its_envelope_is_read() {
    let metadata = bytes(1, b"x");
    let entry = [bytes(1, b"a"), bytes(2, b"b")].concat();
    let object = [bytes(1, &metadata), bytes(2, &entry), vec![4 << 3, 1]].concat();
    let kind = [bytes(1, b"v1"), bytes(2, b"ConfigMap")].concat();
    let body = [MAGIC.to_vec(), bytes(1, &kind), bytes(2, &object)].concat();
    let envelope = envelope(&body).unwrap();
    assert_eq!(
        (envelope.api_version.as_str(), envelope.kind.as_str()),
        ("v1", "ConfigMap")
    );
    let table = builtin();
    let root = table.kind_type("", "v1", "ConfigMap").unwrap();
    let value = decode(&table.types, root, envelope.raw).unwrap();
    let want = json!({ "metadata": { "name": "x" }, "data": { "a": "b" }, "immutable": true });
    assert_eq!(value, want);
}

#[test]
fn special_scalars_take_their_json_form() {
    let time = [vec![1 << 3], vec![0x80, 0x80, 0x80, 0x80, 0x06]].concat();
    assert_eq!(
        instant(&time, time::format).unwrap(),
        json!("2021-01-14T08:25:36Z")
    );
    assert_eq!(instant(&[], time::format).unwrap(), Value::Null);
    // 9999-12-31T23:59:59Z, and a second later
    let last = [1 << 3, 0xff, 0x82, 0xd1, 0xff, 0xaf, 0x07];
    let kept = instant(&last, time::format).unwrap();
    assert_eq!(kept, json!("9999-12-30T22:00:00Z"));
    let later = [1 << 3, 0x80, 0x83, 0xd1, 0xff, 0xaf, 0x07];
    instant(&later, time::format).unwrap_err();
    let text = [vec![1 << 3, 1], bytes(3, b"50%")].concat();
    assert_eq!(int_or_string(&text).unwrap(), json!("50%"));
    assert_eq!(int_or_string(&[2 << 3, 80]).unwrap(), json!(80));
}

#[test]
fn bytes_without_the_prefix_are_refused() {
    assert_eq!(envelope(b"{}"), Err(ProtobufError::Magic));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let table = builtin();
        let root = table.kind_type("", "v1", "Pod").unwrap();
        let _ = decode(&table.types, root, &body);
    }
}

#[test]
fn values_of_a_body_have_an_end() {
    let types = &builtin().types;
    let pod = types.id("core/v1.Pod").unwrap();
    let containers = |count: usize| {
        let spec = [2 << 3 | 2, 0].repeat(count);
        let mut message = vec![2 << 3 | 2];
        let mut length = spec.len();
        while length > 0x7f {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        [message, spec].concat()
    };
    assert!(decode(types, pod, &containers(MAX_VALUES - 1)).is_ok());
    let refused = decode(types, pod, &containers(MAX_VALUES)).unwrap_err();
    assert_eq!(refused, ProtobufError::TooMany);
}
