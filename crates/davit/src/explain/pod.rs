//! What is known about one pod, as a record and as text.

use super::offers::Findings;
use crate::page::{Page, Paint, Tone};
use davit_api::devices::Device;
use davit_containermanager::compute::{Misfit, REFUSAL_ANNOTATION};
use davit_scheduler::{Record, VERDICT_ANNOTATION};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use serde::Serialize;

/// Why a pod is where and as it is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    namespace: String,
    name: String,
    uid: String,
    phase: String,
    /// The node it was bound to; empty while it is pending.
    node: String,
    /// One of `Pending`, `Refused`, `Waiting`, `Running`, `Ended`, `Terminating`.
    state: State,
    /// One sentence.
    summary: String,
    /// The scheduler's latest record, when it found no node.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling: Option<Record>,
    /// What it waits for in its pod group, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group: Vec<String>,
    /// What each of its classic claims waits for, or has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    negotiation: Vec<String>,
    containers: Vec<Container>,
    /// What is not offered at all, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_offered: Vec<String>,
    /// Who holds what is in use of what it asks for.
    #[serde(skip)]
    findings: Findings,
    /// Devices that containers of the pod hold.
    devices: Vec<Device>,
    /// Why the node could not be asked for its devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_unknown: Option<String>,
    /// Why the node could not place the pod's resources, and what would have to be freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Misfit>,
    /// Warnings about the pod, oldest first.
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum State {
    Pending,
    Refused,
    Waiting,
    Running,
    Ended,
    Terminating,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl State {
    fn tone(self) -> Tone {
        match self {
            Self::Running => Tone::Good,
            Self::Refused => Tone::Bad,
            Self::Pending | Self::Waiting => Tone::Doubtful,
            Self::Ended | Self::Terminating => Tone::Plain,
        }
    }
}

impl Container {
    fn row(&self) -> Vec<String> {
        [&self.name, &self.state, &self.reason, &self.message]
            .map(String::clone)
            .to_vec()
    }

    /// It does not run although it should: CrashLoopBackOff and its like.
    fn is_stuck(&self) -> bool {
        self.state == "waiting" && !self.reason.is_empty()
    }
}

/// The record of the latest event that carries one.
fn refusal(warnings: &[&Event]) -> Option<Misfit> {
    let record = |e: &&Event| {
        e.metadata
            .annotations
            .as_ref()?
            .get(REFUSAL_ANNOTATION)
            .cloned()
    };
    let latest = warnings.iter().rev().find_map(record)?;
    serde_json::from_str(&latest).ok()
}

impl Explanation {
    pub(crate) fn new(pod: &Pod, events: &[Event], devices: Result<Vec<Device>, String>) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let node = pod
            .spec
            .as_ref()
            .and_then(|s| s.node_name.clone())
            .unwrap_or_default();
        let phase = status.phase.clone().unwrap_or_default();
        let (devices, devices_unknown) = match devices {
            Ok(devices) => (
                devices
                    .into_iter()
                    .filter(|d| d.holders.iter().any(|h| h.uid == uid))
                    .collect(),
                None,
            ),
            Err(why) => (Vec::new(), Some(why)),
        };
        let containers: Vec<Container> =
            [&status.init_container_statuses, &status.container_statuses]
                .into_iter()
                .flatten()
                .flatten()
                .map(container)
                .collect();
        let state = state(pod, &phase, &node, &containers);
        let summary = summary(pod, state, &node, &containers);
        let mut warnings: Vec<&Event> = events
            .iter()
            .filter(|e| e.type_.as_deref() == Some("Warning"))
            .collect();
        warnings.sort_by_key(|e| {
            e.last_timestamp
                .clone()
                .or_else(|| e.metadata.creation_timestamp.clone())
        });
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid,
            phase,
            state,
            summary,
            scheduling: if node.is_empty() {
                latest_record(events)
            } else {
                None
            },
            node,
            group: Vec::new(),
            negotiation: Vec::new(),
            not_offered: Vec::new(),
            findings: Findings::default(),
            containers,
            devices,
            devices_unknown,
            refusal: refusal(&warnings),
            warnings: warnings.into_iter().map(warning).collect(),
        }
    }

    /// The same with what it waits for in its pod group.
    pub(crate) fn with_group(mut self, group: Vec<String>) -> Self {
        self.group = group;
        self
    }

    /// The same with what its classic claims wait for.
    pub(crate) fn with_negotiation(mut self, negotiation: Vec<String>) -> Self {
        self.negotiation = negotiation;
        self
    }

    /// The same with what nodes offer, and who holds it.
    pub(crate) fn with_findings(mut self, findings: Findings) -> Self {
        self.not_offered.clone_from(&findings.sentences);
        self.findings = findings;
        self
    }

    /// For people.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut page = Page::new(paint);
        let title = format!("Pod {}/{}: ", self.namespace, self.name);
        page.pieces(&[(Tone::Title, &title), (self.state.tone(), &self.summary)]);
        self.findings.show(&mut page);
        if let Some(record) = &self.scheduling {
            show_scheduling(&mut page, record);
        }
        show_list(&mut page, "Pod group:", &self.group, Tone::Plain);
        show_list(&mut page, "Classic claims:", &self.negotiation, Tone::Plain);
        if let Some(refusal) = &self.refusal {
            page.part("What the node could not place together, and what would have to be freed:");
            page.lines(&refusal.text());
        }
        self.show_devices(&mut page);
        let troubled = self.containers.iter().filter(|c| !c.reason.is_empty());
        let troubled: Vec<Vec<String>> = troubled.map(Container::row).collect();
        if !troubled.is_empty() {
            page.part("Containers:");
            page.table(&["CONTAINER", "STATE", "REASON", "MESSAGE"], &troubled);
        }
        show_list(&mut page, "Warnings:", &self.warnings, Tone::Doubtful);
        page.into_text()
    }

    fn show_devices(&self, page: &mut Page) {
        const TITLES: [&str; 7] = [
            "RESOURCE",
            "DEVICE",
            "HEALTH",
            "NUMA",
            "CONTAINER",
            "CLAIM",
            "SINCE",
        ];
        if !self.devices.is_empty() {
            let rows = self.devices.iter().flat_map(|d| self.device_rows(d));
            page.part("Devices, CPUs and memory it holds:");
            page.table(&TITLES, &rows.collect::<Vec<_>>());
        }
        if let Some(why) = &self.devices_unknown {
            page.gap();
            page.line(format!("The node's device table could not be read: {why}"));
        }
    }

    fn device_rows(&self, device: &Device) -> Vec<Vec<String>> {
        let or_dash = |text: String| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text
            }
        };
        let numa: Vec<String> = device.numa_nodes.iter().map(ToString::to_string).collect();
        let ours = device.holders.iter().filter(|h| h.uid == self.uid);
        ours.map(|holder| {
            vec![
                device.resource.clone(),
                device.id.clone(),
                or_dash(device.health.clone()),
                or_dash(numa.join(",")),
                or_dash(holder.container.clone()),
                or_dash(device.claim.clone()),
                or_dash(holder.since.clone()),
            ]
        })
        .collect()
    }
}

