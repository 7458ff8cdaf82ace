//! What watches show.

use super::*;

/// Every watcher sees every change once, in order, with the previous values, while
/// many write.
pub async fn a_watch_sees_everything_in_order(harness: &impl Harness) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 40;
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut watchers = JoinSet::new();
    for _ in 0..4 {
        let mut watch = store.watch(ROOT, start).await.expect("watch");
        watchers.spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < WRITERS * ROUNDS {
                seen.push(next_change(&mut watch).await);
            }
            seen
        });
    }
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for round in 0..ROUNDS {
                put(
                    &*store,
                    &format!("{}", (writer + round) % 5),
                    format!("{writer} {round}"),
                )
                .await;
            }
        });
    }
    writers.join_all().await;
    let all_seen = watchers.join_all().await;
    let mut state: BTreeMap<Arc<str>, KeyValue> = BTreeMap::new();
    let mut last = start;
    for change in &all_seen[0] {
        assert!(change.revision > last);
        last = change.revision;
        assert_eq!(change.previous.as_ref(), state.get(&change.key));
        let current = change.current.clone().expect("nobody deletes");
        assert_eq!(current.mod_revision, change.revision);
        state.insert(Arc::clone(&change.key), current);
    }
    for seen in &all_seen[1..] {
        assert_eq!(*seen, all_seen[0]);
    }
    let listing = store
        .list(ROOT, ListOptions::default())
        .await
        .expect("list");
    assert_eq!(listing.items, state.into_values().collect::<Vec<_>>());
}

/// Whatever revision a watcher resumes from, it sees exactly what came after, both
/// what is history and what is still to come.
pub async fn a_watch_resumes_at_every_revision(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut revisions = vec![start];
    for round in 0..20 {
        revisions.push(put(&*store, &format!("{}", round % 3), format!("{round}")).await);
        if round % 6 == 5 {
            revisions.push(delete(&*store, &format!("{}", round % 3)).await);
        }
    }
    let mut watches = Vec::new();
    for revision in &revisions {
        watches.push(store.watch(ROOT, *revision).await.expect("watch"));
    }
    for round in 0..5 {
        revisions.push(put(&*store, "later", format!("{round}")).await);
    }
    for (index, watch) in watches.iter_mut().enumerate() {
        for expected in &revisions[index + 1..] {
            assert_eq!(next_change(watch).await.revision, *expected);
        }
    }
}

/// A watch may start at a revision that does not exist yet.
pub async fn a_watch_from_the_future_waits(harness: &impl Harness) {
    let store = harness.open().await;
    let current = store.current_revision().await.expect("revision");
    let mut watch = store.watch(ROOT, current + 3).await.expect("watch");
    let mut last = current;
    while last <= current + 5 {
        last = put(&*store, "a", "x").await;
    }
    assert!(next_change(&mut watch).await.revision > current + 3);
}

/// Resuming before the compacted revision fails, at it does not.
pub async fn a_watch_of_forgotten_changes_is_refused(harness: &impl Harness) {
    let store = harness.open().await;
    let first = put(&*store, "a", "1").await;
    let second = put(&*store, "a", "2").await;
    let third = put(&*store, "a", "3").await;
    let mut early = store.watch(ROOT, first).await.expect("watch");
    store.compact(second).await.expect("compact");
    let refused = match store.watch(ROOT, first).await {
        Err(error) => error,
        // An engine may find out only when it begins to read.
        Ok(mut watch) => watch.next().await.expect("an item").expect_err("an error"),
    };
    assert!(matches!(refused, Error::Compacted { .. }), "{refused}");
    let mut watch = store.watch(ROOT, second).await.expect("watch");
    assert_eq!(next_change(&mut watch).await.revision, third);
    assert_eq!(
        next_change(&mut early).await.revision,
        second,
        "an open watch goes on"
    );
}

/// A watcher that does not read is told so, and writes go on meanwhile.
pub async fn a_slow_watcher_is_dropped_and_delays_nobody(harness: &impl Harness) {
    let Some(limit) = harness.watch_limit() else {
        return;
    };
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut slow = store.watch(ROOT, start).await.expect("watch");
    let mut last = start;
    for _ in 0..limit + 10 {
        last = timeout(PATIENCE, put(&*store, "a", "x"))
            .await
            .expect("a write is not delayed");
    }
    let mut seen = start;
    let error = loop {
        match timeout(PATIENCE, slow.next()).await.expect("an item comes") {
            Some(Ok(WatchEvent::Change(change))) => seen = change.revision,
            Some(Ok(WatchEvent::Progress(_))) => {}
            Some(Err(error)) => break error,
            None => panic!("the watch ended without an error"),
        }
    };
    assert!(matches!(error, Error::Overflow { .. }), "{error}");
    assert!(slow.next().await.is_none());
    assert!(seen < last);
    let mut resumed = store.watch(ROOT, seen).await.expect("watch");
    while seen < last {
        let change = next_change(&mut resumed).await;
        assert!(change.revision > seen);
        seen = change.revision;
    }
}

/// A progress event comes after the changes it covers and is not older than the
/// newest write acknowledged before the request, even of other keys.
pub async fn progress_vouches_for_what_was_acknowledged(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut watch = store.watch(&key("watched/"), start).await.expect("watch");
    for round in 0..20 {
        let mut wanted = Vec::new();
        for _ in 0..round % 4 {
            wanted.push(put(&*store, "watched/a", "x").await);
        }
        let acknowledged = put(&*store, "other", "x").await;
        watch.request_progress();
        let mut seen = Vec::new();
        let progress = loop {
            match next(&mut watch).await {
                WatchEvent::Change(change) => seen.push(change.revision),
                WatchEvent::Progress(revision) if revision >= acknowledged => break revision,
                WatchEvent::Progress(_) => watch.request_progress(),
            }
        };
        assert_eq!(seen, wanted);
        assert!(progress <= store.current_revision().await.expect("revision"));
    }
}

/// Where an engine keeps marks, they tell whether a consumer is complete.
pub async fn marks_tell_without_a_round_trip(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut watch = store.watch(&key("watched/"), start).await.expect("watch");
    let Some(marks) = watch.marks() else { return };
    assert!(marks.complete_at(start) >= start);
    let other = put(&*store, "other", "x").await;
    assert!(marks.complete_at(start) >= other);
    let watched = put(&*store, "watched/a", "x").await;
    assert!(marks.complete_at(start) < watched);
    assert_eq!(next_change(&mut watch).await.revision, watched);
    assert!(marks.complete_at(watched) >= watched);
    let replayed = store.watch(&key("watched/"), start).await.expect("watch");
    let marks = replayed.marks().expect("the engine keeps marks");
    assert_eq!(
        marks.complete_at(start),
        start,
        "the replay has not been applied"
    );
}
