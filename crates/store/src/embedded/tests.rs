//! Tests of what only the embedded engine does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::disk::{Disk, DiskError};
use super::mvcc::{FIRST_REVISION, Mvcc, RecordId, StoredPair};
use super::records::Records;
use super::{EmbeddedOptions, EmbeddedStore};
use crate::{Change, Error, KeyValue, ListOptions, Store, WatchEvent, Write};

async fn open(dir: &std::path::Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, EmbeddedOptions::default())
        .await
        .unwrap()
}

async fn everything(store: &EmbeddedStore) -> Vec<KeyValue> {
    store.list("", ListOptions::default()).await.unwrap().items
}

#[tokio::test]
async fn a_reopened_store_has_its_state_its_history_and_its_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let start = store.revision();
    for round in 0..20 {
        store
            .commit(Write::put(format!("k{}", round % 4), format!("{round}")))
            .await
            .unwrap();
    }
    store.commit(Write::delete_any("k0")).await.unwrap();
    let (state, revision) = (everything(&store).await, store.revision());
    assert!(store.health().await.is_ok());
    drop(store);

    let store = open(dir.path()).await;
    assert_eq!(store.revision(), revision);
    assert_eq!(everything(&store).await, state);
    let mut watch = store.watch("", start).await.unwrap();
    for expected in start + 1..=revision {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Change(change) => assert_eq!(change.revision, expected),
            other => panic!("{other:?}"),
        }
    }
    let next = store.commit(Write::create("k0", "again")).await.unwrap();
    assert_eq!(next.revision, revision + 1);
}

#[tokio::test]
async fn a_compacted_store_reopens_and_never_reuses_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for round in 0..10 {
        store
            .commit(Write::put("kept", format!("{round}")))
            .await
            .unwrap();
        store
            .commit(Write::put("gone", format!("{round}")))
            .await
            .unwrap();
    }
    let last = store
        .commit(Write::delete_any("gone"))
        .await
        .unwrap()
        .revision;
    store.compact(last).await.unwrap();
    let state = everything(&store).await;
    drop(store);

    let store = open(dir.path()).await;
    assert_eq!(store.revision(), last);
    assert_eq!(store.oldest_revision().await.unwrap(), last);
    assert_eq!(everything(&store).await, state);
    let answer = store.watch("", last - 1).await;
    assert!(matches!(answer, Err(Error::Compacted { .. })), "{answer:?}");
    assert_eq!(
        store
            .commit(Write::create("gone", "x"))
            .await
            .unwrap()
            .revision,
        last + 1
    );
}

#[tokio::test]
async fn a_directory_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let second = EmbeddedStore::open(dir.path(), EmbeddedOptions::default()).await;
    match second {
        Err(Error::Locked { holder, .. }) => assert_eq!(holder, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    drop(store);
    open(dir.path()).await;
}

#[tokio::test]
async fn an_interrupted_creation_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    std::fs::create_dir_all(path.join("keyspaces")).unwrap();
    std::fs::write(path.join("0.jnl"), "half").unwrap();
    std::fs::write(path.join("version"), "").unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.revision(), FIRST_REVISION);
}

#[tokio::test]
async fn a_write_torn_by_a_power_loss_is_dropped_and_damage_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let first = store
        .commit(Write::put("a", "first value"))
        .await
        .unwrap()
        .revision;
    store.commit(Write::put("a", "other value")).await.unwrap();
    drop(store);
    // As if it had not been closed.
    std::fs::remove_file(dir.path().join("closed")).unwrap();
    let journal = dir.path().join("db/0.jnl");
    let sound = std::fs::read(&journal).unwrap();
    let hole = |text: &[u8]| {
        let mut bytes = sound.clone();
        let at = bytes
            .windows(text.len())
            .position(|window| window == text)
            .unwrap();
        bytes[at..at + text.len()].fill(0);
        std::fs::write(&journal, bytes).unwrap();
    };

    hole(b"first value");
    let damaged = EmbeddedStore::open(dir.path(), EmbeddedOptions::default()).await;
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");

    hole(b"other value");
    let store = open(dir.path()).await;
    assert_eq!(store.revision(), first);
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "first value");
    let next = store.commit(Write::put("a", "next value")).await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(store.get("a").await.unwrap(), next.current);
    drop(store);

    // What a store had when it was closed is not cut short by anything.
    hole(b"other value");
    let damaged = EmbeddedStore::open(dir.path(), EmbeddedOptions::default()).await;
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    std::fs::write(&journal, &sound[..40]).unwrap();
    let damaged = EmbeddedStore::open(dir.path(), EmbeddedOptions::default()).await;
    let error = damaged.unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// Nobody takes it for one whose creation was cut short, and begins anew in its place.
