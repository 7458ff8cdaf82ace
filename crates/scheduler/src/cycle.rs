//! One attempt to find a node: filter, make room if need be, score, choose.
//!
//! Pure: a snapshot and a pod in, a decision with all its grounds out.

mod booking;
mod equivalence;
mod panel;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rand::Rng;

use crate::cache::Snapshot;
use crate::extender::{ExtenderAnswers, ExtenderQuestion, Extenders};
use crate::framework::{
    Code, CycleState, ExtensionPoint, MAX_NODE_SCORE, NodeNames, Placement, PostFilterContext,
    Profile, Refusals, Status,
};
use crate::node::NodeInfo;
use crate::nominator::Nominated;
use crate::pod::PodInfo;
use crate::queue::Failure;
use crate::verdict::RECORD_NODES;
pub(crate) use booking::{PermitAnswer, on_node, permit, reserve, unreserve};
use equivalence::EquivalenceCache;
pub use panel::Consulted;
use panel::{Judgement, Panel};

/// Fewer nodes than this are always looked at and scored.
const LEAST_NODES: usize = 100;
/// In percent: never look for a smaller share of a large cluster.
const LEAST_PERCENTAGE: usize = 5;
/// How often extenders are asked about nodes in one attempt: those that they let pass may have filled up meanwhile.
const MOST_ROUNDS: u32 = 3;

/// What an attempt works on.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The plugins.
    pub profile: &'a Profile,
    /// The cluster.
    pub snapshot: &'a Snapshot,
    /// Pods that wait for preempted nodes.
    pub nominated: &'a Nominated,
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// The nodes among which its group is tried; `None`: all.
    pub within: Option<&'a Placement>,
}

impl Inputs<'_> {
    /// Whether the node at this place may be taken.
    fn allows(&self, at: usize) -> bool {
        self.within.is_none_or(|placement| placement.has(at))
    }
}

/// What one attempt leaves for the next on the same cache.
#[derive(Debug, Default)]
pub struct NodeSearch {
    /// Where in the order of nodes the next search begins, so that over time all nodes get their turn.
    pub(crate) start: usize,
    equivalence: EquivalenceCache,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The place of the chosen node in the snapshot.
    Node(usize),
    /// There is no node at all.
    NoNodes,
    /// No node takes the pod.
    Unfit,
    /// Something went wrong.
    Error(String),
    /// Extenders have to be asked first.
    Asks,
    /// There would be a node, but the pod's group cannot go yet.
    Group(String),
}

/// An attempt with its grounds.
#[derive(Debug)]
pub struct Attempt {
    /// What the plugins remember for the points to come.
    pub state: CycleState,
    /// How it ended.
    pub outcome: Outcome,
    /// Every node that was looked at and refused.
    pub refused: Refusals,
    /// The refusal of all nodes that are not in `refused`, if they were ruled out together.
    pub absent: Option<Status>,
    /// The refusal of the pod before any node was looked at.
    pub pre_filter: Option<Status>,
    /// What PostFilter says.
    pub post_filter: Option<Status>,
    /// A new nomination: a node, or an empty name that takes the old one back.
    pub nominate: Option<String>,
    /// How many pods are removed for it.
    pub victims: usize,
    /// How many nodes there are.
    pub total_nodes: usize,
    /// What extenders have to be asked.
    pub question: Option<ExtenderQuestion>,
}

impl Attempt {
    /// An attempt that failed before it began.
    pub(crate) fn failed(total_nodes: usize, error: String) -> Self {
        Self {
            outcome: Outcome::Error(error),
            ..Self::new(total_nodes)
        }
    }

    pub(crate) fn new(total_nodes: usize) -> Self {
        Self {
            state: CycleState::new(),
            outcome: Outcome::Unfit,
            refused: Refusals::default(),
            absent: None,
            pre_filter: None,
            post_filter: None,
            nominate: None,
            victims: 0,
            total_nodes,
            question: None,
        }
    }

