//! davit's own pod network, Service proxy and DNS, with real packets (spec network.md, checklist by number).
//!
//! Each test has a network namespace of its own, so that links, addresses and rules are its own.

mod alone;
mod cable;
mod dual;
mod exposed;
mod policy;
mod ranged;
mod routed;

use crate::harness;
use harness::{Cluster, DAVIT, FULL_DISK, eventually, kubectl_binary, output, program, root, run};
use nix::sched::{CloneFlags, unshare};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const STEP: Duration = Duration::from_secs(90);
const NODE_IP: &str = "192.0.2.10";
/// The longest that a request of a test may take.
const LIMIT: &str = "--max-time 10";

/// A namespace with loopback and one address, and a default route; what this thread starts from here on is in it.
fn own_network() -> Option<()> {
    root()?;
    for tool in ["ip", "curl", "python3"] {
        program(tool)?;
    }
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    for command in [
        "link set lo up".to_owned(),
        "link add up0 type veth peer name up1".to_owned(),
        format!("address add {NODE_IP}/24 dev up0"),
        "link set up0 up".to_owned(),
        "link set up1 up".to_owned(),
        "route add default via 192.0.2.1".to_owned(),
    ] {
        run(Command::new("ip").args(command.split(' ')));
    }
    Some(())
}

struct Net {
    cluster: Cluster,
    kubectl: PathBuf,
}

impl Net {
    fn up(extra: &[&str]) -> Option<Self> {
        own_network()?;
        Self::here(extra)
    }

    fn here(extra: &[&str]) -> Option<Self> {
        let kubectl = kubectl_binary("1.36")?;
        let mut args = vec!["--node-name", "node-1", "--allow-host-image"];
        args.extend_from_slice(extra);
        let net = Self {
            cluster: Cluster::up(&args),
            kubectl,
        };
        eventually("the default service account", STEP, || {
            net.get(&["serviceaccount", "default"]).is_ok()
        });
        Some(net)
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.kubectl(&self.kubectl);
        command.args(args);
        command
    }

    fn get(&self, args: &[&str]) -> Result<String, String> {
        let out = output(self.kubectl(&["get"]).args(args));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        if out.status.success() {
            Ok(text)
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    fn path(&self, of: &str, path: &str) -> String {
        let (kind, name) = of.split_once('/').unwrap();
        let path = format!("jsonpath={{{path}}}");
        self.get(&[kind, name, "-o", &path]).unwrap()
    }

    fn create(&self, manifest: &str) {
        let apply = ["apply", "-f", "-"];
        harness::kubectl_stdin(&self.cluster, &self.kubectl, &apply, manifest);
    }

    fn wait_ready(&self, pods: &[&str]) {
        let wait = ["wait", "--for=condition=Ready", "--timeout=90s", "pod"];
        run(self.kubectl(&wait).args(pods));
    }

    /// Waits until a node is there, and ready.
    fn wait_node(&self, name: &str) {
        let node = format!("node/{name}");
        run(&mut self.kubectl(&["wait", "--for=create", "--timeout=90s", &node]));
        let ready = ["wait", "--for=condition=Ready", "--timeout=90s", &node];
        run(&mut self.kubectl(&ready));
    }

    /// What a script in a pod prints, and whether it succeeded.
    fn exec(&self, pod: &str, script: &str) -> Result<String, String> {
        let out = output(&mut self.kubectl(&["exec", pod, "--", "/bin/sh", "-c", script]));
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if out.status.success() {
            Ok(text)
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    fn fetch(&self, pod: &str, url: &str) -> Result<String, String> {
        self.exec(pod, &format!("curl -sS {LIMIT} {url}"))
    }
}

fn fetch_here(url: &str) -> Result<String, String> {
    let curl = format!("curl -sS {LIMIT} {url}");
    let out = output(Command::new("sh").args(["-c", &curl]));
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// A setting of the kernel's memory of connections, in the network of the test.
fn conntrack(setting: &str) -> String {
    let file = format!("/proc/sys/net/netfilter/nf_conntrack_{setting}");
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

/// A pod with a web server that answers with its own name.
fn web(name: &str, app: &str, ports: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {app}}}
spec:
  terminationGracePeriodSeconds: 1
  tolerations: [{{operator: Exists}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, "mkdir /tmp/www && cd /tmp/www && hostname > index.html && exec python3 -m http.server 8080"]
    volumeMounts: [{{name: tmp, mountPath: /tmp}}]
    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
    ports: [{{name: http, containerPort: 8080{ports}}}]
  volumes: [{{name: tmp, emptyDir: {{}}}}]
"#
    )
}

/// The pod with limits of its bandwidth.
fn limited(pod: &str) -> String {
    pod.replace(
        "metadata:\n",
        "metadata:\n  annotations: {kubernetes.io/ingress-bandwidth: 1G, kubernetes.io/egress-bandwidth: 800M}\n",
    )
}

fn service(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{app: {name}}}, {spec}}}\n"
    )
}

