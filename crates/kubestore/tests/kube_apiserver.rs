//! What the real kube-apiserver has written is read, and written the same (spec scale-out.md, items 26 to 28).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use davit_api::kinds::{builtin, split_api_version};
use davit_api::meta;
use davit_encryption::{Encryption, Naming};
use davit_kubestore::{Codec, CodecError, KubeNaming, MediaType, keys};
use davit_schema::decode::decode_value;
use davit_schema::protobuf;
use proptest::prelude::*;
use serde_json::{Value, json};

/// What is written in other bytes: the first two lack a default (of `status.phase`, of `spec.disruptionMode`) that
/// kube-apiserver gives when it reads them, and writes at the next change; in the last one the keys of `managedFields`
/// are sorted otherwise.
const DIFFERENT: [&str; 3] = [
    "/persistentvolumeclaims/routes/sample",
    "/podgroups/routes/sample",
    "/services/specs/routes/ports",
];

struct Entry {
    /// Without the prefix.
    key: String,
    stored: Bytes,
    /// What kube-apiserver answers.
    answer: Option<Value>,
}

fn entries(text: &str) -> Vec<Entry> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| {
        let mut parts = line.split('\t');
        let key = parts.next().unwrap().strip_prefix("/registry").unwrap();
        Entry {
            key: key.to_owned(),
            stored: STANDARD.decode(parts.next().unwrap()).unwrap().into(),
            answer: parts.next().map(|json| serde_json::from_str(json).unwrap()),
        }
    };
    lines.map(entry).collect()
}

fn written() -> Vec<Entry> {
    entries(include_str!("kube-apiserver-1.36.txt"))
}

fn own(key: &str) -> String {
    keys::from_kubernetes(key).unwrap_or_else(|| panic!("no key of davit's for {key}"))
}

/// As davit has an object in memory.
fn canonical(object: Value) -> Value {
    let (group, version) = split_api_version(meta::api_version(&object));
    match builtin().kind_type(group, version, meta::kind(&object)) {
        Some(root) => decode_value(&builtin().types, root, object).unwrap().object,
        None => object,
    }
}

