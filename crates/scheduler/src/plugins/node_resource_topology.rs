//! Keeps a pod off nodes that would refuse it because its devices, CPUs and memory cannot be
//! aligned there: runs the node's own decision on what the node publishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use davit_allocator::{Attribute, Slice};
use davit_topology::PolicyKind;
use davit_topology::claims::{self, ClaimPlace, numa_node};
use davit_topology::pod::{ContainerAsk, asks};
use davit_topology::published::NodeState;
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourcePool, ResourceSliceSpec};

use super::dynamic_resources::{HeldClaim, held};
use crate::cache::Snapshot;
use crate::devices::Devices;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventResource, Filter, NodeNames, Plugin, Points, PreFilter,
    Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::topology::Topologies;

/// The plugin `NodeResourceTopologyMatch`.
#[derive(Debug)]
pub struct NodeResourceTopology {
    topologies: Topologies,
    devices: Devices,
}

impl NodeResourceTopology {
    /// The plugin over these topologies and devices. It has to come after DynamicResources, whose choice it looks at.
    pub fn new(topologies: Topologies, devices: Devices) -> Self {
        Self {
            topologies,
            devices,
        }
    }

    /// What a pod asks for, with the places of its claimed devices on a node.
    fn asks(
        &self,
        pod: &PodInfo,
        held: &[HeldClaim],
        node: &str,
        state: &NodeState,
    ) -> Vec<ContainerAsk> {
        let mut asks = asks(&pod.pod);
        if held.is_empty() {
            return asks;
        }
        let slices = self.devices.slices_of(node);
        let slices: Vec<ResourceSliceSpec> = slices.iter().map(|s| published(s)).collect();
        let devices = claims::Devices::new(&slices);
        let place = |device: &_, driver: &str| {
            let node = numa_node(device, driver, &state.pcie_roots)?;
            state.nodes.contains(&node).then_some(node)
        };
        for ask in &mut asks {
            let mut places: BTreeMap<&str, ClaimPlace> = BTreeMap::new();
            for held in held.iter().filter(|h| h.container == ask.container) {
                let request = held.request.as_deref();
                // What no slice describes has no place on the node either.
                let (found, _) =
                    claims::place(&held.claim, request, &held.allocation, &devices, &place);
                let known = places
                    .entry(&held.claim)
                    .or_insert_with(|| ClaimPlace::new(&held.claim));
                known.devices.extend(found.devices);
            }
            let placed = places.into_values().filter(|p| !p.devices.is_empty());
            ask.claims = placed.map(|p| (p.claim.clone(), p.nodes())).collect();
        }
        asks
    }
}

/// A slice as its driver published it, as far as it says where devices are.
fn published(slice: &Slice) -> ResourceSliceSpec {
    let value = |attribute: &Attribute| {
        let mut value = DeviceAttribute::default();
        match attribute {
            Attribute::Int(number) => value.int = Some(*number),
            Attribute::String(text) => value.string = Some(text.to_string()),
            _ => {}
        }
        value
    };
    let devices = slice.devices.iter().map(|device| Device {
        name: device.name.to_string(),
        attributes: Some(
            device
                .attributes
                .iter()
                .map(|(name, attribute)| (name.to_string(), value(attribute)))
                .collect(),
        ),
        ..Device::default()
    });
    ResourceSliceSpec {
        driver: slice.pool.driver.to_string(),
        pool: ResourcePool {
            name: slice.pool.pool.to_string(),
            generation: slice.generation,
            resource_slice_count: slice.count,
        },
        devices: Some(devices.collect()),
        ..ResourceSliceSpec::default()
    }
}

impl Plugin for NodeResourceTopology {
    fn name(&self) -> &'static str {
        "NodeResourceTopologyMatch"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::NodeResourceTopology, Action::ALL),
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
            // Where claimed devices are may have changed, or which are claimed.
            ClusterEvent::new(EventResource::ResourceSlice, Action::ADD | Action::UPDATE),
            ClusterEvent::new(EventResource::ResourceClaim, Action::ALL),
        ]
    }
}

fn wants(asks: &[ContainerAsk]) -> bool {
    asks.iter().any(|a| {
        a.cpus > 0 || !a.memory.is_empty() || !a.extended.is_empty() || !a.claims.is_empty()
    })
}

impl PreFilter for NodeResourceTopology {
    /// Nodes are not asked one by one where none publishes anything.
    fn pre_filter(&self, _: &mut CycleState, _: &PodInfo, _: &Snapshot) -> (Status, NodeNames) {
        match self.topologies.is_empty() {
            true => (Status::skip(), None),
            false => (Status::success(), None),
        }
    }
}

