//! Security contexts of pods and containers in the words of the runtime.

use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SeccompProfile, SecurityContext,
};

/// Paths under /proc and /sys that containers must not see.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Counters of the processors' heat, by which containers could learn of each other's work (GHSA-6fw5-f8r9-fgfm).
fn thermal_throttles() -> impl Iterator<Item = String> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let entries = std::fs::read_dir(CPUS).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let number = name.strip_prefix("cpu")?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let path = entry.path().join("thermal_throttle");
        path.is_dir().then(|| path.display().to_string())
    })
}

/// Paths under /proc that containers must not change.
const READ_ONLY: &[&str] = &[
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Why a security context cannot be applied; message of `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// `runAsNonRoot` with UID 0 asked for.
    #[error(
        "container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})"
    )]
    AsksForRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// `procMount: Unmasked` with the node's users, of a pod that no API server has looked at.
    #[error("container {0:?} has procMount Unmasked, for which hostUsers must be false")]
    Unmasked(String),
    /// `runAsNonRoot` and the image's user is root.
    #[error(
        "container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})"
    )]
    ImageIsRoot {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// `runAsNonRoot` and the image names its user.
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \"{pod}\", container: {container})"
    )]
    NamedUser {
        /// The image's user.
        user: String,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
}

fn int64(value: i64) -> cri::Int64Value {
    cri::Int64Value { value }
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// Namespaces of the pod; `target` is the container whose processes an ephemeral container joins.
fn namespaces(
    pod: &Pod,
    target: Option<String>,
    users: Option<&cri::UserNamespace>,
) -> cri::NamespaceOption {
    let spec = pod.pod_spec();
    let pick = |host: Option<bool>, other: cri::NamespaceMode| {
        if host == Some(true) {
            cri::NamespaceMode::Node
        } else {
            other
        }
    };
    let own_pids = if spec.share_process_namespace == Some(true) {
        cri::NamespaceMode::Pod
    } else {
        cri::NamespaceMode::Container
    };
    let mut pid = pick(spec.host_pid, own_pids);
    if target.is_some() && pid == cri::NamespaceMode::Container {
        pid = cri::NamespaceMode::Target;
    }
    cri::NamespaceOption {
        network: pick(spec.host_network, cri::NamespaceMode::Pod) as i32,
        pid: pid as i32,
        ipc: pick(spec.host_ipc, cri::NamespaceMode::Pod) as i32,
        target_id: target.unwrap_or_default(),
        userns_options: users.cloned(),
    }
}

fn seccomp(profile: Option<&SeccompProfile>) -> cri::SecurityProfile {
    use cri::security_profile::ProfileType;
    let (kind, path) = match profile.map(|p| p.type_.as_str()) {
        Some("RuntimeDefault") => (ProfileType::RuntimeDefault, String::new()),
        Some("Localhost") => {
            let file = profile
                .and_then(|p| p.localhost_profile.clone())
                .unwrap_or_default();
            (ProfileType::Localhost, file)
        }
        None | Some("Unconfined") => (ProfileType::Unconfined, String::new()),
        // Of a static pod, say, which nobody has looked at: what is meant is a profile.
        Some(_) => (ProfileType::RuntimeDefault, String::new()),
    };
    cri::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: path,
    }
}

fn app_armor(profile: Option<&AppArmorProfile>) -> Option<cri::SecurityProfile> {
    use cri::security_profile::ProfileType;
    let profile = profile?;
    let kind = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        "Unconfined" => ProfileType::Unconfined,
        // Of a static pod, say, which nobody has looked at: what is meant is a profile.
        _ => ProfileType::RuntimeDefault,
    };
    Some(cri::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
    })
}

fn seccomp_with_root(
    profile: Option<&SeccompProfile>,
    seccomp_root: &std::path::Path,
) -> cri::SecurityProfile {
    let mut out = seccomp(profile);
    if !out.localhost_ref.is_empty() {
        out.localhost_ref = seccomp_root
            .join(&out.localhost_ref)
            .to_string_lossy()
            .into_owned();
    }
    out
}

fn groups(context: Option<&PodSecurityContext>) -> Vec<i64> {
    let mut out: Vec<i64> = context.and_then(|c| c.fs_group).into_iter().collect();
    out.extend(
        context
            .iter()
            .flat_map(|c| c.supplemental_groups.iter().flatten()),
    );
    out
}

fn groups_policy(context: Option<&PodSecurityContext>) -> i32 {
    match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => cri::SupplementalGroupsPolicy::Strict as i32,
        _ => cri::SupplementalGroupsPolicy::Merge as i32,
    }
}

/// Security context of the sandbox; `users` where they are not the host's.
pub(crate) fn sandbox(
    pod: &Pod,
    seccomp_root: &std::path::Path,
    users: Option<&cri::UserNamespace>,
) -> cri::LinuxSandboxSecurityContext {
    let context = pod.pod_spec().security_context.as_ref();
    let privileged = pod.all_containers().iter().any(|(_, c)| {
        c.security_context
            .as_ref()
            .is_some_and(|s| s.privileged == Some(true))
    });
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, None, users)),
        run_as_user: context.and_then(|c| c.run_as_user).map(int64),
        run_as_group: context.and_then(|c| c.run_as_group).map(int64),
        supplemental_groups: groups(context),
        supplemental_groups_policy: groups_policy(context),
        privileged,
        // The sandbox itself runs nothing of the pod's and always has the default filter.
        seccomp: Some(seccomp_with_root(
            Some(&SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            seccomp_root,
        )),
        ..cri::LinuxSandboxSecurityContext::default()
    }
}

/// The user an image runs as: its number, or its name.
pub(crate) struct ImageUser<'a> {
    /// Numeric user.
    pub uid: Option<i64>,
    /// Named user.
    pub name: &'a str,
}

/// What the node has for the seccomp profiles of containers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeccompOptions<'a> {
    /// Where profiles of files are.
    pub root: &'a std::path::Path,
    /// Containers that name no profile get the runtime's (`seccompDefault`).
    pub by_default: bool,
}

impl SeccompOptions<'_> {
    fn profile(self, own: Option<&SeccompProfile>) -> cri::SecurityProfile {
        let of_runtime = SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        };
        let fallback = self.by_default.then_some(&of_runtime);
        seccomp_with_root(own.or(fallback), self.root)
    }
}

/// Security context of a container.
///
/// # Errors
/// `runAsNonRoot` that cannot be kept.
pub(crate) fn container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser<'_>,
    target: Option<String>,
    seccomp_options: SeccompOptions<'_>,
    users: Option<&cri::UserNamespace>,
) -> Result<cri::LinuxContainerSecurityContext, Error> {
    let of_pod = pod.pod_spec().security_context.as_ref();
    let own = container.security_context.as_ref();
    let user = own
        .and_then(|c| c.run_as_user)
        .or(of_pod.and_then(|c| c.run_as_user));
    verify_non_root(pod, container, own, of_pod, user, image)?;
    let privileged = own.and_then(|c| c.privileged).unwrap_or(false);
    let capabilities = own.and_then(|c| c.capabilities.as_ref());
    // With the node's users nothing but the masks is between root in the container and the kernel's settings.
    let asks = own.and_then(|c| c.proc_mount.as_deref()) == Some("Unmasked");
    if asks && !privileged && users.is_none() {
        return Err(Error::Unmasked(container.name.clone()));
    }
    let unmasked = privileged || asks;
    let mut out = cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: capabilities.and_then(|c| c.add.clone()).unwrap_or_default(),
            drop_capabilities: capabilities
                .and_then(|c| c.drop.clone())
                .unwrap_or_default(),
            ..cri::Capability::default()
        }),
        privileged,
        namespace_options: Some(namespaces(pod, target, users)),
        run_as_user: user.map(int64),
        run_as_group: own
            .and_then(|c| c.run_as_group)
            .or(of_pod.and_then(|c| c.run_as_group))
            .map(int64),
        readonly_rootfs: own
            .and_then(|c| c.read_only_root_filesystem)
            .unwrap_or(false),
        supplemental_groups: groups(of_pod),
        supplemental_groups_policy: groups_policy(of_pod),
        no_new_privs: own.and_then(|c| c.allow_privilege_escalation) == Some(false),
        seccomp: Some(
            seccomp_options.profile(
                own.and_then(|c| c.seccomp_profile.as_ref())
                    .or(of_pod.and_then(|c| c.seccomp_profile.as_ref())),
            ),
        ),
        apparmor: app_armor(
            own.and_then(|c| c.app_armor_profile.as_ref())
                .or(of_pod.and_then(|c| c.app_armor_profile.as_ref())),
        ),
        ..cri::LinuxContainerSecurityContext::default()
    };
    if privileged {
        out.seccomp = Some(seccomp(None));
    }
    if !unmasked {
        out.masked_paths = strings(MASKED);
        out.masked_paths.extend(thermal_throttles());
        out.readonly_paths = strings(READ_ONLY);
    }
    let labels = own
        .and_then(|c| c.se_linux_options.as_ref())
        .or(of_pod.and_then(|c| c.se_linux_options.as_ref()));
    out.selinux_options = labels.map(|o| cri::SeLinuxOption {
        user: o.user.clone().unwrap_or_default(),
        role: o.role.clone().unwrap_or_default(),
        r#type: o.type_.clone().unwrap_or_default(),
        level: o.level.clone().unwrap_or_default(),
    });
    if out.run_as_user.is_none() {
        // The runtime needs a user when only a group is given.
        match image.uid {
            Some(uid) => out.run_as_user = out.run_as_group.as_ref().map(|_| int64(uid)),
            None if !image.name.is_empty() => image.name.clone_into(&mut out.run_as_username),
            None => {}
        }
    }
    Ok(out)
}

fn verify_non_root(
    pod: &Pod,
    container: &Container,
    own: Option<&SecurityContext>,
    of_pod: Option<&PodSecurityContext>,
    user: Option<i64>,
    image: &ImageUser<'_>,
) -> Result<(), Error> {
    let wanted = own
        .and_then(|c| c.run_as_non_root)
        .or(of_pod.and_then(|c| c.run_as_non_root))
        .unwrap_or(false);
    if !wanted {
        return Ok(());
    }
    let (name, container) = (pod.format(), container.name.clone());
    match (user, image.uid) {
        (Some(0), _) => Err(Error::AsksForRoot {
            pod: name,
            container,
        }),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(Error::ImageIsRoot {
            pod: name,
            container,
        }),
        (None, None) if !image.name.is_empty() => Err(Error::NamedUser {
            user: image.name.to_owned(),
            pod: name,
            container,
        }),
        (None, None) => Err(Error::ImageIsRoot {
            pod: name,
            container,
        }),
        (None, Some(uid)) if u32::try_from(uid).is_ok() => Ok(()),
        // A runtime that reports a number which no user can have will look for a name that reads so.
        (None, Some(uid)) => Err(Error::NamedUser {
            user: uid.to_string(),
            pod: name,
            container,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    fn one(
        pod_context: serde_json::Value,
        own: serde_json::Value,
        uid: Option<i64>,
    ) -> Result<cri::LinuxContainerSecurityContext, Error> {
        with_default(&pod_context, &own, uid, false)
    }

    fn with_default(
        pod_context: &serde_json::Value,
        own: &serde_json::Value,
        uid: Option<i64>,
        by_default: bool,
    ) -> Result<cri::LinuxContainerSecurityContext, Error> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"securityContext": pod_context, "containers": [{"name": "c", "securityContext": own}]},
        }))
        .unwrap();
        container(
            &pod,
            &pod.pod_spec().containers[0],
            &ImageUser { uid, name: "" },
            None,
            SeccompOptions {
                root: Path::new("/seccomp"),
                by_default,
            },
            None,
        )
    }

    #[test]
    fn a_profile_by_default() {
        use cri::security_profile::ProfileType;
        let kind = |of_pod, own, by_default| {
            let context = with_default(&of_pod, &own, None, by_default).unwrap();
            context.seccomp.unwrap().profile_type()
        };
        let named = |name: &str| json!({"seccompProfile": {"type": name}});
        assert_eq!(
            kind(json!({}), json!({}), true),
            ProfileType::RuntimeDefault
        );
        assert_eq!(kind(json!({}), json!({}), false), ProfileType::Unconfined);
        let unconfined = named("Unconfined");
        assert_eq!(
            kind(json!({}), unconfined.clone(), true),
            ProfileType::Unconfined
        );
        assert_eq!(kind(unconfined, json!({}), true), ProfileType::Unconfined);
        let privileged = json!({"privileged": true});
        assert_eq!(kind(json!({}), privileged, true), ProfileType::Unconfined);
    }

    #[test]
    fn container_wins_over_pod() {
        let c = one(
            json!({"runAsUser": 5, "fsGroup": 7, "supplementalGroups": [8], "seccompProfile": {"type": "RuntimeDefault"}}),
            json!({"runAsUser": 6, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}),
            None,
        )
        .unwrap();
        assert_eq!(c.run_as_user.unwrap().value, 6);
        assert_eq!(c.supplemental_groups, [7, 8]);
        assert!(c.no_new_privs && !c.masked_paths.is_empty());
        assert_eq!(c.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert_eq!(
            c.seccomp.unwrap().profile_type,
            cri::security_profile::ProfileType::RuntimeDefault as i32
        );
    }

    #[test]
    fn non_root_is_verified() {
        let want = json!({"runAsNonRoot": true});
        let text = |r: Result<_, Error>| r.err().map(|e| e.to_string());
        assert_eq!(
            text(one(want.clone(), json!({}), Some(0))).unwrap(),
            "container has runAsNonRoot and image will run as root (pod: \"p_ns(u)\", container: c)"
        );
        assert!(
            text(one(want.clone(), json!({"runAsUser": 0}), Some(5)))
                .unwrap()
                .contains("breaks non-root policy")
        );
        assert_eq!(text(one(want.clone(), json!({}), Some(5))), None);
        for odd in [-1, 1 << 32] {
            let refused = text(one(want.clone(), json!({}), Some(odd))).unwrap();
            assert!(refused.contains("non-numeric user"), "{refused}");
        }
        assert_eq!(text(one(want, json!({"runAsUser": 9}), Some(0))), None);
    }

    #[test]
    fn privileged_is_unmasked() {
        let c = one(json!({}), json!({"privileged": true}), None).unwrap();
        assert!(c.masked_paths.is_empty() && c.readonly_paths.is_empty() && c.privileged);
    }
}
