//! What claims ask for, made ready once for all nodes.

use std::sync::Arc;

use davit_api::quantity::Quantity;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceSelector, DeviceToleration, ResourceClaim,
};

use crate::capacity::Amounts;
use crate::classes::{Class, Classes};
use crate::error::AllocateError;
use crate::features::Features;
use crate::fingerprint::{Fingerprint, attribute_key};
use crate::selector::{Compiled, Selectors};
use crate::support::Support;
use crate::taint::Toleration;

/// How many devices a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exactly(usize),
    All,
}

/// A request, or one alternative of it.
#[derive(Debug)]
pub(crate) struct Need {
    /// Place among all needs of the plan.
    pub(crate) ordinal: usize,
    /// The request's name.
    pub(crate) base: String,
    /// The alternative's name.
    pub(crate) sub: Option<String>,
    pub(crate) class: Class,
    pub(crate) class_selectors: Vec<Arc<Compiled>>,
    pub(crate) selectors: Vec<Arc<Compiled>>,
    pub(crate) mode: Mode,
    pub(crate) admin: bool,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) raw_tolerations: Option<Vec<DeviceToleration>>,
    pub(crate) capacity: Amounts,
}

impl Need {
    /// The name of the request or alternative itself.
    pub(crate) fn name(&self) -> &str {
        self.sub.as_deref().unwrap_or(&self.base)
    }

    /// The name in results: `request` or `request/alternative`.
    pub(crate) fn full_name(&self) -> String {
        match &self.sub {
            Some(sub) => format!("{}/{sub}", self.base),
            None => self.base.clone(),
        }
    }

    pub(crate) fn class_name(&self) -> &str {
        self.class.metadata.name.as_deref().unwrap_or_default()
    }
}

/// A request: one need, or alternatives of which the first that can be had is taken.
#[derive(Debug)]
pub(crate) struct PlannedRequest {
    pub(crate) alternatives: Vec<Need>,
    pub(crate) prioritized: bool,
}

#[derive(Debug)]
pub(crate) struct PlannedConstraint {
    /// Names it is for; empty means all.
    pub(crate) requests: Vec<String>,
    pub(crate) attribute: String,
    pub(crate) distinct: bool,
}

impl PlannedConstraint {
    pub(crate) fn covers(&self, need: &Need) -> bool {
        self.requests.is_empty()
            || self.requests.contains(&need.base)
            || (need.sub.is_some() && self.requests.contains(&need.full_name()))
    }
}

#[derive(Debug)]
pub(crate) struct PlannedClaim {
    pub(crate) claim: Arc<ResourceClaim>,
    pub(crate) label: String,
    pub(crate) requests: Vec<PlannedRequest>,
    pub(crate) constraints: Vec<PlannedConstraint>,
}

/// An attribute that constraints compare.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ComparedAttribute {
    pub(crate) name: String,
    /// Its key among those of a device; without a domain it has none.
    pub(crate) key: Option<u64>,
}

/// Bytes of all selectors of claims that are allocated together; their programs take some forty times as much.
const MOST_EXPRESSIONS: usize = 2 << 20;

/// Claims that are to be allocated together, made ready once for all nodes.
#[derive(Debug)]
pub struct Plan {
    pub(crate) claims: Vec<PlannedClaim>,
    pub(crate) needs: usize,
    /// What their expressions can read.
    pub(crate) support: Support,
    /// What their constraints compare, each attribute once.
    pub(crate) compared: Vec<ComparedAttribute>,
    /// Of the two: plans that look at the same.
    pub(crate) visible: Fingerprint,
}

/// A request or alternative as the API has it.
struct Raw<'a> {
    class: &'a str,
    selectors: &'a Option<Vec<DeviceSelector>>,
    mode: Option<&'a str>,
    count: Option<i64>,
    admin: Option<bool>,
    tolerations: &'a Option<Vec<DeviceToleration>>,
    capacity: &'a Option<CapacityRequirements>,
}

