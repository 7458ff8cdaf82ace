//! Room for a whole group (KEP-5710): pods and groups of lower priority are imagined away until it goes, and as many as can
//! stay are put back.
//!
//! What upstream does, imagining all of lower priority away and trying the whole group once for each that might stay, costs a
//! decision about the group for each pod of the cluster. Here the pods of the group are taken one by one, and each that finds
//! no node has room made for it on one node as a pod on its own has; only what that removes is looked at once more, as often
//! as [`MOST_TRIES`] allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use super::verdict::{PREEMPTION, refusal};
use super::{GroupCycle, GroupDecision, GroupVerdict, Trial};
use crate::cycle::{Outcome, PermitAnswer, permit};
use crate::framework::{GroupPostFilter, Placement, PostFilterContext, Status};
use crate::plugins::GroupAllocations;
use crate::pod::PodInfo;
use crate::queue::Taken;
use crate::victims::{PreemptionCost, Removable, Victim};

/// How often pods are tried at most to find out whether one of those removed can stay, or whether another placement is better.
const MOST_TRIES: usize = 4096;
/// How long all of it may take.
const MOST_TIME: Duration = Duration::from_secs(2);
/// How many of those removed are named.
const NAMED: usize = 8;

/// How much more may be tried.
struct Budget {
    tries: usize,
    until: Instant,
}

impl Budget {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whether so many pods may be tried once more.
    fn take(&mut self, pods: usize) -> bool {
        let left = self.tries.checked_sub(pods).filter(|_| !self.is_over());
        self.tries = left.unwrap_or(self.tries);
        left.is_some()
    }
}

/// The nodes of pods by their UIDs.
type Places = HashMap<Arc<str>, Arc<str>>;

/// A way for the group to go.
struct PreemptionPlan {
    victims: Vec<Victim>,
    places: Places,
    cost: PreemptionCost,
}

/// For whom room is made, and who makes it.
struct Need<'m> {
    members: &'m [Taken],
    point: Arc<dyn GroupPostFilter>,
    removable: Removable,
}

