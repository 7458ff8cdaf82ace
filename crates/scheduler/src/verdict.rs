//! Why a pod went where it went, or nowhere: the record behind the sentence in the condition.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use davit_allocator::Refusal;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cache::Snapshot;
use crate::cycle::{Attempt, Outcome};
use crate::framework::{Code, Shortage, Status};
use crate::pod::PodInfo;

/// Annotation of the FailedScheduling event that carries a [`Record`] as JSON.
pub const VERDICT_ANNOTATION: &str = "davit.dev/verdict";

/// How large the record in the annotation may be, in bytes.
const RECORD_LIMIT: usize = 8 * 1024;
/// How many nodes the record names at most.
const RECORD_NODES: usize = 20;
/// How many verdicts are kept in memory, one a pod.
const KEPT: usize = 1024;
/// How many nodes all kept verdicts may name together.
const KEPT_NODES: usize = 200_000;

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
}

/// How a node that could take the pod scored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreVerdict {
    /// The node.
    pub node: String,
    /// The sum.
    pub total: i64,
    /// Weighted scores by plugin.
    pub plugins: BTreeMap<String, i64>,
}

/// One attempt to schedule a pod, with the verdict on every node that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// When the attempt was made.
    pub at: jiff::Timestamp,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// How many nodes there were.
    pub total_nodes: usize,
    /// The chosen node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// The node on which room is being made for the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominated: Option<String>,
    /// The sentence of the condition; empty when a node was chosen.
    pub message: String,
    /// The refusal before any node was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_filter: Option<String>,
    /// What making room came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_filter: Option<String>,
    /// The nodes that refused.
    pub nodes: Vec<NodeVerdict>,
    /// The reason for nodes that were ruled out together and are not in `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<String>,
    /// The nodes that could take the pod, best first.
    pub scores: Vec<ScoreVerdict>,
}

/// The part of a verdict that fits into an annotation: counts by reason and some of the nodes.
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

impl Verdict {
    /// The verdict of an attempt.
    pub fn new(
        pod: &PodInfo,
        number: u32,
        at: jiff::Timestamp,
        snapshot: &Snapshot,
        attempt: &Attempt,
    ) -> Self {
        let name = |place: usize| snapshot.node(place).name.to_string();
        let text = |status: &Option<Status>| status.as_ref().map(Status::message);
        let mut scores: Vec<ScoreVerdict> = attempt
            .scores
            .iter()
            .map(|s| ScoreVerdict {
                node: name(s.node),
                total: s.total,
                plugins: s.parts.iter().map(|(p, n)| ((*p).to_owned(), *n)).collect(),
            })
            .collect();
        scores.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.node.cmp(&b.node)));
        let nodes = attempt.refused.iter().map(|(place, status)| NodeVerdict {
            node: name(*place),
            plugin: status.plugin.to_owned(),
            code: status.code,
            reasons: status.reasons.iter().map(ToString::to_string).collect(),
            shortages: status.shortages.clone(),
            devices: status.devices.clone().map(few),
        });
        Self {
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            uid: pod.uid.to_string(),
            at,
            attempt: number,
            total_nodes: attempt.total_nodes,
            chosen: match attempt.outcome {
                Outcome::Node(place) => Some(name(place)),
                _ => None,
            },
            nominated: attempt.nominate.clone().filter(|n| !n.is_empty()),
            message: attempt.message(),
            pre_filter: text(&attempt.pre_filter),
            post_filter: text(&attempt.post_filter),
            nodes: nodes.collect(),
            others: text(&attempt.absent),
            scores,
        }
    }

    /// The record of the verdict as JSON, small enough for an annotation.
    pub fn record(&self) -> String {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for reason in self.nodes.iter().flat_map(|n| &n.reasons) {
            *reasons.entry(reason.clone()).or_default() += 1;
        }
        let missing = self.total_nodes.saturating_sub(self.nodes.len());
        if let (Some(reason), true) = (&self.others, missing > 0) {
            *reasons.entry(reason.clone()).or_default() += missing;
        }
        // One line a reason is enough; many different ones would not fit.
        while reasons.len() > RECORD_NODES {
            reasons.pop_last();
        }
        let mut shown = self.nodes.len().min(RECORD_NODES);
        loop {
            let record = Record {
                at: self.at,
                attempt: self.attempt,
                total_nodes: self.total_nodes,
                reasons: reasons.clone(),
                pre_filter: self.pre_filter.clone(),
                post_filter: self.post_filter.clone(),
                nominated: self.nominated.clone(),
                nodes: self.nodes[..shown].to_vec(),
                more_nodes: self.nodes.len() - shown,
            };
            let json = serde_json::to_string(&record).unwrap_or_default();
            if json.len() <= RECORD_LIMIT {
                return json;
            }
            if shown == 0 {
                // Only the reasons are left to be long.
                if reasons.pop_last().is_none() {
                    return String::new();
                }
            } else {
                shown /= 2;
            }
        }
    }
}