#[tokio::test]
async fn a_store_without_its_marker_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.commit(Write::put("a", "x")).await.unwrap();
    drop(store);
    let marker = dir.path().join("complete");
    std::fs::remove_file(&marker).unwrap();
    for _ in 0..2 {
        let refused = EmbeddedStore::open(dir.path(), EmbeddedOptions::default()).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("\"complete\" is gone"), "{error}");
    }
    // As it says.
    std::fs::write(&marker, "").unwrap();
    let store = open(dir.path()).await;
    assert_eq!(store.get("a").await.unwrap().unwrap().value, "x");
}

/// What a disk has that keeps nothing.
struct NoRecords;

impl Records for NoRecords {
    fn read(&self, id: &RecordId) -> crate::Result<Bytes> {
        panic!("{id:?} is not held in memory");
    }
}

/// A disk that fails from the nth append on.
struct Failing {
    appends: u64,
    fail_from: u64,
    written: Arc<AtomicU64>,
}

impl Disk for Failing {
    fn append(&mut self, changes: &[Arc<Change>]) -> Result<(), DiskError> {
        self.appends += 1;
        if self.appends >= self.fail_from {
            return Err(DiskError::Broken("input/output error".to_owned()));
        }
        self.written
            .fetch_add(changes.len() as u64, Ordering::Relaxed);
        // Time for others to queue up behind.
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    }

    fn forget(&mut self, _: &[RecordId], _: u64) -> Result<(), DiskError> {
        Ok(())
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(NoRecords)
    }
}

#[tokio::test]
async fn after_a_failed_write_none_is_acknowledged_and_none_is_visible() {
    let written = Arc::new(AtomicU64::new(0));
    let disk = Failing {
        appends: 0,
        fail_from: 4,
        written: Arc::clone(&written),
    };
    let store = EmbeddedStore::start(
        "/nowhere".as_ref(),
        EmbeddedOptions::default(),
        Box::new(disk),
        Mvcc::new(FIRST_REVISION),
    )
    .unwrap();
    let store = Arc::new(store);
    let mut stream = store.watch("", FIRST_REVISION).await.unwrap();
    let mut results = Vec::new();
    // Each round needs one append at least, so that the fourth fails for sure.
    for round in 0..4 {
        let mut writers = JoinSet::new();
        for number in 0..25 {
            let store = Arc::clone(&store);
            let write = Write::create(format!("{round}/{number}"), "x");
            writers.spawn(async move { store.commit(write).await });
        }
        results.extend(writers.join_all().await);
    }
    let acknowledged = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(acknowledged as u64, written.load(Ordering::Relaxed));
    assert!(acknowledged < 100);
    for error in results.into_iter().filter_map(Result::err) {
        assert!(
            matches!(error, Error::Io { .. } | Error::Poisoned { .. }),
            "{error}"
        );
    }
    assert_eq!(everything(&store).await.len(), acknowledged);
    assert_eq!(store.revision(), FIRST_REVISION + acknowledged as u64);
    let later = store.commit(Write::put("later", "x")).await.unwrap_err();
    assert!(later.to_string().contains("input/output error"), "{later}");
    assert!(matches!(store.health().await, Err(Error::Poisoned { .. })));
    for _ in 0..acknowledged {
        assert!(matches!(
            stream.next().await,
            Some(Ok(WatchEvent::Change(_)))
        ));
    }
    stream.request_progress();
    let last = stream.next().await.unwrap().unwrap();
    assert_eq!(last, WatchEvent::Progress(store.revision()));
}