const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[test]
fn items_1_9_10_a_pod_talks_to_the_api_server() {
    let Some(net) = Net::up(&[]) else { return };
    net.create(&web("a", "a", ""));
    net.wait_ready(&["a"]);
    let service = |path: &str| net.path("service/kubernetes", path);
    assert_eq!(service(".spec.clusterIP"), "10.96.0.1");
    assert_eq!(service(".metadata.labels.provider"), "kubernetes");
    for server in [
        "kubernetes.default.svc",
        "10.96.0.1",
        "$KUBERNETES_SERVICE_HOST",
    ] {
        let call = format!(
            "curl -sS {LIMIT} --cacert {TOKEN}/ca.crt -H \"Authorization: Bearer $(cat {TOKEN}/token)\" \
             https://{server}/api/v1/namespaces/default/serviceaccounts/default -o /dev/null -w '%{{http_code}}'"
        );
        assert_eq!(
            net.exec("a", &call).as_deref(),
            Ok("403"),
            "{server}: known, and allowed nothing"
        );
        let version = format!("curl -sS {LIMIT} --cacert {TOKEN}/ca.crt https://{server}/version");
        assert!(
            net.exec("a", &version).unwrap().contains("davit"),
            "{server}"
        );
    }
    // Whoever removes them has them back.
    let slice = net.path("endpointslice/kubernetes", ".endpoints[0].addresses[0]");
    assert!(slice.ends_with(".0.1"), "{slice}");
    run(&mut net.kubectl(&["delete", "service,endpointslice,endpoints", "kubernetes"]));
    eventually("the service is back", STEP, || {
        net.get(&["service,endpointslice,endpoints", "kubernetes"])
            .is_ok()
    });
    assert_eq!(service(".spec.clusterIP"), "10.96.0.1");
    eventually("pods reach it again", STEP, || {
        let call = format!("curl -sS {LIMIT} --cacert {TOKEN}/ca.crt https://10.96.0.1/version");
        net.exec("a", &call).is_ok()
    });
}

