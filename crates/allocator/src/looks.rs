//! What of a node matters to claims, as a fingerprint.
//!
//! Whether a node has devices for claims follows from what its devices are like as far as the claims can see, and from what
//! is held of them. Neither the node's name nor those of pools and devices matter, nor attributes that no expression reads
//! (serial numbers, say). So thousands of nodes of one kind are a few looks, and the search runs once for each of them.

use crate::allocate::Allocator;
use crate::constraint::is_scalar;
use crate::device::{Device, PoolId};
use crate::fingerprint::Fingerprint;
use crate::inventory::PoolSlices;
use crate::node::NodeView;
use crate::plan::{Plan, SeenAttribute};
use crate::usage::{DeviceUse, PoolUse};

/// What the answer of a node depends on: nodes with equal looks give equal answers to the same claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Looks(Fingerprint);

impl Allocator {
    /// How a node looks to the claims.
    pub fn looks(&self, plan: &Plan, node: NodeView<'_>) -> Looks {
        let pools = self.inventory.pools_of(node.name);
        let local = pools.iter().all(|(_, slices)| slices.is_local());
        let mut looker = Looker {
            plan,
            sum: Fingerprint::default(),
            values: vec![Values::default(); plan.compared.len()],
            renumber: local,
        };
        for (id, slices) in pools {
            let used = self.usage.pool(id).map(|used| &**used);
            if slices.is_local() {
                looker.local(id, slices, used);
            } else {
                looker.shared(id, slices, used, node);
            }
        }
        looker.finish()
    }
}

/// The values that a constraint compares, in the order in which they are met.
#[derive(Debug, Clone, Default)]
struct Values {
    met: Vec<Fingerprint>,
    /// Whether more than equality matters: lists can have members in common.
    plain: bool,
}

struct Looker<'a> {
    plan: &'a Plan,
    sum: Fingerprint,
    /// By attribute that constraints compare.
    values: Vec<Values>,
    /// Whether values that are only compared are told apart by number: not where others than this node's devices, which
    /// are not looked at one by one, may have the same ones.
    renumber: bool,
}

impl Looker<'_> {
    fn add(&mut self, part: Fingerprint) {
        self.sum = self.sum.and(part);
    }

    fn number(&mut self, number: usize) {
        self.sum = self.sum.and_number(number);
    }

    /// A pool of this node alone: everything in it.
    fn local(&mut self, id: &PoolId, pool: &PoolSlices, used: Option<&PoolUse>) {
        self.number(pool.slices.len());
        for slice in &pool.slices {
            self.add(slice.print);
            for device in &slice.devices {
                self.add(device.print(&self.plan.support));
                for at in 0..self.plan.compared.len() {
                    self.compared(at, &id.driver, device);
                }
                let used = used.and_then(|used| used.devices.get(&device.name));
                self.used(used);
            }
        }
    }

    /// A pool that other nodes see as well: which one it is, its state, and what of it the node sees.
    fn shared(
        &mut self,
        id: &PoolId,
        pool: &PoolSlices,
        used: Option<&PoolUse>,
        node: NodeView<'_>,
    ) {
        self.add(Fingerprint::of(id));
        self.add(Fingerprint::of(&(
            pool.revision,
            used.map(|used| used.revision),
        )));
        for slice in &pool.slices {
            let devices = slice.devices.iter().filter(|_| slice.per_device);
            let reaches = devices.map(|d| &d.reach).chain([&slice.reach]);
            for reach in reaches {
                self.number(reach.matches(node).map_or(2, usize::from));
            }
        }
    }

    fn compared(&mut self, at: usize, driver: &str, device: &Device) {
        let SeenAttribute { name, key } = &self.plan.compared[at];
        let Some(found) = device.published(driver, name, *key) else {
            return self.number(0);
        };
        let (value, print) = (found.0, found.1);
        let values = &mut self.values[at];
        values.plain |= !is_scalar(value);
        let known = values.met.iter().position(|met| *met == print);
        let number = known.unwrap_or_else(|| {
            values.met.push(print);
            values.met.len() - 1
        });
        self.number(number + 1);
    }

    fn used(&mut self, used: Option<&DeviceUse>) {
        let Some(used) = used else {
            return self.number(0);
        };
        let held = usize::from(used.exclusive > 0) + 2 * usize::from(used.shares > 0);
        self.number(held + 1);
        if !used.consumed.is_empty() {
            self.add(Fingerprint::of(&used.consumed));
        }
    }

    fn finish(mut self) -> Looks {
        for values in std::mem::take(&mut self.values) {
            if values.plain || !self.renumber {
                values.met.into_iter().for_each(|met| self.add(met));
            }
        }
        Looks(self.sum)
    }
}
