//! Which nodes were refused, and why.

use std::sync::Arc;

use super::Status;

/// How many of the latest different refusals a new one is compared with.
const COMPARED: usize = 8;

/// Shares equal refusals: of thousands of nodes most are refused for one of a few reasons.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedRefusals {
    /// The one met last comes last.
    recent: Vec<Arc<Status>>,
}

impl SharedRefusals {
    /// The value that stands for all refusals equal to this.
    pub(crate) fn share(&mut self, status: Status) -> Arc<Status> {
        if let Some(at) = self.recent.iter().rposition(|known| **known == status) {
            let last = self.recent.len() - 1;
            self.recent.swap(at, last);
            return self.recent[last].clone();
        }
        let shared = Arc::new(status);
        if self.recent.len() == COMPARED {
            self.recent.remove(0);
        }
        self.recent.push(shared.clone());
        shared
    }
}

/// The nodes that were refused, by place in the snapshot, each with the refusal.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    nodes: Vec<(usize, Arc<Status>)>,
    shared: SharedRefusals,
}

impl Refusals {
    /// Adds a node with why it is refused.
    pub fn push(&mut self, at: usize, status: Status) {
        let status = self.shared.share(status);
        self.nodes.push((at, status));
    }

    /// The same with a refusal that other nodes share.
    pub(crate) fn push_shared(&mut self, at: usize, status: Arc<Status>) {
        self.nodes.push((at, status));
    }

    /// How many nodes were refused.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The nodes, in the order in which they were looked at.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Status)> {
        self.nodes.iter().map(|(at, status)| (*at, &**status))
    }

    /// The refusals with the number of nodes of each. Nodes that come one after the other and were refused alike are
    /// counted together, so that there are few; equal ones may come again.
    pub fn kinds(&self) -> impl Iterator<Item = (&Status, usize)> {
        let alike = |a: &(usize, Arc<Status>), b: &(usize, Arc<Status>)| Arc::ptr_eq(&a.1, &b.1);
        let runs = self.nodes.chunk_by(alike);
        runs.filter_map(|run| Some((&*run.first()?.1, run.len())))
    }

    /// The first refusals, for changes; others that were alike stay as they are.
    pub(crate) fn first_mut(&mut self, most: usize) -> impl Iterator<Item = (usize, &mut Status)> {
        let first = self.nodes.iter_mut().take(most);
        first.map(|(at, status)| (*at, Arc::make_mut(status)))
    }
}

impl FromIterator<(usize, Status)> for Refusals {
    fn from_iter<I: IntoIterator<Item = (usize, Status)>>(nodes: I) -> Self {
        let mut refusals = Self::default();
        for (at, status) in nodes {
            refusals.push(at, status);
        }
        refusals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_refusals_are_one_value_and_are_counted_together() {
        let reason = |i: usize| Status::unschedulable(format!("Insufficient {}", i % 3));
        let mut refusals: Refusals = (0..30).map(|at| (at, reason(at / 5))).collect();
        let kinds: Vec<(Status, usize)> = refusals.kinds().map(|(s, n)| (s.clone(), n)).collect();
        assert_eq!(kinds, (0..6).map(|i| (reason(i), 5)).collect::<Vec<_>>());
        let first = refusals.nodes[0].1.clone();
        assert!(Arc::ptr_eq(&first, &refusals.nodes[15].1));
        drop(first);
        for (_, status) in refusals.first_mut(1) {
            status.reasons.push("more".into());
        }
        let said: Vec<usize> = refusals.iter().map(|(_, s)| s.reasons.len()).collect();
        assert_eq!((said[0], said[1..].iter().max()), (2, Some(&1)));
        assert_eq!((refusals.len(), refusals.is_empty()), (30, false));
    }

    #[test]
    fn many_different_refusals_are_kept_apart() {
        let reason = |at: usize| Status::unschedulable(at.to_string());
        let refusals: Refusals = (0..100).map(|at| (at, reason(at))).collect();
        assert!(refusals.iter().all(|(at, s)| s.message() == at.to_string()));
        assert!(refusals.shared.recent.len() <= COMPARED);
    }
}
