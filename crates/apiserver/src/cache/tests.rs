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
            let shown: Value = serde_json::from_slice(object.json()).unwrap();
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

#[tokio::test]
async fn an_unused_cache_costs_nothing() {
    let world = World::new().await;
    world.put("a/1", "x").await;
    let filter = Filter::default();
    let page = world
        .cache
        .page(PageOptions::default(), &filter, soon())
        .await
        .unwrap();
    assert_eq!(names(&page.items), ["a/1"]);
    assert!(world.cache.running.get().is_none());
    assert_eq!(world.cache.object_count(), 0);
}

#[tokio::test]
async fn reads_see_every_acknowledged_write() {
    let world = World::new().await;
    for round in 0..200 {
        let revision = match round % 4 {
            0 => world.other().await,
            _ => world.put(&format!("a/{}", round % 3), "x").await,
        };
        let list = world.list(&Filter::default()).await;
        assert!(list.revision >= revision);
        if round % 4 != 0 {
            let name = format!("a/{}", round % 3);
            let found = list
                .items
                .iter()
                .find(|object| object.key().ends_with(&name))
                .unwrap();
            assert_eq!(found.revision(), revision);
        }
    }
}

#[tokio::test]
async fn lists_filter_by_namespace_name_and_predicate() {
    let world = World::new().await;
    for (name, label) in [("a/1", "x"), ("a/2", "y"), ("ab/1", "x"), ("b/1", "y")] {
        world.put(name, label).await;
    }
    let everything = world.list(&Filter::default()).await;
    assert_eq!(names(&everything.items), ["a/1", "a/2", "ab/1", "b/1"]);
    let namespace = Some("a".to_owned());
    let in_a = Filter {
        namespace: namespace.clone(),
        ..Filter::default()
    };
    assert_eq!(names(&world.list(&in_a).await.items), ["a/1", "a/2"]);
    let one = Filter {
        namespace,
        name: Some("2".to_owned()),
        predicate: None,
    };
    assert_eq!(names(&world.list(&one).await.items), ["a/2"]);
    let named = Filter {
        name: Some("1".to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        names(&world.list(&named).await.items),
        ["a/1", "ab/1", "b/1"]
    );
    assert_eq!(
        names(&world.list(&labelled("y")).await.items),
        ["a/2", "b/1"]
    );
}

#[tokio::test]
async fn json_is_made_once_for_a_revision() {
    let world = World::new().await;
    let revision = world.put("a/1", "x").await;
    let lists = [
        world.list(&Filter::default()).await,
        world.list(&Filter::default()).await,
    ];
    let [one, two] = lists.map(|list| list.items[0].json().clone());
    assert_eq!(one.as_ptr(), two.as_ptr());
    let expected = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"labels":{{"l":"x"}},"name":"1","namespace":"a","resourceVersion":"{revision}"}}}}"#
    );
    assert_eq!(one, expected);
    let page = PageOptions::default();
    let page = world
        .cache
        .page(page, &Filter::default(), soon())
        .await
        .unwrap();
    assert_eq!(page.items[0].json().as_ptr(), one.as_ptr());
    assert_eq!(world.decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn revisions_to_come_are_waited_for_and_then_too_large() {
    let world = World::new().await;
    let current = world.put("a/1", "x").await;
    let wait = Instant::now() + Duration::from_millis(60);
    let too_large = |error: CacheError| {
        assert!(
            matches!(error, CacheError::TooLarge { requested, current: c }
            if requested == current + 5 && c == current),
            "{error:?}"
        );
    };
    let freshness = Freshness::AtLeast(current + 5);
    let filter = Filter::default();
    too_large(
        world
            .cache
            .list(freshness, &filter, wait)
            .await
            .unwrap_err(),
    );
    let at = PageOptions {
        revision: Some(current + 5),
        ..PageOptions::default()
    };
    too_large(world.cache.page(at, &filter, wait).await.unwrap_err());
    let later = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        for _ in 0..5 {
            world.other().await;
        }
    };
    let (list, ()) = tokio::join!(world.cache.list(freshness, &filter, soon()), later);
    assert!(list.unwrap().revision >= current + 5);
}

