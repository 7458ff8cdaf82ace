//! The device manager's state and what drives it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use davit_topology::NumaMask;
use davit_topology::devices::{DeviceId, DeviceMap};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::{Endpoint, SharedEndpoint};
use super::inventory::{InstanceId, Inventory, List, MAX_OF_A_SOCKET, Outcome, Presence};
use super::metrics::Metrics;
use super::{DEVICE_PLUGINS_DIR, InvalidName, checkpoint};
use crate::allocation::{self, Change, Ledger, PodHoldings};
use crate::answer::{FoundContainer, ResourceCount};
use crate::compute::{self, Compute};
use crate::config::{ActivePods, Config, StartError};

/// A plugin in service: its connection and the task that reads its lists.
struct Plugin {
    endpoint: SharedEndpoint,
    _lists: AbortOnDropHandle<()>,
}

/// What is known now; changed under one lock that is never held while waiting.
#[derive(Default)]
pub(super) struct State {
    pub(super) inventory: Inventory,
    plugins: BTreeMap<InstanceId, Plugin>,
    /// Containers the runtime had when the agent started, by pod UID and name; whether running.
    found: BTreeMap<String, BTreeMap<String, bool>>,
    /// Pods in admission, with how many admissions each.
    admitting: BTreeMap<String, usize>,
}

/// Pods whose device health has changed, until somebody asks.
#[derive(Default)]
struct HealthQueue {
    pods: Mutex<BTreeSet<String>>,
    filled: Notify,
}

/// See the module's description.
pub(crate) struct Manager {
    pub(crate) config: Config,
    pub(crate) compute: Compute,
    pub(crate) pods: Arc<dyn ActivePods>,
    pub(crate) ledger: Ledger,
    pub(crate) metrics: Metrics,
    pub(crate) cancel: CancellationToken,
    pub(super) state: Mutex<State>,
    pub(super) registering: AtomicBool,
    sources_ready: AtomicBool,
    next_instance: AtomicU64,
    /// Neither the log nor a state file said who has which CPUs.
    cpus_unknown: bool,
    changes: watch::Sender<u64>,
    health: HealthQueue,
}

/// Why a plugin is not taken into service; the texts are what plugins get to see.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("too many resources are registered on this node, or by this plugin")]
    TooMany,
    #[error("{0}")]
    Connect(String),
    #[error("failed to record the device plugin: {0}")]
    Record(String),
}

impl Manager {
    /// Opens the allocation log, or takes over a kubelet's checkpoint when there is no log.
    pub(crate) fn open(
        config: Config,
        pods: Arc<dyn ActivePods>,
        cancel: CancellationToken,
    ) -> Result<Arc<Self>, StartError> {
        let compute = Compute::new(&config.resources)?;
        let dir = config.root_dir.join(DEVICE_PLUGINS_DIR);
        for dir in [&config.root_dir, &dir] {
            davit_proto::unix::create_dir(dir).map_err(|e| allocation::Error::Io {
                path: dir.clone(),
                what: "create folder",
                source: std::io::Error::other(e.to_string()),
            })?;
        }
        compute::check_states(&config.root_dir, &compute)?;
        let log = config.root_dir.join("allocations.log");
        let imported = if log.exists() {
            Vec::new()
        } else {
            let mut changes = checkpoint::import(&dir);
            changes.extend(compute::import(&config.root_dir, &compute));
            changes
        };
        let cpus_unknown = !log.exists()
            && compute.cpu().is_some()
            && !imported.iter().any(|c| matches!(c, Change::Compute(_)));
        let ledger = Ledger::open(&log, imported)?;
        let mut state = State::default();
        let now = Instant::now();
        ledger.read(|t| {
            t.known()
                .keys()
                .for_each(|r| state.inventory.remember(r, now));
        });
        Ok(Arc::new(Self {
            config,
            compute,
            pods,
            ledger,
            metrics: Metrics::new(),
            cancel,
            state: Mutex::new(state),
            registering: AtomicBool::new(false),
            sources_ready: AtomicBool::new(false),
            next_instance: AtomicU64::new(1),
            cpus_unknown,
            changes: watch::Sender::new(1),
            health: HealthQueue::default(),
        }))
    }

    /// The agent's folder.
    pub(crate) fn root_dir(&self) -> &Path {
        &self.config.root_dir
    }

