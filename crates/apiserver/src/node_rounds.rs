//! Asks the nodes' agents what they and their pods use, as metrics-server does. As long as an APIService has another server
//! answer the group, nobody is asked.

use std::sync::Weak;
use std::time::Duration;

use davit_api::status::Status;
use davit_registry::object;
use futures::StreamExt;
use http::Uri;
use serde_json::Value;

use crate::proxy::{node_backend, read};
use crate::resource_metrics::{GROUP, ROUND};
use crate::server::ApiServer;

const VERSION: &str = "v1beta1";
const PATH: &str = "/metrics/resource";
/// The time to the next round while a node has been asked only once.
const SOON: Duration = Duration::from_secs(5);
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many nodes are asked at a time.
const AT_ONCE: usize = 16;
/// The longest answer of a node that is read.
const ANSWER_MAX: usize = 16 << 20;

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
        metrics.keep(&[]);
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
    metrics.keep(&names);
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
    let path = Uri::from_static(PATH);
    let bytes = read(server, backend, path, ANSWER_MAX).await?;
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
}
