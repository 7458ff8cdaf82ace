//! Addresses that a machine answers for on its link, as a neighbour sees them.

use super::*;
use crate::announce::{Announcer, withdraw};
use davit_net::route::{Netlink, Pair};

const NEAR: &str = "198.51.100.200";
const NEAR_SIX: &str = "2001:db8:5::200";

/// A link with a neighbour, whose network the addresses are of.
fn neighbour() -> Namespace {
    let namespace = Namespace::new();
    let there = File::open(&namespace.path).unwrap();
    let pair = Pair {
        name: "lan0",
        alias: "to a neighbour",
        peer: "lan1",
        namespace: there.as_fd(),
        mtu: 1500,
    };
    let mut netlink = Netlink::open().unwrap();
    netlink.add_pair(&pair).unwrap();
    let set = |device: &str, addresses: [&str; 2]| {
        for address in addresses {
            let words = ["address", "add", address, "dev", device];
            let mut ip = std::process::Command::new("ip");
            ip.args(words)
                .args(["nodad"].iter().filter(|_| address.contains(':')));
            assert!(ip.status().unwrap().success(), "{words:?}");
        }
    };
    set("lan0", ["198.51.100.10/24", "2001:db8:5::10/64"]);
    namespace.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let link = netlink.link("lan1").unwrap().unwrap();
        netlink.set_up(&link).unwrap();
        set("lan1", ["198.51.100.50/24", "2001:db8:5::50/64"]);
    });
    namespace
}

#[test]
fn neighbours_are_answered_and_led_to_services_alone() {
    if std::process::Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: no ip(8)");
        return;
    }
    alone(|| {
        let machine = Machine::new();
        let client = neighbour();
        let pod = machine.pod("a", vec![]);
        listen(&pod, "a");
        let ingress = json!({ "loadBalancer": { "ingress": [{ "ip": NEAR, "ipMode": "VIP" }] } });
        let mut balanced = service(json!({ "type": "LoadBalancer" }));
        balanced["status"] = ingress;
        machine.serve(balanced, on(&[&pod]));
        // What listens on the machine, at all of its addresses.
        let listener = TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, 22)).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // a client that has gone reads nothing
                let _ = write!(stream, "machine -");
            }
        });
        let reach = |to: &str, port| {
            let to: IpAddr = to.parse().unwrap();
            client.within(|| ask(to, port, SILENCE).map(|answer| answer.0))
        };
        let announcer = || Announcer::new(machine.dir.path(), machine.tables.clone());
        let all = [NEAR, NEAR_SIX, "203.0.113.9"].map(|text| text.parse().unwrap());
        std::fs::create_dir_all(machine.dir.path().join("network")).unwrap();
        let before = reach(NEAR, 80);
        assert!(
            before.is_err(),
            "{before:?} {}",
            client.within(|| String::from_utf8(
                std::process::Command::new("sh")
                    .args(["-c", "ip neigh; ip route; ip addr"])
                    .output()
                    .unwrap()
                    .stdout
            )
            .unwrap())
        );
        let not = announcer().write(&all.into()).unwrap();
        assert_eq!(not.len(), 1, "of no network of the machine: {not:?}");
        assert_eq!(reach(NEAR, 80), Ok("a".to_owned()));
        assert_eq!(reach("198.51.100.10", 22), Ok("machine".to_owned()));
        assert_eq!(reach("2001:db8:5::10", 22), Ok("machine".to_owned()));
        for address in [NEAR, NEAR_SIX] {
            let refused = Err(ErrorKind::ConnectionRefused);
            assert_eq!(reach(address, 22), refused, "{address}");
        }
        // What this machine sends does not come from there.
        for (to, own) in [
            ("198.51.100.50:9", "198.51.100.10"),
            ("[2001:db8:5::50]:9", "2001:db8:5::10"),
        ] {
            let socket = UdpSocket::bind(if to.starts_with('[') {
                "[::]:0"
            } else {
                "0.0.0.0:0"
            });
            let socket = socket.unwrap();
            socket.connect(to).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip().to_string(), own);
        }
        // Another run finds what the first has left.
        let one = [NEAR_SIX.parse().unwrap()].into();
        assert!(announcer().write(&one).unwrap().is_empty());
        client.within(|| {
            let flush = ["neigh", "flush", "dev", "lan1"];
            let done = std::process::Command::new("ip").args(flush).status();
            assert!(done.unwrap().success());
        });
        assert!(reach(NEAR, 80).is_err());
        assert_eq!(reach(NEAR_SIX, 22), Err(ErrorKind::ConnectionRefused));
        withdraw(machine.dir.path()).unwrap();
        let left = Netlink::open().unwrap().all_addresses().unwrap();
        assert!(
            left.iter().all(|(address, _)| !all.contains(address)),
            "{left:?}"
        );
    });
}
