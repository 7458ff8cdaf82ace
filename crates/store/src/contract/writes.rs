//! What writes do and are told.

use super::*;

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
            ttl: None,
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