#[test]
fn items_23_37_61_63_services_lead_to_pods() {
    let Some(net) = Net::up(&[]) else { return };
    let all = [
        web("a", "web", ""),
        web("b", "web", ""),
        limited(&web("client", "me", ", hostPort: 9080")),
        service(
            "web",
            "type: NodePort, ports: [{port: 80, targetPort: http}]",
        ),
        service("me", "ports: [{port: 80, targetPort: 8080}]"),
        service("nobody", "ports: [{port: 80, targetPort: 8080}]"),
    ];
    net.create(&all.concat());
    net.wait_ready(&["a", "b", "client"]);
    let ip = |pod: &str| net.path(&format!("pod/{pod}"), ".status.podIP");
    let range = net.path("node/node-1", ".spec.podCIDR");
    let prefix = range.strip_suffix("0/24").unwrap();
    assert!(ip("a").starts_with(prefix), "{range} {}", ip("a"));
    assert_eq!(
        net.fetch("client", &format!("http://{}:8080", ip("a")))
            .as_deref(),
        Ok("a")
    );
    assert_eq!(
        fetch_here(&format!("http://{}:8080", ip("b"))).as_deref(),
        Ok("b")
    );

    // As kube-proxy sets them.
    assert_eq!(conntrack("tcp_timeout_close_wait"), "3600");
    assert_eq!(conntrack("tcp_timeout_established"), "86400");
    // What the pod receives, and what it sends.
    if program("tc").is_some() {
        let queues = run(Command::new("tc").args(["qdisc", "show"]));
        for rate in ["rate 800Mbit", "rate 1Gbit"] {
            assert!(queues.contains(rate), "{queues}");
        }
    }

    // By address, by every form of its name, from a pod and from the node.
    let address = net.path("service/web", ".spec.clusterIP");
    eventually("the service answers", STEP, || {
        net.fetch("client", &format!("http://{address}")).is_ok()
    });
    for name in [
        "web",
        "web.default",
        "web.default.svc",
        "web.default.svc.cluster.local",
    ] {
        let answer = net.fetch("client", &format!("http://{name}")).unwrap();
        assert!(["a", "b"].contains(&answer.as_str()), "{name}: {answer}");
    }
    let port = net.path("service/web", ".spec.ports[0].nodePort");
    for url in [
        format!("http://{address}"),
        format!("http://{NODE_IP}:{port}"),
    ] {
        let answer = fetch_here(&url).unwrap();
        assert!(["a", "b"].contains(&answer.as_str()), "{url}: {answer}");
    }
    assert_eq!(
        net.fetch("client", "http://me").as_deref(),
        Ok("client"),
        "itself"
    );
    let hosted = format!("http://{NODE_IP}:9080");
    assert_eq!(fetch_here(&hosted).as_deref(), Ok("client"));
    assert_eq!(net.fetch("a", &hosted).as_deref(), Ok("client"));
    let refused = net.fetch("client", "http://nobody").unwrap_err();
    assert!(
        refused.contains("refused") || refused.contains("connect to"),
        "{refused}"
    );
    let unknown = net.fetch("client", "http://no-such-service").unwrap_err();
    assert!(unknown.contains("resolve"), "{unknown}");

    // One pod less, one endpoint less.
    run(&mut net.kubectl(&["delete", "pod", "a", "--timeout=90s"]));
    eventually("only b answers", STEP, || {
        let mut answers = (0..10).map(|_| net.fetch("client", "http://web"));
        answers.all(|answer| answer.as_deref() == Ok("b"))
    });
    run(&mut net.kubectl(&["delete", "pod", "client", "b", "--timeout=90s"]));
    let links = run(Command::new("ip").args(["-o", "link"]));
    assert!(!links.contains("dvt"), "{links}");
    assert!(fetch_here(&hosted).is_err());
}

#[test]
fn item_119_what_stands_goes_on_while_davit_is_gone() {
    let Some(mut net) = Net::up(&[]) else { return };
    let all = [
        web("a", "web", ""),
        service(
            "web",
            "type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]",
        ),
    ];
    net.create(&all.concat());
    net.wait_ready(&["a"]);
    let url = format!("http://{NODE_IP}:30080");
    eventually("the service answers", STEP, || fetch_here(&url).is_ok());
    let before = net.path("pod/a", ".status.podIP");
    net.cluster.keep_port();
    net.cluster.kill();
    assert_eq!(fetch_here(&url).as_deref(), Ok("a"), "without davit");
    net.cluster.start_again();
    assert_eq!(fetch_here(&url).as_deref(), Ok("a"), "after a restart");
    net.create(&[web("b", "web", "")].concat());
    net.wait_ready(&["a", "b"]);
    assert_eq!(net.path("pod/a", ".status.podIP"), before);
    assert_ne!(net.path("pod/b", ".status.podIP"), before);
    eventually("both answer", STEP, || {
        let mut answers = (0..20).map(|_| fetch_here(&url).unwrap_or_default());
        let first = answers.next().unwrap();
        answers.any(|answer| answer != first)
    });
}

/// What the C library finds for a name.
fn lookup(name: &str) -> String {
    format!("getent ahostsv4 {name} | awk '{{print $1}}' | sort -u")
}

