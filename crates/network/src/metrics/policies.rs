//! What is counted of network policies. Kubernetes has no names for it.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

/// What is counted. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct PolicyMetrics {
    syncs: Histogram,
    failures: Counter,
    policies: Gauge,
    isolated: Family<DirectionLabels, Gauge>,
    cut_off: Gauge,
    ended: Counter,
}

impl Default for PolicyMetrics {
    fn default() -> Self {
        Self {
            syncs: super::usual(),
            failures: Counter::default(),
            policies: Gauge::default(),
            isolated: Family::default(),
            cut_off: Gauge::default(),
            ended: Counter::default(),
        }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl PolicyMetrics {
    /// Everything stands in the kernel: of so many policies, and so many pods cut off because of what theirs say.
    pub(crate) fn synced(&self, took: Duration, policies: usize, cut_off: usize) {
        self.syncs.observe(took.as_secs_f64());
        self.policies.set(number(policies));
        self.cut_off.set(number(cut_off));
    }

    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    /// So many pods here are isolated as receivers and as senders.
    pub(crate) fn isolated(&self, ingress: usize, egress: usize) {
        for (direction, count) in [("ingress", ingress), ("egress", egress)] {
            let labels = DirectionLabels { direction };
            self.isolated.get_or_create(&labels).set(number(count));
        }
    }

    /// So many connections were ended.
    pub(crate) fn ended(&self, count: usize) {
        self.ended.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(super) fn register(&self, to: &mut Registry) {
        to.register(
            "sync_duration_seconds",
            "How long writing what policies say has taken",
            self.syncs.clone(),
        );
        to.register(
            "sync_failures",
            "Writes that the kernel has refused",
            self.failures.clone(),
        );
        for (name, help, gauge) in [
            (
                "policies",
                "Network policies of the cluster",
                &self.policies,
            ),
            (
                "cut_off_pods",
                "Pods of this node that are cut off because their policies cannot be enforced",
                &self.cut_off,
            ),
        ] {
            to.register(name, help, gauge.clone());
        }
        to.register(
            "isolated_pods",
            "Pods of this node that policies isolate",
            self.isolated.clone(),
        );
        to.register(
            "ended_connections",
            "Connections that were ended because a policy forbids them",
            self.ended.clone(),
        );
    }
}
