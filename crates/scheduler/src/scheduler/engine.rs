//! The owner of all state: takes changes in, decides, books.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use davit_client::EventRecorder;
use davit_task::guard;
use futures::future::{BoxFuture, join_all};
use tokio::runtime::RuntimeFlavor;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::binding::Flight;
use super::consulting::{Consultation, GroupConsultation, Parked};
use super::{Profiles, Scheduler};
use crate::cache::{Cache, Snapshot};
use crate::cycle::{Attempt, Consulted, Inputs, NodeSearch, Outcome, attempt_with};
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
use crate::waiting::WaitingPods;
use davit_volumecache::VolumeCache;

/// Bindings and preemptions under way at once; more decisions wait.
const MOST_WORK: usize = 128;
/// How long an effect of a plugin may take.
const EFFECT_DEADLINE: Duration = Duration::from_secs(120);

/// Decisions that take less are not looked at.
const LONG: Duration = Duration::from_millis(20);

/// What is said of a pod that gets no node, and when it is tried again.
pub(super) struct Refusal {
    pub(super) failure: Failure,
    pub(super) message: String,
    pub(super) nominate: Option<String>,
    pub(super) record: Record,
}

/// What a task beside the decisions came to.
pub(super) enum Done {
    /// A binding, with the plugin's or the API server's answer.
    Binding(Box<Flight>, Status),
    /// A binding that failed, when what had been done for it is undone.
    Undone(Box<Flight>, Status),
    /// A pod of a group that does not go, when what had been done for it is undone.
    Refused(Box<(Taken, Refusal)>),
    /// Something a plugin deferred.
    Effect,
    /// A pod about which extenders have been asked, and whether that failed.
    Consulted(Box<Consultation>, Result<(), ExtenderError>),
    /// The same for pods of a group.
    GroupConsulted(Box<GroupConsultation>, Result<(), ExtenderError>),
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
    /// About which pods of a group a task of `work` asks, should it panic.
    pub(super) asking_groups: HashMap<Id, Vec<Arc<str>>>,
    pub(super) synced: [bool; 3],
    pub(super) snapshot: Snapshot,
    pub(super) search: NodeSearch,
    /// By profile.
    pub(super) recorders: HashMap<String, EventRecorder>,
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
            dynamic: Arc::new(
                DynamicResources::new(
                    Some(scheduler.client.clone()),
                    handle.devices.clone(),
                    DynamicResourcesArgs::default(),
                )
                .with_groups(handle.pod_groups.clone()),
            ),
            classic: ClassicResources::new(Some(scheduler.client.clone()), handle.devices.clone()),
            strays: BTreeSet::new(),
            look_at_strays: false,
            work: JoinSet::new(),
            binding: HashMap::new(),
            asking_groups: HashMap::new(),
            synced: [false; 3],
            snapshot: Snapshot::default(),
            search: NodeSearch::default(),
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
        for (plugin, profile, pods) in self.queue.refusing() {
            self.metrics.unschedulable(plugin, profile, pods);
        }
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
        let (held, since) = (taken.clone(), Instant::now());
        let searches = self.dynamic.may_search(&taken.pod);
        let deciding = || {
            let decide = || self.decide_at_once(taken, answers, began);
            // What takes no time need not go to another thread.
            if searches {
                beside_others(decide);
            } else {
                decide();
            }
        };
        if let Err(words) = guard("scheduler", "cycle", &held.pod.key(), deciding) {
            self.forget(&held.pod.uid);
            self.fail_attempt(&held, format!("the scheduler panicked: {words}"), began);
        }
        self.charge([&*held.pod], since);
    }

    /// A decision about pods of one namespace has ended. If devices had to be looked for it counts for the namespace.
    pub(super) fn charge<'a>(
        &mut self,
        pods: impl IntoIterator<Item = &'a PodInfo>,
        since: Instant,
    ) {
        let took = since.elapsed();
        if took < LONG {
            return;
        }
        let searched = pods.into_iter().find(|pod| self.dynamic.may_search(pod));
        if let Some(pod) = searched {
            self.queue.charge(&pod.namespace, took, now());
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
    pub(super) fn is_confirmed(&self, uid: &str) -> bool {
        self.cache.pod(uid).is_some() && !self.cache.is_assumed(uid)
    }

    /// Takes an assumed pod off its node again; `None` if it was not assumed.
    pub(super) fn take_back(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
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
            within: None,
        };
        let consulted = Consulted {
            extenders: &self.extenders,
            answers: &answers,
        };
        let (from, deciding) = (self.search.start, Instant::now());
        let mut attempt = attempt_with(&inputs, consulted, &mut self.search);
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
    fn refuse(&mut self, taken: &Taken, profile: &Profile, attempt: &Attempt, began: Instant) {
        let refusal = self.refusal(taken, profile, attempt, began);
        self.give_back(taken, refusal);
    }

    /// No node was found for a pod of a group. It waits again when what had been done for it is undone.
    pub(super) fn refuse_with_group(
        &mut self,
        taken: Taken,
        profile: &Profile,
        mut attempt: Attempt,
        began: Instant,
    ) {
        self.run_effects(&mut attempt.state);
        let undoing = attempt.state.take_undoing();
        let refusal = self.refusal(&taken, profile, &attempt, began);
        if undoing.is_empty() {
            return self.give_back(&taken, refusal);
        }
        let uid = taken.pod.uid.clone();
        let task = self.work.spawn(async move {
            join_all(undoing.into_iter().map(within_deadline)).await;
            Done::Refused(Box::new((taken, refusal)))
        });
        self.binding.insert(task.id(), uid);
    }

    /// What is said of an attempt that found no node, by the snapshot on which it was made.
    fn refusal(
        &mut self,
        taken: &Taken,
        profile: &Profile,
        attempt: &Attempt,
        began: Instant,
    ) -> Refusal {
        let failure = attempt.failure();
        let result = if failure.error {
            AttemptResult::Error
        } else {
            AttemptResult::Unschedulable
        };
        self.metrics
            .attempt(profile.name(), result, began.elapsed());
        self.metrics.points(profile.name(), &attempt.state.times);
        if let Some(node) = &attempt.nominate {
            self.nominated.set(&taken.pod, Some(node));
            if !node.is_empty() && !matches!(attempt.outcome, Outcome::Group(_)) {
                self.metrics.preemption(attempt.victims);
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
        Refusal {
            failure,
            message,
            nominate: attempt.nominate.clone(),
            record: Record::of_attempt(taken.attempt, at, &self.snapshot, attempt),
        }
    }

    /// Returns a pod to the queue and says why.
    pub(super) fn give_back(&mut self, taken: &Taken, refusal: Refusal) {
        let Refusal {
            failure,
            message,
            nominate,
            record,
        } = refusal;
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
            Ok((id, Done::GroupConsulted(consultation, result))) => {
                self.asking_groups.remove(&id);
                self.group_consulted(*consultation, result);
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
            Ok((id, Done::Refused(refused))) => {
                self.binding.remove(&id);
                let (taken, refusal) = *refused;
                if !self.is_confirmed(&taken.pod.uid) {
                    self.give_back(&taken, refusal);
                }
            }
            Err(error) => {
                let alone = self.binding.remove(&error.id());
                let group = self.asking_groups.remove(&error.id());
                for uid in alone.into_iter().chain(group.into_iter().flatten()) {
                    tracing::error!(%error, uid = &*uid, "binding or asking extenders broke off");
                    self.work_broke_off(&uid);
                }
                self.resume_parked();
            }
        }
    }

    /// A task that was about a pod has panicked: the pod is tried again.
    fn work_broke_off(&mut self, uid: &str) {
        self.asked.remove(uid);
        let pod = self.take_back(uid);
        self.pod_left(pod);
        let failure = Failure {
            error: true,
            ..Failure::default()
        };
        self.queue
            .fail(uid, failure, &*self.profiles.clone(), now());
    }
}

/// Decides on a thread that others of the process, the API server's among them, do not need meanwhile.
pub(super) fn beside_others<T>(decide: impl FnOnce() -> T) -> T {
    let flavor = tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(decide),
        _ => decide(),
    }
}

/// Does what a plugin has put off, unless it takes too long.
pub(super) async fn within_deadline(effect: BoxFuture<'static, ()>) {
    if tokio::time::timeout(EFFECT_DEADLINE, effect).await.is_err() {
        tracing::warn!("an effect of a scheduling attempt took too long");
    }
}

/// The time, which tests can hold.
pub(super) fn now() -> std::time::Instant {
    Instant::now().into_std()
}
