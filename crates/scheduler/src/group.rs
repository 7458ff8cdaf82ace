//! One attempt for a pod group: its pods are tried one after the other on one snapshot, each seeing those before it as
//! placed, and go together or not at all.
//!
//! Pure as [`crate::cycle`] is: a group that cannot go leaves cache and plugins as they were, and nothing of it holds
//! anything while it waits. That is why two groups never wait for each other.

mod asking;
mod making_room;
mod placing;
mod verdict;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Cache, Snapshot};
use crate::cycle::{
    Attempt, Consulted, Inputs, NodeSearch, Outcome, PermitAnswer, attempt_from, on_node, permit,
    reserve, unreserve,
};
use crate::extender::{ExtenderAnswers, Extenders};
use crate::framework::{CycleState, Placement, Profile, Status};
use crate::nominator::Nominated;
use crate::plugins::GroupAllocations;
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;
use crate::queue::{Queue, Rules, Taken};
pub use asking::{GroupAnswers, GroupQuestion};
pub use verdict::GroupVerdict;
use verdict::{PREEMPTION, refusal};

/// Takes a pod's whole group out of the queue, as far as it waits there: the most important pods first, then those that
/// were first tried first.
pub(crate) fn draw(
    queue: &mut Queue,
    groups: &PodGroups,
    first: Taken,
    rules: &impl Rules,
    now: Instant,
) -> Vec<Taken> {
    let mates = groups.unscheduled(&first.pod);
    let mates = mates.iter().filter(|uid| **uid != first.pod.uid);
    let taken = mates.filter_map(|uid| queue.take(uid, rules, now));
    let mut members: Vec<Taken> = taken.collect();
    members.push(first);
    members.sort_by_key(|taken| {
        let pod = &taken.pod;
        (Reverse(pod.priority), taken.first_attempt, pod.name.clone())
    });
    for member in &mut members {
        member.pod = groups.raised(member.pod.clone());
    }
    members
}

/// What an attempt for a group works on.
pub struct GroupCycle<'a> {
    /// The plugins.
    pub profile: &'a Profile,
    /// Where pods are booked.
    pub cache: &'a mut Cache,
    /// The cluster, up to date with the cache.
    pub snapshot: &'a mut Snapshot,
    /// Pods that wait for preempted nodes.
    pub nominated: &'a Nominated,
    /// The groups.
    pub groups: &'a PodGroups,
    /// All extenders.
    pub extenders: &'a Extenders,
    /// What they have said.
    pub answers: &'a GroupAnswers,
    /// Where in the order of nodes the search begins.
    pub search: &'a mut NodeSearch,
    /// When the attempt began.
    pub began: tokio::time::Instant,
}

/// A pod of the group with its node, booked there.
#[derive(Debug)]
pub struct GroupPlace {
    /// The pod.
    pub taken: Taken,
    /// The node.
    pub node: Arc<str>,
    /// What the plugins remember.
    pub state: CycleState,
    /// How many nodes there are.
    pub total_nodes: usize,
    /// The plugins that have the pod wait before it is bound.
    pub waits: Vec<(&'static str, Duration)>,
}

/// What came of an attempt for a group.
#[derive(Debug)]
pub struct GroupDecision {
    /// How it ended.
    pub verdict: GroupVerdict,
    /// The pods that go, booked on their nodes; none unless the group fits.
    pub placed: Vec<GroupPlace>,
    /// The others.
    pub refused: Vec<(Taken, Attempt)>,
    /// The pods that are removed for the group, which goes when they are gone.
    pub removed: Vec<Arc<PodInfo>>,
    /// What extenders have to be asked before anything is decided.
    pub questions: Vec<GroupQuestion>,
}

/// A pod that would fit if others were gone.
struct Expecting {
    taken: Taken,
    attempt: Attempt,
    node: String,
}

/// What has been found out so far.
#[derive(Default)]
struct Trial {
    /// Pods that wait for preempted nodes, those of this group among them.
    nominated: Option<Nominated>,
    placed: Vec<GroupPlace>,
    expecting: Vec<Expecting>,
    refused: Vec<(Taken, Attempt)>,
    /// About pods that may find a node, if extenders say so.
    questions: Vec<GroupQuestion>,
}

impl Trial {
    /// For how many there is a node, or would be.
    fn found(&self) -> usize {
        self.placed.len() + self.expecting.len() + self.questions.len()
    }
}

impl GroupCycle<'_> {
    /// Decides about these pods of one group, in this order.
    pub fn decide(mut self, members: Vec<Taken>) -> GroupDecision {
        let placements = match self.placements(&members) {
            Ok(placements) => placements,
            Err(status) => return self.refuse_all(members, &status),
        };
        let decision = match &placements {
            None => self.decide_within(members.clone(), None),
            Some(placements) => self.decide_among(members.clone(), placements),
        };
        match decision.verdict {
            GroupVerdict::Unschedulable | GroupVerdict::NoPlacement(_) => {
                self.make_room(&members, placements.as_deref(), decision)
            }
            _ => decision,
        }
    }

