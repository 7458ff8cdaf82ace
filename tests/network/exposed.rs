//! Services that are reached from outside: addresses of load balancers, ports of nodes.

use super::{NODE_IP, Net, STEP, fetch_here, service, web};
use crate::harness::{eventually, run};

impl Net {
    /// The addresses that a Service has from a load balancer.
    pub(super) fn given(&self, name: &str) -> String {
        let of = format!("service/{name}");
        self.path(&of, ".status.loadBalancer.ingress[*].ip")
    }

    /// Whether an event says this of an object.
    pub(super) fn told(&self, kind: &str, name: &str, reason: &str, words: &str) -> bool {
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

/// The status of an answer, and all of it.
fn ask(url: &str) -> (String, String) {
    let answer = fetch_here(&format!("-i {url}")).unwrap_or_default();
    let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, answer.to_lowercase())
}

#[test]
fn items_41_56_57_load_balancers_ask_and_are_answered() {
    let health = format!("--proxy-healthz-bind-address={NODE_IP}");
    let Some(net) = Net::up(&[&health]) else {
        return;
    };
    let local = "externalTrafficPolicy: Local, ports: [{port: 81, targetPort: 8080}]";
    net.create(&balanced("local", local));
    let port = net.path("service/local", ".spec.healthCheckNodePort");
    let url = format!("http://{NODE_IP}:{port}/any/path");
    eventually("nobody is here", STEP, || ask(&url).0 == "503");
    net.create(&web("a", "web", ""));
    net.wait_ready(&["a"]);
    eventually("somebody is here", STEP, || ask(&url).0 == "200");
    let (_, answer) = ask(&url);
    for part in [
        "x-load-balancing-endpoint-weight: 1",
        "content-type: application/json",
        r#""localendpoints":1"#,
        r#""serviceproxyhealthy":true"#,
        r#""service":{"name":"local","namespace":"default"}"#,
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }

    // The proxy itself.
    let healthz = format!("http://{NODE_IP}:10256/healthz");
    let (status, said) = ask(&healthz);
    assert!(
        status == "200" && said.contains(r#""nodeeligible":true"#),
        "{said}"
    );
    let taint = "ToBeDeletedByClusterAutoscaler=1:NoSchedule";
    run(&mut net.kubectl(&["taint", "node", "node-1", taint]));
    eventually("the node goes", STEP, || ask(&healthz).0 == "503");
    assert_eq!(ask(&format!("http://{NODE_IP}:10256/livez")).0, "200");
    let metrics = fetch_here("http://127.0.0.1:10249/metrics").unwrap();
    for name in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_network_programming_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        r#"kubeproxy_proxy_healthz_total{code="503"}"#,
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    assert_eq!(
        fetch_here("http://127.0.0.1:10249/proxyMode").as_deref(),
        Ok("nftables")
    );

    // A port that is somebody else's is said to be.
    let taken = std::net::TcpListener::bind((NODE_IP, 30001)).unwrap();
    let asked = format!("healthCheckNodePort: 30001, {local}");
    net.create(&balanced("other", &asked.replace("port: 81", "port: 82")));
    eventually("it cannot listen", STEP, || {
        net.told(
            "Service",
            "other",
            "FailedToStartServiceHealthcheck",
            "30001",
        )
    });
    drop(taken);
    let url = format!("http://{NODE_IP}:30001");
    eventually("it listens", STEP, || ask(&url).0 == "200");
    run(&mut net.kubectl(&["delete", "service", "other"]));
    eventually("nobody asks any more", STEP, || ask(&url).0.is_empty());
}

#[test]
fn item_28_node_ports_are_where_they_are_wanted() {
    let Some(net) = Net::up(&["--nodeport-addresses=198.51.100.0/24"]) else {
        return;
    };
    let ports = "type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]";
    net.create(&[web("a", "web", ""), service("web", ports)].concat());
    net.wait_ready(&["a"]);
    // An address that comes later is one of the node's, too.
    run(std::process::Command::new("ip").args(["address", "add", "198.51.100.7/24", "dev", "up0"]));
    eventually("the port answers", STEP, || {
        fetch_here("http://198.51.100.7:30080").as_deref() == Ok("a")
    });
    let refused = fetch_here(&format!("http://{NODE_IP}:30080")).unwrap_err();
    assert!(refused.to_lowercase().contains("connect"), "{refused}");
    let from_pod = net.fetch("a", "http://198.51.100.7:30080");
    assert_eq!(from_pod.as_deref(), Ok("a"));
}
