//! The scheduler at work: informers in, decisions out.
//!
//! One task owns the cache, the queue and the snapshot and makes all decisions; nothing is locked
//! and no change can slip in between a refusal and the pod's return to the queue. Writes (bindings,
//! preemptions, conditions, events) run beside it.

mod binding;
mod changes;
mod consulting;
mod engine;
mod groups;
mod storage;

use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use davit_allocator::Selectors;
use davit_api::classic::{PodScheduling, ResourceClaim as ClassicClaim, ResourceClass};
use davit_api::features::{Features, GENERIC_WORKLOAD, GROUP_PREEMPTION};
use davit_api::resource_claims::ClaimConsumers;
use davit_client::{Change, EventRecorder, Feed, Informer, Subscription};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::Api;
use kube::runtime::watcher::Config;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::KubeSchedulerConfiguration;
use crate::devices::Devices;
use crate::extender::{ExtenderError, Extenders};
use crate::framework::{AffectedPods, ClusterEvent, EventObject, Hint, Profile, Status};
use crate::metrics::Metrics;
use crate::pod::PodInfo;
use crate::pod_groups::PodGroups;
use crate::profiles::{self, ProfileError};
use crate::queue::{QueueOptions, Rules};
use crate::registry::{FrameworkHandle, PluginRegistry};
use crate::reporter::Reporter;
use crate::waiting::WaitingPods;
use crate::workloads::WorkloadInformers;
use engine::Engine;
use storage::StorageChanges;

/// Pods that have ended hold nothing and are not watched.
const LIVING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// How often stale pods and overdue confirmations are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(30);

/// How a scheduler is set up.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// Profiles, back-off, extenders; must be [valid](KubeSchedulerConfiguration::validate).
    pub configuration: KubeSchedulerConfiguration,
    /// The plugins that the configuration can name.
    pub plugins: PluginRegistry,
    /// Ready profiles, in the place of the configuration's.
    pub profiles: Vec<Profile>,
    /// How long a pod stays unschedulable at most before it is tried again without a reason.
    pub flush_after: Duration,
    /// Feature gates; those that plugins belong to have been looked at where the configuration was read.
    pub features: Features,
    /// Where is counted what is done; several schedulers, one after another, may count in the same place.
    pub metrics: Metrics,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            configuration: KubeSchedulerConfiguration::with_defaults(),
            plugins: PluginRegistry::default(),
            profiles: Vec::new(),
            flush_after: QueueOptions::default().flush_after,
            features: Features::default(),
            metrics: Metrics::default(),
        }
    }
}

impl SchedulerOptions {
    fn queue(&self) -> QueueOptions {
        let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
        QueueOptions {
            initial_backoff: seconds(self.configuration.pod_initial_backoff_seconds),
            max_backoff: seconds(self.configuration.pod_max_backoff_seconds),
            flush_after: self.flush_after,
        }
    }
}

/// Why a scheduler stopped, or cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A task it depends on ended.
    #[error("a watch or writer of the scheduler ended unexpectedly")]
    TaskEnded,
    /// Profiles cannot be made of the configuration.
    #[error(transparent)]
    Profiles(#[from] ProfileError),
    /// An extender cannot be set up.
    #[error("couldn't build extenders: {0}")]
    Extenders(#[from] ExtenderError),
}

/// A scheduler for one cluster. Cheap to clone; clones share metrics and waiting pods.
#[derive(Clone)]
pub struct Scheduler {
    client: kube::Client,
    options: SchedulerOptions,
    profiles: Arc<Profiles>,
    handle: FrameworkHandle,
    metrics: Metrics,
    progress: Arc<AtomicU8>,
    /// While it runs.
    pods: Arc<Mutex<Option<Informer<Pod>>>>,
}

/// A scheduler that does not run.
const IDLE: u8 = 0;
/// One that does not know its cluster yet.
const SYNCING: u8 = 1;
/// One that decides.
const SYNCED: u8 = 2;

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("profiles", &self.profiles)
            .finish_non_exhaustive()
    }
}

/// The profiles by scheduler name.
#[derive(Debug)]
struct Profiles {
    by_name: HashMap<String, Arc<Profile>>,
}

impl Profiles {
    fn of(&self, pod: &PodInfo) -> Option<&Arc<Profile>> {
        self.by_name.get(pod.scheduler_name())
    }
}

