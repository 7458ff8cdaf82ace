//! The contract: what every engine owes, as tests.
//!
//! An engine's tests implement [`Harness`] and call [`contract_tests!`](crate::contract_tests),
//! which makes one test of each function here. Every test opens a store of its own
//! and works below [`ROOT`]; it may find other keys and any revision there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{
    Change, Error, Expect, KeyValue, ListOptions, Operation, Store, WatchEvent, WatchStream, Write,
};

/// The prefix below which the tests write.
pub const ROOT: &str = "/contract/";

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes stores for the tests.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Opens a store nobody else compacts.
    async fn open(&self) -> Arc<dyn Store>;

    /// How many changes may wait for a watcher before it is dropped; `None` skips
    /// the test of that.
    fn watch_limit(&self) -> Option<usize>;
}

/// Makes a `#[tokio::test]` of every test of the contract, run on what the
/// expression gives, a [`contract::Harness`](crate::contract::Harness).
#[macro_export]
macro_rules! contract_tests {
    ($harness:expr) => {
        $crate::contract_tests!($harness;
            a_new_key_is_read_back
            revisions_grow_by_every_write
            a_false_expectation_changes_nothing
            an_absent_key_cannot_be_deleted
            deleting_and_creating_starts_a_new_life
            one_of_many_racing_creators_wins
            racing_updates_lose_nothing
            lists_are_exact_at_every_revision
            pages_are_of_one_snapshot
            lists_keep_to_their_prefix
            the_future_cannot_be_read
            compaction_forgets_the_past_only
            a_watch_sees_everything_in_order
            a_watch_resumes_at_every_revision
            a_watch_from_the_future_waits
            a_watch_of_forgotten_changes_is_refused
            a_slow_watcher_is_dropped_and_delays_nobody
            progress_vouches_for_what_was_acknowledged
            marks_tell_without_a_round_trip
            big_values_and_odd_keys_survive
            bad_keys_are_refused
            a_closed_store_refuses_writes
            random_histories_match_a_model
        );
    };
    ($harness:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::contract::$name(&$harness).await;
            }
        )*
    };
}

fn key(name: impl std::fmt::Display) -> String {
    format!("{ROOT}{name}")
}

async fn put(store: &dyn Store, name: &str, value: impl Into<Bytes>) -> u64 {
    store
        .commit(Write::put(key(name), value))
        .await
        .expect("put")
        .revision
}

async fn delete(store: &dyn Store, name: &str) -> u64 {
    store
        .commit(Write::delete_any(key(name)))
        .await
        .expect("delete")
        .revision
}

fn pairs(items: &[KeyValue]) -> Vec<(String, Bytes)> {
    items
        .iter()
        .map(|pair| (pair.key[ROOT.len()..].to_owned(), pair.value.clone()))
        .collect()
}

async fn all(store: &dyn Store, revision: Option<u64>) -> Vec<(String, Bytes)> {
    let listing = store
        .list(
            ROOT,
            ListOptions {
                revision,
                ..ListOptions::default()
            },
        )
        .await
        .expect("list");
    assert!(!listing.more);
    pairs(&listing.items)
}

async fn next(watch: &mut WatchStream) -> WatchEvent {
    timeout(PATIENCE, watch.next())
        .await
        .expect("an event comes in time")
        .expect("the watch goes on")
        .expect("the watch is well")
}

async fn next_change(watch: &mut WatchStream) -> Arc<Change> {
    loop {
        if let WatchEvent::Change(change) = next(watch).await {
            return change;
        }
    }
}

fn small_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What was written is read, with its revisions, by get and by list.
pub async fn a_new_key_is_read_back(harness: &impl Harness) {
    let store = harness.open().await;
    assert_eq!(store.get(&key("a")).await.expect("get"), None);
    let committed = store
        .commit(Write::create(key("a"), "one"))
        .await
        .expect("create");
    let read = store
        .get(&key("a"))
        .await
        .expect("get")
        .expect("the key is there");
    assert_eq!(committed.current.as_ref(), Some(&read));
    assert_eq!(committed.previous, None);
    assert_eq!(&*read.key, key("a"));
    assert_eq!(read.value, "one");
    assert_eq!(
        (read.mod_revision, read.create_revision),
        (committed.revision, committed.revision)
    );

    let updated = store
        .commit(Write::update(key("a"), committed.revision, "two"))
        .await
        .expect("update");
    let second = store
        .get(&key("a"))
        .await
        .expect("get")
        .expect("the key is there");
    assert_eq!(second.value, "two");
    assert_eq!(second.mod_revision, updated.revision);
    assert_eq!(second.create_revision, committed.revision);
    assert_eq!(updated.previous, Some(read));
    assert_eq!(
        all(&*store, None).await,
        [("a".to_owned(), Bytes::from("two"))]
    );
}

