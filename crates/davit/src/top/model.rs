//! What is shown: read from the API server and the nodes, as tables of text.

use crate::devices::{self, Answer};
use crate::plain::{bytes, or_dash, printable};
use crate::pod_state;
use anyhow::{Context, Result, bail};
use davit_api::quantity::Quantity;
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How long one answer may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// What nodes say of themselves beside their being ready.
const PRESSURES: [(&str, &str); 3] = [
    ("MemoryPressure", "memory"),
    ("DiskPressure", "disk"),
    ("PIDPressure", "processes"),
];

/// Everything at one moment.
#[derive(Debug, Default)]
pub(super) struct Moment {
    pub(super) time: String,
    pub(super) summary: String,
    pub(super) devices: Sheet,
    pub(super) pods: Sheet,
    pub(super) nodes: Sheet,
    /// What did not answer.
    pub(super) faults: Vec<String>,
}

/// Rows under titles.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Sheet {
    pub(super) titles: Vec<&'static str>,
    pub(super) rows: Vec<SheetRow>,
}

/// A line of a table.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SheetRow {
    pub(super) cells: Vec<String>,
    /// By which cells with numbers are sorted, by column.
    pub(super) numbers: HashMap<usize, i64>,
    /// Whether somebody has to look.
    pub(super) alarm: bool,
}

/// What something uses.
#[derive(Debug, Default, Clone, Copy)]
struct Used {
    milli_cpu: i64,
    memory: i64,
}

/// Asks the API server and, through it, the nodes.
///
/// # Errors
/// Nodes or pods cannot be listed. What else is missing is among the faults.
pub(super) async fn gather(client: &kube::Client) -> Result<Moment> {
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let pods: kube::Api<Pod> = kube::Api::all(client.clone());
    let all = ListParams::default();
    let (nodes, pods, answers, of_nodes, of_pods) = tokio::join!(
        within(async { Ok(nodes.list(&all).await?.items) }),
        within(async { Ok(pods.list(&all).await?.items) }),
        devices::collect(client, None),
        within(metrics(client, "nodes")),
        within(metrics(client, "pods")),
    );
    let nodes = nodes.context("cannot list nodes")?;
    let pods = pods.context("cannot list pods")?;
    let mut faults = Vec::new();
    let answers = answers.unwrap_or_else(|why| {
        faults.push(format!("devices: {why:#}"));
        Vec::new()
    });
    for (node, answer) in &answers {
        if let Err(why) = answer {
            faults.push(printable(&format!("node {node}: {why}")));
        }
    }
    let mut used = |answer: Result<Value>| match answer {
        Ok(list) => usages(&list),
        Err(why) => {
            faults.push(format!("no use of CPU and memory: {why:#}"));
            HashMap::new()
        }
    };
    let (of_nodes, of_pods) = (used(of_nodes), used(of_pods));
    let mut snapshot = tables(&nodes, &pods, &answers, &of_nodes, &of_pods);
    faults.dedup();
    snapshot.faults = faults;
    snapshot.time = jiff::Timestamp::now().strftime("%H:%M:%SZ").to_string();
    Ok(snapshot)
}

async fn within<T>(asking: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(answer) => answer,
        Err(_) => bail!("not answered within {} s", DEADLINE.as_secs()),
    }
}

async fn metrics(client: &kube::Client, of: &str) -> Result<Value> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/{of}");
    Ok(client.request(Request::get(path).body(Vec::new())?).await?)
}

/// By name, of pods `namespace/name`.
fn usages(list: &Value) -> HashMap<String, Used> {
    let amount = |usage: &Value, of: &str| usage[of].as_str().and_then(|q| Quantity::parse(q).ok());
    let mut found = HashMap::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let meta = &item["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        let key = match meta["namespace"].as_str() {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        let mut sum = Used::default();
        let parts = match item["containers"].as_array() {
            Some(containers) => containers.iter().map(|c| &c["usage"]).collect(),
            None => vec![&item["usage"]],
        };
        for usage in parts {
            let cpu = amount(usage, "cpu").map_or(0, Quantity::milli_value);
            let memory = amount(usage, "memory").map_or(0, Quantity::value);
            sum.milli_cpu = sum.milli_cpu.saturating_add(cpu);
            sum.memory = sum.memory.saturating_add(memory);
        }
        found.insert(key, sum);
    }
    found
}

