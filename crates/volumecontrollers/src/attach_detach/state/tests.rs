use super::super::wanted::{CsiSource, FlexSource};
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
/// A handle that has what parts driver and handle in the unique name.
const NAME: &str = "kubernetes.io/csi/d^a^b/c";

fn source(exclusive: bool) -> AttachSource {
    AttachSource::Csi(CsiSource {
        persistent_volume: "pv".to_owned(),
        driver: "d".to_owned(),
        handle: "a^b/c".to_owned(),
        exclusive,
    })
}

fn at(node: &str) -> VolumeOnNode {
    VolumeOnNode {
        volume: NAME.to_owned(),
        node: node.to_owned(),
    }
}

fn pod(namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// A cluster whose drivers and API server do at once what they are asked.
struct Bench {
    state: AttachState,
    now: Instant,
    version: u64,
    facts: BTreeMap<String, AttachNode>,
}

impl Bench {
    fn new(nodes: &[&str]) -> Self {
        let mut bench = Self {
            state: AttachState::default(),
            now: Instant::now(),
            version: 0,
            facts: BTreeMap::new(),
        };
        for node in nodes {
            bench.change(node, |facts| facts.ready = true);
        }
        bench
    }

    /// The node tells something new.
    fn change(&mut self, node: &str, change: impl FnOnce(&mut AttachNode)) {
        self.version += 1;
        let facts = self.facts.entry(node.to_owned()).or_default();
        change(facts);
        facts.listing.version = self.version;
        self.state.set_node(node, facts.clone());
    }

    fn in_use(&mut self, node: &str, in_use: bool) {
        self.change(node, |facts| {
            facts.in_use = in_use.then(|| NAME.to_owned()).into_iter().collect();
        });
    }

    fn want(&mut self, node: &str, exclusive: bool, pods: &[ObjectReference]) {
        let wanted = WantedVolume {
            source: source(exclusive),
            pods: pods.to_vec(),
        };
        let volumes = (!pods.is_empty()).then(|| (NAME.to_owned(), wanted));
        self.state.set_wanted(node, volumes.into_iter().collect());
    }

    /// The next actions, as words, without those that only write a status: these are done at once.
    fn next(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        loop {
            let actions = self.state.next_actions(self.now);
            if actions.is_empty() {
                return words;
            }
            for action in actions {
                match action {
                    AttachAction::List { node, volumes } => {
                        self.version += 1;
                        let listing = NodeListing {
                            volumes,
                            version: self.version,
                        };
                        self.state.listed(&node, Some(listing.clone()), self.now);
                        self.change(&node, |facts| facts.listing = listing);
                    }
                    AttachAction::Attach { at, .. } => words.push(format!("attach {}", at.node)),
                    AttachAction::Detach { at, force, .. } => {
                        words.push(format!("detach {} {force:?}", at.node));
                    }
                    AttachAction::Warn { pod, text } => {
                        words.push(format!("{}: {text}", pod.name.unwrap_or_default()));
                    }
                }
            }
        }
    }

    fn lists(&self, node: &str) -> bool {
        self.facts[node].listing.volumes.contains_key(NAME)
    }

    /// A node has the volume attached and mounted, and its pod is gone.
    fn abandoned(exclusive: bool) -> Self {
        let mut bench = Self::new(&["a", "b"]);
        bench.want("a", exclusive, &[pod("n", "p")]);
        assert_eq!(bench.next(), ["attach a"]);
        bench.state.attached(&at("a"), Some(""), bench.now);
        bench.in_use("a", true);
        assert!(bench.next().is_empty() && bench.lists("a"));
        bench.want("a", exclusive, &[]);
        bench
    }
}

#[test]
fn volumes_are_attached_listed_and_detached() {
    let mut bench = Bench::new(&["a"]);
    bench.want("a", true, &[pod("n", "p")]);
    assert_eq!(bench.next(), ["attach a"]);
    assert!(bench.next().is_empty(), "one operation at a time");
    assert!(!bench.lists("a"));
    bench.state.attached(&at("a"), Some(""), bench.now);
    assert!(bench.next().is_empty() && bench.lists("a"));
    bench.want("a", true, &[]);
    assert_eq!(bench.next(), ["detach a None"]);
    assert!(!bench.lists("a"), "withdrawn first");
    bench
        .state
        .detached(&at("a"), DetachResult::Detached, bench.now);
    assert!(bench.next().is_empty() && !bench.state.has_volumes("a"));
}

#[test]
fn a_volume_may_be_mounted_until_its_node_is_heard_of_again() {
    let mut bench = Bench::new(&["a"]);
    bench.want("a", true, &[pod("n", "p")]);
    bench.next();
    bench.state.attached(&at("a"), Some(""), bench.now);
    bench.want("a", true, &[]);
    let actions = bench.state.next_actions(bench.now);
    assert!(
        matches!(&actions[..], [AttachAction::List { .. }]),
        "{actions:?}"
    );
    bench.in_use("a", false);
    let node = "a".to_owned();
    let VolumeOnNode { volume, .. } = at("a");
    bench.state.listed(
        &node,
        Some(NodeListing {
            volumes: BTreeMap::from([(volume, String::new())]),
            version: 1,
        }),
        bench.now,
    );
    assert_eq!(bench.next(), ["detach a None"]);
}

#[test]
fn a_ready_node_keeps_what_it_uses_for_ever() {
    let mut bench = Bench::abandoned(true);
    assert!(bench.next().is_empty());
    bench.now += 100 * MINUTE;
    assert!(bench.next().is_empty() && bench.lists("a"));
    bench.in_use("a", false);
    assert_eq!(bench.next(), ["detach a None"]);
}

#[test]
fn a_node_that_is_not_ready_loses_it_after_six_minutes() {
    let mut bench = Bench::abandoned(true);
    bench.change("a", |facts| facts.ready = false);
    assert!(bench.next().is_empty());
    let due = bench.state.next_due(bench.now);
    assert_eq!(due, Some(bench.now + 6 * MINUTE));
    bench.now += 6 * MINUTE - Duration::from_millis(1);
    assert!(bench.next().is_empty());
    bench.now += Duration::from_millis(1);
    assert_eq!(bench.next(), ["detach a Some(Timeout)"]);
    assert!(!bench.lists("a"));
}

#[test]
fn the_six_minutes_begin_anew_when_the_volume_is_wanted_again() {
    let mut bench = Bench::abandoned(true);
    bench.change("a", |facts| facts.ready = false);
    bench.next();
    bench.now += 5 * MINUTE;
    bench.want("a", true, &[pod("n", "p")]);
    assert!(bench.next().is_empty());
    bench.want("a", true, &[]);
    bench.now += 2 * MINUTE;
    assert!(bench.next().is_empty());
    bench.now += 6 * MINUTE;
    assert_eq!(bench.next(), ["detach a Some(Timeout)"]);
}

#[test]
fn a_node_that_is_gone_loses_it_after_six_minutes() {
    let mut bench = Bench::abandoned(true);
    bench.state.remove_node("a");
    assert!(bench.next().is_empty());
    bench.now += 6 * MINUTE;
    assert_eq!(bench.next(), ["detach a Some(Timeout)"]);
    bench
        .state
        .detached(&at("a"), DetachResult::Detached, bench.now);
    assert!(bench.next().is_empty());
    assert!(!bench.state.nodes.contains_key("a"), "nothing is kept");
}

#[test]
fn out_of_service_nodes_lose_it_at_once() {
    let mut bench = Bench::abandoned(true);
    bench.change("a", |facts| facts.out_of_service = true);
    assert_eq!(bench.next(), ["detach a Some(OutOfService)"]);
}

#[test]
fn exclusive_volumes_wait_and_their_pods_hear_of_it_once() {
    let mut bench = Bench::abandoned(true);
    bench.want("b", true, &[pod("n", "q")]);
    assert_eq!(
        bench.next(),
        [
            "q: Multi-Attach error for volume \"pv\" Volume is already exclusively attached to one node and can't be attached to another"
        ]
    );
    assert!(bench.next().is_empty());
    bench.in_use("a", false);
    assert_eq!(bench.next(), ["detach a None"], "the other still waits");
    bench
        .state
        .detached(&at("a"), DetachResult::Detached, bench.now);
    assert_eq!(bench.next(), ["attach b"]);
}

#[test]
fn the_holders_are_named_within_their_namespace() {
    let mut bench = Bench::abandoned(true);
    let holders = [pod("n", "p"), pod("n", "r"), pod("other", "s")];
    bench.want("a", true, &holders);
    bench.want("b", true, &[pod("n", "q"), pod("third", "t")]);
    let prefix = "Multi-Attach error for volume \"pv\" Volume is already used by";
    assert_eq!(
        bench.next(),
        [
            format!("q: {prefix} pod(s) p, r and 1 pod(s) in different namespaces"),
            format!("t: {prefix} 3 pod(s) in different namespaces"),
        ]
    );
    let local = multi_attach_reason(&pod("n", "q"), &[&holders[0]]);
    assert_eq!(local, "Volume is already used by pod(s) p");
}

#[test]
fn shared_volumes_go_to_several_nodes() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.want("a", false, &[pod("n", "p")]);
    bench.want("b", false, &[pod("n", "q")]);
    assert_eq!(bench.next(), ["attach a", "attach b"]);
}

