//! A scriptable device plugin and a node's container manager in a temporary folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use davit_containermanager::{ActivePods, Config, ContainerManager, FoundContainer, Rejection};
use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use davit_proto::deviceplugin::v1beta1::registration_client::RegistrationClient;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::{Registration, RegistrationServer};
use davit_proto::unix::{self, Listener};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// The resource most tests use.
pub(crate) const R: &str = "example.com/foo";

pub(crate) fn device(id: &str, health: &str) -> pb::Device {
    pb::Device {
        id: id.into(),
        health: health.into(),
        topology: None,
    }
}

pub(crate) fn devices(count: usize) -> Vec<pb::Device> {
    (0..count)
        .map(|n| device(&format!("d{n}"), "Healthy"))
        .collect()
}

pub(crate) fn nodes(ids: &[i64]) -> pb::TopologyInfo {
    pb::TopologyInfo {
        nodes: ids.iter().map(|&id| pb::NumaNode { id }).collect(),
    }
}

/// Waits until `done`, five seconds at most.
pub(crate) async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[derive(Default)]
struct Script {
    devices: Vec<pb::Device>,
    preferred: Option<Vec<String>>,
    preference_fails: bool,
    options_fail: bool,
    pre_start: bool,
    list_fails: bool,
    silent: bool,
    hang: bool,
    fail: Option<String>,
    empty: bool,
    calls: BTreeMap<&'static str, usize>,
    allocations: Vec<Vec<String>>,
    asked: Vec<pb::ContainerPreferredAllocationRequest>,
    notified: Vec<(bool, String)>,
    notify_failures: usize,
    info: reg::PluginInfo,
    info_hangs: bool,
}

/// A device plugin that does what the test says. Clones share the script.
#[derive(Clone)]
pub(crate) struct Plugin {
    socket: String,
    script: Arc<Mutex<Script>>,
    lists: broadcast::Sender<Vec<pb::Device>>,
    stopped: CancellationToken,
}

impl Plugin {
    pub(crate) fn new(socket: &str) -> Self {
        Self {
            socket: socket.into(),
            script: Arc::default(),
            lists: broadcast::Sender::new(64),
            stopped: CancellationToken::new(),
        }
    }

    fn edit(self, f: impl FnOnce(&mut Script)) -> Self {
        f(&mut self.script.lock());
        self
    }

    pub(crate) fn with(self, devices: Vec<pb::Device>) -> Self {
        self.edit(|s| s.devices = devices)
    }

    pub(crate) fn preferring(self, ids: &[&str]) -> Self {
        self.edit(|s| s.preferred = Some(ids.iter().map(|&i| i.to_owned()).collect()))
    }

    pub(crate) fn failing_preference(self) -> Self {
        self.preferring(&[]).edit(|s| s.preference_fails = true)
    }

    pub(crate) fn failing_options(self) -> Self {
        self.edit(|s| s.options_fail = true)
    }

    /// ListAndWatch fails at once.
    pub(crate) fn failing_list(self) -> Self {
        self.edit(|s| s.list_fails = true)
    }

    /// ListAndWatch says nothing until there is a new list.
    pub(crate) fn silent(self) -> Self {
        self.edit(|s| s.silent = true)
    }

    pub(crate) fn wanting_pre_start(self) -> Self {
        self.edit(|s| s.pre_start = true)
    }

    /// So many calls of NotifyRegistrationStatus fail.
    pub(crate) fn failing_notify(self, times: usize) -> Self {
        self.edit(|s| s.notify_failures = times)
    }

    /// GetInfo is never answered.
    pub(crate) fn hanging_info(self) -> Self {
        self.edit(|s| s.info_hangs = true)
    }

    pub(crate) fn hanging(&self) {
        self.script.lock().hang = true;
    }

    pub(crate) fn failing(&self, text: &str) {
        self.script.lock().fail = Some(text.into());
    }

    pub(crate) fn empty_answers(&self) {
        self.script.lock().empty = true;
    }

    pub(crate) fn working(&self) {
        let mut script = self.script.lock();
        (script.hang, script.fail, script.empty) = (false, None, false);
    }

    /// Sends a new list to every open stream.
    pub(crate) fn list(&self, devices: Vec<pb::Device>) {
        self.script.lock().devices = devices.clone();
        let _ = self.lists.send(devices);
    }