#[test]
fn items_81_90_pods_resolve_names() {
    let Some(net) = Net::up(&[]) else { return };
    let pod =
        web("db-0", "db", "").replace("spec:\n", "spec:\n  hostname: db-0\n  subdomain: db\n");
    let all = [
        pod,
        service("db", "clusterIP: None, ports: [{name: sql, port: 5432}]"),
        service("web", "ports: [{port: 80}]"),
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: out}\n\
         spec: {type: ExternalName, externalName: db.default.svc.cluster.local}\n"
            .to_owned(),
    ];
    net.create(&all.concat());
    net.wait_ready(&["db-0"]);
    let dns = net.get(&[
        "service",
        "kube-dns",
        "-n",
        "kube-system",
        "-o",
        "jsonpath={.spec.clusterIP}",
    ]);
    assert_eq!(dns.as_deref(), Ok("10.96.0.10"));
    // Endpoints of v1, as every Service has them.
    let endpoints = |path: &str| {
        let path = format!("jsonpath={{{path}}}");
        net.get(&["endpoints", "kube-dns", "-n", "kube-system", "-o", &path])
            .unwrap_or_default()
    };
    let gateway = net.path("node/node-1", ".spec.podCIDR");
    let gateway = gateway.replace(".0/24", ".1");
    eventually("endpoints of the name servers", STEP, || {
        endpoints(".subsets[0].addresses[*].ip") == gateway
    });
    assert_eq!(endpoints(".subsets[0].ports[*].port"), "53 53 9153");
    let slices = "jsonpath={.items[*].metadata.name}";
    let slices = [
        "endpointslices",
        "-n",
        "kube-system",
        "-l",
        "kubernetes.io/service-name=kube-dns",
        "-o",
        slices,
    ];
    assert_eq!(
        net.get(&slices).as_deref(),
        Ok("kube-dns-davit"),
        "none is mirrored"
    );
    let conf = net.exec("db-0", "cat /etc/resolv.conf").unwrap();
    assert!(conf.contains("nameserver 10.96.0.10"), "{conf}");
    assert!(
        conf.contains("search default.svc.cluster.local svc.cluster.local cluster.local"),
        "{conf}"
    );
    let own = net.path("pod/db-0", ".status.podIP");
    let address = net.path("service/web", ".spec.clusterIP");
    for (name, expected) in [
        ("db", &own),
        ("db-0.db", &own),
        ("db-0.db.default.svc.cluster.local.", &own),
        ("out", &own),
        ("web", &address),
        ("WEB.Default.svc", &address),
    ] {
        eventually(&format!("{name} is {expected}"), STEP, || {
            net.exec("db-0", &lookup(name)).as_deref() == Ok(expected)
        });
    }
    let reverse = net
        .exec("db-0", &format!("getent hosts {address}"))
        .unwrap();
    assert!(
        reverse.contains("web.default.svc.cluster.local"),
        "{reverse}"
    );
    assert_eq!(net.exec("db-0", &lookup("nobody")).as_deref(), Ok(""));
    run(&mut net.kubectl(&["delete", "service", "web"]));
    eventually("web is no more", STEP, || {
        net.exec("db-0", &lookup("web")).as_deref() == Ok("")
    });

    // Who brings a server of his own has the Service.
    let selector = r#"{"spec":{"selector":{"k8s-app":"kube-dns"}}}"#;
    run(&mut net.kubectl(&[
        "patch",
        "service",
        "kube-dns",
        "-n",
        "kube-system",
        "-p",
        selector,
    ]));
    eventually("davit's servers are not behind it", STEP, || {
        net.get(&["endpointslice", "kube-dns-davit", "-n", "kube-system"])
            .is_err()
            && !endpoints("").contains(&gateway)
    });
}

#[test]
fn item_65_an_administrators_network_comes_first() {
    let Some(net) = Net::up(&[]) else { return };
    net.create(&web("own", "own", ""));
    net.wait_ready(&["own"]);
    let conf = net.cluster.dir.path().join("root/etc/cni/net.d");
    std::fs::create_dir_all(&conf).unwrap();
    std::fs::write(conf.join("10-bad.conflist"), "not a configuration").unwrap();
    net.create(&web("other", "other", ""));
    eventually("pods wait for a network that can be read", STEP, || {
        let events = net.get(&["events", "--field-selector", "involvedObject.name=other"]);
        events.is_ok_and(|events| events.contains("NetworkNotReady"))
    });
    std::fs::remove_file(conf.join("10-bad.conflist")).unwrap();
    net.wait_ready(&["other", "own"]);
}

