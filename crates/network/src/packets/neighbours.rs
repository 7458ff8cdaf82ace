//! What neighbours say of one another (ICMPv6 133 to 137) passes between a pod and its machine, and no further: it would
//! carry whatever a pod writes into it past all policies.

use super::dual::{BOTH, address_of_six, dual};
use super::*;
use davit_net::route::Netlink;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

/// A socket for messages of ICMPv6; the kernel writes their checksums.
fn messages(pod: &Pod) -> UdpSocket {
    pod.namespace.within(|| {
        let protocol = SockProtocol::IcmpV6;
        let kind = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
        socket(AddressFamily::Inet6, kind.0, kind.1, protocol)
            .unwrap()
            .into()
    })
}

/// Sends a message of this kind with a word of the pod's own in it.
fn say(pod: &Pod, kind: u8, to: IpAddr) {
    let mut message = vec![0; 24];
    message[0] = kind;
    message.extend(b"a word");
    messages(pod).send_to(&message, (to, 0)).unwrap();
}

/// The kinds of the messages with a pod's word that have come so far.
fn heard(by: &UdpSocket) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut message = [0; 256];
    while let Ok((length, _)) = by.recv_from(&mut message) {
        if message[..length].ends_with(b"a word") {
            kinds.push(message[0]);
        }
    }
    kinds
}

#[test]
fn what_neighbours_say_is_no_way_past_policies() {
    alone(|| {
        let Some(machine) = dual(&BOTH) else { return };
        let [a, b] = ["a", "b"].map(|name| machine.pod(name, vec![]));
        let to = address_of_six(&a);
        let receiver = messages(&a);
        receiver.set_read_timeout(Some(SILENCE)).unwrap();
        let isolate = |pod: &str, direction: &str| json!({ "podSelector": { "matchLabels": { "app": pod } }, "policyTypes": [direction] });
        let all = 133..=137;

        machine.judge(&[]);
        say(&b, 136, to);
        assert_eq!(heard(&receiver), [136], "where no policy says anything");

        machine.judge(&[isolate("a", "Ingress")]);
        all.clone().for_each(|kind| say(&b, kind, to));
        assert_eq!(heard(&receiver), [0; 0], "to an isolated pod");

        // As somebody else: by that address no policy would know the sender.
        machine.judge(&[isolate("b", "Egress")]);
        b.namespace.within(|| {
            let mut inside = Netlink::open().unwrap();
            let link = inside.link("eth0").unwrap().unwrap();
            let other = "fd00:10:244::77".parse().unwrap();
            inside.add_host_address(&link, other).unwrap();
            inside
                .set_route(&davit_net::route::Route {
                    to,
                    bits: 128,
                    link: Some(link),
                    via: Some("fd00:10:244::1".parse().unwrap()),
                    source: Some(other),
                    protocol: crate::pods::PROTOCOL,
                    metric: 0,
                    on_link: false,
                })
                .unwrap();
        });
        all.for_each(|kind| say(&b, kind, to));
        assert_eq!(heard(&receiver), [0; 0], "from an isolated pod");

        // Neighbours find one another all the same, also when they have forgotten one another.
        machine.judge(&[]);
        listen_at(&b, address_of_six(&b), "b");
        assert_eq!(from(&a, address_of_six(&b), 8080).unwrap().0, "b");
    });
}

/// A device that comes later may be that of somebody's containers, which would tell the machine of ways by themselves.
#[test]
fn routers_are_listened_to_where_they_were_and_nowhere_else() {
    alone(|| {
        let setting = |of: &str| format!("/proc/sys/net/ipv6/conf/{of}/accept_ra");
        if !std::path::Path::new(&setting("default")).exists() {
            eprintln!("skipped: no IPv6");
            return;
        }
        std::fs::write(setting("default"), "1").unwrap();
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        let add = |name: &str, peer: &str| {
            let pair = davit_net::route::Pair {
                name,
                alias: "a way",
                peer,
                namespace: own.as_fd(),
                mtu: 1500,
            };
            Netlink::open().unwrap().add_pair(&pair).unwrap();
        };
        add("old0", "old1");
        let _machine = dual(&BOTH);
        add("new0", "new1");
        let is = |of: &str| std::fs::read_to_string(setting(of)).unwrap();
        assert_eq!((is("old0").trim(), is("new0").trim()), ("2", "1"));
    });
}
