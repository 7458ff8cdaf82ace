//! One workload on one cluster: its operations, one after the other.

use crate::api::{Api, is};
use crate::cases::{
    AllocResourceClaims, Barrier, Case, Churn, ChurnMode, CreateAny, CreateNamespaces, CreateNodes,
    CreatePods, CreateResourceDriver, DeletePods, Operation, Stage, Workload,
};
use crate::peers::{Cluster, Used};
use crate::pods::{Measure, Pods};
use crate::template::Template;
use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use http::Method;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Objects that are made at the same time, as in scheduler_perf.
const WORKERS: usize = 30;

/// What a workload has measured.
pub(crate) struct Outcome {
    pub(crate) pods: usize,
    pub(crate) pods_per_second: f64,
    /// Milliseconds of processor time for each pod.
    pub(crate) processor_ms: f64,
    /// Milliseconds from when a pod was seen to when its node was.
    pub(crate) median_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) resident_mib: u64,
}

pub(crate) struct Run<'a> {
    cluster: &'a Cluster,
    dir: &'a Path,
    case: &'a Case,
    workload: &'a Workload,
    api: Arc<Api>,
    pods: Pods,
    /// Pods that namespaces wait for.
    expected: HashMap<String, usize>,
    background: JoinSet<()>,
    used: Option<Used>,
    outcome: Option<Outcome>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        dir: &'a Path,
        case: &'a Case,
        workload: &'a Workload,
    ) -> Self {
        Self {
            cluster,
            dir,
            case,
            workload,
            api: Arc::new(Api::new(cluster.client.clone())),
            pods: Pods::follow(cluster.client.clone()),
            expected: HashMap::new(),
            background: JoinSet::new(),
            used: None,
            outcome: None,
        }
    }

    pub(crate) async fn all(mut self) -> Result<Outcome> {
        let operations = self.case.operations(self.workload)?;
        for (index, operation) in operations.into_iter().enumerate() {
            self.step(index, operation).await?;
        }
        self.outcome.context("the workload measures nothing")
    }

    async fn step(&mut self, index: usize, operation: Operation) -> Result<()> {
        match operation {
            Operation::CreateNodes(nodes) => self.create_nodes(&nodes).await,
            Operation::CreateNamespaces(namespaces) => self.create_namespaces(&namespaces).await,
            Operation::CreatePods(pods) => {
                self.create_pods(&format!("namespace-{index}"), &pods).await
            }
            Operation::CreatePodSets(sets) => {
                let pods = sets.pods(self.workload)?;
                for set in 0..sets.count {
                    let namespace = format!("{}-{set}", sets.namespace_prefix);
                    self.create_pods(&namespace, &pods).await?;
                }
                Ok(())
            }
            Operation::CreateAny(any) => self.create_any(&any).await,
            Operation::CreateResourceDriver(driver) => self.create_resource_driver(&driver).await,
            Operation::AllocResourceClaims(claims) => self.alloc_resource_claims(&claims).await,
            Operation::DeletePods(pods) => self.delete_pods(pods).await,
            Operation::Churn(churn) => self.churn(&format!("namespace-{index}"), churn).await,
            Operation::Barrier(barrier) => self.barrier(&barrier).await,
            Operation::StartCollectingMetrics(start) => {
                self.begin(start.namespaces, start.label_selector)
            }
            Operation::StopCollectingMetrics(_) => self.end(),
        }
    }

    fn template(&self, path: &str) -> Result<Template> {
        Template::read(&self.dir.join(path))
    }

    async fn create_all(
        &self,
        objects: impl Iterator<Item = Result<(String, Value)>>,
    ) -> Result<()> {
        let api = &self.api;
        futures::stream::iter(objects)
            .try_for_each_concurrent(WORKERS, |(path, object)| async move {
                api.create(&path, &object).await.map(|_| ())
            })
            .await
    }

    async fn create_nodes(&self, nodes: &CreateNodes) -> Result<()> {
        let template = match &nodes.node_template_path {
            Some(path) => self.template(path)?.object(0, nodes.count)?,
            None => {
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"generateName": "node-"},
                "status": {"capacity": {"pods": "110", "cpu": "4", "memory": "32Gi"},
                    "conditions": [{"type": "Ready", "status": "True"}]}})
            }
        };
        let objects = (0..nodes.count).map(|index| {
            let mut node = template.clone();
            // what a node agent would say; the names are the test's own, so that labels can have them
            let prefix = node["metadata"]["generateName"].as_str();
            let name = match prefix {
                Some(prefix) => format!("{prefix}{index}-{}", short_id()),
                None => node["metadata"]["name"]
                    .as_str()
                    .context("a node without name")?
                    .to_owned(),
            };
            node["status"]["allocatable"] = node["status"]["capacity"].clone();
            node["metadata"]["name"] = json!(name);
            if let Some(label) = &nodes.label_node_prepare_strategy {
                let values = &label.label_values;
                let value = values.get(index % values.len().max(1));
                node["metadata"]["labels"][&label.label_key] = json!(value);
            }
            if let Some(label) = &nodes.unique_node_label_strategy {
                node["metadata"]["labels"][&label.label_key] = json!(name);
            }
            Ok(("/api/v1/nodes".to_owned(), node))
        });
        self.create_all(objects).await
    }

    async fn create_namespaces(&self, namespaces: &CreateNamespaces) -> Result<()> {
        let template = match &namespaces.namespace_template_path {
            Some(path) => self.template(path)?.object(0, namespaces.count)?,
            None => json!({"apiVersion": "v1", "kind": "Namespace"}),
        };
        let objects = (0..namespaces.count).map(|index| {
            let mut namespace = template.clone();
            namespace["metadata"]["name"] = json!(format!("{}-{index}", namespaces.prefix));
            Ok(("/api/v1/namespaces".to_owned(), namespace))
        });
        self.create_all(objects).await
    }

    fn pod_template(&self, pods: &CreatePods) -> Result<Template> {
        let path = pods.pod_template_path.as_ref();
        match path.or(self.case.default_pod_template_path.as_ref()) {
            Some(path) => self.template(path),
            None => Ok(Template::of(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"generateName": "pod-"},
                "spec": {"containers": [{"name": "pause", "image": "example.test/pause"}]}}))),
        }
    }

    async fn create_pods(&mut self, unique: &str, pods: &CreatePods) -> Result<()> {
        let namespace = pods.namespace.as_deref().unwrap_or(unique);
        self.api.ensure_namespace(namespace).await?;
        let template = self.pod_template(pods)?;
        if pods.collect_metrics {
            self.begin(vec![namespace.to_owned()], BTreeMap::new())?;
        }
        let collection = format!("/api/v1/namespaces/{namespace}/pods");
        if pods.steady_state {
            self.steady(namespace, &collection, &template, pods).await?;
        } else {
            let objects = (0..pods.count).map(|index| {
                let pod = template.object(index, pods.count)?;
                Ok((collection.clone(), pod))
            });
            self.create_all(objects).await?;
            let expected = self.expected.entry(namespace.to_owned()).or_default();
            *expected += pods.count;
            if !pods.skip_wait_to_completion {
                let (namespaces, expected) = ([namespace.to_owned()], *expected);
                let all = BTreeMap::new();
                let waited = self
                    .pods
                    .wait(&namespaces, &all, Stage::Scheduled, expected);
                waited.await?;
            }
        }
        if pods.collect_metrics {
            self.end()?;
        }
        Ok(())
    }

    /// Each pod that has a node is deleted, and another one made.
    async fn steady(
        &self,
        namespace: &str,
        collection: &str,
        template: &Template,
        pods: &CreatePods,
    ) -> Result<()> {
        let mut scheduled = self.pods.tell(namespace);
        let end = tokio::time::Instant::now() + pods.duration()?;
        let mut index = 0;
        let mut make = JoinSet::new();
        let mut next = |gone: Option<String>| -> Result<()> {
            let pod = template.object(index, pods.count)?;
            index += 1;
            let (api, collection) = (self.api.clone(), collection.to_owned());
            make.spawn(async move {
                if let Some(name) = gone {
                    api.delete(&format!("{collection}/{name}")).await?;
                }
                api.create(&collection, &pod).await.map(|_| ())
            });
            while let Some(made) = make.try_join_next() {
                made??;
            }
            Ok(())
        };
        for _ in 0..pods.count {
            next(None)?;
        }
        while let Ok(Some(name)) = tokio::time::timeout_at(end, scheduled.recv()).await {
            next(Some(name))?;
        }
        Ok(())
    }

    fn begin(&mut self, namespaces: Vec<String>, labels: BTreeMap<String, String>) -> Result<()> {
        self.used = Some(self.cluster.used()?);
        self.pods.begin(namespaces, labels);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let measure = self.pods.end()?;
        let before = self.used.take().context("nothing is measured")?;
        let used = self.cluster.used()?;
        self.outcome = Some(outcome(measure, before, used)?);
        Ok(())
    }

    async fn create_any(&self, any: &CreateAny) -> Result<()> {
        let namespace = any.namespace.as_deref().unwrap_or_default();
        if !namespace.is_empty() {
            self.api.ensure_namespace(namespace).await?;
        }
        let template = self.template(&any.template_path)?;
        let first = template.object(0, any.count)?;
        let collection = self.api.collection(&first, namespace).await?;
        let objects = (0..any.count).map(|index| {
            let object = template.object(index, any.count)?;
            Ok((collection.clone(), object))
        });
        self.create_all(objects).await
    }

    async fn create_resource_driver(&self, driver: &CreateResourceDriver) -> Result<()> {
        let Some(prefix) = driver.nodes.strip_suffix('*') else {
            bail!("nodes {:?} are not understood", driver.nodes);
        };
        let nodes = self.api.get("/api/v1/nodes").await?;
        let names = nodes["items"].as_array().into_iter().flatten();
        let names = names.filter_map(|node| node["metadata"]["name"].as_str());
        let slices = names.filter(|name| name.starts_with(prefix)).map(|name| {
            let path = "/apis/resource.k8s.io/v1/resourceslices".to_owned();
            Ok((
                path,
                slice(&driver.driver_name, name, driver.max_claims_per_node),
            ))
        });
        self.create_all(slices).await
    }

    /// Gives each claim of a namespace a free device anywhere: claims that ask for one, as the workloads have them.
    async fn alloc_resource_claims(&self, claims: &AllocResourceClaims) -> Result<()> {
        let slices = self
            .api
            .get("/apis/resource.k8s.io/v1/resourceslices")
            .await?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let mut devices: Vec<(Value, Value, Value, Value)> = Vec::new();
        for slice in slices {
            let spec = &slice["spec"];
            let of_slice = spec["devices"].as_array().into_iter().flatten();
            devices.extend(of_slice.map(|device| {
                let (driver, pool) = (spec["driver"].clone(), spec["pool"]["name"].clone());
                (
                    driver,
                    pool,
                    device["name"].clone(),
                    spec["nodeName"].clone(),
                )
            }));
        }
        devices.shuffle(&mut StdRng::seed_from_u64(1));
        let root = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
            claims.namespace
        );
        let listed = self.api.get(&root).await?;
        let listed = listed["items"].as_array().into_iter().flatten();
        let api = &self.api;
        let wanted = listed.zip(devices).map(|(claim, (driver, pool, device, node))| {
            let requests = &claim["spec"]["devices"]["requests"];
            if requests.as_array().is_none_or(|all| all.len() != 1) {
                bail!("a claim with several requests");
            }
            let mut claim = claim.clone();
            claim["apiVersion"] = json!("resource.k8s.io/v1");
            claim["kind"] = json!("ResourceClaim");
            claim["status"] = json!({"allocation": {
                "devices": {"results": [{"request": requests[0]["name"], "driver": driver, "pool": pool,
                    "device": device}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}});
            let name = claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            Ok((format!("{root}/{name}/status"), claim))
        });
        futures::stream::iter(wanted)
            .try_for_each_concurrent(WORKERS, |(path, claim)| async move {
                api.send(Method::PUT, &path, &claim).await.map(|_| ())
            })
            .await
    }

    async fn delete_pods(&mut self, pods: DeletePods) -> Result<()> {
        let names = self.pods.named(&pods.namespace, &pods.label_selector);
        let api = self.api.clone();
        let pause = pods.delete_pods_per_second;
        let pause = (pause > 0).then(|| Duration::from_secs(1) / pause);
        let work = async move {
            for name in names {
                if let Some(pause) = pause {
                    tokio::time::sleep(pause).await;
                }
                let path = format!("/api/v1/namespaces/{}/pods/{name}", pods.namespace);
                api.delete(&path).await?;
            }
            Ok(())
        };
        if !pods.skip_wait_to_completion {
            return work.await;
        }
        self.background.spawn(async move {
            let done: Result<()> = work.await;
            report(done);
        });
        Ok(())
    }

    async fn churn(&mut self, unique: &str, churn: Churn) -> Result<()> {
        let namespace = churn.namespace.clone().unwrap_or_else(|| unique.to_owned());
        self.api.ensure_namespace(&namespace).await?;
        let mut kinds = Vec::new();
        for path in &churn.template_paths {
            let object = self.template(path)?.object(0, 1)?;
            let collection = self.api.collection(&object, &namespace).await?;
            kinds.push((collection, object));
        }
        let limit = match (churn.mode, churn.number) {
            (ChurnMode::Create, 0) => usize::MAX,
            (ChurnMode::Recreate, 0) => bail!("recreate without a number"),
            (_, number) => number,
        };
        let api = self.api.clone();
        self.background.spawn(async move {
            let mut ticks =
                tokio::time::interval(Duration::from_millis(churn.interval_milliseconds));
            let mut made: Vec<PathBuf> = Vec::new();
            for turn in 0_usize.. {
                ticks.tick().await;
                let deletes = (turn / limit) % 2 == 1;
                if deletes && churn.mode == ChurnMode::Create {
                    return;
                }
                if deletes {
                    for path in made.drain(..kinds.len().min(made.len())) {
                        report(api.delete(&path.display().to_string()).await);
                    }
                    continue;
                }
                for (collection, object) in &kinds {
                    match api.create(collection, object).await {
                        Ok(answer) => made.extend(path_of(collection, &answer)),
                        Err(error) if is(&error, 409) => {}
                        Err(error) => report(Err(error)),
                    }
                }
            }
        });
        Ok(())
    }

    async fn barrier(&self, barrier: &Barrier) -> Result<()> {
        let all = self.expected.keys().cloned().collect();
        let namespaces = match barrier.namespaces.is_empty() {
            true => all,
            false => barrier.namespaces.clone(),
        };
        let count = match barrier.label_selector.is_empty() {
            true => namespaces
                .iter()
                .filter_map(|one| self.expected.get(one))
                .sum(),
            false => {
                let labels = &barrier.label_selector;
                let named = namespaces
                    .iter()
                    .map(|one| self.pods.named(one, labels).len());
                named.sum()
            }
        };
        let (labels, stage) = (&barrier.label_selector, barrier.stage_requirement);
        self.pods.wait(&namespaces, labels, stage, count).await
    }
}

