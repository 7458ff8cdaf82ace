//! The owner of all state: takes changes in, decides, books.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use davit_client::{EventRecorder, object_ref};
use davit_task::guard;
use futures::future::{BoxFuture, join_all};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::consulting::{Consultation, Parked};
use super::{Profiles, Scheduler};
use crate::cache::{Cache, Snapshot};
use crate::cycle::{
    Attempt, Consulted, Inputs, Outcome, PermitAnswer, attempt_with, fit_message, permit, reserve,
    unreserve,
};
use crate::devices::Devices;
use crate::extender::{ExtenderAnswers, ExtenderError, Extenders};
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Profile, Status,
};
use crate::metrics::{AttemptResult, Metrics};
use crate::nominator::Nominated;
use crate::plugins::{Adoption, ClassicResources, DynamicResources, DynamicResourcesArgs};
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;
use crate::queue::{Failure, Queue, Taken};
use crate::reporter::{Report, Reporter};
use crate::verdict::Record;
use crate::volumes::VolumeCache;
use crate::waiting::{Ticket, WaitingPods};

/// Bindings and preemptions under way at once; more decisions wait.
const MOST_WORK: usize = 128;
/// How long an effect of a plugin may take.
const EFFECT_DEADLINE: Duration = Duration::from_secs(120);

/// A pod on its way to a node.
pub(super) struct Flight {
    pub(super) taken: Taken,
    pub(super) profile: Arc<Profile>,
    pub(super) node: Arc<str>,
    pub(super) state: CycleState,
    pub(super) began: Instant,
    pub(super) total_nodes: usize,
}

/// What a task beside the decisions came to.
pub(super) enum Done {
    /// A binding, with the plugin's or the API server's answer.
    Binding(Box<Flight>, Status),
    /// A binding that failed, when what had been done for it is undone.
    Undone(Box<Flight>, Status),
    /// Something a plugin deferred.
    Effect,
    /// A pod about which extenders have been asked, and whether that failed.
    Consulted(Box<Consultation>, Result<(), ExtenderError>),
}

pub(super) struct Engine {
    pub(super) cache: Cache,
    pub(super) queue: Queue,
    pub(super) nominated: Nominated,
    pub(super) profiles: Arc<Profiles>,
    pub(super) metrics: Metrics,
    pub(super) reporter: Reporter,
    pub(super) waiting: WaitingPods,
    pub(super) devices: Devices,
    pub(super) volumes: VolumeCache,
    pub(super) pod_groups: PodGroups,
    /// Whether pods of a group are tried together.
    pub(super) groups_pods: bool,
    pub(super) client: kube::Client,
    dynamic: Arc<DynamicResources>,
    classic: ClassicResources,
    /// Bound pods whose claims may not be reserved for them, and whether to look at them.
    pub(super) strays: BTreeSet<Arc<str>>,
    pub(super) look_at_strays: bool,
    pub(super) work: JoinSet<Done>,
    /// Which pod a task of `work` binds or asks about, should it panic.
    pub(super) binding: HashMap<Id, Arc<str>>,
    pub(super) synced: [bool; 3],
    pub(super) snapshot: Snapshot,
    pub(super) start: usize,
    /// By profile.
    recorders: HashMap<String, EventRecorder>,
    pub(super) extenders: Extenders,
    /// The extenders, by place, that are being asked about pods.
    pub(super) asked: HashMap<Arc<str>, BTreeSet<usize>>,
    /// Pods that wait until extenders are free, in the order of the queue.
    pub(super) parked: BTreeMap<(Reverse<i64>, u64), Parked>,
    pub(super) next_parked: u64,
}

impl Engine {
    pub(super) fn new(
        scheduler: &Scheduler,
        recorders: HashMap<String, EventRecorder>,
        reporter: Reporter,
    ) -> Self {
        let handle = &scheduler.handle;
        Self {
            cache: Cache::new(),
            queue: Queue::new(scheduler.options.queue()),
            nominated: Nominated::default(),
            profiles: scheduler.profiles.clone(),
            metrics: scheduler.metrics.clone(),
            reporter,
            waiting: handle.waiting.clone(),
            devices: handle.devices.clone(),
            volumes: handle.volumes.clone(),
            pod_groups: handle.pod_groups.clone(),
            groups_pods: scheduler.groups_pods(),
            client: scheduler.client.clone(),
            dynamic: Arc::new(DynamicResources::new(
                Some(scheduler.client.clone()),
                handle.devices.clone(),
                DynamicResourcesArgs::default(),
            )),
            classic: ClassicResources::new(Some(scheduler.client.clone()), handle.devices.clone()),
            strays: BTreeSet::new(),
            look_at_strays: false,
            work: JoinSet::new(),
            binding: HashMap::new(),
            synced: [false; 3],
            snapshot: Snapshot::default(),
            start: 0,
            recorders,
            extenders: handle.extenders.clone(),
            asked: HashMap::new(),
            parked: BTreeMap::new(),
            next_parked: 0,
        }
    }

