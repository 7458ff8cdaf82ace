//! Random clients of one server, and of three servers on an etcd of three members, while servers and members are killed,
//! paused and cut off. All that the clients were told is judged by `davit_faults::history`.
//!
//! `DAVIT_HISTORY_SECONDS` says how long a run lasts, `DAVIT_HISTORY_RUNS` how many there are, `DAVIT_HISTORY_SEED` with
//! which chances the first one works, `DAVIT_HISTORY_FAULT_SECONDS` how long a fault lasts at most; a history that cannot be is kept in a file that the failure names.

mod clients;
mod faults;

use crate::etcd::server::Server;
use crate::harness;
use clients::{Book, Maps};
use davit_faults::history::{Event, History, Token, Told, judge};
use davit_faults::{Dice, asked};
use faults::{Fault, Three};
use harness::Cluster;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 5;
const WATCHERS: u64 = 3;
/// Operations of which a history has at least as many.
const ENOUGH: usize = 150;
/// How long a slow machine may take for that.
const SLOW: Duration = Duration::from_secs(60);
/// How long the watchers may take to see the last change, after all faults are healed.
const LAST: Duration = Duration::from_secs(60);

async fn maps(kubeconfig: &Path) -> Maps {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let file = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options)
        .await
        .unwrap();
    // Whoever tries again by himself does not tell what happened the first time.
    config.default_retry = false;
    kube::Api::namespaced(kube::Client::try_from(config).unwrap(), "default")
}

/// Clients and watchers work while `trouble` goes on; what they saw.
async fn record(
    seed: u64,
    servers: Vec<Maps>,
    trouble: impl FnOnce(&Book) + Send + 'static,
) -> History {
    clients::clear(&servers[0]).await;
    let book = Arc::new(Book::default());
    let tasks = |first: u64, count: u64| {
        (first..first + count).map(|number| {
            // Each begins at another server.
            let mut servers = servers.clone();
            let from = number as usize % servers.len();
            servers.rotate_left(from);
            (Arc::clone(&book), servers, Dice::new(seed * 100 + number))
        })
    };
    let clients = tasks(0, CLIENTS)
        .map(|(book, servers, dice)| tokio::spawn(clients::work(book, servers, dice)));
    let clients: Vec<_> = clients.collect();
    let watchers = tasks(CLIENTS, WATCHERS)
        .map(|(book, servers, dice)| tokio::spawn(clients::watch(book, servers, dice)));
    let watchers: Vec<_> = watchers.collect();
    let shared = Arc::clone(&book);
    let trouble = tokio::task::spawn_blocking(move || trouble(&shared));
    trouble.await.unwrap();
    book.stop();
    for client in clients {
        client.await.unwrap();
    }
    clients::last_change(&book, &servers).await;
    for watcher in watchers {
        let seen = tokio::time::timeout(LAST, watcher).await;
        seen.expect("a watcher does not see the last change")
            .unwrap();
    }
    Arc::into_inner(book).unwrap().into_history()
}

fn check(name: &str, seed: u64, history: &History) {
    let told = |told: Told| {
        history
            .operations
            .iter()
            .filter(|one| one.told == told)
            .count()
    };
    let events: usize = history.watches.iter().map(|watch| watch.events.len()).sum();
    println!(
        "{name}, seed {seed}: {} operations ({} without an answer), {} lists, {events} events of {} watches",
        history.operations.len(),
        told(Told::Unknown),
        history.lists.len(),
        history.watches.len()
    );
    assert!(
        history.operations.len() >= ENOUGH && told(Told::Deleted) > 0,
        "hardly anything happened"
    );
    let begun = Instant::now();
    let faults = judge(history);
    println!("judged in {:?}", begun.elapsed());
    if !faults.is_empty() {
        let file = std::env::temp_dir().join(format!("davit-history-{name}-{seed}.txt"));
        std::fs::write(&file, format!("{history:#?}")).unwrap();
        let shown = faults
            .iter()
            .take(10)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n");
        panic!(
            "seed {seed}, kept in {}, {} faults:\n{shown}",
            file.display(),
            faults.len()
        );
    }
    check_judge(seed, history);
}