    /// Like `list`, as fast as the streams take it.
    pub(crate) async fn list_when_room(&self, devices: Vec<pb::Device>) {
        while self.lists.len() > 48 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.list(devices);
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.script
            .lock()
            .calls
            .get(call)
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn allocations(&self) -> Vec<Vec<String>> {
        self.script.lock().allocations.clone()
    }

    pub(crate) fn asked(&self) -> Vec<pb::ContainerPreferredAllocationRequest> {
        self.script.lock().asked.clone()
    }

    pub(crate) fn notified(&self) -> Vec<(bool, String)> {
        self.script.lock().notified.clone()
    }

    async fn called(&self, call: &'static str) -> Result<(), Status> {
        let (hang, fail) = {
            let mut script = self.script.lock();
            *script.calls.entry(call).or_default() += 1;
            (script.hang, script.fail.clone())
        };
        if hang {
            std::future::pending::<()>().await;
        }
        fail.map_or(Ok(()), |text| Err(Status::failed_precondition(text)))
    }

    fn counted(&self, call: &'static str) {
        *self.script.lock().calls.entry(call).or_default() += 1;
    }

    /// Listens in the device plugin folder of the agent below `root`.
    pub(crate) async fn serve(&self, root: &Path) -> Serving {
        self.serve_at(
            root.to_owned(),
            root.join("device-plugins").join(&self.socket),
        )
        .await
    }

    /// Listens in a plugin registry folder, with both services on one socket.
    pub(crate) async fn serve_registry(
        &self,
        dir: &Path,
        kind: &str,
        name: &str,
        versions: &[&str],
    ) -> Serving {
        self.script.lock().info = reg::PluginInfo {
            r#type: kind.into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: versions.iter().map(|&v| v.into()).collect(),
        };
        self.serve_at(dir.to_owned(), dir.join(&self.socket)).await
    }

    async fn serve_at(&self, root: PathBuf, path: PathBuf) -> Serving {
        let mut plugin = self.clone();
        plugin.stopped = CancellationToken::new();
        let listener = Listener::bind(path).unwrap();
        let router = unix::server()
            .add_service(
                DevicePluginServer::new(plugin.clone())
                    .max_encoding_message_size(unix::MAX_MESSAGE),
            )
            .add_service(RegistrationServer::new(plugin.clone()));
        let stop = plugin.stopped.clone();
        let task = tokio::spawn(async move {
            unix::serve(listener, router, stop.cancelled())
                .await
                .unwrap();
        });
        Serving {
            root,
            socket: self.socket.clone(),
            stop: plugin.stopped,
            task: Some(task),
        }
    }
}

/// A plugin that listens; stops when dropped.
pub(crate) struct Serving {
    root: PathBuf,
    socket: String,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Serving {
    pub(crate) async fn register(&self, resource: &str) -> Result<(), Status> {
        let request = pb::RegisterRequest {
            version: pb::VERSION.into(),
            endpoint: self.socket.clone(),
            resource_name: resource.into(),
            // Ignored: what GetDevicePluginOptions says counts.
            options: Some(pb::DevicePluginOptions {
                pre_start_required: true,
                get_preferred_allocation_available: true,
            }),
        };
        register(&self.root, request).await
    }

    pub(crate) async fn registered(self, resource: &str) -> Self {
        self.register(resource).await.unwrap();
        self
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            task.await.unwrap();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) async fn register(root: &Path, request: pb::RegisterRequest) -> Result<(), Status> {
    let channel = unix::connect(
        root.join("device-plugins/kubelet.sock"),
        Duration::from_secs(5),
    )
    .await
    .unwrap();
    RegistrationClient::new(channel)
        .register(request)
        .await
        .map(|_| ())
}

type Lists = Pin<Box<dyn futures::Stream<Item = Result<pb::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<pb::Empty>,
    ) -> Result<Response<pb::DevicePluginOptions>, Status> {
        self.counted("options");
        let script = self.script.lock();
        if script.options_fail {
            return Err(Status::internal("no options"));
        }
        Ok(Response::new(pb::DevicePluginOptions {
            pre_start_required: script.pre_start,
            get_preferred_allocation_available: script.preferred.is_some(),
        }))
    }

    type ListAndWatchStream = Lists;

