//! NetworkPolicies, with real pods and connections (spec network.md 7, items 101 to 113).

use super::{Net, STEP, fetch_here, service, web};
use crate::harness::{eventually, output, run};

/// How long a connection may take that is to come about; denied ones are never answered.
const BRIEFLY: &str = "--max-time 3";

/// What a script in a pod (`namespace/name`) prints.
fn inside(net: &Net, pod: &str, script: &str) -> Result<String, String> {
    let (namespace, name) = pod.split_once('/').unwrap();
    let out = output(&mut net.kubectl(&["exec", "-n", namespace, name, "--", "sh", "-c", script]));
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

fn reaches(net: &Net, pod: &str, url: &str) -> bool {
    inside(net, pod, &format!("curl -sS {BRIEFLY} {url}")).is_ok()
}

fn comes_to_reach(net: &Net, pod: &str, url: &str) {
    eventually(&format!("{pod} reaches {url}"), STEP, || {
        reaches(net, pod, url)
    });
}

fn ceases_to_reach(net: &Net, pod: &str, url: &str) {
    eventually(&format!("{pod} does not reach {url}"), STEP, || {
        !reaches(net, pod, url)
    });
    assert!(!reaches(net, pod, url), "{pod} reaches {url} again");
}

fn policy(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )
}

/// Pods `a` and `b` in namespace `default`, `c` in `other`, and a Service for `a`.
fn inhabited(flags: &[&str]) -> Option<Net> {
    let net = Net::up(flags)?;
    net.create("apiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: x}}\n");
    eventually("the service account of the other namespace", STEP, || {
        net.get(&["-n", "other", "serviceaccount", "default"])
            .is_ok()
    });
    let other = web("c", "c", "").replace("metadata:\n", "metadata:\n  namespace: other\n");
    let port = service("a", "ports: [{port: 80, targetPort: 8080}]");
    net.create(&[web("a", "a", ""), web("b", "b", ""), other, port].concat());
    net.wait_ready(&["a", "b"]);
    net.wait_ready(&["c", "-n", "other"]);
    Some(net)
}

fn address(net: &Net, namespace: &str, pod: &str) -> String {
    let path = "jsonpath={.status.podIP}";
    net.get(&["pod", "-n", namespace, pod, "-o", path]).unwrap()
}

#[test]
fn items_101_to_107_112_who_reaches_a_pod() {
    let Some(net) = inhabited(&["--network-policy-strict"]) else {
        return;
    };
    let a = format!("http://{}:8080", address(&net, "default", "a"));
    let by_service = "http://a.default";
    for pod in ["default/b", "other/c"] {
        comes_to_reach(&net, pod, &a);
        comes_to_reach(&net, pod, by_service);
    }

    // A connection that stands, and says when it has ended.
    let hold = format!(
        "import socket, time\ns = socket.create_connection((\"{}\", 8080))\n\
         s.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)\nprint(\"stands\", flush=True)\n\
         try:\n    while True:\n        s.sendall(b\"x\")\n        time.sleep(0.2)\n\
         except OSError:\n    print(\"ended\", flush=True)",
        address(&net, "default", "a")
    );
    let start = format!("python3 -c '{hold}' > /tmp/www/held 2>/tmp/www/fault </dev/null &");
    inside(&net, "default/b", &start).unwrap();
    let held = || inside(&net, "default/b", "cat /tmp/www/held").unwrap_or_default();
    eventually("it stands", STEP, || held() == "stands");

    // Nobody, but the node and its probes.
    net.create(&policy("deny", "{podSelector: {}, policyTypes: [Ingress]}"));
    for pod in ["default/b", "other/c"] {
        ceases_to_reach(&net, pod, &a);
        ceases_to_reach(&net, pod, by_service);
    }
    assert_eq!(fetch_here(&a).as_deref(), Ok("a"), "from the node");
    eventually("the connection ends", STEP, || held() == "stands\nended");
    net.create(&web("d", "d", ""));
    net.wait_ready(&["a", "b", "d"]);
    let metrics = fetch_here("http://127.0.0.1:10249/metrics").unwrap();
    for line in [
        "davit_network_policy_policies 1",
        r#"davit_network_policy_isolated_pods{direction="ingress"} 3"#,
        r#"davit_network_policy_isolated_pods{direction="egress"} 0"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let ended = "davit_network_policy_ended_connections_total 0";
    assert!(!metrics.contains(ended), "{metrics}");
    let d = format!("http://{}:8080", address(&net, "default", "d"));
    assert!(
        !reaches(&net, "default/b", &d),
        "a new pod is isolated from the beginning"
    );

    // Some pods of some namespaces, at a port by its name.
    let allow = |ports: &str| {
        let peer =
            "{namespaceSelector: {matchLabels: {team: x}}, podSelector: {matchLabels: {app: c}}}";
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: a}}}}, ingress: [{{from: [{peer}], ports: [{ports}]}}]}}"
        );
        net.create(&policy("allow", &spec));
    };
    allow("{port: http}");
    comes_to_reach(&net, "other/c", &a);
    comes_to_reach(&net, "other/c", by_service);
    assert!(!reaches(&net, "default/b", &a), "of another namespace");
    assert!(!reaches(&net, "other/c", &d), "another pod");
    let label = |value: &str| {
        let label = format!("team={value}");
        run(&mut net.kubectl(&["label", "--overwrite", "namespace", "other", &label]));
    };
    label("y");
    ceases_to_reach(&net, "other/c", &a);
    label("x");
    comes_to_reach(&net, "other/c", &a);
    allow("{port: 9000, endPort: 9100}");
    ceases_to_reach(&net, "other/c", &a);
    allow("{port: 8000, endPort: 8100}");
    comes_to_reach(&net, "other/c", &a);
    allow("{protocol: UDP}");
    ceases_to_reach(&net, "other/c", &a);

    run(&mut net.kubectl(&["delete", "networkpolicy", "deny", "allow"]));
    for pod in ["default/b", "other/c"] {
        comes_to_reach(&net, pod, &a);
    }
}

