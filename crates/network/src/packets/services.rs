//! Services as clients outside of the cluster reach them, and policies that keep to endpoints of the node (spec network.md,
//! checklist 29 to 36).

use super::*;
use davit_net::route::{Link, Netlink, Pair, Route};

pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 50));
/// The machine's address on the client's network.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const BALANCED: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7));

/// What is asked at an address of the node, of a load balancer, or another external one.
const DOORS: [(IpAddr, u16); 2] = [(OWN, 30080), (BALANCED, 80)];

fn way(to: IpAddr, bits: u8, link: Option<Link>, via: Option<IpAddr>) -> Route {
    Route {
        to,
        bits,
        link,
        via,
        source: None,
        protocol: crate::pods::PROTOCOL,
        metric: 0,
        on_link: false,
    }
}

/// Another machine, which reaches everything by this one.
pub(super) fn outside() -> Namespace {
    outside_of(NEAR, CLIENT)
}

/// As [`outside`], with these addresses of the two ends of the link.
pub(super) fn outside_of(near: IpAddr, client: IpAddr) -> Namespace {
    let bits = Family::of(client).bits();
    let any = Family::of(client).unspecified();
    let namespace = Namespace::new();
    let there = File::open(&namespace.path).unwrap();
    let mut netlink = Netlink::open().unwrap();
    let pair = Pair {
        name: "out0",
        alias: "the client's machine",
        peer: "eth0",
        namespace: there.as_fd(),
        mtu: 1500,
    };
    netlink.add_pair(&pair).unwrap();
    let link = netlink.link("out0").unwrap().unwrap();
    netlink.add_host_address(&link, near).unwrap();
    // All other addresses are over there as well, as they are for machines with a way out.
    for (to, bits) in [(client, bits), (any, 0)] {
        netlink.set_route(&way(to, bits, Some(link), None)).unwrap();
    }
    namespace.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let link = netlink.link("eth0").unwrap().unwrap();
        netlink.set_up(&link).unwrap();
        netlink.add_host_address(&link, client).unwrap();
        netlink
            .set_route(&way(near, bits, Some(link), None))
            .unwrap();
        let all = way(any, 0, None, Some(near));
        netlink.set_route(&all).unwrap();
    });
    namespace
}

fn balanced(more: Json) -> Json {
    let mut spec = json!({ "type": "LoadBalancer" });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let mut service = service(spec);
    service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": BALANCED }] } });
    service
}

fn elsewhere(pod: &Pod) -> Json {
    json!([{ "addresses": [pod.address], "nodeName": "n2", "conditions": { "ready": true } }])
}

#[test]
fn who_comes_from_outside() {
    alone(|| {
        let machine = Machine::new();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        listen(&a, "a");
        let client = outside();
        let seen = |(to, port)| client.within(|| ask(to, port, PATIENCE));
        let silent = |(to, port)| client.within(|| ask(to, port, SILENCE));
        let server = |pod: &Pod, (to, port)| from(pod, to, port).map(|answer| answer.0);

        // The node stands for the client, so that answers come back this way.
        machine.serve(balanced(json!({})), on(&[&a]));
        for door in DOORS {
            let (server, source) = seen(door).unwrap();
            assert_eq!(server, "a");
            assert_ne!(source, CLIENT.to_string(), "{door:?}");
        }
        // Endpoints here are told who it is.
        let local = || balanced(json!({ "externalTrafficPolicy": "Local" }));
        machine.serve(local(), on(&[&a]));
        for door in DOORS {
            assert_eq!(seen(door), Ok(("a".to_owned(), CLIENT.to_string())));
        }
        // Elsewhere is nowhere, but for pods and the node itself.
        machine.serve(local(), elsewhere(&a));
        for door in DOORS {
            assert_eq!(silent(door), Err(ErrorKind::TimedOut), "{door:?}");
            assert_eq!(server(&b, door).as_deref(), Ok("a"));
            assert_eq!(ask(door.0, door.1, PATIENCE).unwrap().0, "a");
        }
        // Whoever has an address of pods that others connect is no stranger.
        let seen_so = Seen {
            foreign: ["198.51.100.0/24".parse().unwrap()].into(),
            ..super::seen()
        };
        node::write_sets(&machine.tables, &seen_so).unwrap();
        for door in DOORS {
            assert_eq!(seen(door).unwrap().0, "a", "{door:?}");
        }
        node::write_sets(&machine.tables, &super::seen()).unwrap();
        // Nobody anywhere is said at once.
        machine.serve(local(), json!([]));
        for door in DOORS {
            assert_eq!(seen(door), Err(ErrorKind::ConnectionRefused), "{door:?}");
        }
    });
}

#[test]
fn cluster_addresses_that_keep_to_the_node() {
    alone(|| {
        let machine = Machine::new();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        listen(&a, "a");
        let local = || service(json!({ "internalTrafficPolicy": "Local" }));
        machine.serve(local(), on(&[&a]));
        assert_eq!(from(&b, VIRTUAL, 80).unwrap().0, "a");
        machine.serve(local(), elsewhere(&a));
        let silent = b.namespace.within(|| ask(VIRTUAL, 80, SILENCE));
        assert_eq!(silent, Err(ErrorKind::TimedOut));
        assert_eq!(ask(VIRTUAL, 80, SILENCE), Err(ErrorKind::TimedOut));
    });
}

#[test]
fn load_balancers_let_in_whom_they_name() {
    alone(|| {
        let machine = Machine::new();
        let a = machine.pod("a", vec![]);
        listen(&a, "a");
        let client = outside();
        let within = |(to, port), patience| client.within(|| ask(to, port, patience));
        let seen = |door| within(door, PATIENCE);
        let [node_port, balancer] = DOORS;
        for (range, let_in) in [
            (" 198.51.100.0/24", true),
            ("192.0.2.0/24", false),
            ("fd00::/8", false),
        ] {
            let named = balanced(json!({ "loadBalancerSourceRanges": [range] }));
            machine.serve(named, on(&[&a]));
            let patience = if let_in { PATIENCE } else { SILENCE };
            assert_eq!(within(balancer, patience).is_ok(), let_in, "{range}");
            assert_eq!(seen(node_port).unwrap().0, "a", "the node's port is open");
        }
        // A load balancer that wants the packets itself, and an external address.
        let mut other = service(json!({ "externalIPs": ["203.0.113.250"] }));
        other["status"] =
            json!({ "loadBalancer": { "ingress": [{ "ip": BALANCED, "ipMode": "Proxy" }] } });
        machine.serve(other, on(&[&a]));
        assert!(within(balancer, SILENCE).is_err());
        let external = "203.0.113.250".parse().unwrap();
        assert_eq!(seen((external, 80)).unwrap().0, "a");
        assert_eq!(from(&a, external, 80).unwrap().0, "a", "to itself");
    });
}
