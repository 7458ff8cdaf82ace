//! Names of others.

use super::{NODE_IP, Net, STEP, lookup, web};
use crate::harness::eventually;
use std::net::{Ipv4Addr, UdpSocket};

/// Where the name of a question ends.
fn end_of_name(message: &[u8]) -> usize {
    let mut at = 12;
    while message[at] != 0 {
        at += usize::from(message[at]) + 1;
    }
    at + 1
}

/// A name server whose answer to every question for an IPv4 address is this one.
fn name_server(port: u16, address: Ipv4Addr) {
    let socket = UdpSocket::bind((NODE_IP, port)).unwrap();
    std::thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut message) {
            let end = end_of_name(&message[..length]) + 4;
            let asks_ipv4 = message[end - 4..end] == [0, 1, 0, 1];
            let mut answer = message[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(asks_ipv4), 0, 0, 0, 0]);
            if asks_ipv4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
                answer.extend(address.octets());
            }
            socket.send_to(&answer, client).unwrap();
        }
    });
}

#[test]
fn items_57_93_names_of_others() {
    let Some(net) = Net::up(&[]) else { return };
    name_server(5353, Ipv4Addr::new(203, 0, 113, 53));
    name_server(5354, Ipv4Addr::new(203, 0, 113, 54));
    net.create(&web("a", "a", ""));
    net.wait_ready(&["a"]);
    let finds = |name: &str, address: &str| {
        eventually(&format!("{name} is {address}"), STEP, || {
            net.exec("a", &lookup(name)).as_deref() == Ok(address)
        });
    };
    let map = |data: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kube-dns, namespace: kube-system}}\ndata:\n{data}"
        )
    };
    let stubs = format!("  stubDomains: '{{\"corp.example\": [\"{NODE_IP}:5353\"]}}'\n");
    net.create(&map(&stubs));
    finds("www.corp.example.", "203.0.113.53");
    let others = format!("{stubs}  upstreamNameservers: '[\"{NODE_IP}:5354\"]'\n");
    net.create(&map(&others));
    finds("www.other.example.", "203.0.113.54");
    finds("www.corp.example.", "203.0.113.53");
    finds("kubernetes.default.svc.cluster.local.", "10.96.0.1");
    // What cannot be read changes nothing.
    net.create(&map(
        "  stubDomains: '{\"corp.example\": [\"ns.example\"]}'\n",
    ));
    eventually("it is said", STEP, || {
        net.cluster.log().contains("is no address")
    });
    finds("www.corp.example.", "203.0.113.53");

    // What was answered is counted, under CoreDNS' names, where its Service says.
    let metrics = net.fetch("a", "http://kube-dns.kube-system:9153/metrics");
    let metrics = metrics.unwrap();
    for name in [
        r#"coredns_dns_requests_total{server="dns://:53",zone=".",proto="udp",family="1",type="A"}"#,
        r#"coredns_dns_responses_total{server="dns://:53",zone=".",rcode="NOERROR"}"#,
        r#"coredns_forward_requests_total{to="192.0.2.10:5353"}"#,
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}
