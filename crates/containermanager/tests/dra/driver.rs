//! A scriptable DRA driver, an API server with claims only, and a container manager in a temporary folder.

use davit_containermanager::compute::Settings;
use davit_containermanager::dra::{ClaimApi, ClassicClaim, Options};
use davit_containermanager::{ActivePods, Config, ContainerManager};
use davit_proto::dra::v1 as pb;
use davit_proto::dra::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use davit_proto::dra::v1beta1 as beta;
use davit_proto::dra::v1beta1::dra_plugin_server::{
    DraPlugin as BetaPlugin, DraPluginServer as BetaServer,
};
use davit_proto::draclassic::v1alpha1 as classic;
use davit_proto::draclassic::v1alpha1::node_server::{Node as ClassicNode, NodeServer};
use davit_proto::drahealth::v1 as health;
use davit_proto::drahealth::v1::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::{Registration, RegistrationServer};
use davit_proto::unix::{self, Listener};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

pub(crate) const NODE: &str = "n1";
/// How long a partial preparation is kept.
pub(crate) const KEEP: Duration = Duration::from_millis(400);

/// Waits until `done`, ten seconds at most.
pub(crate) async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

/// The API server: claims, and what was deleted.
#[derive(Default)]
pub(crate) struct Api {
    pub(crate) claims: Mutex<BTreeMap<String, ResourceClaim>>,
    pub(crate) classic: Mutex<BTreeMap<String, ClassicClaim>>,
    pub(crate) wiped: Mutex<Vec<Option<String>>>,
    pub(crate) down: Mutex<bool>,
    pub(crate) slices: Mutex<Vec<ResourceSlice>>,
}

#[tonic::async_trait]
impl ClaimApi for Api {
    async fn claim(&self, _: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        if *self.down.lock() {
            return Err("the API server is down".to_owned());
        }
        Ok(self.claims.lock().get(name).cloned())
    }

    async fn classic_claim(&self, _: &str, name: &str) -> Result<Option<ClassicClaim>, String> {
        Ok(self.classic.lock().get(name).cloned())
    }

    async fn slices(&self) -> Result<Vec<ResourceSlice>, String> {
        Ok(self.slices.lock().clone())
    }

    async fn delete_slices(
        &self,
        driver: Option<&str>,
        _: Option<Timestamp>,
    ) -> Result<(), String> {
        self.wiped.lock().push(driver.map(str::to_owned));
        Ok(())
    }
}

/// An allocated claim, reserved for pods; each result is `request driver device`.
pub(crate) fn claim(name: &str, pods: &[&str], results: &[&str]) -> ResourceClaim {
    let results: Vec<Value> = results
        .iter()
        .map(|r| {
            let part: Vec<&str> = r.split(' ').collect();
            json!({"request": part[0], "driver": part[1], "pool": NODE, "device": part[2]})
        })
        .collect();
    let reserved: Vec<Value> = pods
        .iter()
        .map(|p| json!({"resource": "pods", "name": p, "uid": format!("uid-{p}")}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {},
        "status": {"reservedFor": reserved, "allocation": {"devices": {"results": results}}},
    }))
    .unwrap()
}

/// A pod whose container `main` uses these claims.
pub(crate) fn pod(name: &str, claims: &[&str]) -> Pod {
    let entries: Vec<Value> = claims
        .iter()
        .map(|c| json!({"name": c, "resourceClaimName": c}))
        .collect();
    let used: Vec<Value> = claims.iter().map(|c| json!({"name": c})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"resourceClaims": entries, "containers": [
            {"name": "main", "resources": {"claims": used}}]},
    }))
    .unwrap()
}

