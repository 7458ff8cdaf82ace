//! The components as separate processes that know each other only through the API server's kubeconfig.

mod join;

use crate::harness;
use base64::Engine as _;
use harness::{DAVIT, FULL_DISK, any_kubectl, eventually, output, run, temp_dir};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Processes that end with the test.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        // In the opposite order, as an operator would: the API server last.
        for child in self.0.iter_mut().rev() {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn component(dir: &Path, name: &str, args: &[&str]) -> Command {
    let log = std::fs::File::create(dir.join(format!("{name}.log"))).unwrap();
    // A shell's background jobs, of which the tests may be one, ignore interrupts until they say otherwise.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", DAVIT, name])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    command
}

#[test]
fn a_file_says_what_flags_say() {
    let dir = temp_dir();
    let file = dir.path().join("davit.yaml");
    let data = dir.path().join("data");
    let write = |fields: &str| {
        let text = format!(
            "apiVersion: davit.dev/v1\nkind: Configuration\nup: {{dataDir: {}, {fields}}}\n",
            data.display()
        );
        std::fs::write(&file, text).unwrap();
    };
    let davit = |words: &[&str]| {
        let mut command = Command::new(DAVIT);
        command.args(words).arg("--configuration").arg(&file);
        command
    };
    write("prot: 1, nodePort: x");
    let refused = output(&mut davit(&["up"]));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    assert!(
        said.contains("up.prot: unknown field") && said.contains("up.nodePort: invalid"),
        "{said}"
    );
    assert!(!data.exists());

    write("port: 0, noNode: true, nodeName: file");
    let shown = run(davit(&["config", "show", "-o", "json", "up"]).env("DAVIT_NODE_NAME", "env"));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let setting = |name: &str| {
        let all = shown.as_array().unwrap();
        let found = all.iter().find(|s| s["name"] == name).unwrap();
        (found["values"][0].clone(), found["source"].clone())
    };
    assert_eq!(setting("nodeName"), ("env".into(), "environment".into()));
    assert_eq!(setting("noNode"), ("true".into(), "file".into()));

    let mut up = davit(&["up"]);
    up.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut processes = Processes(vec![up.spawn().unwrap()]);
    let mut ready = String::new();
    let printed = processes.0[0].stdout.take().unwrap();
    BufReader::new(printed).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready in "), "{ready}");
    assert!(data.join("admin.kubeconfig").exists());
}

#[test]
fn components_alone_make_a_cluster_by_kubeconfig() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut server = component(
        dir.path(),
        "server",
        &["--data-dir", &path("server"), "--port", "0"],
    )
    .spawn()
    .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let mut processes = Processes(vec![server]);
    assert!(ready.starts_with("ready in "), "{ready}");
    let kubeconfig = path("server/admin.kubeconfig");
    let attached = ["--kubeconfig", &kubeconfig];
    // An address of this process alone, so that the ports of kube-scheduler and kube-controller-manager are free.
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = format!("127.{}.{b}.1", a | 1);
    let controlling = [&attached[..], &["--bind-address", &address]].concat();
    // The controllers' own user has no more than kube-controller-manager's, and each of them a service account with a token.
    let own = path("server/controllers.kubeconfig");
    let manifest = as_kubeadm_starts_controllers(&own, &address, &dir.path().join("server/pki"));
    let accounted: Vec<&str> = manifest.iter().map(String::as_str).collect();
    run(Command::new(&kubectl)
        .args(["--kubeconfig", &kubeconfig, "delete", "clusterrolebinding"])
        .arg("davit:controllers"));
    processes.0.push(
        component(
            dir.path(),
            "scheduler",
            &[&controlling[..], &["--leader-elect"]].concat(),
        )
        .spawn()
        .unwrap(),
    );
    processes.0.push(
        component(dir.path(), "controllers", &accounted)
            .spawn()
            .unwrap(),
    );
    let (data, root) = (path("node"), path("root"));
    let node = [
        "--data-dir",
        &data,
        "--root",
        &root,
        "--runtime",
        "none",
        "--node-name",
        "alone",
        "--node-port",
        "0",
    ];
    processes.0.push(
        component(
            dir.path(),
            "node",
            &[&attached[..], &node, &FULL_DISK].concat(),
        )
        .spawn()
        .unwrap(),
    );

    let kubectl = || {
        let mut command = Command::new(&kubectl);
        command
            .env("KUBECONFIG", &kubeconfig)
            .env("HOME", dir.path());
        command
    };
    let deadline = Duration::from_secs(60);
    eventually("the node is ready", deadline, || {
        let nodes = output(kubectl().args(["get", "nodes", "--no-headers"]));
        String::from_utf8_lossy(&nodes.stdout).contains("Ready")
    });
    run(kubectl().args([
        "create",
        "deployment",
        "web",
        "--image=example.test/web",
        "--replicas=3",
    ]));
    run(kubectl().args(["set", "resources", "deployment/web", "--requests=cpu=250m"]));
    run(kubectl().args(["rollout", "status", "deployment/web", "--timeout=60s"]));
    let holder = "jsonpath={.spec.holderIdentity}";
    assert!(
        !run(kubectl().args([
            "-n",
            "kube-system",
            "get",
            "lease",
            "kube-scheduler",
            "-o",
            holder
        ]))
        .is_empty()
    );

    // A component can be stopped and started at any time, alone.
    let mut controllers = processes.0.remove(2);
    controllers.kill().unwrap();
    controllers.wait().unwrap();
    run(kubectl().args(["scale", "deployment/web", "--replicas=5"]));
    processes.0.insert(
        2,
        component(dir.path(), "controllers", &accounted)
            .spawn()
            .unwrap(),
    );
    run(kubectl().args(["rollout", "status", "deployment/web", "--timeout=60s"]));
    components_tell_of_themselves(&address, Path::new(&kubeconfig), dir.path());
    let pods = run(kubectl().args(["get", "pods", "-l", "app=web", "--no-headers"]));
    assert_eq!(
        pods.lines().filter(|l| l.contains("Running")).count(),
        5,
        "{pods}"
    );
    run(kubectl().args(["delete", "deployment", "web", "--timeout=60s"]));
    eventually("the pods are collected", deadline, || {
        run(kubectl().args(["get", "pods", "-l", "app=web", "-o", "name"])).is_empty()
    });
}

