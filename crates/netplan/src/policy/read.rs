//! What counts of the API's objects.

use super::{GROUP_COST, NAMED_COST, NamespaceScope, PodScope, PortRange};
use crate::{Network, Protocol};
use davit_api::selector::{Labels, Selector};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::net::IpAddr;

/// A port of a container that has a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The number.
    pub number: u16,
}

/// What policies look at of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyPod {
    /// Its labels.
    pub labels: Labels,
    /// By which peers know it, at most one of each family; a pod that has ended has none, nor has one in the node's network.
    pub addresses: Vec<IpAddr>,
    /// The node that says so.
    pub node: Option<String>,
    /// Its named ports, in the order of its containers.
    pub ports: Vec<NamedPort>,
    /// When it was made, in seconds: of two pods with one address it is the newer one's.
    pub created: i64,
}

impl PolicyPod {
    /// What counts of a pod.
    #[must_use]
    pub fn new(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let phase = status.and_then(|status| status.phase.as_deref());
        let is_peer = !matches!(phase, Some("Succeeded" | "Failed"))
            && spec.and_then(|spec| spec.host_network) != Some(true);
        let all = status.into_iter().flat_map(|status| {
            let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
            all.chain(status.pod_ip.as_deref())
        });
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in all
            .filter_map(|text| text.parse::<IpAddr>().ok())
            .filter(|_| is_peer)
        {
            if addresses
                .iter()
                .all(|known| known.is_ipv4() != address.is_ipv4())
            {
                addresses.push(address);
            }
        }
        let lasting =
            |container: &&Container| container.restart_policy.as_deref() == Some("Always");
        let containers = spec.into_iter().flat_map(|spec| {
            let sidecars = spec.init_containers.iter().flatten().filter(lasting);
            spec.containers.iter().chain(sidecars)
        });
        let ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter_map(|port| {
            Some(NamedPort {
                name: port.name.clone()?,
                protocol: Protocol::parse(port.protocol.as_deref())?,
                number: u16::try_from(port.container_port).ok()?,
            })
        });
        let created = metadata.creation_timestamp.as_ref();
        Self {
            labels: metadata.labels.clone().unwrap_or_default(),
            addresses,
            node: spec.and_then(|spec| spec.node_name.clone()),
            ports: named.collect(),
            created: created.map_or(0, |time| time.0.as_second()),
        }
    }

    /// The number of the port with this name; the first container that has it counts.
    pub(super) fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        let found = self.ports.iter();
        let mut found = found.filter(|port| port.name == name && port.protocol == protocol);
        found.next().map(|port| port.number)
    }
}

/// A NetworkPolicy, understood once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledPolicy {
    pub(super) pods: Selector,
    /// `None` where the policy does not isolate.
    pub(super) ingress: Option<Vec<PolicyRule>>,
    pub(super) egress: Option<Vec<PolicyRule>>,
}