#[test]
fn item_60_the_table_is_restored() {
    let Some(net) = Net::up(&[]) else { return };
    let all = [
        web("a", "web", ""),
        service(
            "web",
            "type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]",
        ),
    ];
    net.create(&all.concat());
    net.wait_ready(&["a"]);
    let url = format!("http://{NODE_IP}:30080");
    eventually("the service answers", STEP, || fetch_here(&url).is_ok());
    let [table, _] = davit_network::tables(&net.cluster.dir.path().join("data"));
    let mut change = table.transaction();
    change.delete_table();
    table.commit(change).unwrap();
    eventually("the service answers again", STEP, || {
        fetch_here(&url).is_ok()
    });
}

/// A network namespace with a name, until it is dropped.
struct Netns(String);

impl Netns {
    fn new(what: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("davit-{what}-{}-{number}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]));
        let made = Self(name);
        made.ip(&["link set lo up"]);
        made
    }

    /// The network of the test at the other end of the link.
    fn neighbour(what: &str) -> Self {
        let made = Self::new(what);
        run(Command::new("ip").args(["link", "set", "up1", "netns", &made.0]));
        made
    }

    /// Commands of ip(8) in it.
    fn ip(&self, commands: &[&str]) {
        for command in commands {
            run(Command::new("ip")
                .args(["-n", &self.0])
                .args(command.split(' ')));
        }
    }

    /// A program in it.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.0))
            .arg(program);
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _gone = output(Command::new("ip").args(["netns", "del", &self.0]));
    }
}

/// Another machine: a network namespace, and the node `node-2` in it.
struct Machine {
    node: Child,
    dir: tempfile::TempDir,
    /// Last, so that nothing is in it any more when it goes.
    network: Netns,
}

impl Machine {
    /// At the other end of the link, with more commands of ip(8) for its network.
    fn start(kubeconfig: &str, more: &[&str]) -> Self {
        let network = Netns::neighbour("node");
        network.ip(&["address add 192.0.2.11/24 dev up1", "link set up1 up"]);
        network.ip(&["route add default via 192.0.2.1"]);
        network.ip(more);
        Self::start_in(network, kubeconfig)
    }

    fn start_in(network: Netns, kubeconfig: &str) -> Self {
        let dir = harness::temp_dir();
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig).unwrap();
        let log = std::fs::File::create(dir.path().join("davit.log")).unwrap();
        let mut node = network.command(DAVIT);
        node.args(["node", "--node-name", "node-2", "--node-port", "0"])
            .args(["--allow-host-image", "--kubeconfig"])
            .arg(&file)
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .arg("--root")
            .arg(dir.path().join("root"))
            .args(FULL_DISK)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Self {
            node: node.spawn().unwrap(),
            dir,
            network,
        }
    }

    /// Takes a device of it down, as a power cut would.
    fn lose_link(&self, device: &str) {
        self.network.ip(&[&format!("link set {device} down")]);
    }

    /// Ends the node as a power cut would; its link stays.
    fn stop(&mut self) {
        let _dead = self.node.kill();
        let _reaped = self.node.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("davit.log"));
            eprintln!("--- the other node's log\n{}", log.unwrap_or_default());
        }
        self.stop();
        harness::end_containers(self.dir.path());
    }
}

/// A file with the token `secret` of the other node.
fn node_tokens(dir: &Path) -> String {
    let file = dir.join("tokens.csv");
    std::fs::write(&file, "secret,system:node:node-2,u2,\"system:nodes\"\n").unwrap();
    file.display().to_string()
}

/// The pod on this node.
fn on(pod: &str, node: &str) -> String {
    pod.replace("spec:\n", &format!("spec:\n  nodeName: {node}\n"))
}

