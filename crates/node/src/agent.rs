//! The node agent: puts the parts together and runs them.

mod cpu_sets;
mod dispatch;
mod image_gc;
mod lease;
mod node_events;
mod node_status;
mod orphans;
mod qos;
mod relist;
mod removed_manifests;
mod static_app_armor;
mod static_pods;
mod topology_report;
mod volume_stats;

pub use topology_report::define as define_topologies;

use crate::addresses::HostAddresses;
use crate::context::Context;
use crate::csi::Registrar;
use crate::csi_drivers;
use crate::eviction;
use crate::eviction::images::Collector;
use crate::host_rules::HostError;
use crate::local_volumes;
use crate::metrics::Metrics;
use crate::options::NodeOptions;
use crate::pod_table::PodTable;
use crate::podsapi;
use crate::runtime_state::{State, keys};
use crate::server;
use crate::server::plain::PlainPort;
use crate::shutdown;
use crate::status_manager::StatusManager;
use crate::users::UserRanges;
use crate::worker_input::WorkerInputs;
use davit_api::features::LIST_ACTIVE;
use davit_api::resource_claims::ClaimConsumers;
use davit_client::{EventRecorder, Informer, RestRequests};
use davit_containermanager::compute::PinnedContainer;
use davit_containermanager::dra::{self, ApiClaims};
use davit_containermanager::{
    Config as DeviceConfig, ContainerManager, FoundContainer, PluginHandler, StartError,
};
use davit_csi::Drivers;
use davit_flexvolume::FlexDrivers;
use davit_machine::{
    CgroupDriver, Enforced, Keeper, MachineFacts, PodCgroups, ReservedError, read_hardware,
};
use davit_oci::measured::{MeasuredRuntime, RuntimeOperations};
use davit_oci::runtime::Runtime;
use davit_podimages::credentials::CredentialProviders;
use davit_podimages::{ImageManager, Verification};
use davit_pods::objects::{ApiObjects, ObjectSource};
use davit_pods::paths::Paths;
use davit_pods::pod::{CONFIG_SOURCE, PodExt as _};
use davit_podvolumes::Volumes;
use davit_podvolumes::mounts::{Mounter, NoMounter, SharedMount, SystemMounter};
use davit_task::{TaskEnded, Tasks};
use davit_topology::Hardware;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::Api;
use kube::runtime::watcher;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Why the node agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of the node's own is not one that it can have for itself.
    #[error("a directory of the node's own cannot be used (podLogsDir and --root name others)")]
    Own(#[source] davit_beneath::Error),
    /// A directory cannot be made.
    #[error("cannot make {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The runtime does not answer.
    #[error("container runtime does not answer")]
    Runtime(#[source] davit_oci::runtime::Error),
    /// The device side.
    #[error("container manager does not start")]
    Devices(#[from] StartError),
    /// The cgroups above containers.
    #[error(
        "podPidsLimit is not built with the systemd cgroup driver (docs/status.md); use the driver cgroupfs, or leave the field out"
    )]
    PodPids,
    /// The machine is not as it shall be.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A cgroup of the machine's own is not held to what is kept for it.
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    /// The same, where systemd has it.
    #[error(
        "enforceNodeAllocatable: {0} is not built with the systemd cgroup driver (docs/status.md); limit the slice by its unit, or use the driver cgroupfs"
    )]
    ReservedSlice(Keeper),
    /// The pods API.
    #[error("pods API does not start")]
    PodsApi(#[from] davit_proto::unix::Error),
    /// The node server.
    #[error("node server does not start")]
    Server(#[from] server::Error),
    /// A task is lost without which there is no node.
    #[error("node agent cannot go on")]
    Lost(#[source] TaskEnded),
}

/// A node agent. Containers outlive it: run it again on the same directories and it takes them over.
pub struct NodeAgent {
    client: kube::Client,
    options: NodeOptions,
}

/// The ports of a node agent.
struct Listeners {
    node: Option<TcpListener>,
    plain: Vec<(&'static str, PlainPort, TcpListener)>,
}

impl Listeners {
    async fn bind(options: &NodeOptions) -> Result<Self, server::Error> {
        let at = |port| SocketAddr::new(options.address, port);
        let node = match options.served.secure {
            true => Some(server::bind(at(options.port)).await?),
            false => None,
        };
        let read_only = options.served.read_only.map(at);
        let mut plain = Vec::new();
        for (name, port, address) in [
            ("healthz", PlainPort::Health, options.healthz),
            ("read-only", PlainPort::ReadOnly, read_only),
        ] {
            if let Some(address) = address {
                plain.push((name, port, server::bind(address).await?));
            }
        }
        Ok(Self { node, plain })
    }
}

/// How long the runtime may take to answer at start.
const RUNTIME_START: Duration = Duration::from_secs(60);

/// What the agent's loops work with.
struct Works {
    ctx: Arc<Context>,
    inputs: WorkerInputs,
    cancel: CancellationToken,
}

impl Works {
    /// Starts the loops. One that panics is started again: each reads anew what it works on.
    fn start(&self, tasks: &mut Tasks, port: u16) {
        let options = &self.ctx.options;
        self.keep(tasks, "status", move |ctx, cancel| {
            node_status::run(ctx, port, cancel)
        });
        self.keep(tasks, "lease", lease::run);
        self.keep_with_pods(tasks, "relist", relist::run);
        self.keep_with_pods(tasks, "device-health", relist::watch_devices);
        self.keep_with_pods(tasks, "eviction", eviction::run);
        if options.shutdown.is_on() {
            self.keep_with_pods(tasks, "shutdown", shutdown::run);
        }
        if let Some(root) = options.local_volumes.clone() {
            self.keep(tasks, "local-volumes", move |ctx, cancel| {
                local_volumes::run(ctx, root.clone(), cancel)
            });
        }
        if options.mounts {
            self.keep(tasks, "csi-drivers", csi_drivers::run);
        } else {
            self.keep(tasks, "csi-node", csi_drivers::announce);
        }
        if let Some(period) = options.volume_stats_period {
            self.keep(tasks, "volume-stats", move |ctx, cancel| {
                volume_stats::run(ctx, period, cancel)
            });
        }
        self.keep(tasks, "image-gc", image_gc::run);
        self.keep(tasks, "cpu-sets", cpu_sets::run);
        self.keep(tasks, "qos", qos::run);
        self.keep(tasks, "topology-report", topology_report::run);
        self.keep(tasks, "log-rotation", relist::rotate_logs);
    }

    fn keep<W: Future<Output = ()> + Send + 'static>(
        &self,
        tasks: &mut Tasks,
        name: &'static str,
        make: impl Fn(Arc<Context>, CancellationToken) -> W + Send + 'static,
    ) {
        let (ctx, cancel) = (self.ctx.clone(), self.cancel.clone());
        tasks.keep(name, move || make(ctx.clone(), cancel.clone()));
    }

    fn keep_with_pods<W: Future<Output = ()> + Send + 'static>(
        &self,
        tasks: &mut Tasks,
        name: &'static str,
        make: impl Fn(Arc<Context>, WorkerInputs, CancellationToken) -> W + Send + 'static,
    ) {
        let inputs = self.inputs.clone();
        self.keep(tasks, name, move |ctx, cancel| {
            make(ctx, inputs.clone(), cancel)
        });
    }
}

impl NodeAgent {
    /// An agent that talks to the API server through `client`.
    pub fn new(client: kube::Client, options: NodeOptions) -> Self {
        Self { client, options }
    }

    /// Runs until `cancel`. Containers keep running afterwards.
    ///
    /// # Errors
    /// What keeps the agent from starting; once it runs, errors are retried and reported on the objects they concern.
    pub fn run(self, cancel: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
        self.run_until(cancel).boxed()
    }

    async fn run_until(self, cancel: CancellationToken) -> Result<(), Error> {
        // Everything the agent starts ends with it, also when starting fails half-way.
        let cancel = cancel.child_token();
        let _guard = cancel.clone().drop_guard();
        let mut shared = SharedMount::default();
        let mut tasks = Tasks::new("node", cancel.clone());
        let (ctx, listeners) = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            prepared = self.prepare(tasks.set(), &mut shared, &cancel) => prepared?,
        };
        let server = match listeners.node {
            Some(listener) => Some(server::Server::new(ctx.clone(), listener)?),
            None => None,
        };
        let (inputs, dispatcher) = dispatch::Dispatcher::new(ctx.clone(), cancel.clone());
        let port = server
            .as_ref()
            .map_or(ctx.options.port, server::Server::port);
        let works = Works {
            ctx,
            inputs,
            cancel,
        };
        works.start(&mut tasks, port);
        // Their sockets cannot be made anew.
        if let Some(server) = server {
            tasks.vital("server", server.run(works.cancel.clone()));
        }
        for (name, port, listener) in listeners.plain {
            let serving = port.run(works.ctx.clone(), listener, works.cancel.clone());
            tasks.vital(name, serving);
        }
        let mut dispatching = std::pin::pin!(dispatcher.run());
        let lost = tokio::select! {
            () = &mut dispatching => None,
            ended = tasks.failed() => Some(ended),
        };
        works.cancel.cancel();
        if lost.is_some() {
            dispatching.await;
        }
        tasks.end().await;
        works.ctx.devices.shutdown().await;
        lost.map_or(Ok(()), |ended| Err(Error::Lost(ended)))
    }

    async fn prepare(
        &self,
        tasks: &mut JoinSet<()>,
        shared: &mut SharedMount,
        cancel: &CancellationToken,
    ) -> Result<(Arc<Context>, Listeners), Error> {
        let mut options = self.options.clone();
        let operations = RuntimeOperations::default();
        options.runtime = Arc::new(MeasuredRuntime::new(options.runtime, operations.clone()));
        // Mount points are known by their real paths; a node without mounts keeps the path that it was given.
        let root = made_dir(&options.root_dir)?;
        let root = if options.mounts {
            real_dir(&root)?
        } else {
            root
        };
        let paths = Paths::new(root.clone(), real_parent(&options.log_dir)?);
        paths.protect().map_err(Error::Own)?;
        if let Err(error) = paths.open_container_logs() {
            tracing::warn!(%error, "there are no links to containers' logs for log collectors");
        }
        let mounter: Arc<dyn Mounter> = if options.mounts {
            Arc::new(SystemMounter)
        } else {
            Arc::new(NoMounter)
        };
        if let Err(error) = shared.make(&mounter, &paths.pods()) {
            tracing::warn!(%error, "cannot make the volume directory a shared mount; mount propagation will not work");
        }
        if !options.reporting.pod_cidr.is_empty() {
            tracing::warn!(
                "podCIDR counts for a kubelet without API server only; pods get what the cluster gives this node"
            );
        }
        let mut machine = MachineFacts::discover(paths.root());
        options.host.apply(&machine)?;
        let mut resources = options.resources.clone();
        if resources.hardware == Hardware::default() {
            let memory = u64::try_from(machine.memory).unwrap_or(0);
            resources.hardware = read_hardware(Path::new("/sys"), memory);
        } else {
            machine.describe(&resources.hardware);
        }
        machine.count(&resources.hardware);
        machine.reserved.clone_from(&options.reserved);
        let version = runtime_version(&*options.runtime).await?;
        options.cgroup_driver = options.cgroup_driver.of_runtime(&*options.runtime).await;
        // A machine that is only described has less than the pods may use.
        let is_real = options.resources.hardware == Hardware::default();
        let cgroups = cgroups(&options, &machine, is_real)?;
        let listeners = Listeners::bind(&options).await?;

        let requests = RestRequests::default();
        let heartbeats = requests.of(self.client.clone());
        let client = match options.request_rate {
            Some(rate) => davit_client::throttled(heartbeats.clone(), rate),
            None => heartbeats.clone(),
        };
        let fields = |text: String| watcher::Config::default().fields(&text);
        let recorder = EventRecorder::spawn_throttled(
            heartbeats.clone(),
            "kubelet",
            &options.node_name,
            options.event_rate,
            tasks,
            cancel.clone(),
        );
        if let Some(groups) = &cgroups {
            qos::enforce_reserved(groups, &options.node_name, &recorder)?;
        }
        let node = Informer::<Node>::spawn(
            Api::all(client.clone()),
            fields(format!("metadata.name={}", options.node_name)),
            tasks,
            cancel.clone(),
        );
        let services = Informer::<Service>::spawn(
            Api::all(client.clone()),
            watcher::Config::default(),
            tasks,
            cancel.clone(),
        );
        let objects: Arc<dyn ObjectSource> = Arc::new(ApiObjects::new(client.clone()));
        let pods = Arc::new(PodTable::default());
        let drivers = Arc::new(Drivers::default().below(&options.root_dir));
        let registrar = Registrar::new(client.clone(), options.node_name.clone(), drivers.clone());
        let registrar = Arc::new(registrar);
        let config = DeviceConfig {
            plugin_wait: options.plugin_wait,
            list_ended: !options.features.is_on(LIST_ACTIVE),
            podresources_rate: options.podresources_rate,
            resources,
            dra: Some(dra_options(&client, &options)),
            csi: options
                .mounts
                .then(|| registrar.clone() as Arc<dyn PluginHandler>),
            ..DeviceConfig::new(&root)
        };
        let devices = ContainerManager::start(config, pods.clone()).await?;
        devices.adopt(
            found_containers(&*options.runtime)
                .await
                .map_err(Error::Runtime)?,
        );
        if devices.are_cpus_unknown() {
            let running = pinned_containers(&*options.runtime).await;
            devices
                .rebuild_cpus(&running.map_err(Error::Runtime)?)
                .await;
        }
        let metrics = Metrics::new(
            &options.node_name,
            |registry| {
                devices.register_metrics(registry);
                if let Some(groups) = &cgroups {
                    groups.register_metrics(registry);
                }
                operations.register(registry);
            },
            |registry| {
                devices.register_claim_metrics(registry);
                requests.register(registry);
                davit_task::register_metrics(registry);
            },
        );
        let status = StatusManager::spawn(client.clone(), pods.changes().clone(), tasks, cancel);
        let api = podsapi::Parts {
            pods: pods.clone(),
            status: status.clone(),
            changes: pods.changes().clone(),
            rate: options.podresources_rate,
            dropped: metrics.watch_dropped.clone(),
        };
        podsapi::serve(&root, api, tasks, cancel.clone())?;
        let host_dns = crate::dns::parse_resolv_conf(
            &std::fs::read_to_string(&options.resolv_conf).unwrap_or_default(),
        );
        let volumes = Volumes::new(paths.clone(), mounter, objects.clone())
            .with_events(recorder.clone())
            .with_flex_drivers(flex_drivers(&options))
            .with_own(options.local_volumes.as_deref())
            .with_drivers(
                drivers,
                &options.node_name,
                node.clone(),
                options.look.clone(),
            );
        for collector in volumes.collectors() {
            metrics.add_collector(collector);
        }
        let recursive_mounts = davit_oci::read_only::of(&*options.runtime).await;
        let ctx = Context {
            recursive_mounts,
            runtime: options.runtime.clone(),
            runtime_name: version.runtime_name.clone(),
            machine: with_runtime(machine, &version),
            addresses: HostAddresses::new(&options),
            host_dns,
            status,
            volumes,
            registrar,
            users: UserRanges::new(paths.clone()),
            images: ImageManager::new(
                options.runtime.clone(),
                recorder.clone(),
                objects.clone(),
                CredentialProviders::new(options.credentials.clone()),
                &paths.image_manager(),
                verification(&options),
                options.pulls,
            ),
            image_collector: Collector::new(options.runtime.clone(), options.image_gc),
            pressure: tokio::sync::watch::Sender::default(),
            probes: Arc::default(),
            client,
            heartbeats,
            options,
            paths,
            devices,
            cgroups,
            pods,
            objects,
            recorder,
            services,
            node,
            metrics,
            cpu_rates: davit_cadvisor::CpuRates::default(),
        };
        Ok((Arc::new(ctx), listeners))
    }
}

