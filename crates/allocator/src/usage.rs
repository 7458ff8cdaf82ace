//! What allocated claims hold.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use davit_api::quantity::Quantity;
use foldhash::fast::RandomState;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult};
use parking_lot::Mutex;

use crate::device::PoolId;
use crate::fingerprint::{Fingerprint, revision};
use crate::inventory::PoolSlices;

/// What is held of one device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceUse {
    /// How many claims hold it alone; more than one only if somebody allocated by hand.
    pub exclusive: u32,
    /// How many claims hold a share.
    pub shares: u32,
    /// The capacities of all shares together.
    pub consumed: BTreeMap<String, Quantity>,
}

impl DeviceUse {
    fn is_unused(&self) -> bool {
        self.exclusive == 0 && self.shares == 0
    }

    /// As much of it as matters to who wants the device.
    fn signature(&self) -> Fingerprint {
        Fingerprint::of(&(self.exclusive > 0, self.shares > 0, &self.consumed))
    }

    /// Whether somebody holds it or a part of it.
    pub fn is_allocated(&self) -> bool {
        !self.is_unused()
    }

    fn add(&mut self, more: &Self) {
        self.exclusive += more.exclusive;
        self.shares += more.shares;
        for (name, amount) in &more.consumed {
            let sum = self.consumed.entry(name.clone()).or_insert(Quantity::ZERO);
            *sum = sum.checked_add(*amount).unwrap_or(*sum);
        }
    }

    fn take(&mut self, gone: &Self) {
        self.exclusive = self.exclusive.saturating_sub(gone.exclusive);
        self.shares = self.shares.saturating_sub(gone.shares);
        for (name, amount) in &gone.consumed {
            if let Some(sum) = self.consumed.get_mut(name) {
                *sum = sum.checked_sub(*amount).unwrap_or(*sum);
            }
        }
        if self.shares == 0 {
            self.consumed.clear();
        }
    }
}

/// Who holds a device of one name: by the node that the allocation is for, `None` where it is not for one alone. Nodes may
/// name their devices as they like, also as those of others; what is allocated on one node is not the device of another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Holders(Vec<(Option<Arc<str>>, DeviceUse)>);

impl Holders {
    fn change(&mut self, node: Option<&str>, how: impl FnOnce(&mut DeviceUse)) {
        let known = self.0.iter().position(|(of, _)| of.as_deref() == node);
        let at = known.unwrap_or_else(|| {
            self.0.push((node.map(Arc::from), DeviceUse::default()));
            self.0.len() - 1
        });
        how(&mut self.0[at].1);
        if self.0[at].1.is_unused() {
            self.0.swap_remove(at);
        }
    }

    /// What is held of the device, if it is one of `owner`'s own; of `None`'s, which several nodes reach, all is.
    fn of(&self, owner: Option<&str>) -> Option<Cow<'_, DeviceUse>> {
        let here = |(of, _): &&(Option<Arc<str>>, DeviceUse)| {
            of.is_none() || owner.is_none() || of.as_deref() == owner
        };
        let mut held = self.0.iter().filter(here).map(|(_, used)| used);
        let mut all = Cow::Borrowed(held.next()?);
        for more in held {
            all.to_mut().add(more);
        }
        Some(all)
    }

    /// Takes away what is to be treated as free.
    fn take(&mut self, released: &Self) {
        for (node, gone) in &released.0 {
            self.change(node.as_deref(), |used| used.take(gone));
        }
    }
}

/// The one node that an allocation is for. Devices of a node's own are allocated for it alone.
///
/// What selects more than one node, or none, is for all that it selects: `None`.
pub fn node_of(allocation: &AllocationResult) -> Option<&str> {
    let [term] = &*allocation.node_selector.as_ref()?.node_selector_terms else {
        return None;
    };
    let mut fields = term.match_fields.iter().flatten();
    let name = fields.find(|f| f.key == "metadata.name" && f.operator == "In")?;
    match name.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}

/// The uses of the devices of one pool.
#[derive(Debug, Default)]
pub(crate) struct PoolUse {
    /// By device.
    devices: HashMap<Arc<str>, Holders, RandomState>,
    /// Another one after every change.
    pub(crate) revision: u64,
    /// Its signature, with the revision of the slices for which it was made.
    signature: Mutex<Option<(u64, Fingerprint)>>,
}