    /// Whether a decision can be made now.
    pub(super) fn is_ready(&self) -> bool {
        self.is_synced() && self.has_room() && self.queue.is_ready(now())
    }

    /// Whether more may be started. Bindings that only wait for volumes, which may take minutes, take no room from others.
    fn has_room(&self) -> bool {
        self.work.len().saturating_sub(self.volumes.waiting()) < MOST_WORK
    }

    /// Whether all nodes, pods and namespaces are known.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.iter().all(|s| *s)
    }

    /// When there is something to do without any change.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        // With all places taken only the end of a binding helps.
        let free = self.has_room();
        self.queue
            .next_wake()
            .filter(|_| free)
            .map(Instant::from_std)
    }

    pub(super) fn publish_sizes(&self) {
        let cache = &self.cache;
        let (nodes, pods, assumed) = (cache.node_count(), cache.pod_count(), cache.assumed_count());
        self.metrics
            .sizes(self.queue.counts(), nodes, pods, assumed);
    }

    /// Lets stale pods go and drops assumed pods nobody confirmed.
    pub(super) fn housekeeping(&mut self) {
        self.look_at_strays = true;
        self.queue.flush(&*self.profiles.clone(), now());
        for pod in self.cache.expire(now()) {
            tracing::warn!(pod = pod.key(), "binding was never confirmed, forgotten");
            self.pod_groups.set_scheduled(&pod, false);
            self.pod_left(Some(pod));
        }
    }

    /// Gives claims to pods that were put on their nodes past the scheduler.
    pub(super) fn adopt_strays(&mut self) {
        if !std::mem::take(&mut self.look_at_strays) || !self.devices.is_synced() {
            return;
        }
        self.cache.update(&mut self.snapshot);
        for uid in std::mem::take(&mut self.strays) {
            let living = |p: &&Arc<PodInfo>| !p.is_terminating();
            let Some(pod) = self.cache.pod(&uid).filter(living).cloned() else {
                continue;
            };
            let node = pod.node_name.as_deref();
            let Some(at) = node.and_then(|n| self.snapshot.position(n)) else {
                self.strays.insert(uid);
                continue;
            };
            let node = self.snapshot.node(at);
            let steps = [
                self.dynamic.adopt(&pod, node),
                self.classic.adopt(&pod, node),
            ];
            if steps.iter().any(|s| !matches!(s, Adoption::Done)) {
                // Until it is seen that the claims are reserved.
                self.strays.insert(uid);
            }
            for step in steps {
                if let Adoption::Write(write) = step {
                    self.work.spawn(async move {
                        if tokio::time::timeout(EFFECT_DEADLINE, write).await.is_err() {
                            tracing::warn!("reserving claims of a bound pod took too long");
                        }
                        Done::Effect
                    });
                }
            }
        }
    }

    /// Tells the queue of a change.
    pub(super) fn event(&mut self, label: &'static str, event: ClusterEvent, object: &EventObject) {
        if event.action.is_none() {
            return;
        }
        let woken = self
            .queue
            .on_event(&event, object, &*self.profiles.clone(), now());
        self.metrics.woken(label, woken);
    }

    /// A pod no longer holds anything on its node.
    pub(super) fn pod_left(&mut self, pod: Option<Arc<PodInfo>>) {
        let event = ClusterEvent::new(EventResource::AssignedPod, Action::DELETE);
        self.event(
            "AssignedPodDelete",
            event,
            &EventObject::Pod {
                old: pod,
                new: None,
            },
        );
    }

    /// One attempt for the next pod.
    pub(super) fn schedule_one(&mut self) {
        let began = Instant::now();
        let Some(taken) = self.queue.pop(&*self.profiles.clone(), now()) else {
            return;
        };
        if self.groups_pods && taken.pod.pod_group.is_some() {
            self.decide_together(taken, began);
        } else {
            self.decide(taken, ExtenderAnswers::default(), began);
        }
    }

    /// Makes a decision about a pod, or asks extenders first. A panic is that pod's failure alone.
    pub(super) fn decide(&mut self, taken: Taken, answers: ExtenderAnswers, began: Instant) {
        let held = taken.clone();
        let deciding = || self.decide_at_once(taken, answers, began);
        if let Err(words) = guard("scheduler", "cycle", &held.pod.key(), deciding) {
            self.forget(&held.pod.uid);
            self.fail_attempt(&held, format!("the scheduler panicked: {words}"), began);
        }
    }

    /// What is booked of an attempt that broke off is undone.
    pub(super) fn forget(&mut self, uid: &str) {
        self.asked.remove(uid);
        if let Some(pod) = self.take_back(uid) {
            self.pod_left(Some(pod));
        }
    }

    /// Whether the API says that the pod is on a node.
    fn is_confirmed(&self, uid: &str) -> bool {
        self.cache.pod(uid).is_some() && !self.cache.is_assumed(uid)
    }

    /// Takes an assumed pod off its node again; `None` if it was not assumed.
    fn take_back(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let pod = self.cache.pod(uid).cloned()?;
        self.cache.forget(uid).then(|| {
            self.pod_groups.set_scheduled(&pod, false);
            pod
        })
    }

    /// The attempt ends with an error.
    pub(super) fn fail_attempt(&mut self, taken: &Taken, why: String, began: Instant) {
        let Some(profile) = self.profiles.of(&taken.pod).cloned() else {
            return self.queue.remove(&taken.pod.uid);
        };
        self.cache.update(&mut self.snapshot);
        let attempt = Attempt::failed(self.snapshot.nodes().len(), why);
        self.refuse(taken, &profile, &attempt, began);
    }

    fn decide_at_once(&mut self, taken: Taken, mut answers: ExtenderAnswers, began: Instant) {
        let pod = taken.pod.clone();
        let Some(profile) = self.profiles.of(&pod).cloned() else {
            return self.queue.remove(&pod.uid);
        };
        if pod.is_terminating() || self.cache.pod(&pod.uid).is_some() {
            return self.queue.remove(&pod.uid);
        }
        self.cache.update(&mut self.snapshot);
        let inputs = Inputs {
            profile: &profile,
            snapshot: &self.snapshot,
            nominated: &self.nominated,
            pod: &pod,
        };
        let consulted = Consulted {
            extenders: &self.extenders,
            answers: &answers,
        };
        let (from, deciding) = (self.start, Instant::now());
        let mut attempt = attempt_with(&inputs, consulted, &mut self.start);
        self.metrics.algorithm(deciding.elapsed());
        self.run_effects(&mut attempt.state);
        match (&attempt.outcome, attempt.question.take()) {
            (Outcome::Asks, Some(question)) => {
                answers.start.get_or_insert(from);
                self.consult(taken, question, answers, began);
            }
            (Outcome::Node(place), _) => {
                let node = self.snapshot.node(*place).name.clone();
                self.commit(Box::new(Flight {
                    taken,
                    profile,
                    node,
                    state: attempt.state,
                    began,
                    total_nodes: attempt.total_nodes,
                }));
            }
            _ => self.refuse(&taken, &profile, &attempt, began),
        }
    }

    /// Starts what plugins have put off until after the decision.
    pub(super) fn run_effects(&mut self, state: &mut CycleState) {
        for effect in state.take_effects() {
            self.work.spawn(async move {
                within_deadline(effect).await;
                Done::Effect
            });
        }
    }

    /// No node was found.
    pub(super) fn refuse(
        &mut self,
        taken: &Taken,
        profile: &Profile,
        attempt: &Attempt,
        began: Instant,
    ) {
        let failure = attempt.failure();
        let result = if failure.error {
            AttemptResult::Error
        } else {
            AttemptResult::Unschedulable
        };
        self.metrics
            .attempt(profile.name(), result, began.elapsed());
        if let Some(node) = &attempt.nominate {
            self.nominated.set(&taken.pod, Some(node));
            if !node.is_empty() && !matches!(attempt.outcome, Outcome::Group(_)) {
                self.metrics.preemption();
            }
        }
        let message = attempt.message();
        tracing::debug!(
            pod = taken.pod.key(),
            attempt = taken.attempt,
            message,
            "not scheduled"
        );
        let at = jiff::Timestamp::now();
        let record = Record::of_attempt(taken.attempt, at, &self.snapshot, attempt);
        self.give_back(taken, failure, message, attempt.nominate.clone(), record);
    }

    /// Returns a pod to the queue and says why.
    fn give_back(
        &mut self,
        taken: &Taken,
        failure: Failure,
        message: String,
        nominate: Option<String>,
        record: Record,
    ) {
        let uid = &taken.pod.uid;
        let Some(pod) = self.queue.pod(uid).cloned() else {
            return;
        };
        let refused = !failure.error;
        self.queue
            .fail(uid, failure, &*self.profiles.clone(), now());
        self.reporter.report(Report {
            pod,
            refused,
            message,
            nominate,
            record: record.annotation(),
        });
    }

    /// Books the pod on its node and starts the binding.
    fn commit(&mut self, mut flight: Box<Flight>) {
        let pod = flight.taken.pod.clone();
        if let Err(error) = self.cache.assume(pod.clone(), &flight.node) {
            return self.flight_failed(*flight, Status::error(error.to_string()), false);
        }
        self.pod_groups.set_scheduled(&pod, true);
        self.nominated.remove(&pod.uid);
        let profile = flight.profile.clone();
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

    /// Takes finished work in without waiting.
    pub(super) fn reap(&mut self) {
        while let Some(done) = self.work.try_join_next_with_id() {
            self.done(done);
        }
    }

    pub(super) fn done(&mut self, done: Result<(Id, Done), JoinError>) {
        match done {
            Ok((_, Done::Effect)) => {}
            Ok((id, Done::Consulted(consultation, result))) => {
                self.binding.remove(&id);
                self.consulted(*consultation, result);
            }
            Ok((id, Done::Binding(flight, status))) => {
                self.binding.remove(&id);
                if status.is_success() {
                    self.bound(*flight);
                } else {
                    self.fail_flight(flight, status);
                }
            }
            Ok((id, Done::Undone(flight, status))) => {
                self.binding.remove(&id);
                let uid = &flight.taken.pod.uid;
                if !self.is_confirmed(uid) {
                    let left = self.take_back(uid).is_some();
                    self.flight_failed(*flight, status, left);
                }
            }
            Err(error) => {
                let Some(uid) = self.binding.remove(&error.id()) else {
                    return;
                };
                tracing::error!(%error, uid = &*uid, "binding or asking extenders broke off");
                self.asked.remove(&uid);
                let pod = self.take_back(&uid);
                self.pod_left(pod);
                let failure = Failure {
                    error: true,
                    ..Failure::default()
                };
                self.queue
                    .fail(&uid, failure, &*self.profiles.clone(), now());
                self.resume_parked();
            }
        }
    }

    fn bound(&mut self, flight: Flight) {
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
        for plugin in &profile.points.post_bind {
            plugin.post_bind(&state, pod, &node);
        }
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
    fn fail_flight(&mut self, mut flight: Box<Flight>, status: Status) {
        let pod = flight.taken.pod.clone();
        unreserve(&flight.profile, &mut flight.state, &pod, &flight.node);
        let undo = flight.state.take_effects();
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
    fn flight_failed(&mut self, flight: Flight, status: Status, left: bool) {
        let Flight {
            taken,
            profile,
            node,
            began,
            total_nodes,
            ..
        } = flight;
        let pod = &taken.pod;
        let failure = Failure::from(&status);
        let at = jiff::Timestamp::now();
        let record = Record::of_decision(taken.attempt, at, total_nodes, &node, &status);
        let (result, message) = if failure.error {
            (AttemptResult::Error, status.message())
        } else {
            let message = fit_message(1, None, &[(0, status)], None, None);
            (AttemptResult::Unschedulable, message)
        };
        self.metrics
            .attempt(profile.name(), result, began.elapsed());
        tracing::info!(
            pod = pod.key(),
            node = &*node,
            message,
            "decision not carried out"
        );
        self.give_back(&taken, failure, message, Some(String::new()), record);
        if left {
            // Told when the pod waits again: its own leaving is no change that lets it try once more.
            self.pod_left(Some(pod.clone()));
        }
    }
}

/// Does what a plugin has put off, unless it takes too long.
async fn within_deadline(effect: BoxFuture<'static, ()>) {
    if tokio::time::timeout(EFFECT_DEADLINE, effect).await.is_err() {
        tracing::warn!("an effect of a scheduling attempt took too long");
    }
}

/// Waits for permission, prepares and writes the binding.
async fn bind(
    flight: Box<Flight>,
    ticket: Option<Ticket>,
    reporter: Reporter,
    extenders: Extenders,
) -> Done {
    let status = carry_out(&flight, ticket, &reporter, &extenders).await;
    Done::Binding(flight, status)
}

async fn carry_out(
    flight: &Flight,
    ticket: Option<Ticket>,
    reporter: &Reporter,
    extenders: &Extenders,
) -> Status {
    let (pod, node, state) = (&*flight.taken.pod, &*flight.node, &flight.state);
    if let Some(ticket) = ticket {
        let status = ticket.wait().await;
        if !status.is_success() {
            return status;
        }
    }
    let points = &flight.profile.points;
    for plugin in &points.pre_bind {
        let status = plugin.pre_bind(state, pod, node).await;
        if !status.is_success() && !status.is_skip() {
            // From here on a failure is an error, whatever the plugin calls it.
            return Status::error(status.message()).by(plugin.name());
        }
    }
    reporter.settle(&pod.uid).await;
    if let Some(status) = extenders.bind(pod, node).await {
        return status;
    }
    for plugin in &points.bind {
        let status = plugin.bind(state, pod, node).await;
        if !status.is_skip() {
            return status.by(plugin.name());
        }
    }
    Status::error("no bind plugin took the pod")
}

/// The time, which tests can hold.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}
