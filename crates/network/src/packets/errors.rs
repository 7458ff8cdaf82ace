//! Errors by ICMP quote a connection and belong to it: who is no end of that connection says nothing by them.

use super::dual::{BOTH, dual};
use super::policy::fails;
use super::*;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

const PORT: u16 = 9000;

fn family_of(address: IpAddr) -> (AddressFamily, SockProtocol) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    }
}

/// A socket for messages of ICMP; the kernel writes the checksums of ICMPv6.
fn messages(pod: &Pod, of: IpAddr) -> UdpSocket {
    let (family, protocol) = family_of(of);
    let socket: UdpSocket = pod.namespace.within(|| {
        let kind = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
        socket(family, kind.0, kind.1, protocol).unwrap().into()
    });
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    socket
}

/// What answers a datagram that nobody takes, as whoever knows the ends of the connection can write it, with a word in it.
fn unreachable(sent: [SocketAddr; 2]) -> Vec<u8> {
    let word = b"a word for somebody else";
    let udp = u16::try_from(8 + word.len()).unwrap();
    let (mut message, mut quoted) = match sent[0].ip() {
        IpAddr::V4(_) => (vec![3, 3], vec![0x45, 0]),
        IpAddr::V6(_) => (vec![1, 4], vec![0x60, 0, 0, 0]),
    };
    message.resize(8, 0);
    if sent[0].is_ipv4() {
        quoted.extend((20 + udp).to_be_bytes());
        quoted.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    } else {
        quoted.extend(udp.to_be_bytes());
        quoted.extend([17, 64]);
    }
    for end in sent {
        quoted.extend(davit_netplan::octets(end.ip()));
    }
    if sent[0].is_ipv4() {
        let sum = checksum(&quoted);
        quoted[10..12].copy_from_slice(&sum);
    }
    for number in [sent[0].port(), sent[1].port(), udp, 0] {
        quoted.extend(number.to_be_bytes());
    }
    quoted.extend(word);
    message.extend(quoted);
    if sent[0].is_ipv4() {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum);
    }
    message
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2);
    let words =
        words.map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

/// The error with the word comes.
fn hears(by: &UdpSocket) -> bool {
    let mut message = [0; 512];
    while let Ok((length, _)) = by.recv_from(&mut message) {
        if message[..length].ends_with(b"somebody else") {
            return true;
        }
    }
    false
}

/// A client's socket and a server's, between which datagrams have gone both ways.
fn talk(client: &Pod, server: &Pod, at: IpAddr) -> [UdpSocket; 2] {
    let bind = |pod: &Pod, port| {
        let any = match at {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        };
        let socket = pod
            .namespace
            .within(|| UdpSocket::bind((any, port)).unwrap());
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let (near, far) = (bind(client, 0), bind(server, PORT));
    near.connect((at, PORT)).unwrap();
    near.send(b"x").unwrap();
    let (_, from) = far.recv_from(&mut [0; 8]).unwrap();
    far.send_to(b"y", from).unwrap();
    near.recv(&mut [0; 8]).unwrap();
    [near, far]
}

#[test]
fn errors_about_connections_of_others_are_no_way_past_policies() {
    alone(|| {
        let machine = dual(&BOTH).unwrap_or_else(Machine::new);
        let [a, b, c] = ["a", "b", "c"].map(|name| machine.pod(name, vec![]));
        let isolated = |direction: &str, pod: &str| json!({ "podSelector": { "matchLabels": { "app": pod } }, "policyTypes": [direction] });
        let policies = [isolated("Egress", "b"), isolated("Ingress", "c")];
        for number in 0..a.addresses.len() {
            let [client, server] = [&c, &a].map(|pod| pod.addresses[number]);
            machine.judge(&[]);
            let talking = talk(&c, &a, server);
            machine.judge(&policies);
            let ends = [talking[0].local_addr().unwrap(), (server, PORT).into()];
            let receivers = [messages(&c, client), messages(&a, server)];
            // To each end, about what that end has sent.
            for (receiver, ends) in receivers.iter().zip([ends, [ends[1], ends[0]]]) {
                let say = |by: &Pod| {
                    messages(by, server)
                        .send_to(&unreachable(ends), (ends[0].ip(), 0))
                        .unwrap();
                };
                say(&b);
                assert!(!hears(receiver), "{ends:?}: of an isolated pod");
                // The other end says so as it likes.
                say(if ends[0].ip() == client { &a } else { &c });
                assert!(hears(receiver), "{ends:?}: of the other end");
            }
        }
        machine.judge(&policies);
        listen(&a, "a");
        fails(&b, a.address, 8080);
    });
}