    /// What plugins are told of an attempt for this group.
    fn allocations(&self, members: &[Taken]) -> GroupAllocations {
        let first = members.first();
        let runs = first.is_some_and(|taken| self.groups.size(&taken.pod).scheduled > 0);
        let shared = GroupAllocations::new(runs, self.began);
        shared.set_gone(self.cache.lifted());
        shared
    }

    /// Tries these pods, among the nodes of a placement or all.
    fn decide_within(&mut self, members: Vec<Taken>, within: Option<&Placement>) -> GroupDecision {
        let mut trial = Trial::default();
        let shared = self.allocations(&members);
        let mut failed = None;
        let mut members = members.into_iter();
        while let Some(taken) = members.next() {
            let (pod, found) = (taken.pod.clone(), trial.found());
            if let Err(why) = self.one(taken, &shared, within, &mut trial) {
                failed = Some(why);
                break;
            }
            // Of thousands that cannot go together not all are tried, again and again.
            let more = trial.expecting.len() + trial.questions.len() + members.len();
            if trial.found() == found && !self.may_pass_with(&pod, more) {
                break;
            }
        }
        if failed.is_none() && !trial.questions.is_empty() {
            let decision = self.ask(trial);
            self.cache.update(self.snapshot);
            return decision;
        }
        let asked = match failed {
            Some(why) => Err(why),
            None => self.ask_permission(&mut trial),
        };
        let decision = match asked {
            Ok(None) if members.len() == 0 => GroupDecision {
                verdict: GroupVerdict::Fits,
                placed: trial.placed,
                refused: with_expecting(trial.refused, trial.expecting),
                removed: Vec::new(),
                questions: Vec::new(),
            },
            Ok(why) => {
                let why = why.unwrap_or_default();
                let mut decision = self.stay(trial, &why);
                let total = self.snapshot.nodes().len();
                let untried = members.map(|taken| (taken, untried(total, &why)));
                decision.refused.extend(untried);
                decision
            }
            Err(why) => {
                let why = format!("failed to schedule other pod from a pod group: {why}");
                trial.refused.extend(members.map(|taken| {
                    let total = self.snapshot.nodes().len();
                    (taken, Attempt::failed(total, why.clone()))
                }));
                self.fail(trial, why)
            }
        };
        self.cache.update(self.snapshot);
        decision
    }

    /// Whether a pod may go once so many more of its group have nodes.
    fn may_pass_with(&self, pod: &PodInfo, more: usize) -> bool {
        let mut plugins = self.profile.points.permit.iter();
        plugins.all(|plugin| plugin.may_pass_with(pod, more))
    }

