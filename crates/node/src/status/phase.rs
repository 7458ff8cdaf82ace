//! The phase of a pod out of the states of its containers.

use super::Input;
use crate::pod::{PodExt, Role, init_role};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

#[derive(Default)]
struct Count {
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
    unknown: usize,
}

pub(super) fn phase(input: &Input<'_>, status: &PodStatus) -> &'static str {
    if input.verdict.is_some() && input.is_over() {
        return "Failed";
    }
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
            (_, Some(s)) => match state_terminated(s) {
                Some(0) => {}
                Some(_) => init_failed = true,
                None if last_terminated(s).is_some_and(|code| code != 0) => {
                    init_failed = true;
                    init_pending = true;
                }
                None => init_pending = true,
            },
            (_, None) => init_pending = true,
        }
    }
    if init_failed && pod.restart_policy() == "Never" {
        return "Failed";
    }
    if !started && (init_pending || init_failed || sidecar_pending) {
        return "Pending";
    }
    let count = count(pod.pod_spec().containers.len(), mains);
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
    match input.pod.restart_policy() {
        "Always" => "Running",
        _ if count.stopped == count.succeeded => "Succeeded",
        "Never" => "Failed",
        _ => "Running",
    }
}

fn count(expected: usize, statuses: &[ContainerStatus]) -> Count {
    let mut out = Count {
        unknown: expected.saturating_sub(statuses.len()),
        ..Count::default()
    };
    for status in statuses {
        if state_running(status) {
            out.running += 1;
        } else if let Some(code) = state_terminated(status) {
            out.stopped += 1;
            out.succeeded += usize::from(code == 0);
        } else if last_terminated(status).is_some() {
            out.stopped += 1;
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

fn state_terminated(status: &ContainerStatus) -> Option<i32> {
    status
        .state
        .as_ref()?
        .terminated
        .as_ref()
        .map(|t| t.exit_code)
}

fn last_terminated(status: &ContainerStatus) -> Option<i32> {
    status
        .last_state
        .as_ref()?
        .terminated
        .as_ref()
        .map(|t| t.exit_code)
}
