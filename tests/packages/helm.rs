//! Item 204: a chart with definitions, custom resources, webhooks and hooks through helm.

use crate::harness::{Cluster, any_kubectl, kubectl, output, root, run, tests_dir};
use crate::packages::programs::package;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// helm, when it is there or can be built.
pub(crate) fn helm_binary() -> Option<PathBuf> {
    package("helm", "helm.sh/helm/v3/cmd/helm", "helm")
}

/// A helm command against a cluster, with folders of its own.
pub(crate) fn helm_command(helm: &Path, cluster: &Cluster) -> Command {
    let mut command = Command::new(helm);
    for (name, folder) in [
        ("HELM_CACHE_HOME", "helm-cache"),
        ("HELM_CONFIG_HOME", "helm-config"),
        ("HELM_DATA_HOME", "helm-data"),
    ] {
        command.env(name, cluster.dir.path().join(folder));
    }
    command
        .env("KUBECONFIG", &cluster.kubeconfig)
        .env("HOME", cluster.dir.path());
    command
}

/// One release of the chart of these tests.
struct Release<'a> {
    helm: &'a Path,
    kubectl: &'a Path,
    cluster: &'a Cluster,
}

impl Release<'_> {
    fn helm(&self, args: &[&str]) -> String {
        run(helm_command(self.helm, self.cluster).args(args))
    }

    fn helm_json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.helm(&[args, &["-o", "json"]].concat())).unwrap()
    }

    /// What helm says when it fails.
    fn refused(&self, args: &[&str]) -> String {
        let out = output(helm_command(self.helm, self.cluster).args(args));
        assert!(!out.status.success(), "helm {args:?} succeeded");
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn get(&self, args: &[&str]) -> String {
        kubectl(self.cluster, self.kubectl, [&["get"], args].concat())
    }

    /// Revisions with their states, oldest first.
    fn history(&self) -> Vec<(u64, String)> {
        let history = self.helm_json(&["history", "demo"]);
        let one = |r: &Value| {
            let state = r["status"].as_str().unwrap().to_owned();
            (r["revision"].as_u64().unwrap(), state)
        };
        history.as_array().unwrap().iter().map(one).collect()
    }

    fn gadget(&self) -> Value {
        serde_json::from_str(&self.get(&["gadget", "demo", "-o", "json"])).unwrap()
    }
}

fn states(list: &[(u64, &str)]) -> Vec<(u64, String)> {
    list.iter().map(|(n, s)| (*n, (*s).to_owned())).collect()
}

#[test]
fn item_204_a_chart_with_definitions_is_installed_upgraded_rolled_back_and_goes() {
    let (Some(helm), Some(kubectl), Some(())) = (helm_binary(), any_kubectl(), root()) else {
        return;
    };
    let cluster = Cluster::up(&["--node-name", "node-1", "--allow-host-image"]);
    let r = Release {
        helm: &helm,
        kubectl: &kubectl,
        cluster: &cluster,
    };
    let chart = tests_dir().join("packages/chart");
    let chart = chart.to_str().unwrap();

    install(&r, chart);
    upgrade(&r, chart);
    // a release that the server refuses is marked as failed; with --atomic the last good one comes back
    let told = r.refused(&[
        "upgrade",
        "demo",
        chart,
        "--reuse-values",
        "--set",
        "count=11",
    ]);
    assert!(
        told.contains("spec.count") && told.contains("less than or equal to 10"),
        "{told}"
    );
    let told = r.refused(&[
        "upgrade",
        "demo",
        chart,
        "--reuse-values",
        "--atomic",
        "--set",
        "size=huge",
    ]);
    assert!(told.contains("Unsupported value: \"huge\""), "{told}");
    let expected = [
        (1, "superseded"),
        (2, "superseded"),
        (3, "failed"),
        (4, "failed"),
        (5, "deployed"),
    ];
    assert_eq!(r.history(), states(&expected));
    rollback(&r);
    uninstall(&r);
}

