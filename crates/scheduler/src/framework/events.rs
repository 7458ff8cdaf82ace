//! Changes in the cluster and whether they can help a pod that was refused.

use std::ops::BitOr;
use std::sync::Arc;

use davit_api::classic;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};

use crate::pod::PodInfo;

/// The kind of object a change is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventResource {
    /// A pod that is bound to a node.
    AssignedPod,
    /// A pod that waits, other than the one that is asked about.
    UnscheduledPod,
    /// The pod that is asked about.
    TargetPod,
    /// A node.
    Node,
    /// A namespace.
    Namespace,
    /// A persistent volume claim.
    PersistentVolumeClaim,
    /// A persistent volume.
    PersistentVolume,
    /// A storage class.
    StorageClass,
    /// What the storage drivers of a node say.
    CsiNode,
    /// The description of a storage driver.
    CsiDriver,
    /// How much storage there is somewhere.
    CsiStorageCapacity,
    /// A volume at a node.
    VolumeAttachment,
    /// A resource claim.
    ResourceClaim,
    /// A resource slice.
    ResourceSlice,
    /// A device class.
    DeviceClass,
    /// A resource claim of the classic API.
    ClassicClaim,
    /// What is negotiated about a pod in the classic API.
    PodScheduling,
    /// A resource class of the classic API.
    ResourceClass,
    /// A topology record that a node publishes.
    NodeResourceTopology,
    /// A group of pods.
    PodGroup,
    /// Any kind.
    Any,
}

/// What happened to an object; several can be joined by `|`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Action(u32);

impl Action {
    /// It came into being.
    pub const ADD: Self = Self(1);
    /// It went away.
    pub const DELETE: Self = Self(1 << 1);
    /// A node has other allocatable amounts.
    pub const UPDATE_ALLOCATABLE: Self = Self(1 << 2);
    /// It has other labels.
    pub const UPDATE_LABEL: Self = Self(1 << 3);
    /// A node has other taints, or its unschedulable mark changed.
    pub const UPDATE_TAINT: Self = Self(1 << 4);
    /// A node has other conditions.
    pub const UPDATE_CONDITION: Self = Self(1 << 5);
    /// It has other annotations.
    pub const UPDATE_ANNOTATION: Self = Self(1 << 6);
    /// A pod asks for less than before.
    pub const UPDATE_SCALE_DOWN: Self = Self(1 << 7);
    /// A pod tolerates more than before.
    pub const UPDATE_TOLERATION: Self = Self(1 << 8);
    /// The last scheduling gate of a pod is gone.
    pub const UPDATE_GATES: Self = Self(1 << 9);
    /// A pod has other generated claims.
    pub const UPDATE_CLAIMS: Self = Self(1 << 10);
    /// Any other change.
    pub const UPDATE_OTHER: Self = Self(1 << 11);
    /// A node declares other features.
    pub const UPDATE_DECLARED_FEATURES: Self = Self(1 << 12);
    /// Any change of an existing object.
    pub const UPDATE: Self = Self(((1 << 13) - 1) & !0b11);
    /// Everything.
    pub const ALL: Self = Self((1 << 13) - 1);
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// Whether the two have an action in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is no action.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Action {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A change, or a pattern of changes a plugin asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterEvent {
    /// Of which kind of object.
    pub resource: EventResource,
    /// What happened.
    pub action: Action,
}

impl ClusterEvent {
    /// A change or pattern.
    pub const fn new(resource: EventResource, action: Action) -> Self {
        Self { resource, action }
    }

    /// Whether `event` is one of the changes this pattern names.
    pub fn covers(&self, event: &Self) -> bool {
        (self.resource == event.resource || self.resource == EventResource::Any)
            && self.action.intersects(event.action)
    }
}

/// Which of the pods that a plugin refused a change can help at all, from none to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AffectedPods {
    /// None of them.
    Nobody,
    /// Those that name the claim that has changed.
    NamingClaim,
    /// Any of them.
    All,
}