/// Each write has a revision of its own, greater than all before, and an empty store
/// has a revision greater than zero.
pub async fn revisions_grow_by_every_write(harness: &impl Harness) {
    let store = harness.open().await;
    let mut last = store.current_revision().await.expect("revision");
    assert!(last > 0);
    for round in 0..50 {
        let revision = match round % 5 {
            4 => delete(&*store, "a").await,
            _ => put(&*store, "a", format!("{round}")).await,
        };
        assert!(revision > last);
        last = revision;
        assert!(store.current_revision().await.expect("revision") >= revision);
    }
}

/// A conflict carries what is there, and leaves no trace.
pub async fn a_false_expectation_changes_nothing(harness: &impl Harness) {
    let store = harness.open().await;
    let first = put(&*store, "a", "one").await;
    let second = put(&*store, "a", "two").await;
    let before = store.current_revision().await.expect("revision");
    let tries = [
        (Write::create(key("a"), "x"), true),
        (Write::update(key("a"), first, "x"), true),
        (Write::delete(key("a"), first), true),
        (Write::update(key("a"), second + 100, "x"), true),
        (Write::update(key("b"), second, "x"), false),
        (Write::delete(key("b"), second), false),
    ];
    for (write, exists) in tries {
        match store.commit(write.clone()).await {
            Err(Error::Conflict { key, current }) => {
                assert_eq!(key, write.key);
                let current = current.map(|pair| (pair.mod_revision, pair.value.clone()));
                let expected = exists.then(|| (second, Bytes::from("two")));
                assert_eq!(current, expected, "{write:?}");
            }
            other => panic!("{write:?} gave {other:?}"),
        }
    }
    assert_eq!(store.current_revision().await.expect("revision"), before);
    assert_eq!(
        all(&*store, None).await,
        [("a".to_owned(), Bytes::from("two"))]
    );
}

/// An unconditional delete of nothing is an error of its own kind.
pub async fn an_absent_key_cannot_be_deleted(harness: &impl Harness) {
    let store = harness.open().await;
    for expect in [Expect::Any, Expect::Absent] {
        let write = Write {
            key: key("a"),
            expect,
            op: Operation::Delete,
        };
        let answer = store.commit(write).await;
        assert!(matches!(answer, Err(Error::NotFound { .. })), "{answer:?}");
    }
}

/// A recreated key has a new create revision; watchers see both lives.
pub async fn deleting_and_creating_starts_a_new_life(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let first = put(&*store, "a", "one").await;
    let gone = store
        .commit(Write::delete(key("a"), first))
        .await
        .expect("delete");
    assert_eq!(gone.current, None);
    assert_eq!(gone.previous.expect("it was there").value, "one");
    assert_eq!(store.get(&key("a")).await.expect("get"), None);
    let second = store
        .commit(Write::create(key("a"), "two"))
        .await
        .expect("create");
    let pair = second.current.expect("it is there");
    assert_eq!(
        (pair.create_revision, pair.mod_revision),
        (second.revision, second.revision)
    );

    let mut watch = store.watch(ROOT, start).await.expect("watch");
    let changes = [
        next_change(&mut watch).await,
        next_change(&mut watch).await,
        next_change(&mut watch).await,
    ];
    assert_eq!(changes[0].previous, None);
    assert_eq!(changes[1].current, None);
    assert_eq!(changes[1].revision, gone.revision);
    assert_eq!(
        changes[1].previous.as_ref().expect("it was there").value,
        "one"
    );
    assert_eq!(
        changes[2].previous, None,
        "a deleted key has no previous value"
    );
}

