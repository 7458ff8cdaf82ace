//! The allocator: one for a scheduling attempt, asked for one node after the other.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::AllocationResult;
use parking_lot::Mutex;

use crate::device::PoolId;
use crate::inventory::Inventory;
use crate::node::NodeView;
use crate::plan::Plan;
use crate::pool::PoolView;
use crate::refusal::Refusal;
use crate::search::Search;
use crate::selector::Selectors;
use crate::usage::Usage;
use crate::{refusal, result};

/// The feature gates that matter here. The default is that of 1.36.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one feature gate, on or off"
)]
pub struct Features {
    /// DRAAdminAccess.
    pub admin_access: bool,
    /// DRAPrioritizedList.
    pub prioritized_list: bool,
    /// DRAPartitionableDevices.
    pub partitionable_devices: bool,
    /// DRADeviceTaints.
    pub device_taints: bool,
    /// DRADeviceBindingConditions together with DRAResourceClaimDeviceStatus.
    pub binding_conditions: bool,
    /// DRAConsumableCapacity.
    pub consumable_capacity: bool,
    /// DRAListTypeAttributes.
    pub list_attributes: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            admin_access: true,
            prioritized_list: true,
            partitionable_devices: true,
            device_taints: true,
            binding_conditions: true,
            consumable_capacity: true,
            list_attributes: false,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Something is wrong with the claims or classes; other nodes will not do either.
    #[error("{0}")]
    Failed(String),
    /// Something is wrong with what this node sees.
    #[error("{0}")]
    Node(String),
    /// The time given was not enough.
    #[error("filter operation aborted: the allocation took longer than the filter timeout")]
    Interrupted,
}

/// Asked now and then during a search; true ends it.
pub type Stop<'a> = &'a dyn Fn() -> bool;

/// What the allocator cannot know by itself.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The node.
    pub node: NodeView<'a>,
    /// What is to be treated as free although it is held (pods that would be preempted).
    pub released: Option<&'a Usage>,
    /// Whether to give up.
    pub stop: Stop<'a>,
    /// A fresh UUID for a share of a device.
    pub share_id: &'a dyn Fn() -> String,
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// The devices for all claims of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// One result a claim, in the order of the plan.
    pub results: Vec<AllocationResult>,
    /// For scoring: for each request with alternatives the index of the one that was taken.
    pub chosen: Vec<usize>,
}

/// Looks for devices among what is there and not in use. Cheap to make, to be shared by all nodes
/// of one attempt.
#[derive(Debug)]
pub struct Allocator {
    pub(crate) features: Features,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) usage: Usage,
    pub(crate) selectors: Arc<Selectors>,
    /// Pools that all nodes see alike.
    uniform: Mutex<HashMap<PoolId, Option<Arc<PoolView>>>>,
}

impl Allocator {
    /// An allocator for one state of the cluster.
    pub fn new(
        features: Features,
        inventory: Arc<Inventory>,
        usage: Usage,
        selectors: Arc<Selectors>,
    ) -> Self {
        Self {
            features,
            inventory,
            usage,
            selectors,
            uniform: Mutex::default(),
        }
    }

    /// Devices on (or reachable from) a node for all claims of the plan; `None` if there are not
    /// enough.
    ///
    /// # Errors
    /// When something is wrong with claims, classes, selectors or pools, or time is up.
    pub fn allocate(
        &self,
        plan: &Plan,
        call: Call<'_>,
    ) -> Result<Option<Allocation>, AllocateError> {
        let pools = self.pools(call)?;
        let mut search = Search::new(self, plan, &pools, call);
        if !search.run()? {
            let invalid = |p: &Arc<PoolView>| matches!(p.state, crate::pool::State::Invalid(_));
            if pools.iter().any(invalid) {
                let text = "invalid resource pools were encountered";
                return Err(AllocateError::Node(text.to_owned()));
            }
            return Ok(None);
        }
        result::build(plan, &search, call).map(Some)
    }

    /// Why a node has no devices for the claims: for every device it sees the first thing that
    /// rules it out, and what is missing together.
    pub fn explain(&self, plan: &Plan, call: Call<'_>) -> Refusal {
        refusal::explain(self, plan, call)
    }

    pub(crate) fn pools(&self, call: Call<'_>) -> Result<Vec<Arc<PoolView>>, AllocateError> {
        let mut pools = Vec::new();
        for (id, slices) in self.inventory.pools_of(call.node.name) {
            let released = call.released.and_then(|r| r.pool(id));
            let cached = released.is_none() && slices.is_uniform();
            let known = if cached {
                self.uniform.lock().get(id).cloned()
            } else {
                None
            };
            let view = match known {
                Some(view) => view,
                None => {
                    let mut used = self.usage.pool(id).cloned();
                    if let (Some(used), Some(released)) = (&mut used, released) {
                        Arc::make_mut(used).release(released);
                    }
                    let view = PoolView::new(id, slices, call.node, self.features, used)?;
                    let view = view.map(Arc::new);
                    if cached {
                        self.uniform.lock().insert(id.clone(), view.clone());
                    }
                    view
                }
            };
            pools.extend(view);
        }
        // Stable: both parts stay in the order of their ids.
        pools.sort_by_key(|p| p.has_conditions);
        Ok(pools)
    }
}
