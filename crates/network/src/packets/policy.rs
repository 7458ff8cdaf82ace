//! What network policies do to packets.

use super::*;
use davit_net::route::Netlink;
use std::io::BufRead;

fn deny(direction: &str) -> Json {
    json!({ "podSelector": { "matchLabels": { "app": "b" } }, "policyTypes": [direction] })
}

pub(super) fn fails(pod: &Pod, to: IpAddr, port: u16) {
    let asked = pod.namespace.within(|| ask(to, port, SILENCE));
    assert_eq!(asked, Err(ErrorKind::TimedOut));
}

#[test]
fn who_is_isolated_is_reached_by_those_allowed() {
    alone(|| {
        let machine = Machine::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| machine.pod(name, vec![]));
        listen(&b, "b");
        machine.serve(service(json!({})), on(&[&b]));
        machine.judge(&[deny("Ingress")]);
        for (to, port) in [(b.address, 8080), (VIRTUAL, 80), (OWN, 30080)] {
            fails(&a, to, port);
        }
        assert_eq!(
            ask(b.address, 8080, PATIENCE).unwrap().0,
            "b",
            "from the machine"
        );
        assert_eq!(
            from(&b, VIRTUAL, 80).unwrap().0,
            "b",
            "from itself by a Service"
        );

        let from_a = json!({
            "podSelector": { "matchLabels": { "app": "b" } },
            "ingress": [{
                "from": [{ "podSelector": { "matchLabels": { "app": "a" } } }],
                "ports": [{ "protocol": "TCP", "port": 8000, "endPort": 8100 }],
            }],
        });
        machine.judge(&[deny("Ingress"), from_a.clone()]);
        let client = a.address.to_string();
        for (to, port) in [(b.address, 8080), (VIRTUAL, 80)] {
            let found = from(&a, to, port).unwrap();
            assert_eq!(found, ("b".to_owned(), client.clone()), "the source stays");
            fails(&c, to, port);
        }
        let mut narrow = from_a;
        narrow["ingress"][0]["ports"][0]["endPort"] = json!(8079);
        machine.judge(&[narrow]);
        fails(&a, b.address, 8080);
        machine.judge(&[]);
        assert_eq!(from(&c, b.address, 8080).unwrap().0, "b");
    });
}

#[test]
fn who_may_not_send_reaches_only_what_is_allowed() {
    alone(|| {
        let machine = Machine::new();
        let [a, b] = ["a", "b"].map(|name| machine.pod(name, vec![]));
        listen(&a, "a");
        machine.serve(service(json!({})), on(&[&a]));
        machine.judge(&[deny("Egress")]);
        fails(&b, a.address, 8080);
        fails(&b, VIRTUAL, 80);
        // The node itself is not reached either.
        let listener = TcpListener::bind((OWN, 7000)).unwrap();
        fails(&b, OWN, 7000);
        let block = |except: &[String]| {
            json!({
                "podSelector": { "matchLabels": { "app": "b" } }, "policyTypes": ["Egress"],
                "egress": [{ "to": [{ "ipBlock": { "cidr": "0.0.0.0/0", "except": except } }], "ports": [{ "protocol": "TCP" }] }],
            })
        };
        machine.judge(&[block(&[format!("{OWN}/32")])]);
        assert_eq!(from(&b, VIRTUAL, 80).unwrap().0, "a");
        fails(&b, OWN, 7000);
        machine.judge(&[block(&[format!("{}/32", a.address)])]);
        fails(&b, a.address, 8080);
        fails(&b, VIRTUAL, 80);
        assert!(
            b.namespace
                .within(|| TcpStream::connect_timeout(&(OWN, 7000).into(), PATIENCE))
                .is_ok()
        );
        drop(listener);
    });
}

