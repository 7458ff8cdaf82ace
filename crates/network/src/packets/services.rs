//! Services as clients outside of the cluster reach them, and policies that keep to endpoints of the node (spec network.md,
//! checklist 29 to 36).

use super::*;
use davit_net::route::{Link, Netlink, Pair, Route};

pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 50));
/// The machine's address on the client's network.
const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// A cluster of one family, and a client outside of it.
struct World {
    machine: Machine,
    ruleset: Arc<Ruleset>,
    seen: Seen,
    own: IpAddr,
    cluster_ip: IpAddr,
    /// An address of a load balancer, and another external one.
    balanced: IpAddr,
    external: IpAddr,
    /// The client, the machine's address on its network, and that network.
    client: IpAddr,
    near: IpAddr,
    around: &'static str,
    /// A range of others, and one of the other family.
    others: [&'static str; 2],
}

/// Does the same in a cluster of IPv4 and in one of IPv6, each on a machine of its own.
fn in_each_family(test: impl Fn(&World) + Copy + Send + 'static) {
    alone(move || {
        let machine = Machine::new();
        test(&World {
            ruleset: machine.ruleset.clone(),
            machine,
            seen: seen(),
            own: OWN,
            cluster_ip: VIRTUAL,
            balanced: IpAddr::from([203, 0, 113, 7]),
            external: IpAddr::from([203, 0, 113, 250]),
            client: CLIENT,
            near: NEAR,
            around: "198.51.100.0/24",
            others: ["192.0.2.0/24", "fd00::/8"],
        });
    });
    alone(move || {
        let own = ["fd00:10:244::/64"];
        let Some(machine) = dual::dual(&own) else {
            return;
        };
        let six = |text: &str| text.parse().unwrap();
        test(&World {
            ruleset: machine.tables.of(Family::V6).unwrap(),
            machine,
            seen: dual::seen_of(&own),
            own: six("2001:db8::10"),
            cluster_ip: six("fd00:10:96::9"),
            balanced: six("2001:db8:7::7"),
            external: six("2001:db8:7::250"),
            client: six("2001:db8:1::50"),
            near: six("2001:db8:1::1"),
            around: "2001:db8:1::/64",
            others: ["2001:db8:2::/64", "10.0.0.0/8"],
        });
    });
}

impl World {
    /// What is asked at an address of the node, of a load balancer, or another external one.
    fn doors(&self) -> [(IpAddr, u16); 2] {
        [(self.own, 30080), (self.balanced, 80)]
    }

    fn service(&self, more: Json) -> Json {
        let mut service = service(more);
        service["spec"]["clusterIP"] = json!(self.cluster_ip);
        service["spec"]["clusterIPs"] = json!([self.cluster_ip]);
        service
    }

    fn balanced(&self, more: Json) -> Json {
        let mut service = self.service(more);
        service["spec"]["type"] = json!("LoadBalancer");
        service["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": self.balanced }] } });
        service
    }

    fn serve(&self, service: Json, endpoints: Json) {
        self.machine.serve_in(&self.ruleset, service, endpoints);
    }

    /// A pod that answers with its name.
    fn server(&self, name: &'static str) -> Pod {
        let pod = self.machine.pod(name, vec![]);
        listen_at(&pod, pod.address, name);
        pod
    }
}

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

fn elsewhere(pod: &Pod) -> Json {
    json!([{ "addresses": [pod.address], "nodeName": "n2", "conditions": { "ready": true } }])
}

#[test]
fn who_comes_from_outside() {
    in_each_family(|world| {
        let a = world.server("a");
        let b = world.machine.pod("b", vec![]);
        let client = outside_of(world.near, world.client);
        let seen = |(to, port)| client.within(|| ask(to, port, PATIENCE));
        let silent = |(to, port)| client.within(|| ask(to, port, SILENCE));
        let server = |pod: &Pod, (to, port)| from(pod, to, port).map(|answer| answer.0);

        // The node stands for the client, so that answers come back this way.
        world.serve(world.balanced(json!({})), on(&[&a]));
        for door in world.doors() {
            let (server, source) = seen(door).unwrap();
            assert_eq!(server, "a");
            assert_ne!(source, world.client.to_string(), "{door:?}");
        }
        // Endpoints here are told who it is.
        let local = || world.balanced(json!({ "externalTrafficPolicy": "Local" }));
        world.serve(local(), on(&[&a]));
        for door in world.doors() {
            assert_eq!(seen(door), Ok(("a".to_owned(), world.client.to_string())));
        }
        // Elsewhere is nowhere, but for pods and the node itself.
        world.serve(local(), elsewhere(&a));
        for door in world.doors() {
            assert_eq!(silent(door), Err(ErrorKind::TimedOut), "{door:?}");
            assert_eq!(server(&b, door).as_deref(), Ok("a"));
            assert_eq!(ask(door.0, door.1, PATIENCE).unwrap().0, "a");
        }
        // Whoever has an address of pods that others connect is no stranger.
        let seen_so = Seen {
            foreign: [world.around.parse().unwrap()].into(),
            ..world.seen.clone()
        };
        node::write_sets(&world.machine.tables, &seen_so).unwrap();
        for door in world.doors() {
            assert_eq!(seen(door).unwrap().0, "a", "{door:?}");
        }
        node::write_sets(&world.machine.tables, &world.seen).unwrap();
        // Nobody anywhere is said at once.
        world.serve(local(), json!([]));
        for door in world.doors() {
            assert_eq!(seen(door), Err(ErrorKind::ConnectionRefused), "{door:?}");
        }
    });
}

