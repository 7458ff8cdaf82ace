//! What the slices of a service should say: a pure function of the service, its pods and their nodes.

use crate::endpoints::pods::{self, HEADLESS};
use crate::pod_control::ready_since;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, ForNode, ForZone,
};
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Endpoints that have the same ports, of one address type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    pub(super) address_type: &'static str,
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// `IPv4` or `IPv6`.
pub(super) fn address_type(ip: IpAddr) -> &'static str {
    if ip.is_ipv6() { "IPv6" } else { "IPv4" }
}

/// The address types a service has endpoints of.
pub(super) fn address_types(service: &Service) -> Vec<&'static str> {
    let spec = service.spec.clone().unwrap_or_default();
    let families = spec.ip_families.unwrap_or_default();
    let named: Vec<&'static str> = families
        .iter()
        .map(|f| if f == "IPv6" { "IPv6" } else { "IPv4" })
        .collect();
    if !named.is_empty() {
        return named;
    }
    match spec.cluster_ip.and_then(|ip| ip.parse::<IpAddr>().ok()) {
        Some(ip) => vec![address_type(ip)],
        None => vec!["IPv4", "IPv6"],
    }
}

/// The groups of endpoints of one service.
pub(super) fn groups<'a>(
    service: &Service,
    selected: &(impl Iterator<Item = &'a Pod> + Clone),
    node: impl Fn(&str) -> Option<std::sync::Arc<Node>>,
) -> Vec<Group> {
    let mut groups = Vec::new();
    for kind in address_types(service) {
        // The key orders ports; a pod may give a named port another number than its neighbour.
        let mut by_ports: BTreeMap<String, Group> = BTreeMap::new();
        for pod in selected.clone() {
            let addresses: Vec<String> = pods::addresses(pod)
                .into_iter()
                .filter(|ip| address_type(*ip) == kind)
                .map(|ip| ip.to_string())
                .collect();
            if addresses.is_empty() || !pods::is_endpoint(pod, true) {
                continue;
            }
            let ports = ports(service, pod);
            let endpoint = endpoint(service, pod, addresses, &node);
            let group = by_ports
                .entry(format!("{ports:?}"))
                .or_insert_with(|| Group {
                    address_type: kind,
                    ports,
                    endpoints: Vec::new(),
                });
            group.endpoints.push(endpoint);
        }
        groups.extend(by_ports.into_values());
    }
    groups
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_ref());
    ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(pods::target_port(pod, port)?),
                protocol: Some(pods::protocol_of(port.protocol.as_deref()).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    addresses: Vec<String>,
    node: &impl Fn(&str) -> Option<std::sync::Arc<Node>>,
) -> Endpoint {
    let spec = service.spec.as_ref();
    let serving = ready_since(pod).is_some();
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let unready_too = spec.and_then(|s| s.publish_not_ready_addresses) == Some(true);
    let node_name = pod
        .spec
        .as_ref()
        .and_then(|s| s.node_name.clone())
        .filter(|n| !n.is_empty());
    let zone = node_name
        .as_deref()
        .and_then(node)
        .and_then(|n| n.metadata.labels.as_ref()?.get(ZONE).cloned())
        .filter(|z| !z.is_empty());
    let distribution = spec.and_then(|s| s.traffic_distribution.as_deref());
    Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(unready_too || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(distribution, zone.as_deref(), node_name.as_deref()),
        hostname: pods::hostname(pod, service),
        target_ref: Some(pods::reference(pod)),
        node_name,
        zone,
        ..Endpoint::default()
    }
}

/// `trafficDistribution` as hints (KEP-4444, KEP-3015).
fn hints(
    distribution: Option<&str>,
    zone: Option<&str>,
    node: Option<&str>,
) -> Option<EndpointHints> {
    let zones = zone.map(|name| {
        vec![ForZone {
            name: name.to_owned(),
        }]
    });
    let nodes = node.map(|name| {
        vec![ForNode {
            name: name.to_owned(),
        }]
    });
    let hints = match distribution? {
        "PreferClose" | "PreferSameZone" => EndpointHints {
            for_zones: zones,
            for_nodes: None,
        },
        "PreferSameNode" => EndpointHints {
            for_zones: zones,
            for_nodes: nodes,
        },
        _ => return None,
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}

/// The labels of a service's slices: the service's own and those that say whose they are.
pub(super) fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    for reserved in [HEADLESS, SERVICE_NAME, MANAGED_BY] {
        labels.remove(reserved);
    }
    if pods::is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let name = service.metadata.name.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(ready: bool, deleting: bool) -> Pod {
        let ready = if ready { "True" } else { "False" };
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u" },
            "spec": { "nodeName": "node", "containers": [] },
            "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }],
                "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap();
        if deleting {
            pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone().or(Some(
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
                ),
            ));
        }
        pod
    }

    fn conditions(spec: serde_json::Value, pod: &Pod) -> (bool, bool, bool) {
        let service: Service = serde_json::from_value(
            json!({ "metadata": { "name": "s", "namespace": "n" }, "spec": spec }),
        )
        .unwrap();
        let groups = groups(&service, &[pod].into_iter(), |_| None);
        let c = groups[0].endpoints[0].conditions.clone().unwrap();
        (c.ready.unwrap(), c.serving.unwrap(), c.terminating.unwrap())
    }

    #[test]
    fn conditions_tell_ready_serving_and_terminating_apart() {
        let plain = json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }] });
        assert_eq!(
            conditions(plain.clone(), &pod(true, false)),
            (true, true, false)
        );
        assert_eq!(
            conditions(plain.clone(), &pod(false, false)),
            (false, false, false)
        );
        assert_eq!(conditions(plain, &pod(true, true)), (false, true, true));
        let all = json!({ "clusterIP": "None", "publishNotReadyAddresses": true });
        assert_eq!(conditions(all, &pod(false, true)), (true, false, true));
    }

    #[test]
    fn each_family_of_a_dual_stack_service_has_its_own_group() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "n" },
            "spec": { "ipFamilies": ["IPv4", "IPv6"], "ports": [{ "port": 80 }], "trafficDistribution": "PreferSameNode" },
        }))
        .unwrap();
        let pod = pod(true, false);
        let groups = groups(&service, &[&pod].into_iter(), |_| None);
        let seen: Vec<_> = groups
            .iter()
            .map(|g| (g.address_type, g.endpoints[0].addresses[0].clone()))
            .collect();
        assert_eq!(
            seen,
            [
                ("IPv4", "10.0.0.1".to_owned()),
                ("IPv6", "fd00::1".to_owned())
            ]
        );
        let hints = groups[0].endpoints[0].hints.clone().unwrap();
        assert_eq!(hints.for_nodes.unwrap()[0].name, "node");
    }
}
