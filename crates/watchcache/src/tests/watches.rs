//! What watchers see.

use super::clients::client_options;
use super::*;

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
    let shown: Value = serde_json::from_slice(&departure.object().json()).unwrap();
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
