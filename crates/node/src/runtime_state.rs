//! What the runtime says about one pod, in the node's own words.

use davit_oci::runtime::{Error, Runtime};
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::collections::HashMap;

/// Labels and annotations on sandboxes and containers, by which they are found again after a restart.
pub(crate) mod keys {
    /// Label: pod name.
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Label: pod namespace.
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Label: pod UID.
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Label: container name.
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of the parts of the container spec whose change restarts it.
    pub(crate) const HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: how often the container was started before.
    pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path of the termination message inside the container.
    pub(crate) const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub(crate) const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: container ports as JSON.
    pub(crate) const PORTS: &str = "io.kubernetes.container.ports";
    /// Annotation: preStop hook as JSON, needed when the pod is gone from the API.
    pub(crate) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    /// Annotation: `terminationGracePeriodSeconds` of the pod.
    pub(crate) const POD_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// Annotation: grace period of the deletion.
    pub(crate) const POD_DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
}

/// State of a container in the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

impl State {
    /// From the CRI enumeration.
    pub(crate) fn from_cri(state: i32) -> Self {
        match state {
            0 => Self::Created,
            1 => Self::Running,
            2 => Self::Exited,
            _ => Self::Unknown,
        }
    }
}

/// One instance of a container.
#[derive(Debug, Clone)]
pub(crate) struct ContainerRecord {
    /// Runtime ID.
    pub id: String,
    /// Name in the pod spec.
    pub name: String,
    /// State.
    pub state: State,
    /// When it was created.
    pub created: Timestamp,
    /// When it was started, if it was.
    pub started: Option<Timestamp>,
    /// When it ended, if it did.
    pub finished: Option<Timestamp>,
    /// Exit code, 128+n for signal n.
    pub exit_code: i32,
    /// The runtime's reason (`Completed`, `Error`, `OOMKilled`, …).
    pub reason: String,
    /// The runtime's message, or the termination message once read.
    pub message: String,
    /// Hash of the container spec it was created from.
    pub hash: String,
    /// How often the container had been started before.
    pub restart_count: u32,
    /// Image as the runtime reports it.
    pub image: String,
    /// Digest reference of the image.
    pub image_ref: String,
    /// Log file.
    pub log_path: String,
    /// Mounts as the runtime reports them, to find the termination message.
    pub mounts: Vec<cri::Mount>,
    /// The user the first process runs as.
    pub user: Option<cri::ContainerUser>,
    /// Annotations given at creation.
    pub annotations: BTreeMap<String, String>,
}

/// One sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxRecord {
    /// Runtime ID.
    pub id: String,
    /// How many sandboxes of the pod there were before.
    pub attempt: u32,
    /// Whether it is up.
    pub ready: bool,
    /// When it was created.
    pub created: Timestamp,
    /// Its addresses; empty for isolated and host-network pods.
    pub ips: Vec<String>,
    /// Whether it has the host's network.
    pub host_network: bool,
}

/// Everything the runtime has of one pod, newest first in each list.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodRuntime {
    /// Sandboxes.
    pub sandboxes: Vec<SandboxRecord>,
    /// Containers of all sandboxes.
    pub containers: Vec<ContainerRecord>,
}

impl PodRuntime {
    /// The newest instance of a container.
    pub(crate) fn latest(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The instance before the newest.
    pub(crate) fn previous(&self, name: &str) -> Option<&ContainerRecord> {
        self.containers.iter().filter(|c| c.name == name).nth(1)
    }

    /// The instance with this runtime ID.
    pub(crate) fn by_id(&self, id: &str) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.id == id)
    }

    /// The newest sandbox if it is up.
    pub(crate) fn ready_sandbox(&self) -> Option<&SandboxRecord> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// Containers that run, or may run.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.containers
            .iter()
            .filter(|c| matches!(c.state, State::Running | State::Unknown))
    }

    /// Whether nothing of the pod runs any more.
    pub(crate) fn is_quiet(&self) -> bool {
        self.alive().next().is_none() && !self.sandboxes.iter().any(|s| s.ready)
    }

    /// Addresses of the pod.
    pub(crate) fn ips(&self) -> &[String] {
        self.ready_sandbox().map_or(&[], |s| s.ips.as_slice())
    }
}

