//! Statuses of the single containers.

use super::Input;
use crate::plan::{ProbeResult, RUNNING_EPHEMERAL, room_for_ephemeral};
use crate::restart_all;
use crate::runtime_state::{ContainerRecord, State};
use davit_pods::pod::Waiting;
use davit_pods::pod::{PodExt, Role};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus,
    VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// `runtime://id`, the form of container IDs in the API.
pub(crate) fn container_id(runtime: &str, id: &str) -> String {
    format!("{runtime}://{id}")
}

pub(super) fn fill(input: &Input<'_>, status: &mut PodStatus) {
    let mut init = Vec::new();
    let mut main = Vec::new();
    let mut ephemeral = Vec::new();
    for (role, container) in input.pod.all_containers() {
        let Some(one) = one(input, role, &container) else {
            continue;
        };
        match role {
            Role::Init | Role::Sidecar => init.push(one),
            Role::Main => main.push(one),
            Role::Ephemeral => ephemeral.push(one),
        }
    }
    let some = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
    status.init_container_statuses = some(init);
    status.container_statuses = some(main);
    status.ephemeral_container_statuses = some(ephemeral);
}

fn one(input: &Input<'_>, role: Role, container: &Container) -> Option<ContainerStatus> {
    let name = &container.name;
    let old = old_status(input, role, name);
    let latest = input.runtime.latest(name);
    let waiting = input.waiting.get(name);
    if latest.is_none() && input.verdict.is_some() && old.is_none() {
        // A pod that was refused never had containers.
        return None;
    }
    let mut out = ContainerStatus {
        name: name.clone(),
        image: container.image.clone().unwrap_or_default(),
        restart_count: old.map_or(0, |o| o.restart_count),
        ..ContainerStatus::default()
    };
    match latest {
        None => without_record(input, role, old, waiting, &mut out),
        Some(record) => with_record(input, record, old, waiting, &mut out),
    }
    readiness(input, role, container, latest, old, &mut out);
    out.allocated_resources_status = input
        .devices
        .get(name)
        .filter(|d| role == Role::Main && !d.is_empty())
        .cloned();
    if latest.is_some() && role != Role::Ephemeral {
        out.allocated_resources = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.clone())
            .filter(|r| !r.is_empty());
        // Empty where nothing is asked for, as the kubelet writes it: readers take it for granted.
        let sized = input.sizes.get(name).or(container.resources.as_ref());
        out.resources = Some(sized.cloned().unwrap_or_default());
    }
    out.volume_mounts = volume_mounts(container, input.recursive_read_only);
    Some(out)
}

fn old_status<'a>(input: &'a Input<'_>, role: Role, name: &str) -> Option<&'a ContainerStatus> {
    let status = input.pod.pod_status();
    let list = match role {
        Role::Init | Role::Sidecar => &status.init_container_statuses,
        Role::Main => &status.container_statuses,
        Role::Ephemeral => &status.ephemeral_container_statuses,
    };
    list.as_ref()?.iter().find(|s| s.name == name)
}

/// The runtime has no instance: it was never made, or its record is gone.
fn without_record(
    input: &Input<'_>,
    role: Role,
    old: Option<&ContainerStatus>,
    waiting: Option<&Waiting>,
    out: &mut ContainerStatus,
) {
    let old_state = old.and_then(|o| o.state.as_ref());
    out.last_state = old.and_then(|o| o.last_state.clone());
    if role != Role::Ephemeral && restart_all::is_said(input.pod) && !input.ending && !input.ended {
        return removed(old_state, out);
    }
    if let Some(terminated) = old_state.and_then(|s| s.terminated.as_ref()) {
        let done = input.pod.is_terminal()
            || input.ended
            || input.ending
            || role == Role::Init
            || role == Role::Ephemeral;
        if done && waiting.is_none() {
            out.state = old_state.cloned();
            copy_identity(old, out);
            return;
        }
        out.last_state = Some(ContainerState {
            terminated: Some(terminated.clone()),
            ..ContainerState::default()
        });
    } else if old_state.is_some_and(|s| s.running.is_some()) || never_began(input, role) {
        let lost = ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(
                "The container could not be located when the pod was terminated".to_owned(),
            ),
            container_id: old.and_then(|o| o.container_id.clone()),
            ..ContainerStateTerminated::default()
        };
        if input.ended || input.ending || input.pod.is_terminal() {
            out.state = Some(ContainerState {
                terminated: Some(lost),
                ..ContainerState::default()
            });
            copy_identity(old, out);
            return;
        }
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        let lost = ContainerStateTerminated {
            message: Some(message.to_owned()),
            ..lost
        };
        out.last_state = Some(ContainerState {
            terminated: Some(lost),
            ..ContainerState::default()
        });
        out.restart_count += 1;
    }
    let mut default = default_waiting(input);
    if role == Role::Ephemeral && room_for_ephemeral(input.pod, input.runtime) == 0 {
        default.message = format!("{RUNNING_EPHEMERAL} others run: it starts when one ends");
    }
    out.state = Some(waiting_state(waiting.cloned().unwrap_or(default)));
}