    /// What the queue has to know about a failed attempt.
    pub fn failure(&self) -> Failure {
        let mut failure = Failure {
            error: matches!(self.outcome, Outcome::Error(_)),
            ..Failure::default()
        };
        let refusals = self.refused.kinds().map(|(s, _)| s).chain(&self.pre_filter);
        for status in refusals
            .chain(&self.absent)
            .filter(|s| !s.plugin.is_empty())
        {
            if status.code == Code::Pending {
                failure.pending.insert(status.plugin);
            } else {
                failure.plugins.insert(status.plugin);
            }
        }
        failure
    }

    /// The message of the pod's condition and event: how many nodes there are and why not one of
    /// them takes the pod, in the usual form.
    pub fn message(&self) -> String {
        match &self.outcome {
            Outcome::Node(_) | Outcome::Asks => String::new(),
            Outcome::NoNodes => "no nodes available to schedule pods".to_owned(),
            Outcome::Error(text) | Outcome::Group(text) => text.clone(),
            Outcome::Unfit => fit_message(
                self.total_nodes,
                self.pre_filter.as_ref(),
                &self.refused,
                self.absent.as_ref(),
                self.post_filter.as_ref(),
            ),
        }
    }
}

/// `0/N nodes are available: <reasons, counted and sorted>. <PostFilter's message>`.
pub fn fit_message(
    total: usize,
    pre_filter: Option<&Status>,
    refused: &Refusals,
    absent: Option<&Status>,
    post_filter: Option<&Status>,
) -> String {
    let mut message = format!("0/{total} nodes are available:");
    if let Some(status) = pre_filter.filter(|s| !s.reasons.is_empty()) {
        message.push_str(&format!(" {}.", status.message()));
    } else {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (status, times) in refused.kinds() {
            for reason in &status.reasons {
                *counts.entry(reason).or_default() += times;
            }
        }
        let missing = total.saturating_sub(refused.len());
        if let (Some(status), 1..) = (absent, missing) {
            for reason in &status.reasons {
                *counts.entry(reason).or_default() += missing;
            }
        }
        // Sorted as texts, number first: that is how the original does it.
        let mut lines: Vec<String> = counts.iter().map(|(r, n)| format!("{n} {r}")).collect();
        lines.sort();
        if !lines.is_empty() {
            message.push_str(&format!(" {}.", lines.join(", ")));
        }
    }
    if let Some(status) = post_filter.filter(|s| !s.reasons.is_empty()) {
        message.push_str(&format!(" {}", status.message()));
    }
    message
}

/// Looks for a node without extenders.
pub fn attempt(inputs: &Inputs<'_>, search: &mut NodeSearch) -> Attempt {
    let consulted = Consulted {
        extenders: &Extenders::default(),
        answers: &ExtenderAnswers::default(),
    };
    attempt_with(inputs, consulted, search)
}

/// Looks for a node. Where extenders have to be asked first, it ends with the question and is to be
/// begun again with the answers.
pub fn attempt_with(
    inputs: &Inputs<'_>,
    consulted: Consulted<'_>,
    search: &mut NodeSearch,
) -> Attempt {
    attempt_from(CycleState::new(), inputs, consulted, search)
}

/// The same with what is known to plugins before the attempt begins.
pub(crate) fn attempt_from(
    state: CycleState,
    inputs: &Inputs<'_>,
    consulted: Consulted<'_>,
    search: &mut NodeSearch,
) -> Attempt {
    let nodes = inputs.snapshot.nodes();
    let mut attempt = Attempt {
        state,
        ..Attempt::new(nodes.len())
    };
    if nodes.is_empty() {
        attempt.outcome = Outcome::NoNodes;
        return attempt;
    }
    match find(inputs, consulted, search, &mut attempt) {
        Err(error) => attempt.outcome = Outcome::Error(error),
        Ok(_) if attempt.question.is_some() => attempt.outcome = Outcome::Asks,
        Ok(feasible) if feasible.is_empty() => {
            explain(inputs, &mut attempt);
            let began = Instant::now();
            let code = post_filter(inputs, consulted, &mut attempt);
            attempt
                .state
                .times
                .note(ExtensionPoint::PostFilter, code, began);
        }
        Ok(feasible) => match score(inputs, consulted, &feasible, &mut attempt) {
            Ok(node) => attempt.outcome = Outcome::Node(node),
            Err(error) => attempt.outcome = Outcome::Error(error),
        },
    }
    attempt
}