    /// The folder of plugin sockets.
    pub(super) fn plugins_dir(&self) -> PathBuf {
        self.config.root_dir.join(DEVICE_PLUGINS_DIR)
    }

    /// Takes a plugin into service: dial, options, then the device stream in the background.
    /// An older instance serves on until this one has sent its first list. When this fails
    /// nothing has changed.
    pub(crate) async fn connect(
        this: &Arc<Self>,
        resource: &str,
        socket: &Path,
        registry_socket: Option<PathBuf>,
    ) -> Result<(), PluginError> {
        super::names::check(resource)?;
        this.make_room(resource, socket)?;
        let id = InstanceId(this.next_instance.fetch_add(1, Ordering::Relaxed));
        let endpoint = Endpoint::connect(id, resource, socket, registry_socket, &this.config);
        let endpoint = Arc::new(
            endpoint
                .await
                .map_err(|e| PluginError::Connect(e.to_string()))?,
        );
        this.learn(resource, endpoint.options.pre_start_required)
            .await?;
        let surplus = {
            let mut state = this.state.lock();
            let task = tokio::spawn(read_lists(this.clone(), endpoint.clone()));
            let plugin = Plugin {
                endpoint,
                _lists: AbortOnDropHandle::new(task),
            };
            state.plugins.insert(id, plugin);
            state.inventory.connected(resource, id, Instant::now())
        };
        for id in surplus {
            this.disconnect(resource, id, "too many instances are registered");
        }
        this.touch();
        tracing::info!(resource, instance = id.0, "device plugin connected");
        Ok(())
    }

    /// Whether one more resource may be tracked, of this socket's. Resources whose plugins are gone for good, of which no pod
    /// holds a device, make room.
    fn make_room(&self, resource: &str, socket: &Path) -> Result<(), PluginError> {
        let held: BTreeSet<String> = self
            .ledger
            .read(|t| t.owned_resources().map(|(name, _)| name.clone()).collect());
        let mut state = self.state.lock();
        let other = |p: &&Plugin| p.endpoint.socket == *socket && p.endpoint.resource != resource;
        if state.plugins.values().filter(other).count() >= MAX_OF_A_SOCKET {
            return Err(PluginError::TooMany);
        }
        if !state.inventory.has_room_for(resource) {
            state.inventory.forget_gone(&held);
        }
        let has_room = state.inventory.has_room_for(resource);
        has_room.then_some(()).ok_or(PluginError::TooMany)
    }

    /// Records that a resource has a plugin, so that after a restart pods wait for it.
    async fn learn(&self, resource: &str, pre_start: bool) -> Result<(), PluginError> {
        let known = self.ledger.read(|t| t.known().get(resource).copied());
        if known.is_some_and(|k| k.pre_start == pre_start) {
            return Ok(());
        }
        let change = Change::Learned {
            resource: resource.to_owned(),
            pre_start,
        };
        let committed = self
            .ledger
            .commit(vec![change], self.ledger.reservation(""))
            .await;
        committed.map_err(|e| PluginError::Record(e.to_string()))
    }

    fn listed(&self, endpoint: &Endpoint, list: List) {
        let resource = &endpoint.resource;
        let (outcome, replaced, shed) = {
            let mut state = self.state.lock();
            let now = Instant::now();
            let outcome = state.inventory.listed(resource, endpoint.id, list, now);
            let shed = state.inventory.shed(now);
            // The same socket served twice: its earlier connection is of no use any more.
            let same = |p: &&Plugin| {
                let e = &p.endpoint;
                e.resource == *resource && e.socket == endpoint.socket && e.id < endpoint.id
            };
            let replaced: Vec<InstanceId> = state
                .plugins
                .values()
                .filter(same)
                .map(|p| p.endpoint.id)
                .collect();
            (outcome, replaced, shed)
        };
        self.settle(resource, &outcome);
        for (resource, instance) in shed {
            let why = "too many devices are listed on this node, and its list is the longest";
            tracing::warn!(
                resource,
                instance = instance.map(|id| id.0),
                why,
                "devices are left out"
            );
            if let Some(id) = instance {
                self.disconnect(&resource, id, why);
            }
            self.wake(self.holders_of_any(&resource));
            self.touch();
        }
        for id in replaced {
            self.disconnect(resource, id, "registered again");
        }
    }