#[test]
fn two_nodes_at_once_get_an_exclusive_volume_one_after_the_other() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.want("a", true, &[pod("n", "p")]);
    bench.want("b", true, &[pod("n", "q")]);
    assert_eq!(bench.next(), ["attach a"]);
    bench.state.attached(&at("a"), Some(""), bench.now);
    let words = bench.next();
    assert!(
        matches!(&words[..], [w] if w.ends_with("used by pod(s) p")),
        "{words:?}"
    );
}

#[test]
fn failed_attachments_are_tried_again_and_taken_back() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.want("a", true, &[pod("n", "p")]);
    assert_eq!(bench.next(), ["attach a"]);
    for wait in [500, 1000, 2000] {
        bench.state.attached(&at("a"), None, bench.now);
        assert!(bench.next().is_empty());
        bench.now += Duration::from_millis(wait - 1);
        assert!(bench.next().is_empty(), "after {wait} ms");
        bench.now += Duration::from_millis(1);
        assert_eq!(bench.next(), ["attach a"]);
    }
    bench.state.attached(&at("a"), None, bench.now);
    assert!(!bench.lists("a"));
    bench.want("a", true, &[]);
    bench.want("b", true, &[pod("n", "q")]);
    let words = bench.next();
    assert_eq!(words.len(), 1, "only told to wait: {words:?}");
    bench.now += MINUTE;
    assert_eq!(bench.next(), ["detach a None"]);
    bench
        .state
        .detached(&at("a"), DetachResult::Detached, bench.now);
    assert_eq!(bench.next(), ["attach b"]);
}