/// The judge would have seen it: the history with a fault put in is refused.
fn check_judge(seed: u64, history: &History) {
    let mut dice = Dice::new(seed);
    let refused = |what: &str, history: &History| {
        assert!(!judge(history).is_empty(), "seed {seed}: {what} passes");
    };
    let is_change = |event: &Event| matches!(event, Event::Changed { .. });

    let watches = 0..history.watches.len();
    let longest = watches
        .max_by_key(|watch| history.watches[*watch].events.len())
        .unwrap();

    let mut missed = history.clone();
    let events = &mut missed.watches[longest].events;
    let changes: Vec<usize> = (0..events.len())
        .filter(|at| is_change(&events[*at].1))
        .collect();
    // Not the last one: a watch ends where it ends.
    events.remove(changes[dice.below(changes.len() - 1)]);
    refused("a missed event", &missed);

    let mut doubled = history.clone();
    let events = &mut doubled.watches[longest].events;
    let again = changes[dice.below(changes.len())];
    events.insert(again, events[again].clone());
    refused("a doubled event", &doubled);

    let mut stale = history.clone();
    if let Some((read, seen)) = stale_read(history) {
        stale.operations[read].told = Told::Seen(Some(seen));
        refused("a stale read", &stale);
    }

    let mut lost = history.clone();
    let mut writes = lost.operations.iter();
    let write = writes
        .rfind(|one| matches!(one.told, Told::Written(_)))
        .unwrap();
    let Told::Written(revision) = write.told else {
        return;
    };
    for watch in &mut lost.watches {
        watch
            .events
            .retain(|(_, event)| event.revision() != revision);
    }
    refused("a lost write", &lost);

    let mut old = history.clone();
    let list = old
        .lists
        .iter_mut()
        .rev()
        .find(|list| list.current && !list.objects.is_empty());
    let list = list.unwrap();
    list.objects.pop_last();
    refused("a list without one of its objects", &old);
}

/// A read, by its number, and what it must not have seen: something older than a write that was acknowledged before.
fn stale_read(history: &History) -> Option<(usize, (Token, u64))> {
    let reads = history.operations.iter().enumerate().rev();
    for (number, read) in reads.filter(|(_, one)| matches!(one.told, Told::Seen(Some(_)))) {
        let (mut newest, mut seen) = (0_u64, Vec::new());
        for one in history.operations.iter().filter(|one| one.key == read.key) {
            match one.told {
                Told::Written(revision) if one.ended < read.began => newest = newest.max(revision),
                Told::Seen(Some(what)) => seen.push(what),
                _ => {}
            }
        }
        if let Some(old) = seen.into_iter().find(|(_, revision)| *revision < newest) {
            return Some((number, old));
        }
    }
    None
}

/// Seeds of the runs, printed.
fn seeds() -> std::ops::Range<u64> {
    let first = asked("DAVIT_HISTORY_SEED", 1) as u64;
    let runs = asked("DAVIT_HISTORY_RUNS", 1) as u64;
    println!("DAVIT_HISTORY_SEED={first}");
    first..first + runs
}

/// Until the time is over, and longer where hardly anything happened meanwhile.
fn goes_on(book: &Book, end: Instant) -> bool {
    let now = Instant::now();
    now < end || (now < end + SLOW && book.operations() < ENOUGH)
}

fn lasting(usual: usize) -> Duration {
    Duration::from_secs(asked("DAVIT_HISTORY_SECONDS", usual) as u64)
}

/// Items 90 of the API and the embedded store: one server, which is killed now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_of_one_server_see_can_be() {
    let mut cluster = tokio::task::spawn_blocking(|| Cluster::up(&["--no-node"]))
        .await
        .unwrap();
    cluster.keep_port();
    let cluster = Arc::new(parking_lot::Mutex::new(cluster));
    for seed in seeds() {
        let kubeconfig = cluster.lock().kubeconfig.clone();
        let servers = vec![maps(&kubeconfig).await];
        let (shared, end) = (Arc::clone(&cluster), Instant::now() + lasting(4));
        let mut dice = Dice::new(seed);
        let history = record(seed, servers, move |book| {
            while goes_on(book, end) {
                std::thread::sleep(Duration::from_millis(1000 + dice.below(1500) as u64));
                let mut cluster = shared.lock();
                cluster.kill();
                cluster.start_again();
            }
        });
        check("one", seed, &history.await);
    }
}

/// Items 90 and 92 to 94: three servers on an etcd of three members, with all kinds of faults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_of_three_servers_on_etcd_see_can_be() {
    let Some(members) = tokio::task::spawn_blocking(|| Server::cluster(3))
        .await
        .unwrap()
    else {
        return;
    };
    let longest = asked("DAVIT_HISTORY_FAULT_SECONDS", 2);
    let three = Arc::new(parking_lot::Mutex::new(Three::start(members).await));
    for seed in seeds() {
        let kubeconfigs = three.lock().kubeconfigs();
        let mut servers = Vec::new();
        for kubeconfig in kubeconfigs {
            servers.push(maps(&kubeconfig).await);
        }
        let (shared, end) = (Arc::clone(&three), Instant::now() + lasting(6));
        let mut dice = Dice::new(seed);
        let history = record(seed, servers, move |book| {
            let mut three = shared.lock();
            let mut turn = dice.below(Fault::KINDS);
            while goes_on(book, end) {
                std::thread::sleep(Duration::from_millis(300 + dice.below(700) as u64));
                // All kinds come round; whom they hit is chance.
                let fault = Fault::choose(turn, &mut dice);
                turn += 1;
                println!("{fault:?}");
                three.suffer(
                    fault,
                    Duration::from_millis(300 + dice.below(1000 * longest - 300) as u64),
                );
            }
        });
        check("three", seed, &history.await);
    }
}
