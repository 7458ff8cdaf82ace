//! What follows a decision: the pod is booked on its node and bound beside further decisions, or all of it is undone.

use std::sync::Arc;
use std::time::Duration;

use davit_client::object_ref;
use futures::future::join_all;
use tokio::time::Instant;

use super::engine::{Done, Engine, Refusal, now, within_deadline};
use crate::cycle::{PermitAnswer, fit_message, on_node, permit, reserve, unreserve};
use crate::extender::Extenders;
use crate::framework::{Code, CycleState, ExtensionPoint, PointTimes, Profile, Refusals, Status};
use crate::metrics::AttemptResult;
use crate::queue::{Failure, Taken};
use crate::reporter::Reporter;
use crate::verdict::Record;
use crate::waiting::Ticket;

/// A pod on its way to a node.
pub(super) struct Flight {
    pub(super) taken: Taken,
    pub(super) profile: Arc<Profile>,
    pub(super) node: Arc<str>,
    pub(super) state: CycleState,
    pub(super) began: Instant,
    pub(super) total_nodes: usize,
}

impl Engine {
    /// Books the pod on its node and starts the binding.
    pub(super) fn commit(&mut self, mut flight: Box<Flight>) {
        let pod = flight.taken.pod.clone();
        let profile = flight.profile.clone();
        let counted = on_node(&profile, &flight.state, &pod, &flight.node);
        if let Err(error) = self.cache.assume(counted, &flight.node) {
            return self.flight_failed(*flight, Status::error(error.to_string()), false);
        }
        self.pod_groups.set_scheduled(&pod, true);
        self.nominated.remove(&pod.uid);
        if let Err(status) = reserve(&profile, &mut flight.state, &pod, &flight.node) {
            return self.fail_flight(flight, status);
        }
        match permit(&profile, &mut flight.state, &pod, &flight.node) {
            PermitAnswer::Granted => self.depart(flight, &[]),
            PermitAnswer::Waits(waits, _) => self.depart(flight, &waits),
            PermitAnswer::Refused(status) => self.fail_flight(flight, status),
        }
    }

