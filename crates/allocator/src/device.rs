//! Slices and devices in the form in which they are searched.

mod convert;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use davit_api::quantity::{ParseQuantityError, Quantity};
use k8s_openapi::api::core::v1::NodeSelector;

use crate::fingerprint::Fingerprint;
use crate::named::Named;
use crate::node::{NodeMatcher, NodeSelectorError, NodeView};
use crate::support::Support;
use crate::taint::Taint;

/// A pool: driver and name. Ordered as pools are tried.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    /// The driver.
    pub driver: Arc<str>,
    /// The pool's name.
    pub pool: Arc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// A device: pool and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// Its pool.
    pub pool: PoolId,
    /// Its name in the pool.
    pub device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.device)
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the variants are the types of the API")]
pub enum Attribute {
    Bool(bool),
    Int(i64),
    String(Arc<str>),
    Version(Arc<str>),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Strings(Vec<Arc<str>>),
    Versions(Vec<Arc<str>>),
    /// None of the types known here.
    Unknown,
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(v) => write!(f, "{v}"),
            Self::Int(v) => write!(f, "{v}"),
            Self::String(v) => write!(f, "{v:?}"),
            Self::Version(v) => write!(f, "{v}"),
            Self::Bools(v) => write!(f, "{v:?}"),
            Self::Ints(v) => write!(f, "{v:?}"),
            Self::Strings(v) => write!(f, "{v:?}"),
            Self::Versions(v) => write!(f, "[{}]", v.join(", ")),
            Self::Unknown => f.write_str("(a value of an unknown type)"),
        }
    }
}

/// A capacity of a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Capacity {
    /// All of it.
    pub value: Quantity,
    /// How parts of it are given away.
    pub policy: Option<Box<CapacityPolicy>>,
}

/// How a capacity is given away in parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CapacityPolicy {
    /// What a request without an amount gets.
    pub default: Option<Quantity>,
    /// The amounts that can be had.
    pub values: Vec<Quantity>,
    /// Least amount, largest amount, step.
    pub range: Option<(Quantity, Option<Quantity>, Option<Quantity>)>,
}

/// What a device takes from the counters of its pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Consumption {
    /// The set.
    pub set: String,
    /// The counters of the set.
    pub counters: BTreeMap<String, Quantity>,
}

/// How much of one resource of its node (`cpu`, `memory`, …) a device takes when it is allocated: `nodeAllocatableResourceMappings`
/// of KEP-5517.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeResourceMapping {
    /// The capacity whose consumed amount counts; without one each allocation of the device does.
    pub capacity: Option<Arc<str>>,
    /// What one unit of that comes to.
    pub multiplier: Quantity,
}

/// Nodes that can reach devices.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    /// Nothing that is known here was set.
    Unknown,
    Node(Arc<str>),
    All,
    Selector(NodeMatcher, Box<NodeSelector>),
    /// A selector that cannot be understood.
    Broken(NodeSelectorError),
}

impl Reach {
    fn new(name: Option<&String>, all: Option<bool>, selector: Option<&NodeSelector>) -> Self {
        if let Some(name) = name.filter(|n| !n.is_empty()) {
            return Self::Node(name.as_str().into());
        }
        if all == Some(true) {
            return Self::All;
        }
        match selector.map(|s| (NodeMatcher::new(s), s)) {
            None => Self::Unknown,
            Some((Ok(matcher), s)) => Self::Selector(matcher, Box::new(s.clone())),
            Some((Err(error), _)) => Self::Broken(error),
        }
    }

    pub(crate) fn matches(&self, node: NodeView<'_>) -> Result<bool, &NodeSelectorError> {
        match self {
            Self::Unknown => Ok(false),
            Self::Node(name) => Ok(&**name == node.name),
            Self::All => Ok(true),
            Self::Selector(matcher, _) => Ok(matcher.matches(node)),
            Self::Broken(error) => Err(error),
        }
    }
}