impl Rules for Profiles {
    fn rank(&self, pod: &PodInfo) -> i64 {
        self.of(pod).map_or(0, |p| p.rank(pod))
    }
    fn gate(&self, pod: &PodInfo) -> Option<Status> {
        self.of(pod).and_then(|p| p.gate(pod))
    }
    fn hint(
        &self,
        plugin: &str,
        event: &ClusterEvent,
        pod: &PodInfo,
        object: &EventObject,
    ) -> Hint {
        self.of(pod)
            .map_or(Hint::Queue, |p| p.hint(plugin, event, pod, object))
    }
    fn affected(
        &self,
        plugin: &str,
        profile: &str,
        event: &ClusterEvent,
        object: &EventObject,
    ) -> AffectedPods {
        let profile = self.by_name.get(profile);
        profile.map_or(AffectedPods::All, |p| p.affected(plugin, event, object))
    }
}

impl Scheduler {
    /// A scheduler that reaches its cluster through `client`. What of its configuration has no effect goes to the log.
    ///
    /// # Errors
    /// When profiles or extenders cannot be made of the configuration.
    pub fn new(client: kube::Client, options: SchedulerOptions) -> Result<Self, SchedulerError> {
        let configuration = &options.configuration;
        for warning in configuration.without_effect() {
            tracing::warn!("scheduler configuration: {warning}");
        }
        let metrics = options.metrics.clone();
        let consumers = ClaimConsumers::from(&options.features);
        let devices = Devices::new(Arc::new(Selectors::kubernetes())).for_consumers(consumers);
        let mut handle = FrameworkHandle::new("", Some(client.clone()), devices);
        let have_priorities = options.features.is_on(GROUP_PREEMPTION);
        handle.pod_groups = PodGroups::with_priorities(have_priorities);
        handle.extenders = Extenders::new(&configuration.extenders, metrics.clone())?;
        let mut list = options.profiles.clone();
        if list.is_empty() {
            list = profiles::build(configuration, &options.plugins, &handle)?;
        }
        let by_name = list.into_iter().map(|p| (p.name().to_owned(), Arc::new(p)));
        Ok(Self {
            profiles: Arc::new(Profiles {
                by_name: by_name.collect(),
            }),
            client,
            options,
            handle,
            metrics,
            progress: Arc::new(AtomicU8::new(IDLE)),
            pods: Arc::default(),
        })
    }

    /// Whether pods of a group are tried together.
    fn groups_pods(&self) -> bool {
        self.options.features.is_on(GENERIC_WORKLOAD)
    }

    /// What is known of devices, for profiles of one's own.
    pub fn devices(&self) -> &Devices {
        &self.handle.devices
    }

    /// What the scheduler was set up with.
    pub fn configuration(&self) -> &KubeSchedulerConfiguration {
        &self.options.configuration
    }

    /// Whether the scheduler knows its cluster, or has nothing to know because it does not run: another replica does.
    pub fn is_idle_or_synced(&self) -> bool {
        self.progress.load(Ordering::Relaxed) != SYNCING
    }

