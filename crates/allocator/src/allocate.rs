//! The allocator: one for a scheduling attempt, asked for one node after the other.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::call::Call;
use crate::device::PoolId;
use crate::error::AllocateError;
use crate::features::Features;
use crate::inventory::Inventory;
use crate::node::NodeView;
use crate::plan::Plan;
use crate::pool::PoolView;
use crate::refusal::{self, Refusal};
use crate::result::{self, Allocation};
use crate::search::Search;
use crate::selector::Selectors;
use crate::signature::NodeSignature;
use crate::usage::Usage;

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
        let pools = self.pools(call);
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

    /// The signature of a node for the claims.
    pub fn signature(&self, plan: &Plan, node: NodeView<'_>) -> NodeSignature {
        NodeSignature::new(&self.inventory, &self.usage, plan, node)
    }

    pub(crate) fn pools(&self, call: Call<'_>) -> Vec<Arc<PoolView>> {
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
                    let view = PoolView::new(id, slices, call.node, self.features, used);
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
        pools
    }
}
