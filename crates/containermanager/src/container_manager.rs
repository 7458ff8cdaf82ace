//! What the node agent talks to: one manager before device manager, compute managers and resource claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use davit_api::devices::{Device, NumaPlace};
use davit_proto::cri::v1 as cri;
use davit_task::Task;
use davit_topology::PolicyKind;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::answer::{ContainerOptions, FoundContainer, OptionsError, Rejection, ResourceCount};
use crate::compute::ComputeOptions;
use crate::config::{ActivePods, Config, StartError};
use crate::devices::Manager;
use crate::{compute, devices, dra, plugins, podresources};

/// Everything pods hold exclusively on this node. Stops its servers when dropped; containers
/// are not touched by that.
pub struct ContainerManager {
    inner: Arc<Manager>,
    dra: Option<Arc<dra::Manager>>,
    tasks: Mutex<JoinSet<()>>,
    cancel: CancellationToken,
    _stop: DropGuard,
}

impl ContainerManager {
    /// Opens the allocation log and serves the registration socket, the plugin registry and
    /// podresources below `config.root_dir`. Stale plugin sockets are removed, so plugins
    /// register again.
    ///
    /// # Errors
    /// When the log cannot be read or a socket cannot be bound.
    pub async fn start(config: Config, pods: Arc<dyn ActivePods>) -> Result<Self, StartError> {
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let inner = Manager::open(config, pods, cancel.clone())?;
        compute::migrate(&inner.ledger, &inner.compute).await;
        let keeper = inner.clone();
        tasks.spawn(
            Task::new("node", "compute", cancel.clone())
                .retry(move || compute::keep(keeper.clone())),
        );
        let dra = inner.config.dra.clone();
        let dra = dra.map(|options| dra::Manager::new(options, inner.clone()));
        if let Some(dra) = &dra {
            dra::Manager::serve(dra, &mut tasks);
        }
        devices::serve(&inner, &mut tasks)?;
        plugins::serve(&inner, dra.as_ref(), inner.config.csi.as_ref(), &mut tasks)?;
        podresources::serve(&inner, &mut tasks)?;
        Ok(Self {
            inner,
            dra,
            tasks: Mutex::new(tasks),
            _stop: cancel.clone().drop_guard(),
            cancel,
        })
    }

    /// Tells which containers the runtime has. Pods with a running container keep what the log
    /// says without any check.
    pub fn adopt(&self, found: impl IntoIterator<Item = FoundContainer>) {
        self.inner.adopt(found);
    }

    /// Whether [`rebuild_cpus`](Self::rebuild_cpus) has something to do: CPUs are managed and
    /// neither the log nor the state file said who has which.
    pub fn are_cpus_unknown(&self) -> bool {
        self.inner.are_cpus_unknown()
    }

    /// Finds out from the running containers who has CPUs for itself. To be called before the
    /// first pod is admitted.
    pub async fn rebuild_cpus(&self, running: &[compute::PinnedContainer]) {
        self.inner.rebuild_cpus(running).await;
    }

    /// Tells that all pods of this node are known. Until then nothing is freed because its pod
    /// is missing.
    pub fn sources_ready(&self) {
        self.inner.sources_ready();
    }

    /// Gives the pod everything it asks for; when this returns `Ok` the allocation is durable.
    ///
    /// CPUs, memory and devices are placed beside the devices of the pod's resource claims, where the topology manager
    /// has a policy.
    ///
    /// Waits, until `deadline` at most, while a plugin that is known but not connected may
    /// come back; `waiting` is then called with a sentence that says for what, whenever it
    /// changes. Nothing is held while waiting. Admissions of different pods run concurrently;
    /// a plugin that hangs delays only the pods that use it. Calling it again for an admitted
    /// pod changes nothing.
    ///
    /// # Errors
    /// The reason and message for the pod's status.
    pub async fn admit(
        &self,
        pod: &Pod,
        deadline: Instant,
        waiting: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), Rejection> {
        let places = match &self.dra {
            Some(dra) if self.inner.topology_policy() != PolicyKind::None => {
                dra.places(pod, deadline, waiting).await
            }
            _ => dra::Places::new(),
        };
        self.inner.admit(pod, &places, deadline, waiting).await
    }

