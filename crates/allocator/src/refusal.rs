//! Why a node has no devices for claims, device by device.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::allocate::Allocator;
use crate::call::Call;
use crate::constraint::{Tracked, values};
use crate::device::{Attribute, DeviceView};
use crate::plan::{Mode, Need, Plan, PlannedClaim};
use crate::pool::State;
use crate::search::Search;

/// What rules a device out for a request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(
    tag = "cause",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
#[allow(missing_docs, reason = "the fields are what the variant's text shows")]
pub enum Cause {
    /// Another claim holds it, or a claim of the same pod.
    InUse,
    /// A clause of the class (with its name) or of the request does not hold, or fails.
    Selector {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<String>,
        expression: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// The attributes and capacities the expression names, with their values.
        seen: Vec<String>,
    },
    /// It can be reached from other nodes only.
    OtherNode,
    /// It has no capacity of this name.
    NoCapacity { capacity: String },
    /// Too little of a capacity is left.
    Capacity {
        capacity: String,
        requested: String,
        left: String,
    },
    /// The amount is none the device gives away.
    CapacityPolicy { capacity: String, amount: String },
    /// Too little of a counter is left.
    Counter {
        pool: String,
        set: String,
        counter: String,
        requested: String,
        left: String,
    },
    /// It has a taint the request does not tolerate.
    Taint {
        key: String,
        value: String,
        effect: String,
    },
    /// It needs a feature that is off.
    FeatureOff { feature: String },
    /// It does not have the attribute of a constraint.
    NoAttribute { attribute: String },
    /// Its value of a constraint's attribute does not go with those of the devices before it.
    Constraint {
        attribute: String,
        value: String,
        wanted: String,
        distinct: bool,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("in use"),
            Self::Selector {
                class,
                expression,
                error,
                seen,
            } => {
                match class {
                    Some(class) => write!(f, "class {class}: ")?,
                    None => f.write_str("request: ")?,
                }
                match error {
                    Some(error) => write!(f, "{expression} fails: {error}")?,
                    None => write!(f, "{expression} is false")?,
                }
                if !seen.is_empty() {
                    write!(f, " (saw {})", seen.join(", "))?;
                }
                Ok(())
            }
            Self::OtherNode => f.write_str("not reachable from this node"),
            Self::NoCapacity { capacity } => write!(f, "has no capacity {capacity}"),
            Self::Capacity {
                capacity,
                requested,
                left,
            } => write!(f, "capacity {capacity}: wants {requested}, {left} left"),
            Self::CapacityPolicy { capacity, amount } => {
                write!(
                    f,
                    "capacity {capacity}: {amount} is not among the amounts it gives away"
                )
            }
            Self::Counter {
                pool,
                set,
                counter,
                requested,
                left,
            } => write!(
                f,
                "counter {set}/{counter} of pool {pool}: wants {requested}, {left} left"
            ),
            Self::Taint { key, value, effect } if value.is_empty() => {
                write!(f, "taint {key}:{effect} is not tolerated")
            }
            Self::Taint { key, value, effect } => {
                write!(f, "taint {key}={value}:{effect} is not tolerated")
            }
            Self::FeatureOff { feature } => write!(f, "needs the feature {feature}, which is off"),
            Self::NoAttribute { attribute } => write!(f, "has no attribute {attribute}"),
            Self::Constraint {
                attribute,
                value,
                wanted,
                distinct,
            } => {
                let relation = if *distinct {
                    "must differ from"
                } else {
                    "must match"
                };
                write!(f, "{attribute} is {value}, {relation} {wanted}")
            }
        }
    }
}

/// A device and what rules it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRefusal {
    /// `driver/pool/device`.
    pub device: String,
    /// What rules it out.
    #[serde(flatten)]
    pub cause: Cause,
}

/// Why a request got nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRefusal {
    /// The claim, `namespace/name`.
    pub claim: String,
    /// The request, or `request/alternative`.
    pub request: String,
    /// How many devices it wants; `None`: all.
    pub wanted: Option<usize>,
    /// How many would do, looked at one by one.
    pub usable: usize,
    /// What is wrong with them together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<String>,
    /// The others and what rules them out.
    pub devices: Vec<DeviceRefusal>,
}

/// A pool that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolFault {
    /// `driver/pool`.
    pub pool: String,
    /// Why not.
    pub reason: String,
}

/// Why a node has no devices for the claims of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// How many devices the node can reach.
    pub devices: usize,
    /// What made the search stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Pools that cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolFault>,
    /// By request; those that would find devices alone have no cause in them.
    pub requests: Vec<RequestRefusal>,
}

impl Refusal {
    /// In a few words: what rules out most devices.
    pub fn summary(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let mut parts = Vec::new();
        for request in &self.requests {
            if request.wanted.is_some_and(|w| request.usable >= w) && request.together.is_empty() {
                continue;
            }
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for device in &request.devices {
                *counts.entry(device.cause.to_string()).or_default() += 1;
            }
            let mut counts: Vec<_> = counts.into_iter().collect();
            counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
            let mut causes: Vec<String> = counts
                .iter()
                .take(3)
                .map(|(cause, n)| format!("{n} {cause}"))
                .collect();
            causes.extend(request.together.iter().cloned());
            if causes.is_empty() {
                causes.push("the node has no devices".to_owned());
            }
            parts.push(format!(
                "request {}: {}",
                request.request,
                causes.join("; ")
            ));
        }
        for pool in &self.pools {
            parts.push(format!("pool {}: {}", pool.pool, pool.reason));
        }
        if parts.is_empty() {
            parts.push("no combination of devices satisfies all requests".to_owned());
        }
        parts.join(". ")
    }
}