/// A kubeconfig for somebody with a token, on another machine.
fn with_token(admin: &Path, server: &str, token: &str) -> String {
    let text = std::fs::read_to_string(admin).unwrap();
    let authority = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("certificate-authority-data: "))
        .unwrap();
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters:\n- name: c\n  cluster: {{server: \"{server}\", certificate-authority-data: {authority}}}\n\
         users:\n- name: u\n  user: {{token: {token}}}\n\
         contexts:\n- name: c\n  context: {{cluster: c, user: u}}\n"
    )
}

#[test]
fn item_64_pods_of_two_nodes_reach_one_another() {
    if program("nsenter").is_none() || own_network().is_none() {
        return;
    }
    let tokens = harness::temp_dir();
    let file = node_tokens(tokens.path());
    let args = [
        "--bind-address",
        "0.0.0.0",
        "--advertise-address",
        NODE_IP,
        "--token-auth-file",
    ];
    let Some(net) = Net::here(&[&args[..], &[&file]].concat()) else {
        return;
    };
    let port = net.cluster.server.rsplit(':').next().unwrap();
    let server = format!("https://{NODE_IP}:{port}");
    let kubeconfig = with_token(&net.cluster.kubeconfig, &server, "secret");
    let mut other = Machine::start(&kubeconfig, &[]);
    net.wait_node("node-2");
    let ranges = net
        .get(&["nodes", "-o", "jsonpath={.items[*].spec.podCIDR}"])
        .unwrap();
    let ranges: Vec<&str> = ranges.split(' ').collect();
    assert!(ranges.len() == 2 && ranges[0] != ranges[1], "{ranges:?}");

    // It is ready when it reaches the API server and a pod of the other node, by name.
    let probe = "exec: {command: [sh, -c, 'curl -sSk --max-time 5 https://kubernetes.default.svc/version \
                 && curl -sS --max-time 5 http://near']}";
    let far = web("far", "far", "").replace("httpGet: {path: /, port: 8080}", probe);
    let far = far.replace("periodSeconds: 1", "periodSeconds: 1, timeoutSeconds: 10");
    let all = [
        on(&web("near", "near", ""), "node-1"),
        on(&far, "node-2"),
        service("near", "ports: [{port: 80, targetPort: 8080}]"),
        service(
            "far",
            "type: NodePort, ports: [{port: 80, nodePort: 30090, targetPort: 8080}]",
        ),
    ];
    net.create(&all.concat());
    net.wait_ready(&["near", "far"]);
    let ip = net.path("pod/far", ".status.podIP");
    assert_eq!(net.path("pod/far", ".status.hostIP"), "192.0.2.11");
    assert_eq!(
        net.fetch("near", &format!("http://{ip}:8080")).as_deref(),
        Ok("far")
    );
    eventually("by the service", STEP, || {
        net.fetch("near", "http://far").as_deref() == Ok("far")
    });
    for node in [NODE_IP, "192.0.2.11"] {
        let url = format!("http://{node}:30090");
        eventually(&url, STEP, || fetch_here(&url).as_deref() == Ok("far"));
    }

    // A load balancer leads to the nodes with endpoints, under policy Local.
    let local =
        "type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 82, targetPort: 8080}]";
    net.create(&service("far", local).replace("{name: far}", "{name: edge}"));
    eventually("an address of the other node", STEP, || {
        net.given("edge") == "192.0.2.11"
    });
    eventually("the address answers", STEP, || {
        fetch_here("http://192.0.2.11:82").as_deref() == Ok("far")
    });
    // Nobody has let that node see the pods of others.
    eventually("what it does not enforce", STEP, || {
        let words = "may not see the pods of other nodes";
        net.told("Node", "node-2", "NetworkPolicyNotEnforced", words)
    });

    // A node that has gone takes its routes with it.
    other.stop();
    let routes = || run(Command::new("ip").args(["route"]));
    assert!(routes().contains("via 192.0.2.11"), "{}", routes());
    run(&mut net.kubectl(&["delete", "node", "node-2"]));
    eventually("no way to a node that has gone", STEP, || {
        !routes().contains("via 192.0.2.11")
    });
    eventually("no address of it either", STEP, || {
        net.given("edge").is_empty()
    });
}