/// An app container of a pod that is over and was initialized, as the kubelet says it of what it never saw.
fn never_began(input: &Input<'_>, role: Role) -> bool {
    let of_inits = &input.pod.pod_spec().init_containers;
    let conditions = input.pod.pod_status().conditions.iter().flatten();
    let mut initialized = conditions.filter(|c| c.type_ == "Initialized" && c.status == "True");
    role == Role::Main
        && input.ended
        && input.verdict.is_none()
        && !input.pod.is_static()
        && (of_inits.iter().flatten().next().is_none() || initialized.next().is_some())
}

/// The instance was removed because all containers are restarted. An end of its own is kept.
fn removed(old: Option<&ContainerState>, out: &mut ContainerStatus) {
    let waiting = Waiting {
        reason: restart_all::REASON.to_owned(),
        message: "The container was removed because all containers of the pod are restarted"
            .to_owned(),
    };
    let own_end = old.and_then(|s| s.terminated.clone());
    if own_end.is_some() || old.is_some_and(|s| s.running.is_some()) {
        let forced = || ContainerStateTerminated {
            exit_code: 137,
            reason: Some(waiting.reason.clone()),
            message: Some(waiting.message.clone()),
            ..ContainerStateTerminated::default()
        };
        out.last_state = Some(ContainerState {
            terminated: Some(own_end.unwrap_or_else(forced)),
            ..ContainerState::default()
        });
        out.restart_count += 1;
    }
    out.state = Some(waiting_state(waiting));
}

fn copy_identity(old: Option<&ContainerStatus>, out: &mut ContainerStatus) {
    if let Some(old) = old {
        out.container_id.clone_from(&old.container_id);
        out.image.clone_from(&old.image);
        out.image_id.clone_from(&old.image_id);
    }
}

fn default_waiting(input: &Input<'_>) -> Waiting {
    if let Some(held) = input.held {
        return held.clone();
    }
    let inits = input
        .pod
        .pod_spec()
        .init_containers
        .as_ref()
        .is_some_and(|l| !l.is_empty());
    let reason = if inits {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    Waiting {
        reason: reason.to_owned(),
        message: String::new(),
    }
}

fn waiting_state(waiting: Waiting) -> ContainerState {
    let message = Some(waiting.message).filter(|m| !m.is_empty());
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(waiting.reason),
            message,
        }),
        ..ContainerState::default()
    }
}

fn with_record(
    input: &Input<'_>,
    record: &ContainerRecord,
    old: Option<&ContainerStatus>,
    waiting: Option<&Waiting>,
    out: &mut ContainerStatus,
) {
    out.container_id = Some(container_id(input.runtime_name, &record.id));
    if !record.image.is_empty() {
        out.image.clone_from(&record.image);
    }
    out.image_id.clone_from(&record.image_ref);
    let count = i32::try_from(record.restart_count).unwrap_or(i32::MAX);
    // Instances that were removed are not in the runtime's count.
    let counted = restart_all::is_possible(input.pod);
    out.restart_count = count.max(if counted { out.restart_count } else { 0 });
    let previous = input
        .runtime
        .previous(&record.name)
        .filter(|p| p.state == State::Exited);
    out.last_state = match previous {
        Some(p) => Some(state_of(input.runtime_name, p)),
        None => old
            .filter(|o| o.container_id == out.container_id)
            .and_then(|o| o.last_state.clone())
            .or_else(|| old_terminated(old, out.container_id.as_deref())),
    };
    let state = match record.state {
        State::Created => waiting_state(waiting.cloned().unwrap_or_else(|| default_waiting(input))),
        _ => state_of(input.runtime_name, record),
    };
    match waiting {
        // It ended and is to be started again, but cannot yet.
        Some(waiting) if record.state == State::Exited && !input.ending => {
            out.last_state = Some(state);
            out.state = Some(waiting_state(waiting.clone()));
        }
        _ => out.state = Some(state),
    }
    if let Some(user) = record.user.as_ref().and_then(|u| u.linux.as_ref()) {
        let linux = LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: (!user.supplemental_groups.is_empty())
                .then(|| user.supplemental_groups.clone()),
        };
        out.user = Some(ContainerUser { linux: Some(linux) });
    }
}

