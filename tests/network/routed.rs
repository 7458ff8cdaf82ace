//! Two nodes on different networks, with a router between them (spec network.md 5.3, checklist 64, 73, 76, 79).

use super::dual::{NODE_IP_SIX, own_dual_network, web_of_both};
use super::{
    Machine, NODE_IP, Net, Netns, STEP, fetch_here, node_tokens, on, own_network, service,
    with_token,
};
use crate::harness::{eventually, program, run, temp_dir};
use std::process::Command;

const FAR_IP: &str = "198.51.100.11";
/// How large a file is that goes through: many packets of full size.
const LARGE: usize = 4_000_000;

/// The router, and the machine behind it.
fn router() -> (Netns, Netns) {
    let router = Netns::neighbour("router");
    router.ip(&[
        "address add 192.0.2.1/24 dev up1",
        "-6 address add 2001:db8::1/64 dev up1 nodad",
        "link set up1 up",
        "link add down0 type veth peer name far0",
        "address add 198.51.100.1/24 dev down0",
        "-6 address add 2001:db8:1::1/64 dev down0 nodad",
        "link set down0 up",
    ]);
    let forward =
        "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
    run(router.command("sh").args(["-c", forward]));
    let machine = Netns::new("far");
    router.ip(&[&format!("link set far0 netns {}", machine.0)]);
    machine.ip(&[
        &format!("address add {FAR_IP}/24 dev far0"),
        "-6 address add 2001:db8:1::11/64 dev far0 nodad",
        "link set far0 up",
        "route add default via 198.51.100.1",
        "-6 route add default via 2001:db8:1::1",
    ]);
    (router, machine)
}

fn shell(script: &str) -> String {
    run(Command::new("sh").args(["-c", script]))
}

#[test]
fn items_64_73_76_pods_of_nodes_on_different_networks() {
    if program("nsenter").is_none() || own_dual_network().is_none() {
        return;
    }
    let tokens = temp_dir();
    let file = node_tokens(tokens.path());
    let args = [
        "--service-cluster-ip-range",
        "10.96.0.0/16,fd00:10:96::/112",
        "--bind-address",
        "0.0.0.0",
        "--advertise-address",
        NODE_IP,
        "--token-auth-file",
        &file,
    ];
    let Some(net) = Net::here(&args) else { return };
    // A pod of the time when there was one network.
    let both = "ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080}]";
    net.create(&on(&web_of_both("near", "near"), "node-1"));
    net.create(&service("near", both));
    net.wait_ready(&["near"]);
    let mtu = |pod: &str| net.exec(pod, "cat /sys/class/net/eth0/mtu").unwrap();
    assert_eq!(mtu("near"), "1500");
    let write = format!("head -c {LARGE} /dev/zero > /tmp/www/large");
    net.exec("near", &write).unwrap();

    let (_router, far) = router();
    let port = net.cluster.server.rsplit(':').next().unwrap();
    let server = format!("https://{NODE_IP}:{port}");
    let kubeconfig = with_token(&net.cluster.kubeconfig, &server, "secret");
    let mut other = Machine::start_in(far, &kubeconfig);
    net.wait_node("node-2");
    // It is ready when it reaches the API server and a pod of the other node, by name, in both families. That one's link takes
    // larger packets than the tunnel.
    let probe = "exec: {command: [sh, -c, 'curl -sSk --max-time 5 https://kubernetes.default.svc/version \
                 && for f in -4 -6; do curl -sS $f --max-time 5 http://near/large | wc -c | grep -qx 4000000 || exit 1; done']}";
    let pod = web_of_both("far", "far").replace("httpGet: {path: /, port: 8080}", probe);
    let pod = pod.replace("periodSeconds: 1", "periodSeconds: 1, timeoutSeconds: 16");
    // what nobody can ask of it: its node's server is not known to the API server by its certificate
    let tell =
        format!("&& cp /sys/class/net/eth0/mtu . && head -c {LARGE} /dev/zero > large && exec");
    let pod = pod.replace("&& exec", &tell);
    let exposed = "type: NodePort, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, nodePort: 30090, targetPort: 8080}]";
    net.create(&[on(&pod, "node-2"), service("far", exposed)].concat());
    net.wait_ready(&["far"]);
    let far_ips = net.path("pod/far", ".status.podIPs[*].ip");
    let (four, six) = far_ips.split_once(' ').unwrap();
    let direct = [
        format!("http://{four}:8080"),
        format!("http://[{six}]:8080"),
    ];
    for url in &direct {
        eventually(url, STEP, || net.fetch("near", url).as_deref() == Ok("far"));
        assert_eq!(
            fetch_here(url).as_deref(),
            Ok("far"),
            "from the node: {url}"
        );
    }
    for url in ["-4 http://far", "-6 http://far"] {
        eventually(url, STEP, || net.fetch("near", url).as_deref() == Ok("far"));
    }
    for node in [NODE_IP, FAR_IP, &format!("[{NODE_IP_SIX}]")] {
        let url = format!("http://{node}:30090");
        eventually(&url, STEP, || fetch_here(&url).as_deref() == Ok("far"));
    }

    // Packets of full size, the other way.
    let mtu = net.fetch("near", "http://far/mtu");
    assert_eq!(
        mtu.as_deref(),
        Ok("1430"),
        "what goes into a packet of IPv6"
    );
    let size = "-o /dev/null -w '%{size_download}'";
    for flag in ["-4", "-6"] {
        let answer = net.fetch("near", &format!("{flag} {size} http://far/large"));
        assert_eq!(answer, Ok(LARGE.to_string()), "{flag}");
    }

    // What the kernel knows of the other node goes with it.
    let known = "ip route; ip -6 route; ip -o link | grep -o 'davit6*\\.[0-9a-f]*'; for d in $(ip -o link | grep -o 'davit6*\\.[0-9a-f]*'); do bridge fdb show dev $d; ip neigh show dev $d; done; true";
    let before = shell(known);
    for words in [
        "dev davit.",
        "dev davit6.",
        &format!("dst {FAR_IP}"),
        "dst 2001:db8:1::11",
    ] {
        assert!(before.contains(words), "{words}: {before}");
    }
    other.stop();
    run(&mut net.kubectl(&["delete", "node", "node-2"]));
    eventually("nothing is known of a node that has gone", STEP, || {
        !shell(known).contains("davit")
    });
}

#[test]
fn a_way_that_cannot_be_is_told_of() {
    let Some(()) = own_network() else { return };
    let Some(net) = Net::here(&["--node-routes=host-gw"]) else {
        return;
    };
    // What the controllers publish of a node far away.
    let slice = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  name: far\n  namespace: kube-system\n  labels: {{kubernetes.io/service-name: davit-nodes}}\n  \
         annotations: {{davit.dev/pod-cidr: 10.99.0.0/24}}\n\
         addressType: IPv4\nendpoints: [{{addresses: [{FAR_IP}]}}]\n"
    );
    net.create(&slice);
    eventually("the node says that there is no way", STEP, || {
        let words = "it is on none of this machine's networks";
        net.told("Node", "node-1", "FailedToCreateRoute", words)
    });
}
