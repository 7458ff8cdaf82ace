//! The ways to the pods of other nodes (spec network.md 5.3): by these nodes as routers where they share a network with this
//! one, else by a tunnel (VXLAN). And the way of the machine's own programs to Services where no default route leads anywhere:
//! addresses of Services are exchanged for those of pods on the way out, and without a route there is no way out.
//!
//! What a node's end of the tunnel is called follows from its address, so that nothing but addresses has to be published,
//! and no node can say anything of another's end ([`apart`]).

mod kernel;

use crate::Error;
use crate::failed;
use crate::node::Seen;
use crate::rules::TunnelPort;
use crate::tables::Tables;
use davit_net::route::{Link, LinkFacts, Netlink, Route};
use davit_net::tunnel::{FarEnd, LinkAddress};
use davit_netplan::{Family, Network};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// By what the pods of other nodes are reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NodeRoutes {
    /// By their nodes as routers where these are on a network of this one, else by a tunnel.
    #[default]
    Auto,
    /// By their nodes as routers only.
    HostGateway,
    /// By a tunnel only.
    Vxlan,
    /// By nothing: routes are somebody else's matter.
    None,
}

/// How the pods of other nodes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WayOptions {
    /// By what.
    pub routes: NodeRoutes,
    /// The number of the tunnel's network (VNI, 24 bits); the same on all nodes.
    pub number: u32,
    /// The port of UDP at which nodes receive; the same on all nodes.
    pub port: u16,
}

impl Default for WayOptions {
    fn default() -> Self {
        Self {
            routes: NodeRoutes::Auto,
            number: 1,
            port: 8472,
        }
    }
}

/// The largest packet when no interface says.
const MTU: u32 = 1500;
/// What a tunnel puts before each packet: headers of Ethernet, VXLAN, UDP and IP.
const fn before_packets(family: Family) -> u32 {
    match family {
        Family::V4 => 14 + 8 + 8 + 20,
        Family::V6 => 14 + 8 + 8 + 40,
    }
}

/// What a node's end of the tunnel is called on it: a local address, of IPv4 the node's own in it.
fn end_of(address: IpAddr) -> LinkAddress {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [0xda, 0x04, a, b, c, d]
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, e, ..] = xxhash_rust::xxh3::xxh3_64(&address.octets()).to_be_bytes();
            [0xde, a, b, c, d, e]
        }
    }
}

/// The other ends of a tunnel, and those nodes that cannot have one: of IPv6 a node can look for an address whose end is called
/// as another's, whose packets it would get. Who is known first stays, `local` before all others.
fn apart(local: IpAddr, wanted: &BTreeSet<IpAddr>, known: &[FarEnd]) -> (BTreeSet<FarEnd>, Lost) {
    let mut called: BTreeMap<LinkAddress, IpAddr> = [(end_of(local), local)].into();
    let known = known.iter().map(|(_, at)| at);
    for at in known.filter(|at| wanted.contains(*at)).chain(wanted) {
        called.entry(end_of(*at)).or_insert(*at);
    }
    let is_it = |at: &IpAddr| called.get(&end_of(*at)) == Some(at);
    let (ends, alike): (Vec<IpAddr>, Vec<IpAddr>) = wanted.iter().copied().partition(is_it);
    let why =
        "its end of the tunnel would be called as that of another node; give it another address";
    (
        ends.into_iter().map(|at| (end_of(at), at)).collect(),
        alike.into_iter().map(|at| (at, why.to_owned())).collect(),
    )
}

/// What this machine is connected by.
#[derive(Debug, Default)]
struct MachineLinks {
    addresses: Vec<(Link, IpAddr, u8)>,
    links: Vec<LinkFacts>,
    /// Devices of default routes, and of which families these are.
    out: Vec<(Family, Link)>,
}

