//! Two machines with a router between them: pods reach one another by the tunnel, and nobody else gets anything into it
//! (spec network.md 5.3, checklist 64, 76).

use super::*;
use crate::ways::{WayOptions, Ways};
use davit_net::route::{Link, Netlink, Pair, Route};

const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const ROUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1)];
const PORT: u16 = 8472;
/// Where pods listen for datagrams.
const DATAGRAMS: u16 = 9000;

/// What each of the two machines sees; the other one, or nobody.
fn seen_by(own: &str, at: IpAddr, other: Option<(&str, IpAddr)>) -> Seen {
    Seen {
        own: vec![own.parse().unwrap()],
        addresses: [at].into(),
        internal: vec![at],
        others: other
            .into_iter()
            .map(|(range, at)| (range.parse().unwrap(), at))
            .collect(),
        services: ["10.96.0.0/16".parse().unwrap()].into(),
        ..Seen::default()
    }
}

fn route(to: Ipv4Addr, bits: u8, link: Link, via: Option<Ipv4Addr>) -> Route {
    Route {
        to: to.into(),
        bits,
        link: Some(link),
        via: via.map(IpAddr::V4),
        source: None,
        protocol: crate::pods::PROTOCOL,
        metric: 0,
        on_link: via.is_some(),
    }
}

/// The link between the router and a machine, by which the machine reaches everything.
fn connect(router: &Namespace, side: usize, machine: Ipv4Addr) {
    let there = File::open(&router.path).unwrap();
    let mut netlink = Netlink::open().unwrap();
    let peer = ["r0", "r1"][side];
    let pair = Pair {
        name: "un0",
        alias: "to the router",
        peer,
        namespace: there.as_fd(),
        mtu: 1500,
    };
    netlink.add_pair(&pair).unwrap();
    let link = netlink.link("un0").unwrap().unwrap();
    netlink.add_host_address(&link, machine.into()).unwrap();
    router.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let link = netlink.link(peer).unwrap().unwrap();
        netlink.set_up(&link).unwrap();
        netlink
            .add_host_address(&link, ROUTER[side].into())
            .unwrap();
        netlink.set_route(&route(machine, 32, link, None)).unwrap();
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    });
    netlink
        .set_route(&route(Ipv4Addr::UNSPECIFIED, 0, link, Some(ROUTER[side])))
        .unwrap();
}

/// A machine, and its ways to the other one.
fn machine(seen: &Seen) -> (Machine, Ways) {
    let machine = Machine::that_sees(seen);
    let ways = Ways::new(WayOptions::default(), machine.tables.clone(), 7);
    (machine, ways)
}

/// Has the ways be there, and all nodes be known.
fn write(machine: &Machine, ways: &Ways, seen: &Seen) {
    node::write_sets(&machine.tables, seen).unwrap();
    let lost = ways.write(&ways.plan(seen).unwrap()).unwrap();
    assert!(lost.is_empty(), "{lost:?}");
}

/// A datagram of one pod to another as it is in the tunnel.
fn tunnelled(from: IpAddr, to: IpAddr) -> Vec<u8> {
    let text = b"hello";
    let udp = u16::try_from(8 + text.len()).unwrap();
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp).to_be_bytes());
    ip.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    for address in [from, to] {
        ip.extend(davit_netplan::octets(address));
    }
    let words = ip
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let mut sum: u32 = words.sum();
    sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let vxlan = [8, 0, 0, 0, 0, 0, 1, 0];
    let [a, b, c, d] = FAR.octets();
    let ethernet = [0xda, 4, a, b, c, d, 0xda, 4, 192, 0, 2, 10, 8, 0];
    let mut all = [&vxlan[..], &ethernet, &ip].concat();
    for number in [5000, DATAGRAMS, udp, 0] {
        all.extend(number.to_be_bytes());
    }
    all.extend(text);
    all
}

/// Sends it as the tunnel would.
fn send(packet: &[u8]) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // what a rule drops on its way out is an error here
    let _ = socket.send_to(packet, (FAR, PORT));
}

fn tunnels() -> Vec<davit_net::route::LinkFacts> {
    let mut links = Netlink::open().unwrap().links().unwrap();
    links.retain(|found| found.name.starts_with("davit."));
    links
}

/// The routes to pods of other nodes. Beside them there is the one to Services, as nothing here has a default route.
fn far_ends() -> usize {
    let mut netlink = Netlink::open().unwrap();
    let routes = netlink.routes().unwrap();
    let services: IpAddr = [10, 96, 0, 0].into();
    let ours = routes.iter().filter(|route| route.metric == 7);
    ours.filter(|route| route.to != services).count()
}