#[test]
fn a_volume_that_could_not_be_withdrawn_stays() {
    let mut bench = Bench::abandoned(true);
    bench.in_use("a", false);
    let actions = bench.state.next_actions(bench.now);
    assert!(matches!(&actions[..], [AttachAction::List { volumes, .. }] if volumes.is_empty()));
    bench.state.listed("a", None, bench.now);
    assert!(bench.next().is_empty() && bench.lists("a"));
    bench.want("a", true, &[pod("n", "p")]);
    bench.now += MINUTE;
    assert!(bench.next().is_empty(), "it is still attached");
}

#[test]
fn a_volume_wanted_again_while_it_is_withdrawn_stays() {
    let mut bench = Bench::abandoned(true);
    bench.in_use("a", false);
    let actions = bench.state.next_actions(bench.now);
    let [AttachAction::List { volumes, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    bench.want("a", true, &[pod("n", "p")]);
    bench.version += 1;
    let listing = NodeListing {
        volumes: volumes.clone(),
        version: bench.version,
    };
    bench.state.listed("a", Some(listing.clone()), bench.now);
    bench.change("a", |facts| facts.listing = listing);
    assert!(bench.next().is_empty());
    assert!(bench.lists("a"), "and is listed again");
}

#[test]
fn detachments_that_fail_leave_the_volume_uncertain() {
    let mut bench = Bench::abandoned(true);
    bench.in_use("a", false);
    assert_eq!(bench.next(), ["detach a None"]);
    bench
        .state
        .detached(&at("a"), DetachResult::Failed, bench.now);
    bench.want("a", true, &[pod("n", "p")]);
    assert!(
        bench.next().is_empty() && !bench.lists("a"),
        "not safe to mount"
    );
    bench.now += MINUTE;
    assert_eq!(bench.next(), ["attach a"]);
}

#[test]
fn a_node_that_uses_the_volume_after_all_keeps_it() {
    let mut bench = Bench::abandoned(true);
    bench.in_use("a", false);
    assert_eq!(bench.next(), ["detach a None"]);
    bench
        .state
        .detached(&at("a"), DetachResult::InUse, bench.now);
    assert!(bench.next().is_empty());
    assert!(bench.lists("a"));
}

#[test]
fn old_news_of_a_node_do_not_hide_what_it_lists() {
    let mut bench = Bench::abandoned(true);
    let mut old = bench.facts["a"].clone();
    old.in_use.clear();
    old.listing = NodeListing {
        volumes: BTreeMap::new(),
        version: 1,
    };
    bench.state.set_node("a", old);
    let actions = bench.state.next_actions(bench.now);
    assert!(
        matches!(&actions[..], [AttachAction::List { .. }]),
        "withdrawn before it is detached: {actions:?}"
    );
}

#[test]
fn after_a_restart_nothing_is_done_twice() {
    let mut bench = Bench::new(&[]);
    let listing = NodeListing {
        volumes: BTreeMap::from([
            (NAME.to_owned(), String::new()),
            ("example.com/flex/v".to_owned(), "/dev/sdb".to_owned()),
        ]),
        version: 1,
    };
    let facts = AttachNode {
        ready: true,
        listing,
        ..AttachNode::default()
    };
    bench.change("a", |known| *known = facts);
    bench.change("b", |known| known.ready = true);
    bench.state.restore(at("a"), source(true), true);
    bench.want("a", true, &[pod("n", "p")]);
    assert!(
        bench.next().is_empty(),
        "neither attached nor detached again"
    );
    bench.want("a", true, &[]);
    assert_eq!(bench.next(), ["detach a None"]);
    let left: Vec<&str> = bench.facts["a"]
        .listing
        .volumes
        .keys()
        .map(|v| &**v)
        .collect();
    assert_eq!(left, ["example.com/flex/v"], "others' volumes stay listed");
}

#[test]
fn volumes_of_flex_drivers_are_listed_with_their_devices() {
    let mut bench = Bench::new(&["a"]);
    let flex = VolumeOnNode {
        volume: "acme/disk/pv".to_owned(),
        node: "a".to_owned(),
    };
    let listing = NodeListing {
        volumes: BTreeMap::from([(flex.volume.clone(), "/dev/sdb".to_owned())]),
        version: 100,
    };
    let facts = AttachNode {
        ready: true,
        listing,
        ..AttachNode::default()
    };
    bench.state.set_node("a", facts);
    assert_eq!(bench.state.unknown_listed().first(), Some(&flex));
    let source = AttachSource::Flex(FlexSource {
        driver: "acme/disk".to_owned(),
        volume: "pv".to_owned(),
        options: "{}".to_owned(),
        exclusive: true,
    });
    let wanted = WantedVolume {
        source: source.clone(),
        pods: Vec::new(),
    };
    let wanted = BTreeMap::from([(flex.volume.clone(), wanted)]);
    bench.state.set_wanted("a", wanted);
    bench.state.restore(flex.clone(), source, true);
    assert!(bench.state.unknown_listed().is_empty());
    assert_eq!(bench.state.next_actions(bench.now), [], "as it was");
    bench.state.verify(&flex);
    assert_eq!(bench.state.settled().count(), 0);
    assert_eq!(bench.state.next_actions(bench.now), []);
    bench.state.verified(&flex, false);
    let actions = bench.state.next_actions(bench.now);
    assert!(
        actions
            .iter()
            .any(|a| matches!(a, AttachAction::Attach { at, .. } if *at == flex)),
        "{actions:?}"
    );
    bench.state.attached(&flex, Some("/dev/sdc"), bench.now);
    bench.state.listed("a", None, bench.now - BACKOFF.1);
    let actions = bench.state.next_actions(bench.now);
    let listed = actions.iter().find_map(|action| match action {
        AttachAction::List { volumes, .. } => volumes.get(&flex.volume),
        _ => None,
    });
    assert_eq!(listed.map(String::as_str), Some("/dev/sdc"));
}

#[test]
fn after_a_restart_uncertain_attachments_are_settled() {
    let mut bench = Bench::new(&["a", "b"]);
    bench.state.restore(at("a"), source(true), false);
    bench.want("a", true, &[pod("n", "p")]);
    assert_eq!(bench.next(), ["attach a"]);
    let mut bench = Bench::new(&["a", "b"]);
    bench.state.restore(at("a"), source(true), false);
    assert_eq!(bench.next(), ["detach a None"], "nobody wants it");
    let mut bench = Bench::new(&[]);
    bench.state.restore(at("gone"), source(true), false);
    assert!(
        bench.next().is_empty(),
        "nothing is known of what it mounts"
    );
    bench.now += 6 * MINUTE;
    assert_eq!(bench.next(), ["detach gone Some(Timeout)"]);
}

#[test]
fn an_attachment_that_was_taken_away_is_made_again() {
    let mut bench = Bench::new(&["a"]);
    bench.want("a", true, &[pod("n", "p")]);
    bench.next();
    bench.state.attached(&at("a"), Some(""), bench.now);
    bench.next();
    assert_eq!(bench.state.settled().count(), 1);
    bench.state.lost(&at("a"));
    assert_eq!(bench.next(), ["attach a"]);
    assert!(!bench.lists("a"));
}