/// Of many concurrent creations of one key exactly one succeeds, and the others are
/// told what it wrote.
pub async fn one_of_many_racing_creators_wins(harness: &impl Harness) {
    let store = harness.open().await;
    for round in 0..10 {
        let mut racers = JoinSet::new();
        for racer in 0..32 {
            let store = Arc::clone(&store);
            let write = Write::create(key(round), format!("{racer}"));
            racers.spawn(async move { (racer, store.commit(write).await) });
        }
        let results = racers.join_all().await;
        let winners: Vec<_> = results
            .iter()
            .filter(|(_, result)| result.is_ok())
            .collect();
        assert_eq!(winners.len(), 1);
        let winner = winners[0].0.to_string();
        for (_, result) in &results {
            match result {
                Ok(_) => {}
                Err(Error::Conflict { current, .. }) => {
                    assert_eq!(current.as_ref().expect("somebody won").value, winner);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Concurrent read-modify-write loops count right.
pub async fn racing_updates_lose_nothing(harness: &impl Harness) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 25;
    let store = harness.open().await;
    put(&*store, "counter", "0").await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let mut read = store
                    .get(&key("counter"))
                    .await
                    .expect("get")
                    .expect("is there");
                loop {
                    let text = std::str::from_utf8(&read.value).expect("a number");
                    let count: usize = text.parse().expect("a number");
                    let write =
                        Write::update(key("counter"), read.mod_revision, format!("{}", count + 1));
                    match store.commit(write).await {
                        Ok(_) => break,
                        Err(Error::Conflict { current, .. }) => {
                            read = *current.expect("nobody deletes it");
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    let read = store
        .get(&key("counter"))
        .await
        .expect("get")
        .expect("is there");
    assert_eq!(read.value, (TASKS * ROUNDS).to_string());
}

/// A list at a revision shows exactly the state after that write.
pub async fn lists_are_exact_at_every_revision(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut model = BTreeMap::new();
    let mut history = vec![(start, model.clone())];
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for round in 0..200 {
        let name = format!("{}", small_random(&mut random) % 12);
        let revision = if model.contains_key(&name) && small_random(&mut random).is_multiple_of(3) {
            model.remove(&name);
            delete(&*store, &name).await
        } else {
            let value = Bytes::from(format!("value {round}"));
            model.insert(name.clone(), value.clone());
            put(&*store, &name, value).await
        };
        history.push((revision, model.clone()));
    }
    for (revision, model) in &history {
        let expected: Vec<_> = model.clone().into_iter().collect();
        assert_eq!(
            all(&*store, Some(*revision)).await,
            expected,
            "at {revision}"
        );
        for name in 0..12 {
            let read = store.get_at(&key(name), *revision).await.expect("get");
            let value = read.map(|pair| pair.value);
            assert_eq!(
                value.as_ref(),
                model.get(&name.to_string()),
                "{name} at {revision}"
            );
        }
    }
}

/// Pages taken at one revision add up to that snapshot whatever is written between
/// them, and tell how much remains.
pub async fn pages_are_of_one_snapshot(harness: &impl Harness) {
    let store = harness.open().await;
    for number in 0..100 {
        put(&*store, &format!("{number:03}"), "old").await;
    }
    let snapshot = all(&*store, None).await;
    let mut pages = Vec::new();
    let mut opts = ListOptions {
        limit: Some(7),
        ..ListOptions::default()
    };
    loop {
        let page = store.list(ROOT, opts.clone()).await.expect("list");
        assert!(page.items.len() <= 7);
        assert_eq!(page.remaining, 100 - pages.len() - page.items.len());
        assert_eq!(page.more, page.remaining > 0);
        assert!(
            opts.revision
                .is_none_or(|revision| revision == page.revision)
        );
        pages.extend(pairs(&page.items));
        if !page.more {
            break;
        }
        let last = page.items.last().expect("a page that goes on is not empty");
        opts.start = Some(format!("{}\0", last.key));
        opts.revision = Some(page.revision);
        put(&*store, &format!("{:03}x", pages.len() + 3), "new").await;
        put(&*store, &format!("{:03}", pages.len()), "new").await;
        delete(&*store, &format!("{:03}", (pages.len() + 5).min(99))).await;
    }
    assert_eq!(pages, snapshot);

    let nothing = ListOptions {
        limit: Some(0),
        ..ListOptions::default()
    };
    let page = store.list(ROOT, nothing).await.expect("list");
    assert!(page.items.is_empty() && page.more);
}

/// Lists hold the keys of the prefix, in order, and no others.
pub async fn lists_keep_to_their_prefix(harness: &impl Harness) {
    let store = harness.open().await;
    for name in [
        "pods/b/1",
        "pods/a/2",
        "pods/a/1",
        "podtemplates/a/1",
        "pod",
        "pods",
        "pods0",
    ] {
        put(&*store, name, "x").await;
    }
    let names = |prefix: &'static str, start: Option<&'static str>| {
        let store = Arc::clone(&store);
        async move {
            let start = start.map(key);
            let opts = ListOptions {
                start,
                ..ListOptions::default()
            };
            let listing = store.list(&key(prefix), opts).await.expect("list");
            pairs(&listing.items)
                .into_iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(
        names("pods/", None).await,
        ["pods/a/1", "pods/a/2", "pods/b/1"]
    );
    assert_eq!(names("pods/a/", None).await, ["pods/a/1", "pods/a/2"]);
    assert_eq!(
        names("pods/", Some("pods/a/2")).await,
        ["pods/a/2", "pods/b/1"]
    );
    assert_eq!(
        names("pods/", Some("a")).await,
        ["pods/a/1", "pods/a/2", "pods/b/1"]
    );
    assert_eq!(names("pods/", Some("pods0")).await, [""; 0]);
    assert_eq!(names("none/", None).await, [""; 0]);
}

/// Reading a revision that does not exist yet fails and says which one does.
pub async fn the_future_cannot_be_read(harness: &impl Harness) {
    let store = harness.open().await;
    let current = put(&*store, "a", "x").await;
    let opts = ListOptions {
        revision: Some(current + 10),
        ..ListOptions::default()
    };
    let answers = [
        store.list(ROOT, opts).await.map(drop),
        store.get_at(&key("a"), current + 10).await.map(drop),
        store.compact(current + 10).await,
    ];
    for answer in answers {
        assert!(
            matches!(answer, Err(Error::FutureRevision { .. })),
            "{answer:?}"
        );
    }
}

/// After a compaction its revision and all later ones can be read, earlier ones not;
/// the current state is untouched.
pub async fn compaction_forgets_the_past_only(harness: &impl Harness) {
    let store = harness.open().await;
    let mut states = Vec::new();
    for round in 0..30 {
        let name = format!("{}", round % 7);
        let revision = if round % 5 == 4 {
            store
                .commit(Write::put(key(&name), "doomed"))
                .await
                .expect("put");
            delete(&*store, &name).await
        } else {
            put(&*store, &name, format!("{round}")).await
        };
        states.push((revision, all(&*store, None).await));
    }
    for cut in [5, 6, 20, 29] {
        let (revision, _) = states[cut];
        store.compact(revision).await.expect("compact");
        store
            .compact(revision)
            .await
            .expect("compacting again does nothing");
        for (index, (revision, state)) in states.iter().enumerate() {
            let opts = ListOptions {
                revision: Some(*revision),
                ..ListOptions::default()
            };
            match store.list(ROOT, opts).await {
                Ok(listing) if index >= cut => assert_eq!(pairs(&listing.items), *state),
                Err(Error::Compacted { .. }) if index < cut => {
                    let answer = store.get_at(&key("0"), *revision).await;
                    assert!(matches!(answer, Err(Error::Compacted { .. })), "{answer:?}");
                }
                other => panic!("list of state {index} after cut {cut} gave {other:?}"),
            }
        }
        assert!(store.oldest_revision().await.expect("oldest") >= revision);
        assert_eq!(all(&*store, None).await, states[29].1);
    }
}

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

/// Values as large as the API takes and keys of any text come back as they were.
pub async fn big_values_and_odd_keys_survive(harness: &impl Harness) {
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut random = 7;
    let big: Bytes = (0..1_400_000)
        .map(|_| small_random(&mut random) as u8)
        .collect::<Vec<_>>()
        .into();
    let long = "k".repeat(1000);
    let odd = ["big", "Grüße/日本/🦀", " ", "a//b", "%2F", "\u{1}", &long];
    let mut expected = Vec::new();
    for name in odd {
        let value = if name == "big" {
            big.clone()
        } else {
            Bytes::from(name.to_owned())
        };
        put(&*store, name, value.clone()).await;
        expected.push((name.to_owned(), value));
    }
    put(&*store, "empty", "").await;
    expected.push(("empty".to_owned(), Bytes::new()));
    let mut watch = store.watch(ROOT, start).await.expect("watch");
    for (name, value) in &expected {
        let read = store.get(&key(name)).await.expect("get").expect("is there");
        assert!(read.value == *value, "{name}");
        let change = next_change(&mut watch).await;
        assert!(
            change
                .current
                .as_ref()
                .is_some_and(|pair| pair.value == *value),
            "{name}"
        );
    }
    expected.sort();
    assert!(all(&*store, None).await == expected);
}

/// Keys that cannot be stored are refused by name.
pub async fn bad_keys_are_refused(harness: &impl Harness) {
    let store = harness.open().await;
    for bad in [String::new(), "a\0b".to_owned(), "k".repeat(5000)] {
        let answer = store.commit(Write::put(bad, "x")).await;
        assert!(
            matches!(answer, Err(Error::InvalidKey { .. })),
            "{answer:?}"
        );
    }
}

/// After close writes fail, watches end, and what was acknowledged stays readable
/// through this handle.
pub async fn a_closed_store_refuses_writes(harness: &impl Harness) {
    let store = harness.open().await;
    let revision = put(&*store, "a", "x").await;
    store.health().await.expect("the store is well");
    let mut watch = store.watch(ROOT, revision).await.expect("watch");
    timeout(PATIENCE, store.close())
        .await
        .expect("close returns");
    let answer = store.commit(Write::put(key("a"), "y")).await;
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
    assert!(store.health().await.is_err());
    assert!(
        timeout(PATIENCE, watch.next())
            .await
            .expect("the watch ends")
            .is_none()
    );
    assert_eq!(
        all(&*store, None).await,
        [("a".to_owned(), Bytes::from("x"))]
    );
    timeout(PATIENCE, store.close())
        .await
        .expect("closing again does nothing");
}

/// Random concurrent writes: the watch is a history in which every acknowledged
/// write happened exactly as acknowledged and every refusal was right.
pub async fn random_histories_match_a_model(harness: &impl Harness) {
    const TASKS: u64 = 6;
    const ROUNDS: u64 = 80;
    let store = harness.open().await;
    let start = store.current_revision().await.expect("revision");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(random_writer(
            store,
            0x1234_5678_9abc_def1 + task * 77,
            ROUNDS,
        ));
    }
    let mut acknowledged: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    acknowledged.sort_by_key(|committed| committed.revision);
    let mut watch = store.watch(ROOT, start).await.expect("watch");
    let mut model: BTreeMap<Arc<str>, KeyValue> = BTreeMap::new();
    for committed in &acknowledged {
        let change = next_change(&mut watch).await;
        assert_eq!(change.revision, committed.revision);
        assert_eq!(change.current, committed.current);
        assert_eq!(change.previous, committed.previous);
        assert_eq!(change.previous.as_ref(), model.get(&change.key));
        match &change.current {
            Some(pair) => {
                let created = change
                    .previous
                    .as_ref()
                    .map_or(change.revision, |p| p.create_revision);
                assert_eq!(pair.create_revision, created);
                model.insert(Arc::clone(&change.key), pair.clone());
            }
            None => {
                model.remove(&change.key);
            }
        }
    }
    let listing = store
        .list(ROOT, ListOptions::default())
        .await
        .expect("list");
    assert_eq!(listing.items, model.into_values().collect::<Vec<_>>());
}

async fn random_writer(
    store: Arc<dyn Store>,
    mut random: u64,
    rounds: u64,
) -> Vec<crate::Committed> {
    let mut acknowledged = Vec::new();
    for round in 0..rounds {
        let key = key(small_random(&mut random) % 5);
        let known = store
            .get(&key)
            .await
            .expect("get")
            .map_or(1, |pair| pair.mod_revision);
        let expect = match small_random(&mut random) % 3 {
            0 => Expect::Any,
            1 => Expect::Absent,
            _ => Expect::Revision(known),
        };
        let op = match small_random(&mut random) % 3 {
            0 => Operation::Delete,
            _ => Operation::Put(Bytes::from(format!("{round} {random}"))),
        };
        match store.commit(Write { key, expect, op }).await {
            Ok(committed) => acknowledged.push(committed),
            Err(Error::Conflict { current, .. }) => match (expect, current) {
                (Expect::Absent, Some(_)) | (Expect::Revision(_), None) => {}
                (Expect::Revision(revision), Some(pair)) => {
                    assert_ne!(pair.mod_revision, revision);
                }
                (expect, current) => panic!("{expect:?} was refused over {current:?}"),
            },
            Err(Error::NotFound { .. }) => assert_eq!(expect_kind(expect), "unconditional"),
            Err(other) => panic!("{other}"),
        }
    }
    acknowledged
}

fn expect_kind(expect: Expect) -> &'static str {
    match expect {
        Expect::Any | Expect::Absent => "unconditional",
        Expect::Revision(_) => "conditional",
    }
}