    /// What the container's configuration gets from its devices. Calls PreStartContainer where
    /// a plugin wants that, so call it once for every start of the container, just before.
    ///
    /// # Errors
    /// The container cannot be created now; try again later.
    pub async fn container_options(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<ContainerOptions, OptionsError> {
        let mut options = self.inner.container_options(pod, container).await?;
        if let (Some(dra), Some(spec)) = (&self.dra, spec_of(pod, container)) {
            let names = dra.cdi_devices(pod, spec);
            let names = names.map_err(|e| OptionsError(e.to_string()))?;
            // Those of claims come first, each name once.
            let others = std::mem::take(&mut options.cdi_devices).into_iter();
            let others = others
                .filter(|d| !names.contains(&d.name))
                .collect::<Vec<_>>();
            let names = names
                .iter()
                .map(|name| cri::CdiDevice { name: name.clone() });
            options.cdi_devices = names.chain(others).collect();
        }
        Ok(options)
    }

    /// Makes the resource claims of a pod ready for its containers: to be called before its
    /// sandbox is made, and before any container of it starts. Cheap when they are.
    ///
    /// # Errors
    /// A claim is not ready; try again later.
    pub async fn prepare_claims(&self, pod: &Pod) -> Result<(), dra::Error> {
        match &self.dra {
            Some(dra) => dra.prepare(pod).await,
            None => match pod.spec.as_ref().and_then(|s| s.resource_claims.as_ref()) {
                Some(claims) if !claims.is_empty() => Err(dra::Error::Off),
                _ => Ok(()),
            },
        }
    }

    /// Takes the pod from its resource claims, and has those undone that nobody else uses. To be
    /// called when its containers have ended, until it succeeds.
    ///
    /// # Errors
    /// A driver could not, or is not there; try again later.
    pub async fn unprepare_claims(&self, pod_uid: &str) -> Result<(), dra::Error> {
        match &self.dra {
            Some(dra) => dra.unprepare(pod_uid).await,
            None => Ok(()),
        }
    }

    /// Where a container may run now: exclusive CPUs, or the shared pool, which changes as others
    /// come and go. Nothing where the node does not manage CPUs.
    pub fn compute_options(&self, pod_uid: &str, container: &str) -> ComputeOptions {
        self.inner.compute_options(pod_uid, container)
    }

    /// Whether the node manages the CPUs of its containers.
    pub fn manages_cpus(&self) -> bool {
        self.inner.compute.cpu().is_some()
    }

    /// Whether the node pins the memory of its containers.
    pub fn manages_memory(&self) -> bool {
        self.inner.compute.memory().is_some()
    }

    /// The topology manager's policy.
    pub fn topology_policy(&self) -> PolicyKind {
        self.inner.topology_policy()
    }

    /// The machine's NUMA nodes.
    pub fn numa_places(&self) -> Vec<NumaPlace> {
        self.inner.numa_places()
    }

    /// What schedulers are told about the NUMA nodes: everything the decision about a pod depends on.
    pub fn published(&self) -> davit_topology::published::NodeState {
        let mut state = self.inner.published();
        if let Some(dra) = self.dra.as_ref().filter(|_| state.nodes.len() > 1) {
            state.pcie_roots = dra.pcie_roots();
        }
        state
    }

    /// How often the CPU sets of running containers are to be looked at without a reason.
    pub fn reconcile_period(&self) -> Duration {
        self.inner.config.resources.reconcile_period
    }

    /// Frees everything the pod holds. To be called when all its containers have ended and it
    /// will not start any more. Returns when that is durable, or was in vain: what is left is
    /// freed when the pod is found to be inactive.
    pub async fn release(&self, pod_uid: &str) {
        self.inner.release(pod_uid).await;
    }

    /// Capacity and allocatable of every resource of device plugins. Names stay, with zeros,
    /// after a plugin is gone for good.
    pub fn node_resources(&self) -> BTreeMap<String, ResourceCount> {
        self.inner.node_resources()
    }

    /// How many devices of each resource pods hold: the least allocatable to assume when a pod
    /// that holds devices is checked against the node again.
    pub fn allocated(&self) -> BTreeMap<String, u64> {
        self.inner.allocated()
    }

    /// Changes whenever [`node_resources`](Self::node_resources),
    /// [`devices`](Self::devices) or an allocation does. The number rises and has no other meaning.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.subscribe()
    }

    /// Waits until the health of devices that pods hold has changed, and returns the UIDs of
    /// those pods: their status is to be computed anew. For one caller.
    pub async fn device_health(&self) -> BTreeSet<String> {
        self.inner.device_health().await
    }

    /// `allocatedResourcesStatus` of one app container, sorted: devices of plugins, then claims.
    pub fn allocated_resources_status(&self, pod: &Pod, container: &str) -> Vec<ResourceStatus> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut statuses = self.inner.allocated_resources_status(uid, container);
        if let (Some(dra), Some(spec)) = (&self.dra, spec_of(pod, container)) {
            statuses.extend(dra.status(pod, spec));
        }
        statuses
    }

    /// What the containers of a pod hold of device plugins that are connected, and what of it
    /// cannot be used.
    pub fn held_devices(&self, pod_uid: &str) -> Vec<devices::HeldDevice> {
        self.inner.held_devices(pod_uid)
    }

    /// Every device of the node: health, place, who holds it and since when.
    pub fn devices(&self) -> Vec<Device> {
        self.inner.devices()
    }

    /// What containers hold beside devices of plugins: devices of claims, CPUs and memory of their own.
    pub fn holdings(&self) -> Vec<Device> {
        self.inner.holdings(&self.inner.pods.all_pods())
    }

    /// Resources whose plugin is connected and lists no device.
    pub fn empty_resources(&self) -> Vec<String> {
        self.inner.empty_resources()
    }

    /// Whether the registration server serves: the check `device-plugin` of `/healthz`.
    pub fn healthy(&self) -> bool {
        self.inner.healthy()
    }

    /// Adds the metrics of devices, plugins and podresources, without the prefix `kubelet_`:
    /// pass a registry that has it.
    pub fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        self.inner.metrics.register(registry);
    }

    /// Adds the metrics of resource claims; their names have no prefix.
    pub fn register_claim_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        if let Some(dra) = &self.dra {
            dra.register_metrics(registry);
        }
    }

    /// Stops the servers and waits for them. Allocations and containers stay as they are.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
        self.inner.stop_plugins();
        if let Some(dra) = &self.dra {
            dra.stop();
        }
        self.inner.ledger.close();
    }
}

/// The container of this name in the pod's spec.
fn spec_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    all.find(|c| c.name == name)
}

impl Drop for ContainerManager {
    fn drop(&mut self) {
        if let Some(dra) = &self.dra {
            dra.stop();
        }
        // Connections may outlive this for a moment; the log must not.
        self.inner.ledger.close();
    }
}
