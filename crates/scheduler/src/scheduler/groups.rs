//! Pods of a group, which are decided about together.

use std::sync::Arc;
use std::time::Duration;

use davit_task::guard;
use jiff::Timestamp;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::binding::Flight;
use super::engine::{Done, Engine, beside_others, now};
use crate::framework::Profile;
use crate::group::{GroupAnswers, GroupCycle, GroupDecision, GroupVerdict, draw};
use crate::queue::Taken;

/// The condition that tells of the attempts.
const SCHEDULED: &str = "PodGroupScheduled";
/// The condition of a group that is removed whole.
const DISRUPTED: &str = "DisruptionTarget";
/// How long a write of the condition may take, all tries together.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often it is tried when somebody else was faster.
const TRIES: usize = 5;

impl Engine {
    /// Makes one decision about all pods of a group that wait. A panic is the failure of these pods.
    pub(super) fn decide_together(&mut self, first: Taken, began: Instant) {
        let rules = self.profiles.clone();
        let members = draw(&mut self.queue, &self.pod_groups, first, &*rules, now());
        if let Some(why) = different_schedulers(&members) {
            for taken in &members {
                self.fail_attempt(taken, why.clone(), began);
            }
            return;
        }
        self.decide_about_group(members, GroupAnswers::new(), began);
    }

    /// Makes a decision about these pods of a group, or asks extenders first.
    pub(super) fn decide_about_group(
        &mut self,
        members: Vec<Taken>,
        answers: GroupAnswers,
        began: Instant,
    ) {
        let members: Vec<Taken> = members.into_iter().filter(|t| self.is_wanted(t)).collect();
        let Some(first) = members.first().cloned() else {
            return;
        };
        let Some(profile) = self.profiles.of(&first.pod).cloned() else {
            return;
        };
        let (held, since) = (members.clone(), Instant::now());
        let deciding = || beside_others(|| self.decide_as_group(members, &profile, answers, began));
        if let Err(words) = guard("scheduler", "cycle", &first.pod.key(), deciding) {
            self.cache.put_all_back();
            for taken in &held {
                self.forget(&taken.pod.uid);
                self.fail_attempt(taken, format!("the scheduler panicked: {words}"), began);
            }
        }
        self.charge(held.iter().map(|taken| &*taken.pod), since);
    }

    /// Whether a pod still is to be scheduled.
    fn is_wanted(&mut self, taken: &Taken) -> bool {
        let pod = &taken.pod;
        let known = self.queue.contains(&pod.uid);
        let wanted = known && !pod.is_terminating() && self.cache.pod(&pod.uid).is_none();
        if !wanted {
            self.queue.remove(&pod.uid);
        }
        wanted
    }

    fn decide_as_group(
        &mut self,
        members: Vec<Taken>,
        profile: &Arc<Profile>,
        answers: GroupAnswers,
        began: Instant,
    ) {
        let deciding = Instant::now();
        self.cache.update(&mut self.snapshot);
        let group = members.first().and_then(|t| self.pod_groups.of(&t.pod));
        let cycle = GroupCycle {
            profile,
            cache: &mut self.cache,
            snapshot: &mut self.snapshot,
            nominated: &self.nominated,
            groups: &self.pod_groups,
            extenders: &self.extenders,
            answers: &answers,
            search: &mut self.search,
            began: deciding,
        };
        let GroupDecision {
            verdict,
            placed,
            refused,
            removed,
            questions,
        } = cycle.decide(members.clone());
        if !removed.is_empty() {
            let pods = removed.len();
            tracing::info!(group = ?group.as_ref().and_then(|g| g.metadata.name.as_deref()), pods, "removed for a group");
        }
        self.metrics.group_algorithm(deciding.elapsed());
        if !questions.is_empty() {
            return self.consult_about_group(members, questions, answers, began);
        }
        for (taken, attempt) in refused {
            self.refuse_with_group(taken, profile, attempt, began);
        }
        for place in placed {
            self.nominated.remove(&place.taken.pod.uid);
            let flight = Box::new(Flight {
                taken: place.taken,
                profile: profile.clone(),
                node: place.node,
                state: place.state,
                began,
                total_nodes: place.total_nodes,
            });
            self.depart(flight, &place.waits);
        }
        self.metrics
            .group_attempt(profile.name(), verdict.result(), began.elapsed());
        if let Some(group) = group {
            self.tell_group(group, verdict);
        }
    }

    /// An extender could not be asked about a pod of a group: none goes.
    pub(super) fn fail_group(&mut self, members: &[Taken], asked: &str, why: &str, began: Instant) {
        let others = format!("failed to schedule other pod from a pod group: {why}");
        for taken in members {
            let is_asked = *taken.pod.uid == *asked;
            let text = if is_asked { why } else { &*others };
            self.fail_attempt(taken, text.to_owned(), began);
        }
        let Some(pod) = members.first().map(|taken| &taken.pod) else {
            return;
        };
        let verdict = GroupVerdict::Failed(others);
        let profile = pod.scheduler_name();
        self.metrics
            .group_attempt(profile, verdict.result(), began.elapsed());
        if let Some(group) = self.pod_groups.of(pod) {
            self.tell_group(group, verdict);
        }
    }

    /// Writes into a group what came of it.
    fn tell_group(&mut self, group: Arc<PodGroup>, verdict: GroupVerdict) {
        let client = self.client.clone();
        self.work.spawn(async move {
            let name = group.metadata.name.clone().unwrap_or_default();
            let write = write_condition(client, group, verdict);
            match tokio::time::timeout(DEADLINE, write).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(
                    group = name,
                    error = davit_client::message_of(&error),
                    "condition not written"
                ),
                Err(_) => tracing::warn!(group = name, "condition not written in {DEADLINE:?}"),
            }
            Done::Effect
        });
    }
}