fn tables(
    nodes: &[Node],
    pods: &[Pod],
    answers: &[Answer],
    of_nodes: &HashMap<String, Used>,
    of_pods: &HashMap<String, Used>,
) -> Moment {
    let devices = devices_table(answers);
    let mut held: HashMap<String, usize> = HashMap::new();
    for table in answers
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().ok())
    {
        let holders = table
            .devices
            .iter()
            .flat_map(|device| device.holders.first());
        for holder in holders {
            *held
                .entry(format!("{}/{}", holder.namespace, holder.pod))
                .or_default() += 1;
        }
    }
    let pods_table = pods_table(pods, of_pods, &held);
    let nodes_table = nodes_table(nodes, pods, answers, of_nodes);
    let alarms = |table: &Sheet| table.rows.iter().filter(|row| row.alarm).count();
    let not_healthy = match alarms(&devices) {
        0 => String::new(),
        number => format!(" ({number} not healthy)"),
    };
    let summary = format!(
        "nodes {}/{}   pods {}   devices {}, {} held{not_healthy}",
        nodes.len() - alarms(&nodes_table).min(nodes.len()),
        nodes.len(),
        pods.len(),
        devices.rows.len(),
        held.values().sum::<usize>(),
    );
    Moment {
        summary,
        devices,
        pods: pods_table,
        nodes: nodes_table,
        ..Moment::default()
    }
}

fn devices_table(answers: &[Answer]) -> Sheet {
    let mut rows = Vec::new();
    for (node, answer) in answers {
        let Ok(table) = answer else { continue };
        for device in table.devices.iter().chain(&table.held) {
            let numa: Vec<String> = device.numa_nodes.iter().map(ToString::to_string).collect();
            let holder = device.holders.first();
            let holder = holder.map(|h| format!("{}/{}", h.namespace, h.pod));
            let alarm = !matches!(device.health.as_str(), "Healthy" | "");
            let numbers = device.numa_nodes.first().map(|numa| (4, *numa));
            rows.push(SheetRow {
                cells: vec![
                    node.clone(),
                    printable(&device.resource),
                    printable(&device.id),
                    or_dash(printable(&device.health)),
                    or_dash(numa.join(",")),
                    or_dash(holder.unwrap_or_default()),
                ],
                numbers: numbers.into_iter().collect(),
                alarm,
            });
        }
    }
    Sheet {
        titles: vec!["NODE", "RESOURCE", "DEVICE", "HEALTH", "NUMA", "POD"],
        rows,
    }
}

fn pods_table(
    pods: &[Pod],
    usages: &HashMap<String, Used>,
    held: &HashMap<String, usize>,
) -> Sheet {
    let row = |pod: &Pod| {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let key = format!("{namespace}/{name}");
        let word = pod_state::word(pod);
        let alarm = pod_state::is_wrong(&word) || pod_state::unschedulable(pod).is_some();
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let devices = held.get(&key).copied().unwrap_or_default();
        let usage = usages.get(&key);
        let mut row = SheetRow {
            cells: vec![namespace, name, or_dash(node.unwrap_or_default())],
            numbers: [(5, i64::try_from(devices).unwrap_or(i64::MAX))].into(),
            alarm,
        };
        row.usage(usage);
        row.cells.push(if devices > 0 {
            devices.to_string()
        } else {
            "-".to_owned()
        });
        row.cells.push(printable(&word));
        row
    };
    Sheet {
        titles: vec![
            "NAMESPACE",
            "POD",
            "NODE",
            "CPU",
            "MEMORY",
            "DEVICES",
            "STATE",
        ],
        rows: pods.iter().map(row).collect(),
    }
}

impl SheetRow {
    /// The next two columns.
    fn usage(&mut self, usage: Option<&Used>) {
        let at = self.cells.len();
        match usage {
            None => self.cells.extend(["-".to_owned(), "-".to_owned()]),
            Some(Used { milli_cpu, memory }) => {
                self.numbers.extend([(at, *milli_cpu), (at + 1, *memory)]);
                self.cells.extend([format!("{milli_cpu}m"), bytes(*memory)]);
            }
        }
    }
}

fn nodes_table(
    nodes: &[Node],
    pods: &[Pod],
    answers: &[Answer],
    usages: &HashMap<String, Used>,
) -> Sheet {
    let mut number: HashMap<&str, i64> = HashMap::new();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        *number.entry(node.unwrap_or_default()).or_default() += 1;
    }
    let devices: BTreeMap<&str, (usize, usize)> = answers
        .iter()
        .filter_map(|(node, answer)| {
            let all = &answer.as_ref().ok()?.devices;
            let held = all
                .iter()
                .filter(|device| !device.holders.is_empty())
                .count();
            Some((node.as_str(), (held, all.len())))
        })
        .collect();
    let row = |node: &Node| {
        let name = node.metadata.name.clone().unwrap_or_default();
        let (state, alarm) = node_state(node);
        let pods = number.get(name.as_str()).copied().unwrap_or_default();
        let usage = usages.get(&name);
        let (held, all) = devices.get(name.as_str()).copied().unwrap_or_default();
        let mut row = SheetRow {
            cells: vec![name],
            numbers: [(5, pods), (6, i64::try_from(held).unwrap_or(i64::MAX))].into(),
            alarm,
        };
        row.usage(usage);
        row.cells.extend([
            of_allocatable(
                node,
                "cpu",
                usage.map(|u| u.milli_cpu),
                Quantity::milli_value,
            ),
            of_allocatable(node, "memory", usage.map(|u| u.memory), Quantity::value),
            pods.to_string(),
            format!("{held}/{all}"),
            state,
        ]);
        row
    };
    Sheet {
        titles: vec![
            "NODE", "CPU", "MEMORY", "CPU%", "MEM%", "PODS", "DEVICES", "STATE",
        ],
        rows: nodes.iter().map(row).collect(),
    }
}

