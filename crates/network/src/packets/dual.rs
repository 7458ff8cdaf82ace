//! A machine whose pods have addresses of both families, or of IPv6 alone (spec network.md, checklist 37, 54, 70, 71, 103; items 24 and 29 to 40 are in `services`).

use super::policy::fails;
use super::*;
use std::net::Ipv6Addr;
use std::time::Instant;

const OWN_SIX: &str = "2001:db8::10";
const VIRTUAL_SIX: &str = "fd00:10:96::9";

fn six(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// What the machine knows of a cluster with these ranges of pods.
pub(super) fn seen_of(own: &[&str]) -> Seen {
    Seen {
        own: own.iter().map(|range| range.parse().unwrap()).collect(),
        addresses: [OWN, six(OWN_SIX)].into(),
        services: ["10.96.0.0/16", "fd00:10:96::/112"]
            .map(|range| range.parse().unwrap())
            .into(),
        ..Seen::default()
    }
}

/// A machine for both families; none where the kernel has no IPv6.
pub(super) fn dual(own: &[&str]) -> Option<Machine> {
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        eprintln!("skipped: no IPv6");
        return None;
    }
    Some(Machine::that_sees(&seen_of(own)))
}

pub(super) const BOTH: [&str; 2] = ["10.244.0.0/24", "fd00:10:244::/64"];

fn service_of_six(more: Json) -> Json {
    let mut service = service(more);
    service["spec"]["clusterIP"] = json!(VIRTUAL_SIX);
    service["spec"]["clusterIPs"] = json!([VIRTUAL_SIX]);
    service
}

fn on_six(pods: &[&Pod]) -> Json {
    let of = |pod: &&Pod| {
        let address = pod.addresses.iter().find(|address| address.is_ipv6());
        json!({ "addresses": [address], "nodeName": "n1", "conditions": { "ready": true } })
    };
    pods.iter().map(of).collect()
}

pub(super) fn address_of_six(pod: &Pod) -> IpAddr {
    *pod.addresses
        .iter()
        .find(|address| address.is_ipv6())
        .unwrap()
}