    /// Tries one pod.
    ///
    /// # Errors
    /// When something goes wrong, which ends the attempt for the group. The pod is among the refused.
    fn one(
        &mut self,
        taken: Taken,
        shared: &GroupAllocations,
        within: Option<&Placement>,
        trial: &mut Trial,
    ) -> Result<(), String> {
        let pod = taken.pod.clone();
        let mut state = CycleState::new();
        state.put(shared.clone());
        let inputs = Inputs {
            profile: self.profile,
            snapshot: self.snapshot,
            nominated: trial.nominated.as_ref().unwrap_or(self.nominated),
            pod: &pod,
            within,
        };
        let unanswered = ExtenderAnswers::default();
        let answers = self.answers.get(&pod.uid).unwrap_or(&unanswered);
        let start = answers.start.unwrap_or(self.search.start);
        let consulted = Consulted {
            extenders: self.extenders,
            answers,
        };
        let mut attempt = attempt_from(state, &inputs, consulted, self.search);
        match &attempt.outcome {
            Outcome::Node(at) => {
                let node = self.snapshot.node(*at).name.clone();
                return self.book(taken, attempt, &node, trial);
            }
            Outcome::Asks => {
                let question = attempt.question.take();
                trial
                    .questions
                    .extend(question.map(|question| GroupQuestion {
                        pod,
                        question,
                        start,
                    }));
                return Ok(());
            }
            _ => {}
        }
        if let Outcome::Error(why) = &attempt.outcome {
            let why = why.clone();
            trial.refused.push((taken, attempt));
            return Err(why);
        }
        let standing = || self.nominated.node_of(&pod.uid);
        let node = attempt.nominate.as_deref().or_else(standing);
        let allowed = |node: &&str| {
            let at = self.snapshot.position(node);
            within.is_none_or(|placement| at.is_some_and(|at| placement.has(at)))
        };
        let node = node.filter(allowed);
        match node.filter(|n| !n.is_empty()).map(str::to_owned) {
            Some(node) => {
                // The pods after it leave it its place.
                let all = || self.nominated.clone();
                trial
                    .nominated
                    .get_or_insert_with(all)
                    .set(&pod, Some(&node));
                trial.expecting.push(Expecting {
                    taken,
                    attempt,
                    node,
                });
            }
            None => trial.refused.push((taken, attempt)),
        }
        Ok(())
    }

    /// Books a pod on its node, where the pods after it see it.
    fn book(
        &mut self,
        taken: Taken,
        mut attempt: Attempt,
        node: &Arc<str>,
        trial: &mut Trial,
    ) -> Result<(), String> {
        let pod = &taken.pod;
        let counted = on_node(self.profile, &attempt.state, pod, node);
        let booked = match self.cache.assume(counted, node) {
            Err(error) => Err(Status::error(error.to_string())),
            Ok(()) => {
                self.groups.set_scheduled(pod, true);
                // It has its place: from now on it does not count as one that waits for it besides.
                if self.nominated.node_of(&pod.uid).is_some() {
                    let all = || self.nominated.clone();
                    trial.nominated.get_or_insert_with(all).remove(&pod.uid);
                }
                reserve(self.profile, &mut attempt.state, pod, node)
            }
        };
        self.cache.update(self.snapshot);
        match booked {
            Ok(()) => {
                trial.placed.push(GroupPlace {
                    node: node.clone(),
                    state: attempt.state,
                    total_nodes: attempt.total_nodes,
                    waits: Vec::new(),
                    taken,
                });
                Ok(())
            }
            Err(status) => {
                let place = GroupPlace {
                    node: node.clone(),
                    state: attempt.state,
                    total_nodes: attempt.total_nodes,
                    waits: Vec::new(),
                    taken,
                };
                let error = (!status.is_rejected()).then(|| status.message());
                let refused = self.undo(place, status);
                trial.refused.push(refused);
                error.map_or(Ok(()), Err)
            }
        }
    }

    /// Asks for permission for all that are placed. `None`: the group goes; else why it does not.
    fn ask_permission(&mut self, trial: &mut Trial) -> Result<Option<String>, String> {
        loop {
            let (mut granted, mut why, mut refused) = (false, None, None);
            for (at, place) in trial.placed.iter_mut().enumerate() {
                let pod = &place.taken.pod;
                match permit(self.profile, &mut place.state, pod, &place.node) {
                    PermitAnswer::Granted => {
                        granted = true;
                        place.waits.clear();
                    }
                    PermitAnswer::Waits(waits, reason) => {
                        place.waits = waits;
                        why.get_or_insert(reason);
                    }
                    PermitAnswer::Refused(status) => {
                        refused = Some((at, status));
                        break;
                    }
                }
            }
            let Some((at, status)) = refused else {
                return Ok(if granted {
                    None
                } else {
                    Some(why.unwrap_or_default())
                });
            };
            // The others were counted with it: they are asked anew.
            let error = (!status.is_rejected()).then(|| status.message());
            let place = trial.placed.remove(at);
            let refused = self.undo(place, status);
            trial.refused.push(refused);
            if let Some(error) = error {
                return Err(error);
            }
        }
    }

