//! Reading a Pod: small questions that every part of the node asks of the object.

use davit_client::object_ref;
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, EphemeralContainer, ObjectReference, Pod, PodSpec, PodStatus,
};
use std::sync::LazyLock;

/// Annotation of a pod's origin: `file` for static pods, `api` otherwise.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// Annotation of the mirror of a static pod, holding the hash of its manifest.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotation of a static pod: hash of its manifest.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// Which list of the pod spec a container is in, and how it behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// An init container that must end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always` (KEP-753).
    Sidecar,
    /// An app container.
    Main,
    /// An ephemeral (debug) container.
    Ephemeral,
}

impl Role {
    /// Name of the list of the pod spec, as used in field paths.
    pub fn list(self) -> &'static str {
        match self {
            Self::Init | Self::Sidecar => "initContainers",
            Self::Main => "containers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }

    /// The word that the original puts into the field path of events.
    pub fn field_path(self, name: &str) -> String {
        format!("spec.{}{{{name}}}", self.list())
    }
}

/// Why a container waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// CamelCase reason (`ErrImagePull`, `CrashLoopBackOff`, …).
    pub reason: String,
    /// What happened.
    pub message: String,
}

/// What the node asks of a pod.
pub trait PodExt {
    /// The pod's UID, empty when it has none.
    fn uid(&self) -> &str;
    /// The pod's name.
    fn pod_name(&self) -> &str;
    /// The pod's namespace.
    fn ns(&self) -> &str;
    /// The spec; an empty one for an object without spec.
    fn pod_spec(&self) -> &PodSpec;
    /// The status; an empty one when there is none.
    fn pod_status(&self) -> &PodStatus;
    /// An annotation's value.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// All containers with their roles, in the order of the spec: init, main, ephemeral.
    fn all_containers(&self) -> Vec<(Role, std::borrow::Cow<'_, Container>)>;
    /// Looks a container up by name in all lists.
    fn container(&self, name: &str) -> Option<(Role, std::borrow::Cow<'_, Container>)>;
    /// `restartPolicy`, `Always` when not given.
    fn restart_policy(&self) -> &str;
    /// Whether the phase is Succeeded or Failed.
    fn is_terminal(&self) -> bool;
    /// Whether the pod came from the node's own directory.
    fn is_static(&self) -> bool;
    /// Whether the object only mirrors a static pod.
    fn is_mirror(&self) -> bool;
    /// `hostNetwork`.
    fn host_network(&self) -> bool;
    /// Deletion has been asked for.
    fn is_deleting(&self) -> bool;
    /// Seconds between the stop signal and SIGKILL: the running deletion's, else the spec's, else 30.
    fn grace_seconds(&self) -> i64;
    /// `name_namespace(uid)`, the form of upstream's messages.
    fn format(&self) -> String;
    /// A reference for events about the pod.
    fn reference(&self) -> ObjectReference;
    /// A reference for events about one container.
    fn container_reference(&self, role: Role, name: &str) -> ObjectReference;
    /// The host name inside the pod (first 63 characters of `spec.hostname` or the name).
    fn hostname(&self) -> String;
}

static EMPTY_SPEC: LazyLock<PodSpec> = LazyLock::new(PodSpec::default);
static EMPTY_STATUS: LazyLock<PodStatus> = LazyLock::new(PodStatus::default);

impl PodExt for Pod {
    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn pod_name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn ns(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    fn pod_spec(&self) -> &PodSpec {
        self.spec.as_ref().unwrap_or(&EMPTY_SPEC)
    }

    fn pod_status(&self) -> &PodStatus {
        self.status.as_ref().unwrap_or(&EMPTY_STATUS)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    fn all_containers(&self) -> Vec<(Role, std::borrow::Cow<'_, Container>)> {
        use std::borrow::Cow;
        let spec = self.pod_spec();
        let init = spec
            .init_containers
            .iter()
            .flatten()
            .map(|c| (init_role(c), Cow::Borrowed(c)));
        let main = spec
            .containers
            .iter()
            .map(|c| (Role::Main, Cow::Borrowed(c)));
        let ephemeral = spec
            .ephemeral_containers
            .iter()
            .flatten()
            .map(|c| (Role::Ephemeral, Cow::Owned(ephemeral_as_container(c))));
        init.chain(main).chain(ephemeral).collect()
    }

    fn container(&self, name: &str) -> Option<(Role, std::borrow::Cow<'_, Container>)> {
        self.all_containers()
            .into_iter()
            .find(|(_, c)| c.name == name)
    }

    fn restart_policy(&self) -> &str {
        self.pod_spec()
            .restart_policy
            .as_deref()
            .unwrap_or("Always")
    }

    fn is_terminal(&self) -> bool {
        matches!(
            self.pod_status().phase.as_deref(),
            Some("Succeeded" | "Failed")
        )
    }

    fn is_static(&self) -> bool {
        self.annotation(CONFIG_SOURCE).is_some_and(|s| s != "api") && !self.is_mirror()
    }

    fn is_mirror(&self) -> bool {
        self.annotation(CONFIG_MIRROR).is_some()
    }

    fn host_network(&self) -> bool {
        self.pod_spec().host_network.unwrap_or(false)
    }

    fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn grace_seconds(&self) -> i64 {
        self.metadata
            .deletion_grace_period_seconds
            .or(self.pod_spec().termination_grace_period_seconds)
            .unwrap_or(30)
            .max(0)
    }

    fn format(&self) -> String {
        format!("{}_{}({})", self.pod_name(), self.ns(), self.uid())
    }

    fn reference(&self) -> ObjectReference {
        let mut reference = object_ref(self);
        if self.is_static() {
            // Events about a static pod must be found by `kubectl describe` of its mirror, which upstream refers to by
            // the manifest's hash.
            reference.uid = self
                .annotation(CONFIG_HASH)
                .map(str::to_owned)
                .or(reference.uid);
        }
        reference
    }

    fn container_reference(&self, role: Role, name: &str) -> ObjectReference {
        ObjectReference {
            field_path: Some(role.field_path(name)),
            ..self.reference()
        }
    }

    fn hostname(&self) -> String {
        let spec = self.pod_spec();
        if let Some(name) = spec.hostname_override.as_deref().filter(|n| !n.is_empty()) {
            return name.to_owned();
        }
        let name = spec
            .hostname
            .as_deref()
            .filter(|n| !n.is_empty())
            .unwrap_or(self.pod_name());
        let cut: String = name.chars().take(63).collect();
        cut.trim_end_matches(['-', '.']).to_owned()
    }
}

/// Role of a container of the `initContainers` list.
pub fn init_role(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") {
        Role::Sidecar
    } else {
        Role::Init
    }
}

/// Most containers of a pod, init containers included. Each has a monitor, which is not within the pod's limits: one of as many
/// as an object has room for takes all memory of its node.
pub const MOST_CONTAINERS: usize = 1_000;

/// Refuses a pod of more than [`MOST_CONTAINERS`].
///
/// # Errors
/// How many it has.
pub fn check_number(spec: &PodSpec) -> Result<(), String> {
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    if count > MOST_CONTAINERS {
        return Err(format!(
            "the pod has {count} containers, more than {MOST_CONTAINERS}"
        ));
    }
    Ok(())
}

/// An ephemeral container has the fields of a container plus its target.
pub fn ephemeral_as_container(c: &EphemeralContainer) -> Container {
    Container {
        args: c.args.clone(),
        command: c.command.clone(),
        env: c.env.clone(),
        env_from: c.env_from.clone(),
        image: c.image.clone(),
        image_pull_policy: c.image_pull_policy.clone(),
        name: c.name.clone(),
        resources: c.resources.clone(),
        security_context: c.security_context.clone(),
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path.clone(),
        termination_message_policy: c.termination_message_policy.clone(),
        tty: c.tty,
        volume_devices: c.volume_devices.clone(),
        volume_mounts: c.volume_mounts.clone(),
        working_dir: c.working_dir.clone(),
        ..Container::default()
    }
}

/// The first restart rule of a container that its exit code matches.
pub fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    let rules = container.restart_policy_rules.iter().flatten();
    rules.into_iter().find(|rule| {
        let Some(codes) = &rule.exit_codes else {
            return false;
        };
        let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

/// Whether a container that ended with `exit_code` is to be started again (restart rules of the container first, then
/// its own policy, then the pod's; KEP-5307).
pub fn restarts_after_exit(pod: &Pod, role: Role, container: &Container, exit_code: i32) -> bool {
    match role {
        Role::Sidecar => return true,
        Role::Ephemeral => return false,
        Role::Init | Role::Main => {}
    }
    if matching_rule(container, exit_code).is_some() {
        return true;
    }
    match container
        .restart_policy
        .as_deref()
        .unwrap_or(pod.restart_policy())
    {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ if role == Role::Init => exit_code != 0,
        _ => true,
    }
}
