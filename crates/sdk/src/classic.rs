//! Being a driver of classic dynamic resource allocation (`resource.k8s.io/v1alpha1`, KEP-3063).
//!
//! A classic driver decides itself which claims it can serve and where. It has two halves:
//!
//! * A [`Controller`] serves a [`ClassicDriver`] to the cluster, once in it. It reads parameters,
//!   tells the scheduler which nodes are unsuitable for a pod, allocates claims for the node the
//!   scheduler selects (or at once), and takes allocations back.
//! * A [`NodePlugin`] serves a [`ClassicNode`] to each node's agent, which has it prepare a claim
//!   before the first pod that uses it, and undo that after the last.
//!
//! ```no_run
//! use davit_sdk::async_trait;
//! use davit_sdk::classic::{
//!     AllocationResult, ClaimAllocation, ClassicDriver, Controller, Failure, Pod, ResourceClaim,
//!     ResourceClass,
//! };
//!
//! struct Cats;
//!
//! #[async_trait]
//! impl ClassicDriver for Cats {
//!     type ClassParameters = ();
//!     type ClaimParameters = String;
//!
//!     async fn class_parameters(&self, _: &ResourceClass) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!
//!     async fn claim_parameters(
//!         &self,
//!         claim: &ResourceClaim,
//!         _: &ResourceClass,
//!         _: &(),
//!     ) -> Result<String, Failure> {
//!         let reference = claim.spec.parameters_ref.as_ref();
//!         let reference = reference.ok_or_else(|| Failure::new("which cat?"))?;
//!         Ok(reference.name.clone())
//!     }
//!
//!     async fn allocate(
//!         &self,
//!         claim: &ClaimAllocation<Self>,
//!         _selected_node: Option<&str>,
//!     ) -> Result<AllocationResult, Failure> {
//!         let resource_handle = claim.claim_parameters.clone();
//!         Ok(AllocationResult { resource_handle, ..AllocationResult::default() })
//!     }
//!
//!     async fn deallocate(&self, _: &ResourceClaim) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!
//!     async fn unsuitable_nodes(
//!         &self,
//!         _: &Pod,
//!         _: &mut [ClaimAllocation<Self>],
//!         _: &[String],
//!     ) -> Result<(), Failure> {
//!         Ok(())
//!     }
//! }
//!
//! # async fn example(client: davit_sdk::classic::Client) {
//! let running = Controller::new(client, "cats.example.com", Cats).start();
//! # let end = std::future::pending::<()>();
//! end.await;
//! running.stop().await;
//! # }
//! ```
//!
//! What a driver has to keep to, because everything may be restarted at any time:
//!
//! 1. Allocating a claim (by UID) again gives the same answer, preparing it again as well.
//! 2. Deallocating or undoing a claim that is not known succeeds.
//! 3. What is allocated is learned again from the claims when the controller starts: their handles
//!    say what the driver wrote into them. See [`ClassicDriver::recover`].
//!
//! It works with davit, and with Kubernetes 1.26 that has the feature `DynamicResourceAllocation`.

mod cache;
mod claims;
mod controller;
mod events;
mod negotiation;
mod node;
mod queue;

pub use controller::{Controller, Running};
/// The kinds of the classic API.
pub use davit_api::classic::{
    AllocationMode, AllocationResult, ClaimParametersReference, ClassParametersReference,
    PodScheduling, ResourceClaim, ResourceClaimTemplate, ResourceClass,
};
/// The pods and node selectors that drivers get to see and write.
pub use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
};
/// A client of the API server.
pub use kube::Client;
pub use node::{
    ClassicNode, HandedClaim, NodeError, NodePlugin, PLUGINS_DIR, REGISTRY_DIR, RunningNode,
};

use async_trait::async_trait;

/// Why a driver could not do what it was asked. The text becomes an event of the object, or the
/// answer to the node agent; what was asked is asked again after a pause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A failure because of an error, after words that say what was attempted.
    pub fn because(what: &str, error: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

/// A claim to be allocated, with everything the driver has read for it.
pub struct ClaimAllocation<D: ClassicDriver + ?Sized> {
    /// The claim's name in the pod; empty for claims that are allocated without one.
    pub pod_claim_name: String,
    /// The claim.
    pub claim: ResourceClaim,
    /// Its class.
    pub class: ResourceClass,
    /// What the driver read for the claim.
    pub claim_parameters: D::ClaimParameters,
    /// What the driver read for the class.
    pub class_parameters: D::ClassParameters,
    /// To be filled in by [`ClassicDriver::unsuitable_nodes`].
    pub unsuitable_nodes: Vec<String>,
}

impl<D: ClassicDriver + ?Sized> std::fmt::Debug for ClaimAllocation<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimAllocation")
            .field("pod_claim_name", &self.pod_claim_name)
            .field("claim", &self.claim.metadata.name)
            .field("unsuitable_nodes", &self.unsuitable_nodes)
            .finish_non_exhaustive()
    }
}

/// A classic driver: what differs from one to the next.
#[async_trait]
pub trait ClassicDriver: Send + Sync + 'static {
    /// What is read for a class.
    type ClassParameters: Send + Sync;
    /// What is read for a claim.
    type ClaimParameters: Send + Sync;

    /// Reads and checks what a class refers to.
    async fn class_parameters(
        &self,
        class: &ResourceClass,
    ) -> Result<Self::ClassParameters, Failure>;

    /// Reads and checks what a claim refers to.
    async fn claim_parameters(
        &self,
        claim: &ResourceClaim,
        class: &ResourceClass,
        class_parameters: &Self::ClassParameters,
    ) -> Result<Self::ClaimParameters, Failure>;

    /// Allocates a claim, for the node the scheduler has selected or, without one, wherever the
    /// driver likes. The same claim (by UID) may come again and gets the same answer, as long as it
    /// is not deallocated.
    async fn allocate(
        &self,
        claim: &ClaimAllocation<Self>,
        selected_node: Option<&str>,
    ) -> Result<AllocationResult, Failure>;

    /// Takes an allocation back, or stops an attempt at it. Succeeds for claims that are not known.
    async fn deallocate(&self, claim: &ResourceClaim) -> Result<(), Failure>;

    /// Says for each claim on which of the potential nodes it cannot be allocated. The claims are
    /// those of one pod that this driver serves and that are not allocated yet: all of them have to
    /// find room on the same node. What an earlier attempt has set aside for them does not count
    /// against them: its answer may not have reached the API server.
    async fn unsuitable_nodes(
        &self,
        pod: &Pod,
        claims: &mut [ClaimAllocation<Self>],
        potential_nodes: &[String],
    ) -> Result<(), Failure>;

    /// Called once, before anything else, with the claims that this driver allocated earlier, so
    /// that it knows what is taken. By default nothing is done.
    async fn recover(&self, allocated: &[ResourceClaim]) {
        let _ = allocated;
    }
}
