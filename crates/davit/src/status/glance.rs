//! What was seen, for people and for programs.

use crate::devices::Answer;
use crate::page::{Page, Paint, Tone};
use crate::plain::{age, printable};
use crate::pod_state;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// As much of what needs attention is shown without `-o wide`.
pub(super) const SHOWN: usize = 10;
/// A lease that was not renewed for so many times its length is nobody's.
const MISSED: i64 = 2;
/// A new pod may wait so many seconds for its node.
const PATIENCE: i64 = 5;
/// Conditions of nodes that should not hold.
const PRESSURES: [&str; 4] = [
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
];

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Glance {
    server: String,
    version: String,
    ready: bool,
    pub(super) components: Vec<Component>,
    nodes: NodeCount,
    /// By resource or driver.
    devices: BTreeMap<String, DeviceCount>,
    /// By phase.
    pods: BTreeMap<String, usize>,
    pub(super) attention: Vec<Attention>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Component {
    name: String,
    healthy: bool,
    detail: String,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeCount {
    total: usize,
    ready: usize,
    unschedulable: usize,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceCount {
    total: usize,
    held: usize,
    not_healthy: usize,
}

/// Something to look at, and the command to look closer.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Attention {
    what: String,
    command: String,
}

impl Component {
    /// The one that leads, by its lease; none if nobody does.
    pub(super) fn of_lease(name: &str, lease: &Lease, now: Timestamp) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let holder = spec.holder_identity.as_deref().filter(|h| !h.is_empty())?;
        let renewed = spec.renew_time.as_ref()?.0;
        let seconds = now.duration_since(renewed).as_secs();
        let length = i64::from(spec.lease_duration_seconds.unwrap_or(15));
        Some(Self {
            name: name.to_owned(),
            healthy: seconds <= MISSED * length,
            detail: printable(&format!("{holder}, renewed {} ago", age(seconds))),
        })
    }

    pub(super) fn of_statuses(list: &Value) -> Vec<Self> {
        let items = list["items"].as_array().into_iter().flatten();
        let component = |item: &Value| {
            let conditions = item["conditions"].as_array()?;
            let healthy = conditions.iter().find(|c| c["type"] == "Healthy")?;
            let said = [&healthy["error"], &healthy["message"]];
            let said = said
                .into_iter()
                .filter_map(Value::as_str)
                .find(|s| !s.is_empty());
            Some(Self {
                name: printable(item["metadata"]["name"].as_str()?),
                healthy: healthy["status"] == "True",
                detail: printable(said.unwrap_or_default()),
            })
        };
        items.filter_map(component).collect()
    }
}

impl Glance {
    pub(super) fn new(server: &str, version: &str) -> Self {
        Self {
            server: server.to_owned(),
            version: printable(version),
            ready: true,
            components: Vec::new(),
            nodes: NodeCount::default(),
            devices: BTreeMap::new(),
            pods: BTreeMap::new(),
            attention: Vec::new(),
        }
    }

    fn look(&mut self, what: &str, command: impl Into<String>) {
        self.attention.push(Attention {
            what: printable(what),
            command: printable(&command.into()),
        });
    }

    /// What could not be asked for.
    pub(super) fn unknown(&mut self, what: &str, why: &anyhow::Error) {
        self.look(
            &format!("{what} cannot be read: {why:#}"),
            format!("kubectl get {what} -v6"),
        );
    }

    /// The lines of `/readyz?verbose`.
    pub(super) fn readiness(&mut self, text: &str) {
        let failed: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("[-]"))
            .collect();
        self.ready = failed.is_empty();
        for line in failed {
            let said = line.trim_start_matches("[-]");
            self.look(
                &format!("the API server is not ready: {said}"),
                "kubectl get --raw '/readyz?verbose'",
            );
        }
    }

    pub(super) fn nodes(&mut self, nodes: &[Node]) {
        for node in nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            self.nodes.total += 1;
            let spec = node.spec.as_ref();
            if spec.and_then(|spec| spec.unschedulable) == Some(true) {
                self.nodes.unschedulable += 1;
            }
            let status = node.status.as_ref();
            let conditions = status
                .and_then(|s| s.conditions.as_deref())
                .unwrap_or_default();
            let ready = conditions.iter().find(|c| c.type_ == "Ready");
            if ready.is_some_and(|ready| ready.status == "True") {
                self.nodes.ready += 1;
            } else {
                let why = ready.and_then(|r| r.message.clone()).unwrap_or_default();
                self.look(
                    format!("node {name} is not ready: {why}").trim_end_matches([':', ' ']),
                    format!("davit events --for node/{name}"),
                );
            }
            for condition in conditions {
                if PRESSURES.contains(&condition.type_.as_str()) && condition.status == "True" {
                    let why = condition.message.as_deref().unwrap_or_default();
                    self.look(
                        &format!("node {name} has {}: {why}", condition.type_),
                        format!("kubectl describe node {name}"),
                    );
                }
            }
        }
    }

    pub(super) fn devices(&mut self, answers: &[Answer]) {
        for (node, answer) in answers {
            let table = match answer {
                Ok(table) => table,
                // Other node agents have no such table.
                Err(why) if why.contains("not a davit node") => continue,
                Err(why) => {
                    self.look(
                        &format!("node {node} does not tell its devices: {why}"),
                        format!("davit devices --node {node}"),
                    );
                    continue;
                }
            };
            let mut broken: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for device in &table.devices {
                let resource = printable(&device.resource);
                let count = self.devices.entry(resource).or_default();
                count.total += 1;
                count.held += usize::from(!device.holders.is_empty());
                if device.health != "Healthy" {
                    count.not_healthy += 1;
                    broken.entry(&device.resource).or_default().push(&device.id);
                }
            }
            for (resource, ids) in broken {
                let more = match ids.len() {
                    1 => ids.join(""),
                    number => format!("{} and {} more", ids[0], number - 1),
                };
                self.look(
                    &format!("{resource} on node {node} is not healthy: {more}"),
                    format!("davit devices --node {node} -o wide"),
                );
            }
            for resource in &table.empty {
                self.look(
                    &format!("the plugin of {resource} on node {node} has no device"),
                    format!("davit devices --node {node}"),
                );
            }
        }
    }

    pub(super) fn pods(&mut self, pods: &[Pod], now: Timestamp) {
        for pod in pods {
            let meta = &pod.metadata;
            let name = meta.name.as_deref().unwrap_or_default();
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            // Whatever its node says.
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            let phase = printable(phase.unwrap_or("Pending"));
            *self.pods.entry(phase).or_default() += 1;
            let word = pod_state::word(pod);
            let made = meta.creation_timestamp.as_ref();
            let waits = made.map_or(0, |made| now.duration_since(made.0).as_secs());
            if let Some(why) = pod_state::unschedulable(pod).filter(|_| waits > PATIENCE) {
                self.look(
                    &format!(
                        "pod {namespace}/{name} has no node for {}: {why}",
                        age(waits)
                    ),
                    format!("davit explain pod {name} -n {namespace}"),
                );
            } else if pod_state::is_wrong(&word) {
                // What has not begun has no log.
                let command = match word.as_str() {
                    "CrashLoopBackOff" => format!("davit logs {name} -n {namespace} --previous"),
                    "Error" | "OOMKilled" => format!("davit logs {name} -n {namespace}"),
                    "UnexpectedAdmissionError" => {
                        format!("davit explain pod {name} -n {namespace}")
                    }
                    _ => format!("davit events --for pod/{name} -n {namespace}"),
                };
                self.look(&format!("pod {namespace}/{name}: {word}"), command);
            }
        }
    }

    /// Groups of the API that another server serves, and does not.
    pub(super) fn api_services(&mut self, list: &Value) {
        for item in list["items"].as_array().into_iter().flatten() {
            let conditions = item["status"]["conditions"].as_array();
            let available =
                conditions.and_then(|all| all.iter().find(|c| c["type"] == "Available"));
            let Some(available) = available.filter(|condition| condition["status"] != "True")
            else {
                continue;
            };
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            let why = available["message"].as_str().unwrap_or_default();
            self.look(
                &format!("the API {name} is not served: {why}"),
                format!("kubectl describe apiservice {name}"),
            );
        }
    }

    /// For people, with at most so much of what needs attention.
    pub(super) fn text(&self, most: usize, paint: Paint) -> String {
        let mut page = Page::new(paint);
        let (tone, state) = match self.ready {
            true => (Tone::Good, "ready"),
            false => (Tone::Bad, "not ready"),
        };
        let server = format!("   {}   {}   ", self.server, self.version);
        page.pieces(&[
            (Tone::Title, "API server"),
            (Tone::Plain, &server),
            (tone, state),
        ]);
        for component in &self.components {
            component.show(&mut page);
        }
        self.show_counts(&mut page);
        if !self.devices.is_empty() {
            let rows: Vec<_> = self.devices.iter().map(device_row).collect();
            page.gap();
            page.table(&["DEVICES", "TOTAL", "HELD", "NOT HEALTHY"], &rows);
        }
        page.gap();
        if self.attention.is_empty() {
            page.toned(Tone::Good, "Nothing needs attention.");
            return page.into_text();
        }
        page.toned(Tone::Title, "Needs attention:");
        for Attention { what, command } in self.attention.iter().take(most) {
            page.toned(Tone::Doubtful, format!("  {what}"));
            page.line(format!("      {command}"));
        }
        if let Some(more @ 1..) = self.attention.len().checked_sub(most) {
            page.line(format!("  … and {more} more: davit status -o wide"));
        }
        page.into_text()
    }

    /// Nodes and pods.
    fn show_counts(&self, page: &mut Page) {
        let NodeCount {
            total,
            ready,
            unschedulable,
        } = self.nodes;
        let tone = match ready < total {
            true => Tone::Bad,
            false => Tone::Plain,
        };
        let ready = format!("        {ready} of {total} ready");
        let closed = match unschedulable {
            0 => String::new(),
            number => format!(", {number} without new pods"),
        };
        page.pieces(&[
            (Tone::Title, "Nodes"),
            (tone, &ready),
            (Tone::Plain, &closed),
        ]);
        let all: usize = self.pods.values().sum();
        let phases = self.pods.iter().map(|(phase, n)| format!("{n} {phase}"));
        let phases = phases.collect::<Vec<_>>().join(", ");
        let pods = format!("         {all}   {phases}");
        page.pieces(&[(Tone::Title, "Pods"), (Tone::Plain, pods.trim_end())]);
    }
}