    /// The metrics, to be registered where they are served.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The pods of the cluster that have not ended; none are known while the scheduler does not run.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let pods = self.pods.lock();
        pods.as_ref().map(Informer::list).unwrap_or_default()
    }

    /// The pods that wait at Permit.
    pub fn waiting_pods(&self) -> &WaitingPods {
        &self.handle.waiting
    }

    /// Schedules until cancelled.
    ///
    /// # Errors
    /// When a task the scheduler depends on ended; it can be run again.
    pub fn run(&self, cancel: CancellationToken) -> BoxFuture<'_, Result<(), SchedulerError>> {
        let run = async move {
            self.progress.store(SYNCING, Ordering::Relaxed);
            let ended = self.run_until_end(cancel).await;
            self.progress.store(IDLE, Ordering::Relaxed);
            *self.pods.lock() = None;
            ended
        };
        run.boxed()
    }

    async fn run_until_end(&self, cancel: CancellationToken) -> Result<(), SchedulerError> {
        let mut tasks = JoinSet::new();
        // Whatever ends the run ends its tasks.
        let stop = cancel.child_token();
        let _guard = stop.clone().drop_guard();
        let living = Config::default().fields(LIVING);
        let client = &self.client;
        let pods: Informer<Pod> =
            Informer::spawn(Api::all(client.clone()), living, &mut tasks, stop.clone());
        *self.pods.lock() = Some(pods.clone());
        let nodes: Informer<Node> = Informer::spawn(
            Api::all(client.clone()),
            Config::default(),
            &mut tasks,
            stop.clone(),
        );
        let namespaces: Informer<Namespace> = Informer::spawn(
            Api::all(client.clone()),
            Config::default(),
            &mut tasks,
            stop.clone(),
        );
        let budgets: Informer<PodDisruptionBudget> = Informer::spawn(
            Api::all(client.clone()),
            Config::default(),
            &mut tasks,
            stop.clone(),
        );
        // Made into what the allocator works on at once, and kept as that alone: there may be very many devices.
        let mut slice_changes: Feed<ResourceSlice> = Feed::spawn(
            Api::all(client.clone()),
            Config::default(),
            &mut tasks,
            stop.clone(),
        );
        let classes = watch_all::<DeviceClass>(client, &mut tasks, &stop);
        let claims = watch_all::<ResourceClaim>(client, &mut tasks, &stop);
        let rules = watch_all::<DeviceTaintRule>(client, &mut tasks, &stop);
        let mut storage_changes = StorageChanges::spawn(client, &mut tasks, &stop);
        let groups = self.groups_pods();
        let mut group_changes: Option<Subscription<PodGroup>> =
            groups.then(|| watch_all(client, &mut tasks, &stop).subscribe());
        let recorders = self.profiles.by_name.keys().map(|name| {
            let recorder = EventRecorder::spawn(client.clone(), name, "", &mut tasks, stop.clone());
            (name.clone(), recorder)
        });
        let recorders: HashMap<String, EventRecorder> = recorders.collect();
        let reporter = Reporter::default();
        tasks.spawn(reporter.clone().run(client.clone(), stop.clone()));

        let mut topology_changes = self.handle.topologies.subscribe();
        let topologies = self.handle.topologies.clone();
        tasks.spawn(topologies.follow(client.clone(), stop.clone()));
        let workloads = self.follow_workloads(&mut tasks, &stop);
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            () = workloads.wait_synced() => {}
        }

        let mut engine = Engine::new(self, recorders, reporter);
        let mut pod_changes = pods.subscribe();
        let mut node_changes = nodes.subscribe();
        let mut namespace_changes = namespaces.subscribe();
        let mut budget_changes = budgets.subscribe();
        let mut class_changes = classes.subscribe();
        let mut claim_changes = claims.subscribe();
        let mut rule_changes = rules.subscribe();
        let mut next_housekeeping = Instant::now() + HOUSEKEEPING;
        let looking = crate::classic::is_served(client.clone());
        let mut looking = std::pin::pin!(looking);
        let mut looked = false;
        let mut classic: Option<ClassicChanges> = None;
        loop {
            // Everything that is known goes in before a decision is made.
            while let Some(change) = node_changes.try_next() {
                engine.node(change);
            }
            while let Some(change) = namespace_changes.try_next() {
                engine.namespace(change);
            }
            while let Some(change) = class_changes.try_next() {
                engine.device_class(change);
            }
            while let Some(change) = slice_changes.try_next() {
                engine.slice(change);
            }
            while let Some(change) = rule_changes.try_next() {
                engine.taint_rule(change);
            }
            while let Some(change) = claim_changes.try_next() {
                engine.claim(change);
            }
            while let Some(change) = storage_changes.try_next() {
                change.apply(&mut engine);
            }
            while let Some(change) = classic.as_mut().and_then(ClassicChanges::try_next) {
                change.apply(&mut engine);
            }
            while let Some(change) = group_changes.as_mut().and_then(Subscription::try_next) {
                engine.pod_group(change);
            }
            while let Some(change) = pod_changes.try_next() {
                engine.pod(change);
            }
            if engine.is_synced() {
                self.progress.store(SYNCED, Ordering::Relaxed);
            }
            engine.adopt_strays();
            engine.reap();
            if Instant::now() >= next_housekeeping {
                engine.housekeeping();
                next_housekeeping = Instant::now() + HOUSEKEEPING;
            }
            if cancel.is_cancelled() {
                return Ok(());
            }
            if engine.is_ready() {
                engine.schedule_one();
                tokio::task::yield_now().await;
                continue;
            }
            engine.publish_sizes();
            let wake = engine
                .next_wake()
                .map_or(next_housekeeping, |at| at.min(next_housekeeping));
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(()),
                Some(change) = pod_changes.next() => engine.pod(change),
                Some(change) = node_changes.next() => engine.node(change),
                Some(change) = namespace_changes.next() => engine.namespace(change),
                Some(change) = class_changes.next() => engine.device_class(change),
                Some(change) = slice_changes.next() => engine.slice(change),
                Some(change) = rule_changes.next() => engine.taint_rule(change),
                Some(change) = claim_changes.next() => engine.claim(change),
                served = &mut looking, if !looked => {
                    looked = true;
                    if served {
                        classic = Some(ClassicChanges::spawn(client, &mut tasks, &stop));
                    } else {
                        engine.no_classic_claims();
                    }
                }
                change = storage_changes.next() => change.apply(&mut engine),
                change = next_classic(&mut classic) => change.apply(&mut engine),
                change = next_group(&mut group_changes) => engine.pod_group(change),
                Some(_) = budget_changes.next() => {
                    while budget_changes.try_next().is_some() {}
                    self.handle.budgets.replace(budgets.list());
                }
                () = self.handle.volumes.wait_began() => {}
                Ok(()) = topology_changes.changed() => engine.topologies(),
                Some(done) = engine.work.join_next_with_id() => engine.done(done),
                () = tokio::time::sleep_until(wake) => {}
                Some(_) = tasks.join_next() => {
                    return if cancel.is_cancelled() { Ok(()) } else { Err(SchedulerError::TaskEnded) };
                }
            }
        }
    }
}

