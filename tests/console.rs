//! The console at /console: its files, and the page in a real browser with a real cluster behind it.

use crate::harness;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::{
    Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output, part, program, root,
    temp_dir, tests_dir,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const ADMIN: &str = "token-admin-0123456789";
const VIEWER: &str = "token-viewer-0123456789";

/// The code, and what is written of an answer: headers, an empty line, the body.
fn asked(curl: &Path, url: &str, args: &[&str]) -> (u16, String) {
    let mut command = Command::new(curl);
    command.args([
        "--silent",
        "--show-error",
        "--insecure",
        "--include",
        "--http1.1",
    ]);
    command.args([
        "--path-as-is",
        "--max-time",
        "30",
        "--write-out",
        "\n%{http_code}",
    ]);
    let out = output(command.args(args).arg(url));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (answer, code) = text.rsplit_once('\n').unwrap();
    assert!(
        out.status.success(),
        "{url}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    (code.parse().unwrap(), answer.to_owned())
}

/// Certificate and key of the administrator's kubeconfig, as files.
fn certificate(cluster: &Cluster, dir: &Path) -> (PathBuf, PathBuf) {
    let text = std::fs::read_to_string(&cluster.kubeconfig).unwrap();
    let file = |field: &str, name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(field));
        let data = line.unwrap().trim().trim_matches('"');
        let path = dir.join(name);
        std::fs::write(&path, STANDARD.decode(data).unwrap()).unwrap();
        path
    };
    (
        file("client-certificate-data:", "admin.crt"),
        file("client-key-data:", "admin.key"),
    )
}

#[test]
fn strangers_get_the_files_of_the_console_and_nothing_else() {
    let Some(curl) = program("curl") else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let at = |path: &str, args: &[&str]| {
        let url = format!("{}{path}", cluster.server.trim_end_matches('/'));
        asked(&curl, &url, args)
    };
    let (code, page) = at("/console", &[]);
    assert_eq!(code, 200, "{page}");
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self';",
        "frame-ancestors 'none'",
        "x-frame-options: DENY",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "audit-id: ",
    ] {
        assert!(page.contains(header), "{header} is not in {page}");
    }
    assert_eq!(at("/console/console.js", &["--head"]).0, 200);
    // A credential that is none does not keep anybody from the files.
    assert_eq!(
        at("/console", &["-H", "Authorization: Bearer nonsense"]).0,
        200
    );
    assert_eq!(at("/api/v1/nodes", &[]).0, 403);
    for path in [
        "/console/../api/v1/secrets",
        "/console/..%2fapi%2fv1%2fsecrets",
        "/console/%2e%2e/version",
        "/console/index.html",
        "/console//console.js",
        "/console/.git/config",
    ] {
        let (code, answer) = at(path, &[]);
        assert_eq!(code, 404, "{path}: {answer}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        assert_eq!(at("/console", &["-X", method]).0, 405, "{method}");
    }
    let off = Cluster::up(&["--no-node", "--console=false"]);
    let url = format!("{}/console", off.server.trim_end_matches('/'));
    let (code, answer) = asked(&curl, &url, &[]);
    assert_eq!(code, 403, "{answer}");
}