    /// The group does not go now.
    fn stay(&mut self, mut trial: Trial, why: &str) -> GroupDecision {
        let verdict = self.with_victims_gone(&mut trial);
        let waits = verdict == GroupVerdict::WaitsForPreemption;
        for place in std::mem::take(&mut trial.placed) {
            let node = place.node.to_string();
            let (taken, mut attempt) = self.undo(place, Status::success());
            attempt.outcome = Outcome::Group(refusal(if waits { PREEMPTION } else { why }));
            // Its place is kept for it until the others have theirs.
            attempt.nominate = Some(if waits { node } else { String::new() });
            trial.refused.push((taken, attempt));
        }
        if waits {
            trial.refused = with_expecting(trial.refused, trial.expecting);
        } else {
            // No pod is removed for a group that could not go even so.
            for mut expecting in trial.expecting {
                drop(expecting.attempt.state.take_effects());
                expecting.attempt.outcome = Outcome::Group(refusal(why));
                expecting.attempt.nominate = Some(String::new());
                trial.refused.push((expecting.taken, expecting.attempt));
            }
        }
        GroupDecision {
            verdict,
            placed: Vec::new(),
            refused: trial.refused,
            removed: Vec::new(),
            questions: Vec::new(),
        }
    }

    /// Whether the group would go if the pods in its way were gone.
    fn with_victims_gone(&self, trial: &mut Trial) -> GroupVerdict {
        for expecting in &trial.expecting {
            self.groups.set_scheduled(&expecting.taken.pod, true);
        }
        let fits = trial.expecting.iter_mut().any(|e| {
            let (state, pod) = (&mut e.attempt.state, &e.taken.pod);
            matches!(
                permit(self.profile, state, pod, &e.node),
                PermitAnswer::Granted
            )
        });
        for expecting in &trial.expecting {
            self.groups.set_scheduled(&expecting.taken.pod, false);
        }
        if fits {
            GroupVerdict::WaitsForPreemption
        } else {
            GroupVerdict::Unschedulable
        }
    }

    /// Something went wrong with one pod: none goes.
    fn fail(&mut self, mut trial: Trial, why: String) -> GroupDecision {
        for place in std::mem::take(&mut trial.placed) {
            let (taken, attempt) = self.undo(place, Status::success());
            trial.refused.push((taken, attempt));
        }
        for mut expecting in trial.expecting {
            drop(expecting.attempt.state.take_effects());
            trial.refused.push((expecting.taken, expecting.attempt));
        }
        for (_, attempt) in &mut trial.refused {
            if !matches!(attempt.outcome, Outcome::Error(_)) {
                attempt.outcome = Outcome::Error(why.clone());
            }
            attempt.nominate = Some(String::new());
        }
        GroupDecision {
            verdict: GroupVerdict::Failed(why),
            placed: Vec::new(),
            refused: trial.refused,
            removed: Vec::new(),
            questions: Vec::new(),
        }
    }

    /// Takes a pod off its node again, for this answer of a plugin.
    fn undo(&mut self, mut place: GroupPlace, status: Status) -> (Taken, Attempt) {
        let pod = &place.taken.pod;
        unreserve(self.profile, &mut place.state, pod, &place.node);
        if self.cache.forget(&pod.uid) {
            self.groups.set_scheduled(pod, false);
        }
        let mut attempt = Attempt {
            state: place.state,
            nominate: Some(String::new()),
            ..Attempt::new(place.total_nodes)
        };
        if status.is_rejected() {
            // As if its node were the only one: the others were not asked.
            attempt.total_nodes = 1;
            let at = self.snapshot.position(&place.node).unwrap_or(0);
            attempt.refused.push(at, status);
        } else if !status.is_success() {
            attempt.outcome = Outcome::Error(status.message());
        }
        (place.taken, attempt)
    }
}

/// What a pod is told that was not tried: it does not go without the others.
fn untried(total_nodes: usize, why: &str) -> Attempt {
    Attempt {
        outcome: Outcome::Group(refusal(why)),
        nominate: Some(String::new()),
        ..Attempt::new(total_nodes)
    }
}

/// The refused with those that would fit if others were gone, who are refused as they would be alone.
fn with_expecting(
    mut refused: Vec<(Taken, Attempt)>,
    expecting: Vec<Expecting>,
) -> Vec<(Taken, Attempt)> {
    refused.extend(expecting.into_iter().map(|e| (e.taken, e.attempt)));
    refused
}

impl std::fmt::Debug for GroupCycle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupCycle")
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