    async fn list_and_watch(&self, _: Request<pb::Empty>) -> Result<Response<Lists>, Status> {
        self.counted("list");
        let (updates, first) = {
            let script = self.script.lock();
            if script.list_fails {
                return Err(Status::internal("no list"));
            }
            let first = (!script.silent).then(|| script.devices.clone());
            (self.lists.subscribe(), first)
        };
        let stopped = self.stopped.clone();
        let stream = futures::stream::unfold(
            (first, updates, stopped),
            |(first, mut updates, stopped)| async {
                let devices = match first {
                    Some(first) => first,
                    None => tokio::select! {
                        () = stopped.cancelled() => return None,
                        next = updates.recv() => next.ok()?,
                    },
                };
                Some((
                    Ok(pb::ListAndWatchResponse { devices }),
                    (None, updates, stopped),
                ))
            },
        );
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<pb::PreferredAllocationRequest>,
    ) -> Result<Response<pb::PreferredAllocationResponse>, Status> {
        let mut script = self.script.lock();
        script.asked.extend(request.into_inner().container_requests);
        if script.preference_fails {
            return Err(Status::unknown("no taste"));
        }
        let preferred = pb::ContainerPreferredAllocationResponse {
            device_i_ds: script.preferred.clone().unwrap_or_default(),
        };
        Ok(Response::new(pb::PreferredAllocationResponse {
            container_responses: vec![preferred],
        }))
    }