    fn disconnect(&self, resource: &str, id: InstanceId, why: &str) {
        let (outcome, plugin) = {
            let mut state = self.state.lock();
            let outcome = state.inventory.disconnected(resource, id, Instant::now());
            (outcome, state.plugins.remove(&id))
        };
        if plugin.is_some() {
            tracing::info!(resource, instance = id.0, why, "device plugin disconnected");
        }
        self.settle(resource, &outcome);
    }

    /// Ends the plugins that came by a socket of the plugin registry.
    pub(crate) fn disconnect_registry(&self, registry_socket: &Path) {
        let found: Vec<SharedEndpoint> = {
            let state = self.state.lock();
            let all = state.plugins.values().map(|p| p.endpoint.clone());
            all.filter(|e| e.registry_socket.as_deref() == Some(registry_socket))
                .collect()
        };
        for endpoint in found {
            self.disconnect(
                &endpoint.resource,
                endpoint.id,
                "its registry socket is gone",
            );
        }
    }

    fn settle(&self, resource: &str, outcome: &Outcome) {
        if !outcome.health.is_empty() {
            self.notify_health(resource, &outcome.health);
        }
        if outcome.changed || !outcome.health.is_empty() {
            self.touch();
        }
    }

    fn notify_health(&self, resource: &str, devices: &BTreeSet<DeviceId>) {
        self.wake(self.holders_of(resource, devices));
    }

    /// Has the status of these pods computed anew.
    pub(crate) fn wake(&self, mut pods: BTreeSet<String>) {
        if !pods.is_empty() {
            self.health.pods.lock().append(&mut pods);
            self.health.filled.notify_one();
        }
    }

    /// Tells everybody who watches that something has changed.
    pub(crate) fn touch(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Declares plugins gone that have not come back in time; returns when to look again.
    pub(super) async fn expire(&self, now: Instant) -> Option<Instant> {
        let grace = self.config.grace;
        let expired = self.state.lock().inventory.expire(grace, now);
        for resource in &expired {
            tracing::warn!(resource, "device plugin has not come back in time");
            self.wake(self.holders_of_any(resource));
            let change = Change::Forgotten {
                resource: resource.clone(),
            };
            if let Err(e) = self
                .ledger
                .commit(vec![change], self.ledger.reservation(""))
                .await
            {
                tracing::warn!(resource, error = %e, "loss of the plugin not recorded");
            }
            // It may have come back while that was written.
            if self.presence(resource) != Some(Presence::Gone) {
                let pre_start = self
                    .serving(resource)
                    .is_some_and(|e| e.options.pre_start_required);
                if let Err(e) = self.learn(resource, pre_start).await {
                    tracing::warn!(resource, error = %e, "return of the plugin not recorded");
                }
            }
        }
        if !expired.is_empty() {
            self.touch();
        }
        self.state.lock().inventory.next_expiry(grace)
    }

    /// Presence of a resource's plugin.
    pub(super) fn presence(&self, resource: &str) -> Option<Presence> {
        self.state.lock().inventory.presence(resource)
    }

    /// The plugin that serves a resource now.
    pub(super) fn serving(&self, resource: &str) -> Option<SharedEndpoint> {
        let state = self.state.lock();
        let id = state.inventory.serving(resource)?;
        Some(state.plugins.get(&id)?.endpoint.clone())
    }

    /// Whether a plugin is still connected.
    pub(super) fn is_connected(&self, endpoint: &Endpoint) -> bool {
        self.state
            .lock()
            .inventory
            .is_connected(&endpoint.resource, endpoint.id)
    }

    /// The last device list of a resource.
    pub(super) fn list_of(&self, resource: &str) -> Option<List> {
        self.state.lock().inventory.devices(resource)
    }

    /// The last device lists of all resources: devices with their NUMA nodes.
    pub(crate) fn lists(&self) -> Vec<(String, DeviceMap)> {
        let state = self.state.lock();
        let places = |list: &List| list.iter().map(|(id, d)| (id.clone(), d.numa)).collect();
        let all = state.inventory.all();
        all.map(|(r, list, _)| (r.clone(), places(list))).collect()
    }

    /// Healthy devices of a resource.
    pub(super) fn healthy_of(&self, resource: &str) -> DeviceMap {
        self.state.lock().inventory.healthy(resource)
    }

    /// All healthy devices, in anybody's hands or nobody's, with their NUMA nodes.
    pub(crate) fn allocatable_devices(&self) -> Vec<(String, DeviceId, NumaMask)> {
        let state = self.state.lock();
        let resources: Vec<String> = state.inventory.all().map(|(r, ..)| r.clone()).collect();
        let devices = resources.into_iter().flat_map(|r| {
            let healthy = state.inventory.healthy(&r);
            healthy
                .into_iter()
                .map(move |(id, numa)| (r.clone(), id, numa))
        });
        devices.collect()
    }

    /// Healthy devices nobody holds or is about to hold.
    pub(crate) fn free(&self, resource: &str) -> DeviceMap {
        let mut devices = self.healthy_of(resource);
        self.ledger
            .read(|t| devices.retain(|id, _| !t.is_owned(resource, id)));
        devices
    }

    pub(crate) fn adopt(&self, found: impl IntoIterator<Item = FoundContainer>) {
        let mut state = self.state.lock();
        for c in found {
            let running = state
                .found
                .entry(c.pod_uid)
                .or_default()
                .entry(c.container)
                .or_default();
            *running |= c.running;
        }
    }

    /// Whether running containers are to tell who has which CPUs.
    pub(crate) fn are_cpus_unknown(&self) -> bool {
        self.cpus_unknown
    }

    /// Enters into the log who has which CPUs by what runs.
    pub(crate) async fn rebuild_cpus(&self, running: &[compute::PinnedContainer]) {
        let Some(policy) = self.compute.cpu().filter(|_| self.cpus_unknown) else {
            return;
        };
        for hold in compute::exclusive(policy, running) {
            let (pod, container, cpus) = (
                hold.pod.clone(),
                hold.container.clone(),
                hold.cpus.to_string(),
            );
            let change = vec![Change::Compute(hold)];
            match self
                .ledger
                .commit(change, self.ledger.reservation(&pod.uid))
                .await
            {
                Ok(()) => tracing::warn!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    container,
                    cpus,
                    "exclusive cpus found by what runs: the allocation log was lost"
                ),
                Err(e) => tracing::error!(pod = pod.uid, error = %e, "exclusive cpus not recorded"),
            }
        }
        self.touch();
    }

