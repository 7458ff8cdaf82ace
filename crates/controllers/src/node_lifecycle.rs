//! Nodes that stop reporting become Unknown and are tainted; pods leave them by the controller of [`crate::taint_eviction`].
//!
//! The clock that counts is our own, from when a heartbeat was last seen to change: clocks of nodes are not trusted.

use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey};
use davit_reconcile::nodes::is_ready;
use davit_reconcile::{
    Context, Error, Informers, LEASE_NAMESPACE, Next, Reconcile, Spawner, cluster_key, gone_is_none,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::time::Instant;

/// How closely nodes are watched: kube-controller-manager's flags `--node-monitor-…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMonitor {
    /// How often a node that is not ready is looked at again: what becomes of its pods depends on the other nodes, too.
    pub period: Duration,
    /// How long a node may be silent.
    pub grace_period: Duration,
    /// The same for a node that has never said whether it is ready.
    pub startup_grace_period: Duration,
}

impl Default for NodeMonitor {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(5),
            grace_period: Duration::from_secs(50),
            startup_grace_period: Duration::from_secs(60),
        }
    }
}

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Taints that follow a condition with effect NoSchedule: condition, its bad status, taint.
const CONDITION_TAINTS: [(&str, &str, &str); 4] = [
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

struct NodeLifecycle {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
    monitor: NodeMonitor,
    heard: Mutex<HashMap<String, Heard>>,
    /// The nodes that were ready when they were looked at last: each that is not asks whether there are any. Filled when it is
    /// asked for first.
    ready: OnceLock<Mutex<HashSet<String>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Heard {
    heartbeat: String,
    at: Instant,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, monitor: NodeMonitor) {
    let Some(spawner) = &mut spawner.start("node-lifecycle-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("node-controller");
    let controller = NodeLifecycle {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
        monitor,
        heard: Mutex::default(),
        ready: OnceLock::new(),
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.nodes, &queue, |node: &Node| {
        vec![ObjectKey::of(node)]
    });
    spawner.feed(&informers.node_leases, &queue, |lease: &Lease| {
        lease.metadata.name.iter().map(|n| cluster_key(n)).collect()
    });
}

#[async_trait]
impl Reconcile for NodeLifecycle {
    const NAME: &'static str = "node-lifecycle";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(node) = self.informers.nodes.get(None, &key.name) else {
            self.ready().lock().remove(&key.name);
            if self.heard.lock().remove(&key.name).is_some() {
                self.say(&reference(&key.name, ""), "RemovingNode", "Removing");
            }
            return Ok(Next::Wait);
        };
        match is_ready(&node) {
            true => self.ready().lock().insert(key.name.clone()),
            false => self.ready().lock().remove(&key.name),
        };
        let silent_for = self.hear(&node);
        let grace = self.monitor.grace(&node);
        if silent_for >= grace {
            self.mark_unknown(&node).await?;
        }
        self.taint(&node).await?;
        let next_check = grace.checked_sub(silent_for).filter(|left| !left.is_zero());
        let others = (!is_ready(&node)).then_some(self.monitor.period);
        let next = [next_check, others].into_iter().flatten().min();
        Ok(next.map_or(Next::Wait, Next::After))
    }
}

impl NodeLifecycle {
    fn ready(&self) -> &Mutex<HashSet<String>> {
        self.ready.get_or_init(|| {
            let nodes = self.informers.nodes.list().into_iter();
            let ready = nodes.filter(|node| is_ready(node));
            Mutex::new(ready.filter_map(|n| n.metadata.name.clone()).collect())
        })
    }

    /// Notes the node's heartbeat and returns for how long it has not changed.
    fn hear(&self, node: &Node) -> Duration {
        let name = node.metadata.name.clone().unwrap_or_default();
        let lease = self.informers.node_leases.get(Some(LEASE_NAMESPACE), &name);
        let renewed = lease.and_then(|l| {
            l.spec
                .as_ref()
                .and_then(|s| s.renew_time.as_ref().map(|t| t.0.to_string()))
        });
        let ready = condition(node, "Ready")
            .and_then(|c| c.last_heartbeat_time.as_ref().map(|t| t.0.to_string()));
        let heartbeat = format!(
            "{} {}",
            renewed.unwrap_or_default(),
            ready.unwrap_or_default()
        );
        let now = Instant::now();
        if !self.heard.lock().contains_key(&name) {
            let uid = node.metadata.uid.as_deref().unwrap_or_default();
            self.say(&reference(&name, uid), "RegisteredNode", "Registered");
        }
        let mut heard = self.heard.lock();
        let entry = heard.entry(name).or_insert_with(|| Heard {
            heartbeat: heartbeat.clone(),
            at: now,
        });
        if entry.heartbeat != heartbeat {
            *entry = Heard { heartbeat, at: now };
        }
        now.duration_since(entry.at)
    }

    /// That a node has come or gone, in upstream's words.
    fn say(&self, node: &ObjectReference, reason: &str, what: &str) {
        let name = node.name.as_deref().unwrap_or_default();
        let place = match what {
            "Removing" => "from",
            _ => "in",
        };
        let text = format!("Node {name} event: {what} Node {name} {place} Controller");
        self.events.normal(node, reason, text);
    }

    async fn mark_unknown(&self, node: &Node) -> Result<(), Error> {
        let known = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].into_iter();
        let stale: Vec<NodeCondition> = known
            .filter(|type_| condition(node, type_).is_none_or(|c| c.status != "Unknown"))
            .map(|type_| unknown_condition(node, type_))
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        let name = node.metadata.name.clone().unwrap_or_default();
        tracing::warn!(node = name, "node stopped reporting");
        let was_ready = is_ready(node);
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let patch = serde_json::json!({ "status": { "conditions": stale } });
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        gone_is_none(
            api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                .await,
        )
        .context(|| format!("update conditions of node {name}"))?;
        if was_ready {
            let text = format!("Node {name} status is now: NodeNotReady");
            let node = reference(&name, &uid);
            self.events.normal(&node, "NodeNotReady", text);
        }
        Ok(())
    }

    /// Gives the node the taints of its conditions.
    async fn taint(&self, node: &Node) -> Result<(), Error> {
        let current = node
            .spec
            .as_ref()
            .and_then(|s| s.taints.clone())
            .unwrap_or_default();
        // Where no node is well it is the way to them that is broken: their pods run on, and stay.
        let evicts = !self.ready().lock().is_empty();
        let wanted = wanted_taints(node, &current, evicts);
        if wanted == current {
            return Ok(());
        }
        let name = node.metadata.name.clone().unwrap_or_default();
        // With the version, so that taints others set meanwhile are not undone.
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": node.metadata.resource_version },
            "spec": { "taints": wanted },
        });
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        gone_is_none(
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        )
        .context(|| format!("taint node {name}"))?;
        Ok(())
    }
}

