//! The cache over a real store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use davit_store::Write;
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::event::EventType;
use super::*;

mod clients;
mod lists;
mod watches;

const PREFIX: &str = "/registry/core/pods/";

struct World {
    store: Arc<dyn Store>,
    cache: Cache,
    decoded: Arc<AtomicUsize>,
    dir: TempDir,
}

fn header_of(pair: &KeyValue) -> Header {
    let object: Value = serde_json::from_slice(&pair.value).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().into();
    let metadata = &object["metadata"];
    let labels = metadata["labels"].as_object().into_iter().flatten();
    Header {
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
        uid: text(&metadata["uid"]),
        labels: labels
            .map(|(key, value)| (key.as_str().into(), text(value)))
            .collect(),
        fields: Box::default(),
        owners: Box::default(),
        foreign: false,
        unreadable: false,
    }
}

fn quick() -> CacheConfig {
    CacheConfig {
        bookmark_interval: Duration::from_millis(60),
        bookmark_before_deadline: Duration::from_millis(40),
        ..CacheConfig::default()
    }
}

impl World {
    async fn new() -> Self {
        Self::with(EmbeddedOptions::default(), CacheConfig::default()).await
    }

    async fn with(options: EmbeddedOptions, config: CacheConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), options).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let decoded = Arc::new(AtomicUsize::new(0));
        let cache = Self::cache(&store, config, &decoded);
        Self {
            store,
            cache,
            decoded,
            dir,
        }
    }

    fn cache(store: &Arc<dyn Store>, config: CacheConfig, decoded: &Arc<AtomicUsize>) -> Cache {
        let decoded = Arc::clone(decoded);
        let decode = move |pair: &KeyValue| {
            decoded.fetch_add(1, Ordering::Relaxed);
            CachedObject::new(pair, header_of(pair))
        };
        Cache::with_config(Arc::clone(store), PREFIX, Arc::new(decode), config)
    }

    async fn put(&self, name: &str, label: &str) -> u64 {
        let (namespace, name) = name.split_once('/').unwrap();
        let metadata = json!({ "labels": { "l": label }, "name": name, "namespace": namespace });
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        let key = format!("{PREFIX}{namespace}/{name}");
        self.store
            .commit(Write::put(key, object.to_string()))
            .await
            .unwrap()
            .revision
    }

    async fn delete(&self, name: &str) -> u64 {
        let write = Write::delete_any(format!("{PREFIX}{name}"));
        self.store.commit(write).await.unwrap().revision
    }

    async fn other(&self) -> u64 {
        self.store
            .commit(Write::put("/registry/core/nodes/n", "{}"))
            .await
            .unwrap()
            .revision
    }

    async fn list(&self, filter: &Filter) -> Snapshot {
        self.cache
            .list(Freshness::Latest, filter, soon())
            .await
            .unwrap()
    }

    async fn watch(&self, start: WatchStart) -> Watch {
        self.cache.watch(options(start), soon()).await.unwrap()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn options(start: WatchStart) -> WatchOptions {
    WatchOptions {
        start,
        filter: Filter::default(),
        bookmarks: false,
        deadline: None,
    }
}

fn labelled(label: &'static str) -> Filter {
    let matches = move |object: &CachedObject| {
        let labels = &object.header().labels;
        labels
            .iter()
            .any(|(key, value)| &**key == "l" && &**value == label)
    };
    Filter {
        predicate: Some(Arc::new(matches)),
        ..Filter::default()
    }
}

fn names(items: &[Arc<CachedObject>]) -> Vec<String> {
    items
        .iter()
        .map(|object| object.key()[PREFIX.len()..].to_owned())
        .collect()
}

async fn item(watch: &mut Watch) -> WatchItem {
    tokio::time::timeout(Duration::from_secs(20), watch.next())
        .await
        .expect("an item comes in time")
        .expect("the watch goes on")
        .expect("the watch is well")
}

/// The next event as type, name and revision.
async fn event(watch: &mut Watch) -> (&'static str, String, u64) {
    match item(watch).await {
        WatchItem::Event(delivery) => {
            let object = delivery.object();
            let shown: Value = serde_json::from_slice(&object.json()).unwrap();
            assert_eq!(
                shown["metadata"]["resourceVersion"],
                delivery.revision().to_string()
            );
            let name = object.key()[PREFIX.len()..].to_owned();
            (delivery.kind().as_str(), name, delivery.revision())
        }
        other => panic!("{other:?}"),
    }
}

fn seen(kind: &'static str, name: &str, revision: u64) -> (&'static str, String, u64) {
    (kind, name.to_owned(), revision)
}