/// A disk that now and then says it has stopped, sometimes after it has written.
struct Stopping {
    inner: super::disk::FjallDisk,
    appends: u64,
}

impl Disk for Stopping {
    fn append(&mut self, changes: &[Arc<Change>]) -> Result<(), DiskError> {
        self.appends += 1;
        let stopped = Err(DiskError::Stopped("no space".to_owned()));
        match self.appends % 3 {
            0 => stopped,
            1 => self.inner.append(changes),
            _ => self.inner.append(changes).and(stopped),
        }
    }

    fn forget(&mut self, garbage: &[RecordId], revision: u64) -> Result<(), DiskError> {
        self.inner.forget(garbage, revision)
    }

    fn records(&self) -> Arc<dyn Records> {
        self.inner.records()
    }

    fn reopen(&mut self) -> crate::Result<Mvcc> {
        self.inner.reopen()
    }
}

#[tokio::test]
async fn a_stopped_disk_is_opened_again_and_what_it_holds_has_happened() {
    let dir = tempfile::tempdir().unwrap();
    let (inner, state) = super::disk::FjallDisk::open(dir.path(), true).unwrap();
    let disk = Box::new(Stopping { inner, appends: 0 });
    let store = EmbeddedStore::start(dir.path(), EmbeddedOptions::default(), disk, state).unwrap();
    let mut watch = store.watch("", FIRST_REVISION).await.unwrap();
    let mut acknowledged = 0;
    for number in 0..9 {
        match store.commit(Write::create(format!("{number}"), "x")).await {
            Ok(_) => acknowledged += 1,
            Err(Error::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // The last append stopped with nothing written.
    assert_eq!(acknowledged, 3);
    let held = everything(&store).await;
    assert_eq!(held.len(), 6);
    for revision in FIRST_REVISION + 1..=FIRST_REVISION + 6 {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Change(change) => assert_eq!(change.revision, revision),
            other => panic!("{other:?}"),
        }
    }
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(everything(&store).await, held);
}

/// A disk that blocks until told to go on.
struct Gate(std::sync::mpsc::Receiver<()>);

impl Disk for Gate {
    fn append(&mut self, _: &[Arc<Change>]) -> Result<(), DiskError> {
        self.0
            .recv()
            .map_err(|error| DiskError::Broken(error.to_string()))
    }

    fn forget(&mut self, _: &[RecordId], _: u64) -> Result<(), DiskError> {
        Ok(())
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::new(NoRecords)
    }
}

#[tokio::test]
async fn a_stuck_disk_blocks_no_reader_and_writers_for_a_bounded_time() {
    let (go, gate) = std::sync::mpsc::channel();
    let options = EmbeddedOptions {
        queue: 2,
        commit_timeout: Duration::from_millis(100),
        ..EmbeddedOptions::default()
    };
    let state = Mvcc::new(FIRST_REVISION);
    let store =
        EmbeddedStore::start("/nowhere".as_ref(), options, Box::new(Gate(gate)), state).unwrap();
    let store = Arc::new(store);
    let mut writers = JoinSet::new();
    for number in 0..6 {
        let store = Arc::clone(&store);
        writers.spawn(async move { store.commit(Write::put(format!("{number}"), "x")).await });
    }
    assert_eq!(store.get("0").await.unwrap(), None);
    let results = writers.join_all().await;
    let busy = results
        .iter()
        .filter(|r| matches!(r, Err(Error::Busy { .. })))
        .count();
    let unknown = results
        .iter()
        .filter(|r| matches!(r, Err(Error::OutcomeUnknown { .. })))
        .count();
    assert!(
        busy >= 1 && unknown >= 3 && busy + unknown == 6,
        "{results:?}"
    );
    // What was accepted happens after all.
    for _ in 0..unknown {
        go.send(()).unwrap();
    }
    store.close().await;
    assert_eq!(everything(&store).await.len(), unknown);
}

#[tokio::test]
async fn history_keeps_to_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        history_entries: 50,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(dir.path(), options).await.unwrap();
    for round in 0..200 {
        store
            .commit(Write::put(format!("{}", round % 3), format!("{round}")))
            .await
            .unwrap();
    }
    let (oldest, current) = (store.oldest_revision().await.unwrap(), store.revision());
    assert!(
        (50..=50 + 16).contains(&(current - oldest)),
        "{oldest} {current}"
    );
    assert_eq!(everything(&store).await.len(), 3);
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(store.oldest_revision().await.unwrap(), oldest);
    assert_eq!(store.revision(), current);
    assert_eq!(everything(&store).await.len(), 3);
}

#[tokio::test]
async fn values_older_than_the_history_are_on_the_disk_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let old = store
        .commit(Write::create("old", "a value"))
        .await
        .unwrap()
        .current;
    let young = store
        .commit(Write::create("young", "another"))
        .await
        .unwrap()
        .current;
    store.compact(store.revision() - 1).await.unwrap();
    let held = |store: &EmbeddedStore, key: &str| {
        let found = store.shared.state.read().get(key);
        matches!(found, Some(StoredPair::Pair(_)))
    };
    assert!(!held(&store, "old") && held(&store, "young"));
    assert_eq!(store.get("old").await.unwrap(), old);
    assert_eq!(
        everything(&store).await,
        [old.clone().unwrap(), young.unwrap()]
    );
    drop(store);

    let store = open(dir.path()).await;
    assert!(!held(&store, "old") && held(&store, "young"));
    let committed = store.commit(Write::put("old", "anew")).await.unwrap();
    assert_eq!(committed.previous, old);
    assert!(held(&store, "old"));
    assert_eq!(
        store.get_at("old", committed.revision - 1).await.unwrap(),
        old
    );
    drop(store);

    let store = open(dir.path()).await;
    let mut watch = store.watch("", committed.revision - 1).await.unwrap();
    match watch.next().await.unwrap().unwrap() {
        WatchEvent::Change(change) => assert_eq!(change.previous, old),
        other => panic!("{other:?}"),
    }
}