impl MachineLinks {
    fn look(netlink: &mut Netlink) -> io::Result<Self> {
        let routes = netlink.routes()?.into_iter();
        let out = routes.filter(|route| route.bits == 0);
        Ok(Self {
            addresses: netlink.placed_addresses()?,
            links: netlink.links()?,
            out: out
                .filter_map(|route| Some((Family::of(route.to), route.link?)))
                .collect(),
        })
    }

    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(_, own, _)| *own == address)
    }

    /// Whether a device of this machine has an address of a network that this one is in.
    fn is_neighbour(&self, address: IpAddr) -> bool {
        let networks = self.addresses.iter();
        let mut networks = networks.filter_map(|(_, own, bits)| Network::around(*own, *bits));
        networks.any(|network| network.contains(address))
    }

    /// The largest packet that every way out takes, and every device by which this node is known.
    fn mtu(&self, node: &[IpAddr]) -> u32 {
        let known = self.addresses.iter();
        let known = known.filter(|(_, address, _)| node.contains(address));
        let ways: Vec<Link> = known.map(|(link, ..)| *link).collect();
        let counts = |found: &&LinkFacts| {
            let is_out = || self.out.iter().any(|(_, link)| *link == found.link);
            found.name != "lo" && (ways.contains(&found.link) || is_out())
        };
        let mtus = self.links.iter().filter(counts).map(|found| found.mtu);
        mtus.min().unwrap_or(MTU)
    }

    /// The device of an address, where no default route of its family leads anywhere.
    fn only_way(&self, address: IpAddr) -> Option<Link> {
        let family = Family::of(address);
        let mut places = self.addresses.iter();
        let (link, ..) = places.find(|(_, own, _)| *own == address)?;
        // The kernel refuses what IPv6 sends to others by it.
        let is_lo = |found: &LinkFacts| found.link == *link && found.name == "lo";
        let leads = family == Family::V4 || !self.links.iter().any(is_lo);
        let is_only = self.out.iter().all(|(of, _)| *of != family);
        (leads && is_only).then_some(*link)
    }
}

/// By which device, and from which address, the machine's own programs send what is for Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ServiceWay {
    range: Network,
    link: Link,
    source: IpAddr,
}

/// A tunnel that is to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TunnelPlan {
    /// The address by which the other nodes know this one.
    local: IpAddr,
    /// What this node is to its pods, and to those at the other ends.
    gateway: IpAddr,
    mtu: u32,
    /// Ranges of pods, and where their nodes are.
    far: Vec<(Network, IpAddr)>,
}

/// Nodes to whose pods there is no way, and why.
pub(crate) type Lost = BTreeMap<IpAddr, String>;

/// The ways that there are to be.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WayPlan {
    /// Ranges of pods of nodes that are routers to them.
    routers: Vec<(Network, IpAddr)>,
    services: Vec<ServiceWay>,
    tunnels: BTreeMap<Family, TunnelPlan>,
    lost: Lost,
    /// The largest packet of a pod that all ways take.
    pub(crate) mtu: u32,
}

/// How the pods of a node are reached.
enum PodWay {
    Router,
    Tunnel,
    /// It is not for this node to make a way, or too early to tell.
    Nothing,
    /// There is no way.
    Lost(&'static str),
}

/// What a node can do for the pods of a family.
struct Means<'a> {
    options: &'a WayOptions,
    around: &'a MachineLinks,
    /// It has pods of the family, and the others know where it is.
    is_known: bool,
    /// Its end of a tunnel: its address, as far as it is on a device of this machine.
    local: Option<IpAddr>,
}

impl Means<'_> {
    fn reach(&self, at: IpAddr) -> PodWay {
        // Another node of this machine: its pods have routes of their own.
        if self.around.has(at) {
            return PodWay::Nothing;
        }
        match (self.options.routes, self.around.is_neighbour(at)) {
            (NodeRoutes::None, _) => PodWay::Nothing,
            (NodeRoutes::Auto | NodeRoutes::HostGateway, true) => PodWay::Router,
            (NodeRoutes::HostGateway, false) => {
                PodWay::Lost("it is on none of this machine's networks")
            }
            (NodeRoutes::Auto | NodeRoutes::Vxlan, _) if !self.is_known => PodWay::Nothing,
            (NodeRoutes::Auto | NodeRoutes::Vxlan, _) if self.local.is_some() => PodWay::Tunnel,
            (NodeRoutes::Auto | NodeRoutes::Vxlan, _) => PodWay::Lost(
                "no device of this machine has the address by which the others know it",
            ),
        }
    }
}