/// The object a change is about, before and after.
#[derive(Debug, Clone)]
pub enum EventObject {
    /// A pod.
    Pod {
        /// Before; `None` if it is new.
        old: Option<Arc<PodInfo>>,
        /// After; `None` if it is gone.
        new: Option<Arc<PodInfo>>,
    },
    /// A node.
    Node {
        /// Before; `None` if it is new.
        old: Option<Arc<Node>>,
        /// After; `None` if it is gone.
        new: Option<Arc<Node>>,
    },
    /// A group of pods.
    PodGroup {
        /// Before; `None` if it is new.
        old: Option<Arc<PodGroup>>,
        /// After; `None` if it is gone.
        new: Option<Arc<PodGroup>>,
    },
    /// A resource claim.
    Claim {
        /// Before; `None` if it is new.
        old: Option<Arc<ResourceClaim>>,
        /// After; `None` if it is gone.
        new: Option<Arc<ResourceClaim>>,
    },
    /// A resource claim of the classic API.
    ClassicClaim {
        /// Before; `None` if it is new.
        old: Option<Arc<classic::ResourceClaim>>,
        /// After; `None` if it is gone.
        new: Option<Arc<classic::ResourceClaim>>,
    },
    /// What is negotiated about a pod in the classic API.
    PodScheduling {
        /// Before; `None` if it is new.
        old: Option<Arc<classic::PodScheduling>>,
        /// After.
        new: Arc<classic::PodScheduling>,
    },
    /// A persistent volume claim.
    VolumeClaim {
        /// Before; `None` if it is new.
        old: Option<Arc<PersistentVolumeClaim>>,
        /// After; `None` if it is gone.
        new: Option<Arc<PersistentVolumeClaim>>,
    },
    /// A persistent volume.
    Volume {
        /// Before; `None` if it is new.
        old: Option<Arc<PersistentVolume>>,
        /// After; `None` if it is gone.
        new: Option<Arc<PersistentVolume>>,
    },
    /// A storage class.
    StorageClass {
        /// Before; `None` if it is new.
        old: Option<Arc<StorageClass>>,
        /// After; `None` if it is gone.
        new: Option<Arc<StorageClass>>,
    },
    /// What the storage drivers of a node say.
    CsiNode {
        /// Before; `None` if it is new.
        old: Option<Arc<CSINode>>,
        /// After; `None` if it is gone.
        new: Option<Arc<CSINode>>,
    },
    /// The description of a storage driver.
    CsiDriver {
        /// Before; `None` if it is new.
        old: Option<Arc<CSIDriver>>,
        /// After; `None` if it is gone.
        new: Option<Arc<CSIDriver>>,
    },
    /// How much storage there is somewhere.
    CsiStorageCapacity {
        /// Before; `None` if it is new.
        old: Option<Arc<CSIStorageCapacity>>,
        /// After; `None` if it is gone.
        new: Option<Arc<CSIStorageCapacity>>,
    },
    /// A volume at a node.
    VolumeAttachment {
        /// Before; `None` if it is new.
        old: Option<Arc<VolumeAttachment>>,
        /// After; `None` if it is gone.
        new: Option<Arc<VolumeAttachment>>,
    },
    /// Any other object.
    Other,
}

/// Whether a pod is to be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The change does not help.
    Skip,
    /// The change may help.
    Queue,
}

/// What changed in a node.
pub(crate) fn node_action(old: &Node, new: &Node) -> Action {
    let mut action = Action::NONE;
    let mut note = |changed: bool, what: Action| {
        if changed {
            action = action | what;
        }
    };
    let status = |node: &Node| node.status.clone().unwrap_or_default();
    let spec = |node: &Node| node.spec.clone().unwrap_or_default();
    let (old_status, new_status) = (status(old), status(new));
    let (old_spec, new_spec) = (spec(old), spec(new));
    note(
        old_status.allocatable != new_status.allocatable,
        Action::UPDATE_ALLOCATABLE,
    );
    note(
        old.metadata.labels != new.metadata.labels,
        Action::UPDATE_LABEL,
    );
    note(
        old_spec.taints != new_spec.taints || old_spec.unschedulable != new_spec.unschedulable,
        Action::UPDATE_TAINT,
    );
    note(
        old.metadata.annotations != new.metadata.annotations,
        Action::UPDATE_ANNOTATION,
    );
    // Heartbeats change times only.
    let conditions = |status: &k8s_openapi::api::core::v1::NodeStatus| -> Vec<(String, String)> {
        let list = status.conditions.iter().flatten();
        list.map(|c| (c.type_.clone(), c.status.clone())).collect()
    };
    note(
        old_status.declared_features != new_status.declared_features,
        Action::UPDATE_DECLARED_FEATURES,
    );
    note(
        conditions(&old_status) != conditions(&new_status),
        Action::UPDATE_CONDITION,
    );
    action
}

/// What changed in a pod.
pub(crate) fn pod_action(old: &PodInfo, new: &PodInfo) -> Action {
    let mut action = Action::NONE;
    let mut note = |changed: bool, what: Action| {
        if changed {
            action = action | what;
        }
    };
    note(old.labels() != new.labels(), Action::UPDATE_LABEL);
    note(
        old.tolerations() != new.tolerations(),
        Action::UPDATE_TOLERATION,
    );
    let gated = |pod: &PodInfo| {
        pod.spec()
            .scheduling_gates
            .as_ref()
            .is_some_and(|g| !g.is_empty())
    };
    note(gated(old) && !gated(new), Action::UPDATE_GATES);
    let claims = |pod: &PodInfo| {
        let status = pod.pod.status.as_ref();
        status
            .and_then(|s| s.resource_claim_statuses.clone())
            .unwrap_or_default()
    };
    note(claims(old) != claims(new), Action::UPDATE_CLAIMS);
    let less = |a: &crate::resources::Resources, b: &crate::resources::Resources| {
        b.milli_cpu < a.milli_cpu
            || b.memory < a.memory
            || b.ephemeral_storage < a.ephemeral_storage
            || a.scalars().any(|(name, amount)| b.scalar(name) < amount)
    };
    note(
        less(&old.requests.requests, &new.requests.requests),
        Action::UPDATE_SCALE_DOWN,
    );
    if action.is_none() && old.pod.spec != new.pod.spec {
        action = Action::UPDATE_OTHER;
    }
    action
}