/// The arguments of kube-controller-manager in the manifest of `kubeadm init`, and terms that are shorter.
fn as_kubeadm_starts_controllers(kubeconfig: &str, address: &str, pki: &Path) -> Vec<String> {
    let file = |name: &str| pki.join(name).display().to_string();
    let (ca, ca_key) = (file("ca.crt"), file("ca.key"));
    let own = |flag: &str| format!("--{flag}={kubeconfig}");
    vec![
        "--allocate-node-cidrs=true".to_owned(),
        own("authentication-kubeconfig"),
        own("authorization-kubeconfig"),
        format!("--bind-address={address}"),
        format!("--client-ca-file={ca}"),
        "--cluster-cidr=10.244.0.0/16".to_owned(),
        "--cluster-name=kubernetes".to_owned(),
        format!("--cluster-signing-cert-file={ca}"),
        format!("--cluster-signing-key-file={ca_key}"),
        "--controllers=*,bootstrapsigner,tokencleaner".to_owned(),
        own("kubeconfig"),
        "--kube-api-burst=300".to_owned(),
        "--kube-api-qps=200".to_owned(),
        "--leader-elect=true".to_owned(),
        format!(
            "--requestheader-client-ca-file={}",
            file("front-proxy-ca.crt")
        ),
        format!("--root-ca-file={ca}"),
        format!("--service-account-private-key-file={}", file("sa.key")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect-lease-duration=4s".to_owned(),
        "--leader-elect-renew-deadline=3s".to_owned(),
        "--leader-elect-retry-period=1s".to_owned(),
    ]
}

/// The pages of the servers of controllers and scheduler: health for everybody, the others for those who may.
fn components_tell_of_themselves(address: &str, admin: &Path, dir: &Path) {
    let config: serde_json::Value =
        serde_saphyr::from_str(&std::fs::read_to_string(admin).unwrap()).unwrap();
    let part = |key: &str| {
        let text = config["users"][0]["user"][key].as_str().unwrap();
        let file = dir.join(key);
        let engine = base64::engine::general_purpose::STANDARD;
        std::fs::write(&file, engine.decode(text).unwrap()).unwrap();
        file.display().to_string()
    };
    let (cert, key) = (part("client-certificate-data"), part("client-key-data"));
    let ask = |port: u16, path: &str, own: &[&str]| {
        let url = format!("https://{address}:{port}{path}");
        let mut curl = Command::new("curl");
        run(curl.args(["-sk", "-m", "60", &url]).args(own))
    };
    let get = |path: &str, own: &[&str]| ask(10257, path, own);
    let own = ["--cert", &cert, "--key", &key];
    assert_eq!(get("/readyz/informer-sync", &[]), "Unauthorized");
    assert_eq!(
        (get("/healthz", &[]), get("/readyz", &[])),
        ("ok".to_owned(), "ok".to_owned())
    );
    let metrics = get("/metrics", &own);
    assert!(
        metrics.contains("workqueue_depth{name=\"deployment\"}"),
        "{metrics}"
    );
    let configz = get("/configz", &own);
    assert!(
        configz.contains("\"ClusterCIDR\":\"10.244.0.0/16\"")
            && configz.contains("\"bootstrap-signer-controller\"")
            && configz.contains("\"leaseDuration\":\"4s\""),
        "{configz}"
    );
    assert_eq!(get("/metrics", &[]), "Unauthorized");
    let resources = ask(10259, "/metrics/resources", &own);
    let line = resources
        .lines()
        .find(|line| line.contains("resource=\"cpu\""));
    let line = line.unwrap_or_else(|| panic!("no CPU of a pod in {resources:?}"));
    assert!(
        line.starts_with("kube_pod_resource_request{namespace=\"default\",pod=\"web-")
            && line.ends_with(" 0.25"),
        "{line}"
    );
    assert_eq!(ask(10259, "/metrics/resources", &[]), "Unauthorized");
}

const TOKEN: &str = "
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-07401b, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: 07401b
  token-secret: f395accd246ae52d
  usage-bootstrap-authentication: 'true'
";

/// Roles that let a node ask for its first certificate and for the next ones.
const GRANTS: [[&str; 3]; 3] = [
    [
        "node-bootstrap",
        "system:node-bootstrapper",
        "system:bootstrappers",
    ],
    [
        "node-approve",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        "system:bootstrappers",
    ],
    [
        "node-renew",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "system:nodes",
    ],
];

/// What `kubeadm join` writes for its node, and the two lines at the end.
const KUBEADM: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: AUTHORITY}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: ADDRESS
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
serverTLSBootstrap: true
registerWithTaints: [{key: example.com/new, effect: NoSchedule}]
";