/// How many nodes that can take the pod are enough.
fn enough(percentage: usize, nodes: usize) -> usize {
    if nodes < LEAST_NODES {
        return nodes;
    }
    let percentage = match percentage {
        0 => 50usize.saturating_sub(nodes / 125).max(LEAST_PERCENTAGE),
        given => given.min(100),
    };
    (nodes * percentage / 100).max(LEAST_NODES)
}

/// The nodes that can take the pod, in so far as they are looked for. Without any there may be a question.
fn find(
    inputs: &Inputs<'_>,
    consulted: Consulted<'_>,
    search: &mut NodeSearch,
    attempt: &mut Attempt,
) -> Result<Vec<usize>, String> {
    let began = Instant::now();
    let (status, names, limiting) = pre_filter(inputs, &mut attempt.state);
    attempt
        .state
        .times
        .note(ExtensionPoint::PreFilter, status.code, began);
    if !status.is_success() {
        if !status.is_rejected() {
            return Err(status.message());
        }
        attempt.absent = Some(status.clone());
        attempt.pre_filter = Some(status);
        return Ok(Vec::new());
    }
    let began = Instant::now();
    let found = find_among((names, limiting), inputs, consulted, search, attempt);
    let code = match &found {
        Ok(feasible) if feasible.is_empty() => Code::Unschedulable,
        Ok(_) => Code::Success,
        Err(_) => Code::Error,
    };
    attempt
        .state
        .times
        .note(ExtensionPoint::Filter, code, began);
    found
}

