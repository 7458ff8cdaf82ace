//! A run: faults and workload of a seed on a cluster that is up, then rest, then the end of all that was made.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caller::{JsonClient, is_code};
use crate::checks::{controller, text};
use crate::cluster::{Component, SimulatedCluster};
use crate::faults::{FaultProfile, Faults, stream};
use crate::kubelet::HollowNode;
use crate::settled::StoredState;
use crate::watch_check::{self, WatchCheck};
use crate::workload::{self, Action, NAMESPACES};
use crate::world;

/// How many nodes there are.
const NODES: usize = 3;
/// How long faults go on after the last step; longer where nodes are away longer, so that they are given up.
const AFTERMATH: Duration = Duration::from_secs(20);
const LONG_AFTERMATH: Duration = Duration::from_secs(420);
/// How long the cluster may take to come to rest: work queues and failed pods back off for minutes.
const REST: Duration = Duration::from_secs(30 * 60);
/// How long the namespaces may take to go.
const END: Duration = Duration::from_secs(15 * 60);
/// How long a kubelet may take to register its node.
const REGISTERED: Duration = Duration::from_secs(15);
/// Between looks.
const LOOK: Duration = Duration::from_secs(2);

/// A cluster and its nodes.
#[derive(Debug)]
pub struct Simulation {
    cluster: Arc<SimulatedCluster>,
    nodes: Vec<Arc<HollowNode>>,
    admin: JsonClient,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunOutcome {
    /// What did not hold; nothing if all is well.
    pub violations: Vec<String>,
    /// Equal for equal runs.
    pub fingerprint: u64,
    /// How long it took by its own clock.
    pub took: Duration,
    /// The trace.
    pub lines: Vec<String>,
}

impl Simulation {
    /// Starts a cluster without faults and waits until it is up.
    ///
    /// # Errors
    /// What of it is not.
    pub async fn start() -> Result<Self, String> {
        let cluster = Arc::new(SimulatedCluster::new(Faults::new(0, FaultProfile::NONE)));
        let started = cluster.start_server().await;
        started.map_err(|error| error.to_string())?;
        cluster.start(Component::Scheduler);
        cluster.start(Component::Controllers);
        let admin = cluster.admin(&CancellationToken::new());
        let nodes = (0..NODES).map(|n| {
            let node = HollowNode::new(&format!("n{n}"), &cluster, stream(0, 100 + n as u64));
            node.start();
            Arc::new(node)
        });
        let simulation = Self {
            nodes: nodes.collect(),
            admin,
            cluster,
        };
        for action in workload::foundation() {
            simulation.act(&action).await;
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        for node in &simulation.nodes {
            let found = simulation
                .admin
                .get(&format!("/api/v1/nodes/{}", node.name()))
                .await;
            let found = found.map_err(|error| error.to_string())?;
            if found["spec"].get("taints").is_some() {
                return Err(format!("{} is not ready: {found}", node.name()));
            }
        }
        Ok(simulation)
    }

    /// Runs what belongs to a seed.
    pub async fn run(&self, seed: u64) -> RunOutcome {
        let began = world::elapsed();
        let profile = FaultProfile::of_seed(seed);
        self.cluster.note(format_args!("seed {seed}: {profile:?}"));
        self.cluster.checks.lock().in_doubt = profile.leaves_in_doubt();
        *self.cluster.faults.lock() = Faults::new(seed, profile.clone());
        self.cluster.attend();
        let mut witnesses = JoinSet::new();
        for (n, watched) in (0..).zip(watch_check::WATCHED) {
            let witness = WatchCheck::new(&self.cluster, watched, stream(seed, 10 + n));
            witnesses.spawn(witness.run());
        }
        let mut chaos = self.chaos(&profile);
        for step in workload::of_seed(seed, NODES) {
            tokio::time::sleep(step.after).await;
            self.act(&step.action).await;
        }
        let is_long = profile.nodes.is_some() && profile.away > 60;
        let aftermath = if is_long { LONG_AFTERMATH } else { AFTERMATH };
        tokio::time::sleep(aftermath).await;
        self.calm(&mut chaos).await;
        self.tidy().await;
        self.await_none("not settled", REST, StoredState::unsettled)
            .await;
        for namespace in NAMESPACES {
            self.act(&Action::Delete(
                format!("/api/v1/namespaces/{namespace}"),
                json!({}),
            ))
            .await;
        }
        self.await_none("not gone", END, |snapshot| {
            let mut left = snapshot.remains();
            let running = self.nodes.iter().filter(|node| node.running() > 0);
            left.extend(
                running.map(|node| format!("{} runs {} pods", node.name(), node.running())),
            );
            left
        })
        .await;
        tokio::time::sleep(LOOK).await;
        witnesses.shutdown().await;
        let trace = self.cluster.trace.lock();
        RunOutcome {
            violations: self.cluster.checks.lock().violations().to_vec(),
            fingerprint: trace.fingerprint(),
            took: world::elapsed() - began,
            lines: trace.lines().map(str::to_owned).collect(),
        }
    }

    /// What crashes and is started again until it is told to stop.
    fn chaos(&self, profile: &FaultProfile) -> JoinSet<()> {
        let mut chaos = JoinSet::new();
        let components = [
            (Component::Scheduler, profile.scheduler),
            (Component::Controllers, profile.controllers),
        ];
        for (component, every) in components {
            let Some(every) = every else { continue };
            let cluster = Arc::clone(&self.cluster);
            chaos.spawn(async move {
                loop {
                    let up = cluster.faults.lock().until_crash(every);
                    tokio::time::sleep(up).await;
                    cluster.note(format_args!("CRASH {component:?}"));
                    cluster.crash(component);
                    let away = cluster.faults.lock().away(5);
                    tokio::time::sleep(away).await;
                    cluster.note(format_args!("START {component:?}"));
                    cluster.start(component);
                }
            });
        }
        if let Some(every) = profile.server {
            chaos.spawn(crash_servers(Arc::clone(&self.cluster), every));
        }
        if let Some(every) = profile.compaction {
            chaos.spawn(compact(Arc::clone(&self.cluster), every));
        }
        if let Some(every) = profile.nodes {
            for node in &self.nodes {
                let (cluster, node) = (Arc::clone(&self.cluster), Arc::clone(node));
                chaos.spawn(crash_node(cluster, node, every, profile.away));
            }
        }
        chaos
    }

    /// Ends the faults; all components run afterwards.
    async fn calm(&self, chaos: &mut JoinSet<()>) {
        self.cluster.note("CALM");
        chaos.shutdown().await;
        self.cluster.faults.lock().stop();
        if self.cluster.network.running().is_none()
            && let Err(error) = self.cluster.start_server().await
        {
            self.report(format!("the API server does not start: {error}"));
        }
        for component in [Component::Scheduler, Component::Controllers] {
            if !self.cluster.runs(component) {
                self.cluster.start(component);
            }
        }
        for node in &self.nodes {
            if !node.runs() {
                node.start();
            }
        }
    }

    fn snapshot(&self) -> StoredState {
        StoredState::of(&self.cluster.store.everything())
    }

    /// Asks for no more than there is room for.
    async fn tidy(&self) {
        // some may have been deleted
        for node in &self.nodes {
            node.crash(false);
            node.start();
        }
        tokio::time::sleep(REGISTERED).await;
        for node in &self.nodes {
            self.act(&Action::Uncordon(node.name().to_owned())).await;
        }
        let snapshot = self.snapshot();
        for namespace in NAMESPACES {
            for action in workload::namespace(namespace) {
                self.act(&action).await;
            }
        }
        let path = |api: &str, object: &Value, plural: &str| {
            let part = |pointer| text(object, pointer).to_owned();
            format!(
                "{api}/namespaces/{}/{plural}/{}",
                part("/metadata/namespace"),
                part("/metadata/name")
            )
        };
        let mut actions = Vec::new();
        for (_, quota) in snapshot.of_resource("core/resourcequotas") {
            let change = json!({"spec": {"hard": {"pods": "1000"}}});
            actions.push(Action::Change(
                path("/api/v1", quota, "resourcequotas"),
                change,
            ));
        }
        for plural in ["deployments", "replicasets", "statefulsets"] {
            for (_, set) in snapshot.of_resource(&format!("apps/{plural}")) {
                if controller(set, "Deployment").is_none() {
                    let change = json!({"spec": {"replicas": 1}});
                    actions.push(Action::Change(path("/apis/apps/v1", set, plural), change));
                }
            }
        }
        for (_, cron) in snapshot.of_resource("batch/cronjobs") {
            let change = json!({"spec": {"suspend": true}});
            actions.push(Action::Change(
                path("/apis/batch/v1", cron, "cronjobs"),
                change,
            ));
        }
        for (_, pod) in snapshot.of_resource("core/pods") {
            if pod["metadata"].get("ownerReferences").is_none() {
                actions.push(Action::Delete(path("/api/v1", pod, "pods"), json!({})));
            }
        }
        for action in actions {
            self.act(&action).await;
        }
    }

    /// Waits until nothing is open.
    async fn await_none(
        &self,
        what: &str,
        most: Duration,
        open: impl Fn(&StoredState) -> Vec<String>,
    ) {
        let end = world::elapsed() + most;
        let mut pause = LOOK;
        loop {
            tokio::time::sleep(pause).await;
            let left = open(&self.snapshot());
            if left.is_empty() {
                return;
            }
            if world::elapsed() > end {
                for left in left {
                    self.report(format!("{what} after {most:?}: {left}"));
                }
                return;
            }
            pause = (pause * 5 / 4).min(Duration::from_secs(30));
        }
    }

    fn report(&self, what: String) {
        self.cluster.note(format_args!("VIOLATION {what}"));
        self.cluster.checks.lock().report(what);
    }

    /// Does something as a user does it who tries again.
    async fn act(&self, action: &Action) {
        self.cluster.note(format_args!("USER {action:?}"));
        for _ in 0..6 {
            let done = match action {
                Action::Create(path, object) => self.admin.post(path, object).await,
                Action::Change(path, change) => self.admin.merge(path, change).await,
                Action::Delete(path, options) => self.admin.delete(path, options).await,
                Action::Drain(node) => self.drain(node).await,
                Action::Uncordon(node) => self.cordon(node, false).await,
                Action::DeletePod(which) => self.delete_pod(*which).await,
            };
            match done {
                Err(error) if ![404, 409, 422].iter().any(|code| is_code(&error, *code)) => {
                    self.cluster.note(format_args!("USER {error}"));
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
                Err(error) => return self.cluster.note(format_args!("USER {error}")),
                Ok(_) => return,
            }
        }
    }

    async fn delete_pod(&self, which: usize) -> Result<Value, kube::Error> {
        let snapshot = self.snapshot();
        let pods: Vec<&Value> = snapshot
            .of_resource("core/pods")
            .map(|(_, pod)| pod)
            .collect();
        let Some(pod) = pods.get(which % pods.len().max(1)) else {
            return Ok(Value::Null);
        };
        let (namespace, name) = (
            text(pod, "/metadata/namespace"),
            text(pod, "/metadata/name"),
        );
        self.admin
            .delete(
                &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
                &json!({}),
            )
            .await
    }

    async fn cordon(&self, node: &str, unschedulable: bool) -> Result<Value, kube::Error> {
        let change = json!({"spec": {"unschedulable": unschedulable}});
        self.admin
            .merge(&format!("/api/v1/nodes/{node}"), &change)
            .await
    }

    async fn drain(&self, node: &str) -> Result<Value, kube::Error> {
        self.cordon(node, true).await?;
        let pods = self
            .admin
            .get(&format!(
                "/api/v1/pods?fieldSelector=spec.nodeName%3D{node}"
            ))
            .await?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            let (namespace, name) = (
                text(pod, "/metadata/namespace"),
                text(pod, "/metadata/name"),
            );
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}});
            if let Err(error) = self.admin.post(&path, &eviction).await {
                self.cluster.note(format_args!(
                    "USER {namespace}/{name} is not evicted: {error}"
                ));
            }
        }
        Ok(pods)
    }
}

