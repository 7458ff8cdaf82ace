//! What of a node matters to claims, as a fingerprint.
//!
//! Whether a node has devices for claims follows from what its devices are like as far as the claims can see, and from what
//! is held of them. Neither the node's name nor those of pools and devices matter, nor attributes that no expression reads
//! (serial numbers, say). So thousands of nodes of one kind have a few signatures, and the search runs once for each of them.

use crate::constraint::is_scalar;
use crate::device::PoolId;
use crate::fingerprint::Fingerprint;
use crate::inventory::{Inventory, PoolSlices};
use crate::node::NodeView;
use crate::plan::{ComparedAttribute, Plan};
use crate::usage::{PoolUse, Usage};

/// What the answer of a node depends on: nodes with equal ones give equal answers to the same claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeSignature(Fingerprint);

/// The values that a constraint compares, each once, in the order in which they are met.
#[derive(Debug, Clone, Default)]
struct ComparedValues {
    met: Vec<Fingerprint>,
    /// Whether more than equality matters: lists can have members in common.
    lists: bool,
}

impl ComparedValues {
    /// The number of a value among them.
    fn number(&mut self, value: Fingerprint) -> usize {
        let known = self.met.iter().position(|met| *met == value);
        known.unwrap_or_else(|| {
            self.met.push(value);
            self.met.len() - 1
        })
    }
}

/// What of a pool of one node matters to claims, whatever is held of it.
#[derive(Debug)]
pub(crate) struct PoolSignature {
    print: Fingerprint,
    /// By attribute that constraints compare.
    values: Vec<ComparedValues>,
}

impl PoolSignature {
    /// Its signature for a plan, and for all plans that see the same.
    pub(crate) fn new(pool: &PoolSlices, plan: &Plan) -> Self {
        let mut values = vec![ComparedValues::default(); plan.compared.len()];
        let mut print = Fingerprint::default().and_number(pool.slices.len());
        for slice in &pool.slices {
            print = print.and(slice.print);
            for device in &slice.devices {
                print = print.and(device.print(&plan.support));
                for (values, ComparedAttribute { name, key }) in
                    values.iter_mut().zip(&plan.compared)
                {
                    let found = device.published(&slice.pool.driver, name, *key);
                    let number = found.map_or(0, |(value, print)| {
                        values.lists |= !is_scalar(value);
                        values.number(print) + 1
                    });
                    print = print.and_number(number);
                }
            }
        }
        Self { print, values }
    }
}

impl NodeSignature {
    pub(crate) fn new(
        inventory: &Inventory,
        usage: &Usage,
        plan: &Plan,
        node: NodeView<'_>,
    ) -> Self {
        let pools = inventory.pools_of(node.name);
        let mut sum = Fingerprint::default();
        // ComparedValues that are only compared are told apart by number, but not where others than this node's devices, which
        // are not looked at one by one, may have the same ones.
        let renumber = pools.iter().all(|(_, pool)| pool.is_local());
        let mut met = vec![ComparedValues::default(); plan.compared.len()];
        for (id, pool) in pools {
            let used = usage.pool(id).map(|used| &**used);
            if !pool.is_local() {
                sum = shared(sum, id, pool, used, node);
                continue;
            }
            let signature = pool.signature(plan);
            sum = sum.and(signature.print);
            sum = sum.and(used.map(|used| used.signature(pool)).unwrap_or_default());
            for (met, own) in met.iter_mut().zip(&signature.values) {
                met.lists |= own.lists;
                let numbers = own.met.iter().map(|value| met.number(*value));
                sum = numbers.fold(sum, Fingerprint::and_number);
            }
        }
        for values in met.iter().filter(|values| values.lists || !renumber) {
            sum = values.met.iter().copied().fold(sum, Fingerprint::and);
        }
        Self(sum)
    }
}

/// A pool that other nodes see as well: which one it is, its state, and what of it the node sees.
fn shared(
    sum: Fingerprint,
    id: &PoolId,
    pool: &PoolSlices,
    used: Option<&PoolUse>,
    node: NodeView<'_>,
) -> Fingerprint {
    let state = (pool.revision, used.map(|used| used.revision));
    let mut sum = sum.and(Fingerprint::of(id)).and(Fingerprint::of(&state));
    for slice in &pool.slices {
        let devices = slice.devices.iter().filter(|_| slice.per_device);
        for reach in devices.map(|d| &d.reach).chain([&slice.reach]) {
            sum = sum.and_number(reach.matches(node).map_or(2, usize::from));
        }
    }
    sum
}
