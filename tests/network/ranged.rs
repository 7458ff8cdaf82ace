//! Addresses of load balancers from a range, which nodes answer for on their link (spec network.md 2.5).

use super::{
    Machine, NODE_IP, Net, Netns, STEP, node_tokens, on, own_network, service, web, with_token,
};
use crate::harness::{eventually, output, program, run, temp_dir};
use std::time::Duration;

/// Longer than a node may be silent.
const SILENT: Duration = Duration::from_secs(120);
const FIRST: &str = "192.0.2.200";
const SECOND: &str = "192.0.2.201";

/// A switch with the node of the test, another machine and a client at it.
fn switch() -> (Netns, Netns, Netns) {
    let switch = Netns::neighbour("switch");
    let (machine, client) = (Netns::new("node"), Netns::new("client"));
    switch.ip(&[
        "link add br0 type bridge",
        "link set br0 up",
        "link set up1 master br0",
        "link set up1 up",
    ]);
    for (there, address) in [(&machine, "192.0.2.11/24"), (&client, "192.0.2.50/24")] {
        let port = format!("to-{}", &address[8..10]);
        switch.ip(&[
            &format!("link add {port} type veth peer name lan0"),
            &format!("link set lan0 netns {}", there.0),
            &format!("link set {port} master br0"),
            &format!("link set {port} up"),
        ]);
        there.ip(&[
            &format!("address add {address} dev lan0"),
            "link set lan0 up",
            "route add default via 192.0.2.1",
        ]);
    }
    (switch, machine, client)
}

impl Net {
    /// The node that answers for an address.
    fn announcer(&self, address: &str) -> String {
        let path = format!(
            "jsonpath={{.items[?(@.endpoints[0].addresses[0]==\"{address}\")].endpoints[0].nodeName}}"
        );
        let label = "kubernetes.io/service-name=davit-addresses";
        let slices = ["endpointslices", "-n", "kube-system", "-l", label, "-o"];
        self.get(&[&slices[..], &[&path]].concat()).unwrap()
    }
}

/// What the client gets from a server, in a few seconds.
fn fetch(client: &Netns, url: &str) -> Option<String> {
    let out = output(
        client
            .command("curl")
            .args(["-sSk", "--max-time", "3", url]),
    );
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    out.status.success().then_some(text)
}

/// What the client takes an address to be on the link.
fn neighbour(client: &Netns, address: &str) -> String {
    let shown = run(client.command("ip").args(["neigh", "show", address]));
    let mut words = shown.split_whitespace();
    words.find(|word| *word == "lladdr");
    words.next().unwrap_or_default().to_owned()
}

#[test]
fn addresses_of_a_range_are_answered_for_by_a_node_or_another() {
    if program("nsenter").is_none() || own_network().is_none() {
        return;
    }
    let tokens = temp_dir();
    let file = node_tokens(tokens.path());
    let range = format!("{FIRST}-{SECOND}");
    let args = [
        "--bind-address",
        "0.0.0.0",
        "--advertise-address",
        NODE_IP,
        "--token-auth-file",
        &file,
        "--load-balancer-range",
        &range,
    ];
    let Some(net) = Net::here(&args) else { return };
    let (_switch, machine, client) = switch();
    let port = net.cluster.server.rsplit(':').next().unwrap();
    let server = format!("https://{NODE_IP}:{port}");
    let kubeconfig = with_token(&net.cluster.kubeconfig, &server, "secret");
    // The first address is the other node's to answer for.
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    run(&mut net.kubectl(&["label", "node", "node-1", &format!("{label}=")]));
    let mut other = Machine::start_in(machine, &kubeconfig);
    net.wait_node("node-2");
    let balanced = |name: &str, more: &str| {
        let spec = format!("type: LoadBalancer, {more} ports: [{{port: 80, targetPort: 8080}}]");
        service("web", &spec).replace("{name: web}", &format!("{{name: {name}}}"))
    };
    let all = [
        on(&web("here", "web", ""), "node-1"),
        on(&web("there", "web", ""), "node-2"),
        balanced("other", "loadBalancerClass: example.com/other,"),
        balanced("asks", &format!("loadBalancerIP: {SECOND},")),
    ];
    net.create(&all.concat());
    net.wait_ready(&["here", "there"]);
    eventually("the address that was asked for", STEP, || {
        net.given("asks") == SECOND
    });
    net.create(&balanced("edge", ""));
    eventually("the next address", STEP, || net.given("edge") == FIRST);
    net.create(&balanced("late", ""));
    let full = "no IPv4 address of --load-balancer-range is free";
    eventually("none is left", STEP, || {
        net.told("Service", "late", "SyncLoadBalancerFailed", full)
    });
    assert_eq!(net.given("other"), "", "somebody else's");
    assert_eq!(net.announcer(FIRST), "node-2");
    let url = format!("http://{FIRST}");
    let answers = || fetch(&client, &url).is_some_and(|who| who == "here" || who == "there");
    eventually("a neighbour reaches the address", STEP, answers);
    let before = neighbour(&client, FIRST);

    // Who answers goes on as long as he can; when he is gone another one does.
    run(&mut net.kubectl(&["label", "node", "node-1", &format!("{label}-")]));
    assert_eq!(net.announcer(FIRST), "node-2");
    other.lose_link("lan0");
    other.stop();
    eventually("another node answers", SILENT, || {
        net.announcer(FIRST) == "node-1"
    });
    eventually("the neighbour reaches it there", STEP, answers);
    assert_ne!(neighbour(&client, FIRST), before);
    // What listens on that machine is not reached there.
    let version = |at: &str| fetch(&client, &format!("https://{at}:{port}/version"));
    assert!(version(NODE_IP).is_some_and(|version| version.contains("davit")));
    assert_eq!(version(FIRST), None);
    // Without its Service an address is nobody's, and free for the one that waits.
    run(&mut net.kubectl(&["delete", "service", "edge", "asks"]));
    eventually("the one that waited has it", STEP, || {
        net.given("late") == FIRST
    });
    eventually("the other address is on no device", STEP, || {
        !run(std::process::Command::new("ip").arg("address")).contains(SECOND)
    });
}