/// A rule: some peer and some port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyRule {
    /// `None` is everybody.
    pub(super) peers: Option<Vec<PolicyPeer>>,
    /// `None` is every port of every protocol.
    pub(super) ports: Option<Vec<PolicyPort>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PolicyPeer {
    Pods(PodScope),
    Block {
        range: Network,
        except: Vec<Network>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PolicyPort {
    Range(PortRange),
    Named(String, Protocol),
}

impl PolicyRule {
    /// How much the rule says, [`super::MAX_COST`].
    fn cost(&self) -> usize {
        let (peers, ports) = (self.peers.as_deref(), self.ports.as_deref());
        let each = peers.into_iter().flatten().map(|peer| match peer {
            PolicyPeer::Pods(_) => GROUP_COST,
            PolicyPeer::Block { except, .. } => 1 + except.len(),
        });
        let groups = peers.map_or(1, |peers| {
            let pods = |peer: &&PolicyPeer| matches!(peer, PolicyPeer::Pods(_));
            peers.iter().filter(pods).count()
        });
        let ports = ports.unwrap_or_default();
        let named = |port: &&PolicyPort| matches!(port, PolicyPort::Named(..));
        let named = ports.iter().filter(named).count();
        each.sum::<usize>() + ports.len() + (groups * named).saturating_mul(NAMED_COST)
    }
}

impl CompiledPolicy {
    /// How much the policy says, [`super::MAX_COST`].
    #[must_use]
    pub fn cost(&self) -> usize {
        let rules = self.ingress.iter().chain(&self.egress).flatten();
        rules.map(PolicyRule::cost).fold(0, usize::saturating_add)
    }

    /// Understands a policy.
    #[must_use]
    pub fn new(policy: &NetworkPolicy) -> Self {
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let Some(spec) = &policy.spec else {
            return Self {
                pods: Selector::new(None),
                ingress: None,
                egress: None,
            };
        };
        let ingress = spec.ingress.iter().flatten();
        let ingress =
            ingress.map(|rule| rule_of(namespace, rule.from.as_deref(), rule.ports.as_deref()));
        let egress = spec.egress.iter().flatten();
        let egress =
            egress.map(|rule| rule_of(namespace, rule.to.as_deref(), rule.ports.as_deref()));
        let egress: Vec<_> = egress.collect();
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let has = |kind: &str| types.iter().any(|given| given == kind);
        let selector = spec.pod_selector.clone().unwrap_or_default();
        Self {
            pods: Selector::new(Some(&selector)),
            ingress: (types.is_empty() || has("Ingress")).then(|| ingress.collect()),
            egress: (has("Egress") || types.is_empty() && !egress.is_empty()).then_some(egress),
        }
    }
}

/// An empty list says the same as none.
fn given<T>(list: Option<&[T]>) -> Option<&[T]> {
    list.filter(|list| !list.is_empty())
}

fn rule_of(
    namespace: &str,
    peers: Option<&[NetworkPolicyPeer]>,
    ports: Option<&[NetworkPolicyPort]>,
) -> PolicyRule {
    let peers = given(peers).map(|peers| {
        let read = peers.iter().filter_map(|peer| peer_of(namespace, peer));
        read.collect()
    });
    let ports = given(ports).map(|ports| ports.iter().filter_map(port_of).collect());
    PolicyRule { peers, ports }
}

fn peer_of(namespace: &str, peer: &NetworkPolicyPeer) -> Option<PolicyPeer> {
    if let Some(block) = &peer.ip_block {
        let except = block.except.iter().flatten();
        return Some(PolicyPeer::Block {
            range: block.cidr.parse().ok()?,
            except: except.filter_map(|range| range.parse().ok()).collect(),
        });
    }
    let select = |selector| Selector::new(Some(selector));
    let namespaces = peer.namespace_selector.as_ref().map(select);
    let pods = peer.pod_selector.as_ref().map(select);
    if namespaces.is_none() && pods.is_none() {
        return None;
    }
    Some(PolicyPeer::Pods(PodScope {
        namespaces: namespaces.map_or_else(
            || NamespaceScope::Named(namespace.to_owned()),
            NamespaceScope::Labelled,
        ),
        pods: pods.unwrap_or_else(Selector::everything),
    }))
}

fn port_of(port: &NetworkPolicyPort) -> Option<PolicyPort> {
    let protocol = Protocol::parse(port.protocol.as_deref())?;
    let (first, last) = match &port.port {
        None => (0, u16::MAX),
        Some(IntOrString::String(name)) => return Some(PolicyPort::Named(name.clone(), protocol)),
        Some(IntOrString::Int(first)) => {
            let last = port.end_port.unwrap_or(*first);
            (u16::try_from(*first).ok()?, u16::try_from(last).ok()?)
        }
    };
    Some(PolicyPort::Range(PortRange {
        protocol,
        first,
        last,
    }))
}