    /// Whether some container of the pod was running when the agent started.
    pub(super) fn was_running(&self, uid: &str) -> bool {
        let state = self.state.lock();
        state
            .found
            .get(uid)
            .is_some_and(|pod| pod.values().any(|running| *running))
    }

    /// Whether this container was running when the agent started.
    pub(super) fn container_was_running(&self, uid: &str, container: &str) -> bool {
        let state = self.state.lock();
        state.found.get(uid).and_then(|pod| pod.get(container)) == Some(&true)
    }

    /// From now on the pod is treated like one that did not run when the agent started.
    pub(super) fn forget_running(&self, uid: &str) {
        self.state.lock().found.remove(uid);
    }

    pub(crate) fn sources_ready(&self) {
        self.sources_ready.store(true, Ordering::Release);
    }

    pub(crate) fn are_sources_ready(&self) -> bool {
        self.sources_ready.load(Ordering::Acquire)
    }

    /// Marks a pod as being admitted until the guard is dropped.
    pub(super) fn admitting(&self, uid: &str) -> Admitting<'_> {
        *self
            .state
            .lock()
            .admitting
            .entry(uid.to_owned())
            .or_default() += 1;
        Admitting {
            manager: self,
            uid: uid.to_owned(),
        }
    }

    /// Frees what pods hold that are no longer active. Does nothing until all pods are known.
    pub(crate) async fn free_inactive(&self) {
        if !self.sources_ready.load(Ordering::Acquire) {
            return;
        }
        // First who holds, then who is active: a pod that is admitted in between is in neither.
        let holding: Vec<String> = self.ledger.read(|t| t.pods().keys().cloned().collect());
        if holding.is_empty() {
            return;
        }
        let active = self.pods.active_pods();
        let active: BTreeSet<&str> = active
            .iter()
            .filter_map(|p| p.metadata.uid.as_deref())
            .collect();
        let over: Vec<Change> = {
            let state = self.state.lock();
            let over = holding
                .into_iter()
                .filter(|uid| !active.contains(uid.as_str()) && !state.admitting.contains_key(uid));
            over.map(|uid| Change::Release { uid }).collect()
        };
        self.commit_release(over).await;
    }

    pub(crate) async fn release(&self, uid: &str) {
        self.state.lock().found.remove(uid);
        if self.ledger.read(|t| t.pods().contains_key(uid)) {
            self.commit_release(vec![Change::Release {
                uid: uid.to_owned(),
            }])
            .await;
        }
    }

    async fn commit_release(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        match self
            .ledger
            .commit(changes, self.ledger.reservation(""))
            .await
        {
            Ok(()) => self.touch(),
            // The next look at inactive pods finds them again.
            Err(e) => tracing::error!(error = %e, "release not recorded"),
        }
    }

    pub(crate) fn node_resources(&self) -> BTreeMap<String, ResourceCount> {
        self.state.lock().inventory.counts()
    }

    pub(crate) fn allocated(&self) -> BTreeMap<String, u64> {
        self.ledger.read(|t| {
            t.owned_resources()
                .map(|(r, n)| (r.clone(), n as u64))
                .collect()
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) async fn device_health(&self) -> BTreeSet<String> {
        loop {
            let filled = self.health.filled.notified();
            let pods = std::mem::take(&mut *self.health.pods.lock());
            if !pods.is_empty() {
                return pods;
            }
            filled.await;
        }
    }

    pub(crate) fn healthy(&self) -> bool {
        self.registering.load(Ordering::Acquire)
    }

    /// Ends all plugin connections.
    pub(crate) fn stop_plugins(&self) {
        let plugins = std::mem::take(&mut self.state.lock().plugins);
        drop(plugins);
    }

    /// Pods that are ending and may still hold something.
    pub(super) fn ending_pods(&self) -> BTreeSet<String> {
        self.pods.ending_pods()
    }

    /// Pods that List tells of: all of the node where it is not to leave out those that have ended.
    pub(crate) fn listed_pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.active_pods();
        if self.config.list_ended {
            let known: BTreeSet<String> =
                pods.iter().filter_map(|p| p.metadata.uid.clone()).collect();
            let mut all = self.pods.all_pods();
            all.retain(|pod| {
                !pod.metadata
                    .uid
                    .as_ref()
                    .is_some_and(|uid| known.contains(uid))
            });
            pods.append(&mut all);
        }
        pods
    }

    /// Pods that may hold something. Until the pods of the node are known after a start, those of the allocation log
    /// are among them: a device never seems free while it has an owner.
    pub(crate) fn active_pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.active_pods();
        if !self.sources_ready.load(Ordering::Acquire) {
            let known: BTreeSet<String> =
                pods.iter().filter_map(|p| p.metadata.uid.clone()).collect();
            let of_log = self.ledger.read(|t| t.pods().clone());
            pods.extend(
                of_log
                    .iter()
                    .filter(|(uid, _)| !known.contains(*uid))
                    .map(|(_, h)| Arc::new(pod_of_log(h))),
            );
        }
        pods
    }
}