impl Plan {
    /// Makes claims ready.
    ///
    /// # Errors
    /// When a claim asks for something that cannot be allocated on any node: an unknown kind of
    /// selector, constraint or mode, a feature that is off, a class that does not exist, selectors that are too long together.
    pub fn new(
        claims: &[Arc<ResourceClaim>],
        features: Features,
        classes: &Classes,
        selectors: &Selectors,
    ) -> Result<Self, AllocateError> {
        let mut plan = Self {
            claims: Vec::with_capacity(claims.len()),
            needs: 0,
            support: Support::default(),
            compared: Vec::new(),
            visible: Fingerprint::default(),
        };
        let mut bytes = 0;
        for claim in claims {
            let planned = plan.claim(claim, features, classes, selectors)?;
            let needs = planned.requests.iter().flat_map(|r| &r.alternatives);
            let selectors = needs.flat_map(|need| &need.selectors);
            bytes += selectors.map(|s| s.expression.len()).sum::<usize>();
            if bytes > MOST_EXPRESSIONS {
                let text = "the selectors of the claims are longer than 2 MiB together";
                return Err(AllocateError::Failed(text.to_owned()));
            }
            plan.sees(&planned);
            plan.claims.push(planned);
        }
        plan.visible = Fingerprint::of(&(&plan.support, &plan.compared));
        Ok(plan)
    }

    /// Notes what of devices matters to a claim.
    fn sees(&mut self, claim: &PlannedClaim) {
        for need in claim.requests.iter().flat_map(|r| &r.alternatives) {
            for selector in need.class_selectors.iter().chain(&need.selectors) {
                self.support.join(selector.support());
            }
        }
        for constraint in &claim.constraints {
            let name = constraint.attribute.clone();
            let key = name.split_once('/').map(|(d, id)| attribute_key(d, id));
            let seen = ComparedAttribute { name, key };
            if !self.compared.contains(&seen) {
                self.compared.push(seen);
            }
        }
    }

    /// The claims, in order.
    pub fn claims(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.claims.iter().map(|c| &c.claim)
    }

    /// Whether a request of the claims has alternatives.
    pub fn has_alternatives(&self) -> bool {
        let mut requests = self.claims.iter().flat_map(|c| &c.requests);
        requests.any(|r| r.prioritized)
    }

    fn claim(
        &mut self,
        claim: &Arc<ResourceClaim>,
        features: Features,
        classes: &Classes,
        selectors: &Selectors,
    ) -> Result<PlannedClaim, AllocateError> {
        let label = label(claim);
        let fault = |text: String| AllocateError::Failed(format!("claim {label}, {text}"));
        let devices = claim.spec.devices.as_ref();
        let mut requests = Vec::new();
        for request in devices.iter().flat_map(|d| &d.requests).flatten() {
            let subs = request.first_available.as_deref().unwrap_or_default();
            if !features.prioritized_list && !subs.is_empty() {
                let name = &request.name;
                return Err(fault(format!(
                    "request {name}: has subrequests, but the DRAPrioritizedList feature is disabled"
                )));
            }
            let mut alternatives = Vec::new();
            for sub in subs {
                let raw = Raw {
                    class: &sub.device_class_name,
                    selectors: &sub.selectors,
                    mode: sub.allocation_mode.as_deref(),
                    count: sub.count,
                    admin: None,
                    tolerations: &sub.tolerations,
                    capacity: &sub.capacity,
                };
                let name = Some(sub.name.as_str());
                let need = self.need(&request.name, name, &raw, features, classes, selectors);
                alternatives.push(need.map_err(fault)?);
            }
            if let (true, Some(exactly)) = (subs.is_empty(), &request.exactly) {
                let raw = Raw {
                    class: &exactly.device_class_name,
                    selectors: &exactly.selectors,
                    mode: exactly.allocation_mode.as_deref(),
                    count: exactly.count,
                    admin: exactly.admin_access,
                    tolerations: &exactly.tolerations,
                    capacity: &exactly.capacity,
                };
                let need = self.need(&request.name, None, &raw, features, classes, selectors);
                alternatives.push(need.map_err(fault)?);
            }
            if alternatives.is_empty() {
                let name = &request.name;
                return Err(fault(format!(
                    "request {name}: missing device class name (unsupported request type?)"
                )));
            }
            requests.push(PlannedRequest {
                alternatives,
                prioritized: !subs.is_empty(),
            });
        }
        let mut constraints = Vec::new();
        let listed = devices.iter().flat_map(|d| &d.constraints).flatten();
        for (i, c) in listed.enumerate() {
            let (attribute, distinct) = match (&c.match_attribute, &c.distinct_attribute) {
                (Some(a), _) => (a, false),
                (None, Some(a)) => (a, true),
                (None, None) => {
                    return Err(fault(format!(
                        "constraint #{i}: empty constraint (unsupported constraint type?)"
                    )));
                }
            };
            constraints.push(PlannedConstraint {
                requests: c.requests.clone().unwrap_or_default(),
                attribute: attribute.clone(),
                distinct,
            });
        }
        Ok(PlannedClaim {
            claim: claim.clone(),
            requests,
            constraints,
            label,
        })
    }