#[tokio::test]
async fn a_watch_shows_initial_objects_by_revision_then_changes() {
    let world = World::new().await;
    let b = world.put("a/b", "x").await;
    let a = world.put("a/a", "x").await;
    let options = WatchOptions {
        bookmarks: true,
        ..options(WatchStart::Initial(Freshness::Latest))
    };
    let mut watch = world.cache.watch(options, soon()).await.unwrap();
    assert_eq!(event(&mut watch).await, seen("ADDED", "a/b", b));
    assert_eq!(event(&mut watch).await, seen("ADDED", "a/a", a));
    match item(&mut watch).await {
        WatchItem::Bookmark {
            revision,
            initial_events_end: true,
        } => assert_eq!(revision, a),
        other => panic!("{other:?}"),
    }
    let changed = world.put("a/a", "y").await;
    let gone = world.delete("a/b").await;
    assert_eq!(event(&mut watch).await, seen("MODIFIED", "a/a", changed));
    assert_eq!(event(&mut watch).await, seen("DELETED", "a/b", gone));
}

#[tokio::test]
async fn selectors_turn_changes_into_arrivals_and_departures() {
    let world = World::new().await;
    let start = world.put("a/1", "out").await;
    let options = WatchOptions {
        filter: labelled("in"),
        ..options(WatchStart::After(start))
    };
    let mut watch = world.cache.watch(options.clone(), soon()).await.unwrap();
    world.put("a/1", "other").await;
    let arrived = world.put("a/1", "in").await;
    let changed = world.put("a/1", "in").await;
    let left = world.put("a/1", "out").await;
    world.delete("a/1").await;
    let back = world.put("a/1", "in").await;
    let gone = world.delete("a/1").await;
    let expected = [
        seen("ADDED", "a/1", arrived),
        seen("MODIFIED", "a/1", changed),
        seen("DELETED", "a/1", left),
        seen("ADDED", "a/1", back),
        seen("DELETED", "a/1", gone),
    ];
    // The same live and from the ring.
    let mut replayed = world.cache.watch(options, soon()).await.unwrap();
    for watch in [&mut watch, &mut replayed] {
        for expected in &expected {
            assert_eq!(event(watch).await, *expected);
        }
    }
    let mut again = world.watch(WatchStart::After(changed)).await;
    let WatchItem::Event(departure) = item(&mut again).await else {
        panic!("an event")
    };
    assert_eq!(
        departure.kind(),
        EventType::Modified,
        "without a selector it is a change"
    );
}

#[tokio::test]
async fn a_departure_shows_the_last_matching_state() {
    let world = World::new().await;
    let start = world.put("a/1", "in").await;
    let options = WatchOptions {
        filter: labelled("in"),
        ..options(WatchStart::After(start))
    };
    let mut watch = world.cache.watch(options, soon()).await.unwrap();
    let left = world.put("a/1", "out").await;
    let WatchItem::Event(departure) = item(&mut watch).await else {
        panic!("an event")
    };
    let shown: Value = serde_json::from_slice(departure.object().json()).unwrap();
    assert_eq!(shown["metadata"]["labels"]["l"], "in");
    assert_eq!(shown["metadata"]["resourceVersion"], left.to_string());
}

#[tokio::test]
async fn all_watchers_share_one_encoding() {
    let world = World::new().await;
    let start = world.list(&Filter::default()).await.revision;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(world.watch(WatchStart::After(start)).await);
    }
    let revision = world.put("a/1", "x").await;
    let mut frames = Vec::new();
    let mut made = 0;
    for watch in &mut watches {
        let WatchItem::Event(delivery) = item(watch).await else {
            panic!("an event")
        };
        frames.push(delivery.json_frame());
        let other = delivery.encoded(7, || {
            made += 1;
            "other".into()
        });
        assert_eq!(other, "other");
    }
    assert_eq!(made, 1);
    assert!(
        frames
            .iter()
            .all(|frame| frame.as_ptr() == frames[0].as_ptr())
    );
    let text = std::str::from_utf8(&frames[0]).unwrap();
    assert!(
        text.starts_with(r#"{"type":"ADDED","object":{"apiVersion":"v1""#),
        "{text}"
    );
    assert!(
        text.ends_with("}}\n") && text.contains(&format!("\"{revision}\"")),
        "{text}"
    );
    let frame: Value = serde_json::from_str(text).unwrap();
    assert_eq!(frame["object"]["metadata"]["name"], "1");
}

