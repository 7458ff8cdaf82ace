//! The oldest and the newest kubectl that are promised, unmodified, against a control plane without a node.

use crate::harness;
use harness::{Cluster, eventually, kubectl, kubectl_binary, kubectl_stdin, output};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\n  labels: {app: demo}\ndata:\n  color: blue\n";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: main
        image: example.test/web:1
        ports: [{containerPort: 80}]
        resources: {requests: {cpu: 100m}}
";

/// Runs a scenario with each kubectl that is promised.
fn with_each_kubectl(scenario: impl Fn(&Cluster, &Path)) {
    for release in ["1.27", "1.36"] {
        let Some(binary) = kubectl_binary(release) else {
            continue;
        };
        println!("kubectl {release}");
        let cluster = Cluster::up(&["--no-node"]);
        scenario(&cluster, &binary);
    }
}

#[test]
fn objects_are_created_read_changed_and_deleted() {
    with_each_kubectl(|cluster, k| {
        kubectl_stdin(cluster, k, &["create", "-f", "-"], CONFIG_MAP);
        assert_eq!(
            kubectl(
                cluster,
                k,
                ["get", "cm", "settings", "-o", "jsonpath={.data.color}"]
            ),
            "blue"
        );
        let table = kubectl(cluster, k, ["get", "cm", "settings"]);
        assert!(
            table.starts_with("NAME       DATA   AGE\nsettings   1"),
            "{table}"
        );
        kubectl(cluster, k, ["label", "cm", "settings", "tier=front"]);
        kubectl(
            cluster,
            k,
            ["annotate", "cm", "settings", "note=hello there"],
        );
        kubectl(
            cluster,
            k,
            ["patch", "cm", "settings", "-p", r#"{"data":{"size":"L"}}"#],
        );
        kubectl(
            cluster,
            k,
            [
                "patch",
                "cm",
                "settings",
                "--type=merge",
                "-p",
                r#"{"data":{"size":null}}"#,
            ],
        );
        let add = r#"[{"op":"add","path":"/data/shape","value":"round"}]"#;
        kubectl(
            cluster,
            k,
            ["patch", "cm", "settings", "--type=json", "-p", add],
        );
        let data = kubectl(
            cluster,
            k,
            ["get", "cm", "settings", "-o", "jsonpath={.data}"],
        );
        assert_eq!(data, r#"{"color":"blue","shape":"round"}"#);
        let selected = kubectl(
            cluster,
            k,
            ["get", "cm", "-l", "tier in (front),app=demo", "-o", "name"],
        );
        assert_eq!(selected, "configmap/settings\n");
        let described = kubectl(cluster, k, ["describe", "cm", "settings"]);
        assert!(described.contains("note: hello there"), "{described}");
        kubectl(
            cluster,
            k,
            ["delete", "cm", "settings", "--wait=true", "--timeout=10s"],
        );
        let missing = output(cluster.kubectl(k).args(["get", "cm", "settings"]));
        let text = String::from_utf8_lossy(&missing.stderr);
        assert_eq!(
            text,
            "Error from server (NotFound): configmaps \"settings\" not found\n"
        );
    });
}

/// Item 086.
#[test]
fn apply_creates_configures_and_leaves_unchanged() {
    with_each_kubectl(|cluster, k| {
        let apply = |manifest: &str| kubectl_stdin(cluster, k, &["apply", "-f", "-"], manifest);
        assert_eq!(apply(DEPLOYMENT), "deployment.apps/web created\n");
        assert_eq!(apply(DEPLOYMENT), "deployment.apps/web unchanged\n");
        let version = || {
            kubectl(
                cluster,
                k,
                [
                    "get",
                    "deploy",
                    "web",
                    "-o",
                    "jsonpath={.metadata.generation}",
                ],
            )
        };
        let before = version();
        assert_eq!(
            apply(&DEPLOYMENT.replace("web:1", "web:2")),
            "deployment.apps/web configured\n"
        );
        assert_ne!(version(), before);
        let image = "jsonpath={.spec.template.spec.containers[0].image}";
        assert_eq!(
            kubectl(cluster, k, ["get", "deploy", "web", "-o", image]),
            "example.test/web:2"
        );
        // Dropping a field from the manifest removes it; what others set stays.
        kubectl(cluster, k, ["annotate", "deploy", "web", "keep=me"]);
        apply(&DEPLOYMENT.replace("        resources: {requests: {cpu: 100m}}\n", ""));
        let resources =
            "jsonpath={.spec.template.spec.containers[0].resources}{.metadata.annotations.keep}";
        assert_eq!(
            kubectl(cluster, k, ["get", "deploy", "web", "-o", resources]),
            "{}me"
        );
        let strict = output(cluster.kubectl(k).args([
            "create",
            "cm",
            "x",
            "--validate=strict",
            "--dry-run=server",
        ]));
        assert!(strict.status.success());
    });
}

/// Item 136.
#[test]
fn unknown_fields_are_refused_by_name() {
    with_each_kubectl(|cluster, k| {
        let manifest = CONFIG_MAP.replace("data:", "dta: {x: y}\ndata:");
        let file = cluster.dir.path().join("bad.yaml");
        std::fs::write(&file, manifest).unwrap();
        let refused = output(
            cluster
                .kubectl(k)
                .args(["create", "--validate=strict", "-f"])
                .arg(&file),
        );
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && text.contains(r#"unknown field "dta""#),
            "{text}"
        );
        let invalid = DEPLOYMENT.replace("cpu: 100m", "cpu: 100mm");
        std::fs::write(&file, invalid).unwrap();
        let refused = output(cluster.kubectl(k).args(["create", "-f"]).arg(&file));
        assert!(!refused.status.success(), "an invalid quantity is refused");
    });
}

/// Items 133 and 135.
#[test]
fn discovery_and_explain_work() {
    with_each_kubectl(|cluster, k| {
        let resources = kubectl(cluster, k, ["api-resources", "-o", "wide"]);
        for expected in [
            "pods",
            "deployments",
            "resourceclaims",
            "customresourcedefinitions",
        ] {
            assert!(
                resources.lines().any(|l| l.starts_with(expected)),
                "{expected} is missing:\n{resources}"
            );
        }
        let versions = kubectl(cluster, k, ["api-versions"]);
        assert!(
            versions.lines().any(|l| l == "v1") && versions.lines().any(|l| l == "apps/v1"),
            "{versions}"
        );
        let explained = kubectl(cluster, k, ["explain", "pod.spec.containers.resources"]);
        assert!(
            explained.contains("limits") && explained.contains("requests"),
            "{explained}"
        );
        let recursive = kubectl(cluster, k, ["explain", "deployment.spec", "--recursive"]);
        assert!(recursive.contains("containerPort"), "{recursive}");
        let info = kubectl(cluster, k, ["cluster-info"]);
        assert!(info.contains(&cluster.server), "{info}");
        let version = kubectl(cluster, k, ["version", "-o", "json"]);
        assert!(version.contains("serverVersion"), "{version}");
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(kubectl(cluster, k, ["get", "--raw", path]), "ok");
        }
        let metrics = kubectl(cluster, k, ["get", "--raw", "/metrics"]);
        for series in [
            "apiserver_request_total{",
            "apiserver_client_certificate_expiration_seconds_count",
            "# TYPE aggregator_unavailable_apiservice gauge",
            // of the scheduler in the same process
            "scheduler_preemption_attempts_total",
        ] {
            assert!(metrics.contains(series), "{series} in {metrics}");
        }
        let indicators = kubectl(cluster, k, ["get", "--raw", "/metrics/slis"]);
        let etcd = r#"kubernetes_healthcheck{name="etcd",type="readyz"} 1"#;
        assert!(indicators.contains(etcd), "{indicators}");
        assert!(
            !indicators.contains("apiserver_request_total"),
            "{indicators}"
        );
    });
}

#[test]
fn watch_and_wait_see_changes() {
    with_each_kubectl(|cluster, k| {
        let mut watching = cluster
            .kubectl(k)
            .args(["get", "cm", "-w", "-l", "app=demo"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
        kubectl_stdin(cluster, k, &["create", "-f", "-"], CONFIG_MAP);
        let header = lines.next().unwrap().unwrap();
        let row = lines.next().unwrap().unwrap();
        assert!(
            header.starts_with("NAME") && row.starts_with("settings"),
            "{header}\n{row}"
        );
        kubectl(
            cluster,
            k,
            ["patch", "cm", "settings", "-p", r#"{"data":{"size":"L"}}"#],
        );
        let changed = lines.next().unwrap().unwrap();
        assert!(changed.starts_with("settings   2"), "{changed}");
        watching.kill().unwrap();
        watching.wait().unwrap();
        kubectl(
            cluster,
            k,
            [
                "wait",
                "--for=jsonpath={.data.size}=L",
                "cm/settings",
                "--timeout=10s",
            ],
        );
        let mut waiting = cluster
            .kubectl(k)
            .args(["wait", "--for=delete", "cm/settings", "--timeout=20s"])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        kubectl(cluster, k, ["delete", "cm", "settings"]);
        assert!(waiting.wait().unwrap().success());
    });
}

#[test]
fn edit_replace_and_scale_work() {
    with_each_kubectl(|cluster, k| {
        kubectl_stdin(cluster, k, &["create", "-f", "-"], CONFIG_MAP);
        let edited = output(
            cluster
                .kubectl(k)
                .args(["edit", "cm", "settings"])
                .env("KUBE_EDITOR", "sed -i s/blue/green/"),
        );
        assert!(
            edited.status.success(),
            "{}",
            String::from_utf8_lossy(&edited.stderr)
        );
        assert_eq!(
            kubectl(
                cluster,
                k,
                ["get", "cm", "settings", "-o", "jsonpath={.data.color}"]
            ),
            "green"
        );
        kubectl_stdin(cluster, k, &["replace", "-f", "-"], CONFIG_MAP);
        assert_eq!(
            kubectl(
                cluster,
                k,
                ["get", "cm", "settings", "-o", "jsonpath={.data.color}"]
            ),
            "blue"
        );
        kubectl_stdin(cluster, k, &["apply", "-f", "-"], DEPLOYMENT);
        kubectl(cluster, k, ["scale", "deploy", "web", "--replicas=3"]);
        eventually(
            "three pods of the deployment",
            Duration::from_secs(20),
            || {
                kubectl(cluster, k, ["get", "pods", "-l", "app=web", "-o", "name"])
                    .lines()
                    .count()
                    == 3
            },
        );
        kubectl(
            cluster,
            k,
            ["set", "image", "deploy/web", "main=example.test/web:3"],
        );
        eventually("a second replica set", Duration::from_secs(20), || {
            kubectl(cluster, k, ["get", "rs", "-l", "app=web", "-o", "name"])
                .lines()
                .count()
                == 2
        });
        let history = kubectl(cluster, k, ["rollout", "history", "deploy/web"]);
        assert!(history.contains("REVISION"), "{history}");
        kubectl(
            cluster,
            k,
            [
                "delete",
                "deploy",
                "web",
                "--cascade=foreground",
                "--timeout=30s",
            ],
        );
        let left = kubectl(
            cluster,
            k,
            ["get", "rs,pods", "-l", "app=web", "-o", "name"],
        );
        assert_eq!(left, "");
    });
}

#[test]
fn namespace_is_emptied_and_goes() {
    with_each_kubectl(|cluster, k| {
        kubectl(cluster, k, ["create", "namespace", "team"]);
        eventually(
            "the default service account",
            Duration::from_secs(10),
            || {
                output(
                    cluster
                        .kubectl(k)
                        .args(["-n", "team", "get", "sa", "default"]),
                )
                .status
                .success()
            },
        );
        kubectl(
            cluster,
            k,
            ["-n", "team", "create", "cm", "x", "--from-literal=a=b"],
        );
        kubectl(cluster, k, ["delete", "namespace", "team", "--timeout=30s"]);
        let gone = output(cluster.kubectl(k).args(["get", "namespace", "team"]));
        assert!(!gone.status.success());
    });
}

#[test]
fn unschedulable_pod_says_why_everywhere() {
    with_each_kubectl(|cluster, k| {
        eventually(
            "the default service account",
            Duration::from_secs(10),
            || {
                output(cluster.kubectl(k).args(["get", "sa", "default"]))
                    .status
                    .success()
            },
        );
        kubectl(
            cluster,
            k,
            ["run", "lonely", "--image=example.test/x", "--restart=Never"],
        );
        let message = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
        eventually("the scheduler's verdict", Duration::from_secs(10), || {
            kubectl(cluster, k, ["get", "pod", "lonely", "-o", message])
                .starts_with("no nodes available to schedule pods")
        });
        let described = kubectl(cluster, k, ["describe", "pod", "lonely"]);
        assert!(described.contains("FailedScheduling"), "{described}");
        let table = kubectl(cluster, k, ["get", "pods"]);
        assert!(table.contains("lonely   0/1     Pending   0"), "{table}");
    });
}
