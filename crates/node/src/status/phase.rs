//! The phase of a pod out of the states of its containers.

use super::Input;
use crate::restart_all;
use davit_pods::pod::{PodExt, Role, init_role, restarts_after_exit};
use k8s_openapi::api::core::v1::{
    Container, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};

#[derive(Default)]
struct Count {
    waiting: usize,
    running: usize,
    stopped: usize,
    /// Of those, the ones that are not started again.
    for_good: usize,
    succeeded: usize,
    unknown: usize,
}

pub(super) fn phase(input: &Input<'_>, status: &PodStatus) -> &'static str {
    if input.verdict.is_some() && input.is_over() {
        return "Failed";
    }
    match by_containers(input, status) {
        // KEP-3329: whoever waits for the end of a pod that was deleted before it began is to see one.
        "Pending" | "Running" if input.ended && !input.pod.is_static() => "Failed",
        phase => phase,
    }
}

fn by_containers(input: &Input<'_>, status: &PodStatus) -> &'static str {
    let pod = input.pod;
    let inits = pod
        .pod_spec()
        .init_containers
        .as_deref()
        .unwrap_or_default();
    let mains = status.container_statuses.as_deref().unwrap_or_default();
    let started = mains
        .iter()
        .any(|c| state_running(c) || state_terminated(c).is_some() || last_terminated(c).is_some());
    let mut init_pending = false;
    let mut sidecar_pending = false;
    let mut init_failed = false;
    let mut init_failed_for_good = false;
    let mut sidecar_runs = false;
    let init_statuses = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    for container in inits {
        let found = init_statuses.iter().find(|s| s.name == container.name);
        match (init_role(container), found) {
            (Role::Sidecar, Some(s)) => {
                sidecar_pending |= s.started != Some(true) && state_terminated(s).is_none();
                sidecar_runs |= state_running(s);
            }
            (Role::Sidecar, None) => sidecar_pending = true,
            (role, Some(s)) => {
                let ended = state_terminated(s);
                init_pending |= ended.is_none();
                let failed = ended.or_else(|| last_terminated(s));
                if let Some(end) = failed.filter(|end| end.exit_code != 0) {
                    init_failed = true;
                    init_failed_for_good |= !comes_back(pod, role, container, end);
                }
            }
            (_, None) => init_pending = true,
        }
    }
    if init_failed_for_good {
        return "Failed";
    }
    if !started && (init_pending || init_failed || sidecar_pending) {
        return "Pending";
    }
    let count = count(pod, mains);
    if count.waiting > 0 {
        return "Pending";
    }
    if count.running > 0 && count.unknown == 0 {
        return "Running";
    }
    if count.running == 0 && count.stopped > 0 && count.unknown == 0 {
        return stopped_phase(input, &count, sidecar_runs);
    }
    "Pending"
}

/// Whether a container is started again after this end: its rules and policies say so, or all containers are restarted.
fn comes_back(
    pod: &Pod,
    role: Role,
    container: &Container,
    end: &ContainerStateTerminated,
) -> bool {
    end.reason.as_deref() == Some(restart_all::REASON)
        || restarts_after_exit(pod, role, container, end.exit_code)
}

fn stopped_phase(input: &Input<'_>, count: &Count, sidecar_runs: bool) -> &'static str {
    if input.ended {
        return if count.stopped == count.succeeded {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    // Sidecars of a finished pod are still to be stopped.
    if sidecar_runs || input.ending {
        return "Running";
    }
    if count.for_good < count.stopped {
        "Running"
    } else if count.stopped == count.succeeded {
        "Succeeded"
    } else {
        "Failed"
    }
}

fn count(pod: &Pod, statuses: &[ContainerStatus]) -> Count {
    let mut out = Count::default();
    for container in &pod.pod_spec().containers {
        let Some(status) = statuses.iter().find(|s| s.name == container.name) else {
            out.unknown += 1;
            continue;
        };
        let ended = state_terminated(status);
        if state_running(status) {
            out.running += 1;
        } else if let Some(end) = ended.or_else(|| last_terminated(status)) {
            out.stopped += 1;
            out.succeeded += usize::from(ended.is_some_and(|e| e.exit_code == 0));
            out.for_good += usize::from(!comes_back(pod, Role::Main, container, end));
        } else if status.state.as_ref().is_some_and(|s| s.waiting.is_some()) {
            out.waiting += 1;
        } else {
            out.unknown += 1;
        }
    }
    out
}

fn state_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn state_terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

fn last_terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.last_state.as_ref()?.terminated.as_ref()
}
