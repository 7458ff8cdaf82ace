//! Clients that list, watch, lose and resume at random end with the true state.

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Put(u8, bool),
    Delete(u8),
    Other,
    /// Reads up to this many items.
    Read(u8),
    /// Drops the watch and resumes from the last revision seen.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..4_u8, any::<bool>()).prop_map(|(name, label)| Step::Put(name, label)),
        2 => (0..4_u8).prop_map(Step::Delete),
        1 => Just(Step::Other),
        3 => (0..6_u8).prop_map(Step::Read),
        2 => Just(Step::Cut),
    ]
}

/// What a client with the selector `l=in` knows.
#[derive(Default)]
struct Client {
    objects: BTreeMap<String, u64>,
    seen: u64,
    /// The newest write before its initial objects. If it is cut off among them and
    /// resumes, it hears up to here of changes to objects that it was never shown.
    initial: u64,
}

impl Client {
    fn take(&mut self, item: WatchItem) {
        match item {
            WatchItem::Bookmark { revision, .. } => {
                assert!(revision >= self.seen);
                self.seen = revision;
            }
            WatchItem::Event(delivery) => {
                let revision = delivery.revision();
                assert!(revision > self.seen, "events come in order and once");
                self.seen = revision;
                let name = delivery.object().key()[PREFIX.len()..].to_owned();
                let known = self.objects.contains_key(&name);
                if revision > self.initial {
                    let added = delivery.kind() == EventType::Added;
                    assert_eq!(known, !added, "{delivery:?}");
                }
                match delivery.kind() {
                    EventType::Deleted => self.objects.remove(&name),
                    _ => self.objects.insert(name, revision),
                };
            }
        }
    }
}

pub(super) fn client_options(start: WatchStart) -> WatchOptions {
    WatchOptions {
        filter: labelled("in"),
        bookmarks: true,
        ..options(start)
    }
}

async fn run_client(steps: Vec<Step>) {
    let config = CacheConfig {
        bookmark_interval: Duration::from_millis(1),
        ..quick()
    };
    let world = World::with(EmbeddedOptions::default(), config).await;
    let start = WatchStart::Initial(Freshness::Latest);
    let mut watch = world
        .cache
        .watch(client_options(start), soon())
        .await
        .unwrap();
    let mut client = Client::default();
    let mut model = BTreeMap::new();
    let mut existing = std::collections::BTreeSet::new();
    let mut written = 0;
    for step in steps {
        match step {
            Step::Put(name, label) => {
                let name = format!("a/{name}");
                let revision = world.put(&name, if label { "in" } else { "out" }).await;
                written = revision;
                existing.insert(name.clone());
                if label {
                    model.insert(name, revision);
                } else {
                    model.remove(&name);
                }
            }
            Step::Delete(name) => {
                let name = format!("a/{name}");
                if existing.remove(&name) {
                    written = world.delete(&name).await;
                    model.remove(&name);
                }
            }
            Step::Other => drop(world.other().await),
            Step::Read(count) => {
                for _ in 0..count {
                    let wait = Duration::from_millis(2);
                    match tokio::time::timeout(wait, watch.next()).await {
                        Ok(item) => client.take(item.unwrap().unwrap()),
                        Err(_) => break,
                    }
                }
            }
            Step::Cut => {
                // Before anything was seen there is nothing to resume from.
                let start = match client.seen {
                    0 => {
                        client.initial = written;
                        WatchStart::Initial(Freshness::Latest)
                    }
                    seen => WatchStart::After(seen),
                };
                watch = world
                    .cache
                    .watch(client_options(start), soon())
                    .await
                    .unwrap();
            }
        }
    }
    let end = world.other().await;
    while client.seen < end {
        client.take(item(&mut watch).await);
    }
    assert_eq!(client.objects, model);
    let list = world.list(&labelled("in")).await;
    let listed: BTreeMap<_, _> = names(&list.items)
        .into_iter()
        .zip(list.items.iter().map(|o| o.revision()))
        .collect();
    assert_eq!(listed, model);
}

/// The shortest histories in which a client hears of the end of an object, or of a
/// change to one, that it was never shown.
#[tokio::test]
async fn a_client_cut_among_the_initial_objects_misses_nothing() {
    for last in [Step::Put(0, true), Step::Put(0, false), Step::Delete(0)] {
        let before = [Step::Put(0, true), Step::Put(1, true), last];
        let after = [Step::Cut, Step::Read(1), Step::Cut];
        run_client([before, after].concat()).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_client_cut_at_random_sees_exactly_the_history(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run_client(steps));
    }
}
