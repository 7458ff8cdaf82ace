//! Power cuts: what was acknowledged is there after each, revisions never go back, and the store opens.
//!
//! A store works on a disk that records what it does (`davit_faults::disk`), and then is opened on what that disk may
//! hold if the power went at some moment: right after, with nothing that was not synced, or with any part of it.
//! `DAVIT_POWER_CUTS` says how many moments (all, if there are fewer), `DAVIT_POWER_SEED` which chances.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use davit_faults::disk::{Event, Image, Recorder, Recording, Survival};
use davit_faults::{Dice, asked};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{ListOptions, Store, Write};

/// A write that was acknowledged: key, and value unless it was a deletion.
type Done = (String, Option<Bytes>);

/// What a store was asked to do.
struct Work {
    /// How often it is opened and closed.
    lives: usize,
    /// Writes of each writer in each life.
    writes: usize,
    /// Bytes of the largest value.
    value: usize,
    /// Whether commits wait for the disk.
    sync: bool,
    seed: u64,
}

const WRITERS: usize = 4;
const KEYS: usize = 24;

/// Everything that was acknowledged, by revision.
type History = BTreeMap<u64, Done>;

fn options(sync: bool) -> EmbeddedOptions {
    // Little history, so that compaction is cut as well.
    EmbeddedOptions {
        history_entries: 100,
        retention: Duration::from_secs(3600),
        sync,
        ..EmbeddedOptions::default()
    }
}

/// Works on a store below `dir`; notes each write when it was acknowledged.
async fn work(dir: &Path, plan: &Work, recorder: &Arc<Recorder>) -> History {
    let history = Arc::new(Mutex::new(History::new()));
    for life in 0..plan.lives {
        let store = Arc::new(EmbeddedStore::open(dir, options(plan.sync)).await.unwrap());
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (store, recorder) = (Arc::clone(&store), Arc::clone(recorder));
            let history = Arc::clone(&history);
            let mut dice = Dice::new(plan.seed * 1000 + (life * WRITERS + writer) as u64);
            let (writes, value) = (plan.writes, plan.value);
            tasks.spawn(async move {
                for round in 0..writes {
                    let key = format!("/{writer}/{}", dice.below(KEYS / WRITERS));
                    let present = store.get(&key).await.unwrap().is_some();
                    let text = if present && dice.once(5) {
                        None
                    } else {
                        // Not to be compressed away.
                        let len = dice.below(value);
                        let noise: Vec<u8> = (0..len).map(|_| dice.below(256) as u8).collect();
                        Some(Bytes::from(
                            [format!("{life}-{round}-").as_bytes(), &noise].concat(),
                        ))
                    };
                    let write = match &text {
                        Some(text) => Write::put(&*key, text.clone()),
                        None => Write::delete_any(&*key),
                    };
                    let revision = store.commit(write).await.unwrap().revision;
                    recorder.say(revision);
                    history.lock().unwrap().insert(revision, (key, text));
                }
            });
        }
        tasks.join_all().await;
        store.close().await;
    }
    let history = history.lock().unwrap();
    history.clone()
}

/// What the disk holds is a store, has all that was acknowledged, and goes on; or why not.
async fn verify(image: &Image, history: &History, acknowledged: u64) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    image.write_to(dir.path()).unwrap();
    let dir = dir.path().join("store");
    let store = open(&dir).await?;
    let revision = store.revision();
    let last = history.keys().next_back().copied().unwrap_or(0);
    if revision < acknowledged || (revision > last && !history.is_empty()) {
        return Err(format!(
            "opens at {revision}, {acknowledged} was acknowledged, {last} is the last"
        ));
    }
    let mut expected = BTreeMap::new();
    for (key, value) in history.range(..=revision).map(|(_, done)| done) {
        match value {
            Some(value) => expected.insert(key.as_str(), value),
            None => expected.remove(key.as_str()),
        };
    }
    let listed = store.list("", ListOptions::default()).await;
    let listed = listed.map_err(|error| error.to_string())?.items;
    let there: BTreeMap<&str, &Bytes> = listed
        .iter()
        .map(|pair| (&*pair.key, &pair.value))
        .collect();
    if there != expected {
        let keys: Vec<&&str> = expected
            .keys()
            .filter(|key| there.get(**key) != expected.get(**key))
            .collect();
        return Err(format!(
            "at {revision} it holds something else for {keys:?}"
        ));
    }
    let next = store.commit(Write::put("/next", "x")).await;
    let next = next.map_err(|error| error.to_string())?.revision;
    store.close().await;
    drop(store);
    let again = open(&dir).await?;
    let kept = again
        .get("/next")
        .await
        .map_err(|error| error.to_string())?;
    if kept.map(|pair| pair.mod_revision) != Some(next) || next != revision + 1 {
        return Err(format!(
            "the write after {revision} was {next} and is not there"
        ));
    }
    Ok(())
}

async fn open(dir: &Path) -> Result<EmbeddedStore, String> {
    let opened = EmbeddedStore::open(dir, options(true)).await;
    opened.map_err(|error| format!("does not open: {error}"))
}