/// Many peers and many ports of a rule are chains of their own, and a range of many exceptions is cut up.
#[test]
fn large_rules_let_through_what_they_say() {
    alone(|| {
        let machine = Machine::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| machine.pod(name, vec![]));
        listen(&b, "b");
        listen(&a, "a");
        let block = |address: IpAddr| json!({ "ipBlock": { "cidr": format!("{address}/32") } });
        let others: Vec<Json> = (1..=200)
            .map(|n| block(IpAddr::from([192, 0, 2, n])))
            .collect();
        let ports = |last: u16| -> Vec<Json> {
            let ports = (1..=300).chain([last]);
            ports
                .map(|port| json!({ "protocol": "TCP", "port": port }))
                .collect()
        };
        let except: Vec<String> = (1..=100).map(|n| format!("192.0.2.{n}/32")).collect();
        let ingress = |more: &[Json], last| {
            let peers = [&others[..], more].concat();
            json!({
                "podSelector": { "matchLabels": { "app": "b" } },
                "ingress": [{ "from": peers, "ports": ports(last) }],
            })
        };
        machine.judge(&[ingress(&[block(a.address)], 8080)]);
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b");
        fails(&c, b.address, 8080);
        machine.judge(&[ingress(&[block(a.address)], 8081)]);
        fails(&a, b.address, 8080);
        // what is sent is still judged where it arrives
        let range =
            |except: &[String]| json!({ "ipBlock": { "cidr": "0.0.0.0/0", "except": except } });
        let egress = |except: &[String]| {
            json!({
                "podSelector": { "matchLabels": { "app": "b" } }, "policyTypes": ["Egress"],
                "egress": [{ "to": [range(except), block(c.address)], "ports": ports(8080) }],
            })
        };
        let deny_a = json!({ "podSelector": { "matchLabels": { "app": "a" } } });
        machine.judge(&[egress(&except)]);
        assert_eq!(from(&b, a.address, 8080).unwrap().0, "a");
        machine.judge(&[egress(&except), deny_a]);
        fails(&b, a.address, 8080);
        let without_a = [&except[..], &[format!("{}/32", a.address)]].concat();
        machine.judge(&[egress(&without_a)]);
        fails(&b, a.address, 8080);
        machine.judge(&[]);
        assert_eq!(from(&c, b.address, 8080).unwrap().0, "b");
    });
}

#[test]
fn connections_that_stand_go_on() {
    alone(|| {
        let machine = Machine::new();
        let [a, b] = ["a", "b"].map(|name| machine.pod(name, vec![]));
        let listener = b
            .namespace
            .within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).unwrap());
        let to = SocketAddr::from((b.address, 8080));
        let mut client = a
            .namespace
            .within(|| TcpStream::connect_timeout(&to, PATIENCE))
            .unwrap();
        let (server, _) = listener.accept().unwrap();
        machine.judge(&[deny("Ingress"), deny("Egress")]);
        client.write_all(b"still\n").unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = String::new();
        std::io::BufReader::new(server)
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "still\n");
        fails(&a, b.address, 8080);
    });
}

#[test]
fn a_new_pod_is_cut_off_until_it_is_judged() {
    alone(|| {
        let machine = Machine::new();
        let a = machine.pod("a", vec![]);
        let b = machine.closed_pod("b", vec![]);
        listen(&a, "a");
        listen(&b, "b");
        fails(&a, b.address, 8080);
        fails(&b, a.address, 8080);
        assert_eq!(
            ask(b.address, 8080, PATIENCE).unwrap().0,
            "b",
            "from the machine"
        );
        // What was found out before the pod came is not written.
        let pods = machine.links.pods(Family::V4).unwrap();
        let early = machine.ruleset.pods_changed() - 1;
        let judgement = judgement(&PolicyWorld::default(), Family::V4, &pods);
        let judged = machine.ruleset.judge(early, &judgement).unwrap();
        assert!(matches!(judged, Judged::Outdated));
        machine.judge(&[]);
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b");
        // Nothing is left of one that goes.
        machine.links.detach_here(&b.network).unwrap();
        assert_eq!(machine.ruleset.places(Map::Ingress).len(), 1);
        assert_eq!(machine.ruleset.places(Map::Egress).len(), 1);
    });
}

