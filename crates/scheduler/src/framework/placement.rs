//! Where the pods of a group may be together (KEP-5732): the points that are called for a group, not for a pod.

use std::sync::Arc;

use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use super::{Plugin, Status};
use crate::cache::Snapshot;
use crate::pod::PodInfo;

/// Nodes among which the pods of a group are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// What tells it from the others: the domain of a topology, say.
    pub name: String,
    /// The nodes by their places in the snapshot, in ascending order.
    pub nodes: Vec<usize>,
    /// The plugin that limits the group to them.
    pub plugin: &'static str,
}

impl Placement {
    /// Whether the node at this place is one of its.
    pub fn has(&self, at: usize) -> bool {
        self.nodes.binary_search(&at).is_ok()
    }
}

/// A group of which pods are about to be tried.
#[derive(Clone, Copy)]
pub struct GroupToPlace<'a> {
    /// The group.
    pub group: &'a PodGroup,
    /// The cluster.
    pub snapshot: &'a Snapshot,
    /// The nodes of those of its pods that have one.
    pub occupied: &'a [Arc<str>],
}

/// How the pods of a group would be placed.
#[derive(Clone, Copy)]
pub struct ProposedPlacement<'a> {
    /// Where.
    pub placement: &'a Placement,
    /// The cluster, with the pods booked on their nodes.
    pub snapshot: &'a Snapshot,
    /// The pods that would have nodes now.
    pub pods: &'a [Arc<PodInfo>],
    /// How many pods of the group had nodes before.
    pub scheduled: usize,
}

/// Finds the placements that a group may have. The first plugin decides.
pub trait PlacementGenerate: Plugin {
    /// The placements; `None`: the group may be anywhere.
    ///
    /// # Errors
    /// The refusal of the group: there is no placement, or none can be told.
    fn placements(&self, group: GroupToPlace<'_>) -> Result<Option<Vec<Placement>>, Status>;
}

/// Ranks the placements into which the pods of a group fit.
pub trait PlacementScore: Plugin {
    /// The placement's score; higher is better. Between 0 and [`MAX_NODE_SCORE`](super::MAX_NODE_SCORE) after
    /// [`normalize_placements`](PlacementScore::normalize_placements).
    fn score_placement(&self, proposed: ProposedPlacement<'_>) -> i64;

    /// Brings the scores of all placements into the range.
    fn normalize_placements(&self, _scores: &mut [i64]) {}
}
