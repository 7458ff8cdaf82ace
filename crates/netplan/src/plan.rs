//! The elements of the proxy's maps.

use crate::family::octets;
use crate::{Chain, Family};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
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
    Endpoint(IpAddr, u16),
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
    /// Of which family the addresses are.
    pub family: Family,
    /// What stands where.
    pub entries: BTreeMap<Key, Value>,
    /// Places of the Service's beside its own addresses, as [`Key::place`] says them: where a load balancer leads to it, or API
    /// servers are. They are no other's who only says so himself.
    pub places: BTreeSet<Key>,
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
    pub at: Vec<(IpAddr, u16)>,
    /// Port of the nodes.
    pub node_port: Option<u16>,
    /// Endpoints that serve, ready or not.
    pub serving: Vec<(IpAddr, u16)>,
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
    pub(crate) fn service(map: Map, address: IpAddr, protocol: Protocol, port: u16) -> Self {
        let address = octets(address);
        Self {
            map,
            bytes: [&address[..], &protocol.field(), &port_field(port)].concat(),
        }
    }

    pub(crate) fn node_port(map: Map, protocol: Protocol, port: u16) -> Self {
        Self {
            map,
            bytes: [protocol.field(), port_field(port)].concat(),
        }
    }

    pub(crate) fn endpoint(address: IpAddr, protocol: Protocol, port: u16, number: u32) -> Self {
        // The kernel draws numbers in this machine's byte order.
        let place = Self::service(Map::Endpoints, address, protocol, port);
        Self {
            bytes: [&place.bytes[..], &number.to_ne_bytes()].concat(),
            ..place
        }
    }

    pub(crate) fn hairpin(address: IpAddr) -> Self {
        Self {
            map: Map::Hairpin,
            bytes: octets(address).repeat(2),
        }
    }

    /// The element that says that an address is a Service's own.
    #[must_use]
    pub fn cluster_address(address: IpAddr) -> Self {
        Self {
            map: Map::ClusterAddresses,
            bytes: octets(address),
        }
    }

    /// The address that an element is about, if it is about one at which a Service is reached.
    #[must_use]
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        let reached = REACHED.contains(&self.map);
        family.read(&self.bytes).filter(|_| reached)
    }

    /// The address, protocol and port that an element is about, if it is about one at which a Service is reached.
    #[must_use]
    pub fn place(&self, family: Family) -> Option<Self> {
        let length = family.bytes() + 8;
        let bytes = self.bytes.get(..length)?.to_vec();
        REACHED.contains(&self.map).then_some(Self {
            map: Map::Services,
            bytes,
        })
    }

    /// All elements about an address at which Services are reached.
    #[must_use]
    pub fn all_at(address: IpAddr) -> [RangeInclusive<Self>; 3] {
        REACHED.map(|map| {
            let key = |rest: &[u8]| Self {
                map,
                bytes: [&octets(address)[..], rest].concat(),
            };
            key(&[])..=key(&[u8::MAX; 16])
        })
    }
}

/// Maps whose elements begin with an address at which a Service is reached.
const REACHED: [Map; 3] = [Map::Endpoints, Map::Services, Map::Refused];

impl Plan {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::nothing(self.family)
    }

    /// One that says nothing.
    #[must_use]
    pub fn nothing(family: Family) -> Self {
        Self {
            family,
            ..Self::default()
        }
    }

    /// The Service's own addresses: those that no other has.
    #[must_use]
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let own = self
            .entries
            .keys()
            .filter(|key| key.map == Map::ClusterAddresses);
        own.filter_map(|key| self.family.read(&key.bytes)).collect()
    }
}

impl Value {
    /// An endpoint's fields, each padded to four bytes.
    #[must_use]
    pub fn endpoint_fields(address: IpAddr, port: u16) -> Vec<u8> {
        [&octets(address)[..], &port_field(port)].concat()
    }
}
