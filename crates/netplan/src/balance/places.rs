//! Addresses of nodes, and which of their ports are somebody's already.

use super::named;
use crate::network::address_of;
use crate::{PROXIES_SERVICES, addresses_of, external_addresses_of, leads_elsewhere};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Nodes with this label are no load balancer's, whatever its value.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to go.
const GOING: &str = "ToBeDeletedByClusterAutoscaler";
/// Who keeps the machine must not be shut out by a Service of a user.
const SSH: i32 = 22;

/// A port of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BalancerPort {
    protocol: &'static str,
    number: u16,
}

impl BalancerPort {
    /// Nothing for what is no port. TCP unless it is said.
    pub(super) fn new(protocol: Option<&str>, number: i32) -> Option<Self> {
        let protocol = match protocol {
            None | Some("TCP") => "TCP",
            Some("UDP") => "UDP",
            Some("SCTP") => "SCTP",
            Some(_) => return None,
        };
        let number = u16::try_from(number).ok().filter(|number| *number > 0)?;
        Some(Self { protocol, number })
    }
}

impl fmt::Display for BalancerPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.protocol)
    }
}

/// An address at which a Service can be reached.
#[derive(Debug, Clone)]
pub struct BalancerAddress {
    pub(super) address: IpAddr,
    /// The nodes that have it: several, where several run on one machine.
    pub(super) nodes: BTreeSet<String>,
    taken: BTreeMap<BalancerPort, String>,
    /// Pods with ports of the host.
    pods: Vec<(BalancerPort, Arc<Pod>)>,
}

impl BalancerAddress {
    pub(super) fn new(address: IpAddr, node: &str) -> Self {
        Self {
            address,
            nodes: [node.to_owned()].into(),
            taken: BTreeMap::new(),
            pods: Vec::new(),
        }
    }

    /// The port is somebody's.
    pub(super) fn take(&mut self, port: BalancerPort, by: &str) {
        self.taken.entry(port).or_insert_with(|| by.to_owned());
    }

    /// Who has a port that the Service wants. A pod that the Service leads to anyway does not stand in its way.
    pub(super) fn holder(&self, port: BalancerPort, service: &Service) -> Option<String> {
        if let Some(by) = self.taken.get(&port) {
            return Some(by.clone());
        }
        let mut pods = self.pods.iter().filter(|(held, _)| *held == port);
        let other = pods.find(|(_, pod)| !leads_to(service, pod));
        other.map(|(_, pod)| format!("pod {}", named(&pod.metadata)))
    }
}

fn leads_to(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    let labels = pod.metadata.labels.as_ref();
    let has = |(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value));
    let same_namespace = pod.metadata.namespace == service.metadata.namespace;
    same_namespace && selector.is_some_and(|s| !s.is_empty() && s.iter().all(has))
}

/// The ports at which a Service wants to be reached.
pub(super) fn ports_of(service: &Service) -> Vec<BalancerPort> {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    ports
        .filter_map(|port| BalancerPort::new(port.protocol.as_deref(), port.port))
        .collect()
}

/// The ports of the host that a pod has, as long as it runs.
#[must_use]
pub fn host_ports(pod: &Pod) -> Vec<BalancerPort> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let Some(spec) = pod.spec.as_ref().filter(|_| !ended) else {
        return Vec::new();
    };
    let in_host_network = spec.host_network == Some(true);
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let own = in_host_network.then_some(port.container_port);
            BalancerPort::new(port.protocol.as_deref(), port.host_port.or(own)?)
        })
        .collect()
}

/// What counts of a node: its addresses, if a load balancer may lead to it, and the port of its agent.
#[must_use]
pub fn balancer_addresses_of(node: &Node) -> (BTreeSet<IpAddr>, Option<BalancerPort>) {
    let status = node.status.as_ref();
    let agent = status
        .and_then(|s| s.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref())
        .and_then(|endpoint| BalancerPort::new(None, endpoint.port));
    if !is_available(node) {
        return (BTreeSet::new(), agent);
    }
    let mut addresses: BTreeSet<_> = external_addresses_of(node)
        .filter(leads_elsewhere)
        .collect();
    if addresses.is_empty() {
        addresses = addresses_of(node).filter(leads_elsewhere).collect();
    }
    (addresses, agent)
}

fn is_available(node: &Node) -> bool {
    let says = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key).cloned())
    };
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready =
        |c: &k8s_openapi::api::core::v1::NodeCondition| c.type_ == "Ready" && c.status == "True";
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let is_going = taints.into_iter().flatten().any(|taint| taint.key == GOING);
    conditions.into_iter().flatten().any(ready)
        && !is_going
        && node.metadata.deletion_timestamp.is_none()
        && says(&node.metadata.labels, EXCLUDED).is_none()
        && says(&node.metadata.annotations, PROXIES_SERVICES).as_deref() != Some("false")
}

/// The nodes with endpoints that are ready.
#[must_use]
pub fn nodes_with_endpoints<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> BTreeSet<String> {
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|c| c.ready).unwrap_or(true)
    });
    ready
        .filter_map(|endpoint| endpoint.node_name.clone())
        .collect()
}

/// The addresses of a cluster's nodes, with whatever has ports there.
#[derive(Debug, Default)]
pub struct BalancerAddresses {
    places: BTreeMap<IpAddr, BalancerAddress>,
}