#[test]
fn item_026_what_kube_apiserver_wrote_is_read_as_it_reads_it() {
    let codec = Codec::default();
    let mut wrong = Vec::new();
    for entry in written() {
        let value = codec.decode(&own(&entry.key), &entry.stored);
        let value = value.unwrap_or_else(|error| panic!("{}: {error}", entry.key));
        let value: Value = serde_json::from_slice(&value).unwrap();
        let answer = entry.answer.map(canonical);
        if let Some(answer) = answer.filter(|answer| *answer != value) {
            wrong.push(format!("{}\n {value}\n {answer}", entry.key));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn items_026_027_the_same_keys_and_bytes_are_written() {
    let codec = Codec::default();
    let mut wrong = Vec::new();
    for entry in written() {
        let key = own(&entry.key);
        assert_eq!(keys::to_kubernetes(&key).as_deref(), Some(&*entry.key));
        let value = codec.decode(&key, &entry.stored).unwrap();
        let again = codec.encode(&key, &value).unwrap();
        let same = match entry.stored.first() {
            // the original escapes more in its JSON
            Some(b'{') => again.ends_with(b"}\n") && codec.decode(&key, &again) == Ok(value),
            _ if DIFFERENT.contains(&&*entry.key) => {
                again != entry.stored && codec.decode(&key, &again) == Ok(value)
            }
            _ => again == entry.stored,
        };
        if !same {
            let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            wrong.push(format!(
                "{}\n {:?}\n {:?}",
                entry.key,
                shown(&again),
                shown(&entry.stored)
            ));
        }
        assert_eq!(codec.is_stale(&key, &entry.stored), Ok(false), "{key}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_stored_kind_of_kube_apiserver_is_among_them() {
    let held: Vec<String> = written().into_iter().map(|entry| own(&entry.key)).collect();
    // These are off in 1.36 unless gates and versions are turned on that change others, too.
    let missing = [
        "certificatesigningrequests",
        "clustertrustbundles",
        "podcertificaterequests",
    ];
    for row in &builtin().resources {
        let stored = builtin().storage_row(row);
        if !row.has_verb("create") || !row.has_verb("get") || stored.is_classic_dra() {
            continue;
        }
        let group = if stored.group.is_empty() {
            "core"
        } else {
            stored.group
        };
        let prefix = format!("/registry/{group}/{}/", stored.plural);
        assert!(
            missing.contains(&row.plural) || held.iter().any(|key| key.starts_with(&prefix)),
            "{prefix}"
        );
    }
}

#[test]
fn item_028_what_kube_apiserver_encrypted_is_read() {
    let encryption = Encryption::parse(include_str!("encryption.yaml")).unwrap();
    let naming = KubeNaming::new("/registry");
    let codec = Codec::default();
    for entry in entries(include_str!("kube-apiserver-1.36-encrypted.txt")) {
        let key = own(&entry.key);
        let refused = codec.decode(&key, &entry.stored);
        assert_eq!(refused, Err(CodecError::Encrypted));
        let named = naming.named(&entry.key);
        let plain = encryption.decrypt_as(&named, entry.stored).unwrap();
        assert!(!plain.stale, "{key}");
        let value: Value =
            serde_json::from_slice(&codec.decode(&key, &plain.value).unwrap()).unwrap();
        assert_eq!(value["metadata"]["name"], "sealed");
        let sealed = encryption.encrypt_as(&named, plain.value.clone()).unwrap();
        assert_ne!(sealed, plain.value);
        assert_eq!(
            encryption.decrypt_as(&named, sealed).unwrap().value,
            plain.value
        );
    }
}

#[test]
fn older_versions_become_those_of_today() {
    let claim = |api_version: &str, request: Value| {
        json!({
            "apiVersion": api_version, "kind": "ResourceClaim",
            "metadata": { "name": "c", "namespace": "d" },
            "spec": { "devices": { "requests": [request] } },
        })
    };
    let old = claim(
        "resource.k8s.io/v1beta1",
        json!({ "name": "r", "deviceClassName": "x", "allocationMode": "ExactCount", "count": 1 }),
    );
    let key = "/registry/resource.k8s.io/resourceclaims/d/c";
    let stored: Bytes = protobuf::encode_object(builtin(), &old).unwrap().into();
    let codec = Codec::default();
    assert_eq!(codec.is_stale(key, &stored), Ok(true));
    let value: Value = serde_json::from_slice(&codec.decode(key, &stored).unwrap()).unwrap();
    assert_eq!(value["apiVersion"], "resource.k8s.io/v1");
    let request = &value["spec"]["devices"]["requests"][0];
    assert_eq!(request["exactly"]["deviceClassName"], "x");
    // Built-in kinds as JSON are read, and written in the form that is asked for.
    let text: Bytes = format!("{old}\n").into();
    assert_eq!(codec.decode(key, &text), codec.decode(key, &stored));
    assert_eq!(codec.is_stale(key, &text), Ok(true));
    let json = Codec::new(MediaType::Json);
    let written = json.encode(key, &value.to_string().into()).unwrap();
    assert!(
        written.starts_with(b"{\"kind\":\"ResourceClaim\",\"apiVersion\":\"resource.k8s.io/v1\",")
    );
    assert_eq!(json.decode(key, &written), codec.decode(key, &stored));
    assert_eq!(json.is_stale(key, &written), Ok(false));
}

#[test]
fn what_cannot_be_read_is_refused_with_the_reason() {
    let codec = Codec::default();
    let key = "/registry/core/configmaps/d/c";
    let refused = |value: &'static [u8]| codec.decode(key, &Bytes::from_static(value)).unwrap_err();
    assert_eq!(refused(b""), CodecError::Form);
    assert_eq!(refused(b"apiVersion: v1"), CodecError::Form);
    assert!(matches!(refused(b"{"), CodecError::Malformed(_)));
    assert!(matches!(refused(b"k8s\0\xff"), CodecError::Malformed(_)));
    let secret = br#"{"apiVersion":"v1","kind":"Secret","metadata":{}}"#;
    assert!(matches!(refused(secret), CodecError::Kind { .. }));
    let version = br#"{"apiVersion":"v9","kind":"ConfigMap","metadata":{}}"#;
    assert_eq!(refused(version), CodecError::Version("v9".to_owned()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..82) {
        let entries = written();
        let entry = &entries[at % entries.len()];
        let key = own(&entry.key);
        let codec = Codec::default();
        let _read = codec.decode(&key, &Bytes::from(bytes.clone()));
        // a damaged value
        let mut damaged = entry.stored.to_vec();
        for (at, byte) in bytes.iter().take(3).enumerate() {
            let place = (usize::from(*byte) * 7 + at * 31) % damaged.len();
            damaged[place] ^= byte | 1;
        }
        if let Ok(value) = codec.decode(&key, &Bytes::from(damaged)) {
            let again = codec.encode(&key, &value);
            if let Ok(again) = again {
                prop_assert_eq!(codec.decode(&key, &again).unwrap(), value);
            }
        }
    }
}
