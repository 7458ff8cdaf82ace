//! Why a resource claim is not allocated: the allocator is asked for each node what rules out each device.

use crate::page::{Page, Paint, Tone};
use anyhow::{Context, Result};
use davit_allocator::{
    Allocator, Call, Cause, Classes, Features, Inventory, NodeView, Plan, Refusal, Selectors,
    Slice, TaintRule, Usage,
};
use davit_api::resource_claims::is_pod_group;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimConsumerReference, ResourceSlice,
};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::ListParams;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the search on one node may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many nodes and devices of a node the text names.
const NODES: usize = 10;
const DEVICES: usize = 16;

/// What is known about one claim.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    namespace: String,
    name: String,
    /// One sentence.
    summary: String,
    /// `request driver/pool/device` of what it has.
    devices: Vec<String>,
    /// Whom it is reserved for: names of pods, and `podgroup/NAME`.
    reserved_for: Vec<String>,
    /// What is wrong whatever the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Requests whose selectors match no device of the cluster.
    hopeless: Vec<String>,
    /// Nodes with devices for the claim.
    fitting_nodes: Vec<String>,
    /// The others, with what rules out their devices.
    refusing_nodes: BTreeMap<String, Refusal>,
}

/// Everything that decides about devices, as the API has it.
struct Cluster {
    inventory: Inventory,
    usage: Usage,
    classes: Classes,
    nodes: Vec<Node>,
    problems: Vec<String>,
}

async fn all<K>(client: &kube::Client, what: &str) -> Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: kube::Api<K> = kube::Api::all(client.clone());
    let list = api.list(&ListParams::default()).await;
    Ok(list.with_context(|| format!("cannot list {what}"))?.items)
}

impl Cluster {
    async fn read(client: &kube::Client) -> Result<Self> {
        let rules: Vec<DeviceTaintRule> = all(client, "device taint rules").await?;
        let rules: Vec<TaintRule> = rules.iter().filter_map(TaintRule::new).collect();
        let mut inventory = Inventory::default();
        let mut problems = Vec::new();
        for slice in all::<ResourceSlice>(client, "resource slices").await? {
            match Slice::new(&slice, &rules) {
                Ok(slice) => inventory.set(Arc::new(slice)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let mut usage = Usage::default();
        for claim in all::<ResourceClaim>(client, "resource claims").await? {
            if let Some(allocation) = claim.status.and_then(|s| s.allocation) {
                usage.add(&allocation);
            }
        }
        let classes: Vec<DeviceClass> = all(client, "device classes").await?;
        Ok(Self {
            inventory,
            usage,
            classes: Classes::new(classes.into_iter().map(Arc::new)),
            nodes: all(client, "nodes").await?,
            problems,
        })
    }
}

/// Explains a claim of today's API; `None` when there is none of that name.
pub(crate) async fn explain(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Explanation>> {
    let claims: kube::Api<ResourceClaim> = kube::Api::namespaced(client.clone(), namespace);
    let claim = claims
        .get_opt(name)
        .await
        .context("cannot read the claim")?;
    let Some(claim) = claim else {
        return Ok(None);
    };
    let mut out = Explanation {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Explanation::default()
    };
    let status = claim.status.clone().unwrap_or_default();
    let users = status.reserved_for.unwrap_or_default();
    let groups = users.iter().filter(|user| is_pod_group(user)).count();
    let called = |user: ResourceClaimConsumerReference| match is_pod_group(&user) {
        true => format!("podgroup/{}", user.name),
        false => user.name,
    };
    out.reserved_for = users.into_iter().map(called).collect();
    if let Some(allocation) = status.allocation {
        let results = allocation.devices.and_then(|d| d.results);
        let device = |r: k8s_openapi::api::resource::v1::DeviceRequestAllocationResult| {
            format!("{} {}/{}/{}", r.request, r.driver, r.pool, r.device)
        };
        out.devices = results.into_iter().flatten().map(device).collect();
        out.summary = match (out.reserved_for.len() - groups, groups) {
            (0, 0) => "allocated, used by no pod".to_owned(),
            (pods, 0) => format!("allocated, reserved for {pods} pods"),
            (0, groups) => format!("allocated, reserved for {groups} groups of pods"),
            (pods, groups) => {
                format!("allocated, reserved for {groups} groups of pods and {pods} other pods")
            }
        };
        return Ok(Some(out));
    }
    let cluster = Cluster::read(client).await?;
    out.judge(claim, cluster);
    Ok(Some(out))
}

impl Explanation {
    /// Asks the allocator for every node.
    fn judge(&mut self, claim: ResourceClaim, cluster: Cluster) {
        let features = Features {
            list_attributes: true,
            ..Features::default()
        };
        let selectors = Arc::new(Selectors::kubernetes());
        let plan = Plan::new(&[Arc::new(claim)], features, &cluster.classes, &selectors);
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.summary = format!("cannot be allocated: {error}");
                self.error = Some(error.to_string());
                return;
            }
        };
        if !cluster.problems.is_empty() {
            self.error = Some(cluster.problems.join("; "));
        }
        let inventory = Arc::new(cluster.inventory);
        let allocator = Allocator::new(features, inventory, cluster.usage, selectors);
        let mut matched: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let none = BTreeMap::new();
        for node in &cluster.nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            let end = Instant::now() + PATIENCE;
            let call = Call {
                node: NodeView {
                    name: &name,
                    labels: node.metadata.labels.as_ref().unwrap_or(&none),
                },
                released: None,
                stop: &|| Instant::now() >= end,
                share_id: &String::new,
            };
            if matches!(allocator.allocate(&plan, call), Ok(Some(_))) {
                self.fitting_nodes.push(name);
                continue;
            }
            let refusal = allocator.explain(&plan, call);
            for request in &refusal.requests {
                let unselected = request
                    .devices
                    .iter()
                    .filter(|d| matches!(d.cause, Cause::Selector { .. }));
                let seen = matched.entry(request.request.clone()).or_default();
                seen.0 += unselected.count();
                seen.1 += refusal.devices;
            }
            self.refusing_nodes.insert(name, refusal);
        }
        if self.fitting_nodes.is_empty() {
            let hopeless = matched
                .into_iter()
                .filter(|(_, (no, all))| no == all && *all > 0);
            self.hopeless = hopeless.map(|(request, _)| request).collect();
        }
        self.summary = match (self.fitting_nodes.len(), self.refusing_nodes.len()) {
            (0, 0) => "not allocated: there are no nodes".to_owned(),
            (0, n) => format!("not allocated: none of {n} nodes has devices for it"),
            (fit, n) => format!(
                "not allocated yet: {fit} of {} nodes have devices for it; it is allocated when a pod that uses it is scheduled",
                fit + n
            ),
        };
    }

    /// For people.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut page = Page::new(paint);
        let title = format!("ResourceClaim {}/{}: ", self.namespace, self.name);
        let tone = if self.error.is_some() || !self.hopeless.is_empty() {
            Tone::Bad
        } else if self.devices.is_empty() {
            Tone::Doubtful
        } else {
            Tone::Good
        };
        page.pieces(&[(Tone::Title, &title), (tone, &self.summary)]);
        if let Some(error) = &self.error {
            page.lines(error);
        }
        for request in &self.hopeless {
            page.line(format!(
                "The selectors of request {request} match no device of the cluster."
            ));
        }
        for device in &self.devices {
            page.line(format!("  {device}"));
        }
        if !self.reserved_for.is_empty() {
            page.line(format!("Reserved for: {}", self.reserved_for.join(", ")));
        }
        if !self.refusing_nodes.is_empty() {
            let shown = self.refusing_nodes.iter().take(NODES);
            let rows: Vec<Vec<String>> = shown
                .map(|(node, refusal)| vec![node.clone(), refusal.summary()])
                .collect();
            page.gap();
            page.table(&["NODE", "WHY NOT"], &rows);
            if self.refusing_nodes.len() > NODES {
                let more = self.refusing_nodes.len() - NODES;
                page.line(format!("… and {more} more nodes (all with -o json)"));
            }
            refused_devices(&mut page, self.refusing_nodes.iter().take(NODES));
        }
        page.into_text()
    }
}