    async fn allocate(
        &self,
        request: Request<pb::AllocateRequest>,
    ) -> Result<Response<pb::AllocateResponse>, Status> {
        self.called("allocate").await?;
        let mut script = self.script.lock();
        if script.empty {
            return Ok(Response::new(pb::AllocateResponse::default()));
        }
        let request = request.into_inner();
        assert_eq!(request.container_requests.len(), 1);
        let ids = request.container_requests[0].devices_ids.clone();
        script.allocations.push(ids.clone());
        let answer = pb::ContainerAllocateResponse {
            envs: [("DEVICES".to_owned(), ids.join(","))].into(),
            mounts: Vec::new(),
            devices: ids
                .iter()
                .map(|id| pb::DeviceSpec {
                    container_path: format!("/dev/{}-{id}", self.socket),
                    host_path: "/dev/null".into(),
                    permissions: "rw".into(),
                })
                .collect(),
            annotations: [("plugin".to_owned(), "yes".to_owned())].into(),
            cdi_devices: ids
                .iter()
                .map(|id| pb::CdiDevice {
                    name: format!("vendor.com/class={id}"),
                })
                .collect(),
        };
        Ok(Response::new(pb::AllocateResponse {
            container_responses: vec![answer],
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<pb::PreStartContainerRequest>,
    ) -> Result<Response<pb::PreStartContainerResponse>, Status> {
        self.called("prestart").await?;
        Ok(Response::new(pb::PreStartContainerResponse {}))
    }
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(
        &self,
        _: Request<reg::InfoRequest>,
    ) -> Result<Response<reg::PluginInfo>, Status> {
        self.counted("info");
        let (info, hangs) = {
            let script = self.script.lock();
            (script.info.clone(), script.info_hangs)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(info))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let mut script = self.script.lock();
        script
            .notified
            .push((status.plugin_registered, status.error));
        if script.notify_failures > 0 {
            script.notify_failures -= 1;
            return Err(Status::internal("not listening"));
        }
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

/// The pods of the node: those that were admitted and not finished, and those that were.
#[derive(Default)]
pub(crate) struct Pods(Mutex<BTreeMap<String, Arc<Pod>>>, Mutex<Vec<Arc<Pod>>>);

impl ActivePods for Pods {
    fn ending_pods(&self) -> std::collections::BTreeSet<String> {
        let deleting = |p: &&Arc<Pod>| p.metadata.deletion_timestamp.is_some();
        self.active_pods()
            .iter()
            .filter(deleting)
            .filter_map(|p| p.metadata.uid.clone())
            .collect()
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().values().cloned().collect()
    }

    fn all_pods(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.active_pods();
        pods.extend(self.1.lock().iter().cloned());
        pods
    }
}

/// A node's container manager.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    manager: ContainerManager,
    pods: Arc<Pods>,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(edit: impl FnOnce(&mut Config)) -> Self {
        Self::run(tempfile::tempdir().unwrap(), Arc::default(), edit).await
    }

    pub(crate) async fn start_in(dir: tempfile::TempDir) -> Self {
        Self::run(dir, Arc::default(), |_| {}).await
    }

    async fn run(dir: tempfile::TempDir, pods: Arc<Pods>, edit: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(dir.path());
        config.dial_timeout = Duration::from_millis(500);
        edit(&mut config);
        let manager = ContainerManager::start(config, pods.clone()).await.unwrap();
        Self { dir, manager, pods }
    }

    /// Ends the manager and starts it anew over the same folder and pods.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    pub(crate) async fn restart_with(self, edit: impl FnOnce(&mut Config)) -> Self {
        let Self { dir, manager, pods } = self;
        manager.shutdown().await;
        drop(manager);
        Self::run(dir, pods, edit).await
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Ends the manager; its folder stays.
    pub(crate) async fn into_dir(self) -> tempfile::TempDir {
        let Self { dir, manager, .. } = self;
        manager.shutdown().await;
        dir
    }

    pub(crate) fn manager(&self) -> &ContainerManager {
        &self.manager
    }

    pub(crate) fn adopt(&self, pod_uid: &str, container: &str, running: bool) {
        self.manager.adopt([FoundContainer {
            pod_uid: pod_uid.into(),
            container: container.into(),
            running,
        }]);
    }

    pub(crate) async fn counts(&self, resource: &str, capacity: u64, allocatable: u64) {
        let now = || {
            self.manager
                .node_resources()
                .get(resource)
                .map(|c| (c.capacity, c.allocatable))
        };
        for _ in 0..500 {
            if now() == Some((capacity, allocatable)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "{resource}: {:?} instead of {capacity}/{allocatable}",
            now()
        );
    }

    pub(crate) async fn admit(&self, pod: &Pod) -> Result<(), Rejection> {
        self.admit_saying(pod, Arc::default()).await
    }

    pub(crate) async fn admit_saying(
        &self,
        pod: &Pod,
        said: Arc<Mutex<Vec<String>>>,
    ) -> Result<(), Rejection> {
        let uid = pod.metadata.uid.clone().unwrap();
        self.pods.0.lock().insert(uid, Arc::new(pod.clone()));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        let say = |text: &str| said.lock().push(text.to_owned());
        self.manager.admit(pod, deadline, &say).await
    }

    /// The pod has ended; its devices are freed now or left to be found.
    pub(crate) async fn finish(&self, pod: &Pod, release: bool) {
        let uid = pod.metadata.uid.clone().unwrap();
        let ended = self.pods.0.lock().remove(&uid);
        self.pods.1.lock().extend(ended);
        self.manager.sources_ready();
        if release {
            self.manager.release(&uid).await;
        }
    }

    pub(crate) fn clear_pods(&self) {
        self.pods.0.lock().clear();
    }
}

fn container(name: &str, limits: &[(&str, u64)]) -> Container {
    let limits: BTreeMap<String, Quantity> = limits
        .iter()
        .map(|(r, n)| ((*r).to_owned(), Quantity(n.to_string())))
        .collect();
    Container {
        name: name.into(),
        resources: Some(ResourceRequirements {
            limits: Some(limits),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A pod with one container `main`.
pub(crate) fn pod(name: &str, limits: &[(&str, u64)]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("default".into());
    pod.spec = Some(PodSpec {
        containers: vec![container("main", limits)],
        ..Default::default()
    });
    pod
}

/// A pod whose containers want one device each; init containers with whether they are sidecars.
pub(crate) fn init_pod(name: &str, inits: &[(&str, bool)], apps: &[&str]) -> Pod {
    let mut pod = pod(name, &[]);
    let spec = pod.spec.as_mut().unwrap();
    let init = |(name, sidecar): &(&str, bool)| Container {
        restart_policy: sidecar.then(|| "Always".to_owned()),
        ..container(name, &[(R, 1)])
    };
    spec.init_containers = Some(inits.iter().map(init).collect());
    spec.containers = apps.iter().map(|name| container(name, &[(R, 1)])).collect();
    pod
}

/// Marks an init container as ended well.
pub(crate) fn finish_init(pod: &mut Pod, name: &str) {
    let state = ContainerState {
        terminated: Some(ContainerStateTerminated::default()),
        ..Default::default()
    };
    pod.status = Some(PodStatus {
        init_container_statuses: Some(vec![ContainerStatus {
            name: name.into(),
            state: Some(state),
            ..Default::default()
        }]),
        ..Default::default()
    });
}
