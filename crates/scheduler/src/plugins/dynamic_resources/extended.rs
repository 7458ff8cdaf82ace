//! Extended resources that device classes stand for (KEP-5004): a pod that asks for
//! `example.com/gpu: 1` gets a claim made for it on nodes that have no such resource themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use davit_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{
    Container, ContainerExtendedResourceRequest, PodExtendedResourceClaimStatus,
};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::devices::Devices;
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Marks the claims made here.
pub(super) const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Name of the claim while it is only imagined.
const IMAGINED: &str = "<extended-resources>";

/// The extended resources of a pod that a class stands for: name, class.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted(pub(super) BTreeMap<String, String>);

impl Wanted {
    /// What the pod asks for and a class stands for.
    pub(super) fn new(devices: &Devices, pod: &PodInfo) -> Self {
        let scalars = pod.requests.requests.scalars();
        let wanted = scalars.filter(|(_, amount)| *amount > 0);
        let known = wanted.filter_map(|(name, _)| {
            let class = devices.class_of_resource(name)?;
            Some((name.to_string(), class.metadata.name.clone()?))
        });
        Self(known.collect())
    }

    /// Those that the node does not have itself.
    pub(super) fn on(&self, node: &NodeInfo) -> Vec<String> {
        let missing = self.0.keys().filter(|n| node.allocatable.scalar(n) == 0);
        missing.cloned().collect()
    }
}

/// A claim for extended resources, and which container gets what.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) claim: Arc<ResourceClaim>,
    pub(super) mappings: Vec<ContainerExtendedResourceRequest>,
}

/// A container in the order in which containers are numbered.
struct Numbered<'a> {
    index: usize,
    container: &'a Container,
    /// Ends before the containers after it start.
    passing: bool,
}

