//! Kills a writing process at random moments, again and again, and checks after
//! each death that every write it had acknowledged is there.
//!
//! The writer is this test binary, re-executed with [`WRITER`] set. It prints a line
//! for each write after it was acknowledged.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{ListOptions, Store, WatchEvent, Write};

const WRITER: &str = "DAVIT_STORE_CRASH_TEST_DIR";
const TASKS: u64 = 8;
const KEYS: u64 = 40;

/// Deaths at random moments of a running writer; `DAVIT_STORE_KILLS` overrides it, and then time does not end the test.
const KILLS: usize = 240;
/// After this many deaths a new store is begun.
const KILLS_PER_STORE: usize = 40;
/// Deaths while a store is being created.
const BIRTHS: usize = 60;
/// The test stops early rather than be a burden on a slow machine.
const BUDGET: Duration = Duration::from_secs(30);

/// What the writer acknowledged last about a key: revision and value, or a deletion.
type Acknowledged = HashMap<String, (u64, Option<String>)>;

/// Not a test: the writer process, when the environment says so.
#[test]
fn writer_process() {
    let Some(dir) = env::var_os(WRITER) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(write_forever(dir.as_ref()));
}

async fn write_forever(dir: &Path) {
    // Little history, so that compaction dies in the middle as well.
    let options = EmbeddedOptions {
        history_entries: 300,
        ..EmbeddedOptions::default()
    };
    let store = Arc::new(EmbeddedStore::open(dir, options).await.unwrap());
    // The test harness has begun a line of its own.
    say(&format!("\nopen {}", store.revision()));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for round in 0_u64.. {
                // Each task has keys of its own, so that the order of lines is the
                // order of writes for every key.
                let key = format!("/{task}/{}", round % (KEYS / TASKS));
                if round % 7 == 6 && store.get(&key).await.unwrap().is_some() {
                    let committed = store.commit(Write::delete_any(&*key)).await.unwrap();
                    say(&format!("gone {key} {}", committed.revision));
                } else {
                    let value = format!("{task}-{round}-{}", "x".repeat((round % 200) as usize));
                    let committed = store
                        .commit(Write::put(&*key, value.clone()))
                        .await
                        .unwrap();
                    say(&format!("have {key} {} {value}", committed.revision));
                }
            }
        });
    }
    tasks.join_all().await;
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .unwrap();
}

fn start_writer(dir: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "writer_process",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(WRITER, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The lines of the writer, read by a thread so that it never waits for us.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let out = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // A line cut short by the death of the writer is no acknowledgement.
        for line in out.split(b'\n').map_while(Result::ok) {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// Runs the writer for `life` after it has opened the store, kills it, and notes
/// what it acknowledged. Returns the revision it opened with.
fn live_and_die(dir: &Path, life: Duration, acknowledged: &mut Acknowledged) -> u64 {
    let mut child = start_writer(dir);
    let lines = lines_of(&mut child);
    let mut opened = None;
    let mut all = Vec::new();
    let mut deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(revision) = line.strip_prefix("open ") {
                    opened = Some(revision.parse().unwrap());
                    deadline = Instant::now() + life;
                }
                all.push(line);
            }
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => {
                let mut why = String::new();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut why)
                    .unwrap();
                panic!("the writer died by itself: {why}");
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    all.extend(lines.iter());
    for line in &all {
        note(line, acknowledged);
    }
    opened.expect("the writer opens the store in time")
}

fn note(line: &str, acknowledged: &mut Acknowledged) {
    let mut words = line.split(' ');
    let verb = words.next().unwrap_or_default();
    if !["have", "gone"].contains(&verb) {
        return;
    }
    let (Some(key), Some(revision)) = (words.next(), words.next()) else {
        return;
    };
    let Ok(revision) = revision.parse() else {
        return;
    };
    let value = words.next().map(str::to_owned);
    acknowledged.insert(key.to_owned(), (revision, value));
}

/// Opens the store and compares it with what was acknowledged. A write that was
/// under way when the writer died may be there or not, but only as a newer revision.
/// Returns the revision.
fn verify(dir: &Path, acknowledged: &Acknowledged) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = EmbeddedStore::open(dir, EmbeddedOptions::default())
            .await
            .unwrap();
        let newest = acknowledged
            .values()
            .map(|(revision, _)| *revision)
            .max()
            .unwrap_or(0);
        assert!(
            store.revision() >= newest,
            "revision {} < {newest}",
            store.revision()
        );
        for (key, (revision, value)) in acknowledged {
            let found = store.get(key).await.unwrap();
            match (&found, value) {
                (Some(pair), _) if pair.mod_revision > *revision => {}
                (Some(pair), Some(value)) => {
                    assert_eq!(pair.mod_revision, *revision, "{key}");
                    assert_eq!(pair.value, *value, "{key}");
                }
                (None, None) => {}
                // A later delete that was not acknowledged in time.
                (None, Some(_)) => assert_deleted_after(&store, key, *revision).await,
                (Some(pair), None) => panic!("{key} was deleted at {revision}: {pair:?}"),
            }
        }
        let listed = store.list("", ListOptions::default()).await.unwrap();
        assert!(
            listed
                .items
                .iter()
                .all(|pair| pair.mod_revision <= store.revision())
        );
        store.revision()
    })
}

