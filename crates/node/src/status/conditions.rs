//! The conditions the node owns: PodReadyToStartContainers, Initialized, ContainersReady, Ready, AllContainersRestarting
//! (where containers can ask for that), PodScheduled (where
//! nobody set it). Others, such as readiness gates, are left as they are.

use super::Input;
use crate::resize::{IN_PROGRESS, PENDING};
use crate::restart_all::{self, Step};
use davit_pods::pod::{PodExt, Role, init_role};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Puts a condition into the list. The transition time moves only when the status changes.
pub(crate) fn set_condition(
    list: &mut Vec<PodCondition>,
    mut condition: PodCondition,
    now: Timestamp,
) {
    match list.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(old) => {
            condition.last_transition_time = if old.status == condition.status {
                old.last_transition_time.clone()
            } else {
                Some(Time(now))
            };
            condition.last_probe_time = None;
            *old = condition;
        }
        None => {
            condition.last_transition_time = Some(Time(now));
            list.push(condition);
        }
    }
}

struct Answer {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

const YES: Answer = Answer {
    status: true,
    reason: None,
    message: None,
};

fn no(reason: &'static str, message: Option<String>) -> Answer {
    Answer {
        status: false,
        reason: Some(reason),
        message,
    }
}

pub(super) fn fill(input: &Input<'_>, status: &mut PodStatus) {
    let containers_ready = containers_ready(input, status);
    let ready = ready(input, status, &containers_ready);
    let initialized = initialized(input, status);
    let sandbox = Answer {
        status: has_sandbox(input),
        reason: None,
        message: None,
    };
    let generation = input.pod.metadata.generation;
    let mut list = status.conditions.take().unwrap_or_default();
    let mut put = |kind: &str, answer: Answer| {
        let condition = PodCondition {
            type_: kind.to_owned(),
            status: if answer.status { "True" } else { "False" }.to_owned(),
            reason: answer.reason.map(str::to_owned),
            message: answer.message,
            observed_generation: generation,
            ..PodCondition::default()
        };
        set_condition(&mut list, condition, input.now);
    };
    put("PodReadyToStartContainers", sandbox);
    put("Initialized", initialized);
    put("Ready", ready);
    put("ContainersReady", containers_ready);
    if restart_all::is_possible(input.pod) {
        put(restart_all::CONDITION, restarting(input, status));
    }
    if let Some(verdict) = input.verdict.filter(|v| v.disruption) {
        let target = Answer {
            status: true,
            reason: Some("TerminationByKubelet"),
            message: Some(verdict.message.clone()),
        };
        put("DisruptionTarget", target);
    }
    for kind in [PENDING, IN_PROGRESS] {
        match input.resize.iter().find(|c| c.type_ == kind) {
            Some(condition) => set_condition(&mut list, condition.clone(), input.now),
            None => list.retain(|c| c.type_ != kind),
        }
    }
    if !list.iter().any(|c| c.type_ == "PodScheduled") {
        let scheduled = PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "True".to_owned(),
            observed_generation: generation,
            ..PodCondition::default()
        };
        set_condition(&mut list, scheduled, input.now);
    }
    status.conditions = Some(list);
}

/// Whether all containers are being restarted (KEP-5532).
fn restarting(input: &Input<'_>, status: &PodStatus) -> Answer {
    match status.phase.as_deref() {
        Some("Succeeded") => return no("PodCompleted", None),
        Some("Failed") => return no("PodFailed", None),
        _ => {}
    }
    let step = restart_all::step(input.pod, input.runtime);
    if input.ending || !matches!(step, Step::Remove(_)) {
        return Answer {
            status: false,
            reason: None,
            message: None,
        };
    }
    Answer {
        status: true,
        reason: Some("RestartAllContainersStarted"),
        message: Some("container exited with restart policy rule".to_owned()),
    }
}

fn has_sandbox(input: &Input<'_>) -> bool {
    input.runtime.ready_sandbox().is_some()
}

fn find<'a>(list: Option<&'a Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    list?.iter().find(|s| s.name == name)
}

fn containers_ready(input: &Input<'_>, status: &PodStatus) -> Answer {
    match status.phase.as_deref() {
        Some("Succeeded") => return no("PodCompleted", None),
        Some("Failed") => return no("PodFailed", None),
        _ => {}
    }
    let spec = input.pod.pod_spec();
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| init_role(c) == Role::Sidecar);
    let mut unknown = Vec::new();
    let mut unready = Vec::new();
    for (list, container) in sidecars
        .map(|c| (status.init_container_statuses.as_ref(), c))
        .chain(
            spec.containers
                .iter()
                .map(|c| (status.container_statuses.as_ref(), c)),
        )
    {
        match find(list, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    let why = which_are([("unknown", unknown), ("unready", unready)]);
    why.map_or(YES, |why| no("ContainersNotReady", Some(why)))
}

/// Names the containers that are something that they should not be; `None` where there are none.
fn which_are(groups: [(&str, Vec<&str>); 2]) -> Option<String> {
    let groups = groups.into_iter().filter(|(_, names)| !names.is_empty());
    let said: Vec<_> = groups
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}

fn ready(input: &Input<'_>, status: &PodStatus, containers: &Answer) -> Answer {
    if !containers.status {
        return Answer {
            status: false,
            reason: containers.reason,
            message: containers.message.clone(),
        };
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let mut messages = Vec::new();
    for gate in input.pod.pod_spec().readiness_gates.iter().flatten() {
        let kind = &gate.condition_type;
        match conditions.iter().find(|c| c.type_ == *kind) {
            None => messages.push(format!(
                "corresponding condition of pod readiness gate \"{kind}\" does not exist."
            )),
            Some(c) if c.status != "True" => messages.push(format!(
                "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                c.status
            )),
            Some(_) => {}
        }
    }
    if messages.is_empty() {
        YES
    } else {
        no("ReadinessGatesNotReady", Some(messages.join(", ")))
    }
}

fn initialized(input: &Input<'_>, status: &PodStatus) -> Answer {
    let done = |reason| Answer {
        status: true,
        reason,
        message: None,
    };
    if status.phase.as_deref() == Some("Succeeded") {
        return done(Some("PodCompleted"));
    }
    let spec = input.pod.pod_spec();
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let begun = status.container_statuses.iter().flatten().any(|s| {
        s.state
            .as_ref()
            .is_some_and(|x| x.running.is_some() || x.terminated.is_some())
            || s.last_state
                .as_ref()
                .is_some_and(|x| x.terminated.is_some())
    });
    if inits.is_empty() || begun {
        return done(None);
    }
    let mut unknown = Vec::new();
    let mut incomplete = Vec::new();
    for container in inits {
        match find(status.init_container_statuses.as_ref(), &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) => {
                let good = if init_role(container) == Role::Sidecar {
                    s.started == Some(true)
                } else {
                    s.ready
                };
                if !good {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    match which_are([("unknown", unknown), ("incomplete", incomplete)]) {
        None => done(None),
        why => no("ContainersNotInitialized", why),
    }
}