/// A device of a slice.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its name in the pool.
    pub name: Arc<str>,
    /// Attributes by name, with or without domain, as published.
    pub attributes: Named<Attribute>,
    /// Of each attribute, in their order.
    pub(crate) prints: Box<[AttributePrint]>,
    /// Capacities by name, as published. Devices of a slice that have the same share them.
    pub capacity: Arc<Named<Capacity>>,
    /// Its own taints and those of rules.
    pub taints: Vec<Taint>,
    /// How many of the taints are its own; they come first.
    own_taints: usize,
    /// What it takes from shared counters.
    pub consumes: Vec<Consumption>,
    /// What it takes of the resources of its node, by resource. Devices of a slice that take the same share them.
    pub node_resources: Option<Arc<Named<NodeResourceMapping>>>,
    /// Whether several claims can hold it at once.
    pub shareable: bool,
    pub(crate) reach: Reach,
    pub(crate) binds_to_node: bool,
    pub(crate) binding_conditions: Vec<String>,
    pub(crate) binding_failure_conditions: Vec<String>,
    /// Everything but name, place and attributes.
    pub(crate) fixed: Fingerprint,
}

/// An attribute where devices are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttributePrint {
    /// Of the name with the domain.
    pub(crate) key: u64,
    /// Of name and value.
    pub(crate) print: Fingerprint,
}

impl Device {
    /// The attribute of a fully qualified name; names without domain belong to the driver's.
    pub fn attribute(&self, driver: &str, name: &str) -> Option<&Attribute> {
        if let Some(found) = self.attributes.get(name) {
            return Some(found);
        }
        let (domain, id) = name.split_once('/')?;
        (domain == driver).then(|| self.attributes.get(id))?
    }

    /// The same, with what it is compared by; `key` is that of the name.
    pub(crate) fn published(
        &self,
        driver: &str,
        name: &str,
        key: Option<u64>,
    ) -> Option<(&Attribute, Fingerprint)> {
        let mut having = (0..self.prints.len()).filter(|&i| Some(self.prints[i].key) == key);
        let at = match (having.next(), having.next()) {
            (Some(only), None) => only,
            (None, _) if key.is_some() => return None,
            // With and without domain, or wanted without: the name decides.
            _ => self.attributes.position(name).or_else(|| {
                let (domain, id) = name.split_once('/')?;
                (domain == driver).then(|| self.attributes.position(id))?
            })?,
        };
        Some((self.attributes.at(at)?, self.prints[at].print))
    }

    /// What was published of it besides its name, without where it is: attributes only as far as they are in `support`.
    pub(crate) fn print(&self, support: &Support) -> Fingerprint {
        let seen = |p: &&AttributePrint| support.covers(p.key);
        let prints = self.prints.iter().filter(seen);
        prints.fold(self.fixed, |sum, p| sum.and(p.print))
    }

    /// The device as selectors see it.
    pub fn view<'a>(&'a self, driver: &'a str) -> DeviceView<'a> {
        DeviceView {
            driver,
            attributes: &self.attributes,
            capacity: &self.capacity,
            shareable: self.shareable,
        }
    }
}

/// A device as selectors see it.
#[derive(Debug, Clone, Copy)]
pub struct DeviceView<'a> {
    /// The driver.
    pub driver: &'a str,
    /// Attributes by name, as published.
    pub attributes: &'a Named<Attribute>,
    /// Capacities by name, as published.
    pub capacity: &'a Named<Capacity>,
    /// `device.allowMultipleAllocations`.
    pub shareable: bool,
}

/// A slice.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The name of the object.
    pub name: Arc<str>,
    /// The pool it belongs to.
    pub pool: PoolId,
    /// The pool's generation.
    pub generation: i64,
    /// How many slices the pool has in this generation.
    pub count: i64,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Counter sets: name, counters.
    pub counters: Vec<(String, BTreeMap<String, Quantity>)>,
    /// Everything but names, place and devices.
    pub(crate) print: Fingerprint,
    pub(crate) reach: Reach,
    pub(crate) per_device: bool,
    /// Whether the field was set at all: a slice with it is left out when partitions are off.
    pub(crate) per_device_set: bool,
}

/// A slice that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resource slice {slice}: {what} {text:?}: {error}")]
pub struct SliceError {
    slice: String,
    what: &'static str,
    text: String,
    error: ParseQuantityError,
}

impl Slice {
    /// The node whose own devices these are, which its credential may have written.
    pub(crate) fn owner(&self) -> Option<&str> {
        match &self.reach {
            Reach::Node(node) if !self.per_device => Some(node),
            _ => None,
        }
    }
}
