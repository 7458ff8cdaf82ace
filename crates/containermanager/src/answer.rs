//! What the container manager and the pod workers tell each other about pods and containers.

use std::collections::BTreeMap;

use davit_proto::cri::v1 as cri;

use crate::compute::{ComputeOptions, Misfit};

/// Why a pod cannot run on this node. It becomes phase Failed with this reason; the status
/// message is `Pod was rejected: ` followed by `message`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    /// `UnexpectedAdmissionError`, `TopologyAffinityError` or `SMTAlignmentError`.
    pub reason: String,
    /// Human readable, without the prefix.
    pub message: String,
    /// The container whose request could not be met, if it is about one.
    pub container: Option<String>,
    /// The resource it was about, if it is about one.
    pub resource: Option<String>,
    /// What could not be placed, and what would have to be freed for it.
    pub misfit: Option<Box<Misfit>>,
}

/// Why a container cannot be created now (waiting reason `CreateContainerConfigError`); the
/// pod worker tries again with back-off.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub String);

/// What device plugins add to one container.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerOptions {
    /// Environment; goes before the pod's own variables, so that those win.
    pub envs: Vec<cri::KeyValue>,
    /// Mounts; go before volume mounts.
    pub mounts: Vec<cri::Mount>,
    /// Device nodes; go before block volume devices.
    pub devices: Vec<cri::Device>,
    /// Container annotations; the agent's own keys win over equal ones.
    pub annotations: BTreeMap<String, String>,
    /// Names for `CDI_devices`.
    pub cdi_devices: Vec<cri::CdiDevice>,
    /// CPUs and memory nodes.
    pub compute: ComputeOptions,
}

/// A container the runtime reported when the agent started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundContainer {
    /// UID of its pod.
    pub pod_uid: String,
    /// Name in the pod spec.
    pub container: String,
    /// Whether it was running (otherwise it had been created or had ended).
    pub running: bool,
}

/// How many devices of one resource the node has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceCount {
    /// For `status.capacity`.
    pub capacity: u64,
    /// For `status.allocatable`; overrides capacity minus reservation.
    pub allocatable: u64,
}
