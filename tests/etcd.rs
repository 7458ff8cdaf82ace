//! A cluster whose objects are in a real etcd.

pub(crate) mod kube_apiserver;
mod overrides;
#[path = "../crates/etcd/tests/server/mod.rs"]
pub(crate) mod server;
mod shared;
mod takeover;

use crate::harness;
use harness::{Cluster, any_kubectl, kubectl_stdin, root, run};
use server::Server;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STEP: Duration = Duration::from_secs(60);

const WORK: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: davit.local/host, command: [/bin/sh, -c, exec sleep 1000]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

struct Kube {
    cluster: Cluster,
    binary: PathBuf,
}

impl Kube {
    fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let out = harness::output(self.cluster.kubectl(&self.binary).args(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() {
            Ok(text(&out.stdout))
        } else {
            Err(text(&out.stderr))
        }
    }

    fn run(&self, args: &[&str]) -> String {
        self.try_run(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    fn ready(&self) -> String {
        let path = "jsonpath={.status.readyReplicas}";
        self.try_run(&["get", "deployment", "web", "-o", path])
            .unwrap_or_default()
    }

    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        harness::eventually(what, STEP, holds);
    }
}

/// How many keys an etcd has that begin so.
fn key_count(server: &Server, binary: &Path, prefix: &str) -> usize {
    use base64::Engine as _;
    let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let end = format!("{}0", prefix.strip_suffix('/').unwrap());
    // etcd's own client is not there; its gateway answers JSON
    let body = format!(
        r#"{{"key": "{}", "range_end": "{}", "count_only": true}}"#,
        encoded(prefix),
        encoded(&end)
    );
    let url = format!("{}/v3/kv/range", server.url());
    let answer = run(std::process::Command::new(binary).args(["-s", "-d", &body, &url]));
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["count"].as_str().unwrap_or("0").parse().unwrap()
}

#[test]
fn a_cluster_lives_in_etcd() {
    let (Some(()), Some(binary), Some(curl)) = (root(), any_kubectl(), harness::program("curl"))
    else {
        return;
    };
    let Some(mut server) = Server::start() else {
        return;
    };
    let store = format!("etcd={}", server.url());
    let args = [
        "--node-name",
        "node-1",
        "--allow-host-image",
        "--store",
        &store,
    ];
    let mut kube = Kube {
        cluster: Cluster::up(&args),
        binary,
    };
    kube.eventually("the default service account", || {
        kube.try_run(&["get", "serviceaccount", "default"]).is_ok()
    });
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], WORK);
    kube.run(&[
        "wait",
        "--for=condition=Established",
        "crd/things.example.com",
        "--timeout=60s",
    ]);
    let thing = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: one}\nspec: {a: 1}\n";
    kube.eventually("a custom object", || kubectl_stdin_tried(&kube, thing));
    kube.eventually("three pods", || kube.ready() == "3");
    assert!(key_count(&server, Path::new(&curl), "/registry/") > 50);
    assert!(!kube.cluster.dir.path().join("data/store").exists());

    // Everything is there after a power cut of davit, and no container was started again.
    let restarts = "jsonpath={.items[*].status.containerStatuses[0].restartCount}";
    let uids = kube.run(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    kube.cluster.kill();
    kube.cluster.start_again();
    assert!(kube.cluster.ready_ms < 15_000);
    kube.eventually("three pods after the restart", || kube.ready() == "3");
    let after = kube.run(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]);
    assert_eq!(after, uids);
    assert_eq!(kube.run(&["get", "pods", "-o", restarts]), "0 0 0");
    kube.run(&["get", "thing", "one"]);

    // While etcd is away davit says so, and is well again by itself.
    server.kill();
    kube.eventually("readyz to fail", || {
        kube.try_run(&["get", "--raw", "/readyz"]).is_err()
    });
    server.run();
    kube.eventually("readyz", || {
        kube.try_run(&["get", "--raw", "/readyz"]).is_ok()
    });
    kube.run(&["scale", "deployment", "web", "--replicas=1"]);
    kube.eventually("one pod", || {
        let names = kube
            .try_run(&["get", "pods", "-o", "name"])
            .unwrap_or_default();
        names.lines().count() == 1
    });
    let log = kube.cluster.log();
    assert!(!log.contains("panicked"), "{log}");
    kube.run(&["delete", "deployment", "web", "--timeout=60s"]);
    kube.eventually("no pod", || {
        kube.run(&["get", "pods", "-o", "name"]).is_empty()
    });
}

fn kubectl_stdin_tried(kube: &Kube, manifest: &str) -> bool {
    let file = kube.cluster.dir.path().join("thing.yaml");
    std::fs::write(&file, manifest).unwrap();
    kube.try_run(&["apply", "-f", &file.display().to_string()])
        .is_ok()
}

/// One API server at a time, unless they say that they share it: another one waits, and ends with a sentence that names the owner.
#[test]
fn a_second_server_is_refused() {
    let Some(server) = Server::start() else {
        return;
    };
    let url = server.url().to_string();
    let first = Cluster::up(&["--no-node", "--etcd-servers", &url]);
    let dir = harness::temp_dir();
    let data = dir.path().join("data");
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_davit"))
        .args(["up", "--no-node", "--port", "0", "--etcd-servers", &url])
        .arg("--data-dir")
        .arg(&data)
        .output()
        .unwrap();
    assert!(!second.status.success());
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    let owner = first.dir.path().join("data").display().to_string();
    assert!(
        error.contains("one API server uses it at a time") && error.contains(&owner),
        "{error}"
    );
}

/// An update of davit does not begin anew beside the objects of the one before, whose keys were others.
#[test]
fn objects_of_an_earlier_davit_are_not_passed_over() {
    let (Some(curl), Some(server)) = (harness::program("curl"), Server::start()) else {
        return;
    };
    let url = server.url().to_string();
    // `/davit/registry/core/configmaps/default/a`
    let body =
        r#"{"key": "L2Rhdml0L3JlZ2lzdHJ5L2NvcmUvY29uZmlnbWFwcy9kZWZhdWx0L2E=", "value": "e30="}"#;
    let put = format!("{url}/v3/kv/put");
    run(std::process::Command::new(curl).args(["-s", "-d", body, &put]));
    for prefix in ["/registry", "/davit"] {
        let dir = harness::temp_dir();
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_davit"))
            .args([
                "server",
                "--port",
                "0",
                "--etcd-servers",
                &url,
                "--etcd-prefix",
                prefix,
                "--data-dir",
            ])
            .arg(dir.path())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success());
        assert!(
            error.contains("below /davit/registry/ in etcd are objects"),
            "{error}"
        );
    }
}

/// No etcd there: a sentence with the address, and the exit code says so.
#[test]
fn an_etcd_that_is_not_there_is_named() {
    let dir = harness::temp_dir();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_davit"))
        .args([
            "server",
            "--port",
            "0",
            "--store",
            "etcd=http://127.0.0.1:1",
        ])
        .arg("--data-dir")
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(!out.status.success());
    let error = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        error.contains("etcd cannot be reached: http://127.0.0.1:1: ") && error.contains("refused"),
        "{error}"
    );
}