impl Scheduler {
    /// Watches what says which pods belong together.
    fn follow_workloads(
        &self,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> WorkloadInformers {
        let informers = WorkloadInformers {
            services: watch_all(&self.client, tasks, stop),
            replication_controllers: watch_all(&self.client, tasks, stop),
            replica_sets: watch_all(&self.client, tasks, stop),
            stateful_sets: watch_all(&self.client, tasks, stop),
        };
        self.handle.workloads.follow(informers.clone());
        informers
    }
}

/// Changes of the kinds of the classic API.
struct ClassicChanges {
    classes: Subscription<ResourceClass>,
    claims: Subscription<ClassicClaim>,
    schedulings: Subscription<PodScheduling>,
}

/// One of them.
enum ClassicChange {
    Class(Change<ResourceClass>),
    Claim(Change<ClassicClaim>),
    Scheduling(Change<PodScheduling>),
}

impl ClassicChanges {
    fn spawn(client: &kube::Client, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Self {
        Self {
            classes: watch_all(client, tasks, stop).subscribe(),
            claims: watch_all(client, tasks, stop).subscribe(),
            schedulings: watch_all(client, tasks, stop).subscribe(),
        }
    }

    fn try_next(&mut self) -> Option<ClassicChange> {
        let class = self.classes.try_next().map(ClassicChange::Class);
        let claim = || self.claims.try_next().map(ClassicChange::Claim);
        let scheduling = class.or_else(claim);
        scheduling.or_else(|| self.schedulings.try_next().map(ClassicChange::Scheduling))
    }
}

impl ClassicChange {
    fn apply(self, engine: &mut Engine) {
        match self {
            Self::Class(change) => engine.classic_class(change),
            Self::Claim(change) => engine.classic_claim(change),
            Self::Scheduling(change) => engine.pod_scheduling(change),
        }
    }
}

/// Waits for ever where there is no classic API.
async fn next_classic(changes: &mut Option<ClassicChanges>) -> ClassicChange {
    let Some(changes) = changes else {
        return std::future::pending().await;
    };
    tokio::select! {
        Some(change) = changes.classes.next() => ClassicChange::Class(change),
        Some(change) = changes.claims.next() => ClassicChange::Claim(change),
        Some(change) = changes.schedulings.next() => ClassicChange::Scheduling(change),
        else => std::future::pending().await,
    }
}

/// Waits for ever where groups are not watched.
async fn next_group(changes: &mut Option<Subscription<PodGroup>>) -> Change<PodGroup> {
    let next = match changes {
        Some(changes) => changes.next().await,
        None => None,
    };
    match next {
        Some(change) => change,
        None => std::future::pending().await,
    }
}

/// An informer for all objects of a kind.
fn watch_all<K>(
    client: &kube::Client,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Informer<K>
where
    K: kube::Resource<DynamicType = ()>
        + serde::de::DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let api = Api::all(client.clone());
    Informer::spawn(api, Config::default(), tasks, stop.clone())
}

#[cfg(test)]
mod tests;
