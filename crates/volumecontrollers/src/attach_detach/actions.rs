//! The words in which the state and the rest of the controller speak: what nodes tell, and what is to be done.

#[cfg(doc)]
use super::state::AttachState;
use super::wanted::AttachSource;
use k8s_openapi::api::core::v1::ObjectReference;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A volume, by unique name, on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VolumeOnNode {
    pub(super) volume: String,
    pub(super) node: String,
}

impl fmt::Display for VolumeOnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.volume, self.node)
    }
}

/// What a Node tells.
#[derive(Debug, Clone, Default)]
pub(super) struct AttachNode {
    pub(super) ready: bool,
    /// Whether an administrator has said that the node is off and will not come back with the volumes mounted.
    pub(super) out_of_service: bool,
    /// `status.volumesInUse`.
    pub(super) in_use: BTreeSet<String>,
    pub(super) listing: NodeListing,
}

/// `status.volumesAttached` of a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeListing {
    /// Device paths by volume.
    pub(super) volumes: BTreeMap<String, String>,
    /// The resource version of the Node that says so; later ones are larger.
    pub(super) version: u64,
}

/// Why a volume is detached although its node may have it mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForceReason {
    /// The node is not ready and the deadline is over.
    Timeout,
    /// The node has the taint.
    OutOfService,
}

/// Something to do; the caller says later what became of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AttachAction {
    /// Ends with [`AttachState::attached`].
    Attach {
        at: VolumeOnNode,
        source: AttachSource,
    },
    /// Ends with [`AttachState::detached`].
    Detach {
        at: VolumeOnNode,
        source: AttachSource,
        force: Option<ForceReason>,
    },
    /// Write `status.volumesAttached`; ends with [`AttachState::listed`].
    List {
        node: String,
        volumes: BTreeMap<String, String>,
    },
    /// Tell the user of a pod why its volume is not attached.
    Warn { pod: ObjectReference, text: String },
}

/// What became of a detachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachResult {
    Detached,
    /// Nothing was done: the node said at the last moment that it uses the volume.
    InUse,
    Failed,
}

/// Why a pod waits for a volume that another node has. Names of pods do not leave their namespace.
pub(super) fn multi_attach_reason(pod: &ObjectReference, holders: &[&ObjectReference]) -> String {
    let (local, others): (Vec<&&ObjectReference>, Vec<_>) =
        holders.iter().partition(|h| h.namespace == pod.namespace);
    let names: Vec<&str> = local.iter().filter_map(|h| h.name.as_deref()).collect();
    let names = names.join(", ");
    let others = others.len();
    match (names.is_empty(), others) {
        (true, 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another"
                .to_owned()
        }
        (true, _) => {
            format!("Volume is already used by {others} pod(s) in different namespaces")
        }
        (false, 0) => format!("Volume is already used by pod(s) {names}"),
        (false, _) => format!(
            "Volume is already used by pod(s) {names} and {others} pod(s) in different namespaces"
        ),
    }
}