/// Without the feature an image that is there is everybody's.
fn verification(options: &NodeOptions) -> Verification {
    match options.features.is_on("KubeletEnsureSecretPulledImages") {
        true => options.image_verification.clone(),
        false => Verification::Never,
    }
}

/// The cgroups above containers, where the agent may set them.
fn cgroups(
    options: &NodeOptions,
    machine: &MachineFacts,
    is_real: bool,
) -> Result<Option<PodCgroups>, Error> {
    let Some(mut wanted) = options.cgroups.clone() else {
        return Ok(None);
    };
    if options.cgroup_driver == CgroupDriver::Systemd {
        if wanted.pod_pids.is_some() {
            return Err(Error::PodPids);
        }
        for (keeper, share) in [
            (Keeper::System, &wanted.system),
            (Keeper::Kube, &wanted.kube),
        ] {
            if share.enforced != Enforced::Nothing {
                return Err(Error::ReservedSlice(keeper));
            }
        }
        tracing::warn!(
            "with the systemd cgroup driver only containers have weights and limits, not pods and their classes"
        );
        return Ok(None);
    }
    wanted.quotas = options.host.quotas;
    wanted.enforce_pods &= is_real;
    if is_real {
        wanted.huge_pages = machine.hugepage_sizes();
        wanted.memory = machine.memory;
    }
    match PodCgroups::new(&options.cgroup_root, wanted) {
        Ok(groups) => Ok(Some(groups)),
        Err(error) => {
            tracing::warn!(%error, "no cgroups: neither containers nor pods have limits");
            Ok(None)
        }
    }
}