/// Asks the runtime for everything of the pod with `uid`.
///
/// # Errors
/// The runtime's; containers that vanish between list and status are left out.
pub(crate) async fn observe(runtime: &dyn Runtime, uid: &str) -> Result<PodRuntime, Error> {
    let labels = HashMap::from([(keys::POD_UID.to_owned(), uid.to_owned())]);
    let sandbox_filter = cri::PodSandboxFilter {
        label_selector: labels.clone().into_iter().collect(),
        ..cri::PodSandboxFilter::default()
    };
    let container_filter = cri::ContainerFilter {
        label_selector: labels.into_iter().collect(),
        ..cri::ContainerFilter::default()
    };
    let (sandboxes, containers) = tokio::join!(
        runtime.list_pod_sandboxes(Some(sandbox_filter)),
        runtime.list_containers(Some(container_filter))
    );
    let mut out = PodRuntime::default();
    for sandbox in sandboxes? {
        match runtime.pod_sandbox_status(&sandbox.id).await {
            Ok(status) => out.sandboxes.push(sandbox_record(&status)),
            Err(Error::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
    }
    for container in containers? {
        match runtime.container_status(&container.id).await {
            Ok(status) => out.containers.push(container_record(status)),
            Err(Error::NotFound(_)) => {}
            Err(e) => return Err(e),
        }
    }
    out.sandboxes
        .sort_by_key(|s| std::cmp::Reverse((s.created, s.attempt)));
    out.containers
        .sort_by_key(|c| std::cmp::Reverse((c.created, c.restart_count)));
    Ok(out)
}

fn sandbox_record(status: &cri::PodSandboxStatus) -> SandboxRecord {
    let network = status.network.as_ref();
    let mut ips: Vec<String> = network
        .map(|n| n.ip.clone())
        .filter(|ip| !ip.is_empty())
        .into_iter()
        .collect();
    ips.extend(
        network
            .iter()
            .flat_map(|n| &n.additional_ips)
            .map(|ip| ip.ip.clone()),
    );
    let options = status
        .linux
        .as_ref()
        .and_then(|l| l.namespaces.as_ref())
        .and_then(|n| n.options.as_ref());
    SandboxRecord {
        id: status.id.clone(),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        ready: status.state == cri::PodSandboxState::SandboxReady as i32,
        created: nanos(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        ips,
        host_network: options.is_some_and(|o| o.network == cri::NamespaceMode::Node as i32),
    }
}

fn container_record(status: cri::ContainerStatus) -> ContainerRecord {
    let label = |key: &str| status.labels.get(key).cloned();
    let name = label(keys::CONTAINER_NAME)
        .or_else(|| status.metadata.as_ref().map(|m| m.name.clone()))
        .unwrap_or_default();
    let attempt = status.metadata.as_ref().map_or(0, |m| m.attempt);
    let annotations: BTreeMap<String, String> = status.annotations.into_iter().collect();
    ContainerRecord {
        name,
        state: State::from_cri(status.state),
        created: nanos(status.created_at).unwrap_or(Timestamp::UNIX_EPOCH),
        started: nanos(status.started_at),
        finished: nanos(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        hash: annotations.get(keys::HASH).cloned().unwrap_or_default(),
        restart_count: annotations
            .get(keys::RESTART_COUNT)
            .and_then(|n| n.parse().ok())
            .unwrap_or(attempt),
        image: status
            .image
            .map(|i| {
                if i.user_specified_image.is_empty() {
                    i.image
                } else {
                    i.user_specified_image
                }
            })
            .unwrap_or_default(),
        image_ref: status.image_ref,
        log_path: status.log_path,
        mounts: status.mounts,
        user: status.user,
        annotations,
        id: status.id,
    }
}

fn nanos(n: i64) -> Option<Timestamp> {
    if n <= 0 {
        None
    } else {
        Timestamp::from_nanosecond(i128::from(n)).ok()
    }
}

/// Hash of what makes a container a different one: its name and image. A changed hash restarts the container.
pub(crate) fn container_hash(container: &Container) -> String {
    let mut hasher = Sha256::new();
    hasher.update(container.name.as_bytes());
    hasher.update([0]);
    hasher.update(container.image.as_deref().unwrap_or_default().as_bytes());
    let digest = hasher.finalize();
    digest[..4]
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Labels of a sandbox: the pod's own and the ones it is found by.
pub(crate) fn sandbox_labels(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> = pod
        .metadata
        .labels
        .clone()
        .unwrap_or_default()
        .into_iter()
        .collect();
    labels.insert(keys::POD_NAME.to_owned(), pod.pod_name().to_owned());
    labels.insert(keys::POD_NAMESPACE.to_owned(), pod.ns().to_owned());
    labels.insert(keys::POD_UID.to_owned(), pod.uid().to_owned());
    labels
}

/// Labels of a container.
pub(crate) fn container_labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    HashMap::from([
        (keys::POD_NAME.to_owned(), pod.pod_name().to_owned()),
        (keys::POD_NAMESPACE.to_owned(), pod.ns().to_owned()),
        (keys::POD_UID.to_owned(), pod.uid().to_owned()),
        (keys::CONTAINER_NAME.to_owned(), container.name.clone()),
    ])
}

/// Annotations of a container; the node's own keys.
pub(crate) fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> HashMap<String, String> {
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    let mut out = HashMap::from([
        (keys::HASH.to_owned(), container_hash(container)),
        (keys::RESTART_COUNT.to_owned(), restart_count.to_string()),
        (
            keys::TERMINATION_PATH.to_owned(),
            container
                .termination_message_path
                .clone()
                .unwrap_or_else(|| "/dev/termination-log".to_owned()),
        ),
        (
            keys::TERMINATION_POLICY.to_owned(),
            container
                .termination_message_policy
                .clone()
                .unwrap_or_else(|| "File".to_owned()),
        ),
        (
            keys::POD_GRACE.to_owned(),
            pod.pod_spec()
                .termination_grace_period_seconds
                .unwrap_or(30)
                .to_string(),
        ),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        out.insert(keys::POD_DELETION_GRACE.to_owned(), grace.to_string());
    }
    if let Some(hook) = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.pre_stop.as_ref())
    {
        out.insert(keys::PRE_STOP.to_owned(), json(serde_json::to_string(hook)));
    }
    if let Some(ports) = container.ports.as_ref().filter(|p| !p.is_empty()) {
        out.insert(keys::PORTS.to_owned(), json(serde_json::to_string(ports)));
    }
    out
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// The first instance of a container.
    pub(crate) fn record(name: &str, state: State, exit_code: i32) -> ContainerRecord {
        ContainerRecord {
            id: format!("id-{name}"),
            name: name.to_owned(),
            state,
            created: Timestamp::UNIX_EPOCH,
            started: Some(Timestamp::UNIX_EPOCH),
            finished: (state == State::Exited).then_some(Timestamp::UNIX_EPOCH),
            exit_code,
            reason: String::new(),
            message: String::new(),
            hash: String::new(),
            restart_count: 0,
            image: String::new(),
            image_ref: String::new(),
            log_path: String::new(),
            mounts: Vec::new(),
            user: None,
            annotations: BTreeMap::new(),
        }
    }
}