#[test]
fn cluster_addresses_that_keep_to_the_node() {
    in_each_family(|world| {
        let a = world.server("a");
        let b = world.machine.pod("b", vec![]);
        let local = || world.service(json!({ "internalTrafficPolicy": "Local" }));
        world.serve(local(), on(&[&a]));
        assert_eq!(from(&b, world.cluster_ip, 80).unwrap().0, "a");
        world.serve(local(), elsewhere(&a));
        let silent = b.namespace.within(|| ask(world.cluster_ip, 80, SILENCE));
        assert_eq!(silent, Err(ErrorKind::TimedOut));
        let here = ask(world.cluster_ip, 80, SILENCE);
        assert_eq!(here, Err(ErrorKind::TimedOut));
    });
}

#[test]
fn load_balancers_let_in_whom_they_name() {
    in_each_family(|world| {
        let a = world.server("a");
        let client = outside_of(world.near, world.client);
        let within = |(to, port), patience| client.within(|| ask(to, port, patience));
        let seen = |door| within(door, PATIENCE);
        let [node_port, balancer] = world.doors();
        let [other, other_family] = world.others.map(str::to_owned);
        for (range, let_in) in [
            (format!(" {}", world.around), true),
            (other, false),
            (other_family, false),
        ] {
            let named = world.balanced(json!({ "loadBalancerSourceRanges": [range] }));
            world.serve(named, on(&[&a]));
            let patience = if let_in { PATIENCE } else { SILENCE };
            assert_eq!(within(balancer, patience).is_ok(), let_in, "{range}");
            assert_eq!(seen(node_port).unwrap().0, "a", "the node's port is open");
        }
        // A load balancer that wants the packets itself, and an external address.
        let mut other = world.service(json!({ "externalIPs": [world.external] }));
        other["status"] =
            json!({ "loadBalancer": { "ingress": [{ "ip": world.balanced, "ipMode": "Proxy" }] } });
        world.serve(other, on(&[&a]));
        assert!(within(balancer, SILENCE).is_err());
        assert_eq!(seen((world.external, 80)).unwrap().0, "a");
        let itself = from(&a, world.external, 80);
        assert_eq!(itself.unwrap().0, "a", "to itself");
    });
}

/// Items 24 and 40: how often each endpoint is chosen, and which ones are.
#[test]
fn which_endpoints_there_are() {
    in_each_family(|world| {
        let [a, b] = ["a", "b"].map(|name| world.server(name));
        let client = world.machine.pod("c", vec![]);
        world.serve(world.service(json!({})), on(&[&a, &b]));
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..200 {
            let server = from(&client, world.cluster_ip, 80).unwrap().0;
            *count.entry(server).or_default() += 1;
        }
        assert!(
            count.len() == 2 && count.values().all(|n| *n > 50),
            "{count:?}"
        );
        let endpoint = |pod: &Pod, ready: bool, serving: bool| {
            let conditions = json!({ "ready": ready, "serving": serving, "terminating": !ready });
            json!({ "addresses": [pod.address], "nodeName": "n1", "conditions": conditions })
        };
        let only_a = |endpoints: Json| {
            world.serve(world.service(json!({})), endpoints);
            for _ in 0..20 {
                assert_eq!(from(&client, world.cluster_ip, 80).unwrap().0, "a");
            }
        };
        only_a(json!([endpoint(&a, true, true), endpoint(&b, false, true)]));
        only_a(json!([
            endpoint(&a, false, true),
            endpoint(&b, false, false)
        ]));
    });
}
