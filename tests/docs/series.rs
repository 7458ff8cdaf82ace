//! What rules and dashboards ask for is what davit serves: every series that they name is there.

use crate::docs::prometheus;
use crate::harness::{
    Cluster, DAVIT, any_kubectl, eventually, kubectl, output, program, run, temp_dir, tests_dir,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Counted from the first time on: davit's own faults, which a test has none of (`crates/task` shows it).
const ONLY_AFTER: [&str; 1] = ["davit_task_panics_total"];
/// What dashboards of others ask for (docs/peers.md), of series that came for them.
const OTHERS_ASK: [&str; 2] = [
    "kubelet_runtime_operations_total",
    "kubelet_runtime_operations_duration_seconds_bucket",
];
const INVENTORY: &str = "resources: [{ name: hardware-vendor.example/foo, count: 2 }]";

/// The names of series in a query.
fn series(query: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut rest = query;
    // Labels are no series: what is in braces, and the lists after words like `by`.
    const LISTS: [&str; 5] = ["by", "on", "without", "group_left", "group_right"];
    while let Some(begin) = rest.find(|c: char| c.is_ascii_alphabetic() || "{[\"".contains(c)) {
        rest = &rest[begin..];
        let until = |end: char| rest[1..].find(end).map_or(rest.len(), |at| at + 2);
        let length = match rest.chars().next().unwrap_or_default() {
            '{' => until('}'),
            '[' => until(']'),
            '"' => until('"'),
            _ => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
                let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                let calls = after.trim_start().starts_with('(');
                if LISTS.contains(&name) && calls {
                    after.find(')').map_or(rest.len(), |at| end + at + 1)
                } else {
                    if name.contains('_') && !calls {
                        names.insert(name.to_owned());
                    }
                    end
                }
            }
        };
        rest = &rest[length..];
    }
    names
}

/// Every query of a document, under whatever key.
fn queries(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(query) if key == "expr" || (key == "query" && query.contains('(')) => {
                        found.push(query.to_owned());
                    }
                    _ => queries(value, found),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

fn deployed() -> Vec<(String, String)> {
    let deploy = tests_dir().join("../deploy");
    let mut all = Vec::new();
    for file in [
        "prometheus/rules.yaml",
        "grafana/devices.json",
        "grafana/davit.json",
    ] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        // JSON is YAML.
        let document: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let mut found = Vec::new();
        queries(&document, &mut found);
        assert!(found.len() > 10, "{file}: {found:?}");
        all.extend(found.into_iter().map(|query| (file.to_owned(), query)));
    }
    all
}

/// The names of samples on a page, and what they would be of families that have none yet.
fn served(page: &str, names: &mut BTreeSet<String>) {
    for line in page.lines() {
        let family = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '));
        let name = match family {
            Some((name, "counter")) => format!("{}_total", name.trim_end_matches("_total")),
            Some((name, "histogram")) => format!("{name}_bucket"),
            Some((name, _)) => name.to_owned(),
            None if line.starts_with('#') => continue,
            None => line.split(['{', ' ']).next().unwrap_or_default().to_owned(),
        };
        names.insert(name);
    }
}

struct Exporter(Child);

impl Drop for Exporter {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn exporter(cluster: &Cluster, address: &str) -> Exporter {
    let socket = cluster
        .dir
        .path()
        .join("data/sim/sim-0/kubelet/pod-resources/kubelet.sock");
    let mut command = Command::new(DAVIT);
    command.args([
        "exporter",
        "--node-name",
        "sim-0",
        "--listen",
        address,
        "--pod-resources-socket",
    ]);
    Exporter(command.arg(socket).stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn queries_name_series_and_more() {
    let query = "histogram_quantile(0.9, sum by (le, a_b) (rate(x_seconds_bucket{c_d=\"e_f\"}[5m]))) / on (n_o) group_left (p_q) y_total > 8e+09 or label_values(z_up, node)";
    let expected = ["x_seconds_bucket", "y_total", "z_up"].map(str::to_owned);
    assert_eq!(series(query), expected.into());
}

#[test]
fn every_series_of_rules_and_dashboards_is_served() {
    let (Some(kubectl_binary), Some(curl)) = (any_kubectl(), program("curl")) else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, INVENTORY).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "1", "--devices", &devices]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let _exporter = exporter(&cluster, &address);
    let mut page = String::new();
    eventually(
        "the exporter sees the devices",
        Duration::from_secs(60),
        || {
            let asked =
                output(Command::new(&curl).args(["-s", &format!("http://{address}/metrics")]));
            page = String::from_utf8(asked.stdout).unwrap();
            page.contains("davit_devices{")
        },
    );
    let mut names = BTreeSet::new();
    served(&page, &mut names);
    for path in ["/metrics", "/api/v1/nodes/sim-0/proxy/metrics"] {
        let page = kubectl(&cluster, &kubectl_binary, ["get", "--raw", path]);
        served(&page, &mut names);
    }
    for name in OTHERS_ASK {
        assert!(names.contains(name), "{name}");
    }
    let mut faults = Vec::new();
    for (file, query) in deployed() {
        let asked = series(&query);
        assert!(!asked.is_empty(), "{file}: {query} names no series");
        let missing = asked
            .into_iter()
            .filter(|name| !names.contains(name) && !ONLY_AFTER.contains(&name.as_str()));
        faults.extend(missing.map(|name| format!("{file}: {name} of {query}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    prometheus::reads(&cluster, &kubectl_binary, &curl, &address, &deployed());
}

/// The rules are what Prometheus takes.
#[test]
fn prometheus_takes_the_rules() {
    let Some(promtool) = prometheus::program("promtool") else {
        return;
    };
    let rules: &Path = &tests_dir().join("../deploy/prometheus/rules.yaml");
    run(Command::new(promtool).args(["check", "rules"]).arg(rules));
}
