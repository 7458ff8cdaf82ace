use super::*;
use k8s_openapi::api::core::v1::ConfigMap;

fn config_map(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.namespace = Some("ns".to_owned());
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object
}

fn informer() -> Informer<ConfigMap> {
    let state = State {
        objects: BTreeMap::new(),
        index: Some(Index {
            value: |map: &ConfigMap| map.metadata.uid.clone(),
            keys: HashMap::new(),
        }),
        departed: Departed::default(),
        subscribers: Vec::new(),
    };
    Informer {
        shared: Arc::new(Shared {
            state: RwLock::new(state),
            synced: channel(false).0,
        }),
    }
}

fn describe(change: &Change<ConfigMap>) -> String {
    let version = |o: &Arc<ConfigMap>| o.metadata.resource_version.clone().unwrap_or_default();
    match change {
        Change::Applied { old, new } => {
            format!(
                "applied {}->{}",
                old.as_ref().map_or("-".to_owned(), version),
                version(new)
            )
        }
        Change::Deleted(last) => format!("deleted {}", version(last)),
        Change::Synced => "synced".to_owned(),
    }
}

fn drain(subscription: &mut Subscription<ConfigMap>) -> Vec<String> {
    std::iter::from_fn(|| subscription.try_next())
        .map(|c| describe(&c))
        .collect()
}

#[test]
fn what_went_is_remembered_for_a_while() {
    let informer = informer();
    let gone = |uid| informer.has_gone(Some("ns"), "a", uid);
    informer.shared.apply(config_map("a", "u1", "1"));
    assert!(!gone("u1"));
    informer.shared.apply(config_map("a", "u2", "2"));
    assert!(gone("u1") && !gone("u2"), "another has its name");
    let key = ObjectKey::of(&config_map("a", "u2", "2"));
    informer.shared.delete(&key, None);
    assert!(gone("u2") && !gone("u3"));
    informer.shared.apply(config_map("a", "u2", "3"));
    assert!(!gone("u2"), "it is back");
    for n in 0..REMEMBERED {
        let name = format!("b{n}");
        let other = config_map(&name, &name, "4");
        let key = ObjectKey::of(&other);
        informer.shared.apply(other);
        informer.shared.delete(&key, None);
    }
    assert!(!gone("u1"));
    let state = informer.shared.state.read();
    assert_eq!(state.departed.uids.len(), state.departed.order.len());
    assert!(state.departed.order.len() <= REMEMBERED);
}

#[test]
fn later_changes_fold_into_unseen_earlier_ones() {
    let informer = informer();
    let mut subscription = informer.subscribe();
    informer.shared.apply(config_map("a", "u1", "1"));
    informer.shared.apply(config_map("a", "u1", "2"));
    assert_eq!(drain(&mut subscription), ["applied -->2"]);
    informer.shared.apply(config_map("a", "u1", "3"));
    informer.shared.apply(config_map("a", "u1", "4"));
    assert_eq!(drain(&mut subscription), ["applied 2->4"]);
}

#[test]
fn recreated_object_is_seen_as_deleted_then_applied() {
    let informer = informer();
    let mut subscription = informer.subscribe();
    informer.shared.apply(config_map("a", "u1", "1"));
    assert_eq!(drain(&mut subscription), ["applied -->1"]);
    informer.shared.apply(config_map("a", "u2", "5"));
    assert_eq!(drain(&mut subscription), ["deleted 1", "applied -->5"]);
}

#[test]
fn the_index_follows_the_objects() {
    let informer = informer();
    let found = |value: &str| -> Vec<String> {
        let found = informer.list_indexed(value).into_iter();
        found.filter_map(|o| o.metadata.name.clone()).collect()
    };
    informer.shared.apply(config_map("b", "u1", "1"));
    informer.shared.apply(config_map("a", "u1", "2"));
    assert_eq!(found("u1"), ["a", "b"]);
    informer.shared.apply(config_map("b", "u2", "3"));
    assert_eq!(
        (found("u1"), found("u2")),
        (vec!["a".into()], vec!["b".into()])
    );
    let a = ObjectKey::of(&config_map("a", "u1", "2"));
    informer.shared.delete(&a, None);
    assert!(found("u1").is_empty());
    let state = informer.shared.state.read();
    assert_eq!(state.index.as_ref().map(|i| i.keys.len()), Some(1));
}

#[test]
fn relist_deletes_what_vanished_and_says_synced_once() {
    let informer = informer();
    let mut subscription = informer.subscribe();
    informer.shared.apply(config_map("a", "u1", "1"));
    informer.shared.apply(config_map("b", "u2", "2"));
    let only_b = HashSet::from([ObjectKey {
        namespace: "ns".into(),
        name: "b".into(),
    }]);
    let mut both = only_b.clone();
    both.insert(ObjectKey {
        namespace: "ns".into(),
        name: "a".into(),
    });
    informer.shared.finish_list(&both);
    informer.shared.finish_list(&only_b);
    assert_eq!(
        drain(&mut subscription),
        ["deleted 1", "applied -->2", "synced"]
    );
    assert_eq!(informer.list_namespace("ns").len(), 1);
}

#[test]
fn late_subscriber_begins_with_what_is_there() {
    let informer = informer();
    informer.shared.apply(config_map("a", "u1", "1"));
    informer.shared.finish_list(&HashSet::from([ObjectKey {
        namespace: "ns".into(),
        name: "a".into(),
    }]));
    let mut subscription = informer.subscribe();
    assert_eq!(drain(&mut subscription), ["applied -->1", "synced"]);
    informer.shared.apply(config_map("a", "u1", "1"));
    assert!(
        drain(&mut subscription).is_empty(),
        "the same version again is no change"
    );
}