#[test]
fn pods_and_services_of_both_families() {
    alone(|| {
        let Some(machine) = dual(&BOTH) else { return };
        let started = Instant::now();
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        listen(&b, "b4");
        listen_at(&b, address_of_six(&b), "b6");
        assert_eq!(a.addresses.len(), 2);
        let (to, client) = (address_of_six(&b), address_of_six(&a).to_string());
        assert_eq!(from(&a, to, 8080), Ok(("b6".to_owned(), client.clone())));
        // detection of duplicates would take a second for each
        assert!(
            started.elapsed() < Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b4");
        assert_eq!(ask(to, 8080, PATIENCE).unwrap().0, "b6", "from the machine");

        let table = machine.tables.of(Family::V6).unwrap();
        machine.serve(service(json!({})), on(&[&b]));
        machine.serve_in(&table, service_of_six(json!({})), on_six(&[&b]));
        let virtual_six = six(VIRTUAL_SIX);
        assert_eq!(from(&a, virtual_six, 80), Ok(("b6".to_owned(), client)));
        assert_eq!(from(&a, VIRTUAL, 80).unwrap().0, "b4");
        let gateway = "fd00:10:244::1".to_owned();
        assert_eq!(
            from(&b, virtual_six, 80),
            Ok(("b6".to_owned(), gateway)),
            "to itself"
        );
        assert_eq!(ask(virtual_six, 80, PATIENCE).unwrap().0, "b6");
        assert_eq!(ask(six(OWN_SIX), 30080, PATIENCE).unwrap().0, "b6");
        assert_eq!(from(&a, six(OWN_SIX), 30080).unwrap().0, "b6");
        // Undefined port, nobody behind it, no Service.
        assert_eq!(from(&a, virtual_six, 81), Err(ErrorKind::ConnectionRefused));
        machine.serve_in(&table, service_of_six(json!({})), json!([]));
        for to in [(virtual_six, 80), (six(OWN_SIX), 30080)] {
            assert_eq!(from(&a, to.0, to.1), Err(ErrorKind::ConnectionRefused));
        }
        let nobody = a
            .namespace
            .within(|| ask(six("fd00:10:96::7:7"), 80, SILENCE));
        assert_eq!(nobody, Err(ErrorKind::TimedOut));
    });
}

#[test]
fn clients_of_six_keep_their_endpoints() {
    alone(|| {
        let Some(machine) = dual(&["fd00:10:244::/64"]) else {
            return;
        };
        let (a, b) = (machine.pod("a", vec![]), machine.pod("b", vec![]));
        let client = machine.pod("c", vec![]);
        assert_eq!(client.addresses.len(), 1, "of IPv6 alone");
        for (pod, name) in [(&a, "a"), (&b, "b")] {
            listen_at(pod, pod.address, name);
        }
        let table = machine.tables.of(Family::V6).unwrap();
        let sticky = service_of_six(json!({ "sessionAffinity": "ClientIP" }));
        machine.serve_in(&table, sticky, on_six(&[&a, &b]));
        let first = from(&client, six(VIRTUAL_SIX), 80).unwrap().0;
        for _ in 0..20 {
            assert_eq!(from(&client, six(VIRTUAL_SIX), 80).unwrap().0, first);
        }
        assert_eq!(table.clients().unwrap().len(), 1);
        let mut seen: BTreeSet<String> = BTreeSet::new();
        machine.serve_in(&table, service_of_six(json!({})), on_six(&[&a, &b]));
        for _ in 0..50 {
            seen.insert(from(&client, six(VIRTUAL_SIX), 80).unwrap().0);
        }
        assert_eq!(seen.len(), 2, "both without affinity");
        // The kernel remembers datagrams until it is told to forget.
        let own = client.namespace.within(|| {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(b"x", (six(OWN_SIX), 5353)).unwrap();
            socket.local_addr().unwrap().port()
        });
        let known = davit_net::conntrack::datagrams(IpVersion::Six).unwrap();
        let ours: Vec<_> = known
            .into_iter()
            .filter(|c| c.original.from == (client.address, own))
            .collect();
        assert_eq!(ours.len(), 1);
        davit_net::conntrack::forget(&ours).unwrap();
        let known = davit_net::conntrack::datagrams(IpVersion::Six).unwrap();
        assert!(!known.contains(&ours[0]));
    });
}

#[test]
fn ports_of_the_host_in_both_families() {
    alone(|| {
        let Some(machine) = dual(&BOTH) else { return };
        let mapping = |host_port, host_ip: &str| PortMapping {
            container_port: 8080,
            host_port,
            host_ip: host_ip.to_owned(),
            ..PortMapping::default()
        };
        let ports = vec![mapping(9000, ""), mapping(9001, OWN_SIX)];
        let a = machine.pod("a", ports);
        listen(&a, "a4");
        listen_at(&a, address_of_six(&a), "a6");
        assert_eq!(ask(OWN, 9000, PATIENCE).unwrap().0, "a4");
        assert_eq!(ask(six(OWN_SIX), 9000, PATIENCE).unwrap().0, "a6");
        assert_eq!(ask(six(OWN_SIX), 9001, PATIENCE).unwrap().0, "a6");
        assert_eq!(ask(OWN, 9001, PATIENCE), Err(ErrorKind::ConnectionRefused));
        assert_eq!(from(&a, six(OWN_SIX), 9000).unwrap().0, "a6", "to itself");
        machine.links.detach_here(&a.network).unwrap();
        for ruleset in machine.tables.all() {
            for map in [Map::HostPorts, Map::HostPortsAt, Map::Pods, Map::Ingress] {
                assert!(ruleset.places(map).is_empty(), "{map:?}");
            }
        }
    });
}

#[test]
fn policies_of_both_families() {
    alone(|| {
        let Some(machine) = dual(&BOTH) else { return };
        let [a, b, c] = ["a", "b", "c"].map(|name| machine.pod(name, vec![]));
        listen(&b, "b4");
        listen_at(&b, address_of_six(&b), "b6");
        let to = address_of_six(&b);
        let ingress = |rule: Json| {
            json!({
                "podSelector": { "matchLabels": { "app": "b" } }, "policyTypes": ["Ingress"],
                "ingress": [rule],
            })
        };
        let selected = json!({ "from": [{ "podSelector": { "matchLabels": { "app": "a" } } }] });
        machine.judge(&[ingress(selected)]);
        assert_eq!(from(&a, to, 8080).unwrap().0, "b6");
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b4");
        fails(&c, to, 8080);
        fails(&c, b.address, 8080);
        assert_eq!(ask(to, 8080, PATIENCE).unwrap().0, "b6", "from the machine");
        // A range of one family lets nobody of the other in.
        let (own, other) = (address_of_six(&a), address_of_six(&c));
        let block = json!({ "from": [{ "ipBlock": {
            "cidr": "fd00:10:244::/64", "except": [format!("{other}/128")],
        } }] });
        machine.judge(&[ingress(block)]);
        assert_eq!(from(&a, to, 8080), Ok(("b6".to_owned(), own.to_string())));
        fails(&c, to, 8080);
        fails(&a, b.address, 8080);
        // Who may send nothing at all is found by its neighbour, and answers.
        let late = machine.closed_pod("late", vec![]);
        listen_at(&late, address_of_six(&late), "late");
        let nothing = json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] });
        machine.judge(&[nothing]);
        assert_eq!(
            ask(address_of_six(&late), 8080, PATIENCE).unwrap().0,
            "late"
        );
        fails(&a, to, 8080);
        fails(&late, six(OWN_SIX), 22);
    });
}

#[test]
fn what_pods_send_outside_comes_from_the_machine() {
    alone(|| {
        let Some(machine) = dual(&BOTH) else { return };
        let a = machine.pod("a", vec![]);
        let client = services::outside_of(six("2001:db8:1::1"), six("2001:db8:1::50"));
        let (told, tell) = (mpsc::channel::<IpAddr>(), six("2001:db8:1::50"));
        let (tx, rx) = told;
        client.within(|| {
            let listener = TcpListener::bind((tell, 8080)).unwrap();
            std::thread::spawn(move || {
                let (_, peer) = listener.accept().unwrap();
                let _ = tx.send(peer.ip());
            });
        });
        a.namespace
            .within(|| TcpStream::connect_timeout(&(tell, 8080).into(), PATIENCE).map(drop))
            .unwrap();
        let seen = rx.recv_timeout(PATIENCE).unwrap();
        assert_eq!(seen, six("2001:db8:1::1"));
    });
}
