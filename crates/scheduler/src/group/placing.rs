//! Groups that have to be placed together (KEP-5732): each placement is tried as if it were all there is, and the best one in
//! which the group can go is taken.

use std::sync::Arc;

use super::asking::undecided;
use super::{GroupCycle, GroupDecision, GroupVerdict};
use crate::cycle::{Attempt, Outcome};
use crate::framework::{GroupToPlace, Placement, ProposedPlacement, Status};
use crate::pod::PodInfo;
use crate::queue::Taken;

/// What a rehearsal showed of a placement.
struct Rehearsed {
    /// The scores of the plugins, in their order.
    scores: Vec<i64>,
    /// By its place in the list.
    at: usize,
}

impl GroupCycle<'_> {
    /// The placements that the group of these pods may have; `None`: it may be anywhere.
    pub(super) fn placements(&self, members: &[Taken]) -> Result<Option<Vec<Placement>>, Status> {
        let generator = self.profile.points.placement_generate.first();
        let first = members.first().map(|taken| &taken.pod);
        let group = first.and_then(|pod| self.groups.of(pod));
        let (Some(generator), Some(pod), Some(group)) = (generator, first, group) else {
            return Ok(None);
        };
        let scheduled = self.groups.scheduled(pod);
        let nodes = scheduled.iter().filter_map(|uid| self.cache.node_of(uid));
        let occupied: Vec<Arc<str>> = nodes.map(Arc::from).collect();
        let placements = generator.placements(GroupToPlace {
            group: &group,
            snapshot: self.snapshot,
            occupied: &occupied,
        });
        placements.map_err(|status| status.by(generator.name()))
    }

    /// Decides with the best of these placements. One into which the group fits is better than one from which pods would have to
    /// be removed.
    pub(super) fn decide_among(
        &mut self,
        members: Vec<Taken>,
        placements: &[Placement],
    ) -> GroupDecision {
        if let [only] = placements {
            return self.decide_within(members, Some(only));
        }
        let (mut fitting, mut waiting) = (Vec::new(), None);
        let mut questions = Vec::new();
        for (at, placement) in placements.iter().enumerate() {
            let mut decision = self.decide_within(members.clone(), Some(placement));
            questions.append(&mut decision.questions);
            match decision.verdict {
                GroupVerdict::Fits => {
                    let scores = self.scores(placement, &decision);
                    fitting.push(Rehearsed { scores, at });
                }
                GroupVerdict::WaitsForPreemption => _ = waiting.get_or_insert(at),
                GroupVerdict::Failed(_) => return decision,
                _ => {}
            }
            self.take_back(decision);
        }
        if !questions.is_empty() {
            return undecided(questions);
        }
        match self.best(fitting).or(waiting) {
            Some(best) => self.decide_within(members, Some(&placements[best])),
            None => {
                let mut decision = self.decide_within(members, placements.first());
                if decision.verdict == GroupVerdict::Unschedulable {
                    decision.verdict = GroupVerdict::NoPlacement(placements.len());
                }
                decision
            }
        }
    }

    /// The placement of the highest sum of scores; of equal ones the first.
    fn best(&self, mut fitting: Vec<Rehearsed>) -> Option<usize> {
        let plugins = &self.profile.points.placement_score;
        let mut sums = vec![0_i64; fitting.len()];
        for (i, plugin) in plugins.iter().enumerate() {
            let mut column: Vec<i64> = fitting.iter_mut().map(|one| one.scores[i]).collect();
            plugin.normalize_placements(&mut column);
            let weight = self.profile.weight(plugin.name());
            for (sum, score) in sums.iter_mut().zip(column) {
                *sum = sum.saturating_add(weight.saturating_mul(score));
            }
        }
        let ranked = fitting.iter().zip(&sums).rev();
        let best = ranked.max_by_key(|(_, sum)| **sum)?;
        Some(best.0.at)
    }

    /// What plugins say of a placement while the pods are booked on its nodes.
    fn scores(&self, placement: &Placement, decision: &GroupDecision) -> Vec<i64> {
        let placed = decision.placed.iter();
        let pods: Vec<Arc<PodInfo>> = placed.map(|place| place.taken.pod.clone()).collect();
        let size = pods.first().map(|pod| self.groups.size(pod).scheduled);
        let proposed = ProposedPlacement {
            placement,
            snapshot: self.snapshot,
            pods: &pods,
            scheduled: size.unwrap_or(0).saturating_sub(pods.len()),
        };
        let plugins = self.profile.points.placement_score.iter();
        plugins
            .map(|plugin| plugin.score_placement(proposed))
            .collect()
    }

    /// Undoes what was only tried. What plugins wanted to be done about it is dropped with the attempts.
    pub(super) fn take_back(&mut self, decision: GroupDecision) {
        for place in decision.placed {
            drop(self.undo(place, Status::success()));
        }
        self.cache.update(self.snapshot);
    }

    /// Refuses all pods of a group before any is tried.
    pub(super) fn refuse_all(&mut self, members: Vec<Taken>, status: &Status) -> GroupDecision {
        let total = self.snapshot.nodes().len();
        let refusal = |taken| {
            if !status.is_rejected() {
                return (taken, Attempt::failed(total, status.message()));
            }
            let attempt = Attempt {
                outcome: Outcome::Unfit,
                pre_filter: Some(status.clone()),
                absent: Some(status.clone()),
                nominate: Some(String::new()),
                ..Attempt::new(total)
            };
            (taken, attempt)
        };
        GroupDecision {
            verdict: match status.is_rejected() {
                true => GroupVerdict::Refused(status.message()),
                false => GroupVerdict::Failed(status.message()),
            },
            placed: Vec::new(),
            refused: members.into_iter().map(refusal).collect(),
            removed: Vec::new(),
            questions: Vec::new(),
        }
    }
}
