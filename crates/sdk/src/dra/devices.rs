//! What a driver has: pools of devices, cut into slices at the limits of the API.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    Counter, CounterSet, Device, DeviceAttribute, DeviceCapacity, DeviceCounterConsumption,
    DeviceTaint, NodeAllocatableResourceMapping,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Devices in a slice.
pub(super) const MAX_DEVICES: usize = 128;
/// Devices in a slice in which some device has taints, counters or lists as attributes.
pub(super) const MAX_RICH_DEVICES: usize = 64;
/// Counter sets in a slice.
pub(super) const MAX_COUNTER_SETS: usize = 8;

/// All a driver has to offer in its [scope](super::Scope).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resources {
    /// Pools by name; a node's own pool is commonly called like the node.
    pub pools: BTreeMap<String, Pool>,
}

impl Resources {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more pool, or another one of that name.
    #[must_use]
    pub fn pool(mut self, name: impl Into<String>, pool: Pool) -> Self {
        self.pools.insert(name.into(), pool);
        self
    }
}

/// From where the devices of a pool can be used.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Reach {
    /// From the node of the [scope](super::Scope).
    #[default]
    Node,
    /// From the nodes that the selector selects; it has exactly one term.
    Nodes(NodeSelector),
    /// From everywhere.
    AllNodes,
    /// Each device says it for itself.
    PerDevice,
}

/// Devices that belong together: names are unique in it, and it is used when all of it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pool {
    /// The devices, in the order in which they are to be tried.
    pub devices: Vec<Device>,
    /// What devices of the pool share.
    pub counters: Vec<CounterSet>,
    /// From where they can be used.
    pub reach: Reach,
    /// The generation at least; without it the publisher counts.
    pub generation: Option<i64>,
}

impl Pool {
    /// A pool of these devices.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            ..Self::default()
        }
    }

    /// With counters that its devices consume.
    #[must_use]
    pub fn counters(mut self, sets: impl IntoIterator<Item = CounterSet>) -> Self {
        self.counters.extend(sets);
        self
    }

    /// Usable from there.
    #[must_use]
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }
}

/// What is wrong with [`Resources`]; they are not published, and nothing is changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Two devices of a pool have one name.
    #[error("pool {pool}: two devices are called {device}")]
    DeviceTwice {
        /// The pool.
        pool: String,
        /// The name.
        device: String,
    },
    /// Two counter sets of a pool have one name.
    #[error("pool {pool}: two counter sets are called {set}")]
    SetTwice {
        /// The pool.
        pool: String,
        /// The name.
        set: String,
    },
    /// A device consumes what there is not.
    #[error("pool {pool}: device {device} consumes {counter}, which the pool does not have")]
    NoCounter {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// The counter set, or the counter in it.
        counter: String,
    },
    /// A pool for other nodes in the scope of one.
    #[error("pool {pool}: devices of a node can be used from this node only")]
    NotOfNode {
        /// The pool.
        pool: String,
    },
    /// A pool of a node in the scope of the cluster.
    #[error("pool {pool}: says of no node from where its devices can be used")]
    NoNode {
        /// The pool.
        pool: String,
    },
}

/// One slice of a pool, but for its place in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Content {
    pub(super) devices: Vec<Device>,
    pub(super) counters: Vec<CounterSet>,
}

/// Whether a device counts double, so to say, against the limit of a slice.
fn is_rich(device: &Device) -> bool {
    let lists = |a: &DeviceAttribute| {
        a.bools.is_some() || a.ints.is_some() || a.strings.is_some() || a.versions.is_some()
    };
    device.taints.as_ref().is_some_and(|t| !t.is_empty())
        || device
            .consumes_counters
            .as_ref()
            .is_some_and(|c| !c.is_empty())
        || device.attributes.iter().flatten().any(|(_, a)| lists(a))
}

impl Pool {
    /// The slices: counters first, which may not be together with devices, then the devices in
    /// their order. A pool without anything has one slice without anything.
    pub(super) fn slices(&self) -> Vec<Content> {
        let sets = self.counters.chunks(MAX_COUNTER_SETS);
        let mut slices: Vec<Content> = sets
            .map(|counters| Content {
                devices: Vec::new(),
                counters: counters.to_vec(),
            })
            .collect();
        let (mut current, mut rich) = (Vec::new(), false);
        for device in &self.devices {
            let limit = |rich| if rich { MAX_RICH_DEVICES } else { MAX_DEVICES };
            if current.len() >= limit(rich || is_rich(device)) {
                slices.push(Content {
                    devices: std::mem::take(&mut current),
                    counters: Vec::new(),
                });
                rich = false;
            }
            rich |= is_rich(device);
            current.push(device.clone());
        }
        if !current.is_empty() || slices.is_empty() {
            slices.push(Content {
                devices: current,
                counters: Vec::new(),
            });
        }
        slices
    }

