//! An operator built on controller-runtime, with its definition, conversion and admission webhooks (`go/operator`).

use crate::harness::{Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output};
use crate::peers::parts::go_peer;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

/// The operator as a process; ends with the value.
struct Operator(Child);

impl Operator {
    fn start(program: &Path, cluster: &Cluster, log: &Path) -> Self {
        let port = free_port().to_string();
        let child = Command::new(program)
            .arg("--kubeconfig")
            .arg(&cluster.kubeconfig)
            .args(["--webhook-port", &port, "--dir"])
            .arg(cluster.dir.path())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log).unwrap())
            .spawn()
            .unwrap();
        let mut operator = Self(child);
        let mut lines = BufReader::new(operator.0.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|l| l == "ready");
        assert!(
            ready,
            "the operator ended early: {}",
            std::fs::read_to_string(log).unwrap_or_default()
        );
        operator
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn fleet(version: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: operator.davit.dev/{version}\nkind: Fleet\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

/// What kubectl says when a manifest is refused.
fn refused(cluster: &Cluster, k: &Path, manifest: &str) -> String {
    let file = cluster.dir.path().join("refused.yaml");
    std::fs::write(&file, manifest).unwrap();
    let out = output(cluster.kubectl(k).args(["create", "-f"]).arg(&file));
    assert!(!out.status.success(), "taken: {manifest}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn an_operator_with_webhooks_behaves() {
    let (Some(program), Some(k)) = (go_peer("operator"), kubectl_binary("1.36")) else {
        return;
    };
    let cluster = Cluster::up(&["--no-node"]);
    let log = cluster.dir.path().join("operator.log");
    let operator = Operator::start(&program, &cluster, &log);

    // the mutating webhook matches an equivalent version; the conversion webhook stores v1
    kubectl_stdin(
        &cluster,
        &k,
        &["create", "-f", "-"],
        &fleet("v1alpha1", "one", "paint: blue"),
    );
    let field = |resource: &str, path: &str| {
        kubectl(
            &cluster,
            &k,
            [
                "get",
                resource,
                "one",
                "-o",
                &format!("jsonpath={{{path}}}"),
            ],
        )
    };
    assert_eq!(
        field("fleets.v1.operator.davit.dev", ".spec"),
        r#"{"color":"blue","replicas":1}"#
    );
    assert_eq!(
        field("fleets.v1alpha1.operator.davit.dev", ".spec"),
        r#"{"count":1,"paint":"blue"}"#
    );
    kubectl(
        &cluster,
        &k,
        [
            "wait",
            "--for=condition=Ready",
            "fleet/one",
            "--timeout=60s",
        ],
    );
    assert!(kubectl(&cluster, &k, ["get", "fl"]).starts_with("NAME   COLOR   THERE"));
    assert!(kubectl(&cluster, &k, ["get", "events"]).contains("launched one-0"));

    kubectl(&cluster, &k, ["scale", "fleet/one", "--replicas=3"]);
    let members = || kubectl(&cluster, &k, ["get", "cm", "-l", "fleet=one", "-o", "name"]);
    eventually("three members", WAIT, || members().lines().count() == 3);
    kubectl(&cluster, &k, ["delete", "cm", "one-1"]);
    eventually("the deleted member back", WAIT, || {
        members().contains("one-1")
    });

    let told = refused(&cluster, &k, &fleet("v1", "two", "color: red"));
    assert!(
        told.contains(r#"admission webhook "validate.fleets.davit.dev" denied the request: no fleet may be red"#),
        "{told}"
    );
    let told = refused(&cluster, &k, &fleet("v1", "two", "color: Blue"));
    assert!(told.contains("colors are written small"), "{told}");
    let told = refused(&cluster, &k, &fleet("v1", "two", "replicas: 21"));
    assert!(
        told.contains("should be less than or equal to 20"),
        "{told}"
    );
    let file = cluster.dir.path().join("yellow.yaml");
    std::fs::write(&file, fleet("v1", "yellow", "color: yellow")).unwrap();
    let warned = output(cluster.kubectl(&k).args(["create", "-f"]).arg(&file));
    assert!(
        String::from_utf8_lossy(&warned.stderr).contains("Warning: yellow fades"),
        "{warned:?}"
    );

    // the finalizer runs, then the owned objects go with their owner
    kubectl(&cluster, &k, ["delete", "fleet", "one", "--timeout=60s"]);
    kubectl(&cluster, &k, ["get", "cm", "one-farewell"]);
    eventually("the members collected", WAIT, || members().is_empty());
    drop(operator);

    // without its operator the validating webhook fails closed and says who is missing
    let told = refused(&cluster, &k, &fleet("v1", "three", "color: blue"));
    assert!(
        told.contains(r#"failed calling webhook "mutate.fleets.davit.dev""#),
        "{told}"
    );
}