#[test]
fn pages_of_other_sites_cannot_act_by_the_browsers_certificate() {
    let Some(curl) = program("curl") else { return };
    let cluster = Cluster::up(&["--no-node"]);
    let dir = temp_dir();
    let (certificate, key) = certificate(&cluster, dir.path());
    let show = [
        "--cert",
        certificate.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ];
    let server = cluster.server.trim_end_matches('/');
    let ask = |path: &str, args: &[&str]| {
        asked(&curl, &format!("{server}{path}"), &[&show, args].concat())
    };
    let body = r#"{"metadata":{"name":"made-by-a-stranger"}}"#;
    let write = ["-H", "Content-Type: application/json", "-d", body];
    let foreign = [
        "-H",
        "Sec-Fetch-Site: cross-site",
        "-H",
        "Sec-Fetch-Mode: no-cors",
    ];
    let path = "/api/v1/namespaces/default/configmaps";
    assert_eq!(ask(path, &[&write[..], &foreign].concat()).0, 403);
    assert_eq!(ask(path, &[]).0, 200);
    assert!(!ask(path, &[]).1.contains("made-by-a-stranger"));
    let own = ["-H", "Sec-Fetch-Site: same-origin"];
    assert_eq!(ask(path, &[&write[..], &own].concat()).0, 201);
    // A page that a pod answers with, by the API server's proxy, is a page of another site to the browser.
    let confined = "content-security-policy: sandbox allow-downloads allow-forms";
    assert!(ask("/version", &own).1.contains(confined));
    assert!(!ask("/version", &[]).1.contains(confined), "a program");
    assert!(!ask("/console", &own).1.contains(confined));
    // A watch by WebSocket: browsers name themselves and the page, and nothing else.
    let socket = [
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "-H",
        "User-Agent: Mozilla/5.0",
        "-H",
        "Origin: https://elsewhere.example",
    ];
    let (code, answer) = ask("/api/v1/pods?watch=true", &socket);
    assert_eq!(code, 403, "{answer}");
}

/// A process that is killed at the end.
struct Nodes(Child);

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

const MACHINE: &str = r#"
numaNodes:
- {id: 0, memory: 64Gi, distances: [10, 21]}
- {id: 1, memory: 64Gi, distances: [21, 10]}
cpus:
- {cpus: "0-15", node: 0, socket: 0, threads: 2}
- {cpus: "16-31", node: 1, socket: 1, threads: 2}
"#;

const DEVICES: &str = r#"
resources:
- name: hardware-vendor.example/foo
  count: 8
  numaNodes: [0, 1]
  devices: [{ id: foo-7, numaNodes: [1], healthy: false }]
- { name: camera.example/lens, count: 3, numaNodes: [1] }
drivers:
- name: gpu.vendor.example
  devices:
  - name: gpu-{n}
    count: 4
    attributes: { model: A100, index: "{n}", numaNode: 0, fast: true }
    capacity: { memory: 40Gi }
- name: odd.vendor.example
  devices: [{ name: odd, attributes: { note: "<b>odd</b>", numaNode: 1 } }]
"#;