fn install(r: &Release<'_>, chart: &str) {
    // the definitions of a chart are not yet served when it is only rendered
    let rendered = r.helm(&[
        "template",
        "demo",
        chart,
        "-a",
        "workshop.davit.test/v1/Gadget",
        "--kube-version",
        "1.36.0",
    ]);
    assert!(rendered.contains("kind: Gadget"), "{rendered}");
    r.helm(&["install", "demo", chart, "--wait", "--timeout", "120s"]);
    let listed = r.helm_json(&["list"]);
    assert_eq!(listed[0]["status"], "deployed", "{listed}");
    assert_eq!(listed[0]["revision"], "1");
    assert_eq!(listed[0]["chart"], "workshop-0.1.0");
    let secret: Value =
        serde_json::from_str(&r.get(&["secrets", "sh.helm.release.v1.demo.v1", "-o", "json"]))
            .unwrap();
    assert_eq!(secret["type"], "helm.sh/release.v1");
    assert_eq!(secret["metadata"]["labels"]["status"], "deployed");
    assert_eq!(r.gadget()["spec"]["count"], 1);
    let settings: Value =
        serde_json::from_str(&r.get(&["cm", "demo-settings", "-o", "json"])).unwrap();
    let namespace = r.get(&["ns", "default", "-o", "jsonpath={.metadata.uid}"]);
    assert_eq!(settings["data"]["namespace"], namespace.as_str());
    let owner = &settings["metadata"]["annotations"]["meta.helm.sh/release-name"];
    assert_eq!(owner, "demo");
    let job = r.get(&["job", "demo-before", "-o", "jsonpath={.status.succeeded}"]);
    assert_eq!(job, "1");
    let tested = r.helm(&["test", "demo", "--timeout", "60s", "--logs"]);
    assert!(tested.contains("Phase:          Succeeded"), "{tested}");
    assert!(tested.contains("checked first"), "{tested}");
    let taken = r.refused(&["install", "demo", chart]);
    assert!(taken.contains("cannot re-use a name"), "{taken}");
    let status = r.helm(&["status", "demo", "--show-resources"]);
    assert!(status.contains("==> v1/Deployment\n"), "{status}");
}

fn upgrade(r: &Release<'_>, chart: &str) {
    // what others entered stays where the chart says nothing about it
    let marked = ["annotate", "gadget", "demo", "by=somebody"];
    kubectl(r.cluster, r.kubectl, marked);
    let dry = [
        "upgrade",
        "demo",
        chart,
        "--dry-run=server",
        "--set",
        "count=3",
    ];
    let shown = r.helm(&dry);
    assert!(shown.contains("part-2"), "{shown}");
    assert_eq!(r.gadget()["spec"]["count"], 1);
    let args = ["upgrade", "demo", chart, "--wait", "--timeout", "120s"];
    r.helm(&[&args[..], &["--set", "count=3,note=second"]].concat());
    let gadget = r.gadget();
    assert_eq!(gadget["spec"]["count"], 3);
    assert_eq!(gadget["spec"]["parts"][2], "part-2");
    assert_eq!(gadget["metadata"]["annotations"]["by"], "somebody");
    let ready = ["deploy", "demo", "-o", "jsonpath={.status.readyReplicas}"];
    assert_eq!(r.get(&ready), "3");
    r.get(&["cm", "demo-more"]);
    let expected = [(1, "superseded"), (2, "deployed")];
    assert_eq!(r.history(), states(&expected));
    assert_eq!(r.helm_json(&["get", "values", "demo"])["note"], "second");
}

fn rollback(r: &Release<'_>) {
    r.helm(&["rollback", "demo", "1", "--wait", "--timeout", "120s"]);
    let gadget = r.gadget();
    assert_eq!(gadget["spec"]["count"], 1);
    assert_eq!(gadget["spec"]["parts"].as_array().unwrap().len(), 1);
    assert_eq!(gadget["metadata"]["annotations"]["by"], "somebody");
    let note = r.get(&["cm", "demo-settings", "-o", "jsonpath={.data.note}"]);
    assert_eq!(note, "first");
    let left = r.get(&["cm", "-o", "name"]);
    assert!(!left.contains("demo-more"), "{left}");
    assert!(left.contains("demo-after-rollback"), "{left}");
    assert_eq!(r.history().last().unwrap(), &(6, "deployed".to_owned()));
}

fn uninstall(r: &Release<'_>) {
    r.helm(&["uninstall", "demo", "--wait", "--timeout", "120s"]);
    assert_eq!(r.helm_json(&["list", "--all"]), serde_json::json!([]));
    let kinds =
        "gadgets,deployments,services,roles,rolebindings,secrets,validatingwebhookconfigurations";
    let left = r.get(&[kinds, "-o", "name"]);
    assert!(!left.contains("demo"), "{left}");
    // definitions stay, as helm promises
    r.get(&["crd", "gadgets.workshop.davit.test"]);
}