/// The body of an answer without TLS.
/// Ends a command some time after it was started; how it exited, and whether it took the signal in hand: a process that
/// has not come that far is ended by the system.
fn signalled(command: &mut Command, signal: Signal, after: Duration) -> ExitStatus {
    let mut child = command.spawn().unwrap();
    std::thread::sleep(after);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let mut processes = Processes(Vec::new());
    kill(pid, signal).unwrap();
    let deadline = Instant::now() + Duration::from_secs(15);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    processes.0.push(child);
    panic!("{command:?} goes on 15 s after {signal} at {after:?}");
}

/// A signal ends every command in order, whatever it is doing: starting, waiting for an API server that is not there,
/// or nothing in particular.
#[test]
fn signals_end_commands_at_any_moment() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let nobody = path("nobody.kubeconfig");
    let config = "{apiVersion: v1, kind: Config, current-context: c, \
        clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], \
        contexts: [{name: c, context: {cluster: k, user: u}}], users: [{name: u, user: {token: t}}]}";
    std::fs::write(&nobody, config).unwrap();
    let (data, root) = (path("data"), path("root"));
    let own = ["--data-dir", &data, "--port", "0"];
    let hollow = ["--runtime", "none", "--root", &root, "--node-port", "0"];
    let up = [&own[..], &hollow].concat();
    let node = [&["--kubeconfig", &nobody, "--data-dir", &data][..], &hollow].concat();
    let scheduling = ["--kubeconfig", &nobody, "--secure-port", "0"];
    let leading = [&scheduling[..], &["--leader-elect"]].concat();
    let alone = [&scheduling[..], &["--leader-elect=false"]].concat();
    let commands: [(&str, &[&str], &[u64]); 7] = [
        ("up", &up, &[30, 60, 90, 120, 160, 220, 300, 500, 1500]),
        ("server", &own, &[30, 60, 120, 300, 1500]),
        ("node", &node, &[100, 1500]),
        ("scheduler", &alone, &[100, 1500]),
        ("scheduler", &scheduling, &[1500]),
        ("controllers", &scheduling, &[100, 1500]),
        ("controllers", &leading, &[1500]),
    ];
    for (name, args, moments) in commands {
        for (turn, after) in moments.iter().enumerate() {
            let signal = [Signal::SIGTERM, Signal::SIGINT][turn % 2];
            let mut command = component(dir.path(), name, args);
            let status = signalled(&mut command, signal, Duration::from_millis(*after));
            let not_yet = *after < 500 && status.signal() == Some(signal as i32);
            let log = std::fs::read_to_string(dir.path().join(format!("{name}.log"))).unwrap();
            assert!(
                status.success() || not_yet,
                "{name} {args:?}: {status} after {signal} at {after} ms\n{log}"
            );
        }
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

/// kubeadm's keys: RSA in PKCS#1, and its authority in a file of its own.
#[test]
fn tokens_are_signed_with_a_key_of_kubeadm() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let key = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../client/src/signing/rsa-pkcs1.pem"
    );
    let flags = [
        "--data-dir",
        &path("server"),
        "--port",
        "0",
        "--service-account-signing-key-file",
        key,
    ];
    let mut server = component(dir.path(), "server", &flags).spawn().unwrap();
    let mut ready = String::new();
    let stdout = server.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    let mut processes = Processes(vec![server]);
    let (admin, authority) = (path("server/admin.kubeconfig"), path("server/pki/ca.crt"));
    let controllers = |authority: &str| {
        let flags = [
            "--kubeconfig",
            &admin,
            "--service-account-private-key-file",
            key,
            "--root-ca-file",
            authority,
            "--secure-port",
            "0",
        ];
        component(dir.path(), "controllers", &flags)
    };
    assert!(
        !controllers(key).status().unwrap().success(),
        "a key is no authority"
    );
    processes.0.push(controllers(&authority).spawn().unwrap());
    let kubectl = |args: &[&str]| {
        let mut command = Command::new(&kubectl);
        command.env("KUBECONFIG", &admin).env("HOME", dir.path());
        command.args(args);
        command
    };
    let secret = dir.path().join("secret.json");
    let text = r#"{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "robot", "annotations": {"kubernetes.io/service-account.name": "robot"}}}"#;
    std::fs::write(&secret, text).unwrap();
    run(&mut kubectl(&["create", "serviceaccount", "robot"]));
    run(&mut kubectl(&[
        "apply",
        "-f",
        &secret.display().to_string(),
    ]));
    let requested = run(&mut kubectl(&["create", "token", "robot"]));
    let template = "go-template={{with .data.token}}{{. | base64decode}}{{end}}";
    let mut kept = String::new();
    eventually("the Secret's token", Duration::from_secs(30), || {
        kept = run(&mut kubectl(&["get", "secret", "robot", "-o", template]));
        !kept.is_empty()
    });
    for token in [requested.trim(), &kept] {
        // {"alg":"RS256"…
        assert!(token.starts_with("eyJhbGciOiJSUzI1NiI"), "{token}");
        let bearer = path("bearer.kubeconfig");
        std::fs::copy(&admin, &bearer).unwrap();
        let set = format!("--token={token}");
        let config = ["config", "--kubeconfig", &bearer];
        run(&mut kubectl(
            &[&config[..], &["set-credentials", "robot", &set]].concat(),
        ));
        run(&mut kubectl(
            &[&config[..], &["set-context", "--current", "--user=robot"]].concat(),
        ));
        let said = output(kubectl(&["get", "nodes"]).env("KUBECONFIG", &bearer));
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(
            said.contains("system:serviceaccount:default:robot"),
            "{said}"
        );
    }
}