#[tokio::test]
async fn old_revisions_are_expired_exactly() {
    let limits = RingLimits {
        min: 3,
        max: 5,
        ..RingLimits::default()
    };
    let config = CacheConfig {
        ring: limits,
        ..CacheConfig::default()
    };
    let world = World::with(EmbeddedOptions::default(), config).await;
    let mut revisions = vec![world.list(&Filter::default()).await.revision];
    for _ in 0..20 {
        revisions.push(world.put("a/1", "x").await);
        world.other().await;
    }
    world.list(&Filter::default()).await;
    let oldest = revisions[15];
    for (index, revision) in revisions.iter().enumerate() {
        let watch = world
            .cache
            .watch(options(WatchStart::After(*revision)), soon())
            .await;
        if index < 15 {
            match watch {
                Err(CacheError::Expired {
                    requested,
                    oldest: o,
                }) => {
                    assert_eq!((requested, o), (*revision, oldest));
                }
                other => panic!("{other:?}"),
            }
            continue;
        }
        let mut watch = watch.unwrap();
        for expected in &revisions[index + 1..] {
            assert_eq!(event(&mut watch).await.2, *expected);
        }
    }
}

#[tokio::test]
async fn history_before_the_first_use_can_be_resumed() {
    let world = World::new().await;
    let one = world.put("a/1", "x").await;
    let two = world.put("a/2", "x").await;
    let gone = world.delete("a/1").await;
    let mut watch = world.watch(WatchStart::After(one)).await;
    assert_eq!(event(&mut watch).await, seen("ADDED", "a/2", two));
    assert_eq!(event(&mut watch).await, seen("DELETED", "a/1", gone));
    let World {
        store,
        cache,
        dir,
        decoded,
    } = world;
    drop((cache, watch));
    store.close().await;
    drop(store);

    let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default())
        .await
        .unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let cache = World::cache(&store, CacheConfig::default(), &decoded);
    let world = World {
        store,
        cache,
        dir,
        decoded,
    };
    let mut watch = world.watch(WatchStart::After(two)).await;
    assert_eq!(event(&mut watch).await, seen("DELETED", "a/1", gone));
}

