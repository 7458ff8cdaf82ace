//! A hollow node: it does what a kubelet says to the API server, and runs nothing.

use std::sync::Arc;
use std::time::Duration;

use davit_client::Informer;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::watcher::Config;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::caller::{JsonClient, is_code};
use crate::cluster::SimulatedCluster;
use crate::machine::{DEVICES, HollowMachine, HollowPod, Stage};
use crate::world;

/// The extended resource of every node.
pub const RESOURCE: &str = "example.com/device";
/// The driver of every node's claims.
pub const DRIVER: &str = "driver.example.com";
/// How long a pod runs before it ends by itself, in seconds.
pub const RUNS: &str = "simulation/runs";
/// How many of a thousand such pods fail.
pub const FAILS: &str = "simulation/fails";
/// CPUs of a node.
pub const CPUS: u32 = 8;
/// Pods of a node.
pub const PODS: u32 = 20;

const HEARTBEAT: Duration = Duration::from_secs(10);
const STATUS: Duration = Duration::from_secs(300);

/// A node.
pub struct HollowNode {
    name: String,
    cluster: Arc<SimulatedCluster>,
    machine: Arc<Mutex<HollowMachine>>,
    rng: Arc<Mutex<StdRng>>,
    process: Mutex<Option<(JoinHandle<()>, CancellationToken)>>,
}

impl std::fmt::Debug for HollowNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.name)
    }
}

/// What one kubelet knows; the next one begins anew.
struct HollowKubelet {
    name: String,
    caller: JsonClient,
    cluster: Arc<SimulatedCluster>,
    machine: Arc<Mutex<HollowMachine>>,
    rng: Arc<Mutex<StdRng>>,
    pods: Informer<Pod>,
    /// What was told of which pod.
    told: std::collections::BTreeMap<String, &'static str>,
    beat: Option<Duration>,
    status: Option<Duration>,
}

