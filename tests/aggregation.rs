//! An aggregated API server on the official Go library behind davit, used by unmodified kubectl.

use crate::harness;
use harness::{
    Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output, part, tests_dir,
};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAME: &str = "v1alpha1.instruments.davit.test";

/// A Go program of `tests/peers/{folder}`, built once into `tests/.cache/{name}` when there is a Go toolchain.
fn go_program(folder: &str, name: &str) -> Option<PathBuf> {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let built = tests_dir().join(".cache").join(name);
    if !built.is_file() {
        let output = Command::new("go")
            .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
            .arg(&built)
            .arg(".")
            .current_dir(tests_dir().join("peers").join(folder))
            .output();
        match output {
            Ok(output) if !output.status.success() => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                println!("{name} was not built: {why}");
            }
            Ok(_) => {}
            Err(error) => println!("{name} was not built: {error}"),
        }
    }
    part(name, built.is_file().then_some(built))
}

/// The server as a process of its own, outside of the cluster.
struct Gauges {
    child: Child,
    port: u16,
}

impl Gauges {
    fn start(binary: &Path, cluster: &Cluster) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        Self::start_on(binary, cluster, port)
    }

    fn start_on(binary: &Path, cluster: &Cluster, port: u16) -> Self {
        let log = std::fs::File::create(cluster.dir.path().join("gauges.log")).unwrap();
        let kubeconfig = cluster.kubeconfig.display();
        let child = Command::new(binary)
            .arg("--bind-address=127.0.0.1")
            .arg(format!("--secure-port={port}"))
            .arg(format!(
                "--cert-dir={}",
                cluster.dir.path().join("gauges").display()
            ))
            .arg(format!("--kubeconfig={kubeconfig}"))
            .arg(format!("--authentication-kubeconfig={kubeconfig}"))
            .arg(format!("--authorization-kubeconfig={kubeconfig}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, port }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A Service that stands for something outside of the cluster, and the APIService.
    fn manifests(&self) -> String {
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: gauges, namespace: default}}
spec: {{type: ExternalName, externalName: localhost}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {NAME}}}
spec:
  group: instruments.davit.test
  version: v1alpha1
  service: {{namespace: default, name: gauges, port: {}}}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 1000
  versionPriority: 15
",
            self.port
        )
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn gauge(name: &str, unit: &str) -> String {
    format!(
        "apiVersion: instruments.davit.test/v1alpha1
kind: Gauge
metadata: {{name: {name}, labels: {{app: test}}}}
spec: {{unit: {unit}, reading: 7}}
"
    )
}

fn available(cluster: &Cluster, k: &Path) -> String {
    let path = "jsonpath={.status.conditions[0].status} {.status.conditions[0].reason}";
    kubectl(cluster, k, ["get", "apiservice", NAME, "-o", path])
}

