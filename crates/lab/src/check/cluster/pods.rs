//! What pods ask for, and what namespaces would admit: sections 5.2, 5.4 and 5.6 of the benchmark.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EphemeralContainer, Pod, PodSpec, SeccompProfile, SecurityContext,
};

use super::facts::{Facts, named};
use super::probes::Control;
use super::{CheckResult, Finding, Judged};

/// What a pod does about a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Does {
    /// Nothing against it.
    Keeps,
    /// It leaves it to defaults that are wide.
    LeavesOpen,
    /// What the control is against.
    Breaks,
}

/// A container of any sort, as far as security goes.
struct Any<'a> {
    context: Option<&'a SecurityContext>,
    host_ports: bool,
    secret_env: bool,
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = Any<'_>> {
    let plain = |c: &'_ Container| -> bool {
        c.ports
            .iter()
            .flatten()
            .any(|p| p.host_port.is_some_and(|port| port != 0))
    };
    let init = spec.init_containers.iter().flatten();
    let all = init.chain(&spec.containers).map(move |c| Any {
        context: c.security_context.as_ref(),
        host_ports: plain(c),
        secret_env: secret_env(c.env.as_deref(), c.env_from.as_deref()),
    });
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    all.chain(ephemeral.map(|c: &EphemeralContainer| Any {
        context: c.security_context.as_ref(),
        host_ports: false,
        secret_env: secret_env(c.env.as_deref(), c.env_from.as_deref()),
    }))
}

fn secret_env(
    env: Option<&[k8s_openapi::api::core::v1::EnvVar]>,
    from: Option<&[k8s_openapi::api::core::v1::EnvFromSource]>,
) -> bool {
    let mut env = env.into_iter().flatten();
    let mut from = from.into_iter().flatten();
    env.any(|e| {
        e.value_from
            .as_ref()
            .is_some_and(|v| v.secret_key_ref.is_some())
    }) || from.any(|f| f.secret_ref.is_some())
}