/// The devices of refusing nodes with what ruled each one out.
pub(super) fn refused_devices<'a>(
    page: &mut Page,
    nodes: impl Iterator<Item = (&'a String, &'a Refusal)>,
) {
    let mut rows = Vec::new();
    let mut seen = BTreeSet::new();
    for (node, refusal) in nodes {
        for request in &refusal.requests {
            for device in request.devices.iter().take(DEVICES) {
                if seen.insert((node, &request.request, &device.device)) {
                    rows.push(vec![
                        node.clone(),
                        request.request.clone(),
                        device.device.clone(),
                        device.cause.to_string(),
                    ]);
                }
            }
        }
    }
    if !rows.is_empty() {
        page.part("Devices:");
        page.table(&["NODE", "REQUEST", "DEVICE", "WHY NOT"], &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_that_no_selector_matches_says_so() {
        let mut inventory = Inventory::default();
        let slice = serde_json::from_value(
            json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "a", "attributes": {"model": {"string": "X"}}}]}}),
        );
        inventory.set(Arc::new(Slice::new(&slice.unwrap(), &[]).unwrap()));
        let class = json!({"metadata": {"name": "c"}, "spec": {}});
        let cluster = Cluster {
            inventory,
            usage: Usage::default(),
            classes: Classes::new([Arc::new(serde_json::from_value(class).unwrap())]),
            nodes: vec![serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap()],
            problems: Vec::new(),
        };
        let claim = json!({"metadata": {"name": "c", "namespace": "x"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {
            "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1,
            "selectors": [{"cel": {"expression": "device.attributes['d.example.com'].model == 'Y'"}}]}}]}}});
        let mut out = Explanation::default();
        out.judge(serde_json::from_value(claim).unwrap(), cluster);
        let text = out.text(Paint::NONE);
        assert!(text.contains("none of 1 nodes has devices"), "{text}");
        assert!(
            text.contains("selectors of request r match no device"),
            "{text}"
        );
        assert!(
            text.contains("is false (saw driver \"d.example.com\", model \"X\")")
                || text.contains("model \"X\""),
            "{text}"
        );
    }
}