#[test]
fn a_restart_keeps_what_stands_and_leaves_nothing_behind() {
    alone(|| {
        let mut machine = Machine::new();
        let [a, b] = ["a", "b"].map(|name| machine.pod(name, vec![]));
        listen(&b, "b");
        let from_c = json!({
            "podSelector": {}, "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }] }],
        });
        machine.judge(std::slice::from_ref(&from_c));
        let table = davit_net::nft::Table::new("davit-packets", IpVersion::Four);
        let count = || (table.chains().unwrap().len(), table.sets().unwrap().len());
        let before = count();
        let prefix = links_of(machine.dir.path());
        machine.tables = Arc::new(Tables::open("davit-packets", &prefix, None).unwrap());
        machine.ruleset = machine.tables.of(Family::V4).unwrap();
        let pods = machine.dir.path().join("pods");
        machine.links = PodLinks::open(pods, machine.tables.clone()).unwrap();
        fails(&a, b.address, 8080);
        machine.judge(std::slice::from_ref(&from_c));
        fails(&a, b.address, 8080);
        assert_eq!(count(), before);
        machine.judge(&[]);
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b");
        assert_eq!(
            count(),
            (before.0 - 1, before.1 - 1),
            "one chain, one set of peers"
        );

        // Somebody removes the table: nobody is let in until policies are written anew.
        machine.judge(std::slice::from_ref(&from_c));
        machine.ruleset.remove().unwrap();
        assert!(machine.ruleset.restore().unwrap());
        machine.links.enter_all().unwrap();
        fails(&a, b.address, 8080);
        machine.judge(&[]);
        assert_eq!(from(&a, b.address, 8080).unwrap().0, "b");
    });
}

#[test]
fn who_sends_as_somebody_else_gets_nowhere() {
    alone(|| {
        let machine = Machine::new();
        let [a, b] = ["a", "b"].map(|name| machine.pod(name, vec![]));
        let receiver = b
            .namespace
            .within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 5000)).unwrap());
        let other: IpAddr = "10.244.0.77".parse().unwrap();
        let send = |source: IpAddr| {
            a.namespace.within(|| {
                let socket = UdpSocket::bind((source, 0)).unwrap();
                socket.send_to(b"x", (b.address, 5000)).unwrap();
            });
        };
        a.namespace.within(|| {
            let mut inside = Netlink::open().unwrap();
            let link = inside.link("eth0").unwrap().unwrap();
            for address in [other, OWN] {
                inside.add_host_address(&link, address).unwrap();
            }
        });
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        for source in [other, OWN, a.address] {
            send(source);
        }
        let (_, sender) = receiver.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(
            sender.ip(),
            a.address,
            "the first to arrive was the last sent"
        );
    });
}

/// Item 112: those that are forbidden end, in both directions, and only those.
#[test]
fn connections_that_are_forbidden_end() {
    alone(|| {
        let machine = Machine::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| machine.pod(name, vec![]));
        machine.serve(service(json!({})), on(&[&b]));
        let listener = b
            .namespace
            .within(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).unwrap());
        let connect = |to: SocketAddr| {
            let client = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
            let (server, _) = listener.accept().unwrap();
            for end in [&client, &server] {
                end.set_read_timeout(Some(SILENCE)).unwrap();
            }
            (client, server)
        };
        let to = SocketAddr::from((b.address, 8080));
        let direct = a.namespace.within(|| connect(to));
        let by_service = a.namespace.within(|| connect((VIRTUAL, 80).into()));
        let allowed = c.namespace.within(|| connect(to));
        let node = connect(to);
        let is_heard = |mut from: &TcpStream, mut to: &TcpStream| {
            from.write_all(b"x").unwrap();
            to.read(&mut [0; 64]).is_ok()
        };
        let from_c = json!({
            "podSelector": { "matchLabels": { "app": "b" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "c" } } }] }],
        });
        machine.judge(std::slice::from_ref(&from_c));
        for (client, server) in [&direct, &by_service, &allowed, &node] {
            assert!(is_heard(client, server), "policies decide about new ones");
        }
        assert_eq!(machine.end_forbidden(&[from_c]), 2);
        for (client, server) in [&direct, &by_service] {
            assert!(!is_heard(server, client) && !is_heard(client, server));
        }
        for (client, server) in [&allowed, &node] {
            assert!(is_heard(server, client) && is_heard(client, server));
        }
        // What is allowed again goes on, as far as its ends have waited.
        machine.judge(&[]);
        assert_eq!(machine.end_forbidden(&[]), 0);
        direct
            .1
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut rest = [0; 1];
        (&direct.1).read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"x");
    });
}