impl Clone for PoolUse {
    fn clone(&self) -> Self {
        Self {
            devices: self.devices.clone(),
            revision: self.revision,
            ..Self::default()
        }
    }
}

impl PoolUse {
    /// What is held of a device of `owner`'s own, or of one that several nodes reach.
    pub(crate) fn of(&self, owner: Option<&str>, device: &str) -> Option<Cow<'_, DeviceUse>> {
        self.devices.get(device)?.of(owner)
    }

    /// Takes away what is to be treated as free.
    pub(crate) fn release(&mut self, released: &Self) {
        for (name, gone) in &released.devices {
            if let Some(held) = self.devices.get_mut(name) {
                held.take(gone);
            }
        }
    }

    /// What is held of the devices of a pool, by their places in it.
    pub(crate) fn signature(&self, pool: &PoolSlices) -> Fingerprint {
        let mut known = self.signature.lock();
        if let Some((_, signature)) = known.filter(|(revision, _)| *revision == pool.revision) {
            return signature;
        }
        let mut sum = Fingerprint::default();
        let slices = pool.slices.iter();
        let devices = slices.flat_map(|s| s.devices.iter().map(move |d| (s.owner(), d)));
        for (place, (owner, device)) in devices.enumerate() {
            if let Some(used) = self.of(owner, &device.name) {
                sum = sum.and_number(place).and(used.signature());
            }
        }
        *known = Some((pool.revision, sum));
        sum
    }
}

/// What allocated claims hold, admin access left out. Cheap to clone; the first change after that copies the list of pools.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    pools: Arc<HashMap<PoolId, Arc<PoolUse>, RandomState>>,
}

impl Usage {
    /// Books an allocation.
    pub fn add(&mut self, allocation: &AllocationResult) {
        let node = node_of(allocation);
        for result in counted(allocation) {
            self.change(node, result, |used, result| {
                if result.share_id.is_none() {
                    used.exclusive += 1;
                    return;
                }
                used.add(&DeviceUse {
                    exclusive: 0,
                    shares: 1,
                    consumed: amounts(result).collect(),
                });
            });
        }
    }

    /// Takes an allocation back that has been booked.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        let node = node_of(allocation);
        for result in counted(allocation) {
            self.change(node, result, |used, result| {
                if result.share_id.is_none() {
                    used.exclusive = used.exclusive.saturating_sub(1);
                    return;
                }
                used.take(&DeviceUse {
                    exclusive: 0,
                    shares: 1,
                    consumed: amounts(result).collect(),
                });
            });
        }
    }

    fn change(
        &mut self,
        node: Option<&str>,
        result: &DeviceRequestAllocationResult,
        how: impl FnOnce(&mut DeviceUse, &DeviceRequestAllocationResult),
    ) {
        let id = PoolId {
            driver: result.driver.as_str().into(),
            pool: result.pool.as_str().into(),
        };
        let pools = Arc::make_mut(&mut self.pools);
        let pool = Arc::make_mut(pools.entry(id.clone()).or_default());
        pool.revision = revision();
        *pool.signature.get_mut() = None;
        let holders = pool.devices.entry(result.device.as_str().into());
        let holders = holders.or_default();
        holders.change(node, |used| how(used, result));
        if holders.0.is_empty() {
            pool.devices.remove(&*result.device);
            if pool.devices.is_empty() {
                pools.remove(&id);
            }
        }
    }

    /// What is held of a device by whomever.
    pub fn of(&self, pool: &PoolId, device: &str) -> Option<Cow<'_, DeviceUse>> {
        self.pool(pool)?.of(None, device)
    }

    pub(crate) fn pool(&self, pool: &PoolId) -> Option<&Arc<PoolUse>> {
        self.pools.get(pool)
    }

    /// How many devices are held.
    pub fn len(&self) -> usize {
        self.pools.values().map(|pool| pool.devices.len()).sum()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }
}

fn counted(allocation: &AllocationResult) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let results = allocation.devices.iter().flat_map(|d| &d.results).flatten();
    results.filter(|r| r.admin_access != Some(true))
}

fn amounts(
    result: &DeviceRequestAllocationResult,
) -> impl Iterator<Item = (String, Quantity)> + use<'_> {
    // What cannot be read was never given by us; the API server refuses it.
    let all = result.consumed_capacity.iter().flatten();
    all.filter_map(|(name, q)| Some((name.clone(), Quantity::parse(&q.0).ok()?)))
}
