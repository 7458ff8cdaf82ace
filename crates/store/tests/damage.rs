//! Damaged files: the store says what is damaged, or nothing of it was needed. It never panics, and never opens with
//! something else in it.
//!
//! `DAVIT_DAMAGE_CASES` says how many cases there are, `DAVIT_DAMAGE_SEED` which is the first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_faults::{Dice, asked};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{Error, KeyValue, ListOptions, Store, WatchEvent, Write};

/// All that can be asked of a store: its revision, its pairs, and the history that it still has.
#[derive(Debug, PartialEq, Eq)]
struct Everything {
    revision: u64,
    oldest: u64,
    pairs: Vec<KeyValue>,
    changes: Vec<u64>,
}

async fn read(store: &EmbeddedStore) -> Result<Everything, Error> {
    let listing = store.list("", ListOptions::default()).await?;
    let oldest = store.oldest_revision().await?;
    let mut watch = store.watch("", oldest).await?;
    let mut changes = Vec::new();
    watch.request_progress();
    while let Some(event) = watch.next().await {
        match event? {
            WatchEvent::Change(change) => changes.push(change.revision),
            WatchEvent::Progress(_) => break,
        }
    }
    Ok(Everything {
        revision: store.revision(),
        oldest,
        pairs: listing.items,
        changes,
    })
}

/// A store with tables and a journal, closed in order.
async fn make(dir: &Path) -> Everything {
    let options = EmbeddedOptions {
        history_entries: 40,
        ..EmbeddedOptions::default()
    };
    let store = EmbeddedStore::open(dir, options).await.unwrap();
    let mut dice = Dice::new(5);
    for round in 0..160 {
        let len = dice.below(if round < 120 { 150_000 } else { 400 });
        // Not to be compressed away.
        let noise: Vec<u8> = (0..len).map(|_| dice.below(256) as u8).collect();
        let key = format!("/k/{}", dice.below(40));
        store.commit(Write::put(key, noise)).await.unwrap();
    }
    store.close().await;
    drop(store);
    let store = EmbeddedStore::open(dir, EmbeddedOptions::default())
        .await
        .unwrap();
    let everything = read(&store).await.unwrap();
    store.close().await;
    assert!(everything.changes.len() > 10 && everything.pairs.len() > 20);
    everything
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Copies what is data; the reserve is held again by whoever opens the store.
fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let name = path.strip_prefix(from).unwrap();
        if name == Path::new("reserve") {
            continue;
        }
        fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        // Holes stay holes.
        let bytes = fs::read(&path).unwrap();
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        let copy = fs::File::create(to.join(name)).unwrap();
        copy.write_all_at(&bytes[..used], 0).unwrap();
        copy.set_len(bytes.len() as u64).unwrap();
    }
}

/// Damages one file, or two; says how.
fn damage(dir: &Path, dice: &mut Dice) -> String {
    let all: Vec<PathBuf> = files(dir)
        .into_iter()
        .filter(|path| !path.ends_with("lock"))
        .collect();
    let path = &all[dice.below(all.len())];
    let name = path.strip_prefix(dir).unwrap().display().to_string();
    let mut bytes = fs::read(path).unwrap();
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let at = dice.below(used);
    let how = match dice.below(8) {
        0..=2 if used > 0 => {
            bytes[at] ^= 1 << dice.below(8);
            format!("a bit of byte {at} of {name} is flipped")
        }
        3 if used > 0 => {
            let end = used.min(at + 4096);
            bytes[at..end].fill(0);
            format!("bytes {at} to {end} of {name} are zero")
        }
        4 if used > 0 => {
            let end = used.min(at + 16);
            bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte = dice.below(256) as u8);
            format!("bytes {at} to {end} of {name} are noise")
        }
        5 => {
            bytes.truncate(at);
            format!("{name} is cut at {at}")
        }
        6 => {
            fs::remove_file(path).unwrap();
            return format!("{name} is gone");
        }
        _ => {
            let other = &all[dice.below(all.len())];
            bytes = fs::read(other).unwrap();
            fs::write(other, fs::read(path).unwrap()).unwrap();
            format!(
                "{name} and {} have changed places",
                other.strip_prefix(dir).unwrap().display()
            )
        }
    };
    fs::write(path, bytes).unwrap();
    how
}

/// Opens it, reads everything and closes it: what there is, or why not.
async fn look(dir: PathBuf) -> Result<Everything, Error> {
    let store = EmbeddedStore::open(&dir, EmbeddedOptions::default()).await?;
    let everything = read(&store).await;
    store.close().await;
    everything
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_told_or_harmless() {
    let first = asked("DAVIT_DAMAGE_SEED", 1) as u64;
    let cases = asked("DAVIT_DAMAGE_CASES", 30) as u64;
    println!("DAVIT_DAMAGE_SEED={first}");
    let base = tempfile::tempdir().unwrap();
    let expected = make(base.path()).await;
    let (mut told, mut harmless, mut failures) = (0, 0, Vec::new());
    for seed in first..first + cases {
        let dir = tempfile::tempdir().unwrap();
        copy(base.path(), dir.path());
        let how = damage(dir.path(), &mut Dice::new(seed));
        let looked = tokio::spawn(look(dir.path().to_owned()));
        let fault = match tokio::time::timeout(Duration::from_secs(60), looked).await {
            Err(_) => Some("hangs".to_owned()),
            Ok(Err(panic)) => Some(format!("panics: {panic}")),
            Ok(Ok(Err(error))) => {
                told += 1;
                let text = error.to_string();
                let clear = matches!(error, Error::Corrupt { .. } | Error::Io { .. });
                (!clear || text.contains("panic")).then_some(text)
            }
            Ok(Ok(Ok(there))) if there == expected => {
                harmless += 1;
                None
            }
            Ok(Ok(Ok(there))) => Some(format!(
                "opens at {} instead of {}, with {} pairs of {}",
                there.revision,
                expected.revision,
                there.pairs.len(),
                expected.pairs.len()
            )),
        };
        if let Some(fault) = fault {
            failures.push(format!("seed {seed}: {how}: {fault}"));
        }
    }
    println!("{cases} cases: {told} told, {harmless} harmless");
    assert!(
        failures.is_empty(),
        "{}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(told > cases / 3, "hardly anything was damaged");
}
