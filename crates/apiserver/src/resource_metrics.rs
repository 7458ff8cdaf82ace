//! What nodes and pods use, as nodes have told it ([`node_rounds`](crate::node_rounds)); answered as `metrics.k8s.io/v1beta1`
//! (`virtuals::resource_metrics`), so that `kubectl top` and horizontal autoscalers work without an add-on.
//! <https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/>
//!
//! Nothing is stored: what is known is what the last rounds brought.

mod rates;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use davit_api::status::Status;
use jiff::Timestamp;
use parking_lot::Mutex;

use rates::NodeRecord;
pub(crate) use rates::{PodUse, Used};

/// The group that is answered here.
pub(crate) const GROUP: &str = "metrics.k8s.io";
/// The time between two rounds, as in metrics-server's manifests.
pub(crate) const ROUND: Duration = Duration::from_secs(15);
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

    /// Forgets all nodes but these.
    pub(crate) fn keep(&self, names: &[String]) {
        self.nodes.lock().retain(|name, _| names.contains(name));
    }

    /// Takes in the answer of a node, or that there is none.
    pub(crate) fn take(&self, node: &str, answer: Result<String, Status>) {
        let held = self.nodes.lock().get(node).cloned().unwrap_or_default();
        let state = match answer {
            Ok(text) => {
                let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
                let round = i64::try_from(ROUND.as_nanos()).unwrap_or(i64::MAX);
                let next = held
                    .record
                    .next(davit_listen::read_resource_page(&text, now), round);
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
    pub(crate) fn is_complete(&self) -> bool {
        let nodes = self.nodes.lock();
        let known = |state: &NodeState| state.failures > 0 || state.record.node().is_some();
        !nodes.is_empty() && nodes.values().all(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