/// Devices that are told of, each as often as a request asks about it.
const MOST_DEVICES: usize = 4096;

/// The attributes and capacities that an expression names, as it saw them.
pub(crate) fn seen(expression: &str, device: DeviceView<'_>) -> Vec<String> {
    let words: HashSet<&str> = expression
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .collect();
    let named = |name: &str| words.contains(name.rsplit('/').next().unwrap_or(name));
    let mut seen = Vec::new();
    if words.contains("driver") {
        seen.push(format!("driver {:?}", device.driver));
    }
    if words.contains("allowMultipleAllocations") {
        seen.push(format!("allowMultipleAllocations {}", device.shareable));
    }
    let attributes = device.attributes.iter().filter(|(n, _)| named(n));
    seen.extend(attributes.map(|(n, v)| format!("{n} {v}")));
    let capacity = device.capacity.iter().filter(|(n, _)| named(n));
    seen.extend(capacity.map(|(n, c)| format!("{n} {}", c.value)));
    seen
}

pub(crate) fn explain(allocator: &Allocator, plan: &Plan, call: Call<'_>) -> Refusal {
    let mut refusal = Refusal::default();
    let pools = allocator.pools(call);
    for pool in &pools {
        let reason = match &pool.state {
            State::Complete => continue,
            State::Incomplete { have, want } => {
                format!("is being updated: {have} of {want} slices are there")
            }
            State::Invalid(why) => format!("is invalid: {why}"),
        };
        let pool = pool.id.to_string();
        refusal.pools.push(PoolFault { pool, reason });
    }
    let mut search = Search::new(allocator, plan, &pools, call);
    let outcome = search.run();
    if let Err(error) = outcome {
        refusal.error = Some(error.to_string());
    }
    // What the search left chosen must not count.
    let search = Search::new(allocator, plan, &pools, call);
    refusal.devices = search.places.len();
    let mut left = MOST_DEVICES;
    for (c, claim) in plan.claims.iter().enumerate() {
        for need in claim.requests.iter().flat_map(|r| &r.alternatives) {
            let lists = allocator.features.list_attributes;
            let mut request = request(&search, c, claim, need, lists);
            let more = request.devices.len().saturating_sub(left);
            if more > 0 {
                request.devices.truncate(left);
                request.together.push(format!("{more} more devices"));
            }
            left -= request.devices.len();
            refusal.requests.push(request);
        }
    }
    refusal
}

fn request(
    search: &Search<'_>,
    c: usize,
    claim: &PlannedClaim,
    need: &Need,
    lists: bool,
) -> RequestRefusal {
    let mut out = RequestRefusal {
        claim: claim.label.clone(),
        request: need.full_name(),
        wanted: match need.mode {
            Mode::Exactly(count) => Some(count),
            Mode::All => None,
        },
        ..RequestRefusal::default()
    };
    let mut usable = Vec::new();
    for place in 0..search.places.len() {
        // Devices times requests, and expressions as long as they may be: as long as there is time, as in the search.
        if search.is_late() {
            out.together
                .push("not all devices were looked at: no time was left".to_owned());
            return out;
        }
        let id = || {
            let at = search.places[place];
            search.pools[at.pool].device_id(at.at).to_string()
        };
        let missing = || {
            let (slice, device) = search.device(place);
            let mut needed = claim.constraints.iter().filter(|k| k.covers(need));
            needed.find(|k| device.attribute(&slice.pool.driver, &k.attribute).is_none())
        };
        let cause = search.cause(c, need, place).or_else(|| {
            missing().map(|k| Cause::NoAttribute {
                attribute: k.attribute.clone(),
            })
        });
        match cause {
            Some(cause) => out.devices.push(DeviceRefusal {
                device: id(),
                cause,
            }),
            None => usable.push(place),
        }
    }
    out.usable = usable.len();
    let wanted = out.wanted.unwrap_or(usable.len());
    if usable.len() < wanted {
        let have = usable.len();
        out.together.push(format!("{have} of {wanted} devices"));
        return out;
    }
    for constraint in claim.constraints.iter().filter(|k| k.covers(need)) {
        let mut tracked = Tracked::new(constraint, lists);
        let mut groups: BTreeMap<Attribute, usize> = BTreeMap::new();
        for &place in &usable {
            let (slice, device) = search.device(place);
            let driver = &*slice.pool.driver;
            let Some(attribute) = device.attribute(driver, &constraint.attribute) else {
                continue;
            };
            for value in values(attribute, lists) {
                *groups.entry(value).or_default() += 1;
            }
            let wanted = tracked.wanted();
            if !tracked.add(need, driver, device) {
                let at = search.places[place];
                out.devices.push(DeviceRefusal {
                    device: search.pools[at.pool].device_id(at.at).to_string(),
                    cause: Cause::Constraint {
                        attribute: constraint.attribute.clone(),
                        value: attribute.to_string(),
                        wanted,
                        distinct: constraint.distinct,
                    },
                });
            }
        }
        let groups: Vec<String> = groups
            .iter()
            .map(|(v, n)| format!("{n} with {v}"))
            .collect();
        let (attribute, relation) = (
            &constraint.attribute,
            if constraint.distinct {
                "different"
            } else {
                "equal"
            },
        );
        out.together.push(format!(
            "constraint: {wanted} devices with {relation} {attribute} are wanted, there are {}",
            groups.join(", ")
        ));
    }
    out
}