/// A disk, or a printed skip.
fn recorder(dir: &Path) -> Option<Arc<Recorder>> {
    Recorder::mount_or_skip(dir).map(Arc::new)
}

fn ended(recorder: Arc<Recorder>) -> Recording {
    Arc::into_inner(recorder).unwrap().end()
}

/// What may be left at each of the moments that are looked at.
fn cuts(recording: &Recording, from: usize, moments: usize, seed: u64) -> Vec<(usize, Survival)> {
    let last = recording.events.len();
    let step = ((last - from) / moments.max(1)).max(1);
    let mut dice = Dice::new(seed);
    let mut cuts = Vec::new();
    for base in (from..=last).step_by(step) {
        let cut = (base + dice.below(step)).min(last);
        let chance = seed * 1_000_000 + cut as u64;
        cuts.extend([
            (cut, Survival::All),
            (cut, Survival::Nothing),
            (cut, Survival::Some(chance)),
            (cut, Survival::SomeWithoutJournal(chance)),
        ]);
    }
    cuts
}

/// What is wrong after power cuts at so many moments; `None` without a disk.
async fn failures(name: &str, plan: &Work, moments: usize) -> Option<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let disk = recorder(dir.path())?;
    let history = work(&dir.path().join("store"), plan, &disk).await;
    let recording = ended(disk);
    let syncs = recording
        .events
        .iter()
        .filter(|event| matches!(event, Event::Synced { .. }));
    let syncs = syncs.count();
    let cuts = cuts(&recording, 0, moments, plan.seed);
    let mut failures = Vec::new();
    for (cut, survival) in &cuts {
        let acknowledged = recording.said(*cut).max().unwrap_or(0);
        let image = recording.image(*cut, *survival);
        if let Err(why) = verify(&image, &history, acknowledged).await {
            failures.push(format!("seed {} cut {cut} {survival:?}: {why}", plan.seed));
        }
    }
    println!(
        "{name}: {} changes with {syncs} syncs, {} images of {} writes",
        recording.events.len(),
        cuts.len(),
        history.len()
    );
    Some(failures)
}

async fn check(name: &str, plan: Work, moments: usize) {
    let moments = asked("DAVIT_POWER_CUTS", moments);
    let Some(mut failures) = failures(name, &plan, moments).await else {
        return;
    };
    let count = failures.len();
    failures.truncate(10);
    assert!(failures.is_empty(), "{count}:\n{}", failures.join("\n"));
}

fn seed() -> u64 {
    let seed = asked("DAVIT_POWER_SEED", 1) as u64;
    println!("DAVIT_POWER_SEED={seed}");
    seed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_to_a_power_cut() {
    let plan = Work {
        lives: 3,
        writes: 40,
        value: 300,
        sync: true,
        seed: seed(),
    };
    check("small values", plan, 30).await;
}

/// The test would have seen it: a store that acknowledges before the disk has it is not what was
/// written after a power cut. Whether writes are missing, files begin with zeros or are not there at
/// all is for the moments of the cuts to say: a store that waits shows none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_wait_for_the_disk_is_found_out() {
    let plan = Work {
        lives: 1,
        writes: 20,
        value: 300,
        sync: false,
        seed: 1,
    };
    let Some(failures) = failures("without syncs", &plan, 5).await else {
        return;
    };
    assert!(!failures.is_empty());
}

/// Values of a size that makes the database write tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_while_tables_are_written() {
    let plan = Work {
        lives: 2,
        writes: 30,
        value: 150_000,
        sync: true,
        seed: seed(),
    };
    check("large values", plan, 6).await;
}

/// The power goes again while the store is opened after a power cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_while_it_recovers_loses_nothing() {
    let moments = asked("DAVIT_POWER_CUTS", 2);
    let plan = Work {
        lives: 2,
        writes: 25,
        value: 300,
        sync: true,
        seed: seed(),
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = recorder(dir.path()) else {
        return;
    };
    let history = work(&dir.path().join("store"), &plan, &disk).await;
    let first = ended(disk);
    for (cut, survival) in cuts(&first, first.events.len() / 4, moments, plan.seed) {
        let acknowledged = first.said(cut).max().unwrap_or(0);
        let Some(disk) = recorder(dir.path()) else {
            return;
        };
        first.image(cut, survival).write_to(dir.path()).unwrap();
        disk.settle();
        disk.say(acknowledged);
        let opened = open(&dir.path().join("store")).await;
        let seen = opened.unwrap().revision();
        disk.say(seen);
        let second = ended(disk);
        let from = second
            .events
            .iter()
            .position(|event| *event == Event::Said(acknowledged));
        for (again, then) in cuts(&second, from.unwrap(), 1, plan.seed) {
            // What was shown to readers once may not go either.
            let acknowledged = second.said(again).max().unwrap_or(acknowledged);
            let image = second.image(again, then);
            if let Err(why) = verify(&image, &history, acknowledged).await {
                panic!(
                    "seed {} cut {cut} {survival:?}, then {again} {then:?}: {why}",
                    plan.seed
                );
            }
        }
    }
}
