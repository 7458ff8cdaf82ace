//! Pods connected by unmodified CNI plugins (checklist 10.11, 152).
//!
//! Each test has a network namespace of its own, so that bridges, addresses and rules of the packet filter are its own.

use crate::harness;
use harness::{Cluster, eventually, kubectl_binary, output, part, program, root, run};
use nix::sched::{CloneFlags, unshare};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const STEP: Duration = Duration::from_secs(90);
const PLUGINS: &str = "/usr/lib/cni";
const NODE_IP: &str = "192.0.2.10";

/// A namespace with loopback and one address; what this thread starts from here on is in it.
fn own_network() -> Option<()> {
    root()?;
    for tool in ["ip", "iptables", "python3"] {
        program(tool)?;
    }
    let has = |name: &str| Path::new(PLUGINS).join(name).is_file();
    let all = ["bridge", "host-local", "portmap", "bandwidth", "loopback"];
    part("cni-plugins", all.into_iter().all(has).then_some(()))?;
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

    fn create(&self, manifest: &str) {
        harness::kubectl_stdin(
            &self.cluster,
            &self.kubectl,
            &["create", "-f", "-"],
            manifest,
        );
    }

    fn wait_ready(&self, pod: &str) {
        let wait = ["wait", "--for=condition=Ready", "--timeout=90s"];
        run(self.kubectl(&wait).arg(format!("pod/{pod}")));
    }

    fn ips(&self, pod: &str) -> Vec<IpAddr> {
        let text = self.get(&["pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"]);
        let text = text.unwrap();
        text.split_whitespace()
            .map(|ip| ip.parse().unwrap())
            .collect()
    }

    fn exec(&self, pod: &str, script: &str) -> String {
        run(&mut self.kubectl(&["exec", pod, "--", "/bin/sh", "-c", script]))
    }

    fn delete(&self, pods: &[&str]) {
        run(self
            .kubectl(&["delete", "pod", "--grace-period=1", "--timeout=90s"])
            .args(pods));
    }

    fn data(&self) -> PathBuf {
        self.cluster.dir.path().join("data")
    }
}

/// A pod with a web server that answers with its own name at every path.
fn web(name: &str, port: u16, metadata: &str, more: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
{metadata}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, "mkdir /tmp/www && cd /tmp/www && hostname > index.html && exec python3 -m http.server --bind :: {port}"]
    volumeMounts: [{{name: tmp, mountPath: /tmp}}]
    readinessProbe: {{httpGet: {{path: /, port: {port}}}, periodSeconds: 1, initialDelaySeconds: 1}}
    ports: [{{containerPort: {port}{more}}}]
  volumes: [{{name: tmp, emptyDir: {{}}}}]
"#
    )
}

/// What a URL answers.
fn fetch(url: &str) -> String {
    format!(
        "python3 -c \"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode().strip())\""
    )
}