impl GroupCycle<'_> {
    /// A group that cannot go has room made for it, if there is a plugin that does and something that may be removed.
    pub(super) fn make_room(
        &mut self,
        members: &[Taken],
        placements: Option<&[Placement]>,
        decision: GroupDecision,
    ) -> GroupDecision {
        let first = members.first().map(|taken| taken.pod.clone());
        let group = first.as_ref().and_then(|pod| self.groups.of(pod));
        let point = self.profile.points.group_post_filter.clone();
        let (Some(point), Some(group)) = (point, group) else {
            return decision;
        };
        let pods: Vec<Arc<PodInfo>> = members.iter().map(|taken| taken.pod.clone()).collect();
        let have_a_say =
            |pod: &Arc<PodInfo>| self.extenders.filter_for(pod) || self.extenders.score_for(pod);
        if pods.iter().any(have_a_say) {
            // They would have to be asked about nodes as they are not yet, once for each pod that may have to go.
            return in_vain(decision, "extenders are asked about pods of the group");
        }
        let removable = match point.removable(&group, &pods, self.snapshot) {
            Ok(removable) => removable,
            Err(why) => return in_vain(decision, &why),
        };
        let need = Need {
            members,
            point,
            removable,
        };
        let found = self.least_costly(&need, placements);
        self.cache.put_all_back();
        self.cache.update(self.snapshot);
        match found {
            Ok(plan) => self.wait_for(decision, &need, &group, plan),
            Err(why) => in_vain(decision, &why),
        }
    }

    /// The way that hurts least. Pods stay lifted.
    fn least_costly(
        &mut self,
        need: &Need<'_>,
        placements: Option<&[Placement]>,
    ) -> Result<PreemptionPlan, String> {
        let mut budget = Budget {
            tries: MOST_TRIES,
            until: Instant::now() + MOST_TIME,
        };
        // What is leaving anyway makes room first.
        let leaving = need.removable.leaving(self.snapshot);
        let leaving: Vec<Arc<str>> = leaving.map(|pod| pod.uid.clone()).collect();
        for uid in &leaving {
            self.cache.lift(uid);
        }
        self.cache.update(self.snapshot);
        let everywhere = [None];
        let within: Vec<Option<&Placement>> = match placements {
            None => everywhere.to_vec(),
            Some(placements) => placements.iter().map(Some).collect(),
        };
        let mut best: Option<PreemptionPlan> = None;
        for (i, within) in within.into_iter().enumerate() {
            if i > 0 && !budget.take(need.members.len()) {
                break;
            }
            let found = self.plan(need, within, &mut budget);
            if let Some(found) = found.filter(|new| best.as_ref().is_none_or(|b| new.cost < b.cost))
            {
                best = Some(found);
            }
        }
        best.ok_or_else(|| {
            if budget.is_over() {
                format!("looking for pods to remove took longer than {MOST_TIME:?}")
            } else {
                "removing pods of lower priority does not help".to_owned()
            }
        })
    }

    /// What to remove for the group to go within a placement, or anywhere. Leaves all as it was.
    fn plan(
        &mut self,
        need: &Need<'_>,
        within: Option<&Placement>,
        budget: &mut Budget,
    ) -> Option<PreemptionPlan> {
        let (victims, places) = self.first_way(need, within, budget)?;
        let (victims, _) = need.point.by_importance(victims);
        let (victims, places) = self.spare(need, within, budget, victims, places);
        let (victims, violations) = need.point.by_importance(victims);
        self.set_lifted(&victims, false);
        Some(PreemptionPlan {
            cost: PreemptionCost::of(&victims, violations),
            victims,
            places,
        })
    }

    /// Takes the pods one by one and makes room for those that find no node, until the group goes. The victims stay lifted if it
    /// does.
    fn first_way(
        &mut self,
        need: &Need<'_>,
        within: Option<&Placement>,
        budget: &Budget,
    ) -> Option<(Vec<Victim>, Places)> {
        let shared = self.allocations(need.members);
        let (mut trial, mut victims) = (Trial::default(), Vec::new());
        let mut goes = false;
        // Those that find a node as it is come first: nobody has to leave for them.
        for with_room in [false, true] {
            let waiting = match with_room {
                false => need.members.to_vec(),
                true => std::mem::take(&mut trial.refused)
                    .into_iter()
                    .map(|(taken, _)| taken)
                    .collect(),
            };
            let mut left = waiting.len();
            for taken in waiting {
                left -= 1;
                let pod = taken.pod.clone();
                let before = trial.placed.len();
                let mut tried = self.one(taken, &shared, within, &mut trial);
                if tried.is_ok() && with_room && trial.placed.len() == before {
                    tried = self.one_with_room(need, within, &mut trial, &mut victims, &shared);
                }
                if tried.is_err() || budget.is_over() {
                    self.abandon(trial, &victims);
                    return None;
                }
                let placed = trial.placed.len() > before;
                goes = placed && self.is_permitted(&mut trial);
                if goes || (with_room && !placed && !self.may_pass_with(&pod, left)) {
                    break;
                }
            }
            if goes {
                break;
            }
        }
        let goes = goes && matches!(self.ask_permission(&mut trial), Ok(None));
        if !goes {
            self.abandon(trial, &victims);
            return None;
        }
        let places = places_of(&trial);
        self.abandon(trial, &[]);
        Some((victims, places))
    }

    /// Makes room for the pod that was refused last, and tries it again.
    fn one_with_room(
        &mut self,
        need: &Need<'_>,
        within: Option<&Placement>,
        trial: &mut Trial,
        victims: &mut Vec<Victim>,
        shared: &GroupAllocations,
    ) -> Result<(), String> {
        let Some((taken, attempt)) = trial.refused.pop() else {
            return Ok(());
        };
        let pod = taken.pod.clone();
        let context = PostFilterContext {
            within,
            profile: self.profile,
            snapshot: self.snapshot,
            nominated: trial.nominated.as_ref().unwrap_or(self.nominated),
            refused: &attempt.refused,
            absent: attempt.absent.as_ref(),
            judged: None,
        };
        let is_unfit = attempt.outcome == Outcome::Unfit && attempt.pre_filter.is_none();
        let room = is_unfit
            .then(|| {
                need.point
                    .room(&attempt.state, &pod, &context, &need.removable)
            })
            .flatten();
        let Some(more) = room else {
            trial.refused.push((taken, attempt));
            return Ok(());
        };
        self.set_lifted(&more, true);
        shared.set_gone(self.cache.lifted());
        let before = trial.placed.len();
        let tried = self.one(taken, shared, within, trial);
        if trial.placed.len() > before {
            victims.extend(more);
        } else {
            self.set_lifted(&more, false);
            shared.set_gone(self.cache.lifted());
        }
        tried
    }

    /// Puts back what can stay, the most important first: what was removed for one pod may be spared because of what was
    /// removed for another.
    fn spare(
        &mut self,
        need: &Need<'_>,
        within: Option<&Placement>,
        budget: &mut Budget,
        victims: Vec<Victim>,
        mut places: Places,
    ) -> (Vec<Victim>, Places) {
        // That the group does not go without any is known.
        if victims.len() < 2 {
            return (victims, places);
        }
        let mut gone = Vec::new();
        for victim in victims {
            if budget.take(need.members.len()) {
                self.set_lifted(std::slice::from_ref(&victim), false);
                if let Some(found) = self.rehearse(need.members, within) {
                    places = found;
                    continue;
                }
                self.set_lifted(std::slice::from_ref(&victim), true);
            }
            gone.push(victim);
        }
        (gone, places)
    }

    /// Where the group would go as things are imagined.
    fn rehearse(&mut self, members: &[Taken], within: Option<&Placement>) -> Option<Places> {
        let decision = self.decide_within(members.to_vec(), within);
        let fits = decision.verdict == GroupVerdict::Fits;
        let placed = decision.placed.iter();
        let places = placed.map(|place| (place.taken.pod.uid.clone(), place.node.clone()));
        let places = places.collect();
        self.take_back(decision);
        fits.then_some(places)
    }

    /// Whether the group goes with the pod that was placed last.
    fn is_permitted(&self, trial: &mut Trial) -> bool {
        let Some(place) = trial.placed.last_mut() else {
            return false;
        };
        let (pod, node) = (&place.taken.pod, &place.node);
        let answer = permit(self.profile, &mut place.state, pod, node);
        matches!(answer, PermitAnswer::Granted)
    }

    /// Takes pods off their nodes, or puts them back.
    fn set_lifted(&mut self, victims: &[Victim], lifted: bool) {
        for (_, pod) in victims.iter().flat_map(Victim::pods) {
            if lifted {
                self.cache.lift(&pod.uid);
            } else {
                self.cache.put_back(&pod.uid);
            }
        }
        self.cache.update(self.snapshot);
    }

    /// Undoes what was only tried, and puts these victims back.
    fn abandon(&mut self, trial: Trial, victims: &[Victim]) {
        for place in trial.placed {
            drop(self.undo(place, Status::success()));
        }
        self.set_lifted(victims, false);
    }

    /// The group waits until the victims are gone.
    fn wait_for(
        &self,
        mut decision: GroupDecision,
        need: &Need<'_>,
        group: &PodGroup,
        plan: PreemptionPlan,
    ) -> GroupDecision {
        let PreemptionPlan {
            victims, places, ..
        } = plan;
        let pods = victims.iter().flat_map(Victim::pods);
        let removed: Vec<Arc<PodInfo>> = pods.map(|(_, pod)| pod.clone()).collect();
        let told = Status::unschedulable(told(&removed));
        for (taken, attempt) in &mut decision.refused {
            let place = places.get(&taken.pod.uid);
            if place.is_some() || matches!(attempt.outcome, Outcome::Group(_)) {
                attempt.outcome = Outcome::Group(refusal(PREEMPTION));
            }
            attempt.nominate = Some(place.map_or_else(String::new, ToString::to_string));
            attempt.post_filter = Some(told.clone());
        }
        let member = need.members.first().map(|taken| &taken.pod);
        if let (Some((_, attempt)), Some(member)) = (decision.refused.first_mut(), member)
            && !victims.is_empty()
        {
            let displaced = self.displaced(need.members, &places);
            let scheduler = member.scheduler_name();
            let removal = need.point.remove(group, scheduler, victims, displaced);
            attempt.state.defer(removal);
        }
        GroupDecision {
            verdict: GroupVerdict::WaitsForPreemption,
            removed,
            ..decision
        }
    }

    /// Pods that are less important and wait for the nodes of the group.
    fn displaced(&self, members: &[Taken], places: &Places) -> Vec<Arc<PodInfo>> {
        let Some(standing) = members.iter().map(|taken| taken.pod.priority).min() else {
            return Vec::new();
        };
        let mut nodes: Vec<&Arc<str>> = places.values().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let waiting = nodes
            .into_iter()
            .flat_map(|node| self.nominated.on_node(node));
        let less = waiting.filter(|pod| {
            pod.priority < standing && members.iter().all(|taken| taken.pod.uid != pod.uid)
        });
        less.cloned().collect()
    }
}

fn places_of(trial: &Trial) -> Places {
    let placed = trial.placed.iter();
    let places = placed.map(|place| (place.taken.pod.uid.clone(), place.node.clone()));
    places.collect()
}

/// What the pods of the group are told of those that are removed for it.
fn told(removed: &[Arc<PodInfo>]) -> String {
    if removed.is_empty() {
        return "preemption: waiting for pods that are being deleted".to_owned();
    }
    let names: Vec<String> = removed.iter().take(NAMED).map(|pod| pod.key()).collect();
    let more = match removed.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "preemption: removed for the group: {}{more}",
        names.join(", ")
    )
}

/// Nothing can be done for the group.
fn in_vain(mut decision: GroupDecision, why: &str) -> GroupDecision {
    for (_, attempt) in &mut decision.refused {
        if attempt.outcome == Outcome::Unfit {
            attempt.post_filter = Some(Status::unschedulable(format!("preemption: {why}.")));
        }
    }
    if decision.verdict == GroupVerdict::Unschedulable {
        decision.verdict = GroupVerdict::Refused(why.to_owned());
    }
    decision
}
