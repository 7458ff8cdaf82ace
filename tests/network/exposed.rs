//! Services that are reached from outside: addresses of load balancers, ports of nodes.

use super::{NODE_IP, Net, STEP, fetch_here, service, web};
use crate::harness::{eventually, run};

impl Net {
    /// The addresses that a Service has from a load balancer.
    fn given(&self, name: &str) -> String {
        let of = format!("service/{name}");
        self.path(&of, ".status.loadBalancer.ingress[*].ip")
    }

    /// Whether an event says this of an object.
    fn told(&self, kind: &str, name: &str, reason: &str, words: &str) -> bool {
        let about =
            format!("involvedObject.kind={kind},involvedObject.name={name},reason={reason}");
        let message = "jsonpath={.items[*].message}";
        let said = self.get(&["events", "--field-selector", &about, "-o", message]);
        said.is_ok_and(|said| said.contains(words))
    }
}

fn balanced(name: &str, spec: &str) -> String {
    service("web", &format!("type: LoadBalancer, {spec}"))
        .replace("{name: web}", &format!("{{name: {name}}}"))
}

#[test]
fn services_have_the_addresses_of_nodes() {
    let Some(net) = Net::up(&[]) else { return };
    let port = |port: u16| format!("ports: [{{port: {port}, targetPort: 8080}}]");
    let local = format!("externalTrafficPolicy: Local, {}", port(81));
    let class = format!("loadBalancerClass: example.com/other, {}", port(82));
    net.create(&balanced("first", &port(80)));
    eventually("the address is there", STEP, || {
        net.given("first") == NODE_IP
    });
    let line = net.get(&["service", "first", "--no-headers"]).unwrap();
    assert!(line.contains(NODE_IP), "{line}");
    let mode = net.path("service/first", ".status.loadBalancer.ingress[0].ipMode");
    assert_eq!(mode, "VIP");
    let rest = [
        balanced("second", &port(80)),
        balanced("local", &local),
        balanced("class", &class),
        balanced("ssh", &port(22)),
    ];
    net.create(&rest.concat());
    eventually("the second is told who has the port", STEP, || {
        let words = format!("port 80/TCP of {NODE_IP}: service default/first has it");
        net.told("Service", "second", "SyncLoadBalancerFailed", &words)
    });
    eventually("nobody leads to the local one", STEP, || {
        net.told(
            "Service",
            "local",
            "UnAvailableLoadBalancer",
            "ready endpoints",
        )
    });
    eventually("the machine's own port stays its own", STEP, || {
        net.told("Service", "ssh", "SyncLoadBalancerFailed", "22/TCP")
    });
    for pending in ["second", "local", "class", "ssh"] {
        assert_eq!(net.given(pending), "", "{pending}");
    }

    net.create(&web("a", "web", ""));
    net.wait_ready(&["a"]);
    eventually("an endpoint is here", STEP, || {
        net.given("local") == NODE_IP
    });
    for port in [80, 81] {
        let url = format!("http://{NODE_IP}:{port}");
        eventually(&url, STEP, || fetch_here(&url).as_deref() == Ok("a"));
    }

    // Who comes next has what is free.
    run(&mut net.kubectl(&["delete", "service", "first"]));
    eventually("the second has it", STEP, || net.given("second") == NODE_IP);

    // What somebody else has written stays.
    let theirs = r#"{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.9"}]}}}"#;
    let patch = [
        "patch",
        "service",
        "second",
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    run(net.kubectl(&patch).arg(theirs));
    net.create(&balanced("third", &port(80)));
    eventually("the port is free for others", STEP, || {
        net.given("third") == NODE_IP
    });
    assert_eq!(net.given("second"), "198.51.100.9");

    // Another type has no such addresses, at once.
    let plain = r#"{"spec":{"type":"ClusterIP"}}"#;
    run(&mut net.kubectl(&["patch", "service", "third", "-p", plain]));
    assert_eq!(net.given("third"), "");

    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers";
    let label = |text: &str| run(&mut net.kubectl(&["label", "node", "node-1", text]));
    label(&format!("{excluded}="));
    eventually("the node is left out", STEP, || {
        net.given("local").is_empty()
    });
    label(&format!("{excluded}-"));
    eventually("the node is back", STEP, || net.given("local") == NODE_IP);
}

#[test]
fn what_nobody_serves_is_said() {
    let Some(net) = Net::here(&["--no-node", "--load-balancer=none"]) else {
        return;
    };
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed}\n\
                  spec: {podSelector: {}}\n";
    let all = [
        balanced("lb", "ports: [{port: 80}]"),
        service("ports", "type: NodePort, ports: [{port: 80}]"),
        policy.to_owned(),
    ];
    net.create(&all.concat());
    eventually("no load balancer", STEP, || {
        net.told("Service", "lb", "NoLoadBalancer", "--load-balancer=none")
    });
    eventually("no proxy", STEP, || {
        net.told(
            "Service",
            "ports",
            "NoServiceProxy",
            "the cluster has no node",
        )
    });
    eventually("no policies", STEP, || {
        net.told(
            "NetworkPolicy",
            "closed",
            "NotEnforced",
            "the cluster has no node",
        )
    });
    assert_eq!(net.given("lb"), "");
}
