//! Questions to extenders and what they say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::future::join_all;

use super::calls::ExtenderError;
use super::{Extender, Extenders, wire};
use crate::framework::{Code, MAX_NODE_SCORE, Status};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The highest score an extender gives.
const MAX_EXTENDER_SCORE: i64 = 10;

/// The pods to remove from one node.
#[derive(Debug, Clone)]
pub struct NodeVictims {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// Most important first.
    pub pods: Vec<Arc<PodInfo>>,
    /// How many of them break a disruption budget.
    pub violations: usize,
}

/// What has to be known for a decision.
#[derive(Debug)]
pub enum ExtenderQuestion {
    /// Which of these nodes, all of which the plugins let pass, can take the pod, and how good they are.
    Nodes(Vec<Arc<NodeInfo>>),
    /// Where of these nodes the pod may preempt, and whom.
    Victims(Vec<NodeVictims>),
}

/// What extenders have said in an attempt.
#[derive(Debug, Default)]
pub struct ExtenderAnswers {
    /// By node: the refusal, or nothing if it can take the pod.
    nodes: HashMap<Arc<str>, Option<Status>>,
    /// What extenders add to the scores of nodes.
    scores: HashMap<Arc<str>, i64>,
    /// The preemptions that are left, once that has been asked.
    pub(crate) candidates: Option<Vec<NodeVictims>>,
    /// Where the search for nodes began, which begins there again.
    pub(crate) start: Option<usize>,
    /// How often nodes have been asked about.
    pub(crate) rounds: u32,
}

impl ExtenderAnswers {
    /// What is said of a node: `None`: it has not been asked about.
    pub(crate) fn of_node(&self, name: &str) -> Option<Option<&Status>> {
        self.nodes.get(name).map(Option::as_ref)
    }

    /// What is added to a node's score.
    pub(crate) fn score(&self, node: &str) -> i64 {
        self.scores.get(node).copied().unwrap_or(0)
    }
}

impl Extenders {
    /// Has the extenders filter nodes, one after the other, each what the one before has left.
    pub(super) async fn filter(
        &self,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
        answers: &mut ExtenderAnswers,
    ) -> Result<Vec<Arc<NodeInfo>>, ExtenderError> {
        let shown = wire::pod(pod);
        let mut left = nodes.to_vec();
        let filters = self.interested(pod);
        for extender in filters.filter(|e| !e.config.filter_verb.is_empty()) {
            if left.is_empty() {
                break;
            }
            let names_only = extender.config.node_cache_capable;
            let question = wire::nodes(&shown, &left, names_only);
            let answer = self.call(extender, &extender.config.filter_verb, &question);
            let judged = match answer.await {
                Ok(answer) => judge(extender, &left, &answer),
                Err(error) => Err(error),
            };
            match judged {
                Ok((fits, refused)) => {
                    answers.nodes.extend(refused);
                    left = fits;
                }
                Err(error) if extender.config.ignorable => {
                    tracing::info!(extender = extender.name, %error, "ignorable extender left out");
                }
                Err(error) => return Err(error),
            }
        }
        answers
            .nodes
            .extend(left.iter().map(|n| (n.name.clone(), None)));
        Ok(left)
    }