#[tokio::test]
async fn item_063_bookmarks_confirm_what_others_wrote() {
    let default = CacheConfig::default();
    assert_eq!(default.bookmark_interval, Duration::from_secs(60));
    let world = World::with(EmbeddedOptions::default(), quick()).await;
    let start = world.put("a/1", "x").await;
    let options = WatchOptions {
        bookmarks: true,
        ..options(WatchStart::After(start))
    };
    let mut watch = world.cache.watch(options, soon()).await.unwrap();
    let other = world.other().await;
    match item(&mut watch).await {
        WatchItem::Bookmark {
            revision,
            initial_events_end: false,
        } => assert_eq!(revision, other),
        other => panic!("{other:?}"),
    }
    // A bookmark never overtakes an event.
    let mut last = other;
    for round in 0..40 {
        let wanted = world.put("a/1", "x").await;
        if round % 8 == 0 {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        loop {
            match item(&mut watch).await {
                WatchItem::Event(delivery) => {
                    assert!(delivery.revision() > last);
                    last = delivery.revision();
                    assert_eq!(last, wanted);
                    break;
                }
                WatchItem::Bookmark { revision, .. } => {
                    assert!(revision >= last && revision < wanted, "{revision} {wanted}");
                    last = revision;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_watch_ends_at_its_deadline_after_a_bookmark() {
    let config = CacheConfig {
        bookmark_interval: Duration::from_secs(60),
        ..quick()
    };
    let world = World::with(EmbeddedOptions::default(), config).await;
    let start = world.put("a/1", "x").await;
    let deadline = Instant::now() + Duration::from_millis(100);
    let mut options = WatchOptions {
        bookmarks: true,
        deadline: Some(deadline),
        ..options(WatchStart::After(start))
    };
    let mut watch = world.cache.watch(options.clone(), soon()).await.unwrap();
    assert!(matches!(item(&mut watch).await, WatchItem::Bookmark { .. }));
    assert!(Instant::now() < deadline);
    assert!(watch.next().await.is_none());
    assert!(Instant::now() >= deadline);
    assert!(watch.next().await.is_none());

    options.bookmarks = false;
    let mut watch = world.cache.watch(options, soon()).await.unwrap();
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_watch_from_the_future_waits_for_it() {
    let world = World::with(EmbeddedOptions::default(), quick()).await;
    let current = world.put("a/1", "x").await;
    let options = WatchOptions {
        bookmarks: true,
        ..options(WatchStart::After(current + 3))
    };
    let mut watch = world.cache.watch(options, soon()).await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(150), watch.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    for _ in 0..5 {
        world.put("a/1", "x").await;
    }
    assert_eq!(event(&mut watch).await.2, current + 4);
}

#[tokio::test]
async fn a_slow_watcher_is_dropped_and_others_go_on() {
    let config = CacheConfig {
        watch_buffer: 16,
        ..CacheConfig::default()
    };
    let world = World::with(EmbeddedOptions::default(), config).await;
    let start = world.list(&Filter::default()).await.revision;
    let mut slow = world.watch(WatchStart::After(start)).await;
    let mut quick = world.watch(WatchStart::After(start)).await;
    for _ in 0..40 {
        let revision = world.put("a/1", "x").await;
        assert_eq!(event(&mut quick).await.2, revision);
    }
    assert_eq!(world.cache.running.get().unwrap().shared.watch_count(), 1);
    for _ in 0..16 {
        event(&mut slow).await;
    }
    let error = slow.next().await.unwrap().unwrap_err();
    assert!(matches!(error, CacheError::TooSlow { .. }), "{error}");
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn watches_can_be_closed() {
    let world = World::new().await;
    let mut one = world.watch(WatchStart::Latest).await;
    world.put("a/1", "x").await;
    event(&mut one).await;
    world.cache.retire();
    assert!(one.next().await.is_none());
    let mut late = world.watch(WatchStart::Latest).await;
    assert!(late.next().await.is_none());

    let world = World::new().await;
    let mut two = world.watch(WatchStart::Latest).await;
    let revision = world.put("a/1", "x").await;
    assert_eq!(event(&mut two).await.2, revision);
    world.store.close().await;
    assert!(
        tokio::time::timeout(Duration::from_secs(20), two.next())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn a_feed_that_is_overrun_resumes_without_a_gap() {
    let options = EmbeddedOptions {
        watch_buffer: 8,
        ..EmbeddedOptions::default()
    };
    let world = World::with(options, CacheConfig::default()).await;
    let start = world.list(&Filter::default()).await.revision;
    let mut watch = world.watch(WatchStart::After(start)).await;
    // The test's runtime has one thread: the feed cannot run between these.
    let mut writes = Vec::new();
    for round in 0..100 {
        let key = format!("{PREFIX}a/{round}");
        let value = json!({ "metadata": { "name": round.to_string(), "namespace": "a" } });
        writes.push(world.store.commit(Write::put(key, value.to_string())));
    }
    let revisions: Vec<_> = futures::future::join_all(writes)
        .await
        .into_iter()
        .map(|w| w.unwrap().revision)
        .collect();
    for revision in revisions {
        assert_eq!(event(&mut watch).await.2, revision);
    }
    assert_eq!(world.list(&Filter::default()).await.items.len(), 100);
}

#[tokio::test]
async fn pages_are_exact_and_under_selectors_full() {
    let world = World::new().await;
    for number in 0..50 {
        let label = if number % 5 == 0 { "in" } else { "out" };
        world.put(&format!("a/{number:02}"), label).await;
    }
    world.put("b/1", "in").await;
    let filter = Filter {
        namespace: Some("a".to_owned()),
        ..labelled("in")
    };
    let mut options = PageOptions {
        limit: Some(4),
        ..PageOptions::default()
    };
    let mut found = Vec::new();
    loop {
        let page = world
            .cache
            .page(options.clone(), &filter, soon())
            .await
            .unwrap();
        assert_eq!(page.remaining, None);
        found.extend(names(&page.items));
        world.delete("a/45").await;
        world.put("a/45", "out").await;
        options.revision = Some(page.revision);
        options.start = page.next;
        if options.start.is_none() {
            break;
        }
        assert_eq!(page.items.len(), 4);
    }
    let expected: Vec<_> = (0..50)
        .step_by(5)
        .map(|number| format!("a/{number:02}"))
        .collect();
    assert_eq!(found, expected);

    let everything = PageOptions {
        limit: Some(20),
        ..PageOptions::default()
    };
    let page = world
        .cache
        .page(everything, &Filter::default(), soon())
        .await
        .unwrap();
    assert_eq!((page.items.len(), page.remaining), (20, Some(31)));
    let nothing = world
        .cache
        .page(PageOptions::default(), &labelled("none"), soon())
        .await;
    assert!(nothing.unwrap().items.is_empty());
    world.store.compact(world.store.revision()).await.unwrap();
    options.revision = Some(page.revision - 1);
    let error = world
        .cache
        .page(options, &filter, soon())
        .await
        .unwrap_err();
    assert!(matches!(error, CacheError::Expired { .. }), "{error}");
}

#[tokio::test]
async fn a_cache_that_lost_its_place_starts_over_and_says_so() {
    let world = World::new().await;
    let start = world.put("a/1", "x").await;
    let mut watch = world.watch(WatchStart::After(start)).await;
    let shared = Arc::clone(&world.cache.running.get().unwrap().shared);
    shared.reset(Vec::new(), start + 50);
    match watch.next().await {
        Some(Err(CacheError::Expired { requested, oldest })) => {
            assert_eq!((requested, oldest), (start, start + 50));
        }
        other => panic!("{other:?}"),
    }
    assert!(watch.next().await.is_none());
    let again = world
        .cache
        .watch(options(WatchStart::After(start + 49)), soon())
        .await;
    assert!(
        matches!(again, Err(CacheError::Expired { .. })),
        "{again:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_that_come_while_many_write_end_with_the_same_state() {
    let world = Arc::new(World::new().await);
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            for round in 0..60 {
                let name = format!("a/{writer}-{}", round % 7);
                let label = if (round + writer) % 3 == 0 {
                    "out"
                } else {
                    "in"
                };
                world.put(&name, label).await;
                if round % 7 == 6 {
                    world.delete(&name).await;
                }
            }
        });
    }
    let (done, finished) = tokio::sync::watch::channel(0);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (world, finished) = (Arc::clone(&world), finished.clone());
        clients.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number * 3)).await;
            let start = WatchStart::Initial(Freshness::Latest);
            let mut watch = world
                .cache
                .watch(client_options(start), soon())
                .await
                .unwrap();
            let mut objects = BTreeMap::new();
            loop {
                let item = item(&mut watch).await;
                let WatchItem::Event(delivery) = item else {
                    continue;
                };
                let key = Arc::clone(delivery.object().key());
                match delivery.kind() {
                    EventType::Deleted => drop(objects.remove(&key)),
                    _ => drop(objects.insert(key, delivery.revision())),
                }
                // looked up after the item came: the end is announced before it is written
                if delivery.revision() == *finished.borrow() {
                    return objects;
                }
            }
        });
    }
    tasks.join_all().await;
    let end = world.put("a/end", "out").await + 1;
    done.send_replace(end);
    assert_eq!(world.put("a/end", "in").await, end);
    let list = world.list(&labelled("in")).await;
    let expected: BTreeMap<_, _> = list
        .items
        .iter()
        .map(|object| (Arc::clone(object.key()), object.revision()))
        .collect();
    for objects in clients.join_all().await {
        assert_eq!(objects, expected);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, bool),
    Delete(u8),
    Other,
    /// Reads up to this many items.
    Read(u8),
    /// Drops the watch and resumes from the last revision seen.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..4_u8, any::<bool>()).prop_map(|(name, label)| Step::Put(name, label)),
        2 => (0..4_u8).prop_map(Step::Delete),
        1 => Just(Step::Other),
        3 => (0..6_u8).prop_map(Step::Read),
        2 => Just(Step::Cut),
    ]
}

/// What a client with the selector `l=in` knows.
#[derive(Default)]
struct Client {
    objects: BTreeMap<String, u64>,
    seen: u64,
}

impl Client {
    fn take(&mut self, item: WatchItem) {
        match item {
            WatchItem::Bookmark { revision, .. } => {
                assert!(revision >= self.seen);
                self.seen = revision;
            }
            WatchItem::Event(delivery) => {
                let revision = delivery.revision();
                assert!(revision > self.seen, "events come in order and once");
                self.seen = revision;
                let name = delivery.object().key()[PREFIX.len()..].to_owned();
                let known = self.objects.contains_key(&name);
                assert_eq!(known, delivery.kind() != EventType::Added, "{delivery:?}");
                match delivery.kind() {
                    EventType::Deleted => self.objects.remove(&name),
                    _ => self.objects.insert(name, revision),
                };
            }
        }
    }
}

fn client_options(start: WatchStart) -> WatchOptions {
    WatchOptions {
        filter: labelled("in"),
        bookmarks: true,
        ..options(start)
    }
}

async fn run_client(steps: Vec<Step>) {
    let config = CacheConfig {
        bookmark_interval: Duration::from_millis(1),
        ..quick()
    };
    let world = World::with(EmbeddedOptions::default(), config).await;
    let start = WatchStart::Initial(Freshness::Latest);
    let mut watch = world
        .cache
        .watch(client_options(start), soon())
        .await
        .unwrap();
    let mut client = Client::default();
    let mut model = BTreeMap::new();
    let mut existing = std::collections::BTreeSet::new();
    for step in steps {
        match step {
            Step::Put(name, label) => {
                let name = format!("a/{name}");
                let revision = world.put(&name, if label { "in" } else { "out" }).await;
                existing.insert(name.clone());
                if label {
                    model.insert(name, revision);
                } else {
                    model.remove(&name);
                }
            }
            Step::Delete(name) => {
                let name = format!("a/{name}");
                if existing.remove(&name) {
                    world.delete(&name).await;
                    model.remove(&name);
                }
            }
            Step::Other => drop(world.other().await),
            Step::Read(count) => {
                for _ in 0..count {
                    let wait = Duration::from_millis(2);
                    match tokio::time::timeout(wait, watch.next()).await {
                        Ok(item) => client.take(item.unwrap().unwrap()),
                        Err(_) => break,
                    }
                }
            }
            Step::Cut => {
                // Before anything was seen there is nothing to resume from.
                let start = match client.seen {
                    0 => WatchStart::Initial(Freshness::Latest),
                    seen => WatchStart::After(seen),
                };
                watch = world
                    .cache
                    .watch(client_options(start), soon())
                    .await
                    .unwrap();
            }
        }
    }
    let end = world.other().await;
    while client.seen < end {
        client.take(item(&mut watch).await);
    }
    assert_eq!(client.objects, model);
    let list = world.list(&labelled("in")).await;
    let listed: BTreeMap<_, _> = names(&list.items)
        .into_iter()
        .zip(list.items.iter().map(|o| o.revision()))
        .collect();
    assert_eq!(listed, model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_client_cut_at_random_sees_exactly_the_history(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run_client(steps));
    }
}
