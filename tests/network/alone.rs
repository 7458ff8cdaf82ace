//! Names of others, and the parts of the network that run alone: `davit proxy`, `davit dns`.

use super::{DAVIT, NODE_IP, Net, STEP, conntrack, fetch_here, lookup, own_network, web};
use crate::harness::{eventually, kubectl_binary, output, run};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// The IPv4 address that a name server has for a name.
fn question(server: &str, name: &str) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let mut message = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    socket.send_to(&message, server).ok()?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).ok()?;
    let octets: [u8; 4] = answer[..length].last_chunk().copied()?;
    (answer[7] == 1).then(|| octets.into())
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

/// A part that runs alone; it ends with the test.
struct Part(Child);

impl Part {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(DAVIT);
        command
            .args(args)
            .env_remove("KUBECONFIG")
            .stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // it may have ended by itself
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Answers every request with these words.
fn web_server(port: u16, words: &'static str) {
    let listener = TcpListener::bind((NODE_IP, port)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = [0; 1024];
            let _read = client.read(&mut head);
            let length = words.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{words}"
            );
            let _written = client.write_all(answer.as_bytes());
        }
    });
}

const WITHOUT_PODS: &str = r#"---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, name: ""}]
endpoints: [{addresses: [192.0.2.10], nodeName: node-1}]
"#;

#[test]
fn items_58_59_61_a_proxy_alone() {
    if kubectl_binary("1.36").is_none() || own_network().is_none() {
        return;
    }
    let Some(net) = Net::here(&["--no-node"]) else {
        return;
    };
    net.create(WITHOUT_PODS);
    web_server(8080, "here");
    let address = net.path("service/web", ".spec.clusterIP");
    let file = net.cluster.dir.path().join("proxy.yaml");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         bindAddress: 0.0.0.0\nmode: \"\"\nclusterCIDR: 10.244.0.0/16\n\
         healthzBindAddress: {NODE_IP}\nclientConnection: {{kubeconfig: {}}}\nconntrack: {{maxPerCore: 0, tcpCloseWaitTimeout: 90m, udpTimeout: 45s}}\n",
        net.cluster.kubeconfig.display()
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let args = ["proxy", "--config", file, "--hostname-override=node-1"];
    let proxy = Part::start(&args);
    let urls = [
        format!("http://{address}"),
        format!("http://{NODE_IP}:30080"),
    ];
    for url in &urls {
        eventually(url, STEP, || fetch_here(url).as_deref() == Ok("here"));
    }
    for (setting, value) in [("tcp_timeout_close_wait", "5400"), ("udp_timeout", "45")] {
        assert_eq!(conntrack(setting), value, "{setting}");
    }
    let healthz = format!("http://{NODE_IP}:10256/healthz");
    assert!(fetch_here(&healthz).unwrap().contains("nodeEligible"));
    let mode = fetch_here("http://127.0.0.1:10249/proxyMode");
    assert_eq!(mode.as_deref(), Ok("nftables"));
    // What stands stays, until it is cleaned up.
    drop(proxy);
    assert_eq!(fetch_here(&urls[1]).as_deref(), Ok("here"));
    run(Command::new(DAVIT).args(["proxy", "--cleanup"]));
    assert!(fetch_here(&urls[1]).is_err());
    run(Command::new(DAVIT).args(["proxy", "--cleanup"]));

    let ipvs = ["proxy", "--proxy-mode=ipvs", "--kubeconfig=none"];
    let refused = output(Command::new(DAVIT).args(ipvs));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("ipvs"), "{said}");
}

#[test]
fn a_dns_server_alone() {
    if kubectl_binary("1.36").is_none() || own_network().is_none() {
        return;
    }
    let Some(net) = Net::here(&["--no-node"]) else {
        return;
    };
    net.create(WITHOUT_PODS);
    let address = net.path("service/web", ".spec.clusterIP");
    let (at, metrics) = (format!("{NODE_IP}:5300"), format!("{NODE_IP}:5301"));
    let kubeconfig = net.cluster.kubeconfig.to_str().unwrap();
    let args = ["dns", "--kubeconfig", kubeconfig, "--listen", &at];
    let args = [&args[..], &["--metrics-bind-address", &metrics]].concat();
    let _dns = Part::start(&args);
    eventually("names of Services", STEP, || {
        let found = question(&at, "web.default.svc.cluster.local");
        found.is_some_and(|found| found.to_string() == address)
    });
    assert_eq!(question(&at, "nobody.default.svc.cluster.local"), None);
    let counted = fetch_here(&format!("http://{metrics}/metrics")).unwrap();
    assert!(counted.contains("coredns_dns_requests_total"), "{counted}");
    let taken = output(Command::new(DAVIT).args(args));
    let said = String::from_utf8_lossy(&taken.stderr);
    assert!(!taken.status.success() && said.contains("5300"), "{said}");
}