impl Filter for NodeResourceTopology {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(published) = self.topologies.get(&node.name) else {
            return Status::success();
        };
        let strict = matches!(
            published.policy,
            PolicyKind::Restricted | PolicyKind::SingleNumaNode
        );
        if !strict && published.cpus_per_core.is_none() {
            return Status::success();
        }
        let chosen = held(&self.devices, pod, Some((state, &*node.name)));
        let wanted = self.asks(pod, &chosen, &node.name, &published);
        if !wants(&wanted) {
            return Status::success();
        }
        let mut state = (*published).clone();
        // Pods that were bound since the node has last published come first.
        for other in &node.pods {
            if published.pods.contains(&*other.uid) {
                continue;
            }
            let chosen = held(&self.devices, other, None);
            let earlier = self.asks(other, &chosen, &node.name, &published);
            if wants(&earlier) {
                // If the node is going to refuse that one, it takes nothing.
                let mut with = state.clone();
                if with.place(&earlier).is_ok() {
                    state = with;
                }
            }
        }
        match state.place(&wanted) {
            Ok(()) => Status::success(),
            Err(refusal) => Status::unschedulable(refusal.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;
    use crate::plugins::testing::{self, Bed, pod};
    use davit_topology::NumaMask;
    use davit_topology::published::{Count, NodeState};
    use serde_json::json;

    fn cpus(n: u32) -> serde_json::Value {
        let list = json!({"cpu": n.to_string(), "memory": "1Gi"});
        json!({"containers": [{"name": "c", "resources": {"requests": list, "limits": list}}]})
    }

    fn published(available: [usize; 2], pods: &[&str]) -> NodeState {
        let count = |node: u64, available| Count {
            nodes: NumaMask::from_bits(1 << node),
            all: 4,
            available,
            reserved: 0,
        };
        serde_json::from_value(json!({
            "policy": "single-numa-node",
            "nodes": [0, 1],
            "counts": {"cpu": [count(0, available[0]), count(1, available[1])]},
            "pods": pods,
        }))
        .unwrap()
    }

    #[test]
    fn what_the_node_would_refuse_is_not_bound_there() {
        let mut bed = Bed::new();
        bed.node("n", json!({}));
        let topologies = Topologies::default();
        let plugin = NodeResourceTopology::new(topologies.clone(), testing::devices());
        let filter = |bed: &Bed, n| bed.filter(&plugin, &pod("p", cpus(n)), "n").code;
        let skipped = |bed: &Bed| bed.pre_filter(&plugin, &pod("p", cpus(5))).0.is_skip();
        assert!(skipped(&bed), "nothing is published");
        assert_eq!(filter(&bed, 5), Code::Success);
        topologies.set("n", Some(published([4, 4], &[])));
        assert!(!skipped(&bed));
        assert_eq!(filter(&bed, 4), Code::Success);
        assert_eq!(filter(&bed, 5), Code::Unschedulable);
        // Two pods are on their way there; the node has counted one of them.
        bed.place(&pod("a", cpus(3)), "n");
        bed.place(&pod("b", cpus(3)), "n");
        topologies.set("n", Some(published([1, 4], &["a"])));
        assert_eq!(filter(&bed, 2), Code::Unschedulable);
        assert_eq!(filter(&bed, 1), Code::Success);
        topologies.set("n", None);
        assert_eq!(filter(&bed, 5), Code::Success);
    }

    /// Devices of claims that are allocated, and of those that DynamicResources would choose on the node.
    #[test]
    fn cpus_are_needed_beside_claimed_devices() {
        let mut bed = Bed::new();
        bed.node("n", json!({}));
        let (topologies, devices) = (Topologies::default(), testing::known_devices());
        let device = |name: &str, numa: u32| json!({"name": name, "attributes": {"resource.kubernetes.io/numaNode": {"int": numa}}});
        let slice = serde_json::from_value(
            json!({"metadata": {"name": "s"}, "spec": {"driver": "a.dev", "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [device("near", 0), device("far", 1)]}}),
        );
        devices.set_slice(&slice.unwrap());
        let class = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}}));
        devices.set_class("c", Some(Arc::new(class.unwrap())));
        let claim = |name: &str, allocated: Option<&str>| {
            let status = allocated.map(|device| {
                json!({"allocation": {"devices": {"results": [
                {"request": "r", "driver": "a.dev", "pool": "n", "device": device}]}}})
            });
            let selector = |d: &str| json!([{"cel": {"expression": format!("device.attributes['resource.kubernetes.io'].numaNode == {d}")}}]);
            let wanted = if name == "wish-far" {
                selector("1")
            } else {
                selector("0")
            };
            let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c",
                    "allocationMode": "ExactCount", "count": 1, "selectors": wanted}}]}},
                "status": status.unwrap_or_else(|| json!({}))});
            devices.set_claim(Arc::new(serde_json::from_value(claim).unwrap()));
        };
        claim("held-far", Some("far"));
        claim("wish-near", None);
        topologies.set("n", Some(published([4, 1], &[])));
        let plugin = NodeResourceTopology::new(topologies, devices.clone());
        let dynamic = crate::plugins::DynamicResources::new(
            None,
            devices.clone(),
            crate::plugins::DynamicResourcesArgs::default(),
        );
        let verdict = |claim: &str, n: u32| {
            let mut spec = cpus(n);
            spec["resourceClaims"] = json!([{"name": "e", "resourceClaimName": claim}]);
            spec["containers"][0]["resources"]["claims"] = json!([{"name": "e"}]);
            let pod = pod("p", spec);
            let (mut state, snapshot) = (CycleState::new(), &bed.snapshot);
            let (ready, _) = PreFilter::pre_filter(&dynamic, &mut state, &pod, snapshot);
            assert_eq!(ready.code, Code::Success, "{ready:?}");
            let node = snapshot.node(snapshot.position("n").unwrap());
            let found = Filter::filter(&dynamic, &state, &pod, node);
            assert_eq!(found.code, Code::Success, "{found:?}");
            Filter::filter(&plugin, &state, &pod, node).code
        };
        assert_eq!(verdict("held-far", 1), Code::Success);
        assert_eq!(verdict("held-far", 2), Code::Unschedulable);
        assert_eq!(verdict("wish-near", 4), Code::Success);
        claim("held-far", None);
        claim("wish-far", None);
        assert_eq!(verdict("wish-far", 2), Code::Unschedulable);
        assert_eq!(verdict("wish-far", 1), Code::Success);
    }
}