/// Sentences of one kind, if there are any.
fn show_list(page: &mut Page, title: &str, sentences: &[String], tone: Tone) {
    if !sentences.is_empty() {
        page.part(title);
    }
    for sentence in sentences {
        page.toned(tone, format!("  {sentence}"));
    }
}

fn show_scheduling(page: &mut Page, record: &Record) {
    page.part(&format!(
        "Attempt {} at {} looked at {} nodes:",
        record.attempt, record.at, record.total_nodes
    ));
    if let Some(why) = &record.pre_filter {
        page.line(format!("  before any node: {why}"));
    }
    if let Some(why) = &record.group {
        page.line(format!("  there would be a node, but: {why}"));
    }
    let mut rows = Vec::new();
    for node in &record.nodes {
        let numbers: Vec<String> = node
            .shortages
            .iter()
            .map(|s| {
                format!(
                    "{}: requested {}, used {}, capacity {}",
                    s.resource, s.requested, s.used, s.capacity
                )
            })
            .collect();
        rows.push(vec![
            node.node.clone(),
            node.plugin.clone(),
            node.reasons.join("; "),
            numbers.join("; "),
        ]);
    }
    if !rows.is_empty() {
        page.table(&["NODE", "PLUGIN", "WHY NOT", "NUMBERS"], &rows);
    }
    let devices = record.nodes.iter();
    let devices = devices.filter_map(|n| Some((&n.node, n.devices.as_deref()?)));
    super::claim::refused_devices(page, devices);
    let claims = record.nodes.iter();
    let claims = claims.flat_map(|n| n.volumes.iter().map(move |v| (&n.node, v)));
    let rows: Vec<Vec<String>> = claims
        .map(|(node, refusal)| vec![node.clone(), refusal.claim.clone(), refusal.why.clone()])
        .collect();
    if !rows.is_empty() {
        page.part("What the pod's claims lack there:");
        page.table(&["NODE", "CLAIM", "WHY NOT"], &rows);
    }
    if record.more_nodes > 0 {
        page.line(format!(
            "… and {} more nodes; all reasons:",
            record.more_nodes
        ));
        for (reason, count) in &record.reasons {
            page.line(format!("  {count} × {reason}"));
        }
    }
    if let Some(why) = &record.post_filter {
        page.line(why); // begins with who says it: "preemption: ..."
    }
}

