//! Random histories against a model.

use super::*;

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
        match store
            .commit(Write {
                key,
                expect,
                op,
                ttl: None,
            })
            .await
        {
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
