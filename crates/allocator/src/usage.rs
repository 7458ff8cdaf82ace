//! What allocated claims hold.

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
}

/// The uses of the devices of one pool.
#[derive(Debug, Default)]
pub(crate) struct PoolUse {
    /// By device.
    pub(crate) devices: HashMap<Arc<str>, DeviceUse, RandomState>,
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
    /// What is held of the devices of a pool, by their places in it.
    pub(crate) fn signature(&self, pool: &PoolSlices) -> Fingerprint {
        let mut known = self.signature.lock();
        if let Some((_, signature)) = known.filter(|(revision, _)| *revision == pool.revision) {
            return signature;
        }
        let mut sum = Fingerprint::default();
        let devices = pool.slices.iter().flat_map(|s| &s.devices);
        for (place, device) in devices.enumerate() {
            if let Some(used) = self.devices.get(&device.name) {
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
        for result in counted(allocation) {
            self.change(result, |used, result| {
                if result.share_id.is_none() {
                    used.exclusive += 1;
                    return;
                }
                used.shares += 1;
                for (name, amount) in amounts(result) {
                    let sum = used.consumed.entry(name).or_insert(Quantity::ZERO);
                    *sum = sum.checked_add(amount).unwrap_or(*sum);
                }
            });
        }
    }

    /// Takes an allocation back that has been booked.
    pub fn remove(&mut self, allocation: &AllocationResult) {
        for result in counted(allocation) {
            self.change(result, |used, result| {
                if result.share_id.is_none() {
                    used.exclusive = used.exclusive.saturating_sub(1);
                    return;
                }
                used.shares = used.shares.saturating_sub(1);
                for (name, amount) in amounts(result) {
                    if let Some(sum) = used.consumed.get_mut(&name) {
                        *sum = sum.checked_sub(amount).unwrap_or(*sum);
                    }
                }
                if used.shares == 0 {
                    used.consumed.clear();
                }
            });
        }
    }

    fn change(
        &mut self,
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
        let used = pool.devices.entry(result.device.as_str().into());
        let used = used.or_default();
        how(used, result);
        if used.is_unused() {
            pool.devices.remove(&*result.device);
            if pool.devices.is_empty() {
                pools.remove(&id);
            }
        }
    }

    /// What is held of a device.
    pub fn of(&self, pool: &PoolId, device: &str) -> Option<&DeviceUse> {
        self.pool(pool)?.devices.get(device)
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
