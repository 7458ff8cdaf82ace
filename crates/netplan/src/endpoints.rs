//! Which endpoints a Service's port leads to (KEP-1669, KEP-2086, KEP-4444, KEP-3015; spec network.md 3.2).

use crate::Family;
use crate::family::number;
use crate::network::address_of;
use crate::plan::Protocol;
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// More endpoints than these are not told to the kernel: a part of them is chosen, always the same.
const MOST: usize = 512;

/// The node that the plan is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// Its addresses inside the cluster (`InternalIP`).
    pub internal: BTreeSet<IpAddr>,
    /// Its addresses outside (`ExternalIP`). Packets to them come to those inside where a router in between translates them.
    pub external: BTreeSet<IpAddr>,
}

/// Which endpoints may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of the cluster (policy `Cluster`).
    Cluster,
    /// Those of this node (policy `Local`).
    Local,
}

/// An endpoint of one port.
#[derive(Debug, Clone)]
struct Endpoint {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    /// Hints name this node; `None` without hints of this kind.
    for_node: Option<bool>,
    for_zone: Option<bool>,
}

/// The endpoints of one port.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    all: BTreeMap<(IpAddr, u16), Endpoint>,
}

/// Addresses that no endpoint of a cluster has.
fn is_foreign(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast()
}

fn read(endpoint: &SliceEndpoint, node: &Node) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let zone = node.zone.as_deref();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref());
    let zones = hints.and_then(|hints| hints.for_zones.as_ref());
    Endpoint {
        ready,
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(node.name.as_str()),
        for_node: nodes.map(|all| all.iter().any(|hint| hint.name == node.name)),
        for_zone: zones.map(|all| all.iter().any(|hint| Some(hint.name.as_str()) == zone)),
    }
}

impl Endpoints {
    /// Those that slices have for the port of this name and protocol.
    pub(crate) fn of(
        slices: &[&EndpointSlice],
        name: &str,
        protocol: Protocol,
        node: &Node,
        family: Family,
    ) -> Self {
        let mut found = Self::default();
        let of_family = |slice: &&&EndpointSlice| slice.address_type == family.name();
        for slice in slices.iter().filter(of_family) {
            let fits = |port: &&k8s_openapi::api::discovery::v1::EndpointPort| {
                port.name.as_deref().unwrap_or_default() == name
                    && Protocol::parse(port.protocol.as_deref()) == Some(protocol)
            };
            let port = slice.ports.iter().flatten().find(fits);
            let Some(port) = port
                .and_then(|p| p.port)
                .and_then(|p| u16::try_from(p).ok())
            else {
                continue;
            };
            if port > 0 {
                found.enter(slice, port, node, family);
            }
        }
        found
    }

    fn enter(&mut self, slice: &EndpointSlice, port: u16, node: &Node, family: Family) {
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(address) = endpoint.addresses.first().and_then(|a| address_of(a)) else {
                continue;
            };
            if is_foreign(address) || Family::of(address) != family {
                continue;
            }
            let new = read(endpoint, node);
            let place = self.all.entry((address, port));
            // Of the same address twice, the one that stays counts.
            let kept = place.or_insert_with(|| new.clone());
            if kept.terminating && !new.terminating {
                *kept = new;
            }
        }
    }

    /// Whether there is an endpoint anywhere that could answer.
    pub(crate) fn any(&self) -> bool {
        let mut all = self.all.values();
        all.any(|e| e.ready || (e.serving && e.terminating))
    }

    /// All that serve, wherever and whatever for.
    pub(crate) fn serving(&self) -> Vec<(IpAddr, u16)> {
        let serving = self.all.iter().filter(|(_, e)| e.serving || e.ready);
        serving.map(|(at, _)| *at).collect()
    }

    /// Addresses of this node that are ready.
    pub(crate) fn ready_here(&self) -> impl Iterator<Item = IpAddr> {
        let ready = self.all.iter().filter(|(_, e)| e.local && e.ready);
        ready.map(|((address, _), _)| *address)
    }

    /// Those of this node.
    pub(crate) fn local(&self) -> impl Iterator<Item = IpAddr> {
        let here = self.all.iter().filter(|(_, e)| e.local);
        here.map(|((address, _), _)| *address)
    }

    /// Those that a packet may go to; a part of them, of at most `most`.
    pub(crate) fn choose(&self, scope: Scope, most: usize) -> Vec<(IpAddr, u16)> {
        let within = |e: &&Endpoint| scope == Scope::Cluster || e.local;
        let ready: Vec<&Endpoint> = self
            .all
            .values()
            .filter(within)
            .filter(|e| e.ready)
            .collect();
        let topology: fn(&Endpoint) -> bool = match scope {
            Scope::Local => |_| true,
            Scope::Cluster => topology(&ready),
        };
        let allowed = |e: &Endpoint| {
            if ready.is_empty() {
                e.serving && e.terminating
            } else {
                e.ready && topology(e)
            }
        };
        let chosen = self.all.iter().filter(|(_, e)| within(e) && allowed(e));
        bounded(chosen.map(|(at, _)| *at).collect(), most.min(MOST))
    }
}

/// What hints restrict the choice to: the mode is chosen for all ready endpoints at once.
fn topology(ready: &[&Endpoint]) -> fn(&Endpoint) -> bool {
    let by = |hint: fn(&Endpoint) -> Option<bool>| {
        ready.iter().all(|e| hint(e).is_some()) && ready.iter().any(|e| hint(e) == Some(true))
    };
    if by(|e| e.for_node) {
        |e| e.for_node == Some(true)
    } else if by(|e| e.for_zone) {
        |e| e.for_zone == Some(true)
    } else {
        |_| true
    }
}

/// At most so many of them; which depends on the endpoints alone, so that one more moves few.
fn bounded(mut all: Vec<(IpAddr, u16)>, most: usize) -> Vec<(IpAddr, u16)> {
    if all.len() > most {
        all.sort_by_key(|(address, port)| {
            // of an IPv6 address both halves count
            let [high, low] = [number(*address) >> 64, number(*address)].map(|half| half as u64);
            let number = (low ^ high.rotate_left(24)) << 16 ^ u64::from(*port);
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
        });
        all.truncate(most);
        all.sort_unstable();
    }
    all
}