/// docs/access.md, word for word: a node joins with a token only, and renews its certificate.
#[test]
fn a_node_joins_with_a_bootstrap_token_and_renews_its_certificate() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut server = component(
        dir.path(),
        "server",
        &["--data-dir", &path("server"), "--port", "0"],
    )
    .spawn()
    .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let mut processes = Processes(vec![server]);
    let admin = path("server/admin.kubeconfig");
    let kubectl = || {
        let mut command = Command::new(&kubectl);
        command.env("KUBECONFIG", &admin).env("HOME", dir.path());
        command
    };
    // Certificates live so shortly that the node has to renew its own while we look.
    let signing = [
        "--kubeconfig",
        &admin,
        "--cluster-signing-cert-file",
        &path("server/pki/ca.crt"),
        "--cluster-signing-key-file",
        &path("server/pki/ca.key"),
        "--cluster-signing-duration",
        "90s",
        "--secure-port",
        "0",
    ];
    let controllers = component(dir.path(), "controllers", &signing).spawn();
    processes.0.push(controllers.unwrap());
    for [name, role, group] in GRANTS {
        let (role, group) = (format!("--clusterrole={role}"), format!("--group={group}"));
        run(kubectl().args(["create", "clusterrolebinding", name, &role, &group]));
    }
    let token = dir.path().join("token.yaml");
    std::fs::write(&token, TOKEN).unwrap();
    run(kubectl().args(["apply", "-f"]).arg(&token));

    // The same cluster, with the token in the place of the administrator's key.
    let bootstrap = path("bootstrap.kubeconfig");
    std::fs::copy(&admin, &bootstrap).unwrap();
    let config = |args: &[&str]| {
        run(kubectl()
            .args(["config", "--kubeconfig", &bootstrap])
            .args(args))
    };
    config(&[
        "set-credentials",
        "token",
        "--token",
        "07401b.f395accd246ae52d",
    ]);
    config(&["set-context", "--current", "--user", "token"]);
    let (data, root, kubeconfig) = (path("node"), path("root"), path("node.kubeconfig"));
    let config_file = path("config.yaml");
    // An address of this process alone, so that the port is free.
    let [.., a, b] = std::process::id().to_be_bytes();
    let healthz = SocketAddr::from(([127, a | 1, b, 1], 10248));
    let text = KUBEADM
        .replace("AUTHORITY", &path("server/pki/ca.crt"))
        .replace("ADDRESS", &healthz.ip().to_string());
    std::fs::write(&config_file, text).unwrap();
    let node = [
        "--bootstrap-kubeconfig",
        &bootstrap,
        "--kubeconfig",
        &kubeconfig,
        "--data-dir",
        &data,
        "--root",
        &root,
        "--runtime",
        "none",
        "--node-name",
        "joined",
        "--node-port",
        "0",
        "--config",
        &config_file,
    ];
    processes.0.push(
        component(dir.path(), "node", &[&node[..], &FULL_DISK].concat())
            .spawn()
            .unwrap(),
    );
    let is_ready = || {
        let nodes = output(kubectl().args(["get", "node", "joined", "--no-headers"]));
        String::from_utf8_lossy(&nodes.stdout)
            .split_whitespace()
            .any(|word| word == "Ready")
    };
    eventually("the node has joined", Duration::from_secs(90), is_ready);
    assert_eq!(get(healthz, "/healthz"), "ok");
    let taints = run(kubectl().args(["get", "node", "joined", "-o", "jsonpath={.spec.taints}"]));
    assert!(taints.contains("example.com/new"), "{taints}");
    // Its server waits for a certificate that somebody approves.
    let proxied = || {
        let path = "/api/v1/nodes/joined/proxy/healthz";
        output(kubectl().args(["get", "--raw", path]))
    };
    assert!(!proxied().status.success());
    let serving =
        "jsonpath={.items[?(@.spec.signerName==\"kubernetes.io/kubelet-serving\")].metadata.name}";
    eventually(
        "a certificate for the server",
        Duration::from_secs(60),
        || {
            let asked = run(kubectl().args(["get", "csr", "-o", serving]));
            for name in asked.split_whitespace() {
                run(kubectl().args(["certificate", "approve", name]));
            }
            proxied().status.success()
        },
    );
    let certificate = dir.path().join("node/node-pki/kubelet-client-current.pem");
    let (first, joined) = (std::fs::read(&certificate).unwrap(), Instant::now());
    eventually("the next certificate", Duration::from_secs(90), || {
        std::fs::read(&certificate).is_ok_and(|now| now != first)
    });
    // When the first one has ended the node goes on with the next.
    std::thread::sleep(Duration::from_secs(95).saturating_sub(joined.elapsed()));
    let lease = || {
        let time = "jsonpath={.spec.renewTime}";
        run(kubectl().args([
            "-n",
            "kube-node-lease",
            "get",
            "lease",
            "joined",
            "-o",
            time,
        ]))
    };
    let before = lease();
    eventually("the node's lease goes on", Duration::from_secs(60), || {
        lease() != before
    });
    assert!(is_ready());
    let owner = "jsonpath={.items[*].spec.username}";
    let asked = run(kubectl().args(["get", "csr", "-o", owner]));
    assert!(
        asked.contains("system:bootstrap:07401b") && asked.contains("system:node:joined"),
        "{asked}"
    );
}