/// A read finds in memory where a value is, and compaction removes it before the read gets there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_are_right_while_everything_is_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        sync: false,
        ..EmbeddedOptions::default()
    };
    let store = Arc::new(EmbeddedStore::open(dir.path(), options).await.unwrap());
    let value = |key: u64, round: u64| format!("{key} in round {round}");
    for key in 0..4 {
        let write = Write::put(format!("{key}"), value(key, 0));
        store.commit(write).await.unwrap();
    }
    let writer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for round in 1..300 {
                for key in 0..4 {
                    let write = Write::put(format!("{key}"), value(key, round));
                    store.commit(write).await.unwrap();
                }
                store.compact(store.revision()).await.unwrap();
            }
        })
    };
    let round_of = |pair: &KeyValue| -> u64 {
        let text = std::str::from_utf8(&pair.value).unwrap();
        let (key, round) = text.split_once(" in round ").unwrap();
        assert_eq!(key, &*pair.key);
        round.parse().unwrap()
    };
    while !writer.is_finished() {
        let listed = everything(&store).await;
        assert_eq!(listed.len(), 4);
        for pair in &listed {
            let newer = store.get(&pair.key).await.unwrap().unwrap();
            assert!(round_of(&newer) >= round_of(pair));
        }
    }
    writer.await.unwrap();
    assert_eq!(store.get("3").await.unwrap().unwrap().value, value(3, 299));
}