fn reference(name: &str, uid: &str) -> ObjectReference {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: known(name),
        uid: known(uid),
        ..ObjectReference::default()
    }
}

fn condition<'a>(node: &'a Node, type_: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|c| c.type_ == type_)
}

impl NodeMonitor {
    /// How long a node may be silent: longer before its first word.
    fn grace(&self, node: &Node) -> Duration {
        condition(node, "Ready").map_or(self.startup_grace_period, |_| self.grace_period)
    }
}

/// The condition of a node that is silent. One that never said anything was last heard of when it was made.
fn unknown_condition(node: &Node, type_: &str) -> NodeCondition {
    let known = condition(node, type_);
    let (reason, message) = match known {
        Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        None => (
            "NodeStatusNeverUpdated",
            "Kubelet never posted node status.",
        ),
    };
    NodeCondition {
        type_: type_.to_owned(),
        status: "Unknown".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: known
            .map_or(&node.metadata.creation_timestamp, |c| {
                &c.last_heartbeat_time
            })
            .clone(),
        last_transition_time: Some(Time(Timestamp::now())),
    }
}

/// The taints a node should have: those that others set, and ours for its conditions. A node without the condition `Ready`
/// is one that has not begun to report: nothing runs there that would have to leave. Only where `evicts` says so do pods leave
/// one that is not ready.
fn wanted_taints(node: &Node, current: &[Taint], evicts: bool) -> Vec<Taint> {
    let mut ours: Vec<(&str, &str)> = Vec::new();
    match condition(node, "Ready").map(|c| c.status.as_str()) {
        None | Some("True") => {}
        Some("False") => ours.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        _ => ours.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
    }
    ours.retain(|(_, effect)| evicts || *effect != "NoExecute");
    for (type_, bad, taint) in CONDITION_TAINTS {
        if condition(node, type_).is_some_and(|c| c.status == bad) {
            ours.push((taint, "NoSchedule"));
        }
    }
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        ours.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let managed = |t: &Taint| {
        t.key == NOT_READY
            || t.key == UNREACHABLE
            || t.key == UNSCHEDULABLE
            || CONDITION_TAINTS.iter().any(|(_, _, key)| t.key == *key)
    };
    let is_ours = |t: &Taint| {
        ours.iter()
            .any(|(key, effect)| t.key == *key && t.effect == *effect)
    };
    let mut taints: Vec<Taint> = current
        .iter()
        .filter(|t| !managed(t) || is_ours(t))
        .cloned()
        .collect();
    for (key, effect) in ours {
        if !taints.iter().any(|t| t.key == key && t.effect == effect) {
            let time_added = (effect == "NoExecute").then(|| Time(Timestamp::now()));
            taints.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                value: None,
                time_added,
            });
        }
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str) -> Node {
        let mut node = Node::default();
        let condition = NodeCondition {
            type_: "Ready".into(),
            status: ready.into(),
            ..NodeCondition::default()
        };
        node.status.get_or_insert_default().conditions = Some(vec![condition]);
        node
    }

    fn keys(taints: &[Taint]) -> Vec<String> {
        taints
            .iter()
            .map(|t| format!("{}:{}", t.key, t.effect))
            .collect()
    }

    #[test]
    fn taints_follow_conditions_and_leave_those_of_others() {
        let foreign = Taint {
            key: "x".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let silent = wanted_taints(&node("Unknown"), std::slice::from_ref(&foreign), true);
        assert_eq!(
            keys(&silent),
            [
                "x:NoSchedule",
                "node.kubernetes.io/unreachable:NoSchedule",
                "node.kubernetes.io/unreachable:NoExecute"
            ]
        );
        assert_eq!(
            wanted_taints(&node("Unknown"), &silent, true),
            silent,
            "nothing changes a second time"
        );
        assert_eq!(
            keys(&wanted_taints(&node("True"), &silent, true)),
            ["x:NoSchedule"]
        );
    }

    #[test]
    fn pods_leave_only_where_another_node_is_well() {
        let gone = wanted_taints(&node("Unknown"), &[], true);
        assert_eq!(gone.len(), 2);
        for status in ["Unknown", "False"] {
            let left = wanted_taints(&node(status), &gone, false);
            assert!(
                left.iter().all(|t| t.effect == "NoSchedule") && left.len() == 1,
                "{left:?}"
            );
        }
    }

    #[test]
    fn a_node_that_has_not_begun_to_report_has_time_and_no_taints() {
        let made = Time(Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(70));
        let mut new = Node::default();
        new.metadata.creation_timestamp = Some(made.clone());
        let refused = Taint {
            key: NOT_READY.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        assert_eq!(wanted_taints(&new, &[refused], true), []);
        let monitor = NodeMonitor::default();
        assert_eq!(monitor.grace(&new), Duration::from_secs(60));
        assert_eq!(monitor.grace(&node("True")), Duration::from_secs(50));

        let silent = unknown_condition(&new, "Ready");
        assert_eq!(silent.reason.as_deref(), Some("NodeStatusNeverUpdated"));
        assert_eq!(silent.last_heartbeat_time, Some(made));
        new.status.get_or_insert_default().conditions = Some(vec![silent]);
        let taints = keys(&wanted_taints(&new, &[], true));
        let unreachable = ["NoSchedule", "NoExecute"].map(|e| format!("{UNREACHABLE}:{e}"));
        assert_eq!(taints, unreachable);
    }
}
