//! The rules of NetworkPolicies read off the objects, one packet at a time, as the API's documentation puts them.

use crate::Protocol;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) pods: Vec<Pod>,
    pub(super) policies: Vec<NetworkPolicy>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) protocol: Protocol,
    pub(super) port: u16,
}

impl Cluster {
    fn pod(&self, address: IpAddr) -> Option<&Pod> {
        let text = address.to_string();
        self.pods
            .iter()
            .find(|pod| pod.status.as_ref().unwrap().pod_ip.as_deref() == Some(&*text))
    }

    /// Pods that have ended send and receive nothing, and those in the node's network are not judged.
    pub(super) fn judges(&self, packet: &Packet) -> bool {
        let lives = |address| self.pod(address).is_none_or(|pod| !outside(pod));
        lives(packet.from) && lives(packet.to)
    }
}

fn outside(pod: &Pod) -> bool {
    pod.spec.as_ref().unwrap().host_network == Some(true)
        || pod.status.as_ref().unwrap().phase.as_deref() == Some("Failed")
}

/// Whether a new connection passes.
pub(super) fn allows(cluster: &Cluster, packet: &Packet) -> bool {
    packet.from == packet.to
        || (direction(cluster, packet, true) && direction(cluster, packet, false))
}

fn direction(cluster: &Cluster, packet: &Packet, ingress: bool) -> bool {
    let (subject, peer) = match ingress {
        true => (packet.to, packet.from),
        false => (packet.from, packet.to),
    };
    let Some(pod) = cluster.pod(subject) else {
        return true;
    };
    let mut isolated = false;
    for policy in &cluster.policies {
        let spec = policy.spec.as_ref().unwrap();
        let types = spec.policy_types.clone().unwrap_or_default();
        let no_types = types.is_empty();
        let egress = spec.egress.clone().unwrap_or_default();
        let counts = match ingress {
            true => no_types || types.contains(&"Ingress".to_owned()),
            false => types.contains(&"Egress".to_owned()) || no_types && !egress.is_empty(),
        };
        let selected = spec
            .pod_selector
            .as_ref()
            .is_none_or(|selector| matches(selector, &labels_of(pod)));
        if !counts || policy.metadata.namespace != pod.metadata.namespace || !selected {
            continue;
        }
        isolated = true;
        let namespace = policy.metadata.namespace.clone().unwrap();
        let rules: Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> = match ingress {
            true => {
                let rules = spec.ingress.clone().unwrap_or_default().into_iter();
                rules
                    .map(|r| (r.from.unwrap_or_default(), r.ports.unwrap_or_default()))
                    .collect()
            }
            false => {
                let rules = egress.into_iter();
                rules
                    .map(|r| (r.to.unwrap_or_default(), r.ports.unwrap_or_default()))
                    .collect()
            }
        };
        for (peers, ports) in rules {
            // a name of a port counts for a peer by selector only, where the peer is the receiver
            let receiver = cluster.pod(packet.to);
            let fits = |by_selector: bool| {
                let receiver = receiver.filter(|_| ingress || by_selector);
                ports.is_empty() || ports.iter().any(|port| port_fits(port, receiver, packet))
            };
            if peers.is_empty() && fits(true) {
                return true;
            }
            for given in &peers {
                if peer_fits(cluster, given, &namespace, peer) && fits(given.ip_block.is_none()) {
                    return true;
                }
            }
        }
    }
    !isolated
}

fn labels_of(pod: &Pod) -> BTreeMap<String, String> {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.match_expressions.iter().flatten();
    equal
        && expressions
            .into_iter()
            .all(|expression| match &*expression.operator {
                "Exists" => labels.contains_key(&expression.key),
                _ => !labels.contains_key(&expression.key),
            })
}

fn peer_fits(
    cluster: &Cluster,
    peer: &NetworkPolicyPeer,
    namespace: &str,
    address: IpAddr,
) -> bool {
    if let Some(IPBlock { cidr, except }) = &peer.ip_block {
        let in_range = |text: &str| {
            let Some((first, bits)) = text.split_once('/') else {
                return false;
            };
            let Ok(first) = first.parse::<Ipv4Addr>() else {
                return false;
            };
            let bits: u32 = bits.parse().unwrap();
            let IpAddr::V4(address) = address else {
                return false;
            };
            (0..bits).all(|bit| (u32::from(first) ^ u32::from(address)) & (1 << (31 - bit)) == 0)
        };
        return in_range(cidr) && !except.iter().flatten().any(|range| in_range(range));
    }
    let Some(pod) = cluster.pod(address) else {
        return false;
    };
    let of = pod.metadata.namespace.as_deref().unwrap();
    let in_namespace = match &peer.namespace_selector {
        None => of == namespace,
        Some(selector) => matches(selector, &cluster.namespaces[of]),
    };
    let selected = peer
        .pod_selector
        .as_ref()
        .is_none_or(|selector| matches(selector, &labels_of(pod)));
    in_namespace && selected
}

fn port_fits(port: &NetworkPolicyPort, receiver: Option<&Pod>, packet: &Packet) -> bool {
    let name = |protocol: Protocol| match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    if protocol != name(packet.protocol) {
        return false;
    }
    let number = i32::from(packet.port);
    match &port.port {
        None => true,
        Some(IntOrString::Int(first)) => {
            (*first..=port.end_port.unwrap_or(*first)).contains(&number)
        }
        Some(IntOrString::String(wanted)) => {
            let containers = receiver
                .into_iter()
                .flat_map(|pod| &pod.spec.as_ref().unwrap().containers);
            let ports = containers.flat_map(|container| container.ports.iter().flatten());
            let mut named = ports.filter(|port| {
                port.name.as_deref() == Some(wanted)
                    && port.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            named
                .next()
                .is_some_and(|port| port.container_port == number)
        }
    }
}
