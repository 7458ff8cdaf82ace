//! A real Prometheus with what `deploy/` has: it reads all pages, and takes every rule and every query.

use crate::harness::{Cluster, eventually, kubectl, output, part};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A program of Debian's package `prometheus`. Its name is that of the part.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|dir| dir.join(name));
    part(name, all.find(|path| path.is_file()))
}

struct Prometheus {
    process: Child,
    url: String,
    curl: PathBuf,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _gone = self.process.wait();
    }
}

impl Prometheus {
    /// Runs on a port that it chooses.
    fn start(program: &Path, curl: &Path, dir: &Path) -> Self {
        let log = dir.join("prometheus.log");
        let process = Command::new(program)
            .arg("--config.file=prometheus.yaml")
            .args([
                "--storage.tsdb.path=series",
                "--web.listen-address=127.0.0.1:0",
            ])
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn();
        let mut started = Self {
            process: process.unwrap(),
            url: String::new(),
            curl: curl.to_owned(),
        };
        eventually("Prometheus listens", SOON, || {
            let text = std::fs::read_to_string(&log).unwrap();
            let end = started.process.try_wait().unwrap();
            assert!(end.is_none(), "Prometheus has ended: {text}");
            let address = text
                .lines()
                .find_map(|line| line.split_once("msg=\"Listening on\" address="));
            started.url = address.map_or_else(String::new, |(_, at)| format!("http://{at}"));
            !started.url.is_empty()
        });
        started
    }

    /// What the API answers; null while it does not.
    fn ask(&self, path: &str, query: Option<&str>) -> serde_json::Value {
        let mut curl = Command::new(&self.curl);
        curl.args(["-s", "--max-time", "30", "--get"]);
        if let Some(query) = query {
            curl.arg("--data-urlencode").arg(format!("query={query}"));
        }
        let answer = output(curl.arg(format!("{}/api/v1/{path}", self.url)));
        serde_json::from_slice(&answer.stdout).unwrap_or_default()
    }
}

/// Configuration and account as docs/observability.md has them.
fn configure(cluster: &Cluster, kubectl_binary: &Path, exporter: &str, dir: &Path) {
    let deploy = crate::harness::tests_dir().join("../deploy/prometheus");
    let account = "kube-system:prometheus";
    for line in [
        "create serviceaccount prometheus -n kube-system",
        "create clusterrole prometheus --verb=get --non-resource-url=/metrics",
        "create clusterrole prometheus-nodes --verb=get --resource=nodes/metrics",
        &format!(
            "create clusterrolebinding prometheus --clusterrole=prometheus --serviceaccount={account}"
        ),
        &format!(
            "create clusterrolebinding prometheus-nodes --clusterrole=prometheus-nodes --serviceaccount={account}"
        ),
    ] {
        kubectl(cluster, kubectl_binary, line.split(' '));
    }
    let token = ["create", "token", "prometheus", "-n", "kube-system"];
    let token = kubectl(cluster, kubectl_binary, token);
    std::fs::write(dir.join("davit-token"), token.trim()).unwrap();
    let mut authority = String::new();
    eventually("the authority is published", SOON, || {
        let path = "jsonpath={.items[*].data.ca\\.crt}";
        let map = [
            "get",
            "configmap",
            "--field-selector=metadata.name=kube-root-ca.crt",
        ];
        authority = kubectl(cluster, kubectl_binary, [&map[..], &["-o", path]].concat());
        !authority.is_empty()
    });
    std::fs::write(dir.join("davit-ca.crt"), authority).unwrap();
    std::fs::copy(deploy.join("rules.yaml"), dir.join("rules.yaml")).unwrap();
    let place = "jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}:{.status.daemonEndpoints.kubeletEndpoint.Port}";
    let node = kubectl(
        cluster,
        kubectl_binary,
        ["get", "node", "sim-0", "-o", place],
    );
    let server = cluster.server.trim_start_matches("https://");
    let pages = std::fs::read_to_string(deploy.join("scrape.yaml")).unwrap();
    let pages = pages
        .replace("/etc/prometheus/", "")
        .replace("127.0.0.1:6443", server.trim_end_matches('/'))
        .replace("NODE:9410", exporter)
        .replace("NODE:10250", node.trim())
        .replace("NODE", "sim-0");
    let often =
        "global: { scrape_interval: 1s, evaluation_interval: 1s }\nrule_files: [rules.yaml]\n";
    std::fs::write(dir.join("prometheus.yaml"), format!("{often}{pages}")).unwrap();
}

/// All targets answer, all rules are evaluated, all queries of dashboards are understood.
pub(crate) fn reads(
    cluster: &Cluster,
    kubectl_binary: &Path,
    curl: &Path,
    exporter: &str,
    queries: &[(String, String)],
) {
    let Some(program) = program("prometheus") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    configure(cluster, kubectl_binary, exporter, dir.path());
    let prometheus = Prometheus::start(&program, curl, dir.path());
    let states = |list: &serde_json::Value, wanted: &str| {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter(|one| one["health"] == wanted).count()
    };
    let read = || {
        states(
            &prometheus.ask("targets", None)["data"]["activeTargets"],
            "up",
        ) == 3
    };
    eventually("three pages are read", SOON, read);
    let evaluated = || {
        let answer = prometheus.ask("rules", None);
        let groups = answer["data"]["groups"].as_array().cloned();
        let groups = groups.unwrap_or_default();
        let whole = |group: &serde_json::Value| {
            let rules = group["rules"].as_array().map_or(0, Vec::len);
            rules > 0 && states(&group["rules"], "ok") == rules
        };
        !groups.is_empty() && groups.iter().all(whole)
    };
    eventually("every rule is evaluated", SOON, evaluated);
    let held = prometheus.ask("query", Some("sum(davit_devices)"));
    assert_eq!(held["data"]["result"][0]["value"][1], "2", "{held}");
    for (file, query) in queries {
        // Grafana's own function, and its variables.
        if query.starts_with("label_values(") {
            continue;
        }
        let answer = prometheus.ask("query", Some(query));
        assert_eq!(answer["status"], "success", "{file}: {query}: {answer}");
    }
}
