//! From chosen devices to the allocation that is written into a claim's status.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult,
    DeviceRequestAllocationResult,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::call::Call;
use crate::device::Reach;
use crate::error::AllocateError;
use crate::plan::{Need, Plan, PlannedClaim};
use crate::search::{Chosen, Search};

/// The devices for all claims of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Allocation {
    /// One result a claim, in the order of the plan.
    pub results: Vec<AllocationResult>,
    /// For scoring: for each request with alternatives the index of the one that was taken.
    pub chosen: Vec<usize>,
}

/// The allocation of every claim.
pub(crate) fn build(
    plan: &Plan,
    search: &Search<'_>,
    call: Call<'_>,
) -> Result<Allocation, AllocateError> {
    let mut results = Vec::with_capacity(plan.claims.len());
    let mut chosen = Vec::new();
    for (c, claim) in plan.claims.iter().enumerate() {
        let mut needs = Vec::new();
        for (r, request) in claim.requests.iter().enumerate() {
            let index = search.selected.get(&(c, r)).copied().unwrap_or(0);
            if request.prioritized {
                chosen.push(index);
            }
            needs.push(&request.alternatives[index]);
        }
        let devices = search.results[c].iter();
        let config = config(claim, &needs);
        results.push(AllocationResult {
            allocation_timestamp: None,
            devices: Some(DeviceAllocationResult {
                config: (!config.is_empty()).then_some(config),
                results: Some(devices.map(|d| device(search, d, call)).collect()),
            }),
            node_selector: nodes(search, c, call.node.name)?,
        });
    }
    Ok(Allocation { results, chosen })
}

fn device(
    search: &Search<'_>,
    chosen: &Chosen<'_>,
    call: Call<'_>,
) -> DeviceRequestAllocationResult {
    let (slice, device) = search.device(chosen.place);
    let some = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    let share = chosen.share.as_ref();
    let amounts = share.map(|(_, amounts)| amounts).filter(|a| !a.is_empty());
    DeviceRequestAllocationResult {
        admin_access: chosen.need.admin.then_some(true),
        binding_conditions: some(&device.binding_conditions),
        binding_failure_conditions: some(&device.binding_failure_conditions),
        consumed_capacity: amounts.map(|amounts| {
            let text = amounts
                .iter()
                .map(|(k, q)| (k.clone(), ApiQuantity(q.to_string())));
            text.collect()
        }),
        device: device.name.to_string(),
        driver: slice.pool.driver.to_string(),
        pool: slice.pool.pool.to_string(),
        request: chosen.need.full_name(),
        share_id: share.map(|_| (call.share_id)()),
        tolerations: chosen.need.raw_tolerations.clone(),
    }
}

/// Configurations: those of the classes, each class once, then those of the claim that are for a
/// request that was chosen.
fn config(claim: &PlannedClaim, needs: &[&Need]) -> Vec<DeviceAllocationConfiguration> {
    let mut out: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut classes: Vec<(&str, std::ops::Range<usize>)> = Vec::new();
    for need in needs {
        let class = need.class_name();
        if let Some((_, range)) = classes.iter().find(|(name, _)| *name == class) {
            for entry in &mut out[range.clone()] {
                entry
                    .requests
                    .get_or_insert_default()
                    .push(need.full_name());
            }
            continue;
        }
        let start = out.len();
        for config in need.class.spec.config.iter().flatten() {
            out.push(DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: Some(vec![need.full_name()]),
                source: "FromClass".to_owned(),
            });
        }
        classes.push((class, start..out.len()));
    }
    let listed = claim.claim.spec.devices.iter().flat_map(|d| &d.config);
    for config in listed.flatten() {
        let names = config.requests.as_deref().unwrap_or_default();
        let concerns =
            |need: &Need| names.contains(&need.base) || names.contains(&need.full_name());
        if names.is_empty() || needs.iter().any(|need| concerns(need)) {
            out.push(DeviceAllocationConfiguration {
                opaque: config.opaque.clone(),
                requests: config.requests.clone().filter(|r| !r.is_empty()),
                source: "FromClaim".to_owned(),
            });
        }
    }
    out
}

/// The nodes from which all devices of a claim can be used; `None` means every node.
fn nodes(
    search: &Search<'_>,
    claim: usize,
    node: &str,
) -> Result<Option<NodeSelector>, AllocateError> {
    let mut term = NodeSelectorTerm::default();
    for chosen in &search.results[claim] {
        let (slice, device) = search.device(chosen.place);
        let reach = if slice.per_device {
            &device.reach
        } else {
            &slice.reach
        };
        if matches!(reach, Reach::Node(_)) || device.binds_to_node {
            return Ok(Some(one_node(node)));
        }
        let Reach::Selector(_, selector) = reach else {
            continue;
        };
        match &selector.node_selector_terms[..] {
            [] => {}
            [one] => {
                merge(&mut term.match_fields, one.match_fields.as_ref());
                merge(&mut term.match_expressions, one.match_expressions.as_ref());
            }
            many => {
                let count = many.len();
                return Err(AllocateError::Failed(format!(
                    "create NodeSelector for claim {}: unsupported ResourceSlice.NodeSelector with {count} terms",
                    search.results[claim].len()
                )));
            }
        }
    }
    let some = term.match_fields.is_some() || term.match_expressions.is_some();
    Ok(some.then(|| NodeSelector {
        node_selector_terms: vec![term],
    }))
}

fn one_node(node: &str) -> NodeSelector {
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_fields: Some(vec![NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.to_owned()]),
            }]),
            match_expressions: None,
        }],
    }
}

/// Adds requirements that are not there yet; the order of values does not matter.
fn merge(
    to: &mut Option<Vec<NodeSelectorRequirement>>,
    from: Option<&Vec<NodeSelectorRequirement>>,
) {
    let values = |r: &NodeSelectorRequirement| {
        let mut values = r.values.clone().unwrap_or_default();
        values.sort();
        values.dedup();
        values
    };
    for requirement in from.into_iter().flatten() {
        let list = to.get_or_insert_default();
        let known = list.iter().any(|r| {
            r.key == requirement.key
                && r.operator == requirement.operator
                && values(r) == values(requirement)
        });
        if !known {
            list.push(requirement.clone());
        }
    }
}