#[test]
fn item_163_165_166_169_a_server_of_the_official_library_is_used_through_kubectl() {
    let Some(binary) = go_program("aggregated", "aggregated-apiserver") else {
        return;
    };
    let releases = ["1.27", "1.36"];
    let kubectls: Vec<_> = releases.into_iter().filter_map(kubectl_binary).collect();
    let Some(k) = kubectls.last() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node", "--allow-loopback-endpoints"]);
    let mut gauges = Gauges::start(&binary, &cluster);
    kubectl_stdin(&cluster, k, &["create", "-f", "-"], &gauges.manifests());
    eventually("the server is available", Duration::from_secs(60), || {
        available(&cluster, k) == "True Passed"
    });
    for (i, k) in kubectls.iter().enumerate() {
        let name = format!("boiler-{i}");
        kubectl_stdin(&cluster, k, &["create", "-f", "-"], &gauge(&name, "bar"));
        let unit = kubectl(
            &cluster,
            k,
            ["get", "gauge", &name, "-o", "jsonpath={.spec.unit}"],
        );
        assert_eq!(unit, "bar");
        // The short name, by discovery.
        let table = kubectl(&cluster, k, ["get", "gg", "-l", "app=test"]);
        assert!(table.contains(&name), "{table}");
        eventually("the schema is merged", Duration::from_secs(20), || {
            let explained = output(cluster.kubectl(k).args(["explain", "gauge.spec"]));
            String::from_utf8_lossy(&explained.stdout).contains("The last reading.")
        });
        let patch = r#"{"spec":{"reading":9}}"#;
        kubectl(
            &cluster,
            k,
            ["patch", "gauge", &name, "--type=merge", "-p", patch],
        );
        let reading = kubectl(
            &cluster,
            k,
            ["get", "gauge", &name, "-o", "jsonpath={.spec.reading}"],
        );
        assert_eq!(reading, "9");
    }
    let seen = kubectl(
        &cluster,
        k,
        ["api-resources", "--api-group=instruments.davit.test"],
    );
    assert!(seen.contains("gauges") && seen.contains("gg"), "{seen}");
    watches_stream(&cluster, k);
    namespaces_are_emptied(&cluster, k);

    gauges.kill();
    eventually("the loss is noticed", Duration::from_secs(60), || {
        // A request that fails makes the server look at once.
        let _refused = output(cluster.kubectl(k).args(["get", "gauges"]));
        available(&cluster, k) == "False FailedDiscoveryCheck"
    });
    let refused = output(cluster.kubectl(k).args([
        "get",
        "--raw",
        "/apis/instruments.davit.test/v1alpha1/gauges",
    ]));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{text}");
    assert!(
        text.contains("unable to handle the request") || text.contains("service unavailable"),
        "{text}"
    );
    for k in &kubectls {
        kubectl(&cluster, k, ["get", "pods,deployments", "-A"]);
        kubectl(
            &cluster,
            k,
            ["create", "configmap", "still", "--from-literal=a=b"],
        );
        kubectl(&cluster, k, ["delete", "configmap", "still"]);
    }
    let listed = kubectl(&cluster, k, ["get", "apiservices"]);
    let line = |name: &str| {
        listed
            .lines()
            .find(|l| l.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(
        line(NAME).contains("default/gauges")
            && line(NAME).contains("False (FailedDiscoveryCheck)"),
        "{listed}"
    );
    assert!(
        line("v1.apps ").contains("Local") && line("v1.apps ").contains("True"),
        "{listed}"
    );

    let again = Gauges::start_on(&binary, &cluster, gauges.port);
    eventually("it is back", Duration::from_secs(60), || {
        available(&cluster, k) == "True Passed"
    });
    kubectl_stdin(&cluster, k, &["create", "-f", "-"], &gauge("again", "kPa"));
    drop(again);
}

fn watches_stream(cluster: &Cluster, k: &Path) {
    let mut watch = cluster
        .kubectl(k)
        .args(["get", "gauges", "-w", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let next = || receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(next().contains("gauge"));
    kubectl_stdin(cluster, k, &["create", "-f", "-"], &gauge("watched", "mm"));
    while !next().contains("watched") {}
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// Item 117: what other servers keep goes with its namespace too.
fn namespaces_are_emptied(cluster: &Cluster, k: &Path) {
    kubectl(cluster, k, ["create", "namespace", "short"]);
    kubectl_stdin(
        cluster,
        k,
        &["create", "-n", "short", "-f", "-"],
        &gauge("lost", "K"),
    );
    kubectl(
        cluster,
        k,
        ["delete", "namespace", "short", "--timeout=60s"],
    );
    let left = kubectl(cluster, k, ["get", "gauges", "-A", "-o", "name"]);
    assert!(!left.contains("lost"), "{left}");
}

/// Item 194: the binary under the name `kubectl-davit` is `kubectl davit`, and a credential plugin logs in.
#[test]
fn item_194_plugins_of_kubectl_work() {
    for release in ["1.27", "1.36"] {
        let Some(k) = kubectl_binary(release) else {
            continue;
        };
        let cluster = Cluster::up(&["--no-node", "--allow-loopback-endpoints"]);
        let bin = cluster.dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(harness::DAVIT, bin.join("kubectl-davit")).unwrap();
        let path = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let shown = output(
            cluster
                .kubectl(&k)
                .env("PATH", &path)
                .args(["davit", "--help"]),
        );
        let help = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(
            help.contains("kubectl davit")
                && help.contains("devices")
                && !help.contains("scheduler"),
            "{help}"
        );
        let devices = output(
            cluster
                .kubectl(&k)
                .env("PATH", &path)
                .args(["davit", "devices", "-o", "json"]),
        );
        assert!(
            devices.status.success(),
            "{}",
            String::from_utf8_lossy(&devices.stderr)
        );
        let pod = output(
            cluster
                .kubectl(&k)
                .env("PATH", &path)
                .args(["davit", "explain", "pod", "none"]),
        );
        let said = String::from_utf8_lossy(&pod.stderr).into_owned();
        assert!(
            said.contains("there is no pod none in namespace default"),
            "{said}"
        );
        credential_plugin(&cluster, &k, release);
    }
}

fn credential_plugin(cluster: &Cluster, k: &Path, release: &str) {
    // Flags of the older kubectl know only the beta of the protocol.
    let (version, mode) = match release {
        "1.27" => ("client.authentication.k8s.io/v1beta1", None),
        _ => (
            "client.authentication.k8s.io/v1",
            Some("--exec-interactive-mode=Never"),
        ),
    };
    let token = kubectl(
        cluster,
        k,
        ["create", "token", "default", "-n", "kube-system"],
    );
    // Beside the kubeconfig, the older kubectl would write its bare name there and look it up in the PATH.
    let folder = cluster.dir.path().join("credentials");
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("login");
    let answer = format!(
        r#"{{"apiVersion":"{version}","kind":"ExecCredential","status":{{"token":"{}"}}}}"#,
        token.trim()
    );
    let text = format!("#!/bin/sh\n[ -n \"$KUBERNETES_EXEC_INFO\" ] || exit 1\necho '{answer}'\n");
    std::fs::write(&script, text).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = cluster.dir.path().join("exec.kubeconfig");
    std::fs::copy(&cluster.kubeconfig, &config).unwrap();
    let run = |args: &[&str]| {
        let mut command = cluster.kubectl(k);
        harness::run(command.env("KUBECONFIG", &config).args(args))
    };
    let command = format!("--exec-command={}", script.display());
    let version = format!("--exec-api-version={version}");
    let mut login = vec!["config", "set-credentials", "by-plugin", &command, &version];
    login.extend(mode);
    run(&login);
    run(&["config", "set-context", "--current", "--user=by-plugin"]);
    // `auth whoami` of the older kubectl asks a version of the API that is no more.
    let review = folder.join("review.json");
    let question = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
    std::fs::write(&review, question).unwrap();
    let who = run(&[
        "create",
        "-f",
        &review.display().to_string(),
        "--validate=false",
        "-o",
        "jsonpath={.status.userInfo.username}",
    ]);
    assert_eq!(who, "system:serviceaccount:kube-system:default");
}