const WORK: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  nodeName: sim-0
  containers: [{name: main, image: any, resources: {limits: {cpu: "4", memory: 8Gi, hardware-vendor.example/foo: "2"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: camera-feed}
spec:
  nodeName: sim-0
  containers: [{name: main, image: any, resources: {limits: {cpu: "6", memory: 16Gi, camera.example/lens: "2"}}}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.vendor.example"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: two-gpus}
spec:
  devices:
    requests:
    - name: train
      exactly: {deviceClassName: gpu, count: 2, selectors: [{cel: {expression: 'device.attributes["gpu.vendor.example"].fast'}}]}
    - name: show
      firstAvailable:
      - {name: big, deviceClassName: gpu, selectors: [{cel: {expression: 'device.capacity["gpu.vendor.example"].memory.isGreaterThan(quantity("80Gi"))'}}]}
      - {name: small, deviceClassName: gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: impossible}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu, selectors: [{cel: {expression: 'device.attributes["gpu.vendor.example"].model == "H200"'}}]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: renderer}
spec:
  resourceClaims: [{name: g, resourceClaimName: two-gpus}]
  containers: [{name: main, image: any, resources: {claims: [{name: g}], limits: {cpu: "2", memory: 4Gi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: wants-h200}
spec:
  resourceClaims: [{name: g, resourceClaimName: impossible}]
  containers: [{name: main, image: any, resources: {claims: [{name: g}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: too-hungry}
spec:
  containers: [{name: main, image: any, resources: {limits: {hardware-vendor.example/foo: "9"}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  nodeName: lab-1
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, "echo '<script>alert(3)</script>'; while :; do echo at work; sleep 1; done"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pods-only}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: pods-only}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: pods-only}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]
"#;

/// Two simulated nodes with a machine of two NUMA nodes, beside the cluster's own.
fn simulated_nodes(cluster: &Cluster, dir: &Path) -> Nodes {
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut command = Command::new(harness::DAVIT);
    command.args(["lab", "nodes", "--count", "2", "--kubeconfig"]);
    command
        .arg(&cluster.kubeconfig)
        .arg("--dir")
        .arg(dir.join("sim"));
    command.arg("--devices").arg(file("devices.yaml", DEVICES));
    command
        .arg("--machine-file")
        .arg(file("machine.yaml", MACHINE));
    command.args(["--cpu-manager-policy", "static", "--reserved-cpus", "0,16"]);
    command.args([
        "--memory-manager-policy",
        "Static",
        "--kube-reserved",
        "memory=1948Mi",
    ]);
    command.args([
        "--reserved-memory",
        "0:memory=1Gi",
        "--reserved-memory",
        "1:memory=1Gi",
    ]);
    command.args(["--topology-manager-policy", "best-effort"]);
    Nodes(command.spawn().unwrap())
}

/// Chromium and what drives it (`npm ci` in console/).
fn browser() -> Option<PathBuf> {
    let chromium = program("chromium")?;
    let driver = tests_dir().join("../console/node_modules/playwright-core");
    part("console-packages", driver.is_dir().then_some(chromium))
}

/// All that console/tests/browser.mjs lists.
#[test]
fn the_console_shows_a_cluster_in_a_browser() {
    let (Some(()), Some(k), Some(node), Some(chromium)) =
        (root(), any_kubectl(), program("node"), browser())
    else {
        return;
    };
    let dir = temp_dir();
    let tokens = dir.path().join("tokens.csv");
    let users = format!("{ADMIN},admin,a,\"system:masters\"\n{VIEWER},viewer,v,\"\"\n");
    std::fs::write(&tokens, users).unwrap();
    let flags = [
        "--node-name",
        "lab-1",
        "--allow-host-image",
        "--token-auth-file",
    ];
    let cluster = Cluster::up(&[&flags[..], &[tokens.to_str().unwrap()]].concat());
    let _nodes = simulated_nodes(&cluster, dir.path());
    let is = |what: &str, args: &[&str], wanted: &str| {
        eventually(what, SOON, || {
            let out = output(cluster.kubectl(&k).args(args));
            String::from_utf8_lossy(&out.stdout) == *wanted
        });
    };
    let slices = "jsonpath={.items[*].spec.nodeName}";
    is(
        "slices",
        &["get", "resourceslices", "-o", slices],
        "sim-0 sim-1 sim-0 sim-1",
    );
    let offered = r"jsonpath={.items[*].status.allocatable.hardware-vendor\.example/foo}";
    is("devices", &["get", "nodes", "-o", offered], "7 7");
    kubectl_stdin(&cluster, &k, &["apply", "-f", "-"], WORK);
    for pod in ["trainer", "camera-feed", "renderer", "shell"] {
        kubectl(
            &cluster,
            &k,
            ["wait", "--for=condition=Ready", "--timeout=60s", "pod", pod],
        );
    }
    let (certificate, key) = certificate(&cluster, dir.path());
    let mut command = Command::new(node);
    command
        .arg("tests/browser.mjs")
        .current_dir(tests_dir().join("../console"))
        .env("CHROMIUM", chromium)
        .env("CONSOLE_URL", &cluster.server)
        .env("CONSOLE_ADMIN", ADMIN)
        .env("CONSOLE_VIEWER", VIEWER)
        .env("CONSOLE_CERT", certificate)
        .env("CONSOLE_KEY", key);
    let out = output(&mut command);
    let told = String::from_utf8_lossy(&out.stdout);
    println!("{told}");
    assert!(
        out.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
