//! What lists and gets show.

use super::*;

#[tokio::test]
async fn an_unused_cache_costs_nothing() {
    let world = World::new().await;
    world.put("a/1", "x").await;
    let filter = Filter::default();
    let page = world
        .cache
        .page(PageOptions::default(), &filter, soon())
        .await
        .unwrap();
    assert_eq!(names(&page.items), ["a/1"]);
    assert!(world.cache.running.get().is_none());
    assert_eq!(world.cache.object_count(), None);
}

#[tokio::test]
async fn reads_see_every_acknowledged_write() {
    let world = World::new().await;
    for round in 0..200 {
        let revision = match round % 4 {
            0 => world.other().await,
            _ => world.put(&format!("a/{}", round % 3), "x").await,
        };
        let list = world.list(&Filter::default()).await;
        assert!(list.revision >= revision);
        if round % 4 != 0 {
            let name = format!("a/{}", round % 3);
            let found = list
                .items
                .iter()
                .find(|object| object.key().ends_with(&name))
                .unwrap();
            assert_eq!(found.revision(), revision);
        }
    }
}

#[tokio::test]
async fn lists_filter_by_namespace_name_and_predicate() {
    let world = World::new().await;
    for (name, label) in [("a/1", "x"), ("a/2", "y"), ("ab/1", "x"), ("b/1", "y")] {
        world.put(name, label).await;
    }
    let everything = world.list(&Filter::default()).await;
    assert_eq!(names(&everything.items), ["a/1", "a/2", "ab/1", "b/1"]);
    let namespace = Some("a".to_owned());
    let in_a = Filter {
        namespace: namespace.clone(),
        ..Filter::default()
    };
    assert_eq!(names(&world.list(&in_a).await.items), ["a/1", "a/2"]);
    let one = Filter {
        namespace,
        name: Some("2".to_owned()),
        predicate: None,
    };
    assert_eq!(names(&world.list(&one).await.items), ["a/2"]);
    let named = Filter {
        name: Some("1".to_owned()),
        ..Filter::default()
    };
    assert_eq!(
        names(&world.list(&named).await.items),
        ["a/1", "ab/1", "b/1"]
    );
    assert_eq!(
        names(&world.list(&labelled("y")).await.items),
        ["a/2", "b/1"]
    );
}

#[tokio::test]
async fn an_object_is_decoded_once_for_a_revision() {
    let world = World::new().await;
    let revision = world.put("a/1", "x").await;
    let lists = [
        world.list(&Filter::default()).await,
        world.list(&Filter::default()).await,
    ];
    let [one, two] = lists.map(|list| list.items[0].json());
    assert_eq!(one, two);
    let expected = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"labels":{{"l":"x"}},"name":"1","namespace":"a","resourceVersion":"{revision}"}}}}"#
    );
    assert_eq!(one, expected);
    let page = PageOptions::default();
    let page = world
        .cache
        .page(page, &Filter::default(), soon())
        .await
        .unwrap();
    assert_eq!(page.items[0].json(), one);
    assert_eq!(world.decoded.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn revisions_to_come_are_waited_for_and_then_too_large() {
    let world = World::new().await;
    let current = world.put("a/1", "x").await;
    let wait = Instant::now() + Duration::from_millis(60);
    let too_large = |error: CacheError| {
        assert!(
            matches!(error, CacheError::TooLarge { requested, current: c }
            if requested == current + 5 && c == current),
            "{error:?}"
        );
    };
    let freshness = Freshness::AtLeast(current + 5);
    let filter = Filter::default();
    too_large(
        world
            .cache
            .list(freshness, &filter, wait)
            .await
            .unwrap_err(),
    );
    let at = PageOptions {
        revision: Some(current + 5),
        ..PageOptions::default()
    };
    too_large(world.cache.page(at, &filter, wait).await.unwrap_err());
    let later = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        for _ in 0..5 {
            world.other().await;
        }
    };
    let (list, ()) = tokio::join!(world.cache.list(freshness, &filter, soon()), later);
    assert!(list.unwrap().revision >= current + 5);
}

#[tokio::test]
async fn pages_are_exact_and_under_selectors_full() {
    let world = World::new().await;
    for number in 0..50 {
        let label = if number % 5 == 0 { "in" } else { "out" };
        world.put(&format!("a/{number:02}"), label).await;
    }
    world.put("b/1", "in").await;
    let filter = Filter {
        namespace: Some("a".to_owned()),
        ..labelled("in")
    };
    let mut options = PageOptions {
        limit: Some(4),
        ..PageOptions::default()
    };
    let mut found = Vec::new();
    loop {
        let page = world
            .cache
            .page(options.clone(), &filter, soon())
            .await
            .unwrap();
        assert_eq!(page.remaining, None);
        found.extend(names(&page.items));
        world.delete("a/45").await;
        world.put("a/45", "out").await;
        options.revision = Some(page.revision);
        options.start = page.next;
        if options.start.is_none() {
            break;
        }
        assert_eq!(page.items.len(), 4);
    }
    let expected: Vec<_> = (0..50)
        .step_by(5)
        .map(|number| format!("a/{number:02}"))
        .collect();
    assert_eq!(found, expected);

    let everything = PageOptions {
        limit: Some(20),
        ..PageOptions::default()
    };
    let page = world
        .cache
        .page(everything, &Filter::default(), soon())
        .await
        .unwrap();
    assert_eq!((page.items.len(), page.remaining), (20, Some(31)));
    let nothing = world
        .cache
        .page(PageOptions::default(), &labelled("none"), soon())
        .await;
    assert!(nothing.unwrap().items.is_empty());
    world.store.compact(world.store.revision()).await.unwrap();
    options.revision = Some(page.revision - 1);
    let error = world
        .cache
        .page(options, &filter, soon())
        .await
        .unwrap_err();
    assert!(matches!(error, CacheError::Expired { .. }), "{error}");
}
