//! Slices and devices in the form in which they are searched.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use davit_api::quantity::{ParseQuantityError, Quantity};
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::node::{NodeMatcher, NodeSelectorError, NodeView};
use crate::selector::Outcomes;
use crate::taint::{Taint, TaintRule};

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

impl From<&api::DeviceAttribute> for Attribute {
    fn from(a: &api::DeviceAttribute) -> Self {
        let texts = |list: &Vec<String>| list.iter().map(|s| s.as_str().into()).collect();
        if let Some(v) = &a.string {
            Self::String(v.as_str().into())
        } else if let Some(v) = a.int {
            Self::Int(v)
        } else if let Some(v) = a.bool {
            Self::Bool(v)
        } else if let Some(v) = &a.version {
            Self::Version(v.as_str().into())
        } else if let Some(v) = &a.strings {
            Self::Strings(texts(v))
        } else if let Some(v) = &a.ints {
            Self::Ints(v.clone())
        } else if let Some(v) = &a.bools {
            Self::Bools(v.clone())
        } else if let Some(v) = &a.versions {
            Self::Versions(texts(v))
        } else {
            Self::Unknown
        }
    }
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
#[derive(Debug, Clone)]
pub struct Capacity {
    /// All of it.
    pub value: Quantity,
    /// How parts of it are given away.
    pub policy: Option<CapacityPolicy>,
}

/// How a capacity is given away in parts.
#[derive(Debug, Clone, Default)]
pub struct CapacityPolicy {
    /// What a request without an amount gets.
    pub default: Option<Quantity>,
    /// The amounts that can be had.
    pub values: Vec<Quantity>,
    /// Least amount, largest amount, step.
    pub range: Option<(Quantity, Option<Quantity>, Option<Quantity>)>,
}

/// What a device takes from the counters of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumption {
    /// The set.
    pub set: String,
    /// The counters of the set.
    pub counters: BTreeMap<String, Quantity>,
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
#[derive(Debug)]
pub struct Device {
    /// Its name in the pool.
    pub name: Arc<str>,
    /// Attributes by name, with or without domain, as published.
    pub attributes: BTreeMap<String, Attribute>,
    /// Capacities by name, as published.
    pub capacity: BTreeMap<String, Capacity>,
    /// Its own taints and those of rules.
    pub taints: Vec<Taint>,
    /// What it takes from shared counters.
    pub consumes: Vec<Consumption>,
    /// Whether several claims can hold it at once.
    pub shareable: bool,
    pub(crate) reach: Reach,
    pub(crate) binds_to_node: bool,
    pub(crate) binding_conditions: Vec<String>,
    pub(crate) binding_failure_conditions: Vec<String>,
    pub(crate) outcomes: Outcomes,
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
    pub attributes: &'a BTreeMap<String, Attribute>,
    /// Capacities by name, as published.
    pub capacity: &'a BTreeMap<String, Capacity>,
    /// `device.allowMultipleAllocations`.
    pub shareable: bool,
}

/// A slice.
#[derive(Debug)]
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
    /// Takes over a slice of the API; `rules` add their taints.
    ///
    /// # Errors
    /// When a quantity cannot be read.
    pub fn new(slice: &api::ResourceSlice, rules: &[TaintRule]) -> Result<Self, SliceError> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let spec = &slice.spec;
        let quantity = |what, q: &ApiQuantity| {
            Quantity::parse(&q.0).map_err(|error| SliceError {
                slice: name.to_owned(),
                what,
                text: q.0.clone(),
                error,
            })
        };
        let rules: Vec<&TaintRule> = rules
            .iter()
            .filter(|r| r.covers_pool(&spec.driver, &spec.pool.name))
            .collect();
        let devices = spec.devices.iter().flatten();
        let devices: Result<Vec<Device>, SliceError> = devices
            .map(|d| device(d, spec, &rules, &quantity))
            .collect();
        let devices = devices?;
        let counters = spec.shared_counters.iter().flatten().map(|set| {
            let counters = set.counters.iter();
            let counters: Result<_, _> = counters
                .map(|(k, c)| Ok((k.clone(), quantity("counter", &c.value)?)))
                .collect();
            Ok((set.name.clone(), counters?))
        });
        Ok(Self {
            name: name.into(),
            pool: PoolId {
                driver: spec.driver.as_str().into(),
                pool: spec.pool.name.as_str().into(),
            },
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            devices,
            counters: counters.collect::<Result<_, SliceError>>()?,
            reach: Reach::new(
                spec.node_name.as_ref(),
                spec.all_nodes,
                spec.node_selector.as_ref(),
            ),
            per_device: spec.per_device_node_selection == Some(true),
            per_device_set: spec.per_device_node_selection.is_some(),
        })
    }
}

fn device(
    d: &api::Device,
    spec: &api::ResourceSliceSpec,
    rules: &[&TaintRule],
    quantity: &impl Fn(&'static str, &ApiQuantity) -> Result<Quantity, SliceError>,
) -> Result<Device, SliceError> {
    let capacity = d.capacity.iter().flatten().map(|(name, c)| {
        let policy = match &c.request_policy {
            None => None,
            Some(p) => Some(CapacityPolicy {
                default: match &p.default {
                    Some(q) => Some(quantity("default", q)?),
                    None => None,
                },
                values: p
                    .valid_values
                    .iter()
                    .flatten()
                    .map(|q| quantity("value", q))
                    .collect::<Result<_, _>>()?,
                range: match &p.valid_range {
                    Some(r) => Some((
                        quantity("min", &r.min)?,
                        r.max.as_ref().map(|q| quantity("max", q)).transpose()?,
                        r.step.as_ref().map(|q| quantity("step", q)).transpose()?,
                    )),
                    None => None,
                },
            }),
        };
        let value = quantity("capacity", &c.value)?;
        Ok((name.clone(), Capacity { value, policy }))
    });
    let consumes = d.consumes_counters.iter().flatten().map(|c| {
        let counters = c.counters.iter();
        let counters: Result<_, SliceError> = counters
            .map(|(k, v)| Ok((k.clone(), quantity("counter", &v.value)?)))
            .collect();
        Ok(Consumption {
            set: c.counter_set.clone(),
            counters: counters?,
        })
    });
    let own = d.taints.iter().flatten().map(Taint::from);
    let added = rules
        .iter()
        .filter(|r| r.covers(&spec.driver, &spec.pool.name, &d.name))
        .map(|r| r.taint.clone());
    let attributes = d.attributes.iter().flatten();
    Ok(Device {
        name: d.name.as_str().into(),
        attributes: attributes
            .map(|(name, a)| (name.clone(), Attribute::from(a)))
            .collect(),
        capacity: capacity.collect::<Result<_, SliceError>>()?,
        taints: own.chain(added).collect(),
        consumes: consumes.collect::<Result<_, SliceError>>()?,
        shareable: d.allow_multiple_allocations == Some(true),
        reach: Reach::new(d.node_name.as_ref(), d.all_nodes, d.node_selector.as_ref()),
        binds_to_node: d.binds_to_node == Some(true),
        binding_conditions: d.binding_conditions.clone().unwrap_or_default(),
        binding_failure_conditions: d.binding_failure_conditions.clone().unwrap_or_default(),
        outcomes: Outcomes::default(),
    })
}