fn dra_options(client: &kube::Client, options: &NodeOptions) -> dra::Options {
    let node_name = options.node_name.clone();
    let api = ApiClaims::new(client.clone(), node_name.clone());
    dra::Options {
        patience: options.driver_patience,
        consumers: ClaimConsumers::from(&options.features),
        ..dra::Options::new(Arc::new(api), node_name)
    }
}

/// The FlexVolume drivers of the machine, whose directory is made for those who install them.
fn flex_drivers(options: &NodeOptions) -> FlexDrivers {
    let drivers = FlexDrivers::new(options.volume_plugin_dir.clone());
    if options.mounts
        && let Err(error) = drivers.make_dir()
    {
        tracing::warn!(%error, "FlexVolume drivers have no directory");
    }
    drivers
}

/// Makes a directory and returns its path.
fn made_dir(path: &Path) -> Result<PathBuf, Error> {
    let made = std::fs::create_dir_all(path).map(|()| path.to_owned());
    made.map_err(|source| Error::Directory {
        path: path.to_owned(),
        source,
    })
}

/// Makes a directory and returns its path without links.
fn real_dir(path: &Path) -> Result<PathBuf, Error> {
    let real = made_dir(path)?.canonicalize();
    real.map_err(|source| Error::Directory {
        path: path.to_owned(),
        source,
    })
}