/// The end of the instance before, when its record is gone from the runtime but the API still has it.
fn old_terminated(old: Option<&ContainerStatus>, new_id: Option<&str>) -> Option<ContainerState> {
    let old = old.filter(|o| o.container_id.as_deref() != new_id)?;
    let terminated = old.state.as_ref().and_then(|s| s.terminated.clone());
    let terminated =
        terminated.or_else(|| old.last_state.as_ref().and_then(|s| s.terminated.clone()));
    terminated.map(|t| ContainerState {
        terminated: Some(t),
        ..ContainerState::default()
    })
}

/// The API's state of one instance.
pub(crate) fn state_of(runtime: &str, record: &ContainerRecord) -> ContainerState {
    match record.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: record.started.map(Time),
            }),
            ..ContainerState::default()
        },
        State::Created => waiting_state(Waiting {
            reason: "ContainerCreating".to_owned(),
            message: String::new(),
        }),
        State::Exited | State::Unknown => {
            let unknown = record.state == State::Unknown;
            let reason = match record.reason.as_str() {
                "" if unknown => "ContainerStatusUnknown",
                "" if record.exit_code == 0 => "Completed",
                "" => "Error",
                given => given,
            };
            let terminated = ContainerStateTerminated {
                container_id: Some(container_id(runtime, &record.id)),
                exit_code: if unknown { 137 } else { record.exit_code },
                reason: Some(reason.to_owned()),
                message: Some(record.message.clone()).filter(|m| !m.is_empty()),
                started_at: record.started.map(Time),
                finished_at: record.finished.map(Time),
                signal: None,
            };
            ContainerState {
                terminated: Some(terminated),
                ..ContainerState::default()
            }
        }
    }
}

fn readiness(
    input: &Input<'_>,
    role: Role,
    container: &Container,
    latest: Option<&ContainerRecord>,
    old: Option<&ContainerStatus>,
    out: &mut ContainerStatus,
) {
    let running = latest.filter(|r| r.state == State::Running);
    let started = running.is_some_and(|r| {
        container.startup_probe.is_none()
            || input.ready.startup(&r.id) == Some(ProbeResult::Success)
    });
    out.started = Some(started);
    out.ready = match role {
        Role::Init => out
            .state
            .as_ref()
            .and_then(|s| s.terminated.as_ref())
            .is_some_and(|t| t.exit_code == 0),
        Role::Ephemeral => false,
        Role::Main | Role::Sidecar => {
            started
                && running.is_some_and(|r| {
                    container.readiness_probe.is_none()
                        || input.ready.readiness(&r.id) == Some(ProbeResult::Success)
                })
        }
    };
    if role == Role::Ephemeral {
        out.started = Some(running.is_some());
    }
    // A pod that is ending is not probed any more: a container keeps its last answer while it runs.
    if input.ending && running.is_some() && container.readiness_probe.is_some() {
        out.ready = out.ready && old.is_some_and(|o| o.ready);
    }
}

fn volume_mounts(container: &Container, supported: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts: Vec<VolumeMountStatus> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|m| {
            let read_only = m.read_only == Some(true);
            let recursive =
                davit_oci::read_only::effective(m.recursive_read_only.as_deref(), supported);
            VolumeMountStatus {
                name: m.name.clone(),
                mount_path: m.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| recursive.to_owned()),
                ..VolumeMountStatus::default()
            }
        })
        .collect();
    (!mounts.is_empty()).then_some(mounts)
}
