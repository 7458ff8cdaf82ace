//! NetworkPolicies in, who may talk to the pods of a node out (spec network.md 7).
//!
//! [`PolicyWorld`] holds what counts of policies, namespaces and pods. [`PolicyWorld::isolation`] says for one pod what
//! its policies let through; peers that are chosen by labels are [`PodGroup`]s there, so that a pod that comes or goes
//! changes the members of a group and no decision.

mod read;
mod world;

pub use read::{CompiledPolicy, NamedPort, PolicyPod};
pub use world::{PolicyWorld, RangesByNode};

use crate::{Network, Protocol};
use davit_api::selector::Selector;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Pods chosen by the labels of themselves and of their namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodScope {
    /// Of which namespaces.
    pub namespaces: NamespaceScope,
    /// Which of their pods.
    pub pods: Selector,
}

/// Namespaces by name or by labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamespaceScope {
    /// This one: the policy's own.
    Named(String),
    /// Those with such labels.
    Labelled(Selector),
}

/// Ports of one protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl PortRange {
    /// One port.
    pub(crate) fn one(protocol: Protocol, port: u16) -> Self {
        Self {
            protocol,
            first: port,
            last: port,
        }
    }

    /// Whether a port is in it.
    #[must_use]
    pub fn contains(&self, protocol: Protocol, port: u16) -> bool {
        self.protocol == protocol && (self.first..=self.last).contains(&port)
    }
}

/// Addresses that change while the decision stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodGroup {
    /// All pods of the scope.
    Scope(PodScope),
    /// Those of them on which the port of this name has this number.
    Offering {
        /// The pods.
        scope: PodScope,
        /// The port.
        port: NamedPort,
    },
    /// The cluster's name servers that are part of the nodes: for peers they are the pods labelled `k8s-app: kube-dns` in
    /// `kube-system`.
    Resolvers,
}

/// Whom something is allowed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peers {
    /// Everybody.
    Everybody,
    /// The pods of a group.
    Group(PodGroup),
    /// A range of addresses.
    Block {
        /// The range.
        range: Network,
        /// What of it is left out.
        except: Vec<Network>,
    },
}

/// Something that a policy allows: each of these peers each of these ports. It is never multiplied out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allowance {
    /// To whom, or from whom.
    pub peers: BTreeSet<Peers>,
    /// To which ports; every protocol when it does not say.
    pub ports: Option<BTreeSet<PortRange>>,
}

impl Allowance {
    /// Allows everything.
    fn everything() -> Self {
        Self {
            peers: [Peers::Everybody].into(),
            ports: None,
        }
    }

    fn is_everything(&self) -> bool {
        self.ports.is_none() && self.peers.contains(&Peers::Everybody)
    }

    /// Whether it is about this peer and this port.
    fn covers(
        &self,
        peer: IpAddr,
        port: (u8, u16),
        is_member: &impl Fn(&PodGroup, IpAddr) -> bool,
    ) -> bool {
        let (protocol, port) = port;
        let open = |range: &PortRange| {
            range.protocol as u8 == protocol && range.contains(range.protocol, port)
        };
        let ports = self.ports.as_ref();
        ports.is_none_or(|ports| ports.iter().any(open))
            && self.peers.iter().any(|peers| match peers {
                Peers::Everybody => true,
                Peers::Group(group) => is_member(group, peer),
                Peers::Block { range, except } => {
                    range.contains(peer) && !except.iter().any(|range| range.contains(peer))
                }
            })
    }
}

/// Whether what is allowed in a direction lets a connection pass: whose other end this peer is, and the receiver's protocol
/// and port these. Nothing is said where there is no isolation.
#[must_use]
pub fn lets_pass(
    allowed: Option<&BTreeSet<Allowance>>,
    peer: IpAddr,
    port: (u8, u16),
    is_member: impl Fn(&PodGroup, IpAddr) -> bool,
) -> bool {
    let covers = |allowance: &Allowance| allowance.covers(peer, port, &is_member);
    allowed.is_none_or(|allowed| allowed.iter().any(covers))
}

/// What the policies of a pod let through. A direction in which it is not isolated says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isolation {
    /// Connections to the pod.
    pub ingress: Option<BTreeSet<Allowance>>,
    /// Connections of the pod.
    pub egress: Option<BTreeSet<Allowance>>,
    /// Its policies say more than [`MAX_COST`]: in the directions in which they isolate nothing is let through.
    pub too_large: bool,
}

/// How much the policies of a pod may say: one for each range of addresses, port and exception, eight for each selector,
/// 64 for each selector and name of a port in a rule for what the pod sends. Somebody's policy must not use up a node on
/// which others' pods run.
pub const MAX_COST: usize = 10_000;
/// What a selector costs, for which pods are looked through.
pub(crate) const GROUP_COST: usize = 8;
/// What a selector with a name of a port costs, which is a set of its own.
pub(crate) const NAMED_COST: usize = 64;

impl Isolation {
    /// The groups of peers that it names.
    pub fn groups(&self) -> impl Iterator<Item = &PodGroup> {
        let all = self.ingress.iter().chain(&self.egress).flatten();
        let peers = all.flat_map(|allowance| &allowance.peers);
        peers.filter_map(|peers| match peers {
            Peers::Group(group) => Some(group),
            Peers::Everybody | Peers::Block { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests;