fn plan(options: &WayOptions, seen: &Seen, around: &MachineLinks) -> WayPlan {
    let mut plan = WayPlan {
        mtu: around.mtu(&seen.internal),
        ..WayPlan::default()
    };
    let outside = plan.mtu;
    for family in Family::ALL {
        let mut local = seen.internal.iter().copied();
        let local = local.find(|address| Family::of(*address) == family);
        let own = seen.own.iter().find(|range| range.family() == family);
        let means = Means {
            options,
            around,
            is_known: own.is_some() && !seen.internal.is_empty(),
            local: local.filter(|local| around.has(*local)),
        };
        if options.routes != NodeRoutes::None {
            let sources = [local, own.map(|own| own.gateway())];
            let ways = service_ways(&seen.services, family, around, sources);
            plan.services.extend(ways);
        }
        let mut far = Vec::new();
        let others = seen.others.iter();
        for (range, at) in others.filter(|(range, _)| range.family() == family) {
            match means.reach(*at) {
                PodWay::Router => plan.routers.push((*range, *at)),
                PodWay::Tunnel => far.push((*range, *at)),
                PodWay::Nothing => {}
                PodWay::Lost(why) => drop(plan.lost.insert(*at, why.to_owned())),
            }
        }
        if let Some((local, own)) = means.local.zip(own)
            && (!far.is_empty() || options.routes == NodeRoutes::Vxlan)
        {
            let mtu = outside.saturating_sub(before_packets(family));
            plan.mtu = plan.mtu.min(mtu);
            let tunnel = TunnelPlan {
                local,
                gateway: own.gateway(),
                mtu,
                far,
            };
            plan.tunnels.insert(family, tunnel);
        }
    }
    plan
}

/// The ways to Services of a family, if it has no default route: from the address by which the node is known, if it has it
/// still, else from the gateway of its pods. Who never had a network is known by loopback, at which pods answer nobody.
fn service_ways(
    services: &BTreeSet<Network>,
    family: Family,
    around: &MachineLinks,
    [known, gateway]: [Option<IpAddr>; 2],
) -> Vec<ServiceWay> {
    let outside = known.filter(|known| !known.is_loopback());
    let sources = [outside, gateway, known].into_iter().flatten();
    let mut sources = sources.filter_map(|source| Some((source, around.only_way(source)?)));
    let Some((source, link)) = sources.next() else {
        return Vec::new();
    };
    let ranges = services.iter().filter(|range| range.family() == family);
    let way = |range: &Network| ServiceWay {
        range: *range,
        link,
        source,
    };
    ranges.map(way).collect()
}

/// Makes and keeps ways. Calls block.
#[derive(Debug)]
pub(crate) struct Ways {
    options: WayOptions,
    tables: Arc<Tables>,
    /// Tells our routes from those of other clusters on this machine.
    metric: u32,
}

impl Ways {
    pub(crate) fn new(options: WayOptions, tables: Arc<Tables>, metric: u32) -> Self {
        Self {
            options,
            tables,
            metric,
        }
    }

    /// The ways that are to be there by what is seen.
    pub(crate) fn plan(&self, seen: &Seen) -> Result<WayPlan, Error> {
        let around = Netlink::open().and_then(|mut netlink| MachineLinks::look(&mut netlink));
        let around = around.map_err(failed("what this machine is connected by"))?;
        Ok(plan(&self.options, seen, &around))
    }

    fn port(&self) -> TunnelPort {
        TunnelPort {
            port: self.options.port,
            number: self.options.number,
        }
    }

    /// The route to pods whose node is a router.
    fn by_router(&self, (range, at): (Network, IpAddr)) -> Route {
        Route {
            to: range.first(),
            bits: range.bits(),
            link: None,
            via: Some(at),
            source: None,
            protocol: crate::pods::PROTOCOL,
            metric: self.metric,
            on_link: false,
        }
    }

    /// The route to Services. What becomes of a packet is decided before anybody is asked for at the device.
    fn to_services(&self, way: ServiceWay) -> Route {
        Route {
            to: way.range.first(),
            bits: way.range.bits(),
            link: Some(way.link),
            via: None,
            source: Some(way.source),
            protocol: crate::pods::PROTOCOL,
            metric: self.metric,
            on_link: false,
        }
    }
}

#[cfg(test)]
mod tests;