    /// Has the extenders score nodes, all at once. Who fails adds nothing.
    pub(super) async fn score(
        &self,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
        answers: &mut ExtenderAnswers,
    ) {
        let shown = wire::pod(pod);
        let scorers = self.interested(pod);
        let calls = scorers
            .filter(|e| !e.config.prioritize_verb.is_empty())
            .map(|extender| {
                let question = wire::nodes(&shown, nodes, extender.config.node_cache_capable);
                async move {
                    let verb = &extender.config.prioritize_verb;
                    (extender, self.call(extender, verb, &question).await)
                }
            });
        let known: HashMap<&str, &Arc<str>> = nodes.iter().map(|n| (&*n.name, &n.name)).collect();
        for (extender, answer) in join_all(calls).await {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::debug!(extender = extender.name, %error, "no scores from extender");
                    continue;
                }
            };
            for (host, score) in wire::scores(&answer) {
                let Some(node) = known.get(host) else {
                    continue;
                };
                let added = score
                    .saturating_mul(extender.config.weight)
                    .saturating_mul(MAX_NODE_SCORE / MAX_EXTENDER_SCORE);
                let sum = answers.scores.entry((*node).clone()).or_default();
                *sum = sum.saturating_add(added);
            }
        }
    }

    /// Has the extenders judge preemptions, one after the other.
    pub(super) async fn preempt(
        &self,
        pod: &PodInfo,
        mut candidates: Vec<NodeVictims>,
    ) -> Result<Vec<NodeVictims>, ExtenderError> {
        let shown = wire::pod(pod);
        let judges = self.interested(pod);
        for extender in judges.filter(|e| !e.config.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            let names_only = extender.config.node_cache_capable;
            let question = wire::victims(&shown, &candidates, names_only);
            let answer = self.call(extender, &extender.config.preempt_verb, &question);
            let judged = match answer.await {
                Ok(answer) => choose(extender, pod, &candidates, &answer),
                Err(error) => Err(error),
            };
            match judged {
                Ok(chosen) => candidates = chosen,
                Err(error) if extender.config.ignorable => {
                    tracing::info!(extender = extender.name, %error, "ignorable extender left out");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(candidates)
    }
}

fn must_be_object(extender: &Extender, answer: &serde_json::Value) -> Result<(), ExtenderError> {
    if answer.is_object() {
        return Ok(());
    }
    Err(ExtenderError::Malformed {
        url: extender.name.to_owned(),
        cause: "the answer is no object".to_owned(),
    })
}

type Judged = (Vec<Arc<NodeInfo>>, Vec<(Arc<str>, Option<Status>)>);

/// The nodes that an answer leaves of those that were sent, and the refusals of the others.
fn judge(
    extender: &Extender,
    sent: &[Arc<NodeInfo>],
    answer: &serde_json::Value,
) -> Result<Judged, ExtenderError> {
    must_be_object(extender, answer)?;
    if let Some(error) = wire::error_of(answer) {
        return Err(ExtenderError::Answer(error));
    }
    let known: BTreeMap<&str, &Arc<NodeInfo>> = sent.iter().map(|n| (&*n.name, n)).collect();
    let mut fits: BTreeMap<String, Arc<NodeInfo>> = BTreeMap::new();
    let names_only = extender.config.node_cache_capable;
    for name in wire::left(answer, names_only).unwrap_or_default() {
        let Some(node) = known.get(name.as_str()) else {
            return Err(ExtenderError::Answer(format!(
                "extender {:?} claims a filtered node {:?} which is not found in the input node list",
                extender.name,
                wire::shown(&name)
            )));
        };
        fits.insert(name, (*node).clone());
    }
    let failed = wire::reasons(answer, "FailedNodes");
    let never = wire::reasons(answer, "FailedAndUnresolvableNodes");
    let refusal = |node: &Arc<NodeInfo>| {
        let (code, reason) = match (never.get(&*node.name), failed.get(&*node.name)) {
            (Some(reason), _) => (Code::UnschedulableAndUnresolvable, Some(reason)),
            (None, Some(reason)) => (Code::Unschedulable, Some(reason)),
            // Left out without a word: it shows in no message.
            (None, None) => (Code::UnschedulableAndUnresolvable, None),
        };
        let status = Status {
            code,
            plugin: extender.name,
            reasons: reason.map(|r| r.clone().into()).into_iter().collect(),
            ..Status::success()
        };
        (node.name.clone(), Some(status))
    };
    let refused = sent.iter().filter(|n| !fits.contains_key(&*n.name));
    let refused = refused.map(refusal).collect();
    Ok((fits.into_values().collect(), refused))
}

/// The preemptions that an answer leaves. Whoever makes room is less important than who needs it, whatever an extender says.
fn choose(
    extender: &Extender,
    preemptor: &PodInfo,
    sent: &[NodeVictims],
    answer: &serde_json::Value,
) -> Result<Vec<NodeVictims>, ExtenderError> {
    must_be_object(extender, answer)?;
    let mut chosen = Vec::new();
    for (name, uids, violations) in wire::preemptions(answer) {
        let Some(candidate) = sent.iter().find(|c| *c.node.name == *name) else {
            return Err(ExtenderError::Answer(format!(
                "extender: {} claims to preempt on node {:?}, which is no candidate",
                extender.name,
                wire::shown(&name)
            )));
        };
        let there = candidate.node.pods.iter();
        let there: HashMap<&str, &Arc<PodInfo>> = there.map(|p| (&*p.uid, p)).collect();
        let mut pods = Vec::new();
        // Who is named a thousand times is removed once.
        let uids: BTreeSet<String> = uids.into_iter().collect();
        for uid in uids {
            let Some(pod) = there.get(&*uid).copied() else {
                let uid = wire::shown(&uid);
                return Err(ExtenderError::Answer(format!(
                    "extender: {} claims to preempt pod (UID: {uid}) on node: {name}, but the pod is not \
                     found on that node",
                    extender.name
                )));
            };
            // Of a group that goes whole the group's priority counts, by which it was proposed.
            let proposed = candidate.pods.iter().any(|p| p.uid == pod.uid);
            if pod.priority >= preemptor.priority && !proposed {
                return Err(ExtenderError::Answer(format!(
                    "extender: {} claims to preempt pod (UID: {uid}) on node: {name}, whose priority is not lower",
                    extender.name
                )));
            }
            pods.push(pod.clone());
        }
        if pods.is_empty() {
            if extender.config.ignorable {
                continue;
            }
            return Err(ExtenderError::Answer(format!(
                "expected at least one victim pod on node {name:?}"
            )));
        }
        pods.sort_by_key(|p| (std::cmp::Reverse(p.priority), p.start_time()));
        chosen.push(NodeVictims {
            node: candidate.node.clone(),
            pods,
            violations,
        });
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::pod;

    #[tokio::test]
    async fn who_is_named_many_times_is_removed_once() {
        let config = json!({"urlPrefix": "http://a"});
        let extender = Extender::new(&serde_json::from_value(config).unwrap()).unwrap();
        let low = pod("low", json!({"priority": 0}));
        let mut on = NodeInfo::new("n".into());
        on.add_pod(low.clone());
        let sent = [NodeVictims {
            node: Arc::new(on),
            pods: vec![low.clone()],
            violations: 0,
        }];
        let named = vec![json!({"UID": &*low.uid}); 100_000];
        let answer = json!({"NodeNameToMetaVictims": {"n": {"Pods": named}}});
        let chosen = choose(
            &extender,
            &pod("high", json!({"priority": 9})),
            &sent,
            &answer,
        );
        assert_eq!(chosen.unwrap()[0].pods.len(), 1);
    }
}
