//! Objects that others are judged by are looked up as they are now, and parsed once for each revision.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use davit_registry::storage::Storage;
use davit_registry::{Registry, Stores};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use serde_json::{Value, json};

async fn namespaces(dir: &tempfile::TempDir) -> Arc<Storage> {
    let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default());
    let registry = Registry::built_in(
        Stores::new(Arc::new(store.await.unwrap()), Vec::new()),
        |_| true,
    );
    let snapshot = registry.snapshot();
    Arc::clone(&snapshot.get("", "v1", "namespaces").unwrap().storage)
}

fn namespace(name: &str, phase: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": phase}})
}

async fn seen(storage: &Storage, name: &str) -> Arc<Value> {
    storage.lookup("", name).await.unwrap().unwrap()
}

#[tokio::test]
async fn every_write_is_seen_and_nothing_is_parsed_twice() {
    let dir = tempfile::tempdir().unwrap();
    let storage = namespaces(&dir).await;
    assert!(storage.lookup("", "a").await.unwrap().is_none());
    let made = storage.create("", "a", &namespace("a", "Active")).await;
    let mut revision = made.unwrap().revision;
    for phase in ["Terminating", "Active", "Terminating"] {
        let before = seen(&storage, "a").await;
        assert!(Arc::ptr_eq(&before, &seen(&storage, "a").await));
        let wanted = namespace("a", phase);
        let written = storage.update("", "a", revision, &wanted).await;
        revision = written.unwrap().revision;
        let after = seen(&storage, "a").await;
        assert_eq!(after["status"]["phase"], phase);
        assert_eq!(after["metadata"]["resourceVersion"], revision.to_string());
    }
    storage.delete("", "a", revision).await.unwrap();
    assert!(storage.lookup("", "a").await.unwrap().is_none());
    let again = storage.create("", "a", &namespace("a", "Active")).await;
    assert!(again.is_ok());
    assert_eq!(seen(&storage, "a").await["status"]["phase"], "Active");
}

#[tokio::test]
async fn more_objects_than_are_kept_are_found_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let storage = namespaces(&dir).await;
    let names: Vec<String> = (0..200).map(|n| format!("n{n}")).collect();
    for name in &names {
        let made = storage.create("", name, &namespace(name, "Active")).await;
        assert!(made.is_ok());
    }
    for name in names.iter().chain(names.iter().rev()) {
        assert_eq!(seen(&storage, name).await["metadata"]["name"], **name);
    }
}
