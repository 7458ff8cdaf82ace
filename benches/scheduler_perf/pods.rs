//! What becomes of pods, by one watch over all of them.

use crate::cases::Stage;
use anyhow::{Context, Result, bail};
use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

/// How long pods may take to have nodes, all of them together.
const DEADLINE: Duration = Duration::from_secs(900);

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Pod,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    status: Status,
    message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    namespace: String,
    name: String,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
}

/// Namespace and name.
pub(crate) type PodKey = (String, String);

struct Seen {
    labels: BTreeMap<String, String>,
    at: Instant,
    has_node: bool,
    was_tried: bool,
}

/// What is measured: pods of namespaces that get nodes from now on.
pub(crate) struct Measure {
    pub(crate) namespaces: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) began: Instant,
    /// How long each took from when it was seen first, and when that was.
    pub(crate) scheduled: Vec<(Instant, Duration)>,
}

#[derive(Default)]
struct State {
    pods: HashMap<PodKey, Seen>,
    measure: Option<Measure>,
    /// Who is told which pods of a namespace have got nodes.
    told: Option<(String, mpsc::UnboundedSender<String>)>,
    broken: Option<String>,
}

/// Follows all pods.
pub(crate) struct Pods {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn matches(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

impl Pods {
    pub(crate) fn follow(client: kube::Client) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let changed: Arc<Notify> = Arc::default();
        let (into, tell) = (state.clone(), changed.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = watch(client, &into, &tell).await {
                into.lock().broken = Some(format!("{error:#}"));
            }
            tell.notify_waiters();
        });
        Self {
            state,
            changed,
            task,
        }
    }

    /// Waits until so many pods of a namespace have come so far.
    pub(crate) async fn wait(
        &self,
        namespaces: &[String],
        labels: &BTreeMap<String, String>,
        stage: Stage,
        count: usize,
    ) -> Result<()> {
        let reached = || -> Result<usize> {
            let state = self.state.lock();
            if let Some(why) = &state.broken {
                bail!("the watch of pods: {why}");
            }
            let pods = state.pods.iter().filter(|((namespace, _), seen)| {
                let far = match stage {
                    Stage::Scheduled => seen.has_node,
                    Stage::Attempted => seen.was_tried || seen.has_node,
                };
                far && namespaces.contains(namespace) && matches(&seen.labels, labels)
            });
            Ok(pods.count())
        };
        let end = tokio::time::Instant::now() + DEADLINE;
        loop {
            let changed = self.changed.notified();
            let at = reached()?;
            if at >= count {
                return Ok(());
            }
            let more = tokio::time::timeout_at(end, changed).await;
            more.with_context(|| format!("{at} of {count} pods in {namespaces:?}: {stage:?}"))?;
            // changes come by the thousand
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The pods of a namespace that get nodes from now on, by name.
    pub(crate) fn tell(&self, namespace: &str) -> mpsc::UnboundedReceiver<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state.lock().told = Some((namespace.to_owned(), sender));
        receiver
    }

    pub(crate) fn named(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<String> {
        let state = self.state.lock();
        let pods = state.pods.iter();
        let pods = pods.filter(|((of, _), seen)| of == namespace && matches(&seen.labels, labels));
        pods.map(|((_, name), _)| name.clone()).collect()
    }

    pub(crate) fn begin(&self, namespaces: Vec<String>, labels: BTreeMap<String, String>) {
        self.state.lock().measure = Some(Measure {
            namespaces,
            labels,
            began: Instant::now(),
            scheduled: Vec::new(),
        });
    }

    pub(crate) fn end(&self) -> Result<Measure> {
        self.state
            .lock()
            .measure
            .take()
            .context("nothing is measured")
    }
}

/// Watches from where the watch before it ended.
async fn watch(client: kube::Client, state: &Mutex<State>, changed: &Notify) -> Result<()> {
    let mut version = "0".to_owned();
    loop {
        let path = format!("/api/v1/pods?watch=1&resourceVersion={version}&timeoutSeconds=3600");
        let stream = client.request_stream(Request::get(path).body(Vec::new())?);
        let mut lines = stream.await?.lines();
        while let Some(line) = lines.try_next().await? {
            let event: Event = serde_json::from_str(&line)?;
            if event.kind == "ERROR" {
                bail!(event.object.message.unwrap_or_default());
            }
            version.clone_from(&event.object.metadata.resource_version);
            state.lock().take(event);
            changed.notify_waiters();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl State {
    fn take(&mut self, event: Event) {
        let pod = event.object;
        let key = (pod.metadata.namespace, pod.metadata.name);
        if event.kind == "DELETED" {
            self.pods.remove(&key);
            return;
        }
        let now = Instant::now();
        let seen = self.pods.entry(key.clone()).or_insert_with(|| Seen {
            labels: pod.metadata.labels,
            at: now,
            has_node: false,
            was_tried: false,
        });
        let mut conditions = pod.status.conditions.iter();
        seen.was_tried |= conditions.any(|condition| condition.kind == "PodScheduled");
        if seen.has_node || pod.spec.node_name.is_none() {
            return;
        }
        seen.has_node = true;
        let (namespace, name) = key;
        let measured = self.measure.as_mut().filter(|measure| {
            measure.namespaces.contains(&namespace) && matches(&seen.labels, &measure.labels)
        });
        if let Some(measure) = measured {
            measure.scheduled.push((now, now.duration_since(seen.at)));
        }
        if let Some((told, sender)) = &self.told
            && *told == namespace
        {
            // nobody listens any more when a steady state is over
            let _ended = sender.send(name);
        }
    }
}