#[test]
fn items_108_to_111_whom_a_pod_reaches() {
    let Some(mut net) = inhabited(&[]) else {
        return;
    };
    let a = format!("http://{}:8080", address(&net, "default", "a"));
    let c = format!("http://{}:8080", address(&net, "other", "c"));
    let resolves = |net: &Net| {
        let script = "python3 -c 'import socket; print(socket.gethostbyname(\"a.default.svc.cluster.local\"))'";
        inside(net, "default/b", script)
    };
    let api = "-k https://10.96.0.1/version";
    comes_to_reach(&net, "default/b", &a);
    comes_to_reach(&net, "default/b", api);

    // Names only.
    let names = "{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, \
                 podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}]}";
    let out = |more: &str| {
        let rules = format!("{names}{more}");
        format!(
            "{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Egress], egress: [{rules}]}}"
        )
    };
    net.create(&policy("out", &out("")));
    ceases_to_reach(&net, "default/b", &a);
    assert!(
        !reaches(&net, "default/b", api),
        "the API server is not a name server"
    );
    let known = net.path("service/a", ".spec.clusterIP");
    assert_eq!(resolves(&net), Ok(known));

    // A range with an exception.
    let except = address(&net, "default", "a");
    let block = format!(", {{to: [{{ipBlock: {{cidr: 10.0.0.0/8, except: [{except}/32]}}}}]}}");
    net.create(&policy("out", &out(&block)));
    comes_to_reach(&net, "default/b", &c);
    assert!(!reaches(&net, "default/b", &a));
    assert!(
        !reaches(&net, "default/b", "http://a"),
        "nor by the Service"
    );

    // Another agent finds it as it is.
    net.cluster.keep_port();
    net.cluster.kill();
    net.cluster.start_again();
    let began = std::time::Instant::now();
    while began.elapsed().as_secs() < 8 {
        let tried = inside(&net, "default/b", &format!("curl -sS --max-time 1 {a}"));
        assert!(tried.is_err(), "open after a restart");
    }
    comes_to_reach(&net, "default/b", &c);
    run(&mut net.kubectl(&["delete", "networkpolicy", "out"]));
    comes_to_reach(&net, "default/b", &a);
    comes_to_reach(&net, "default/b", api);
}

#[test]
fn who_sends_as_another_pod_gets_nowhere() {
    let Some(net) = inhabited(&[]) else { return };
    let spoof = web("spoof", "spoof", "").replace(
        "    command:",
        "    securityContext: {capabilities: {add: [NET_ADMIN]}}\n    command:",
    );
    net.create(&spoof);
    net.wait_ready(&["spoof"]);
    let listen = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind((\"\", 5000))\n\
                  while True:\n    peer = s.recvfrom(9)[1][0]\n    print(peer, flush=True)";
    let start = format!("python3 -c '{listen}' > /tmp/www/seen 2>/tmp/www/fault </dev/null &");
    inside(&net, "default/a", &start).unwrap();
    let (a, c) = (address(&net, "default", "a"), address(&net, "other", "c"));
    let own = address(&net, "default", "spoof");
    inside(
        &net,
        "default/spoof",
        &format!("ip address add {c}/32 dev eth0"),
    )
    .unwrap();
    let send = |source: &str| {
        let script = format!(
            "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
             s.bind((\"{source}\", 0)); s.sendto(b\"x\", (\"{a}\", 5000))'"
        );
        inside(&net, "default/spoof", &script).unwrap();
    };
    let seen = || inside(&net, "default/a", "cat /tmp/www/seen").unwrap();
    eventually("one's own address is heard", STEP, || {
        send(&c);
        send(&own);
        seen().contains(&own)
    });
    let seen = seen();
    assert!(
        !seen.lines().any(|line| line == c),
        "heard as another pod: {seen}"
    );
}