/// Why these pods cannot be one group's, if they cannot.
fn different_schedulers(members: &[Taken]) -> Option<String> {
    let first = members.first()?.pod.scheduler_name();
    let mut names = members.iter().map(|taken| taken.pod.scheduler_name());
    let other = names.find(|name| *name != first)?;
    Some(format!(
        "all pods in a single pod group should have the same .spec.schedulerName set, got: {other:?} and {first:?}"
    ))
}

/// Writes the condition unless the group says all that, or that it was scheduled once.
async fn write_condition(
    client: kube::Client,
    group: Arc<PodGroup>,
    verdict: GroupVerdict,
) -> Result<(), kube::Error> {
    let meta = &group.metadata;
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    let api: Api<PodGroup> = Api::namespaced(client, namespace);
    let mut known = (*group).clone();
    for _ in 0..TRIES {
        let Some(patch) = condition_patch(&known, &verdict, Timestamp::now()) else {
            return Ok(());
        };
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        match api.patch_status(name, &params, &patch).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        let Some(current) = api.get_opt(name).await? else {
            return Ok(());
        };
        if current.metadata.uid != meta.uid {
            return Ok(());
        }
        known = current;
    }
    Ok(())
}

/// The change of the group's status, or nothing.
fn condition_patch(group: &PodGroup, verdict: &GroupVerdict, at: Timestamp) -> Option<Value> {
    let scheduled = scheduled_condition(group, verdict, at);
    let goes = *verdict == GroupVerdict::Fits;
    let back = goes.then(|| back_again(group, at)).flatten();
    let conditions: Vec<Condition> = scheduled.into_iter().chain(back).collect();
    (!conditions.is_empty()).then(|| {
        json!({
            "metadata": {"uid": group.metadata.uid, "resourceVersion": group.metadata.resource_version},
            "status": {"conditions": conditions},
        })
    })
}

/// A group that was removed whole and goes again is not about to end any more.
fn back_again(group: &PodGroup, at: Timestamp) -> Option<Condition> {
    let conditions = group.status.iter().flat_map(|s| &s.conditions).flatten();
    let mut removed = conditions.filter(|c| c.type_ == DISRUPTED && c.status == "True");
    removed.next().map(|known| Condition {
        status: "False".to_owned(),
        reason: "Scheduled".to_owned(),
        message: String::new(),
        observed_generation: group.metadata.generation,
        last_transition_time: Time(at),
        ..known.clone()
    })
}

fn scheduled_condition(
    group: &PodGroup,
    verdict: &GroupVerdict,
    at: Timestamp,
) -> Option<Condition> {
    let (status, reason) = match verdict {
        GroupVerdict::Fits => ("True", "Scheduled"),
        GroupVerdict::WaitsForPreemption
        | GroupVerdict::Unschedulable
        | GroupVerdict::NoPlacement(_)
        | GroupVerdict::Refused(_)
        | GroupVerdict::Asks => ("False", "Unschedulable"),
        GroupVerdict::Failed(_) => ("False", "SchedulerError"),
    };
    let conditions = group.status.iter().flat_map(|s| &s.conditions).flatten();
    let known = conditions.into_iter().find(|c| c.type_ == SCHEDULED);
    // Pods that come later do not undo that it was scheduled.
    if known.is_some_and(|c| c.status == "True") && status == "False" {
        return None;
    }
    let since = known.filter(|c| c.status == status);
    let condition = Condition {
        type_: SCHEDULED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: verdict.message(),
        observed_generation: group.metadata.generation,
        last_transition_time: since.map_or(Time(at), |c| c.last_transition_time.clone()),
    };
    (known != Some(&condition)).then_some(condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_was_scheduled_once_stays_so() {
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let group = |conditions: Value| -> PodGroup {
            serde_json::from_value(json!({"metadata": {"name": "g", "generation": 3},
                "spec": {"schedulingPolicy": {"basic": {}}}, "status": {"conditions": conditions}}))
            .unwrap()
        };
        let patched = |group: &PodGroup, verdict: &GroupVerdict| {
            let patch = condition_patch(group, verdict, at)?;
            Some(patch["status"]["conditions"].clone())
        };
        let first = patched(&group(json!([])), &GroupVerdict::Unschedulable).unwrap();
        assert_eq!(
            first,
            json!([{"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable",
                "message": "pod group is unschedulable", "observedGeneration": 3,
                "lastTransitionTime": "2026-01-02T03:04:05Z"}])
        );
        let waiting = group(first);
        assert_eq!(patched(&waiting, &GroupVerdict::Unschedulable), None);
        let failed = GroupVerdict::Failed("x".to_owned());
        let failed = patched(&waiting, &failed).unwrap();
        assert_eq!(failed[0]["reason"], "SchedulerError");
        let gone = patched(&waiting, &GroupVerdict::Fits).unwrap();
        assert_eq!(gone[0]["status"], "True");
        assert_eq!(
            patched(&group(gone.clone()), &GroupVerdict::Unschedulable),
            None
        );
        // One that was removed whole says when it goes again.
        let mut removed = gone;
        let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        removed.as_array_mut().unwrap().push(target);
        let back = patched(&group(removed), &GroupVerdict::Fits).unwrap();
        let back = back.as_array().unwrap();
        assert_eq!(back.len(), 1);
        assert_eq!(
            (&back[0]["type"], &back[0]["status"]),
            (&json!("DisruptionTarget"), &json!("False"))
        );
    }
}