/// What a process tells its service manager, a message at a time.
struct Told(std::os::unix::net::UnixDatagram);

impl Told {
    fn until(&self, wanted: &str) {
        let mut heard = String::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            let mut message = [0; 4096];
            let length = self.0.recv(&mut message).unwrap();
            heard += std::str::from_utf8(&message[..length]).unwrap();
            if heard.lines().any(|line| line == wanted) {
                return;
            }
        }
        panic!("{wanted} was not said: {heard}");
    }
}

#[test]
fn a_service_is_installed_works_and_is_removed() {
    let dir = temp_dir();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (destdir, data) = (at("machine"), at("data"));
    let installed = |path: &str| format!("{destdir}/{path}");
    let install = |more: &[&str]| {
        let mut command = Command::new(DAVIT);
        command.args(["install", "--destdir", &destdir]).args(more);
        command
    };
    let wrong = output(&mut install(&["--", "--port", "many"]));
    assert!(!wrong.status.success() && !Path::new(&destdir).exists());
    let worker = output(&mut install(&["--node"]));
    let said = String::from_utf8(worker.stderr).unwrap();
    assert!(
        said.contains("--join") && !Path::new(&destdir).exists(),
        "{said}"
    );
    run(&mut install(&[
        "--",
        "--no-node",
        "--port",
        "0",
        "--data-dir",
        &data,
    ]));
    // again, with a new binary, and the configuration that is there
    run(&mut install(&[]));
    let unit = std::fs::read_to_string(installed("etc/systemd/system/davit.service")).unwrap();
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/"))
        .unwrap();
    assert!(
        unit.contains("Type=notify") && unit.contains("KillMode=process"),
        "{unit}"
    );
    assert_eq!(
        run(Command::new(installed("usr/local/bin/kubectl-davit")).arg("--version")).trim(),
        format!("kubectl-davit {}", env!("CARGO_PKG_VERSION"))
    );

    // as systemd would start it
    let socket = dir.path().join("notify");
    let told = Told(std::os::unix::net::UnixDatagram::bind(&socket).unwrap());
    told.0
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let words: Vec<String> = start
        .split(' ')
        .map(|word| match word.strip_prefix('/') {
            Some(path) => installed(path),
            None => word.to_owned(),
        })
        .collect();
    let mut service = Command::new(installed(&words[0]));
    service
        .args(&words[1..])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "600000")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut processes = Processes(vec![service.spawn().unwrap()]);
    told.until("READY=1");
    told.until("WATCHDOG=1");
    told.until("WATCHDOG=1");
    let service = &mut processes.0[0];
    kill(Pid::from_raw(service.id().cast_signed()), Signal::SIGTERM).unwrap();
    told.until("STOPPING=1");
    assert!(service.wait().unwrap().success());

    run(Command::new(DAVIT).args(["uninstall", "--purge", "--destdir", &destdir]));
    let mut left = Vec::new();
    let mut dirs = vec![dir.path().join("machine")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => left.push(entry.path()),
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_data_directory_without_a_cluster_does_not_stop_the_removal() {
    let Some(()) = harness::root() else { return };
    // In mounts of its own, where this machine's files are out of sight.
    let script = r#"
        set -e
        cp "$1" /run/davit-under-test
        for dir in /etc /usr/local /var/lib; do mount -t tmpfs tmpfs $dir; done
        mkdir -p /usr/local/bin /var/lib/davit
        mv /run/davit-under-test /usr/local/bin/davit
        touch /var/lib/davit/notes
        /usr/local/bin/davit uninstall --purge
        find /usr/local /var/lib -type f
    "#;
    let said = run(Command::new("unshare").args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &format!("mount -t tmpfs tmpfs /run; {script}"),
        "sh",
        DAVIT,
    ]));
    assert!(
        said.contains("/var/lib/davit holds no cluster and stays"),
        "{said}"
    );
    assert!(said.ends_with("\n/var/lib/davit/notes\n"), "{said}");
}