fn container(status: &ContainerStatus) -> Container {
    let state = status.state.clone().unwrap_or_default();
    let (name, reason, message) = if let Some(waiting) = state.waiting {
        ("waiting", waiting.reason, waiting.message)
    } else if let Some(ended) = state.terminated {
        (
            "ended",
            ended.reason.filter(|r| r != "Completed"),
            ended.message,
        )
    } else if state.running.is_some() {
        ("running", None, None)
    } else {
        ("unknown", None, None)
    };
    Container {
        name: status.name.clone(),
        state: name.to_owned(),
        reason: reason.unwrap_or_default(),
        message: message.unwrap_or_default(),
    }
}

fn state(pod: &Pod, phase: &str, node: &str, containers: &[Container]) -> State {
    let status = pod.status.clone().unwrap_or_default();
    let never_started = status.container_statuses.as_ref().is_none_or(Vec::is_empty);
    if pod.metadata.deletion_timestamp.is_some() {
        State::Terminating
    } else if phase == "Failed" && never_started && status.reason.is_some() {
        State::Refused
    } else if matches!(phase, "Succeeded" | "Failed") {
        State::Ended
    } else if node.is_empty() {
        State::Pending
    } else if phase == "Running" && !containers.iter().any(Container::is_stuck) {
        State::Running
    } else {
        State::Waiting
    }
}

fn summary(pod: &Pod, state: State, node: &str, containers: &[Container]) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let text = |field: Option<String>| field.unwrap_or_default();
    match state {
        State::Pending => {
            let conditions = status.conditions.unwrap_or_default();
            let scheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled");
            match scheduled {
                Some(c) => format!("pending, {}: {}", text(c.reason), text(c.message)),
                None => "pending, no scheduler has looked at it yet (is one running for its schedulerName?)".to_owned(),
            }
        }
        State::Refused => format!(
            "refused by node {node}, {}: {}",
            text(status.reason),
            text(status.message)
        ),
        State::Ended => {
            let why = [status.reason, status.message]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ");
            let phase = text(status.phase).to_lowercase();
            if why.is_empty() {
                format!("{phase} on node {node}")
            } else {
                format!("{phase} on node {node}, {why}")
            }
        }
        State::Running => format!("running on node {node}"),
        State::Terminating => format!(
            "being deleted (node {})",
            if node.is_empty() { "none" } else { node }
        ),
        State::Waiting => {
            let message = text(status.message);
            let troubled = || containers.iter().find(|c| !c.reason.is_empty());
            let waiting = containers.iter().find(|c| c.is_stuck()).or_else(troubled);
            match (message.is_empty(), waiting) {
                (false, _) => format!("waiting on node {node}: {message}"),
                (true, Some(c)) => {
                    let why = format!("{} {}", c.reason, c.message);
                    let (name, why) = (&c.name, why.trim_end());
                    format!("waiting on node {node}, container {name}: {why}")
                }
                (true, None) => format!("bound to node {node}, which has not reported on it yet"),
            }
        }
    }
}