/// The worst that any container does.
fn worst(spec: &PodSpec, does: impl Fn(&Any<'_>) -> Does) -> Does {
    containers(spec)
        .map(|c| does(&c))
        .max()
        .unwrap_or(Does::Keeps)
}

fn if_so(breaks: bool) -> Does {
    if breaks { Does::Breaks } else { Does::Keeps }
}

impl Control {
    /// What a pod does about it.
    fn of(self, spec: &PodSpec) -> Does {
        let pod = spec.security_context.as_ref();
        match self {
            Self::Privileged => worst(spec, |c| {
                if_so(c.context.and_then(|s| s.privileged) == Some(true))
            }),
            Self::HostPid => if_so(spec.host_pid == Some(true)),
            Self::HostIpc => if_so(spec.host_ipc == Some(true)),
            Self::HostNetwork => if_so(spec.host_network == Some(true)),
            Self::Escalation => worst(spec, |c| {
                match c.context.and_then(|s| s.allow_privilege_escalation) {
                    Some(true) => Does::Breaks,
                    Some(false) => Does::Keeps,
                    None => Does::LeavesOpen,
                }
            }),
            Self::Root => worst(spec, |c| {
                let user = c.context.and_then(|s| s.run_as_user);
                let user = user.or_else(|| pod.and_then(|s| s.run_as_user));
                let non_root = c.context.and_then(|s| s.run_as_non_root);
                let non_root = non_root.or_else(|| pod.and_then(|s| s.run_as_non_root));
                match (user, non_root) {
                    (Some(0), _) => Does::Breaks,
                    (Some(_), _) | (None, Some(true)) => Does::Keeps,
                    (None, _) => Does::LeavesOpen,
                }
            }),
            Self::NetRaw => worst(spec, |c| {
                capabilities(c, |name| name == "NET_RAW", &["NET_RAW", "ALL"])
            }),
            Self::Capabilities => worst(spec, |c| {
                capabilities(c, |name| name != "NET_BIND_SERVICE", &["ALL"])
            }),
            Self::HostProcess => {
                let windows = pod.and_then(|s| s.windows_options.as_ref());
                let of_pod = windows.and_then(|w| w.host_process) == Some(true);
                let of_containers = worst(spec, |c| {
                    let windows = c.context.and_then(|s| s.windows_options.as_ref());
                    if_so(windows.and_then(|w| w.host_process) == Some(true))
                });
                if_so(of_pod).max(of_containers)
            }
            Self::HostPath => {
                let mut volumes = spec.volumes.iter().flatten();
                if_so(volumes.any(|v| v.host_path.is_some()))
            }
            Self::HostPorts => worst(spec, |c| if_so(c.host_ports)),
        }
    }
}

fn capabilities(c: &Any<'_>, bad: impl Fn(&str) -> bool, drops: &[&str]) -> Does {
    let given: Option<&Capabilities> = c.context.and_then(|s| s.capabilities.as_ref());
    let mut added = given.and_then(|g| g.add.as_ref()).into_iter().flatten();
    let mut dropped = given.and_then(|g| g.drop.as_ref()).into_iter().flatten();
    if added.any(|name| name == "ALL" || bad(name.trim_start_matches("CAP_"))) {
        Does::Breaks
    } else if dropped.any(|name| drops.contains(&name.trim_start_matches("CAP_"))) {
        Does::Keeps
    } else {
        Does::LeavesOpen
    }
}

/// Judges a control: pods that break it fail; those that leave it open and namespaces that would admit it warn.
fn control(facts: &Facts, control: Control) -> Judged {
    let (mut breaking, mut open) = (Vec::new(), Vec::new());
    for pod in facts.workloads()? {
        let Some(spec) = &pod.spec else { continue };
        match control.of(spec) {
            Does::Breaks => breaking.push(format!("pod {}", named(&pod.metadata))),
            Does::LeavesOpen => open.push(format!("pod {} leaves it open", named(&pod.metadata))),
            Does::Keeps => {}
        }
    }
    for (namespace, admits) in &facts.tried.admits {
        let admitted = admits
            .as_ref()
            .is_ok_and(|a| a.get(&control) == Some(&true));
        if admitted {
            open.push(format!("namespace {namespace} admits it"));
        }
    }
    let mut finding = Finding::graded(
        breaking,
        "pods",
        open,
        "pods and namespaces leave it open",
        "no pod, and no namespace that was tried admits it",
    );
    if let Some(why) = facts
        .tried
        .no_dry_run
        .as_deref()
        .filter(|_| finding.verdict == CheckResult::Pass)
    {
        finding.seen = format!("no pod; what is admitted was not tried: {why}");
    }
    Ok(finding)
}

macro_rules! controls {
    ($($name:ident: $control:ident),* $(,)?) => {
        $(pub(super) fn $name(facts: &Facts) -> Judged {
            control(facts, Control::$control)
        })*
    };
}

controls! {
    privileged: Privileged,
    host_pid: HostPid,
    host_ipc: HostIpc,
    host_network: HostNetwork,
    escalation: Escalation,
    root: Root,
    net_raw: NetRaw,
    added_capabilities: Capabilities,
    host_process: HostProcess,
    host_path: HostPath,
    host_ports: HostPorts,
}

/// Pods of which something is to be said.
fn pods_that(facts: &Facts, does: impl Fn(&PodSpec) -> bool, why: &str, good: &str) -> Judged {
    let workloads = facts.workloads()?;
    if workloads.is_empty() {
        return Err("no pods but the cluster's own".to_owned());
    }
    let such = workloads
        .iter()
        .filter(|pod| pod.spec.as_ref().is_some_and(&does));
    let names = such.map(|pod: &&Pod| named(&pod.metadata)).collect();
    Ok(Finding::graded(names, why, Vec::new(), "", good))
}

pub(super) fn secrets_in_environment(facts: &Facts) -> Judged {
    let does = |spec: &PodSpec| containers(spec).any(|c| c.secret_env);
    pods_that(
        facts,
        does,
        "pods have Secrets in their environment",
        "no pod has one",
    )
}

pub(super) fn seccomp(facts: &Facts) -> Judged {
    let set = |profile: Option<&SeccompProfile>| {
        profile.map(|p| p.type_ == "RuntimeDefault" || p.type_ == "Localhost")
    };
    let without = |spec: &PodSpec| {
        let of_pod = set(spec
            .security_context
            .as_ref()
            .and_then(|s| s.seccomp_profile.as_ref()));
        containers(spec).any(|c| {
            let own = set(c.context.and_then(|s| s.seccomp_profile.as_ref()));
            !own.or(of_pod).unwrap_or(false)
        })
    };
    pods_that(
        facts,
        without,
        "pods run without a seccomp profile of their spec",
        "every pod names one",
    )
}

pub(super) fn contexts(facts: &Facts) -> Judged {
    let without = |spec: &PodSpec| {
        let of_pod = spec
            .security_context
            .as_ref()
            .is_some_and(|s| *s != Default::default());
        !of_pod && containers(spec).any(|c| c.context.is_none())
    };
    pods_that(
        facts,
        without,
        "pods say nothing about security",
        "every pod has a securityContext",
    )
}
