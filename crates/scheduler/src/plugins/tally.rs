//! What the pods of all nodes add up to for pods alike, kept from one attempt to the next: only nodes that have changed are counted
//! anew. A cluster has many nodes, and an attempt changes one.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use crate::cache::Snapshot;
use crate::node::NodeInfo;

/// How many kinds of pods are remembered.
const KINDS: usize = 8;

/// Counts into which the shares of nodes are put, and out of which they are taken.
pub(super) trait Totals: Clone + Debug {
    /// Something that the pods of one node add.
    type Share: Debug;

    /// Adds a share with sign 1, takes it off with sign -1.
    fn book(&mut self, share: &Self::Share, sign: i64);
}

/// The counts of one kind of pods.
#[derive(Debug)]
struct Tally<K, T: Totals> {
    kind: Arc<K>,
    totals: T,
    nodes: Vec<Counted<T::Share>>,
}

/// A node that was counted, with what it has added. A node that has changed is another value, and the old one with its pods need not
/// stay for the comparison.
#[derive(Debug)]
struct Counted<S> {
    node: Weak<NodeInfo>,
    shares: Box<[S]>,
}

/// The counts of the kinds of pods that came last. A kind `K` is all that the counts of a pod go by: pods of one kind have the same.
#[derive(Debug)]
pub(super) struct Tallies<K, T: Totals>(VecDeque<Tally<K, T>>);

impl<K, T: Totals> Default for Tallies<K, T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K, T: Totals> Tallies<K, T> {
    /// The kind for which `is` says yes, with its counts in a cluster: `start` makes a kind that is new with counts of nothing, `shares`
    /// says what a node adds.
    pub(super) fn counts(
        &mut self,
        snapshot: &Snapshot,
        is: impl Fn(&K) -> bool,
        start: impl FnOnce() -> (K, T),
        shares: impl FnMut(&NodeInfo) -> Box<[T::Share]>,
    ) -> (Arc<K>, T) {
        let known = self.0.iter().position(|tally| is(&tally.kind));
        let known = known.and_then(|at| self.0.remove(at));
        let nodes = snapshot.nodes().len();
        let mut tally = known
            .filter(|tally| tally.nodes.len() == nodes)
            .unwrap_or_else(|| Tally::new(start(), nodes));
        tally.update(snapshot, shares);
        let counts = (tally.kind.clone(), tally.totals.clone());
        self.0.push_front(tally);
        self.0.truncate(KINDS);
        counts
    }
}

impl<K, T: Totals> Tally<K, T> {
    fn new((kind, totals): (K, T), nodes: usize) -> Self {
        let uncounted = || Counted {
            node: Weak::new(),
            shares: Box::default(),
        };
        Self {
            kind: Arc::new(kind),
            totals,
            nodes: std::iter::repeat_with(uncounted).take(nodes).collect(),
        }
    }

    fn update(
        &mut self,
        snapshot: &Snapshot,
        mut shares: impl FnMut(&NodeInfo) -> Box<[T::Share]>,
    ) {
        for (counted, node) in self.nodes.iter_mut().zip(snapshot.nodes()) {
            if counted.node.as_ptr() == Arc::as_ptr(node) {
                continue;
            }
            for share in &counted.shares {
                self.totals.book(share, -1);
            }
            *counted = Counted {
                node: Arc::downgrade(node),
                shares: shares(node),
            };
            for share in &counted.shares {
                self.totals.book(share, 1);
            }
        }
    }
}