/// The same among the nodes that PreFilter has left.
fn find_among(
    (names, limiting): (NodeNames, Vec<&'static str>),
    inputs: &Inputs<'_>,
    consulted: Consulted<'_>,
    search: &mut NodeSearch,
    attempt: &mut Attempt,
) -> Result<Vec<usize>, String> {
    let snapshot = inputs.snapshot;
    let mut panel = Panel::new(inputs, consulted);
    // The node on which room was made is the likely answer, so it is asked first and alone.
    match judge_nominated(inputs, &attempt.state, &mut panel) {
        Some((at, Judgement::Fits)) => return Ok(vec![at]),
        Some((_, Judgement::Unasked)) => {
            attempt.question = panel.question();
            return Ok(Vec::new());
        }
        _ => {}
    }
    let candidates: Option<Vec<usize>> = names.map(|names| {
        attempt.absent = Some(Status::unresolvable(format!(
            "node(s) didn't satisfy plugin(s) [{}]",
            limiting.join(" ")
        )));
        names
            .iter()
            .filter_map(|name| snapshot.position(name))
            .collect()
    });
    let candidates = match inputs.within {
        None => candidates,
        Some(placement) => Some(limited(placement, candidates, attempt)),
    };
    let total = candidates.as_ref().map_or(attempt.total_nodes, Vec::len);
    let wanted = if panel.has_a_say() || !inputs.profile.points.score.is_empty() {
        enough(inputs.profile.percentage_of_nodes_to_score, total)
    } else {
        // Nothing would tell one from another.
        1
    };
    let skipped = attempt.state.skipped_filters;
    let class = search
        .equivalence
        .class(inputs.profile, inputs.pod, skipped);
    let from = consulted.answers.start.unwrap_or(search.start);
    let mut feasible = Vec::with_capacity(wanted.min(512));
    let (mut looked, mut passed) = (0, 0);
    for i in 0..total {
        let turn = (from + i) % total;
        let at = candidates.as_ref().map_or(turn, |list| list[turn]);
        looked += 1;
        match class.filters(inputs, &attempt.state, at) {
            None => {
                passed += 1;
                match panel.judge(at) {
                    Judgement::Fits => feasible.push(at),
                    Judgement::Refused(status) => attempt.refused.push(at, status),
                    Judgement::Unasked => {}
                }
            }
            Some(status) if status.code == Code::Error => return Err(status.message()),
            Some(status) => attempt.refused.push_shared(at, status),
        }
        if passed >= wanted {
            break;
        }
    }
    if consulted.answers.start.is_none() {
        search.start = (search.start + looked) % attempt.total_nodes;
    }
    if feasible.is_empty() {
        if consulted.answers.rounds >= MOST_ROUNDS && !panel.unasked.is_empty() {
            return Err("nodes have changed while extenders were asked about them".to_owned());
        }
        attempt.question = panel.question();
    }
    let by_names = inputs.within.is_none() && feasible.is_empty();
    if let Some(absent) = attempt.absent.as_mut().filter(|_| by_names) {
        // A change that helps the plugin that narrowed the choice helps the pod.
        absent.plugin = limiting.first().copied().unwrap_or_default();
    }
    Ok(feasible)
}

/// The candidates within a placement.
fn limited(
    placement: &Placement,
    candidates: Option<Vec<usize>>,
    attempt: &mut Attempt,
) -> Vec<usize> {
    let text = format!("node(s) outside of placement {}", placement.name);
    attempt.absent = Some(Status::unresolvable(text).by(placement.plugin));
    match candidates {
        None => placement.nodes.clone(),
        Some(mut candidates) => {
            candidates.retain(|at| placement.has(*at));
            candidates
        }
    }
}

/// What is said of the node that was made free for the pod, if there is one that filters let pass.
fn judge_nominated(
    inputs: &Inputs<'_>,
    state: &CycleState,
    panel: &mut Panel<'_>,
) -> Option<(usize, Judgement)> {
    let at = inputs.snapshot.position(inputs.pod.nominated_node()?)?;
    let at = Some(at).filter(|at| inputs.allows(*at))?;
    let status = filters_with_nominated(inputs, state, inputs.snapshot.node(at));
    status.is_success().then(|| (at, panel.judge(at)))
}

/// Runs PreFilter. The last part names the plugins that limited the nodes.
pub(crate) fn pre_filter(
    inputs: &Inputs<'_>,
    state: &mut CycleState,
) -> (Status, NodeNames, Vec<&'static str>) {
    let mut names: NodeNames = None;
    let mut limiting: Vec<&'static str> = Vec::new();
    let mut refusal: Option<Status> = None;
    let mut skipped = Vec::new();
    for plugin in &inputs.profile.points.pre_filter {
        let (status, limit) = plugin.pre_filter(state, inputs.pod, inputs.snapshot);
        let status = status.by(plugin.name());
        match status.code {
            Code::Success => {}
            Code::Skip => skipped.push(plugin.name()),
            Code::Unschedulable | Code::Pending => refusal = refusal.or(Some(status)),
            _ => return (status, None, limiting),
        }
        if let Some(limit) = limit {
            limiting.push(plugin.name());
            let rest = match names {
                Some(names) => names.intersection(&limit).cloned().collect(),
                None => limit,
            };
            if rest.is_empty() {
                limiting.sort_unstable();
                let text = match &limiting[..] {
                    [one] => format!("node(s) didn't satisfy plugin {one}"),
                    all => format!(
                        "node(s) didn't satisfy plugin(s) [{}] simultaneously",
                        all.join(" ")
                    ),
                };
                return (Status::unresolvable(text).by(plugin.name()), None, limiting);
            }
            names = Some(rest);
        }
    }
    limiting.sort_unstable();
    for (i, plugin) in inputs.profile.points.filter.iter().enumerate() {
        if skipped.contains(&plugin.name()) {
            state.skipped_filters |= 1 << i;
        }
    }
    (refusal.unwrap_or_default(), names, limiting)
}

/// Asks every Filter plugin until one refuses.
pub fn filters(profile: &Profile, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
    for (i, plugin) in profile.points.filter.iter().enumerate() {
        if state.skipped_filters & (1 << i) != 0 {
            continue;
        }
        let status = plugin.filter(state, pod, node);
        if !status.is_success() {
            return status.by(plugin.name());
        }
    }
    Status::success()
}

/// Asks the filters with the pods in mind that wait for this node: it must take this pod both with
/// them (they may come) and without (they may not).
pub fn filters_with_nominated(inputs: &Inputs<'_>, state: &CycleState, node: &NodeInfo) -> Status {
    let pod = inputs.pod;
    let waiting: Vec<&Arc<PodInfo>> = inputs
        .nominated
        .on_node(&node.name)
        .iter()
        .filter(|p| p.uid != pod.uid && p.priority >= pod.priority)
        .collect();
    if !waiting.is_empty() {
        let mut state = state.imagine();
        let mut node = node.clone();
        for other in waiting {
            node.add_pod(other.clone());
            let there = (&**other, true);
            inputs
                .profile
                .imagine(&mut state, pod, there, &node, inputs.snapshot);
        }
        let status = filters(inputs.profile, &state, pod, &node);
        if !status.is_success() {
            return status;
        }
    }
    filters(inputs.profile, state, pod, node)
}

/// Completes the refusals that the record of the attempt will name.
fn explain(inputs: &Inputs<'_>, attempt: &mut Attempt) {
    for (at, refusal) in attempt.refused.first_mut(RECORD_NODES) {
        let mut plugins = inputs.profile.points.filter.iter();
        if let Some(plugin) = plugins.find(|p| p.name() == refusal.plugin) {
            let node = inputs.snapshot.node(at);
            plugin.explain(&attempt.state, inputs.pod, node, refusal);
        }
    }
}

/// Runs PostFilter until a plugin has made room, and answers how it ended.
fn post_filter(inputs: &Inputs<'_>, consulted: Consulted<'_>, attempt: &mut Attempt) -> Code {
    attempt.outcome = Outcome::Unfit;
    let mut message = Status::default();
    for plugin in &inputs.profile.points.post_filter {
        let context = PostFilterContext {
            profile: inputs.profile,
            snapshot: inputs.snapshot,
            nominated: inputs.nominated,
            refused: &attempt.refused,
            absent: attempt.absent.as_ref(),
            judged: consulted.answers.candidates.as_deref(),
            within: inputs.within,
        };
        let (result, status) = plugin.post_filter(&mut attempt.state, inputs.pod, &context);
        if let Some(candidates) = result.ask {
            attempt.question = Some(ExtenderQuestion::Victims(candidates));
            attempt.outcome = Outcome::Asks;
            return Code::Success;
        }
        if result.nominate.is_some() {
            (attempt.nominate, attempt.victims) = (result.nominate, result.victims);
        }
        if status.is_success() || !status.is_rejected() {
            let code = status.code;
            attempt.post_filter = Some(status.by(plugin.name()));
            return code;
        }
        message.code = status.code;
        message.reasons.extend(status.reasons);
    }
    let code = message.code;
    if !message.is_success() {
        attempt.post_filter = Some(message);
    }
    code
}

/// Scores the nodes and chooses one of the best.
fn score(
    inputs: &Inputs<'_>,
    consulted: Consulted<'_>,
    feasible: &[usize],
    attempt: &mut Attempt,
) -> Result<usize, String> {
    if let [only] = feasible {
        return Ok(*only);
    }
    let Inputs {
        profile,
        snapshot,
        pod,
        ..
    } = *inputs;
    let mut began = Instant::now();
    let mut skipped: Vec<&str> = Vec::new();
    for plugin in &profile.points.pre_score {
        let status = plugin.pre_score(&mut attempt.state, pod, snapshot, feasible);
        match status.code {
            Code::Success => {}
            Code::Skip => skipped.push(plugin.name()),
            _ => return Err(status.message()),
        }
    }
    let times = &mut attempt.state.times;
    times.note(ExtensionPoint::PreScore, Code::Success, began);
    began = Instant::now();
    let mut totals = vec![0_i64; feasible.len()];
    let mut scores = vec![0; feasible.len()];
    for plugin in &profile.points.score {
        if skipped.contains(&plugin.name()) {
            continue;
        }
        for (score, &at) in scores.iter_mut().zip(feasible) {
            *score = plugin.score(&attempt.state, pod, snapshot.node(at), snapshot);
        }
        plugin.normalize(&attempt.state, pod, snapshot, feasible, &mut scores);
        if let Some(score) = scores.iter().find(|s| !(0..=MAX_NODE_SCORE).contains(*s)) {
            return Err(format!(
                "plugin {:?} returns an invalid score {score}, it should in the range of [0, {MAX_NODE_SCORE}] after normalizing",
                plugin.name()
            ));
        }
        let weight = profile.weight(plugin.name());
        for (total, score) in totals.iter_mut().zip(&scores) {
            *total = total.saturating_add(score.saturating_mul(weight));
        }
    }
    let times = &mut attempt.state.times;
    times.note(ExtensionPoint::Score, Code::Success, began);
    for (total, &at) in totals.iter_mut().zip(feasible) {
        *total = total.saturating_add(consulted.answers.score(&snapshot.node(at).name));
    }
    // Any of the best, so that equal nodes fill evenly.
    let best = totals.iter().max().copied().unwrap_or(0);
    let ties: Vec<usize> = feasible
        .iter()
        .zip(&totals)
        .filter(|(_, total)| **total == best)
        .map(|(&node, _)| node)
        .collect();
    Ok(ties[rand::rng().random_range(0..ties.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(list: &[&[&'static str]]) -> Refusals {
        let status = |reasons: &&[&'static str]| Status {
            code: Code::Unschedulable,
            reasons: reasons.iter().map(|&r| r.into()).collect(),
            ..Status::success()
        };
        list.iter().map(status).enumerate().collect()
    }

    #[test]
    fn messages_have_the_usual_form() {
        let statuses = refused(&[
            &["node(s) had untolerated taint(s)"],
            &[
                "Insufficient cpu",
                "Insufficient hardware-vendor.example/foo",
            ],
            &["node(s) had untolerated taint(s)"],
        ]);
        assert_eq!(
            fit_message(3, None, &statuses, None, None),
            "0/3 nodes are available: 1 Insufficient cpu, \
             1 Insufficient hardware-vendor.example/foo, 2 node(s) had untolerated taint(s)."
        );
        let preemption = Status::unschedulable("preemption: nothing to be had.");
        assert_eq!(
            fit_message(
                2,
                None,
                &refused(&[&["a"]]),
                Some(&Status::unresolvable("b")),
                Some(&preemption)
            ),
            "0/2 nodes are available: 1 a, 1 b. preemption: nothing to be had."
        );
        let gone = Status::unresolvable("claim missing");
        assert_eq!(
            fit_message(2, Some(&gone), &refused(&[]), Some(&gone), None),
            "0/2 nodes are available: claim missing."
        );
    }

    #[test]
    fn enough_nodes_are_as_many_as_upstream_looks_for() {
        for (percentage, nodes, expected) in [
            (0, 10, 10),
            (0, 99, 99),
            (0, 100, 100),
            (0, 1000, 420),
            (0, 5000, 500),
            (0, 6000, 300),
            (100, 5000, 5000),
            (40, 1000, 400),
            (1, 1000, 100),
        ] {
            assert_eq!(
                enough(percentage, nodes),
                expected,
                "{percentage}% of {nodes}"
            );
        }
    }
}