impl Component {
    fn show(&self, page: &mut Page) {
        let (tone, state) = match self.healthy {
            true => (Tone::Good, "healthy"),
            false => (Tone::Bad, "NOT HEALTHY"),
        };
        let name = format!("  {:<24} ", self.name);
        if self.detail.is_empty() || self.detail == "ok" {
            page.pieces(&[(Tone::Plain, &name), (tone, state)]);
            return;
        }
        let state = format!("{state:<11}");
        let detail = format!("  {}", self.detail);
        page.pieces(&[(Tone::Plain, &name), (tone, &state), (Tone::Plain, &detail)]);
    }
}

fn device_row((resource, count): (&String, &DeviceCount)) -> Vec<String> {
    let DeviceCount {
        total,
        held,
        not_healthy,
    } = count;
    vec![
        resource.clone(),
        total.to_string(),
        held.to_string(),
        not_healthy.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::devices::{Device, Holder, NodeDevices};
    use serde_json::json;

    fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_needs_attention_comes_with_the_command() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let mut report = Glance::new("https://h:6443", "v1.36.0");
        report.readiness("[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed");
        report.nodes(&[
            parse(json!({"metadata": {"name": "a"}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "True", "message": "full"}]}})),
            parse(json!({"metadata": {"name": "b"}, "spec": {"unschedulable": true}})),
        ]);
        let device = |id: &str, health: &str, holders: Vec<Holder>| Device {
            resource: "x.example/foo".into(),
            id: id.into(),
            health: health.into(),
            holders,
            ..Device::default()
        };
        let devices = vec![
            device("1", "Healthy", vec![Holder::default()]),
            device("2", "Unhealthy", Vec::new()),
            device("3", "Unknown", Vec::new()),
        ];
        let told = NodeDevices {
            devices,
            ..NodeDevices::default()
        };
        report.devices(&[
            ("a".to_owned(), Ok(told)),
            ("b".to_owned(), Err("no answer within 10 s".to_owned())),
            ("c".to_owned(), Err("… (not a davit node)".to_owned())),
        ]);
        report.pods(
            &[
                parse(json!({"metadata": {"name": "p", "namespace": "n", "creationTimestamp": "2026-01-01T00:50:00Z"},
                    "status": {"phase": "Pending", "conditions": [
                        {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]}})),
                parse(json!({"metadata": {"name": "q", "namespace": "n"}, "status": {"phase": "Failed", "reason": "Evicted"}})),
                parse(json!({"metadata": {"name": "r", "namespace": "n"}, "status": {"phase": "Running"}})),
            ],
            now,
        );
        report.api_services(
            &json!({"items": [{"metadata": {"name": "v1.x"}, "status": {"conditions": [
            {"type": "Available", "status": "False", "message": "gone"}]}}]}),
        );
        report.components =
            Component::of_statuses(&json!({"items": [{"metadata": {"name": "scheduler"},
            "conditions": [{"type": "Healthy", "status": "False", "error": "refused"}]}]}));
        let expected = "\
API server   https://h:6443   v1.36.0   not ready
  scheduler                NOT HEALTHY  refused
Nodes        1 of 2 ready, 1 without new pods
Pods         3   1 Failed, 1 Pending, 1 Running

DEVICES         TOTAL   HELD   NOT HEALTHY
x.example/foo   3       1      2

Needs attention:
  the API server is not ready: etcd failed: reason withheld
      kubectl get --raw '/readyz?verbose'
  node a has DiskPressure: full
      kubectl describe node a
  node b is not ready
      davit events --for node/b
  x.example/foo on node a is not healthy: 2 and 1 more
      davit devices --node a -o wide
  node b does not tell its devices: no answer within 10 s
      davit devices --node b
  pod n/p has no node for 10m: 0/2 nodes are available
      davit explain pod p -n n
  pod n/q: Evicted
      davit events --for pod/q -n n
  the API v1.x is not served: gone
      kubectl describe apiservice v1.x
";
        assert_eq!(report.text(usize::MAX, Paint::NONE), expected);
        let short = report.text(2, Paint::NONE);
        assert!(
            short.ends_with("  … and 6 more: davit status -o wide\n"),
            "{short}"
        );
    }

    /// What a node writes of its pods is nobody's word but its own.
    #[test]
    fn nothing_that_was_read_moves_the_cursor() {
        let mut report = Glance::new("https://h", "v1\x1b[2J");
        report.readiness("[-]x\x1b[2J failed");
        let evil = "\x1b[2Jp";
        report.nodes(&[parse(
            json!({"metadata": {"name": evil}, "status": {"conditions": [
            {"type": "Ready", "status": "False", "message": evil}]}}),
        )]);
        report.pods(
            &[parse(
                json!({"metadata": {"name": evil, "namespace": evil}, "status": {
                "phase": evil, "reason": evil, "message": evil}}),
            )],
            "2026-01-01T01:00:00Z".parse().unwrap(),
        );
        let unavailable = json!({"type": "Available", "status": "False", "message": evil});
        report.api_services(&json!({"items": [{"metadata": {"name": evil},
            "status": {"conditions": [unavailable]}}]}));
        report.components = Component::of_statuses(&json!({"items": [{"metadata": {"name": evil},
            "conditions": [{"type": "Healthy", "status": "False", "error": evil}]}]}));
        report.unknown(evil, &anyhow::anyhow!("{evil}"));
        let text = report.text(usize::MAX, Paint::NONE);
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn a_cluster_that_is_well_says_so() {
        let mut report = Glance::new("https://h", "v1");
        report.readiness("[+]ping ok\nreadyz check passed");
        let text = report.text(SHOWN, Paint::NONE);
        assert!(text.ends_with("\nNothing needs attention.\n"), "{text}");
        assert!(
            text.contains("Nodes        0 of 0 ready\nPods         0"),
            "{text}"
        );
    }

    #[test]
    fn a_lease_that_is_not_renewed_is_nobodys() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let lease = |at: &str| -> Lease {
            parse(
                json!({"spec": {"holderIdentity": "h", "renewTime": at, "leaseDurationSeconds": 15}}),
            )
        };
        let fresh = Component::of_lease("s", &lease("2026-01-01T00:00:58.000000Z"), now).unwrap();
        assert!(fresh.healthy && fresh.detail == "h, renewed 2s ago");
        let old = Component::of_lease("s", &lease("2026-01-01T00:00:00.000000Z"), now).unwrap();
        assert!(!old.healthy);
        assert!(Component::of_lease("s", &Lease::default(), now).is_none());
    }
}