#[test]
fn a_bundle_for_a_report_holds_no_secrets() {
    let Some(kubectl) = any_kubectl() else { return };
    let cluster = harness::Cluster::up(&["--no-node"]);
    let manifest = r#"
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: s3cret}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {file: s3cret}
---
apiVersion: v1
kind: Pod
metadata: {name: reported}
spec:
  containers: [{name: c, image: i, args: [--token=s3cret], env: [{name: A, value: s3cret}]}]
"#;
    eventually("the account of pods", Duration::from_secs(30), || {
        let mut get = cluster.kubectl(&kubectl);
        output(get.args(["get", "serviceaccount", "default"]))
            .status
            .success()
    });
    harness::kubectl_stdin(&cluster, &kubectl, &["apply", "-f", "-"], manifest);
    let dir = temp_dir();
    let file = dir.path().join("bundle.tar.gz");
    let mut command = Command::new(DAVIT);
    command.args(["debug", "bundle", "-o"]).arg(&file);
    run(command.env("KUBECONFIG", &cluster.kubeconfig));
    let again = output(&mut command);
    assert!(!again.status.success(), "what is there stays");
    let opened = std::fs::File::open(&file).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(opened));
    let mut files = std::collections::BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        let name: std::path::PathBuf = path.components().skip(1).collect();
        files.insert(name.display().to_string(), text);
    }
    let pods = &files["objects/api/v1/pods.json"];
    assert!(
        pods.contains("\"reported\"") && !pods.contains("--token"),
        "{pods}"
    );
    assert!(files["readyz.txt"].contains("[+]ping ok"));
    assert!(files["metrics.txt"].contains("apiserver_request_total"));
    let about = &files["bundle.json"];
    assert!(
        about.contains("notAnswered") && !about.contains("ApiError"),
        "{about}"
    );
    let telling: Vec<_> = files
        .iter()
        .filter(|(_, text)| text.contains("s3cret"))
        .collect();
    assert!(telling.is_empty(), "{telling:?}");
}
