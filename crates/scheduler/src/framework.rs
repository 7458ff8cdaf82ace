//! The scheduling framework: the points at which plugins take part in a decision.
//!
//! The points are those of the Kubernetes scheduling framework (KEP-624) and are called in its
//! order: PreEnqueue and QueueSort in the queue; PreFilter, Filter, PostFilter, PreScore, Score,
//! Reserve and Permit in the scheduling cycle, one pod at a time; PreBind, Bind and PostBind in the
//! binding cycle, beside it; PlacementGenerate and PlacementScore where a group of pods is decided about. A plugin implements the traits it takes part in and names them in
//! [`Plugin::attach`].

mod events;
mod group_preemption;
mod placement;
mod profile;
mod refusals;
mod state;
mod status;
mod timing;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use events::{Action, AffectedPods, ClusterEvent, EventObject, EventResource, Hint};
pub(crate) use events::{node_action, pod_action};
pub(crate) use group_preemption::GroupPostFilter;
pub use placement::{
    GroupToPlace, Placement, PlacementGenerate, PlacementScore, ProposedPlacement,
};
pub(crate) use profile::MOST_PLUGINS;
pub use profile::{Points, Profile};
pub use refusals::Refusals;
pub(crate) use refusals::SharedRefusals;
pub use state::{CycleState, StateData};
pub use status::{Code, Reason, Shortage, Status, VolumeRefusal};
pub(crate) use timing::{ExtensionPoint, PointTimes};

use crate::cache::Snapshot;
use crate::extender::NodeVictims;
use crate::node::NodeInfo;
use crate::nominator::Nominated;
use crate::pod::PodInfo;
pub use davit_podinfo::Signature;

/// The highest score a node can get from one plugin.
pub const MAX_NODE_SCORE: i64 = 100;

/// What every plugin has.
pub trait Plugin: Send + Sync + 'static {
    /// The plugin's name, as in KubeSchedulerConfiguration.
    fn name(&self) -> &'static str;

    /// Adds the plugin to the points it takes part in.
    fn attach(self: Arc<Self>, points: &mut Points);

    /// The changes in the cluster that can make a pod schedulable which this plugin refused.
    fn events(&self) -> Vec<ClusterEvent> {
        Vec::new()
    }

    /// Whether this change, which is one of [`events`](Plugin::events), can help this pod.
    fn hint(&self, _event: &ClusterEvent, _pod: &PodInfo, _object: &EventObject) -> Hint {
        Hint::Queue
    }

    /// Which pods [`hint`](Plugin::hint) can say that of: where thousands wait, it is not asked about the others.
    fn affected(&self, _event: &ClusterEvent, _object: &EventObject) -> AffectedPods {
        AffectedPods::All
    }
}

/// Holds pods back before they are queued.
pub trait PreEnqueue: Plugin {
    /// Anything but success keeps the pod out of the queue until one of the plugin's events.
    fn pre_enqueue(&self, pod: &PodInfo) -> Status;
}

/// Orders the queue; a profile has exactly one, the same for all profiles of a scheduler.
pub trait QueueSort: Plugin {
    /// Pods of higher rank go first; equal ones in order of arrival.
    fn rank(&self, pod: &PodInfo) -> i64;
}

/// The nodes a PreFilter plugin limits a pod to; `None` means all.
pub type NodeNames = Option<BTreeSet<String>>;

/// Looks at the pod once before nodes are filtered.
pub trait PreFilter: Plugin {
    /// Success, Skip (the plugin's Filter is not called for this pod) or a refusal of the pod on
    /// all nodes; and the nodes that can be left out from the start.
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
    ) -> (Status, NodeNames);

    /// Brings the plugin's state up to date with a pod that is imagined on a node.
    fn add_pod(
        &self,
        _state: &mut CycleState,
        _pod: &PodInfo,
        _added: &PodInfo,
        _node: &NodeInfo,
        _snapshot: &Snapshot,
    ) {
    }

    /// Brings the plugin's state up to date with a pod that is imagined away from a node.
    fn remove_pod(
        &self,
        _state: &mut CycleState,
        _pod: &PodInfo,
        _removed: &PodInfo,
        _node: &NodeInfo,
        _snapshot: &Snapshot,
    ) {
    }
}

/// Decides whether a node can take the pod.
pub trait Filter: Plugin {
    /// Success or a refusal with reasons.
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status;

    /// Adds to the signature all that [`filter`](Filter::filter) looks at besides the node, and answers true. Pods of equal
    /// signatures get equal answers from a node, and no error, for as long as the node is as it is: then it is not asked again
    /// (the idea is that of KEP-5598). False where the answer depends on more: on the cycle's state, or on what changes
    /// elsewhere.
    fn sign_pod(&self, _pod: &PodInfo, _signature: &mut Signature) -> bool {
        false
    }

