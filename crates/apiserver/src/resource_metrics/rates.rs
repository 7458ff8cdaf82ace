//! From measurements to what is used: the last, and what processor time went by since the one before.
//!
//! The rules are those of metrics-server: a container that was started anew begins anew, and one that is young but not
//! too young is measured from its start.

use std::collections::{BTreeMap, HashMap};

use davit_listen::{MeasuredUse, ResourceScrape};

/// A container is measured from its start when that is longer ago than this, and shorter than a round.
const YOUNG: i64 = 10_000_000_000;

/// What is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Cores, in billionths.
    pub(crate) cpu: u64,
    /// Working set in bytes.
    pub(crate) memory: u64,
    /// When it was measured, in nanoseconds since the epoch.
    pub(crate) at: i64,
    /// Over how long, in nanoseconds.
    pub(crate) window: i64,
}

/// What a pod uses by container.
pub(crate) type PodUse = BTreeMap<String, Used>;

/// Two measurements, the newer and what it is compared with.
#[derive(Debug, Clone, Copy)]
struct Pair {
    last: MeasuredUse,
    before: Option<MeasuredUse>,
}

impl Pair {
    /// The pair after a further measurement; `round` is the time between two in nanoseconds.
    fn next(held: Option<&Self>, new: MeasuredUse, round: i64) -> Self {
        let age = new.started.map(|started| new.at.saturating_sub(started));
        let from_start = age.filter(|age| (YOUNG..round).contains(age));
        let before = match (from_start, held) {
            (Some(age), _) => Some(MeasuredUse {
                at: new.at - age,
                cpu: 0,
                ..new
            }),
            // started anew since
            (None, Some(held)) if new.started.is_some_and(|at| at >= held.last.at) => None,
            (None, Some(held)) if new.at > held.last.at => Some(held.last),
            // the same measurement again
            (None, Some(held)) => held.before,
            (None, None) => None,
        };
        Self { last: new, before }
    }

    fn used(&self) -> Option<Used> {
        let before = self.before?;
        let window = self.last.at.saturating_sub(before.at);
        if window <= 0 {
            return None;
        }
        // a counter that went back belongs to something else
        let spent = u128::from(self.last.cpu.checked_sub(before.cpu)?);
        let rate = spent * 1_000_000_000 / u128::from(window.unsigned_abs());
        Some(Used {
            cpu: u64::try_from(rate).ok()?,
            memory: self.last.memory,
            at: self.last.at,
            window,
        })
    }
}

/// What is known of one node and its pods.
#[derive(Debug, Default)]
pub(super) struct NodeRecord {
    node: Option<Pair>,
    /// By namespace and pod, then by container.
    pods: HashMap<(String, String), HashMap<String, Pair>>,
}

impl NodeRecord {
    /// The record after an answer of the node. What the answer lacks is gone.
    pub(super) fn next(&self, scrape: ResourceScrape, round: i64) -> Self {
        let node = scrape.node;
        let node = node.map(|new| Pair::next(self.node.as_ref(), new, round));
        let mut pods: HashMap<_, HashMap<String, Pair>> = HashMap::new();
        for ((namespace, pod, container), new) in scrape.containers {
            let key: (String, String) = (namespace, pod);
            let held = self.pods.get(&key).and_then(|pod| pod.get(&container));
            let pair = Pair::next(held, new, round);
            pods.entry(key).or_default().insert(container, pair);
        }
        Self { node, pods }
    }

    /// What the node uses, once it is known.
    pub(super) fn node(&self) -> Option<Used> {
        self.node?.used()
    }

    /// What a pod uses: nothing until it is known of each of its containers.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<PodUse> {
        let containers = self.pods.get(&(namespace.to_owned(), name.to_owned()))?;
        containers
            .iter()
            .map(|(name, pair)| Some((name.clone(), pair.used()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_listen::ContainerUseKey;

    const SECOND: i64 = 1_000_000_000;
    const ROUND: i64 = 15 * SECOND;

    fn measured(at: i64, cpu_millis: u64, started: Option<i64>) -> MeasuredUse {
        MeasuredUse {
            at: at * SECOND,
            cpu: cpu_millis * 1_000_000,
            memory: 7,
            started: started.map(|at| at * SECOND),
        }
    }

    fn scrape(node: MeasuredUse, containers: &[(&str, MeasuredUse)]) -> ResourceScrape {
        let key = |name: &str| -> ContainerUseKey { ("n".into(), "p".into(), name.into()) };
        ResourceScrape {
            node: Some(node),
            containers: containers.iter().map(|(n, m)| (key(n), *m)).collect(),
        }
    }

    #[test]
    fn a_rate_needs_two_measurements() {
        let node = |at, cpu| scrape(measured(at, cpu, None), &[]);
        let first = NodeRecord::default().next(node(100, 1000), ROUND);
        assert_eq!(first.node(), None);
        let second = first.next(node(110, 6000), ROUND);
        let used = second.node().unwrap();
        assert_eq!((used.cpu, used.memory), (500_000_000, 7));
        assert_eq!((used.at, used.window), (110 * SECOND, 10 * SECOND));
        // the same answer again changes nothing
        assert_eq!(second.next(node(110, 6000), ROUND).node(), Some(used));
        // a machine that was started again counts from nothing
        assert_eq!(second.next(node(120, 10), ROUND).node(), None);
    }

    #[test]
    fn a_pod_is_shown_with_all_its_containers() {
        let old = |at, cpu| ("old", measured(at, cpu, Some(1)));
        let node = |at| measured(at, 1, None);
        let first = NodeRecord::default().next(scrape(node(100), &[old(100, 0)]), ROUND);
        assert!(first.pod("n", "p").is_none());
        let fresh = ("new", measured(115, 5, Some(114)));
        let second = first.next(scrape(node(115), &[old(115, 1500), fresh]), ROUND);
        assert!(second.pod("n", "p").is_none(), "one has no rate yet");
        let fresh = ("new", measured(130, 1505, Some(114)));
        let third = second.next(scrape(node(130), &[old(130, 1500), fresh]), ROUND);
        let pod = third.pod("n", "p").unwrap();
        assert_eq!(pod["new"].cpu, 100_000_000);
        assert_eq!(pod["old"].cpu, 0);
        let gone = third.next(scrape(node(145), &[]), ROUND);
        assert!(gone.pod("n", "p").is_none());
    }

    #[test]
    fn young_containers_count_from_their_start() {
        let one =
            |at, cpu, start| scrape(measured(at, 1, None), &[("c", measured(at, cpu, start))]);
        let first = NodeRecord::default().next(one(112, 6000, Some(100)), ROUND);
        let used = first.pod("n", "p").unwrap()["c"];
        assert_eq!((used.cpu, used.window), (500_000_000, 12 * SECOND));
        let second = first.next(one(127, 6000, Some(100)), ROUND);
        assert_eq!(second.pod("n", "p").unwrap()["c"].cpu, 0);
        // started again one second ago
        let third = second.next(one(142, 100, Some(141)), ROUND);
        assert!(third.pod("n", "p").is_none());
    }
}
