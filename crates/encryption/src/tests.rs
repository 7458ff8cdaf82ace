use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;

use super::*;

const KEY: &str = "/registry/core/secrets/default/s";

fn secret(byte: u8, size: usize) -> String {
    STANDARD.encode(vec![byte; size])
}

fn config(resources: &str, providers: &[String]) -> String {
    let providers: Vec<String> = providers.iter().map(|p| format!("  - {p}\n")).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [{resources}]\n  providers:\n{}",
        providers.concat()
    )
}

fn keyed(cipher: &str, keys: &[(&str, u8, usize)]) -> String {
    let keys: Vec<String> = keys
        .iter()
        .map(|(name, byte, size)| format!("{{name: {name}, secret: {}}}", secret(*byte, *size)))
        .collect();
    format!("{cipher}: {{keys: [{}]}}", keys.join(", "))
}

#[test]
fn all_ciphers_hide_and_give_back() {
    let ciphers = [
        ("aescbc", 16),
        ("aescbc", 24),
        ("aescbc", 32),
        ("aesgcm", 16),
        ("aesgcm", 24),
        ("aesgcm", 32),
        ("secretbox", 32),
    ];
    for (cipher, size) in ciphers {
        let text = config("secrets", &[keyed(cipher, &[("k1", 7, size)])]);
        let encryption = Encryption::parse(&text).unwrap();
        let plain = Bytes::from_static(b"{\"data\":\"very secret\"}");
        let stored = encryption.encrypt(KEY, plain.clone()).unwrap();
        let prefix = format!("k8s:enc:{cipher}:v1:k1:");
        assert!(stored.starts_with(prefix.as_bytes()), "{cipher}");
        assert!(!String::from_utf8_lossy(&stored).contains("secret\"}"));
        let read = encryption.decrypt(KEY, stored.clone()).unwrap();
        assert_eq!((read.value, read.stale), (plain.clone(), false));
        // nothing repeats
        assert_ne!(encryption.encrypt(KEY, plain).unwrap(), stored);
        let cut = stored.slice(..stored.len() - 1);
        assert!(encryption.decrypt(KEY, cut).is_err(), "{cipher}");
    }
}

#[test]
fn a_value_cannot_be_moved_to_another_key() {
    let text = config("secrets", &[keyed("aesgcm", &[("k1", 7, 32)])]);
    let encryption = Encryption::parse(&text).unwrap();
    let stored = encryption.encrypt(KEY, Bytes::from_static(b"x")).unwrap();
    let other = "/registry/core/secrets/default/other";
    assert!(encryption.decrypt(other, stored).is_err());
}

#[tokio::test]
async fn keys_and_providers_rotate() {
    let first = config("secrets", &[keyed("aescbc", &[("k1", 1, 32)])]);
    let encryption = Encryption::parse(&first).unwrap();
    let plain = Bytes::from_static(b"value");
    let old = encryption.encrypt(KEY, plain.clone()).unwrap();
    let both = keyed("aescbc", &[("k2", 2, 32), ("k1", 1, 32)]);
    encryption
        .reload(&config("secrets", &[both]))
        .await
        .unwrap();
    let read = encryption.decrypt(KEY, old.clone()).unwrap();
    assert_eq!((read.value, read.stale), (plain.clone(), true));
    let new = encryption.encrypt(KEY, plain.clone()).unwrap();
    assert!(new.starts_with(b"k8s:enc:aescbc:v1:k2:"));
    assert!(!encryption.decrypt(KEY, new.clone()).unwrap().stale);
    // the old key is gone
    let second = config("secrets", &[keyed("aescbc", &[("k2", 2, 32)])]);
    encryption.reload(&second).await.unwrap();
    assert!(encryption.decrypt(KEY, old).is_err());
    // a file with a fault changes nothing
    assert!(encryption.reload("kind: Other").await.is_err());
    assert!(encryption.decrypt(KEY, new.clone()).is_ok());
    // back to plain text
    let last = keyed("aescbc", &[("k2", 2, 32)]);
    let last = config("secrets", &["identity: {}".to_owned(), last]);
    encryption.reload(&last).await.unwrap();
    assert!(encryption.decrypt(KEY, new).unwrap().stale);
    assert_eq!(encryption.encrypt(KEY, plain.clone()).unwrap(), plain);
    assert!(!encryption.decrypt(KEY, plain).unwrap().stale);
}

#[test]
fn wildcards_cover_groups() {
    let provider = || [keyed("secretbox", &[("k", 3, 32)])];
    let covered = |resources: &str, key: &str| {
        let encryption = Encryption::parse(&config(resources, &provider())).unwrap();
        let stored = encryption.encrypt(key, Bytes::from_static(b"x")).unwrap();
        stored.starts_with(b"k8s:enc:")
    };
    let deployment = "/registry/apps/deployments/default/d";
    assert!(covered("secrets", KEY));
    assert!(!covered("secrets", deployment));
    assert!(covered("deployments.apps", deployment));
    assert!(covered("\"*.apps\"", deployment));
    assert!(!covered("\"*.apps\"", KEY));
    assert!(covered("\"*.\"", KEY));
    assert!(!covered("\"*.\"", deployment));
    assert!(covered("\"*.*\"", KEY) && covered("\"*.*\"", deployment));
}

#[test]
fn faults_of_the_configuration_are_named() {
    let identity = ["identity: {}".to_owned()];
    let cases = [
        (config("secrets, secrets", &identity), "named twice"),
        (config("secrets, \"*.\"", &identity), "overlaps"),
        (config("\"*\"", &identity), "core group"),
        (config("Secrets", &identity), "lower case"),
        (config("", &identity), "at least one"),
        (
            config("secrets", &[]).replace("providers:", "providers: []"),
            "providers: at least one",
        ),
        (
            config("secrets", &["kms: {name: k}".to_owned()]),
            "missing field `endpoint`",
        ),
        (
            config("secrets", &[keyed("aescbc", &[("a", 1, 17)])]),
            "has 17 bytes",
        ),
        (
            config("secrets", &[keyed("aescbc", &[("a", 1, 16), ("a", 1, 16)])]),
            "named twice",
        ),
        (
            config("secrets", &["{aesgcm: {keys: []}}".to_owned()]),
            "at least one",
        ),
        ("a: b".to_owned(), "unknown field"),
    ];
    for (text, wanted) in cases {
        let error = Encryption::parse(&text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}\n{text}");
    }
}

proptest! {
    #[test]
    fn any_value_comes_back(value: Vec<u8>, cipher in 0..3usize) {
        let name = ["aescbc", "aesgcm", "secretbox"][cipher];
        let text = config("secrets", &[keyed(name, &[("k", 9, 32)])]);
        let encryption = Encryption::parse(&text).unwrap();
        let stored = encryption.encrypt(KEY, value.clone().into()).unwrap();
        prop_assert_eq!(encryption.decrypt(KEY, stored).unwrap().value, Bytes::from(value));
    }

    #[test]
    fn garbage_is_refused(mut value: Vec<u8>) {
        let text = config("secrets", &[keyed("aescbc", &[("k", 9, 32)])]);
        let encryption = Encryption::parse(&text).unwrap();
        value.splice(0..0, *b"k8s:enc:aesgcm:v1:k:");
        prop_assert!(encryption.decrypt(KEY, value.into()).is_err());
    }
}
