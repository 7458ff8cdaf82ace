//! How a node tells the cluster of itself, as configured.

use std::time::Duration;

/// Making and keeping the Node object and its lease
/// (<https://kubernetes.io/docs/concepts/architecture/nodes/#node-heartbeats>). The defaults are the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reporting {
    /// Whether the agent makes its Node; else it waits for somebody else's (`registerNode`).
    pub register: bool,
    /// `spec.providerID` of a Node that the agent makes; none where it is empty.
    pub provider_id: String,
    /// `podCIDR`, which counts for a kubelet without API server only: it is shown and not used.
    pub pod_cidr: String,
    /// Seconds for which the lease is good; it is renewed after a quarter of them (`nodeLeaseDurationSeconds`).
    pub lease_seconds: i32,
    /// How often the status is computed; what differs is written (`nodeStatusUpdateFrequency`).
    pub update: Duration,
    /// How often it is written without a difference, for the times of its conditions (`nodeStatusReportFrequency`).
    pub report: Duration,
    /// How many images the status names; all without (`nodeStatusMaxImages`).
    pub max_images: Option<usize>,
}

impl Default for Reporting {
    fn default() -> Self {
        Self {
            register: true,
            provider_id: String::new(),
            pod_cidr: String::new(),
            lease_seconds: 40,
            update: Duration::from_secs(10),
            report: Duration::from_secs(5 * 60),
            max_images: Some(50),
        }
    }
}

impl Reporting {
    /// How often the lease is renewed.
    pub(crate) fn renewal(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_seconds).unwrap_or(0)) / 4
    }
}
