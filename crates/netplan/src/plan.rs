//! The elements of the proxy's maps.

use crate::Chain;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// A map or set of the proxy's table. Those that lead to others come after these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    /// Address, protocol, port, number: the endpoint with the number.
    Endpoints,
    /// Pairs of equal addresses of endpoints here: connections of a pod to itself are masqueraded.
    Hairpin,
    /// Address, protocol, port: the chain that chooses.
    Services,
    /// Protocol, port of a node: the chain that chooses.
    NodePorts,
    /// Address, protocol, port without endpoints: refused, or dropped.
    Refused,
    /// Protocol, port of a node without endpoints: refused, or dropped.
    RefusedNodePorts,
    /// Cluster addresses: ports that no Service has are refused.
    ClusterAddresses,
}

/// A key, with the map it is in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The map.
    pub map: Map,
    /// Its fields, each padded to four bytes.
    pub bytes: Vec<u8>,
}

/// What stands for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// It is in the set.
    Member,
    /// An endpoint.
    Endpoint(Ipv4Addr, u16),
    /// The chain that goes on.
    Chain(Chain),
    /// The client learns that nobody listens.
    Refuse,
    /// The client learns nothing.
    Drop,
}

/// The elements of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What stands where.
    pub entries: BTreeMap<Key, Value>,
    /// Endpoints of UDP ports, and where they are reached: connections to others end.
    pub datagrams: Vec<Datagrams>,
    /// What its load balancer asks of the node.
    pub health: Option<HealthCheck>,
    /// Ports that have endpoints, and none here, where only those here may be chosen.
    pub nowhere: Nowhere,
}

/// Whether the node has endpoints, for who asks at a port of the node (`healthCheckNodePort`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The uid of the Service.
    pub uid: String,
    /// The port.
    pub port: u16,
    /// How many addresses of the node's are ready.
    pub endpoints: usize,
}

/// How many ports of a Service lead nowhere on the node, by the policy that says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Nowhere {
    /// `internalTrafficPolicy`.
    pub internal: usize,
    /// `externalTrafficPolicy`.
    pub external: usize,
}

/// Where a UDP port is reached, and who answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// Addresses of the Service, with the port.
    pub at: Vec<(Ipv4Addr, u16)>,
    /// Port of the nodes.
    pub node_port: Option<u16>,
    /// Endpoints that serve, ready or not.
    pub serving: Vec<(Ipv4Addr, u16)>,
}

/// A protocol above IP, with its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
    /// SCTP.
    Sctp = 132,
}

impl Protocol {
    /// As Kubernetes writes it; TCP unless it says.
    pub(crate) fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    fn field(self) -> [u8; 4] {
        [self as u8, 0, 0, 0]
    }
}

/// A port in network byte order, padded.
fn port_field(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

impl Key {
    pub(crate) fn service(map: Map, address: Ipv4Addr, protocol: Protocol, port: u16) -> Self {
        let fields = [address.octets(), protocol.field(), port_field(port)];
        Self {
            map,
            bytes: fields.concat(),
        }
    }

    pub(crate) fn node_port(map: Map, protocol: Protocol, port: u16) -> Self {
        Self {
            map,
            bytes: [protocol.field(), port_field(port)].concat(),
        }
    }

    pub(crate) fn endpoint(address: Ipv4Addr, protocol: Protocol, port: u16, number: u32) -> Self {
        // The kernel draws numbers in this machine's byte order.
        let fields = [
            address.octets(),
            protocol.field(),
            port_field(port),
            number.to_ne_bytes(),
        ];
        Self {
            map: Map::Endpoints,
            bytes: fields.concat(),
        }
    }

    pub(crate) fn hairpin(address: Ipv4Addr) -> Self {
        Self {
            map: Map::Hairpin,
            bytes: [address.octets(), address.octets()].concat(),
        }
    }

    /// The element that says that an address is a Service's own.
    #[must_use]
    pub fn cluster_address(address: Ipv4Addr) -> Self {
        Self {
            map: Map::ClusterAddresses,
            bytes: address.octets().to_vec(),
        }
    }

    /// The address that an element is about, if it is about one at which a Service is reached.
    #[must_use]
    pub fn address(&self) -> Option<Ipv4Addr> {
        let reached = REACHED.contains(&self.map);
        let octets: &[u8; 4] = self.bytes.first_chunk()?;
        reached.then(|| Ipv4Addr::from(*octets))
    }

    /// All elements about an address at which Services are reached.
    #[must_use]
    pub fn all_at(address: Ipv4Addr) -> [RangeInclusive<Self>; 3] {
        REACHED.map(|map| {
            let key = |rest: &[u8]| Self {
                map,
                bytes: [&address.octets(), rest].concat(),
            };
            key(&[])..=key(&[u8::MAX; 16])
        })
    }
}

/// Maps whose elements begin with an address at which a Service is reached.
const REACHED: [Map; 3] = [Map::Endpoints, Map::Services, Map::Refused];

impl Plan {
    /// The Service's own addresses: those that no other has.
    #[must_use]
    pub fn own_addresses(&self) -> BTreeSet<Ipv4Addr> {
        let own = self
            .entries
            .keys()
            .filter(|key| key.map == Map::ClusterAddresses);
        let octets = own.filter_map(|key| key.bytes.first_chunk::<4>());
        octets.map(|octets| Ipv4Addr::from(*octets)).collect()
    }
}

impl Value {
    /// An endpoint's fields, each padded to four bytes.
    #[must_use]
    pub fn endpoint_fields(address: Ipv4Addr, port: u16) -> Vec<u8> {
        [address.octets(), port_field(port)].concat()
    }
}