#[test]
fn pods_of_two_networks_reach_one_another_and_strangers_do_not() {
    alone(|| {
        let mut netlink = Netlink::open().unwrap();
        let probe = davit_net::tunnel::VxlanTunnel {
            number: 9,
            port: 1,
            local: OWN,
            at: [2, 0, 0, 0, 0, 1],
        };
        if netlink.add_tunnel("probe", &probe, 1400).is_err() {
            eprintln!("skipped: no VXLAN");
            return;
        }
        netlink.remove_link("probe").unwrap();
        let (near_range, far_range) = ("10.244.0.0/24", "10.244.1.0/24");
        let (router, there) = (Namespace::new(), Namespace::new());
        let near_sees = seen_by(near_range, OWN, Some((far_range, FAR.into())));
        let far_sees = seen_by(far_range, FAR.into(), Some((near_range, OWN)));
        let (near, ways) = machine(&near_sees);
        let IpAddr::V4(own) = OWN else { unreachable!() };
        connect(&router, 0, own);
        write(&near, &ways, &near_sees);
        let a = near.pod("a", vec![]);
        let (far, b, c) = there.within(|| {
            let (far, ways) = machine(&far_sees);
            connect(&router, 1, FAR);
            write(&far, &ways, &far_sees);
            // Again, as after a restart: what stands there stays.
            let before = tunnels();
            assert_eq!(before.len(), 1);
            write(&far, &ways, &far_sees);
            assert_eq!(tunnels(), before);
            let (b, c) = (far.pod("b", vec![]), far.pod("c", vec![]));
            (far, b, c)
        });
        listen(&b, "b");
        listen(&a, "a");
        let (from_a, from_b) = (a.address.to_string(), b.address.to_string());
        assert_eq!(from(&a, b.address, 8080), Ok(("b".to_owned(), from_a)));
        assert_eq!(from(&b, a.address, 8080), Ok(("a".to_owned(), from_b)));
        // The node itself is its gateway there, so that answers come back by the tunnel.
        let gateway = "10.244.0.1".to_owned();
        assert_eq!(
            ask(b.address, 8080, PATIENCE),
            Ok(("b".to_owned(), gateway))
        );

        // What says to be of the tunnel.
        let datagrams = b
            .namespace
            .within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DATAGRAMS)).unwrap());
        let arrives = |sent: &dyn Fn()| {
            datagrams.set_read_timeout(Some(SILENCE)).unwrap();
            sent();
            datagrams.recv_from(&mut [0; 16]).is_ok()
        };
        let as_a = tunnelled(a.address, b.address);
        assert!(arrives(&|| send(&as_a)), "a node is believed");
        assert!(
            !arrives(&|| router.within(|| send(&as_a))),
            "nobody else is"
        );
        assert!(
            !arrives(&|| a.namespace.within(|| send(&as_a))),
            "a pod does not speak as its node"
        );
        let as_c = tunnelled(c.address, b.address);
        assert!(
            !arrives(&|| send(&as_c)),
            "a node does not speak for another's pods"
        );
        assert!(arrives(&|| send(&as_a)), "it still is");

        // A node that has gone.
        assert_eq!(far_ends(), 1);
        let alone = seen_by(near_range, OWN, None);
        write(&near, &ways, &alone);
        assert_eq!((far_ends(), tunnels()), (0, vec![]));
        // A machine that is cleaned up.
        there.within(|| {
            let links = links_of(far.dir.path());
            crate::withdraw(&links, 7, &far_sees.own).unwrap();
            assert_eq!((far_ends(), tunnels()), (0, vec![]));
        });
    });
}

#[test]
fn what_has_the_number_already_is_told_of() {
    alone(|| {
        let far = Some(("10.244.1.0/24", FAR.into()));
        let seen = seen_by("10.244.0.0/24", OWN, far);
        let (machine, ways) = machine(&seen);
        node::write_sets(&machine.tables, &seen).unwrap();
        let mut netlink = Netlink::open().unwrap();
        let other = davit_net::tunnel::VxlanTunnel {
            number: 1,
            port: PORT,
            local: OWN,
            at: [2, 0, 0, 0, 0, 1],
        };
        if netlink.add_tunnel("flannel.1", &other, 1400).is_err() {
            eprintln!("skipped: no VXLAN");
            return;
        }
        let lost = ways.write(&ways.plan(&seen).unwrap()).unwrap();
        let why = &lost[&IpAddr::V4(FAR)];
        assert!(why.contains("something else has number 1"), "{why}");
        assert_eq!(far_ends(), 0, "nothing half done");
        netlink.remove_link("flannel.1").unwrap();
        write(&machine, &ways, &seen);
        assert_eq!(far_ends(), 1, "as soon as it can be had");
    });
}
