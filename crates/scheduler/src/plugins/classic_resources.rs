//! Claims of the classic API (`resource.k8s.io/v1alpha1`, KEP-3063), where only the driver knows
//! what it has. The plugin proposes nodes, hears from the driver which of them are unsuitable,
//! selects one, and tries the pod again once the driver has allocated its claims for it.
//!
//! The points and their answers are those of kube-scheduler 1.26. Two things differ: reservations
//! are written when a pod is bound and not while it is decided about, and what is proposed always
//! contains the node a pod was decided for, also when there was no other.

mod adopt;
mod points;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;

use davit_allocator::NodeMatcher;
use davit_api::classic::{PodScheduling, ResourceClaim};
use parking_lot::Mutex;

use crate::devices::Devices;

/// The plugin's name.
pub(crate) const NAME: &str = "ClassicDynamicResources";

/// The plugin `ClassicDynamicResources`.
pub struct ClassicResources {
    client: Option<kube::Client>,
    devices: Devices,
}

impl ClassicResources {
    /// A plugin that decides by what `devices` knows. Without a client it writes nothing.
    pub fn new(client: Option<kube::Client>, devices: Devices) -> Self {
        Self { client, devices }
    }
}

/// What the plugin remembers between the points of a cycle.
#[derive(Clone)]
struct Data(Arc<Cycle>);

/// What has been found out about the pod's classic claims in this cycle.
struct Cycle {
    claims: Vec<Wanted>,
    /// What has been negotiated so far.
    scheduling: Option<Arc<PodScheduling>>,
    notes: Mutex<Notes>,
}

/// One of the pod's claims.
struct Wanted {
    /// Its name in the pod.
    entry: String,
    claim: Arc<ResourceClaim>,
    /// Where its allocation can be used, or where its class lets it be allocated; `None`: anywhere.
    nodes: Option<NodeMatcher>,
}

impl Wanted {
    fn is_pending(&self) -> bool {
        self.claim.status.allocation.is_none()
    }
}

/// What the points of a cycle tell each other.
#[derive(Default)]
struct Notes {
    /// Allocated claims that ruled out a node.
    unavailable: BTreeSet<usize>,
    /// Nodes to propose, if those proposed before do not do.
    propose: Option<Vec<String>>,
    /// Claims with a booked reservation.
    assumed: Vec<Arc<ResourceClaim>>,
    /// Claims whose reservation PreBind has written, as they are now.
    written: Vec<Arc<ResourceClaim>>,
}

impl Cycle {
    fn pending(&self) -> impl Iterator<Item = &Wanted> {
        self.claims.iter().filter(|c| c.is_pending())
    }
}