/// Which part of what pods may have is used.
fn of_allocatable(
    node: &Node,
    resource: &str,
    used: Option<i64>,
    amount: impl Fn(Quantity) -> i64,
) -> String {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let all = allocatable.and_then(|all| Quantity::parse(&all.get(resource)?.0).ok());
    match (used, all.map(amount)) {
        (Some(used), Some(all @ 1..)) => {
            let part = i128::from(used) * 100 / i128::from(all);
            format!("{part}%")
        }
        _ => "-".to_owned(),
    }
}

/// Ready or not, and what is short.
fn node_state(node: &Node) -> (String, bool) {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    let holds = |of: &str| {
        let mut all = conditions.unwrap_or_default().iter();
        all.any(|condition| condition.type_ == of && condition.status == "True")
    };
    let ready = holds("Ready");
    let mut words = vec![if ready { "Ready" } else { "NotReady" }.to_owned()];
    let short = PRESSURES.iter().filter(|(condition, _)| holds(condition));
    let short: Vec<&str> = short.map(|(_, word)| *word).collect();
    if !short.is_empty() {
        words.push(format!("short of {}", short.join(" and ")));
    }
    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        words.push("no new pods".to_owned());
    }
    (words.join(", "), !ready || !short.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::devices::{Device, Holder, NodeDevices};
    use serde_json::json;

    #[test]
    fn sums_of_what_others_say_have_an_end() {
        let most = json!({"usage": {"cpu": "9E", "memory": "9E"}});
        let list = json!({"items": [{"metadata": {"name": "p", "namespace": "n"},
            "containers": [most, most, most]}]});
        let sum = usages(&list)["n/p"];
        assert!(sum.memory > 0 && sum.milli_cpu > 0, "{sum:?}");
    }

    #[test]
    fn tables_say_who_holds_and_who_uses_what() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {
            "allocatable": {"cpu": "2", "memory": "1Gi"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True"}]}}))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"},
            "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"}}))
        .unwrap();
        let holder = Holder {
            namespace: "n".into(),
            pod: "p".into(),
            ..Holder::default()
        };
        let device = Device {
            resource: "x.example/foo".into(),
            id: "f\x1b-0".into(),
            health: "Unhealthy".into(),
            numa_nodes: vec![1],
            holders: vec![holder],
            ..Device::default()
        };
        let table = NodeDevices {
            devices: vec![device],
            ..NodeDevices::default()
        };
        let of_nodes = usages(&json!({"items": [
            {"metadata": {"name": "a"}, "usage": {"cpu": "500000000n", "memory": "256Mi"}}]}));
        let of_pods = usages(
            &json!({"items": [{"metadata": {"name": "p", "namespace": "n"}, "containers": [
            {"usage": {"cpu": "200m", "memory": "1Mi"}}, {"usage": {"cpu": "50m", "memory": "1Mi"}}]}]}),
        );
        let seen = tables(
            &[node],
            &[pod],
            &[("a".to_owned(), Ok(table))],
            &of_nodes,
            &of_pods,
        );
        let cells = |table: &Sheet| table.rows[0].cells.join(" ");
        assert_eq!(
            cells(&seen.devices),
            "a x.example/foo f\u{fffd}-0 Unhealthy 1 n/p"
        );
        assert_eq!(cells(&seen.pods), "n p a 250m 2Mi 1 Running");
        assert_eq!(
            cells(&seen.nodes),
            "a 500m 256Mi 25% 25% 1 1/1 Ready, short of disk"
        );
        assert!(seen.devices.rows[0].alarm && seen.nodes.rows[0].alarm && !seen.pods.rows[0].alarm);
        assert_eq!(
            seen.summary,
            "nodes 0/1   pods 1   devices 1, 1 held (1 not healthy)"
        );
        for table in [&seen.devices, &seen.pods, &seen.nodes] {
            assert_eq!(table.titles.len(), table.rows[0].cells.len());
        }
    }
}