impl BalancerAddresses {
    /// A node with its pods.
    pub fn add_node(&mut self, node: &Node, pods: &[Arc<Pod>]) {
        let (addresses, agent) = balancer_addresses_of(node);
        let name = node.metadata.name.clone().unwrap_or_default();
        for address in addresses {
            let place = self
                .places
                .entry(address)
                .or_insert_with(|| BalancerAddress::new(address, &name));
            place.nodes.insert(name.clone());
            if let Some(port) = agent {
                place.take(port, &format!("the agent of node {name}"));
            }
            if let Some(port) = BalancerPort::new(None, SSH) {
                place.take(port, "SSH to the machine");
            }
            for pod in pods {
                let ports = host_ports(pod).into_iter();
                place.pods.extend(ports.map(|port| (port, pod.clone())));
            }
        }
    }

    /// The API servers, by the slice of their Service. Nodes come before.
    pub fn add_api_servers(&mut self, slice: &EndpointSlice) {
        let endpoints = slice.endpoints.iter().flatten();
        let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
        for address in addresses.filter_map(|address| address_of(address)) {
            let Some(place) = self.places.get_mut(&address) else {
                continue;
            };
            for port in slice.ports.iter().flatten() {
                let number = port.port.unwrap_or_default();
                if let Some(port) = BalancerPort::new(port.protocol.as_deref(), number) {
                    place.take(port, "the API server");
                }
            }
        }
    }

    /// A Service with ports on all nodes. Nodes come before.
    pub fn add_node_ports(&mut self, service: &Service) {
        let Some(spec) = &service.spec else { return };
        let by = format!("service {} on nodes", named(&service.metadata));
        let ports = spec.ports.iter().flatten();
        let ports = ports.filter_map(|p| BalancerPort::new(p.protocol.as_deref(), p.node_port?));
        let health = spec.health_check_node_port;
        let health = health.and_then(|number| BalancerPort::new(None, number));
        for port in ports.chain(health) {
            for place in self.places.values_mut() {
                place.take(port, &by);
            }
        }
    }

    /// All of them, in order.
    #[must_use]
    pub fn all(self) -> Vec<BalancerAddress> {
        self.places.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(change: impl FnOnce(&mut Value)) -> BTreeSet<IpAddr> {
        let mut node = json!({
            "metadata": { "name": "a", "labels": {}, "annotations": {} },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "a" }],
                "conditions": [{ "type": "Ready", "status": "True" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            },
        });
        change(&mut node);
        balancer_addresses_of(&serde_json::from_value(node).unwrap()).0
    }

    #[test]
    fn which_addresses_of_nodes_are_to_be_had() {
        let internal: IpAddr = "192.0.2.1".parse().unwrap();
        let external: IpAddr = "198.51.100.7".parse().unwrap();
        assert_eq!(node(|_| {}), [internal].into());
        let seen = node(|n| {
            n["status"]["addresses"][1] = json!({ "type": "ExternalIP", "address": external });
        });
        assert_eq!(seen, [external].into(), "external ones go first");
        let none = [
            node(|n| n["status"]["conditions"][0]["status"] = json!("Unknown")),
            node(|n| n["metadata"]["labels"][EXCLUDED] = json!("")),
            node(|n| n["metadata"]["annotations"][PROXIES_SERVICES] = json!("false")),
            node(|n| n["spec"] = json!({ "taints": [{ "key": GOING, "effect": "NoSchedule" }] })),
            node(|n| n["status"]["addresses"][0]["address"] = json!("127.0.0.1")),
        ];
        assert!(none.iter().all(BTreeSet::is_empty), "{none:?}");
    }

    #[test]
    fn pods_have_ports_of_the_host() {
        let pod = |spec: Value, phase: &str| -> Pod {
            let pod = json!({
                "metadata": { "name": "p", "namespace": "n", "labels": { "app": "web" } },
                "spec": spec, "status": { "phase": phase },
            });
            serde_json::from_value(pod).unwrap()
        };
        let ports = json!([{ "containerPort": 8080, "hostPort": 80 }, { "containerPort": 53, "protocol": "UDP" }]);
        let own = json!({ "containers": [{ "name": "c", "ports": ports }] });
        let hosts = json!({ "hostNetwork": true, "containers": [{ "name": "c", "ports": ports }] });
        let text = |pod: &Pod| -> Vec<String> {
            host_ports(pod).iter().map(ToString::to_string).collect()
        };
        assert_eq!(text(&pod(own.clone(), "Running")), ["80/TCP"]);
        assert_eq!(text(&pod(hosts, "Pending")), ["80/TCP", "53/UDP"]);
        assert!(host_ports(&pod(own.clone(), "Succeeded")).is_empty());
        let service = |selector: Value| -> Service {
            let service = json!({ "metadata": { "name": "s", "namespace": "n" }, "spec": { "selector": selector } });
            serde_json::from_value(service).unwrap()
        };
        let mut place = BalancerAddress::new("192.0.2.1".parse().unwrap(), "a");
        let port = BalancerPort::new(None, 80).unwrap();
        place.pods.push((port, Arc::new(pod(own, "Running"))));
        assert_eq!(place.holder(port, &service(json!({ "app": "web" }))), None);
        let other = place.holder(port, &service(json!({ "app": "x" })));
        assert_eq!(other.as_deref(), Some("pod n/p"));
        assert!(place.holder(port, &service(json!({}))).is_some());
    }
}
