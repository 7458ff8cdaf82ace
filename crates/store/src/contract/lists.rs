//! What lists show, now and in the past.

use super::*;

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