    /// What no server would notice, and allocation would stumble over.
    fn check(&self, pool: &str) -> Result<(), Invalid> {
        let mut sets: BTreeMap<&str, &CounterSet> = BTreeMap::new();
        for set in &self.counters {
            if sets.insert(&set.name, set).is_some() {
                return Err(Invalid::SetTwice {
                    pool: pool.to_owned(),
                    set: set.name.clone(),
                });
            }
        }
        let mut names = BTreeSet::new();
        for device in &self.devices {
            if !names.insert(&device.name) {
                return Err(Invalid::DeviceTwice {
                    pool: pool.to_owned(),
                    device: device.name.clone(),
                });
            }
            for consumption in device.consumes_counters.iter().flatten() {
                let lacking = |counter: String| Invalid::NoCounter {
                    pool: pool.to_owned(),
                    device: device.name.clone(),
                    counter,
                };
                let set = sets.get(consumption.counter_set.as_str());
                let set = set.ok_or_else(|| lacking(consumption.counter_set.clone()))?;
                if let Some(name) = consumption
                    .counters
                    .keys()
                    .find(|c| !set.counters.contains_key(*c))
                {
                    return Err(lacking(format!("{}/{name}", consumption.counter_set)));
                }
            }
        }
        Ok(())
    }
}

impl Resources {
    /// Checks what can be checked without a server.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn check(&self, of_node: bool) -> Result<(), Invalid> {
        for (name, pool) in &self.pools {
            let pool_name = || name.clone();
            match &pool.reach {
                Reach::Node if !of_node => return Err(Invalid::NoNode { pool: pool_name() }),
                Reach::Node => {}
                _ if of_node => return Err(Invalid::NotOfNode { pool: pool_name() }),
                _ => {}
            }
            pool.check(name)?;
        }
        Ok(())
    }
}

/// A device of that name, without anything else.
pub fn device(name: impl Into<String>) -> Device {
    Device {
        name: name.into(),
        ..Device::default()
    }
}

/// A set of counters, such as the memory slots of a card that partitions take.
pub fn counters<'a>(
    name: impl Into<String>,
    amounts: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> CounterSet {
    CounterSet {
        name: name.into(),
        counters: amounts.into_iter().map(counter).collect(),
    }
}

fn counter((name, amount): (&str, &str)) -> (String, Counter) {
    let value = Quantity(amount.to_owned());
    (name.to_owned(), Counter { value })
}

/// Describing devices in few words. Names of attributes and capacities without a domain are the
/// driver's own.
pub trait DeviceExt: Sized {
    /// With an attribute, whatever its type.
    #[must_use]
    fn attribute(self, name: &str, value: DeviceAttribute) -> Self;

    /// With so much of something, as a quantity.
    #[must_use]
    fn capacity(self, name: &str, amount: &str) -> Self;

    /// Taking so much of a counter set of its pool while it is allocated.
    #[must_use]
    fn consumes<'a>(self, set: &str, amounts: impl IntoIterator<Item = (&'a str, &'a str)>)
    -> Self;

    /// Taking so much of a resource of its node (`cpu`, `memory`, …) while it is allocated: the scheduler counts it for the pod
    /// (KEP-5517, feature gate `DRANodeAllocatableResources`).
    #[must_use]
    fn takes_of_node(self, resource: &str, amount: &str) -> Self;

    /// With a taint, which keeps pods away that do not tolerate it. Effects are `NoSchedule`,
    /// `NoExecute` and `None`.
    #[must_use]
    fn taint(self, key: &str, value: &str, effect: &str) -> Self;

    /// Usable by several claims at once.
    #[must_use]
    fn shareable(self) -> Self;

    /// With a text.
    #[must_use]
    fn text(self, name: &str, value: impl Into<String>) -> Self {
        let string = Some(value.into());
        self.attribute(
            name,
            DeviceAttribute {
                string,
                ..DeviceAttribute::default()
            },
        )
    }

    /// With a number.
    #[must_use]
    fn int(self, name: &str, value: i64) -> Self {
        let int = Some(value);
        self.attribute(
            name,
            DeviceAttribute {
                int,
                ..DeviceAttribute::default()
            },
        )
    }

