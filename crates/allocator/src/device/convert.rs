//! Slices of the API in the form in which they are searched.

use std::sync::Arc;

use davit_api::quantity::{Format, Quantity};
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::{
    Attribute, AttributePrint, Capacity, CapacityPolicy, Consumption, Device, NodeResourceMapping,
    PoolId, Reach, Slice, SliceError,
};
use crate::cel;
use crate::fingerprint::{Fingerprint, attribute_key};
use crate::named::Named;
use crate::taint::{Taint, TaintRule};

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
        let mut devices: Vec<Device> = Vec::new();
        let mut before = None;
        for d in spec.devices.iter().flatten() {
            let like = devices.last().zip(before);
            devices.push(device(d, like, &spec.driver, &quantity)?);
            before = Some(d);
        }
        let counters = spec.shared_counters.iter().flatten().map(|set| {
            let counters = set.counters.iter();
            let counters: Result<_, _> = counters
                .map(|(k, c)| Ok((k.clone(), quantity("counter", &c.value)?)))
                .collect();
            Ok((set.name.clone(), counters?))
        });
        let mut slice = Self {
            name: name.into(),
            pool: PoolId {
                driver: spec.driver.as_str().into(),
                pool: spec.pool.name.as_str().into(),
            },
            generation: spec.pool.generation,
            count: spec.pool.resource_slice_count,
            devices,
            counters: counters.collect::<Result<_, SliceError>>()?,
            print: Fingerprint::default(),
            reach: Reach::new(
                spec.node_name.as_ref(),
                spec.all_nodes,
                spec.node_selector.as_ref(),
            ),
            per_device: spec.per_device_node_selection == Some(true),
            per_device_set: spec.per_device_node_selection.is_some(),
        };
        slice.print = Fingerprint::of(&(
            (slice.generation, slice.count, slice.devices.len()),
            (slice.per_device_set, &slice.counters),
        ));
        slice.taint(rules);
        Ok(slice)
    }

    /// The same slice under other rules.
    #[must_use]
    pub fn under(&self, rules: &[TaintRule]) -> Self {
        let mut slice = self.clone();
        slice.taint(rules);
        slice
    }

    /// Gives the devices the taints of these rules and of no others.
    fn taint(&mut self, rules: &[TaintRule]) {
        let (driver, pool) = (&self.pool.driver, &self.pool.pool);
        let rules = rules.iter().filter(|r| r.covers_pool(driver, pool));
        let rules: Vec<&TaintRule> = rules.collect();
        for device in &mut self.devices {
            device.taints.truncate(device.own_taints);
            let added = rules
                .iter()
                .filter(|r| r.covers(driver, pool, &device.name));
            device.taints.extend(added.map(|r| r.taint.clone()));
            device.fixed = device.fixed_print(driver);
        }
    }
}

impl Device {
    /// Of everything that may matter to whether a claim gets it, but name, place and attributes.
    fn fixed_print(&self, driver: &str) -> Fingerprint {
        let fixed = Fingerprint::of(&(driver, self.shareable, &self.taints, &self.consumes))
            .and(Fingerprint::of(&self.binding_conditions.is_empty()));
        let capacity = self.capacity.iter();
        let fixed = capacity.fold(fixed, |sum, c| sum.and(Fingerprint::of(&c)));
        // Every expression fails on a device with an attribute that has no value, and says which.
        let readable = self.attributes.iter().all(|(_, a)| cel::is_readable(a));
        let all = self.prints.iter().filter(|_| !readable);
        all.fold(fixed, |sum, p| sum.and(p.print))
    }
}

/// The device; `like`: the one before it in the slice, with what it was made of.
fn device(
    d: &api::Device,
    like: Option<(&Device, &api::Device)>,
    driver: &str,
    quantity: &impl Fn(&'static str, &ApiQuantity) -> Result<Quantity, SliceError>,
) -> Result<Device, SliceError> {
    let capacity = match like.filter(|(_, other)| other.capacity == d.capacity) {
        Some((same, _)) => same.capacity.clone(),
        None => Arc::new(capacity(d, quantity)?),
    };
    let same_node = |other: &api::Device| {
        other.node_allocatable_resource_mappings == d.node_allocatable_resource_mappings
    };
    let node_resources = match like.filter(|(_, other)| same_node(other)) {
        Some((same, _)) => same.node_resources.clone(),
        None => node_resources(d, quantity)?.map(Arc::new),
    };
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
    let attributes: Named<Attribute> = d
        .attributes
        .iter()
        .flatten()
        .map(|(name, a)| {
            // Most devices of a slice have attributes of the same names.
            let known = like.and_then(|(same, _)| same.attributes.name(name));
            let name = known.cloned().unwrap_or_else(|| name.as_str().into());
            (name, Attribute::from(a))
        })
        .collect();
    let prints = attributes.iter().map(|(name, value)| {
        let (domain, id) = name.split_once('/').unwrap_or((driver, name));
        AttributePrint {
            key: attribute_key(domain, id),
            print: Fingerprint::of(&(name, value)),
        }
    });
    let taints: Vec<Taint> = d.taints.iter().flatten().map(Taint::from).collect();
    Ok(Device {
        name: d.name.as_str().into(),
        prints: prints.collect(),
        attributes,
        capacity,
        own_taints: taints.len(),
        taints,
        consumes: consumes.collect::<Result<_, SliceError>>()?,
        node_resources,
        shareable: d.allow_multiple_allocations == Some(true),
        reach: Reach::new(d.node_name.as_ref(), d.all_nodes, d.node_selector.as_ref()),
        binds_to_node: d.binds_to_node == Some(true),
        binding_conditions: d.binding_conditions.clone().unwrap_or_default(),
        binding_failure_conditions: d.binding_failure_conditions.clone().unwrap_or_default(),
        fixed: Fingerprint::default(),
    })
}

fn node_resources(
    d: &api::Device,
    quantity: &impl Fn(&'static str, &ApiQuantity) -> Result<Quantity, SliceError>,
) -> Result<Option<Named<NodeResourceMapping>>, SliceError> {
    let Some(mappings) = &d.node_allocatable_resource_mappings else {
        return Ok(None);
    };
    let each = mappings.iter().map(|(resource, mapping)| {
        let multiplier = match &mapping.allocation_multiplier {
            Some(q) => quantity("multiplier", q)?,
            None => Quantity::new(1, Format::DecimalSi),
        };
        let capacity = mapping.capacity_key.as_deref();
        let mapping = NodeResourceMapping {
            capacity: capacity.filter(|key| !key.is_empty()).map(Arc::from),
            multiplier,
        };
        Ok((resource.as_str().into(), mapping))
    });
    each.collect::<Result<_, _>>().map(Some)
}

fn capacity(
    d: &api::Device,
    quantity: &impl Fn(&'static str, &ApiQuantity) -> Result<Quantity, SliceError>,
) -> Result<Named<Capacity>, SliceError> {
    let each = d.capacity.iter().flatten().map(|(name, c)| {
        let policy = match &c.request_policy {
            None => None,
            Some(p) => Some(Box::new(CapacityPolicy {
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
            })),
        };
        let value = quantity("capacity", &c.value)?;
        Ok((name.as_str().into(), Capacity { value, policy }))
    });
    each.collect()
}