/// The path of a directory without links above it, which is made.
fn real_parent(path: &Path) -> Result<PathBuf, Error> {
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) if above != Path::new("") => Ok(real_dir(above)?.join(name)),
        _ => real_dir(path),
    }
}

/// Waits for the runtime; an external one may be starting at the same time.
async fn runtime_version(
    runtime: &dyn Runtime,
) -> Result<davit_proto::cri::v1::VersionResponse, Error> {
    let deadline = tokio::time::Instant::now() + RUNTIME_START;
    loop {
        match runtime.version().await {
            Ok(version) => return Ok(version),
            Err(error) if tokio::time::Instant::now() >= deadline => {
                return Err(Error::Runtime(error));
            }
            Err(error) => {
                tracing::info!(%error, "waiting for the container runtime");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

fn with_runtime(
    mut machine: MachineFacts,
    version: &davit_proto::cri::v1::VersionResponse,
) -> MachineFacts {
    machine.info.container_runtime_version =
        format!("{}://{}", version.runtime_name, version.runtime_version);
    machine
}

async fn found_containers(
    runtime: &dyn Runtime,
) -> Result<Vec<FoundContainer>, davit_oci::runtime::Error> {
    let list = runtime.list_containers(None).await?;
    let found = list.into_iter().filter_map(|c| {
        Some(FoundContainer {
            pod_uid: c.labels.get(keys::POD_UID)?.clone(),
            container: c.labels.get(keys::CONTAINER_NAME)?.clone(),
            running: State::from_cri(c.state) == State::Running,
        })
    });
    Ok(found.collect())
}

/// Where running containers may run.
async fn pinned_containers(
    runtime: &dyn Runtime,
) -> Result<Vec<PinnedContainer>, davit_oci::runtime::Error> {
    let mut found = Vec::new();
    for container in runtime.list_containers(None).await? {
        if State::from_cri(container.state) != State::Running {
            continue;
        }
        let status = match runtime.container_status(&container.id).await {
            Ok(status) => status,
            // It has ended meanwhile.
            Err(davit_oci::runtime::Error::NotFound(_)) => continue,
            Err(e) => return Err(e),
        };
        let label = |key: &str| container.labels.get(key).cloned().unwrap_or_default();
        if let Some(limits) = status.resources.and_then(|r| r.linux) {
            found.push(PinnedContainer {
                pod_uid: label(keys::POD_UID),
                namespace: label(keys::POD_NAMESPACE),
                pod: label(keys::POD_NAME),
                container: label(keys::CONTAINER_NAME),
                cpuset: limits.cpuset_cpus,
                cpu_shares: limits.cpu_shares,
                cpu_quota: limits.cpu_quota,
            });
        }
    }
    Ok(found)
}

/// Pods bound to this node.
fn pod_informer(
    ctx: &Context,
    tasks: &mut JoinSet<()>,
    cancel: &CancellationToken,
) -> Informer<Pod> {
    let config =
        watcher::Config::default().fields(&format!("spec.nodeName={}", ctx.options.node_name));
    let pods = Api::all(ctx.client.clone());
    Informer::spawn_trimmed(pods, config, from_api, tasks, cancel.clone())
}

/// What comes from the API server is no static pod, whatever it calls itself: whoever makes pods writes their annotations.
fn from_api(pod: &mut Pod) {
    if pod.is_mirror() {
        return;
    }
    let annotations = pod.metadata.annotations.as_mut();
    if let Some(source) = annotations.and_then(|all| all.get_mut(CONFIG_SOURCE)) {
        "api".clone_into(source);
    }
}

#[cfg(test)]
mod tests;
