//! Prefers nodes whose resources are used evenly.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::config::BalancedAllocationArgs;
use crate::framework::{CycleState, MAX_NODE_SCORE, Plugin, Points, PreScore, Score, Status};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `NodeResourcesBalancedAllocation`.
#[derive(Debug, Clone)]
pub struct BalancedAllocation {
    /// The resources that are compared.
    pub resources: Vec<String>,
}

impl BalancedAllocation {
    /// The plugin with these arguments.
    pub fn new(args: &BalancedAllocationArgs) -> Self {
        Self {
            resources: args.resources.iter().map(|r| r.name.clone()).collect(),
        }
    }
}

impl Default for BalancedAllocation {
    fn default() -> Self {
        Self {
            resources: vec!["cpu".to_owned(), "memory".to_owned()],
        }
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_score.push(self.clone());
        points.score.push(self);
    }
}

impl PreScore for BalancedAllocation {
    /// A pod that asks for none of the resources does not change the balance.
    fn pre_score(&self, _: &mut CycleState, pod: &PodInfo, _: &Snapshot, _: &[usize]) -> Status {
        let asks = self
            .resources
            .iter()
            .any(|name| pod.requests.requests.get(name) > 0);
        if asks {
            Status::success()
        } else {
            Status::skip()
        }
    }
}

impl Score for BalancedAllocation {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let shares: Vec<f64> = self
            .resources
            .iter()
            .filter(|name| node.allocatable.get(name) > 0)
            .map(|name| {
                let used = node.requested.get(name) + pod.requests.requests.get(name);
                (used as f64 / node.allocatable.get(name) as f64).min(1.0)
            })
            .collect();
        let deviation = match &shares[..] {
            [] | [_] => 0.0,
            [a, b] => (a - b).abs() / 2.0,
            many => {
                let mean = many.iter().sum::<f64>() / many.len() as f64;
                let variance = many.iter().map(|s| (s - mean).powi(2)).sum::<f64>();
                (variance / many.len() as f64).sqrt()
            }
        };
        ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, pod};
    use serde_json::json;

    #[test]
    fn even_use_scores_higher() {
        let mut bed = Bed::new();
        bed.node(
            "a",
            json!({"status": {"allocatable": {"cpu": "4", "memory": "4Gi"}}}),
        );
        bed.node(
            "b",
            json!({"status": {"allocatable": {"cpu": "4", "memory": "40Gi"}}}),
        );
        let requests = json!({"cpu": "2", "memory": "2Gi"});
        let wants = pod(
            "p",
            json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}),
        );
        // 50% and 50%; 50% and 5%: half the difference off.
        assert_eq!(
            bed.scores(&BalancedAllocation::default(), &wants),
            [100, 77]
        );
    }
}