/// Finds the unacknowledged deletion in the history.
async fn assert_deleted_after(store: &EmbeddedStore, key: &str, revision: u64) {
    let oldest = store.oldest_revision().await.unwrap();
    if oldest > revision {
        let before = store.get_at(key, oldest).await.unwrap();
        assert!(before.is_some(), "{key} of revision {revision} is lost");
    }
    let mut watch = store.watch(key, oldest.max(revision)).await.unwrap();
    watch.request_progress();
    loop {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Change(change) if &*change.key == key && change.current.is_none() => return,
            WatchEvent::Change(_) => {}
            WatchEvent::Progress(_) => panic!("{key} of revision {revision} is lost"),
        }
    }
}

#[test]
fn no_acknowledged_write_is_lost_to_kill_9() {
    let start = Instant::now();
    let asked = env::var("DAVIT_STORE_KILLS").ok();
    let asked = asked.map(|kills| kills.parse::<usize>().unwrap());
    let (mut kills, mut writes) = (0, 0);
    while kills < asked.unwrap_or(KILLS) && (asked.is_some() || start.elapsed() < BUDGET) {
        let dir = tempfile::tempdir().unwrap();
        let mut acknowledged = Acknowledged::new();
        let mut last = 0;
        for turn in 1..=KILLS_PER_STORE {
            let life = Duration::from_micros(rand_u64(kills as u64) % 40_000);
            let opened = live_and_die(dir.path(), life, &mut acknowledged);
            assert!(
                opened >= last,
                "the revision went back from {last} to {opened}"
            );
            last = opened;
            kills += 1;
            // The next writer checks the log anyway; here the contents are compared.
            if turn % 4 == 0 {
                let revision = verify(dir.path(), &acknowledged);
                assert!(
                    revision >= last,
                    "the revision went back from {last} to {revision}"
                );
                last = revision;
            }
        }
        assert!(!acknowledged.is_empty());
        writes += last;
        println!("{kills} kills, {writes} writes, {:?}", start.elapsed());
    }
}

#[test]
fn a_store_killed_at_birth_can_be_opened() {
    let start = Instant::now();
    let mut births = 0;
    while births < BIRTHS && start.elapsed() < BUDGET / 2 {
        let dir = tempfile::tempdir().unwrap();
        for attempt in 0..2 {
            let mut child = start_writer(dir.path());
            let wait = rand_u64((births * 2 + attempt) as u64 + 1000) % 25_000;
            std::thread::sleep(Duration::from_micros(wait));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        verify(dir.path(), &Acknowledged::new());
        births += 1;
    }
    println!("{births} births, {:?}", start.elapsed());
}

/// Spread out, the same on every run, different for every seed.
fn rand_u64(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
