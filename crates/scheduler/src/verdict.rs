//! Why a pod went nowhere: the record behind the sentence in the condition. It is made once, for the event that tells of
//! it, and kept by nobody here; of a pod that found its node there is none.

use std::collections::BTreeMap;

use davit_allocator::Refusal;
use serde::{Deserialize, Serialize};

use crate::cache::Snapshot;
use crate::cycle::{Attempt, Outcome};
use crate::framework::{Code, Shortage, Status, VolumeRefusal};

/// Annotation of the FailedScheduling event that carries a [`Record`] as JSON.
pub const VERDICT_ANNOTATION: &str = "davit.dev/verdict";

/// How large the record in the annotation may be, in bytes.
const RECORD_LIMIT: usize = 8 * 1024;
/// How many nodes the record names at most.
pub(crate) const RECORD_NODES: usize = 20;

/// Why one node did not take the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeVerdict {
    /// The node.
    pub node: String,
    /// The plugin that refused.
    pub plugin: String,
    /// The kind of refusal.
    pub code: Code,
    /// Why, in words.
    pub reasons: Vec<String>,
    /// The numbers behind the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortages: Vec<Shortage>,
    /// What rules out the node's devices, one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Box<Refusal>>,
    /// What rules out the pod's claims, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeRefusal>,
}

/// What came of one attempt to schedule a pod: counts by reason and some of the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// When the attempt was made.
    pub at: jiff::Timestamp,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How many nodes there were.
    pub total_nodes: usize,
    /// How many nodes gave each reason.
    pub reasons: BTreeMap<String, usize>,
    /// The refusal before any node was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_filter: Option<String>,
    /// What making room came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_filter: Option<String>,
    /// Why the pod's group cannot go yet, though there would be a node for the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The node on which room is being made for the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// The first of the nodes that refused.
    pub nodes: Vec<NodeVerdict>,
    /// How many refusing nodes are not in `nodes`.
    pub more_nodes: usize,
}

/// How many devices of a request a verdict names at most.
const NAMED_DEVICES: usize = 16;

/// The refusal with so many devices as are worth reading.
fn few(mut refusal: Box<Refusal>) -> Box<Refusal> {
    for request in &mut refusal.requests {
        request.devices.truncate(NAMED_DEVICES);
    }
    refusal
}

impl NodeVerdict {
    fn new(node: &str, status: &Status) -> Self {
        Self {
            node: node.to_owned(),
            plugin: status.plugin.to_owned(),
            code: status.code,
            reasons: status.reasons.iter().map(ToString::to_string).collect(),
            shortages: status.shortages.clone(),
            devices: status.devices.clone().map(few),
            volumes: status.volumes.clone(),
        }
    }
}

impl Record {
    /// The record of an attempt, the pod's `number`th, that found no node.
    pub(crate) fn of_attempt(
        number: u32,
        at: jiff::Timestamp,
        snapshot: &Snapshot,
        attempt: &Attempt,
    ) -> Self {
        let text = |status: &Option<Status>| status.as_ref().map(Status::message);
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let mut count = |status: &Status, times: usize| {
            for reason in &status.reasons {
                *reasons.entry(reason.to_string()).or_default() += times;
            }
        };
        for (status, times) in attempt.refused.kinds() {
            count(status, times);
        }
        let absent = attempt.total_nodes.saturating_sub(attempt.refused.len());
        if let (Some(status), true) = (&attempt.absent, absent > 0) {
            count(status, absent);
        }
        let shown = attempt.refused.iter().take(RECORD_NODES);
        let nodes: Vec<NodeVerdict> = shown
            .map(|(place, status)| NodeVerdict::new(&snapshot.node(place).name, status))
            .collect();
        Self {
            at,
            attempt: number,
            total_nodes: attempt.total_nodes,
            reasons,
            pre_filter: text(&attempt.pre_filter),
            post_filter: text(&attempt.post_filter),
            group: match &attempt.outcome {
                Outcome::Group(why) => Some(why.clone()),
                _ => None,
            },
            nominated: attempt.nominate.clone().filter(|n| !n.is_empty()),
            more_nodes: attempt.refused.len() - nodes.len(),
            nodes,
        }
    }

    /// The record of an attempt whose decision for `node` could not be carried out, of so many nodes.
    pub(crate) fn of_decision(
        number: u32,
        at: jiff::Timestamp,
        total_nodes: usize,
        node: &str,
        status: &Status,
    ) -> Self {
        let verdict = NodeVerdict::new(node, status);
        Self {
            at,
            attempt: number,
            total_nodes,
            reasons: verdict.reasons.iter().map(|r| (r.clone(), 1)).collect(),
            pre_filter: None,
            post_filter: None,
            group: None,
            nominated: None,
            nodes: vec![verdict],
            more_nodes: 0,
        }
    }

    /// The record as JSON, small enough for an annotation.
    pub(crate) fn annotation(mut self) -> String {
        // One line a reason is enough; many different ones would not fit.
        while self.reasons.len() > RECORD_NODES {
            self.reasons.pop_last();
        }
        loop {
            let json = serde_json::to_string(&self).unwrap_or_default();
            if json.len() <= RECORD_LIMIT {
                return json;
            }
            let shown = self.nodes.len();
            if shown == 0 {
                // Only the reasons are left to be long.
                if self.reasons.pop_last().is_none() {
                    return String::new();
                }
            } else {
                self.nodes.truncate(shown / 2);
                self.more_nodes += shown - self.nodes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(nodes: usize) -> Record {
        let node = |i: usize| NodeVerdict {
            node: format!("node-{i}"),
            plugin: "NodeResourcesFit".to_owned(),
            code: Code::Unschedulable,
            reasons: vec![format!("Insufficient example.com/{}", "x".repeat(50 * i))],
            shortages: Vec::new(),
            devices: None,
            volumes: Vec::new(),
        };
        let shown: Vec<NodeVerdict> = (0..nodes.min(RECORD_NODES)).map(node).collect();
        let each = shown.iter().flat_map(|n| &n.reasons);
        Record {
            at: jiff::Timestamp::UNIX_EPOCH,
            attempt: 1,
            total_nodes: nodes,
            reasons: each.map(|r| (r.clone(), 1)).collect(),
            pre_filter: None,
            post_filter: None,
            group: None,
            nominated: None,
            more_nodes: nodes - shown.len(),
            nodes: shown,
        }
    }

    #[test]
    fn annotations_stay_small_and_say_what_they_leave_out() {
        for nodes in [0, 3, 30, 5000] {
            let json = record(nodes).annotation();
            assert!(!json.is_empty() && json.len() <= RECORD_LIMIT);
            let read: Record = serde_json::from_str(&json).unwrap();
            assert_eq!(read.nodes.len() + read.more_nodes, nodes);
            assert_eq!(read.more_nodes == 0, nodes <= 3);
        }
    }

    #[test]
    fn a_decision_that_failed_names_its_node() {
        let status = Status::error("no answer").by("DefaultBinder");
        let at = jiff::Timestamp::UNIX_EPOCH;
        let record = Record::of_decision(2, at, 7, "n", &status);
        assert_eq!((record.total_nodes, record.reasons["no answer"]), (7, 1));
        let node = &record.nodes[0];
        assert_eq!((&*node.node, &*node.plugin), ("n", "DefaultBinder"));
    }
}