impl HollowNode {
    /// A node on which no kubelet runs yet.
    pub fn new(name: &str, cluster: &Arc<SimulatedCluster>, rng: StdRng) -> Self {
        Self {
            name: name.to_owned(),
            cluster: Arc::clone(cluster),
            machine: Arc::default(),
            rng: Arc::new(Mutex::new(rng)),
            process: Mutex::default(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many pods run there.
    pub fn running(&self) -> usize {
        self.machine.lock().running()
    }

    /// Whether a kubelet runs there.
    pub fn runs(&self) -> bool {
        self.process.lock().is_some()
    }

    /// Starts the kubelet.
    pub fn start(&self) {
        let cut = CancellationToken::new();
        let user = format!("system:node:{}", self.name);
        let client = self.cluster.network.client(&user, &["system:nodes"], &cut);
        let mut tasks = JoinSet::new();
        let here = Config::default().fields(&format!("spec.nodeName={}", self.name));
        let pods = Informer::spawn(Api::all(client.clone()), here, &mut tasks, cut.clone());
        let mut kubelet = HollowKubelet {
            name: self.name.clone(),
            caller: JsonClient::new(client),
            cluster: Arc::clone(&self.cluster),
            machine: Arc::clone(&self.machine),
            rng: Arc::clone(&self.rng),
            pods,
            told: std::collections::BTreeMap::new(),
            beat: None,
            status: None,
        };
        let task = tokio::spawn(async move {
            let _tasks = tasks;
            loop {
                kubelet.tick().await;
                let pause = kubelet.rng.lock().random_range(200..900);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        });
        *self.process.lock() = Some((task, cut));
    }

    /// Kills the kubelet; with `off` the machine ends, too.
    pub fn crash(&self, off: bool) {
        if let Some((task, cut)) = self.process.lock().take() {
            cut.cancel();
            task.abort();
        }
        if off {
            self.machine.lock().switch_off();
        }
    }
}

fn now() -> String {
    Timestamp::now().to_string()
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": now(), "lastHeartbeatTime": now(), "reason": "Simulated"})
}

impl HollowKubelet {
    async fn tick(&mut self) {
        if self
            .beat
            .is_none_or(|beat| world::elapsed() - beat >= HEARTBEAT)
        {
            self.heartbeat().await;
        }
        if !self.pods.is_synced() {
            return;
        }
        let pods = self.pods.list();
        self.stop_strangers(&pods);
        let rng = Arc::clone(&self.rng);
        let calm = *self.cluster.faults.lock().profile() == crate::faults::FaultProfile::NONE;
        self.machine.lock().advance(world::elapsed(), |sandbox| {
            let pod = pods.iter().find(|pod| {
                let meta = &pod.metadata;
                meta.name.as_ref() == Some(&sandbox.key.1)
                    && meta.namespace.as_ref() == Some(&sandbox.key.0)
            })?;
            let told = |key: &str| {
                let told = pod.metadata.annotations.as_ref()?.get(key)?;
                told.parse::<u64>().ok()
            };
            let fails = rng.lock().random_range(0..1000) < told(FAILS).unwrap_or(0);
            let end = world::elapsed() + Duration::from_secs(told(RUNS)?);
            Some((end, fails && !calm))
        });
        for pod in pods {
            self.attend(&pod).await;
        }
    }

    /// Pods that are no more are stopped.
    fn stop_strangers(&mut self, pods: &[Arc<Pod>]) {
        let known = |uid: &String| {
            pods.iter()
                .any(|pod| pod.metadata.uid.as_ref() == Some(uid))
        };
        let mut machine = self.machine.lock();
        machine.sandboxes.retain(|uid, _| known(uid));
        machine.lost.retain(known);
        self.told.retain(|uid, _| known(uid));
    }

    async fn attend(&mut self, pod: &Pod) {
        let meta = &pod.metadata;
        let (Some(uid), Some(name), Some(namespace)) = (&meta.uid, &meta.name, &meta.namespace)
        else {
            return;
        };
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let is_over = matches!(phase, Some("Succeeded" | "Failed"));
        let stage = self
            .machine
            .lock()
            .sandboxes
            .get(uid)
            .map(|sandbox| sandbox.stage);
        let told = self.told.get(uid).copied();
        if meta.deletion_timestamp.is_some() {
            self.delete(pod, uid, &path, stage, is_over).await;
            return;
        }
        match stage {
            None if is_over => {}
            None => self.admit(pod, uid).await,
            Some(Stage::Starting(_)) => {}
            Some(Stage::Running(_)) if told == Some("Running") => {}
            Some(Stage::Running(_)) => self.tell(uid, &path, "Running").await,
            Some(Stage::Ended(_)) if is_over || matches!(told, Some("Succeeded" | "Failed")) => {}
            Some(Stage::Ended(false)) => self.tell(uid, &path, "Succeeded").await,
            Some(Stage::Ended(true) | Stage::Stopped) => self.tell(uid, &path, "Failed").await,
        }
    }

    async fn delete(
        &mut self,
        pod: &Pod,
        uid: &str,
        path: &str,
        stage: Option<Stage>,
        is_over: bool,
    ) {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        if matches!(stage, Some(Stage::Starting(_) | Stage::Running(_))) {
            let grace = u64::try_from(grace).unwrap_or(0).min(30);
            let stop = world::elapsed()
                + Duration::from_millis(self.rng.lock().random_range(0..=grace * 1000));
            if let Some(sandbox) = self.machine.lock().sandboxes.get_mut(uid) {
                sandbox.stop_at.get_or_insert(stop);
            }
            return;
        }
        let told = self.told.get(uid).copied();
        if told == Some("Deleted") {
            return;
        }
        if !is_over && !matches!(told, Some("Succeeded" | "Failed")) {
            let phase = match stage {
                Some(Stage::Ended(false)) => "Succeeded",
                _ => "Failed",
            };
            self.tell(uid, path, phase).await;
            return;
        }
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
        match self.caller.delete(path, &options).await {
            Ok(_) => drop(self.told.insert(uid.to_owned(), "Deleted")),
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => {
                self.told.insert(uid.to_owned(), "Deleted");
            }
            Err(_) => {}
        }
    }

    async fn admit(&mut self, pod: &Pod, uid: &str) {
        let lost = self.machine.lock().lost.contains(uid);
        let spec = pod.spec.clone().unwrap_or_default();
        let Some(claimed) = self.claims(pod, uid).await else {
            return;
        };
        let plugged = spec.containers.iter().filter_map(|container| {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            limits.get(RESOURCE)?.0.parse::<usize>().ok()
        });
        let start = Duration::from_millis(self.rng.lock().random_range(100..4000));
        let never = spec.restart_policy.as_deref() == Some("Never");
        let sandbox = HollowPod {
            key: (
                pod.metadata.namespace.clone().unwrap_or_default(),
                pod.metadata.name.clone().unwrap_or_default(),
            ),
            stage: match lost && never {
                true => Stage::Ended(true),
                false => Stage::Starting(world::elapsed() + start),
            },
            plugged: plugged.sum(),
            claimed,
            stop_at: None,
        };
        let added = self.machine.lock().add(uid, sandbox);
        if let Err(violation) = added {
            let violation = format!("node {}: {violation}", self.name);
            self.cluster.note(format_args!("VIOLATION {violation}"));
            self.cluster.checks.lock().report(violation);
        }
    }

    /// The devices of the pod's claims, once they are reserved for it.
    async fn claims(&self, pod: &Pod, uid: &str) -> Option<Vec<(String, String)>> {
        let namespace = pod.metadata.namespace.as_deref()?;
        let mut devices = Vec::new();
        for claim in pod
            .spec
            .iter()
            .flat_map(|spec| spec.resource_claims.iter().flatten())
        {
            let statuses = pod
                .status
                .iter()
                .flat_map(|s| s.resource_claim_statuses.iter().flatten());
            let mut made = statuses.filter(|status| status.name == claim.name);
            let made = made
                .next()
                .and_then(|status| status.resource_claim_name.clone());
            let name = claim.resource_claim_name.clone().or(made)?;
            let path =
                format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
            let claim = self.caller.get(&path).await.ok()?;
            let reserved = claim["status"]["reservedFor"].as_array()?;
            if !reserved.iter().any(|consumer| consumer["uid"] == uid) {
                return None;
            }
            let results = claim["status"]["allocation"]["devices"]["results"].as_array()?;
            let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
            devices.extend(
                results
                    .iter()
                    .filter(|result| result["pool"] == self.name.as_str())
                    .map(|result| {
                        (
                            result["device"].as_str().unwrap_or_default().to_owned(),
                            uid.to_owned(),
                        )
                    }),
            );
        }
        Some(devices)
    }

    async fn tell(&mut self, uid: &str, path: &str, phase: &'static str) {
        let ready = if phase == "Running" { "True" } else { "False" };
        let state = match phase {
            "Running" => json!({"running": {"startedAt": now()}}),
            _ => {
                json!({"terminated": {"exitCode": i32::from(phase == "Failed"), "finishedAt": now(), "startedAt": now()}})
            }
        };
        let body = json!({
            "metadata": {"uid": uid},
            "status": {
                "phase": phase,
                "startTime": now(),
                "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [
                    {"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": ready, "lastTransitionTime": now()},
                    {"type": "ContainersReady", "status": ready, "lastTransitionTime": now()},
                ],
                "containerStatuses": [{
                    "name": "c", "image": "i", "imageID": "i", "ready": phase == "Running",
                    "restartCount": 0, "started": phase == "Running", "state": state,
                }],
            },
        });
        match self.caller.patch(&format!("{path}/status"), &body).await {
            Ok(_) => drop(self.told.insert(uid.to_owned(), phase)),
            Err(error) => self
                .cluster
                .note(format_args!("{} {path} {phase}: {error}", self.name)),
        }
    }

    async fn heartbeat(&mut self) {
        let path = format!("/api/v1/nodes/{}", self.name);
        let node = match self.caller.get(&path).await {
            Ok(node) => node,
            Err(error) if is_code(&error, 404) => return self.register().await,
            Err(_) => return,
        };
        let conditions = node["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True");
        let due = self.status.is_none_or(|at| world::elapsed() - at >= STATUS);
        if (!ready || due) && !self.publish(&path).await {
            return;
        }
        let namespace = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let renewed = Timestamp::now();
        let spec = json!({"spec": {"renewTime": format!("{renewed:.6}"), "holderIdentity": self.name, "leaseDurationSeconds": 40}});
        let lease = format!("{namespace}/{}", self.name);
        let written = match self.caller.merge(&lease, &spec).await {
            Err(error) if is_code(&error, 404) => {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec["spec"]});
                self.caller.post(namespace, &lease).await
            }
            written => written,
        };
        if written.is_ok() {
            self.beat = Some(world::elapsed());
        }
    }

    async fn register(&self) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name}},
        });
        if let Err(error) = self.caller.post("/api/v1/nodes", &node).await {
            self.cluster
                .note(format_args!("{} is not registered: {error}", self.name));
        }
    }

    /// Whether the node's status and devices are written.
    async fn publish(&mut self, path: &str) -> bool {
        let room = json!({"cpu": CPUS.to_string(), "memory": "8Gi", "pods": PODS.to_string(), RESOURCE: DEVICES.to_string()});
        let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [condition("Ready", "True")]}});
        if let Err(error) = self.caller.patch(&format!("{path}/status"), &status).await {
            self.cluster
                .note(format_args!("{} has no status: {error}", self.name));
            return false;
        }
        let devices: Vec<Value> = (0..DEVICES)
            .map(|n| json!({"name": format!("d{n}")}))
            .collect();
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{}-devices", self.name)},
            "spec": {
                "driver": DRIVER, "nodeName": self.name, "devices": devices,
                "pool": {"name": self.name, "generation": 1, "resourceSliceCount": 1},
            },
        });
        let written = self
            .caller
            .post("/apis/resource.k8s.io/v1/resourceslices", &slice)
            .await;
        match written {
            Err(error) if !is_code(&error, 409) => {
                self.cluster
                    .note(format_args!("{} has no slice: {error}", self.name));
                false
            }
            _ => {
                self.status = Some(world::elapsed());
                true
            }
        }
    }
}