async fn crash_servers(cluster: Arc<SimulatedCluster>, every: u64) {
    loop {
        let up = cluster.faults.lock().until_crash(every);
        tokio::time::sleep(up).await;
        cluster.note("CRASH API server");
        cluster.crash_server();
        let away = cluster.faults.lock().away(10);
        tokio::time::sleep(away).await;
        // its first writes may fail as any
        for _ in 0..20 {
            cluster.note("START API server");
            match cluster.start_server().await {
                Ok(()) => break,
                Err(error) => cluster.note(format_args!("API server: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn compact(cluster: Arc<SimulatedCluster>, every: u64) {
    use davit_store::Store;
    loop {
        let pause = cluster.faults.lock().until_crash(every);
        tokio::time::sleep(pause).await;
        let revision = cluster.store.revision();
        let compacted = cluster.store.compact(revision).await;
        cluster.note(format_args!("COMPACT {revision} {compacted:?}"));
        if cluster.faults.lock().coin() {
            cluster.note("watches of the store end");
            cluster.store.drop_watchers();
        }
    }
}

async fn crash_node(cluster: Arc<SimulatedCluster>, node: Arc<HollowNode>, every: u64, most: u64) {
    loop {
        let up = cluster.faults.lock().until_crash(every);
        tokio::time::sleep(up).await;
        let off = cluster.faults.lock().coin();
        cluster.note(format_args!("CRASH {} off={off}", node.name()));
        node.crash(off);
        let away = cluster.faults.lock().away(most);
        tokio::time::sleep(away).await;
        cluster.note(format_args!("START {}", node.name()));
        node.start();
    }
}
