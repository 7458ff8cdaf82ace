//! What nodes and pods use: asked of the nodes' agents as metrics-server does, answered as `metrics.k8s.io/v1beta1`
//! (`virtuals::resource_metrics`), so that `kubectl top` and horizontal autoscalers work without an add-on.
//! <https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/>
//!
//! Nothing is stored: what is known is what the last rounds brought. As long as an APIService has another server answer
//! the group, nobody is asked.

mod exposition;
mod rates;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use davit_api::status::Status;
use davit_registry::object;
use futures::StreamExt;
use http::Uri;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use crate::proxy::node_backend;
use crate::server::ApiServer;

use rates::NodeRecord;
pub(crate) use rates::{PodUse, Used};

/// The group that is answered here.
pub(crate) const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
const PATH: &str = "/metrics/resource";
/// The time between two rounds, as in metrics-server's manifests.
const ROUND: Duration = Duration::from_secs(15);
/// The time to the next round while a node has been asked only once.
const SOON: Duration = Duration::from_secs(5);
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many nodes are asked at a time.
const AT_ONCE: usize = 16;
/// The longest answer of a node that is read.
const ANSWER_MAX: usize = 16 << 20;

/// What is known of all nodes.
#[derive(Debug, Default)]
pub(crate) struct ResourceMetrics {
    nodes: Mutex<HashMap<String, NodeState>>,
}

#[derive(Debug, Clone, Default)]
struct NodeState {
    record: Arc<NodeRecord>,
    /// In how many rounds, up to the last one, it did not answer.
    failures: u32,
}

impl ResourceMetrics {
    fn record(&self, node: &str) -> Option<Arc<NodeRecord>> {
        let nodes = self.nodes.lock();
        let state = nodes.get(node).filter(|state| state.failures == 0)?;
        Some(Arc::clone(&state.record))
    }

    /// What a node uses, if that is known.
    pub(crate) fn node(&self, name: &str) -> Option<Used> {
        self.record(name)?.node()
    }

    /// What a pod on a node uses, if that is known of all its containers.
    pub(crate) fn pod(&self, node: &str, namespace: &str, name: &str) -> Option<PodUse> {
        self.record(node)?.pod(namespace, name)
    }

    /// Takes in the answer of a node, or that there is none.
    fn take(&self, node: &str, answer: Result<String, Status>) {
        let held = self.nodes.lock().get(node).cloned().unwrap_or_default();
        let state = match answer {
            Ok(text) => {
                let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
                let round = i64::try_from(ROUND.as_nanos()).unwrap_or(i64::MAX);
                let next = held.record.next(exposition::read(&text, now), round);
                NodeState {
                    record: Arc::new(next),
                    failures: 0,
                }
            }
            Err(status) => {
                // in the first round after a start its agent may still be starting; what stays is said once
                if held.failures == 1 {
                    tracing::warn!(
                        node,
                        error = status.message,
                        "a node does not tell what it uses"
                    );
                }
                NodeState {
                    failures: held.failures.saturating_add(1),
                    ..held
                }
            }
        };
        self.nodes.lock().insert(node.to_owned(), state);
    }

    /// Whether all nodes that answer have been asked often enough to know rates.
    fn is_complete(&self) -> bool {
        let nodes = self.nodes.lock();
        let known = |state: &NodeState| state.failures > 0 || state.record.node().is_some();
        !nodes.is_empty() && nodes.values().all(known)
    }
}

/// Asks the nodes, round after round, until the server is gone; whoever spawns it ends it with the server.
pub(crate) async fn run(server: Weak<ApiServer>) {
    loop {
        let Some(live) = server.upgrade() else { return };
        let pause = round(&live).await;
        drop(live);
        tokio::time::sleep(pause).await;
    }
}

/// Asks all nodes once; answers how long to wait before the next time.
async fn round(server: &ApiServer) -> Duration {
    let metrics = server.resource_metrics();
    if server.aggregation().answers(GROUP, VERSION) {
        metrics.nodes.lock().clear();
        return SOON;
    }
    let nodes = match server.objects("", "nodes", None).await {
        Ok(nodes) => nodes,
        Err(status) => {
            tracing::debug!(error = status.message, "listing nodes to ask what they use");
            return ROUND;
        }
    };
    let names: Vec<String> = nodes
        .iter()
        .filter(|node| has_agent(node))
        .map(|node| object::name(node).to_owned())
        .collect();
    metrics.nodes.lock().retain(|name, _| names.contains(name));
    futures::stream::iter(names)
        .for_each_concurrent(AT_ONCE, |name| async move {
            let answer = tokio::time::timeout(PATIENCE, ask(server, &name)).await;
            let late = |_| Err(Status::timeout("it did not answer in time", 0));
            metrics.take(&name, answer.unwrap_or_else(late));
        })
        .await;
    if metrics.is_complete() { ROUND } else { SOON }
}

/// Whether an agent has said where it serves, and is heard of.
fn has_agent(node: &Value) -> bool {
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port");
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let is_lost = |c: &Value| c["type"] == "Ready" && c["status"] == "Unknown";
    port.and_then(Value::as_u64).is_some_and(|port| port != 0)
        && !conditions.into_iter().flatten().any(is_lost)
}

async fn ask(server: &ApiServer, node: &str) -> Result<String, Status> {
    let backend = node_backend(server, node).await?;
    let client = server.nodes();
    let path = Uri::from_static(PATH);
    let bytes = client.read(server, backend, path, ANSWER_MAX).await?;
    String::from_utf8(bytes.into()).map_err(|_| Status::unknown("the answer is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_without_an_agent_are_not_asked() {
        let node = |port: u16, ready: &str| {
            json!({"status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                "conditions": [{"type": "Ready", "status": ready}],
            }})
        };
        assert!(has_agent(&node(10250, "True")) && has_agent(&node(10250, "False")));
        assert!(!has_agent(&node(0, "True")), "made by hand");
        assert!(!has_agent(&node(10250, "Unknown")) && !has_agent(&json!({})));
    }

    #[test]
    fn what_is_known_goes_with_the_answers() {
        let metrics = ResourceMetrics::default();
        assert!(!metrics.is_complete());
        let text = |cpu: u32, at: u32| {
            Ok(format!(
                "node_cpu_usage_seconds_total {cpu} {at}000\nnode_memory_working_set_bytes 5\n"
            ))
        };
        metrics.take("a", text(1, 100));
        assert!(metrics.node("a").is_none() && !metrics.is_complete());
        metrics.take("a", text(2, 110));
        assert_eq!(metrics.node("a").unwrap().cpu, 100_000_000);
        assert!(metrics.is_complete());
        metrics.take("a", Err(Status::timeout("", 0)));
        assert!(metrics.node("a").is_none(), "old numbers are not told");
        assert!(metrics.is_complete(), "nobody waits for it");
        metrics.take("a", text(4, 130));
        assert_eq!(metrics.node("a").unwrap().cpu, 100_000_000);
    }
}