/// What the allocation log knows of a pod, as a pod.
fn pod_of_log(holdings: &PodHoldings) -> Pod {
    let container = |name: &String| Container {
        name: name.clone(),
        ..Container::default()
    };
    let mut pod = Pod::default();
    pod.metadata.name = Some(holdings.pod.name.clone());
    pod.metadata.namespace = Some(holdings.pod.namespace.clone());
    pod.metadata.uid = Some(holdings.pod.uid.clone());
    pod.spec = Some(PodSpec {
        containers: holdings.containers.keys().map(container).collect(),
        ..PodSpec::default()
    });
    pod
}

/// A pod in admission; see [`Manager::admitting`].
pub(super) struct Admitting<'a> {
    manager: &'a Manager,
    uid: String,
}

impl Drop for Admitting<'_> {
    fn drop(&mut self) {
        let mut state = self.manager.state.lock();
        if let Some(n) = state.admitting.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                state.admitting.remove(&self.uid);
            }
        }
    }
}

/// Body of a plugin's task: takes its lists in until the stream ends.
async fn read_lists(manager: Arc<Manager>, endpoint: SharedEndpoint) {
    let stop = manager.cancel.clone();
    let read = async {
        let mut lists = endpoint.lists().await.map_err(|e| e.text)?;
        loop {
            let list = lists.next().await?;
            let began = Instant::now();
            manager.listed(&endpoint, list);
            lists.rest(began.elapsed());
        }
    };
    let ended: Result<std::convert::Infallible, String> = tokio::select! {
        () = stop.cancelled() => return,
        ended = read => ended,
    };
    let Err(why) = ended;
    manager.disconnect(&endpoint.resource, endpoint.id, &why);
}