    /// With yes or no.
    #[must_use]
    fn flag(self, name: &str, value: bool) -> Self {
        let bool = Some(value);
        self.attribute(
            name,
            DeviceAttribute {
                bool,
                ..DeviceAttribute::default()
            },
        )
    }

    /// With a semantic version, without a leading `v`.
    #[must_use]
    fn version(self, name: &str, value: impl Into<String>) -> Self {
        let version = Some(value.into());
        self.attribute(
            name,
            DeviceAttribute {
                version,
                ..DeviceAttribute::default()
            },
        )
    }
}

impl DeviceExt for Device {
    fn attribute(mut self, name: &str, value: DeviceAttribute) -> Self {
        let attributes = self.attributes.get_or_insert_default();
        attributes.insert(name.to_owned(), value);
        self
    }

    fn capacity(mut self, name: &str, amount: &str) -> Self {
        let value = DeviceCapacity {
            value: Quantity(amount.to_owned()),
            request_policy: None,
        };
        let capacity = self.capacity.get_or_insert_default();
        capacity.insert(name.to_owned(), value);
        self
    }

    fn takes_of_node(mut self, resource: &str, amount: &str) -> Self {
        let mapping = NodeAllocatableResourceMapping {
            allocation_multiplier: Some(Quantity(amount.to_owned())),
            capacity_key: None,
        };
        let mappings = self
            .node_allocatable_resource_mappings
            .get_or_insert_default();
        mappings.insert(resource.to_owned(), mapping);
        self
    }

    fn consumes<'a>(
        mut self,
        set: &str,
        amounts: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let consumption = DeviceCounterConsumption {
            counter_set: set.to_owned(),
            counters: amounts.into_iter().map(counter).collect(),
        };
        self.consumes_counters
            .get_or_insert_default()
            .push(consumption);
        self
    }

    fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.get_or_insert_default().push(DeviceTaint {
            key: key.to_owned(),
            value: (!value.is_empty()).then(|| value.to_owned()),
            effect: effect.to_owned(),
            time_added: None,
        });
        self
    }

    fn shareable(mut self) -> Self {
        self.allow_multiple_allocations = Some(true);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(count: usize) -> Vec<Device> {
        (0..count).map(|n| device(format!("d-{n}"))).collect()
    }

    fn sizes(pool: &Pool) -> Vec<(usize, usize)> {
        let slices = pool.slices();
        slices
            .iter()
            .map(|s| (s.counters.len(), s.devices.len()))
            .collect()
    }

    #[test]
    fn slices_are_cut_at_the_limits() {
        assert_eq!(sizes(&Pool::default()), [(0, 0)]);
        assert_eq!(sizes(&Pool::new(plain(128))), [(0, 128)]);
        assert_eq!(sizes(&Pool::new(plain(129))), [(0, 128), (0, 1)]);
        let mut devices = plain(200);
        devices[100] = device("tainted").taint("a.dev/x", "", "NoSchedule");
        assert_eq!(sizes(&Pool::new(devices)), [(0, 100), (0, 64), (0, 36)]);
        let sets = (0..9).map(|n| counters(format!("s-{n}"), [("memory", "1Gi")]));
        let parts = plain(65)
            .into_iter()
            .map(|d| d.consumes("s-0", [("memory", "1Gi")]));
        let pool = Pool::new(parts).counters(sets);
        assert_eq!(sizes(&pool), [(8, 0), (1, 0), (0, 64), (0, 1)]);
        assert!(pool.check("p").is_ok());
    }

    #[test]
    fn what_cannot_be_allocated_is_refused() {
        let check = |pool: Pool| {
            let all = Resources::new().pool("p", pool);
            all.check(true).map_err(|e| e.to_string())
        };
        let twice = check(Pool::new([device("a"), device("a")]));
        assert_eq!(twice.unwrap_err(), "pool p: two devices are called a");
        let lacking = Pool::new([device("a").consumes("s", [("memory", "1")])]);
        assert_eq!(
            check(lacking.clone()).unwrap_err(),
            "pool p: device a consumes s, which the pool does not have"
        );
        let other = lacking.counters([counters("s", [("slots", "1")])]);
        assert_eq!(
            check(other).unwrap_err(),
            "pool p: device a consumes s/memory, which the pool does not have"
        );
        assert!(check(Pool::default().reach(Reach::AllNodes)).is_err());
        let everywhere = Resources::new().pool("p", Pool::default());
        assert!(everywhere.check(false).is_err());
    }
}
