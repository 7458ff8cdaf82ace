//! What etcd and others do to the store: members that go away, compaction by others, two servers on one etcd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server;

use std::sync::Arc;
use std::time::Duration;

use davit_etcd::{EtcdOptions, EtcdStore};
use davit_store::{Error, ListOptions, Store, WatchEvent, WatchStream, Write};
use server::Server;
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

async fn open(server: &Server, identity: &str) -> EtcdStore {
    let options = EtcdOptions::new(vec![server.url()], identity);
    EtcdStore::open(options).await.unwrap()
}

async fn next(watch: &mut WatchStream) -> u64 {
    loop {
        let item = timeout(PATIENCE, watch.next()).await.unwrap();
        if let WatchEvent::Change(change) = item.unwrap().unwrap() {
            return change.revision;
        }
    }
}

/// Item 12.1.14: calls go on, and a watch loses and repeats nothing, when the member is killed and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_comes_back_is_used_again() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let store = Arc::new(open(&server, "a").await);
    let start = store.current_revision().await.unwrap();
    let mut watch = store.watch("/k/", start).await.unwrap();
    let mut written = Vec::new();
    for round in 0..5 {
        let done = store.commit(Write::put("/k/a", format!("{round}"))).await;
        written.push(done.unwrap().revision);
        assert_eq!(next(&mut watch).await, *written.last().unwrap());
        server.kill();
        let asked = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.get("/k/a").await }
        });
        sleep(Duration::from_millis(200)).await;
        server.run();
        let read = asked.await.unwrap().unwrap().unwrap();
        assert_eq!(read.value, format!("{round}"));
    }
    let done = store.commit(Write::put("/k/a", "last")).await.unwrap();
    written.push(done.revision);
    assert_eq!(next(&mut watch).await, done.revision);
    // All of it once more, from the beginning.
    let mut again = store.watch("/k/", start).await.unwrap();
    for revision in written {
        assert_eq!(next(&mut again).await, revision);
    }
    store.health().await.unwrap();
}

/// Nobody there: a clear error in time, for reads, writes and health; and the store is well again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_member_everything_says_so() {
    let Some(mut server) = Server::start() else {
        return;
    };
    let store = open(&server, "a").await;
    let done = store.commit(Write::put("/a", "x")).await.unwrap();
    server.kill();
    let begun = Instant::now();
    let write = store.commit(Write::update("/a", done.revision, "y")).await;
    let read = store.get("/a").await;
    let health = store.health().await;
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(
        matches!(
            write,
            Err(Error::Unavailable(_) | Error::OutcomeUnknown { .. })
        ),
        "{write:?}"
    );
    let text = read.unwrap_err().to_string();
    assert!(text.contains(&server.url().to_string()), "{text}");
    assert!(health.is_err());
    server.run();
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = store.health().await {
        assert!(Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
    store
        .commit(Write::update("/a", done.revision, "y"))
        .await
        .unwrap();
}

/// Items 12.1.6 and 12.1.7: what another client compacts is refused as such, and the store goes on from the present.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_that_others_compacted_is_said_to_be_gone() {
    let Some(server) = Server::start() else {
        return;
    };
    let ours = open(&server, "a").await;
    let first = ours.commit(Write::put("/k/a", "1")).await.unwrap().revision;
    let second = ours.commit(Write::put("/k/b", "2")).await.unwrap().revision;
    // A second handle stands for another program; it writes nothing.
    let theirs = open(&server, "a").await;
    theirs.compact(second).await.unwrap();
    let page = ListOptions {
        revision: Some(first),
        limit: Some(1),
        ..ListOptions::default()
    };
    let listed = ours.list("/k/", page).await;
    assert!(matches!(listed, Err(Error::Compacted { .. })), "{listed:?}");
    let watched = ours.watch("/k/", first).await;
    let refused = match watched {
        Err(error) => error,
        Ok(mut watch) => watch.next().await.unwrap().unwrap_err(),
    };
    assert!(matches!(refused, Error::Compacted { .. }), "{refused}");
    let oldest = ours.oldest_revision().await.unwrap();
    let now = ListOptions {
        revision: Some(oldest),
        ..ListOptions::default()
    };
    assert_eq!(ours.list("/k/", now).await.unwrap().items.len(), 2);
}

/// The same server after a restart takes the store over at once, and the earlier process cannot write any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_replaced_writes_nothing() {
    let Some(server) = Server::start() else {
        return;
    };
    let old = open(&server, "a").await;
    old.commit(Write::create("/a", "old")).await.unwrap();
    let begun = Instant::now();
    let new = open(&server, "a").await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    new.commit(Write::put("/a", "new")).await.unwrap();
    let refused = old.commit(Write::put("/a", "old again")).await;
    assert!(
        matches!(refused, Err(Error::Owned { .. } | Error::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(new.get("/a").await.unwrap().unwrap().value, "new");
    let deadline = Instant::now() + PATIENCE;
    while !matches!(old.health().await, Err(Error::Owned { .. })) {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(50)).await;
    }
    new.commit(Write::put("/a", "newer")).await.unwrap();
}

/// Another server waits while the store is owned, and gets it when its owner ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_at_a_time() {
    let Some(server) = Server::start() else {
        return;
    };
    let first = open(&server, "a").await;
    let options = EtcdOptions::new(vec![server.url()], "b");
    let second = tokio::spawn(EtcdStore::open(options.clone()));
    sleep(Duration::from_secs(2)).await;
    assert!(!second.is_finished());
    first.commit(Write::put("/a", "x")).await.unwrap();
    first.close().await;
    let second = timeout(PATIENCE, second).await.unwrap().unwrap().unwrap();
    assert_eq!(second.get("/a").await.unwrap().unwrap().value, "x");
    second.commit(Write::put("/a", "y")).await.unwrap();
    // Below another prefix there is another store.
    let elsewhere = EtcdOptions {
        prefix: "other".to_owned(),
        ..options
    };
    let elsewhere = EtcdStore::open(elsewhere).await.unwrap();
    assert_eq!(elsewhere.get("/a").await.unwrap(), None);
    let all = elsewhere.list("", ListOptions::default()).await.unwrap();
    assert!(all.items.is_empty());
}

/// Item 12.1.24: rounds compact to where etcd was one interval before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_compacted_by_the_shared_protocol() {
    let Some(server) = Server::start() else {
        return;
    };
    let mut options = EtcdOptions::new(vec![server.url()], "a");
    options.compaction_interval = Duration::from_millis(300);
    let store = EtcdStore::open(options).await.unwrap();
    let first = store.commit(Write::put("/a", "0")).await.unwrap().revision;
    let deadline = Instant::now() + PATIENCE;
    loop {
        store.commit(Write::put("/a", "more")).await.unwrap();
        match store.get_at("/a", first).await {
            Err(Error::Compacted { .. }) => break,
            read => assert_eq!(read.unwrap().unwrap().value, "0"),
        }
        assert!(Instant::now() < deadline, "nothing is compacted");
        sleep(Duration::from_millis(50)).await;
    }
    let newest = store.current_revision().await.unwrap();
    assert!(store.oldest_revision().await.unwrap() < newest);
}

/// Item 12.1.8: what etcd would refuse is refused by its size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_etcd_does_not_take() {
    let Some(server) = Server::start() else {
        return;
    };
    let store = open(&server, "a").await;
    for size in [1_572_800, 1_572_865, 4_000_000] {
        let refused = store.commit(Write::put("/a", vec![b'x'; size])).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "{size}");
    }
    store
        .commit(Write::put("/a", vec![b'x'; 1_400_000]))
        .await
        .unwrap();
}