    /// Starts the binding, for which the pod may have to wait.
    pub(super) fn depart(&mut self, mut flight: Box<Flight>, waits: &[(&'static str, Duration)]) {
        let uid = flight.taken.pod.uid.clone();
        self.run_effects(&mut flight.state);
        let ticket = (!waits.is_empty()).then(|| self.waiting.enter(uid.clone(), waits));
        let (reporter, extenders) = (self.reporter.clone(), self.extenders.clone());
        let task = self.work.spawn(bind(flight, ticket, reporter, extenders));
        self.binding.insert(task.id(), uid);
    }

    pub(super) fn bound(&mut self, flight: Flight) {
        let Flight {
            taken,
            profile,
            node,
            mut state,
            began,
            ..
        } = flight;
        let pod = &taken.pod;
        self.cache.finish_binding(&pod.uid, now());
        self.queue.remove(&pod.uid);
        let message = format!(
            "Successfully assigned {}/{} to {node}",
            pod.namespace, pod.name
        );
        if let Some(recorder) = self.recorders.get(profile.name()) {
            recorder.normal(&object_ref(&*pod.pod), "Scheduled", message);
        }
        self.metrics
            .attempt(profile.name(), AttemptResult::Scheduled, began.elapsed());
        let since_first = now().saturating_duration_since(taken.first_attempt);
        self.metrics.scheduled_after(taken.attempt, since_first);
        let told = now();
        for plugin in &profile.points.post_bind {
            plugin.post_bind(&state, pod, &node);
        }
        state
            .times
            .note(ExtensionPoint::PostBind, Code::Success, told);
        self.metrics.points(profile.name(), &state.times);
        self.run_effects(&mut state);
        tracing::debug!(
            pod = pod.key(),
            node = &*node,
            attempt = taken.attempt,
            "scheduled"
        );
    }

    /// A decision could not be carried out. What has been written for it is taken back before the pod is tried again: the next
    /// attempt would take for the pod's what is about to go.
    pub(super) fn fail_flight(&mut self, mut flight: Box<Flight>, status: Status) {
        let pod = flight.taken.pod.clone();
        unreserve(&flight.profile, &mut flight.state, &pod, &flight.node);
        let undo = flight.state.take_undoing();
        self.run_effects(&mut flight.state);
        if self.is_confirmed(&pod.uid) {
            // The API says that it is bound after all (the answer got lost): then there is nothing to undo.
            return;
        }
        let task = self.work.spawn(async move {
            join_all(undo.into_iter().map(within_deadline)).await;
            Done::Undone(flight, status)
        });
        self.binding.insert(task.id(), pod.uid.clone());
    }

    /// Returns the pod of a decision that could not be carried out to the queue. `left` says that it was booked on its node.
    pub(super) fn flight_failed(&mut self, flight: Flight, status: Status, left: bool) {
        let Flight {
            taken,
            profile,
            node,
            began,
            total_nodes,
            state,
        } = flight;
        let pod = &taken.pod;
        let failure = Failure::from(&status);
        let at = jiff::Timestamp::now();
        let record = Record::of_decision(taken.attempt, at, total_nodes, &node, &status);
        let (result, message) = if failure.error {
            (AttemptResult::Error, status.message())
        } else {
            let refused = Refusals::from_iter([(0, status)]);
            let message = fit_message(1, None, &refused, None, None);
            (AttemptResult::Unschedulable, message)
        };
        self.metrics
            .attempt(profile.name(), result, began.elapsed());
        self.metrics.points(profile.name(), &state.times);
        tracing::info!(
            pod = pod.key(),
            node = &*node,
            message,
            "decision not carried out"
        );
        let refusal = Refusal {
            failure,
            message,
            nominate: Some(String::new()),
            record,
        };
        self.give_back(&taken, refusal);
        if left {
            // Told when the pod waits again: its own leaving is no change that lets it try once more.
            self.pod_left(Some(pod.clone()));
        }
    }
}

/// Waits for permission, prepares and writes the binding.
async fn bind(
    flight: Box<Flight>,
    ticket: Option<Ticket>,
    reporter: Reporter,
    extenders: Extenders,
) -> Done {
    let mut flight = flight;
    let mut times = std::mem::take(&mut flight.state.times);
    let status = carry_out(&flight, ticket, &reporter, &extenders, &mut times).await;
    flight.state.times = times;
    Done::Binding(flight, status)
}

async fn carry_out(
    flight: &Flight,
    ticket: Option<Ticket>,
    reporter: &Reporter,
    extenders: &Extenders,
    times: &mut PointTimes,
) -> Status {
    let (pod, node, state) = (&*flight.taken.pod, &*flight.node, &flight.state);
    if let Some(ticket) = ticket {
        let status = ticket.wait().await;
        if !status.is_success() {
            return status;
        }
    }
    let points = &flight.profile.points;
    let began = now();
    for plugin in &points.pre_bind {
        let status = plugin.pre_bind(state, pod, node).await;
        if !status.is_success() && !status.is_skip() {
            times.note(ExtensionPoint::PreBind, status.code, began);
            // From here on a failure is an error, whatever the plugin calls it.
            return Status::error(status.message()).by(plugin.name());
        }
    }
    times.note(ExtensionPoint::PreBind, Code::Success, began);
    reporter.settle(&pod.uid).await;
    let began = now();
    let mut status = extenders.bind(pod, node).await;
    for plugin in &points.bind {
        if status.is_some() {
            break;
        }
        let answer = plugin.bind(state, pod, node).await;
        status = (!answer.is_skip()).then(|| answer.by(plugin.name()));
    }
    let status = status.unwrap_or_else(|| Status::error("no bind plugin took the pod"));
    times.note(ExtensionPoint::Bind, status.code, began);
    status
}