fn latest_record(events: &[Event]) -> Option<Record> {
    let annotated = |event: &Event| -> Option<Record> {
        let text = event
            .metadata
            .annotations
            .as_ref()?
            .get(VERDICT_ANNOTATION)?;
        serde_json::from_str(text).ok()
    };
    events
        .iter()
        .filter_map(annotated)
        .max_by_key(|record| record.at)
}

fn warning(event: &Event) -> String {
    let count = event
        .count
        .filter(|n| *n > 1)
        .map(|n| format!(" (×{n})"))
        .unwrap_or_default();
    let reason = event.reason.clone().unwrap_or_default();
    format!(
        "{reason}{count}: {}",
        event.message.clone().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

    fn pod(status: PodStatus, node: &str) -> Pod {
        let mut pod = Pod {
            status: Some(status),
            ..Pod::default()
        };
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        pod
    }

    #[test]
    fn pending_pod_says_what_the_scheduler_said() {
        let condition = PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some("Unschedulable".into()),
            message: Some("0/1 nodes are available: 1 Insufficient x.example/foo.".into()),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![condition]),
            phase: Some("Pending".into()),
            ..PodStatus::default()
        };
        let explanation = Explanation::new(&pod(status, ""), &[], Ok(Vec::new()));
        assert_eq!(explanation.state, State::Pending);
        let expected = "Pod ns/p: pending, Unschedulable: 0/1 nodes are available: 1 Insufficient x.example/foo.\n";
        assert_eq!(explanation.text(Paint::NONE), expected);
    }

    #[test]
    fn claims_that_get_no_volume_are_listed_by_node() {
        let why = "its volume \"pv\" cannot be reached from the node";
        let record: Record = serde_json::from_value(serde_json::json!({
            "at": "1970-01-01T00:00:00Z", "attempt": 1, "totalNodes": 1, "reasons": {}, "moreNodes": 0,
            "nodes": [{ "node": "a", "plugin": "VolumeBinding", "code": "UnschedulableAndUnresolvable",
                "reasons": ["node(s) didn't match PersistentVolume's node affinity"],
                "volumes": [{ "claim": "data", "why": why }] }] }))
        .unwrap();
        let mut page = Page::new(Paint::NONE);
        show_scheduling(&mut page, &record);
        let text = page.into_text();
        let line = text.lines().last().unwrap_or_default();
        let row: Vec<&str> = line.splitn(3, "  ").map(str::trim).collect();
        assert_eq!(row.first(), Some(&"a"), "{text}");
        assert!(line.contains("data") && line.ends_with(why), "{text}");
    }

    #[test]
    fn refused_pod_is_told_from_one_that_failed() {
        let refused = PodStatus {
            phase: Some("Failed".into()),
            reason: Some("UnexpectedAdmissionError".into()),
            message: Some("Pod was rejected: no healthy devices".into()),
            ..PodStatus::default()
        };
        let mut failed = refused.clone();
        failed.container_statuses = Some(vec![ContainerStatus::default()]);
        let state = |status| Explanation::new(&pod(status, "n"), &[], Ok(Vec::new())).state;
        assert_eq!(
            (state(refused), state(failed)),
            (State::Refused, State::Ended)
        );
    }

    #[test]
    fn a_pod_whose_container_crashes_again_and_again_is_not_running() {
        let crashing = serde_json::json!({
            "phase": "Running",
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}],
        });
        let status = serde_json::from_value(crashing).unwrap();
        let explanation = Explanation::new(&pod(status, "n"), &[], Ok(Vec::new()));
        assert_eq!(explanation.state, State::Waiting);
        let wanted = "waiting on node n, container c: CrashLoopBackOff back-off 10s";
        assert_eq!(explanation.summary, wanted);
    }

    #[test]
    fn only_devices_of_this_pod_are_listed() {
        let held = |uid: &str| Device {
            id: uid.to_owned(),
            holders: vec![davit_api::devices::Holder {
                uid: uid.to_owned(),
                ..Default::default()
            }],
            ..Device::default()
        };
        let running = PodStatus {
            phase: Some("Running".into()),
            ..PodStatus::default()
        };
        let explanation =
            Explanation::new(&pod(running, "n"), &[], Ok(vec![held("u"), held("other")]));
        assert_eq!(explanation.devices.len(), 1);
    }
}
