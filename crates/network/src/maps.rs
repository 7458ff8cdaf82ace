//! The sets and maps of davit's table, and what their keys are.

use davit_net::nft::{Field, Set, Values};

const SERVICE: &[Field] = &[Field::Address, Field::Protocol, Field::Port];
const PORT: &[Field] = &[Field::Protocol, Field::Port];
const NUMBERED: &[Field] = &[Field::Address, Field::Protocol, Field::Port, Field::Number];
const CLIENT: &[Field] = &[Field::Address, Field::Address, Field::Protocol, Field::Port];
const PAIR: &[Field] = &[Field::Address, Field::Address];
const ONE: &[Field] = &[Field::Address];
const ENDPOINT: Values<'static> = Values::Fields(&[Field::Address, Field::Port]);
/// Clients that keep their endpoints, at most.
const CLIENTS: u32 = 1 << 20;

/// A set or map. Those that lead to others come after these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Map {
    Endpoints,
    Hairpin,
    Services,
    NodePorts,
    Refused,
    RefusedNodePorts,
    ClusterAddresses,
    /// Pairs of equal addresses of the pods with links of ours.
    Pods,
    /// Protocol, port: the pod behind this port of every address of the node.
    HostPorts,
    /// Address, protocol, port: the pod behind the port of this address.
    HostPortsAt,
    /// Addresses at which node ports are open.
    NodeAddresses,
    /// Ranges of pods, Services and groups: what pods send there keeps its source.
    Inside,
    /// Ranges of Services: what is sent to an address that no Service has vanishes.
    ServiceRanges,
    /// Ranges of pods that somebody else connects: what they send is the cluster's own.
    ForeignPods,
    /// Addresses of the other nodes.
    Nodes,
    /// Ranges of the other nodes' pods.
    OtherPods,
    /// The addresses by which this node's pods reach everything.
    Gateways,
    /// Addresses of load balancers that this node answers for.
    Announced,
    /// Address of a pod here: what becomes of connections to it.
    Ingress,
    /// Address of a pod here: what becomes of its connections.
    Egress,
    /// Client, address, protocol, port: the endpoint that it keeps. Rules enter and the kernel ends these.
    Affinity,
}

impl Map {
    pub(crate) const ALL: [Self; 21] = [
        Self::Endpoints,
        Self::Hairpin,
        Self::Services,
        Self::NodePorts,
        Self::Refused,
        Self::RefusedNodePorts,
        Self::ClusterAddresses,
        Self::Pods,
        Self::HostPorts,
        Self::HostPortsAt,
        Self::NodeAddresses,
        Self::Inside,
        Self::ServiceRanges,
        Self::ForeignPods,
        Self::Nodes,
        Self::OtherPods,
        Self::Gateways,
        Self::Announced,
        Self::Ingress,
        Self::Egress,
        Self::Affinity,
    ];

    /// The name in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints",
            Self::Hairpin => "hairpin",
            Self::Services => "services",
            Self::NodePorts => "node-ports",
            Self::Refused => "refused",
            Self::RefusedNodePorts => "refused-node-ports",
            Self::ClusterAddresses => "cluster-addresses",
            Self::Pods => "pods",
            Self::HostPorts => "host-ports",
            Self::HostPortsAt => "host-ports-at",
            Self::NodeAddresses => "node-addresses",
            Self::Inside => "inside",
            Self::ServiceRanges => "service-ranges",
            Self::ForeignPods => "foreign-pods",
            Self::Nodes => "nodes",
            Self::OtherPods => "other-pods",
            Self::Gateways => "gateways",
            Self::Announced => "announced",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
            Self::Affinity => "affinity",
        }
    }

    /// How the kernel is told of it.
    pub(crate) fn set(self) -> Set<'static> {
        let (keys, values) = match self {
            Self::Endpoints => (NUMBERED, ENDPOINT),
            Self::Hairpin | Self::Pods => (PAIR, Values::None),
            Self::Services | Self::Refused => (SERVICE, Values::Verdicts),
            Self::NodePorts | Self::RefusedNodePorts => (PORT, Values::Verdicts),
            Self::HostPorts => (PORT, ENDPOINT),
            Self::HostPortsAt => (SERVICE, ENDPOINT),
            Self::ClusterAddresses
            | Self::NodeAddresses
            | Self::Inside
            | Self::ServiceRanges
            | Self::ForeignPods
            | Self::Nodes
            | Self::OtherPods
            | Self::Gateways
            | Self::Announced => (ONE, Values::None),
            Self::Ingress | Self::Egress => (ONE, Values::Verdicts),
            Self::Affinity => (CLIENT, ENDPOINT),
        };
        Set {
            name: self.name(),
            keys,
            values,
            intervals: matches!(
                self,
                Self::Inside | Self::ServiceRanges | Self::ForeignPods | Self::OtherPods
            ),
            dynamic: (self == Self::Affinity).then_some(CLIENTS),
        }
    }
}

/// A set of addresses of pods that policies name.
pub(crate) fn set_of_peers(name: &str) -> Set<'_> {
    Set {
        name,
        keys: ONE,
        values: Values::None,
        intervals: false,
        dynamic: None,
    }
}

impl From<davit_netplan::Map> for Map {
    fn from(map: davit_netplan::Map) -> Self {
        use davit_netplan::Map as Planned;
        match map {
            Planned::Endpoints => Self::Endpoints,
            Planned::Hairpin => Self::Hairpin,
            Planned::Services => Self::Services,
            Planned::NodePorts => Self::NodePorts,
            Planned::Refused => Self::Refused,
            Planned::RefusedNodePorts => Self::RefusedNodePorts,
            Planned::ClusterAddresses => Self::ClusterAddresses,
        }
    }
}