#[test]
fn old_history_is_compactable_and_young_is_not() {
    let mut state = Mvcc::new(FIRST_REVISION);
    let start = Instant::now();
    for step in 0..10 {
        let revision = state.revision() + 1;
        let key: Arc<str> = Arc::from("k");
        let value = Bytes::from(vec![0; 1000]);
        let current = KeyValue {
            key: key.clone(),
            value,
            mod_revision: revision,
            create_revision: 2,
        };
        let change = Change {
            revision,
            key,
            current: Some(current),
            previous: state.get("k").map(|found| match found {
                StoredPair::Pair(pair) => pair,
                StoredPair::Record(id) => panic!("{id:?} is not held in memory"),
            }),
        };
        state.apply(Arc::new(change), start + Duration::from_secs(step));
    }
    let at = |seconds| start + Duration::from_secs(seconds);
    let age = Duration::from_secs(5);
    assert_eq!(state.compactable(at(4), age, 100, usize::MAX), None);
    assert_eq!(state.compactable(at(7), age, 100, usize::MAX), Some(4));
    assert_eq!(state.compactable(at(0), age, 4, usize::MAX), Some(7));
    // Each holds the value it superseded, and the newest its own.
    let newest_three = 3 * 1320 + 1000;
    assert_eq!(state.compactable(at(0), age, 100, newest_three), Some(8));
    assert_eq!(state.compactable(at(100), age, 100, usize::MAX), Some(11));
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Compact(u8),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u8, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0..6_u8).prop_map(Step::Delete),
        1 => any::<u8>().prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

type State = BTreeMap<String, (Bytes, u64, u64)>;

/// The store beside the history of states it should have.
struct Checked {
    dir: tempfile::TempDir,
    store: Option<EmbeddedStore>,
    history: BTreeMap<u64, State>,
    oldest: u64,
}

impl Checked {
    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().unwrap()
    }

    fn last(&self) -> (u64, State) {
        let (revision, state) = self.history.last_key_value().unwrap();
        (*revision, state.clone())
    }

    async fn take(&mut self, step: Step) {
        let (revision, mut state) = self.last();
        match step {
            Step::Put(key, value) => {
                let (key, value) = (format!("/{key}"), Bytes::from(vec![value; 20]));
                let committed = self
                    .store()
                    .commit(Write::put(&*key, value.clone()))
                    .await
                    .unwrap();
                assert_eq!(committed.revision, revision + 1);
                let created = state
                    .get(&key)
                    .map_or(revision + 1, |(_, _, created)| *created);
                state.insert(key, (value, revision + 1, created));
                self.history.insert(revision + 1, state);
            }
            Step::Delete(key) => {
                let key = format!("/{key}");
                let answer = self.store().commit(Write::delete_any(&*key)).await;
                if state.remove(&key).is_some() {
                    assert_eq!(answer.unwrap().revision, revision + 1);
                    self.history.insert(revision + 1, state);
                } else {
                    assert!(matches!(answer, Err(Error::NotFound { .. })));
                }
            }
            Step::Compact(share) => {
                let span = revision - self.oldest;
                let at = self.oldest + span * u64::from(share) / 255;
                self.store().compact(at).await.unwrap();
                self.oldest = at;
            }
            Step::Reopen => {
                self.store = None;
                self.store = Some(open(self.dir.path()).await);
                assert_eq!(self.store().revision(), revision);
            }
        }
    }

    async fn check(&self) {
        for (revision, state) in &self.history {
            let opts = ListOptions {
                revision: Some(*revision),
                ..ListOptions::default()
            };
            let listing = self.store().list("/", opts).await;
            if *revision < self.oldest {
                assert!(
                    matches!(listing, Err(Error::Compacted { .. })),
                    "{listing:?}"
                );
                continue;
            }
            let items = listing.unwrap().items.into_iter();
            let found: State = items
                .map(|pair| {
                    (
                        pair.key.to_string(),
                        (pair.value, pair.mod_revision, pair.create_revision),
                    )
                })
                .collect();
            assert_eq!(found, *state, "at {revision}");
            let mut watch = self.store().watch("/", *revision).await.unwrap();
            for expected in revision + 1..=self.store().revision() {
                match watch.next().await.unwrap().unwrap() {
                    WatchEvent::Change(change) => assert_eq!(change.revision, expected),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn any_history_with_compactions_and_restarts_matches_the_model(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let store = open(dir.path()).await;
            let history = BTreeMap::from([(FIRST_REVISION, State::new())]);
            let mut checked =
                Checked { dir, store: Some(store), history, oldest: FIRST_REVISION };
            for step in steps {
                checked.take(step).await;
            }
            checked.check().await;
            checked.take(Step::Reopen).await;
            checked.check().await;
        });
    }
}