/// A slice of this node with devices on NUMA nodes.
pub(crate) fn slice(driver: &str, devices: &[(&str, u32)]) -> ResourceSlice {
    let devices: Vec<Value> = devices
        .iter()
        .map(|(name, numa)| json!({"name": name, "attributes": {"resource.kubernetes.io/numaNode": {"int": numa}}}))
        .collect();
    serde_json::from_value(
        json!({"metadata": {"name": driver}, "spec": {"driver": driver, "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}, "devices": devices}}),
    )
    .unwrap()
}

/// The pods of the node, by UID.
#[derive(Default)]
pub(crate) struct Pods(Mutex<BTreeMap<String, Arc<Pod>>>);

impl Pods {
    pub(crate) fn set(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap();
        self.0.lock().insert(uid, Arc::new(pod.clone()));
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

impl ActivePods for Pods {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().values().cloned().collect()
    }

    fn ending_pods(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn all_pods(&self) -> Vec<Arc<Pod>> {
        self.active_pods()
    }
}

/// A container manager that can be started again on its folder.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) api: Arc<Api>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) manager: Option<ContainerManager>,
    settings: Settings,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    /// A node that manages CPUs and memory.
    pub(crate) async fn start_with(settings: Settings) -> Self {
        let mut node = Self {
            dir: tempfile::Builder::new()
                .prefix("d")
                .tempdir_in("/tmp")
                .unwrap(),
            api: Arc::default(),
            pods: Arc::default(),
            manager: None,
            settings,
        };
        node.again().await;
        node
    }

    /// Starts the manager, after stopping the one there was.
    pub(crate) async fn again(&mut self) {
        if let Some(old) = self.manager.take() {
            old.shutdown().await;
        }
        let config = Config {
            dra: Some(Options {
                call_timeout: Duration::from_secs(2),
                wipe_after: Duration::from_millis(300),
                patience: Duration::from_millis(500),
                reconcile: Duration::from_millis(100),
                keep_partial: KEEP,
                places_wait: Duration::from_secs(3),
                ..Options::new(self.api.clone(), NODE)
            }),
            resources: self.settings.clone(),
            ..Config::new(self.dir.path())
        };
        let manager = ContainerManager::start(config, self.pods.clone())
            .await
            .unwrap();
        manager.sources_ready();
        self.manager = Some(manager);
    }

    pub(crate) fn manager(&self) -> &ContainerManager {
        self.manager.as_ref().unwrap()
    }

    pub(crate) fn add(&self, claim: ResourceClaim) {
        let name = claim.metadata.name.clone().unwrap();
        self.api.claims.lock().insert(name, claim);
    }

    /// What the pod worker does before a container starts.
    pub(crate) async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        self.pods.set(pod);
        let prepared = self.manager().prepare_claims(pod).await;
        prepared.map_err(|e| e.to_string())
    }

    pub(crate) async fn cdi(&self, pod: &Pod) -> Vec<String> {
        self.cdi_of(pod, "main").await
    }

    pub(crate) async fn cdi_of(&self, pod: &Pod, container: &str) -> Vec<String> {
        let options = self.manager().container_options(pod, container).await;
        let options = options.unwrap();
        options.cdi_devices.into_iter().map(|d| d.name).collect()
    }
}

#[derive(Default)]
struct Script {
    calls: Vec<String>,
    fail: BTreeSet<String>,
    hang: bool,
    notified: Vec<(bool, String)>,
    /// Where the driver says that it serves; where it registers if empty.
    endpoint: String,
}

/// A driver that does what the test says. Clones share the script.
#[derive(Clone)]
pub(crate) struct Driver {
    name: String,
    versions: Vec<String>,
    script: Arc<Mutex<Script>>,
    health: broadcast::Sender<health::DeviceHealth>,
}

pub(crate) struct Serving {
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Serving {
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Driver {
    pub(crate) fn new(name: &str, versions: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            versions: versions.iter().map(|v| (*v).to_owned()).collect(),
            script: Arc::default(),
            health: broadcast::Sender::new(16),
        }
    }

    /// Serves everything on one socket of the registry, and waits until the node has taken it.
    pub(crate) async fn serve(&self, node: &Node, socket: &str) -> Serving {
        let before = self.notified().len();
        let serving = self.begin(&node.dir.path().join("plugins_registry"), socket);
        until("notified", || self.notified().len() > before).await;
        serving
    }

    pub(crate) fn begin(&self, registry: &Path, socket: &str) -> Serving {
        let path: PathBuf = registry.join(socket);
        let listener = Listener::bind(path).unwrap();
        let router = unix::server()
            .add_service(RegistrationServer::new(self.clone()))
            .add_service(DraPluginServer::new(self.clone()))
            .add_service(BetaServer::new(self.clone()))
            .add_service(DraResourceHealthServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()));
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let task = tokio::spawn(async move {
            unix::serve(listener, router, ended.cancelled())
                .await
                .unwrap();
        });
        Serving {
            stop,
            task: Some(task),
        }
    }

    /// Has the driver say that it serves on another socket than the one where it registers.
    pub(crate) fn elsewhere(&self, socket: &Path) {
        self.script.lock().endpoint = socket.display().to_string();
    }

    pub(crate) fn fail(&self, claim: &str) {
        self.script.lock().fail.insert(claim.to_owned());
    }

    pub(crate) fn hang(&self, hang: bool) {
        self.script.lock().hang = hang;
    }

    pub(crate) fn work(&self) {
        self.script.lock().fail.clear();
    }

    pub(crate) fn notified(&self) -> Vec<(bool, String)> {
        self.script.lock().notified.clone()
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.script.lock().calls)
    }

    pub(crate) fn report(&self, device: &str, status: health::HealthStatus, text: &str) {
        let _ = self.health.send(health::DeviceHealth {
            device: Some(health::DeviceIdentifier {
                pool_name: NODE.to_owned(),
                device_name: device.to_owned(),
            }),
            health: status.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: 0,
            message: text.to_owned(),
        });
    }

    pub(crate) fn watched(&self) -> bool {
        self.health.receiver_count() > 0
    }

    async fn answer(&self, method: &str, names: &[&str]) -> Result<BTreeSet<String>, Status> {
        let (hang, fail) = {
            let mut script = self.script.lock();
            script.calls.push(format!("{method} {}", names.join(",")));
            (script.hang, script.fail.clone())
        };
        if hang {
            std::future::pending::<()>().await;
        }
        Ok(fail)
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(
        &self,
        _: Request<reg::InfoRequest>,
    ) -> Result<Response<reg::PluginInfo>, Status> {
        Ok(Response::new(reg::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.script.lock().endpoint.clone(),
            supported_versions: self.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let told = (status.plugin_registered, status.error);
        self.script.lock().notified.push(told);
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<pb::NodePrepareResourcesRequest>,
    ) -> Result<Response<pb::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let names: Vec<&str> = claims.iter().map(|c| c.name.as_str()).collect();
        let fail = self.answer("prepare", &names).await?;
        let one = |claim: &pb::Claim| {
            let device = format!("{}-dev", claim.name);
            let answer = pb::NodePrepareResourceResponse {
                devices: vec![pb::Device {
                    request_names: vec![],
                    pool_name: NODE.to_owned(),
                    cdi_device_ids: vec![format!("{}/c={device}", self.name)],
                    device_name: device,
                    share_id: None,
                }],
                error: String::new(),
            };
            let failed = pb::NodePrepareResourceResponse {
                devices: vec![],
                error: "told to fail".to_owned(),
            };
            let fails = fail.contains(&claim.name);
            (claim.uid.clone(), if fails { failed } else { answer })
        };
        Ok(Response::new(pb::NodePrepareResourcesResponse {
            claims: claims.iter().map(one).collect(),
        }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<pb::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<pb::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let names: Vec<&str> = claims.iter().map(|c| c.name.as_str()).collect();
        let fail = self.answer("unprepare", &names).await?;
        let one = |claim: &pb::Claim| {
            let fails = fail.contains(&claim.name);
            let error = if fails { "told to fail" } else { "" }.to_owned();
            (
                claim.uid.clone(),
                pb::NodeUnprepareResourceResponse { error },
            )
        };
        Ok(Response::new(pb::NodeUnprepareResourcesResponse {
            claims: claims.iter().map(one).collect(),
        }))
    }
}

#[tonic::async_trait]
impl ClassicNode for Driver {
    async fn node_prepare_resource(
        &self,
        request: Request<classic::NodePrepareResourceRequest>,
    ) -> Result<Response<classic::NodePrepareResourceResponse>, Status> {
        let request = request.into_inner();
        let said = format!("{} {}", request.claim_name, request.resource_handle);
        self.answer("classic-prepare", &[&said]).await?;
        Ok(Response::new(classic::NodePrepareResourceResponse {
            cdi_devices: vec![format!("{}/test=claim-{}", self.name, request.claim_uid)],
        }))
    }

    async fn node_unprepare_resource(
        &self,
        request: Request<classic::NodeUnprepareResourceRequest>,
    ) -> Result<Response<classic::NodeUnprepareResourceResponse>, Status> {
        let request = request.into_inner();
        let said = format!("{} {}", request.claim_name, request.cdi_devices.join(","));
        self.answer("classic-unprepare", &[&said]).await?;
        Ok(Response::new(classic::NodeUnprepareResourceResponse {}))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Driver {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<health::NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut reports = self.health.subscribe();
        let (send, receive) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok(device) = reports.recv().await {
                let message = health::NodeWatchResourcesResponse {
                    devices: vec![device],
                };
                if send.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }
}

/// The same claims in the words of the other version.
fn claims(claims: Vec<beta::Claim>) -> Vec<pb::Claim> {
    let newer = |c: beta::Claim| pb::Claim {
        namespace: c.namespace,
        uid: c.uid,
        name: c.name,
    };
    claims.into_iter().map(newer).collect()
}

#[tonic::async_trait]
impl BetaPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<beta::NodePrepareResourcesRequest>,
    ) -> Result<Response<beta::NodePrepareResourcesResponse>, Status> {
        let request = pb::NodePrepareResourcesRequest {
            claims: claims(request.into_inner().claims),
        };
        let answer = DraPlugin::node_prepare_resources(self, Request::new(request)).await?;
        let device = |d: pb::Device| beta::Device {
            request_names: d.request_names,
            pool_name: d.pool_name,
            device_name: d.device_name,
            cdi_device_ids: d.cdi_device_ids,
        };
        let one = |(uid, answer): (String, pb::NodePrepareResourceResponse)| {
            let answer = beta::NodePrepareResourceResponse {
                devices: answer.devices.into_iter().map(device).collect(),
                error: answer.error,
            };
            (uid, answer)
        };
        Ok(Response::new(beta::NodePrepareResourcesResponse {
            claims: answer.into_inner().claims.into_iter().map(one).collect(),
        }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<beta::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<beta::NodeUnprepareResourcesResponse>, Status> {
        let request = pb::NodeUnprepareResourcesRequest {
            claims: claims(request.into_inner().claims),
        };
        let answer = DraPlugin::node_unprepare_resources(self, Request::new(request)).await?;
        let one = |(uid, answer): (String, pb::NodeUnprepareResourceResponse)| {
            let error = answer.error;
            (uid, beta::NodeUnprepareResourceResponse { error })
        };
        Ok(Response::new(beta::NodeUnprepareResourcesResponse {
            claims: answer.into_inner().claims.into_iter().map(one).collect(),
        }))
    }
}