fn fetch_here(url: &str) -> Option<String> {
    let out = output(Command::new("sh").args(["-c", &fetch(url)]));
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The addresses that host-local has given out.
fn taken(dir: &Path) -> Vec<String> {
    let mut all = files(dir);
    all.retain(|name| name.parse::<IpAddr>().is_ok());
    all
}

#[test]
fn pods_reach_one_another_and_the_host_reaches_them() {
    let Some(net) = Net::up(&["--pod-network=10.77.0.0/24,fd77::/64"]) else {
        return;
    };
    let annotation = "  annotations: {kubernetes.io/ingress-bandwidth: 10M}";
    net.create(&web("a", 8000, annotation, ", hostPort: 9191"));
    net.create(&web("b", 8000, "", ""));
    // Ready means that a probe got through.
    net.wait_ready("a");
    net.wait_ready("b");
    let (a, b) = (net.ips("a"), net.ips("b"));
    assert!(a[0].is_ipv4() && a[1].is_ipv6(), "{a:?}");
    assert_ne!(a, b);
    // Pod to pod by either family, pod to itself, pod to node port, node to node port.
    assert_eq!(
        net.exec("b", &fetch(&format!("http://{}:8000/", a[0])))
            .trim(),
        "a"
    );
    assert_eq!(
        net.exec("b", &fetch(&format!("http://[{}]:8000/", a[1])))
            .trim(),
        "a"
    );
    assert_eq!(net.exec("a", &fetch("http://127.0.0.1:8000/")).trim(), "a");
    assert_eq!(
        net.exec("b", &fetch(&format!("http://{NODE_IP}:9191/")))
            .trim(),
        "a"
    );
    assert_eq!(
        fetch_here(&format!("http://{NODE_IP}:9191/")).as_deref(),
        Some("a")
    );
    // What the pod knows of itself.
    let hosts = net.exec("a", "cat /etc/hosts");
    assert!(
        hosts.contains(&a[0].to_string()) && hosts.contains(&a[1].to_string()),
        "{hosts}"
    );
    assert!(
        net.exec("a", "ip address show dev eth0")
            .contains(&a[0].to_string())
    );
    assert!(net.exec("a", "ip link show dev lo").contains("LOWER_UP"));
    // The bandwidth plugin has shaped the pod's link.
    let shaped = run(Command::new("tc").args(["qdisc", "show"]));
    assert!(
        shaped.contains("tbf") && shaped.contains("10Mbit"),
        "{shaped}"
    );
    // Port-forward goes into the pod's namespace.
    let mut forward = net.kubectl(&["port-forward", "pod/b", "18000:8000"]);
    let mut forward = forward.stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("port-forward", STEP, || {
        fetch_here("http://127.0.0.1:18000/").as_deref() == Some("b")
    });
    forward.kill().unwrap();
    forward.wait().unwrap();

    item_128_the_api_server_reaches_them(&net);

    net.delete(&["a", "b"]);
    assert_eq!(fetch_here(&format!("http://{NODE_IP}:9191/")), None);
    let addresses = net.data().join("cni/addresses/davit");
    assert_eq!(taken(&addresses), Vec::<String>::new());
    assert_eq!(files(&net.data().join("cni/results")), Vec::<String>::new());
}

/// Through the proxy subresources of pods, services and nodes, links of pages included.
fn item_128_the_api_server_reaches_them(net: &Net) {
    net.create(
        "apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8000}]
",
    );
    run(&mut net.kubectl(&["label", "pod", "b", "app=web"]));
    // item 128 of the API machinery: services, pods and nodes through the API server
    let raw = |path: &str| net.get(&["--raw", path]);
    let base = "/api/v1/namespaces/default";
    eventually("the service's endpoints", STEP, || {
        raw(&format!("{base}/services/web/proxy/")).is_ok()
    });
    for path in [
        "pods/b:8000",
        "pods/http:b:8000",
        "services/web",
        "services/web:80",
        "services/web:http",
        "services/http:web:http",
    ] {
        let said = raw(&format!("{base}/{path}/proxy/index.html"));
        assert_eq!(said.as_deref().map(str::trim), Ok("b"), "{path}");
    }
    net.exec("b", "mkdir -p /tmp/www/list/file");
    let listing = raw(&format!("{base}/services/web:http/proxy/list/")).unwrap();
    let link = listing.split('"').find(|part| part.ends_with("file/"));
    assert!(link.is_some(), "{listing}");
    let nothing = raw(&format!("{base}/services/web:81/proxy/")).unwrap_err();
    assert!(nothing.contains("81"), "{nothing}");
    assert_eq!(
        raw("/api/v1/nodes/node-1/proxy/healthz").as_deref(),
        Ok("ok")
    );
    let metrics = raw("/api/v1/nodes/node-1/proxy/metrics").unwrap();
    assert!(metrics.contains("# TYPE "), "{metrics}");
}

/// A plugin that never comes to an end while a file is there; the address is taken by then.
const SLOW: &str = "#!/bin/sh
cat > $0.in
if [ $CNI_COMMAND = ADD ]; then
  while [ -e $0.hang ]; do touch $0.here; sleep 0.1; done
  exec python3 -c \"import json,sys; print(json.dumps(json.load(open('$0.in'))['prevResult']))\"
fi
";

#[test]
fn what_a_killed_davit_leaves_behind_is_cleared() {
    use std::os::unix::fs::PermissionsExt;
    let dir = harness::temp_dir();
    let (conf, bin) = (dir.path().join("conf"), dir.path().join("bin"));
    for dir in [&conf, &bin] {
        std::fs::create_dir(dir).unwrap();
    }
    let slow = bin.join("slow");
    std::fs::write(&slow, SLOW).unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();
    let addresses = dir.path().join("addresses");
    // As administrators write it, version 0.4.0, with a loopback plugin of its own.
    let list = serde_json::json!({"cniVersion": "0.4.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {
            "type": "host-local", "dataDir": addresses, "subnet": "10.78.0.0/24",
            "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "slow"},
    ]});
    let (conf_dir, bin_dir) = (
        conf.display().to_string(),
        format!("{},{PLUGINS}", bin.display()),
    );
    let file = conf.join("10-net.conflist");
    std::fs::write(&file, list.to_string()).unwrap();
    let Some(mut net) = Net::up(&["--cni-conf-dir", &conf_dir, "--cni-bin-dir", &bin_dir]) else {
        return;
    };
    std::fs::remove_file(&file).unwrap();
    unreachable_without_configuration(&net);
    std::fs::write(&file, list.to_string()).unwrap();
    net.wait_ready("early");

    let hang = bin.join("slow.hang");
    std::fs::write(&hang, "").unwrap();
    net.create(&web("torn", 8000, "", ""));
    let here = bin.join("slow.here");
    eventually("the plugin is at work", STEP, || here.exists());
    assert_eq!(taken(&addresses.join("net")).len(), 2);
    let before = net.ips("early");
    net.cluster.kill();
    std::fs::remove_file(&hang).unwrap();
    net.cluster.start_again();
    // The pod that ran keeps its address; the one that was cut short gets a sandbox, and only that one's address stays.
    net.wait_ready("torn");
    assert_eq!(net.ips("early"), before);
    assert_eq!(taken(&addresses.join("net")).len(), 2);
    let links =
        run(Command::new("ip").args(["-o", "link", "show", "type", "veth", "master", "br0"]));
    assert_eq!(links.lines().count(), 2, "{links}");
    assert_eq!(
        net.exec("torn", &fetch(&format!("http://{}:8000/", before[0])))
            .trim(),
        "early"
    );

    // A plugin that is missing is said where one looks for it.
    net.delete(&["torn", "early"]);
    std::fs::remove_file(bin.join("slow")).unwrap();
    net.create(&web("lost", 8000, "", ""));
    let events = || {
        net.get(&[
            "events",
            "-o",
            "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}",
        ])
    };
    eventually("the plugin's absence in an event", STEP, || {
        let events = events().unwrap_or_default();
        let expected =
            "plugin type=\"slow\" failed (add): failed to find plugin \"slow\" in path [";
        let line = events.lines().find(|l| l.contains(expected));
        line.is_some_and(|l| {
            l.starts_with("FailedCreatePodSandBox: Failed to create pod sandbox: failed to setup network for sandbox \"")
        })
    });
    net.delete(&["lost"]);
}

/// Without a configuration the node is not ready, says why, and pods wait.
fn unreachable_without_configuration(net: &Net) {
    net.create(&web("early", 8000, "", ""));
    let problem = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                   message:Network plugin returns error: cni plugin not initialized";
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}";
    eventually("the node's condition", STEP, || {
        net.get(&["node", "node-1", "-o", path]).as_deref() == Ok(problem)
    });
}