    /// Adds to a refusal of this plugin what is behind it. Asked when no node takes the pod, and only for the nodes that
    /// the record of that names: a refusal that nobody looks at should cost nothing.
    fn explain(
        &self,
        _state: &CycleState,
        _pod: &PodInfo,
        _node: &NodeInfo,
        _refusal: &mut Status,
    ) {
    }
}

/// What a PostFilter plugin has to work with.
pub struct PostFilterContext<'a> {
    /// Where the pod's group is tried; `None`: anywhere.
    pub within: Option<&'a Placement>,
    /// The profile whose filters refused the pod.
    pub profile: &'a Profile,
    /// The cluster.
    pub snapshot: &'a Snapshot,
    /// Pods that wait for preempted nodes.
    pub nominated: &'a Nominated,
    /// The refused nodes.
    pub refused: &'a Refusals,
    /// The refusal of all nodes that are not in `refused`.
    pub absent: Option<&'a Status>,
    /// The preemptions that extenders have left, once they have been asked.
    pub judged: Option<&'a [NodeVictims]>,
}

/// What a PostFilter plugin did.
#[derive(Debug, Clone, Default)]
pub struct PostFilterResult {
    /// The node that has been made free for the pod; `Some("")` takes an older nomination back.
    pub nominate: Option<String>,
    /// Preemptions about which extenders have to be asked first: nothing has been done, and the point is called again
    /// with what they leave.
    pub ask: Option<Vec<NodeVictims>>,
    /// How many pods are removed for it.
    pub victims: usize,
}

/// Called when no node can take the pod; may make room.
pub trait PostFilter: Plugin {
    /// Success with a nomination, or Unschedulable with the reason why nothing could be done.
    fn post_filter(
        &self,
        state: &mut CycleState,
        pod: &Arc<PodInfo>,
        context: &PostFilterContext<'_>,
    ) -> (PostFilterResult, Status);
}

/// Prepares scoring.
pub trait PreScore: Plugin {
    /// Success, Skip (the plugin's Score is not called for this pod) or an error.
    fn pre_score(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Status;
}

/// Ranks the nodes that can take the pod.
pub trait Score: Plugin {
    /// The node's score; higher is better. Between 0 and [`MAX_NODE_SCORE`] after
    /// [`normalize`](Score::normalize).
    fn score(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo, snapshot: &Snapshot)
    -> i64;

    /// Brings the scores of all nodes into the range.
    fn normalize(
        &self,
        _state: &CycleState,
        _pod: &PodInfo,
        _snapshot: &Snapshot,
        _nodes: &[usize],
        _scores: &mut [i64],
    ) {
    }
}

/// Keeps state about pods that are on their way to a node.
pub trait Reserve: Plugin {
    /// The pod as it counts on the node from now on, where that differs from the pod as it is in the API. Asked before anything
    /// is booked.
    fn on_node(&self, _state: &CycleState, _pod: &PodInfo, _node: &str) -> Option<PodInfo> {
        None
    }

    /// Books what the pod needs on the node.
    fn reserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> Status;

    /// Takes the booking back; called for every plugin in reverse order when anything after
    /// Reserve fails, also if this plugin's own Reserve was not reached.
    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str);
}

/// Lets a decision pass, refuses it or makes it wait.
pub trait Permit: Plugin {
    /// Success, a refusal, or Wait for at most this long.
    fn permit(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> (Status, Duration);

    /// Whether this pod may pass once so many more of its group have nodes than have one now. Where not, those that are left
    /// are not tried.
    fn may_pass_with(&self, _pod: &PodInfo, _more: usize) -> bool {
        true
    }
}

/// Does what must be done before the binding is written.
#[async_trait]
pub trait PreBind: Plugin {
    /// Success or the reason why the pod cannot be bound.
    async fn pre_bind(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status;
}

/// Writes the binding. The first plugin that does not skip decides.
#[async_trait]
pub trait Bind: Plugin {
    /// Success, Skip or the reason why the binding could not be written.
    async fn bind(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status;
}

/// Told of pods that have been bound.
pub trait PostBind: Plugin {
    /// The pod is bound to the node.
    fn post_bind(&self, state: &CycleState, pod: &PodInfo, node: &str);
}

impl fmt::Debug for PostFilterContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostFilterContext")
            .field("refused", &self.refused.len())
            .finish()
    }
}

/// Scales scores so that the highest becomes [`MAX_NODE_SCORE`]; reversed if a high raw score is bad.
pub fn default_normalize(scores: &mut [i64], reverse: bool) {
    let most = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = match (most, reverse) {
            (0, false) => *score,
            (0, true) => MAX_NODE_SCORE,
            (most, false) => MAX_NODE_SCORE * *score / most,
            (most, true) => MAX_NODE_SCORE - MAX_NODE_SCORE * *score / most,
        };
    }
}