/// The latest verdict on each pod, for as many pods as fit. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    by_pod: HashMap<String, Arc<Verdict>>,
    order: VecDeque<(String, Arc<Verdict>)>,
    nodes: usize,
}

impl Verdicts {
    /// The latest verdict on a pod, by UID.
    pub fn get(&self, uid: &str) -> Option<Arc<Verdict>> {
        self.kept.lock().by_pod.get(uid).cloned()
    }

    /// The latest verdict on a pod, by name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<Verdict>> {
        let kept = self.kept.lock();
        let mut found = kept
            .by_pod
            .values()
            .filter(|v| v.namespace == namespace && v.name == name);
        let first = found.next()?;
        Some(
            found
                .fold(first, |a, b| if b.at > a.at { b } else { a })
                .clone(),
        )
    }

    /// Forgets a pod.
    pub(crate) fn remove(&self, uid: &str) {
        self.kept.lock().by_pod.remove(uid);
    }

    pub(crate) fn put(&self, verdict: Arc<Verdict>) {
        let mut kept = self.kept.lock();
        let size = |v: &Verdict| v.nodes.len() + v.scores.len() + 1;
        kept.nodes += size(&verdict);
        kept.by_pod.insert(verdict.uid.clone(), verdict.clone());
        kept.order.push_back((verdict.uid.clone(), verdict));
        while kept.order.len() > KEPT || (kept.nodes > KEPT_NODES && kept.order.len() > 1) {
            let Some((uid, oldest)) = kept.order.pop_front() else {
                break;
            };
            kept.nodes -= size(&oldest);
            // A newer verdict on the same pod stays.
            if kept
                .by_pod
                .get(&uid)
                .is_some_and(|v| Arc::ptr_eq(v, &oldest))
            {
                kept.by_pod.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(uid: &str, nodes: usize) -> Verdict {
        let node = |i: usize| NodeVerdict {
            node: format!("node-{i}"),
            plugin: "NodeResourcesFit".to_owned(),
            code: Code::Unschedulable,
            reasons: vec![format!("Insufficient example.com/{}", "x".repeat(i % 500))],
            shortages: Vec::new(),
            devices: None,
        };
        Verdict {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            attempt: 1,
            total_nodes: nodes,
            chosen: None,
            nominated: None,
            message: String::new(),
            pre_filter: None,
            post_filter: None,
            nodes: (0..nodes).map(node).collect(),
            others: None,
            scores: Vec::new(),
        }
    }

    #[test]
    fn records_stay_small_and_say_what_they_leave_out() {
        for nodes in [0, 3, 30, 5000] {
            let json = verdict("a", nodes).record();
            assert!(json.len() <= RECORD_LIMIT);
            let record: Record = serde_json::from_str(&json).unwrap();
            assert_eq!(record.nodes.len() + record.more_nodes, nodes);
            assert_eq!(record.more_nodes == 0, nodes <= RECORD_NODES);
        }
    }

    #[test]
    fn memory_is_bounded_and_the_latest_verdict_wins() {
        let verdicts = Verdicts::default();
        for i in 0..3 * KEPT {
            verdicts.put(Arc::new(verdict(&format!("p{}", i % 10), 1)));
        }
        assert_eq!(verdicts.kept.lock().by_pod.len(), 10);
        for i in 0..50 {
            verdicts.put(Arc::new(verdict(&format!("q{i}"), 5000)));
        }
        let kept = verdicts.kept.lock();
        assert!(kept.nodes <= KEPT_NODES && kept.order.len() <= KEPT);
        assert!(kept.by_pod.contains_key("q49"));
        assert!(!kept.by_pod.contains_key("q0"));
    }
}