    fn need(
        &mut self,
        base: &str,
        sub: Option<&str>,
        raw: &Raw<'_>,
        features: Features,
        classes: &Classes,
        selectors: &Selectors,
    ) -> Result<Need, String> {
        let name = sub.unwrap_or(base);
        if !features.consumable_capacity && raw.capacity.is_some() {
            let kind = if sub.is_some() {
                "subrequest"
            } else {
                "request"
            };
            return Err(format!(
                "{kind} {name}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
            ));
        }
        let fault = |text: String| format!("request {name}{text}");
        for (i, selector) in raw.selectors.iter().flatten().enumerate() {
            if selector.cel.is_none() {
                return Err(fault(format!(
                    ", selector #{i}: CEL expression empty (unsupported selector type?)"
                )));
            }
        }
        if !features.admin_access && raw.admin.is_some() {
            return Err(fault(
                ": admin access is requested, but the feature is disabled".to_owned(),
            ));
        }
        if raw.class.is_empty() {
            return Err(fault(
                ": missing device class name (unsupported request type?)".to_owned(),
            ));
        }
        let Some(class) = classes.get(raw.class) else {
            let class = raw.class;
            return Err(fault(format!(
                ": could not retrieve device class {class}: deviceclass.resource.k8s.io \"{class}\" not found"
            )));
        };
        let mode = match raw.mode {
            Some("ExactCount") | None | Some("") => {
                let count = raw.count.filter(|c| *c != 0).unwrap_or(1);
                let count = usize::try_from(count)
                    .map_err(|_| fault(format!(": exact count {count} is too large")))?;
                Mode::Exactly(count)
            }
            Some("All") => Mode::All,
            Some(other) => return Err(fault(format!(": unsupported count mode {other}"))),
        };
        let mut capacity = Amounts::new();
        for (key, amount) in raw.capacity.iter().flat_map(|c| &c.requests).flatten() {
            let amount =
                Quantity::parse(&amount.0).map_err(|e| fault(format!(": capacity {key}: {e}")))?;
            capacity.insert(key.clone(), amount);
        }
        let compile = |list: &Option<Vec<DeviceSelector>>| {
            let expressions = list.iter().flatten().filter_map(|s| s.cel.as_ref());
            expressions.map(|c| selectors.get(&c.expression)).collect()
        };
        let ordinal = self.needs;
        self.needs += 1;
        Ok(Need {
            ordinal,
            base: base.to_owned(),
            sub: sub.map(str::to_owned),
            class: class.clone(),
            class_selectors: compile(&class.spec.selectors),
            selectors: compile(raw.selectors),
            mode,
            admin: raw.admin == Some(true),
            tolerations: raw.tolerations.iter().flatten().map(Into::into).collect(),
            raw_tolerations: raw.tolerations.clone(),
            capacity,
        })
    }
}

/// `namespace/name`, as the original prints objects.
fn label(claim: &ResourceClaim) -> String {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match claim
        .metadata
        .namespace
        .as_deref()
        .filter(|n| !n.is_empty())
    {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}