/// Work beside the measurement that fails is said, and does not end it: as in scheduler_perf.
fn report(done: Result<()>) {
    if let Err(error) = done {
        eprintln!("  beside the workload: {error:#}");
    }
}

fn path_of(collection: &str, answer: &str) -> Option<PathBuf> {
    let object: Value = serde_json::from_str(answer).ok()?;
    Some(Path::new(collection).join(object["metadata"]["name"].as_str()?))
}

/// What makes names of nodes unlike those of another step.
fn short_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    id.chars().take(5).collect()
}

fn slice(driver: &str, node: &str, devices: usize) -> Value {
    let devices = (0..devices).map(|index| {
        json!({"name": format!("instance-{index}"),
            "attributes": {"model": {"string": "A100"}, "family": {"string": "GPU"},
                "driverVersion": {"version": "1.2.3"}, "dra.example.com/numa": {"int": index}},
            "capacity": {"memory": {"value": "1Gi"}}})
    });
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
        "spec": {"driver": driver, "nodeName": node, "devices": devices.collect::<Vec<_>>(),
            "pool": {"name": node, "generation": 0, "resourceSliceCount": 1}}})
}

fn outcome(mut measure: Measure, before: Used, used: Used) -> Result<Outcome> {
    let pods = measure.scheduled.len();
    let last = measure.scheduled.iter().map(|(at, _)| *at).max();
    let last: Instant = last.context("no pod has got a node")?;
    measure.scheduled.sort_by_key(|(_, took)| *took);
    let at = |part: f64| {
        let index = ((pods - 1) as f64 * part) as usize;
        measure.scheduled[index].1.as_secs_f64() * 1e3
    };
    let processor = used.processor.saturating_sub(before.processor);
    Ok(Outcome {
        pods,
        pods_per_second: pods as f64 / last.duration_since(measure.began).as_secs_f64(),
        processor_ms: processor.as_secs_f64() * 1e3 / pods as f64,
        median_ms: at(0.5),
        p99_ms: at(0.99),
        resident_mib: used.resident_mib,
    })
}