/// The claim that has these extended resources of the pod in it.
pub(super) fn claim(pod: &PodInfo, wanted: &Wanted, resources: &[String]) -> Claim {
    let spec = pod.spec();
    let init = spec.init_containers.iter().flatten();
    let passing = |c: &Container| c.restart_policy.as_deref() != Some("Always");
    let init = init.map(|c| (c, passing(c)));
    let all = init.chain(spec.containers.iter().map(|c| (c, false)));
    let containers: Vec<Numbered<'_>> = all
        .enumerate()
        .map(|(index, (container, passing))| Numbered {
            index,
            container,
            passing,
        })
        .collect();
    let mut requests = Vec::new();
    let mut mappings = Vec::new();
    for resource in resources {
        let class = &wanted.0[resource];
        one_resource(&containers, resource, class, &mut requests, &mut mappings);
    }
    requests.sort_by(|a, b| a.name.cmp(&b.name));
    mappings.sort_by(|a, b| {
        let key = |m: &ContainerExtendedResourceRequest| {
            let at = containers
                .iter()
                .position(|c| c.container.name == m.container_name);
            (at, m.resource_name.clone(), m.request_name.clone())
        };
        key(a).cmp(&key(b))
    });
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let claim = ResourceClaim {
        metadata: ObjectMeta {
            name: Some(IMAGINED.to_owned()),
            namespace: Some(pod.namespace.to_string()),
            annotations: Some([(ANNOTATION.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec {
            devices: Some(DeviceClaim {
                requests: Some(requests),
                ..DeviceClaim::default()
            }),
        },
        status: None,
    };
    Claim {
        claim: Arc::new(claim),
        mappings,
    }
}

/// The amount of a resource a container asks for.
fn amount(container: &Container, resource: &str) -> i64 {
    let resources = container.resources.as_ref();
    let requests = resources.and_then(|r| r.requests.as_ref().or(r.limits.as_ref()));
    let text = requests.and_then(|r| r.get(resource));
    text.and_then(|q| Quantity::parse(&q.0).ok())
        .map_or(0, Quantity::value)
}

/// `container-<i>-request-<j>`, where j counts all resources of the container by name.
fn request_name(numbered: &Numbered<'_>, resource: &str) -> String {
    let resources = numbered.container.resources.as_ref();
    let requests = resources.and_then(|r| r.requests.as_ref().or(r.limits.as_ref()));
    let at = requests.and_then(|r| r.keys().position(|name| name == resource));
    format!("container-{}-request-{}", numbered.index, at.unwrap_or(0))
}

fn device_request(name: &str, class: &str, count: i64) -> DeviceRequest {
    DeviceRequest {
        name: name.to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        ..DeviceRequest::default()
    }
}

/// Requests of the containers that stay; init containers use those of later ones first, and what
/// they need beyond that is one more request, as large as the most demanding of them asks.
fn one_resource(
    containers: &[Numbered<'_>],
    resource: &str,
    class: &str,
    requests: &mut Vec<DeviceRequest>,
    mappings: &mut Vec<ContainerExtendedResourceRequest>,
) {
    let mut map = |numbered: &Numbered<'_>, request: &str| {
        mappings.push(ContainerExtendedResourceRequest {
            container_name: numbered.container.name.clone(),
            resource_name: resource.to_owned(),
            request_name: request.to_owned(),
        });
    };
    let asking = containers
        .iter()
        .map(|c| (c, amount(c.container, resource)))
        .filter(|(_, amount)| *amount > 0);
    let (passing, staying): (Vec<_>, Vec<_>) = asking.partition(|(c, _)| c.passing);
    for (numbered, count) in &staying {
        let name = request_name(numbered, resource);
        map(numbered, &name);
        requests.push(device_request(&name, class, *count));
    }
    // (container, what it needs beyond the requests of later ones)
    let mut beyond: Vec<(&Numbered<'_>, i64)> = Vec::new();
    for (numbered, count) in &passing {
        let mut missing = *count;
        for (later, has) in staying.iter().filter(|(c, _)| c.index > numbered.index) {
            if missing <= 0 {
                break;
            }
            map(numbered, &request_name(later, resource));
            missing -= has;
        }
        if missing > 0 {
            beyond.push((numbered, missing));
        }
    }
    let Some(most) = beyond.iter().map(|(_, n)| *n).max() else {
        return;
    };
    let Some((largest, _)) = beyond.iter().find(|(_, n)| *n == most) else {
        return;
    };
    let name = request_name(largest, resource);
    for (numbered, _) in &beyond {
        map(numbered, &name);
    }
    requests.push(device_request(&name, class, most));
}

/// The pod's status for a claim of this name.
pub(super) fn status(claim: &Claim, name: &str) -> PodExtendedResourceClaimStatus {
    PodExtendedResourceClaimStatus {
        request_mappings: claim.mappings.clone(),
        resource_claim_name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::pod;

    /// Checklist 86, and the naming of 82.
    #[test]
    fn init_containers_use_the_devices_of_later_ones() {
        let container = |name: &str, gpus: u32, more: serde_json::Value| {
            let mut container = json!({"name": name, "resources": {"requests": {"cpu": "1", "example.com/gpu": gpus.to_string()}}});
            for (key, value) in more.as_object().unwrap() {
                container[key] = value.clone();
            }
            container
        };
        let pod = pod(
            "p",
            json!({
                "initContainers": [container("i0", 1, json!({})), container("i1", 3, json!({})), container("i2", 2, json!({}))],
                "containers": [container("c", 1, json!({}))],
            }),
        );
        let wanted = Wanted([("example.com/gpu".to_owned(), "gpu".to_owned())].into());
        let made = claim(&pod, &wanted, &["example.com/gpu".to_owned()]);
        let requests = made.claim.spec.devices.clone().unwrap().requests.unwrap();
        let requests: Vec<_> = requests
            .iter()
            .map(|r| (r.name.as_str(), r.exactly.as_ref().unwrap().count.unwrap()))
            .collect();
        assert_eq!(
            requests,
            [("container-1-request-1", 2), ("container-3-request-1", 1)]
        );
        let mappings: Vec<_> = made
            .mappings
            .iter()
            .map(|m| format!("{} {}", m.container_name, m.request_name))
            .collect();
        assert_eq!(
            mappings,
            [
                "i0 container-3-request-1",
                "i1 container-1-request-1",
                "i1 container-3-request-1",
                "i2 container-1-request-1",
                "i2 container-3-request-1",
                "c container-3-request-1",
            ]
        );
    }
}
