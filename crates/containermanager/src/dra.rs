//! Dynamic resource allocation on the node (KEP-4381, and the classic form of KEP-3063).
//!
//! Drivers register through the plugin registry. Before a pod starts, the claims it uses are read from the API, checked,
//! entered in the allocation log and prepared by their drivers; what the drivers answer is entered too, before the
//! runtime hears of the pod. When the last pod of a claim has ended, its drivers undo it.
//!
//! The log is the truth about who uses what. That a driver still knows a claim is believed for one run of the agent
//! only: after a restart it is asked again when the next container of the pod starts, so that files it keeps in
//! volatile places come back. A container that runs is never touched.

mod api;
mod claims;
mod driver;
mod health;
mod manager;
mod metrics;
mod partial;
mod places;
mod pod;
mod registry;
mod slices;
mod state_file;
pub(crate) mod view;

pub use api::{ApiClaims, ClaimApi, ClassicClaim};
pub(crate) use driver::Offer;
pub(crate) use manager::Manager;
pub(crate) use places::Places;

use davit_api::resource_claims::ClaimConsumers;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How the node treats claims and their drivers; [`Options::new`] gives the defaults.
#[derive(Clone)]
pub struct Options {
    /// Where claims are read.
    pub api: Arc<dyn ClaimApi>,
    /// Name of this node.
    pub node_name: String,
    /// For whom claims are made and reserved.
    pub consumers: ClaimConsumers,
    /// Limit of one call that prepares or undoes claims.
    pub call_timeout: Duration,
    /// How long after the loss of a driver its ResourceSlices are deleted.
    pub wipe_after: Duration,
    /// How long the end of a pod waits for a driver that is gone. The claim stays in the log, and is undone when the
    /// driver is back.
    pub patience: Duration,
    /// How often claims of pods that are gone are looked for.
    pub reconcile: Duration,
    /// How long a pod may fail to have its claims prepared before what some drivers have done for it is undone.
    pub keep_partial: Duration,
    /// How long an admission waits to know where claimed devices are, where they are aligned with CPUs and memory.
    pub places_wait: Duration,
    /// Where the places of PCI devices are read.
    pub sysfs: PathBuf,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("node_name", &self.node_name)
            .field("consumers", &self.consumers)
            .field("call_timeout", &self.call_timeout)
            .field("wipe_after", &self.wipe_after)
            .field("patience", &self.patience)
            .field("reconcile", &self.reconcile)
            .field("keep_partial", &self.keep_partial)
            .field("places_wait", &self.places_wait)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults.
    pub fn new(api: Arc<dyn ClaimApi>, node_name: impl Into<String>) -> Self {
        Self {
            api,
            node_name: node_name.into(),
            consumers: ClaimConsumers::default(),
            call_timeout: Duration::from_secs(45),
            wipe_after: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            reconcile: Duration::from_secs(10),
            keep_partial: Duration::from_secs(120),
            places_wait: Duration::from_secs(60),
            sysfs: PathBuf::from("/sys"),
        }
    }
}

/// Why claims of a pod are not ready, or not undone. The texts are part of events that users know from the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The API server did not give the claim.
    #[error("fetch ResourceClaim {claim}: {cause}")]
    Fetch {
        /// Name of the claim.
        claim: String,
        /// Why.
        cause: String,
    },
    /// The claim of a template is not there yet.
    #[error("pod claim {entry}: ResourceClaim not created yet")]
    NotCreated {
        /// The entry of the pod's `spec.resourceClaims`.
        entry: String,
    },
    /// The claim has the name of a generated one, but belongs to somebody else.
    #[error(
        "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)"
    )]
    NotOwner {
        /// Namespace of both.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// Name of the pod.
        pod: String,
    },
    /// The pod is not among those the claim is reserved for.
    #[error("pod {pod} ({pod_uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved {
        /// Name of the pod.
        pod: String,
        /// Its UID.
        pod_uid: String,
        /// Name of the claim.
        claim: String,
        /// Its UID.
        claim_uid: String,
    },
    /// The claim is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(String),
    /// The claim is allocated for other nodes.
    #[error("ResourceClaim {claim}: allocated for other nodes than {node}")]
    OtherNode {
        /// Name of the claim.
        claim: String,
        /// This node.
        node: String,
    },
    /// An earlier claim of the same name is still in use here.
    #[error(
        "old ResourceClaim with same name {claim} and different UID {uid} still exists (previous pod force-deleted?!)"
    )]
    OldClaim {
        /// Name of both claims.
        claim: String,
        /// UID of the earlier one.
        uid: String,
    },
    /// The node agent was started without it.
    #[error("dynamic resource allocation is off on this node")]
    Off,
    /// A driver has not registered.
    #[error("DRA driver {0} is not registered")]
    NoDriver(String),
    /// A call to a driver failed as a whole.
    #[error("{method}: {cause}")]
    Call {
        /// The method.
        method: &'static str,
        /// Why.
        cause: String,
    },
    /// A driver could not do it for one claim.
    #[error("{method} failed for ResourceClaim {claim}: {cause}")]
    Claim {
        /// The method.
        method: &'static str,
        /// Name of the claim.
        claim: String,
        /// What the driver says.
        cause: String,
    },
    /// A driver answered about claims it was not asked for.
    #[error("{method} returned result for unknown claim UID {uid}")]
    Unasked {
        /// The method.
        method: &'static str,
        /// The UID in the answer.
        uid: String,
    },
    /// A driver left claims out of its answer.
    #[error("{method} skipped {count} ResourceClaims")]
    Skipped {
        /// The method.
        method: &'static str,
        /// How many.
        count: usize,
    },
    /// A container starts whose claim is not ready.
    #[error("unable to get information for ResourceClaim {0}: not prepared")]
    NotPrepared(String),
    /// The allocation log could not be written.
    #[error("checkpoint ResourceClaim state: {0}")]
    Record(String),
}
