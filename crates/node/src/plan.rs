//! What to do about one pod: a pure function from the pod, the runtime's state and the clock to a list of actions.
//!
//! The rules are those of the original's `computePodActions` (KEP-753 for sidecars): a pod has one sandbox; init
//! containers run in order, sidecars keep running beside the rest; app containers start when all have; what ended is
//! started again as its restart policy says, after a back-off.

use crate::runtime_state::{ContainerRecord, PodRuntime, State, container_hash};
use davit_pods::backoff::Backoff;
use davit_pods::pod::{PodExt, Role, ephemeral_as_container, init_role, restarts_after_exit};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerState, Pod};
use std::collections::BTreeSet;

/// Result of a probe of one container instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Passed.
    Success,
    /// Failed as often as the threshold asks.
    Failure,
    /// Not decided yet.
    Unknown,
}

/// The probe results the plan looks at, by container ID.
pub(crate) trait ProbeView {
    /// Last result of the liveness probe.
    fn liveness(&self, container_id: &str) -> Option<ProbeResult>;
    /// Last result of the startup probe.
    fn startup(&self, container_id: &str) -> Option<ProbeResult>;
}

/// Everything a plan is made from.
pub(crate) struct Input<'a> {
    /// The pod; its status counts the restarts of instances that the runtime does not have.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub runtime: &'a PodRuntime,
    /// Probe results.
    pub probes: &'a dyn ProbeView,
    /// Restart back-off by [`backoff_key`].
    pub backoff: &'a Backoff,
    /// Instances that were ended only to be replaced: they start again whatever the restart policy says.
    pub replaced: &'a BTreeSet<String>,
    /// The clock.
    pub now: Timestamp,
}

/// Start of one container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Start {
    /// Its role.
    pub role: Role,
    /// Place in its list of the spec.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The `restartCount` the new instance gets.
    pub restart_count: u32,
    /// Still to wait, of a whole back-off: the container is in `CrashLoopBackOff`.
    pub wait: Option<Wait>,
    /// End of the instance before, which the back-off counts from.
    pub after: Option<Timestamp>,
}

/// A back-off that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// What is left.
    pub left: SignedDuration,
    /// The whole wait.
    pub of: SignedDuration,
}

/// Kill of one container that is not part of the pod's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kill {
    /// Runtime ID.
    pub id: String,
    /// Container name.
    pub name: String,
    /// Text of the `Killing` event.
    pub message: String,
    /// Why, for the choice of the grace period.
    pub reason: KillReason,
}

/// Why one container is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// Its definition changed.
    Changed,
    /// Its liveness probe failed.
    Liveness,
    /// Its startup probe failed.
    Startup,
    /// Its new size takes a start.
    Resized,
    /// The runtime lost sight of it.
    Unknown,
}

/// What is to be done about the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sandbox {
    /// It is right.
    Keep(String),
    /// A new one has to be made; the old ones are stopped first.
    Create {
        /// Number of the attempt.
        attempt: u32,
    },
    /// There is none and none is wanted.
    None,
}

/// The actions on one pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// Everything that runs has to end (the pod is over, or its sandbox is replaced).
    pub kill_pod: bool,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Single containers to kill.
    pub kill: Vec<Kill>,
    /// Containers to start, in order.
    pub start: Vec<Start>,
}

impl Plan {
    /// The shortest wait among back-offs.
    pub(crate) fn next_wait(&self) -> Option<SignedDuration> {
        self.start
            .iter()
            .filter_map(|s| s.wait)
            .map(|w| w.left)
            .min()
    }
}

/// Key of a container's restart back-off: a changed image starts afresh.
pub(crate) fn backoff_key(container: &Container) -> String {
    format!("{}/{}", container.name, container_hash(container))
}

/// So many ephemeral containers of a pod run at a time. Whoever may add them adds as many as an object has room for, of which
/// no quota counts any, and each has a monitor, which is not within the pod's limits.
pub(crate) const RUNNING_EPHEMERAL: usize = 32;

/// Makes the plan.
pub(crate) fn plan(input: &Input<'_>) -> Plan {
    let mut plan = match sandbox_step(input) {
        Step::Done(plan) => return plan,
        Step::Keep(plan) => plan,
    };
    ephemeral_steps(input, &mut plan);
    let initialized = init_steps(input, &mut plan);
    if plan.kill_pod || !initialized {
        return plan;
    }
    main_steps(input, &mut plan);
    plan
}

/// How many ephemeral containers of the pod may start beside those that run.
pub(crate) fn room_for_ephemeral(pod: &Pod, runtime: &PodRuntime) -> usize {
    let all = pod.pod_spec().ephemeral_containers.iter().flatten();
    let latest = all.filter_map(|one| runtime.latest(&one.name));
    RUNNING_EPHEMERAL.saturating_sub(latest.filter(|one| one.state != State::Exited).count())
}

/// Starts those that never were, as far as there is room; the others do when one ends.
fn ephemeral_steps(input: &Input<'_>, plan: &mut Plan) {
    let Input { pod, runtime, .. } = input;
    let all = pod.pod_spec().ephemeral_containers.iter().flatten();
    let is_new = |name: &str| runtime.latest(name).is_none();
    let new = all.enumerate().filter(|(_, one)| is_new(&one.name));
    for (index, one) in new.take(room_for_ephemeral(pod, runtime)) {
        let started = start(input, Role::Ephemeral, index, &ephemeral_as_container(one));
        plan.start.push(started);
    }
}

enum Step {
    Done(Plan),
    Keep(Plan),
}

/// Decides on the sandbox, and on everything when a new one is needed.
fn sandbox_step(input: &Input<'_>) -> Step {
    let Input { pod, runtime, .. } = input;
    let ready = runtime.sandboxes.iter().filter(|s| s.ready).count();
    let attempt = match runtime.sandboxes.first() {
        None => 0,
        Some(latest) if ready == 1 && latest.ready && latest.host_network == pod.host_network() => {
            let keep = Sandbox::Keep(latest.id.clone());
            return Step::Keep(Plan {
                kill_pod: false,
                sandbox: keep,
                kill: Vec::new(),
                start: Vec::new(),
            });
        }
        Some(latest) => latest.attempt + 1,
    };
    let mut plan = Plan {
        kill_pod: true,
        sandbox: Sandbox::None,
        kill: Vec::new(),
        start: Vec::new(),
    };
    let any_status = !runtime.containers.is_empty();
    if !restarts_on_failure(pod) && attempt != 0 && any_status {
        return Step::Done(plan);
    }
    let spec = pod.pod_spec();
    let mains: Vec<(usize, &Container)> = spec
        .containers
        .iter()
        .enumerate()
        .filter(|(_, c)| {
            runtime.latest(&c.name).is_none_or(|s| {
                s.state != State::Exited || restarts_after_exit(pod, Role::Main, c, s.exit_code)
            })
        })
        .collect();
    if mains.is_empty()
        && spec
            .containers
            .iter()
            .any(|c| runtime.latest(&c.name).is_some())
    {
        return Step::Done(plan);
    }
    plan.sandbox = Sandbox::Create { attempt };
    match spec.init_containers.as_ref().and_then(|l| l.first()) {
        // A new sandbox starts from the beginning.
        Some(first) => plan.start.push(start(input, init_role(first), 0, first)),
        None => plan.start.extend(
            mains
                .into_iter()
                .map(|(i, c)| start(input, Role::Main, i, c)),
        ),
    }
    Step::Done(plan)
}

fn restarts_on_failure(pod: &Pod) -> bool {
    let spec = pod.pod_spec();
    let own = |c: &Container| {
        c.restart_policy_rules
            .as_ref()
            .is_some_and(|r| !r.is_empty())
            || c.restart_policy.as_deref().is_some_and(|p| p != "Never")
    };
    pod.restart_policy() != "Never" || spec.containers.iter().any(own)
}

/// Walks the init containers backwards to the newest that ever ran; earlier ones need only have their sidecars kept.
/// Returns whether the app containers may run.
fn init_steps(input: &Input<'_>, plan: &mut Plan) -> bool {
    let Input { pod, runtime, .. } = input;
    let spec = pod.pod_spec();
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    if inits.is_empty() {
        return true;
    }
    let mut initialized = spec.containers.iter().any(|c| {
        runtime
            .latest(&c.name)
            .is_some_and(|s| s.state != State::Created || s.started.is_some())
    });
    // Set once a later init container was seen: all before it have ended well at some time.
    let mut passed = initialized;
    let mut starts = Vec::new();
    for (index, container) in inits.iter().enumerate().rev() {
        let role = init_role(container);
        let last = index + 1 == inits.len();
        let Some(status) = runtime.latest(&container.name) else {
            if passed && role == Role::Sidecar {
                starts.push(start(input, role, index, container));
            }
            continue;
        };
        if passed && role == Role::Init {
            continue;
        }
        let newest = !std::mem::replace(&mut passed, true);
        let mut next = |initialized: &mut bool| {
            if newest && last {
                *initialized = true;
            } else if newest {
                let following = &inits[index + 1];
                starts.push(start(input, init_role(following), index + 1, following));
            }
        };
        match (status.state, role) {
            (State::Created, _) => starts.push(start(input, role, index, container)),
            (State::Running, Role::Sidecar) => match sidecar_health(input, container, status) {
                Health::Kill(kill) => {
                    plan.kill.push(kill);
                    starts.push(start(input, role, index, container));
                }
                Health::Starting => {}
                Health::Good => next(&mut initialized),
            },
            (State::Running, _) => {}
            (State::Exited, Role::Sidecar) => starts.push(start(input, role, index, container)),
            (State::Exited, _) if status.exit_code == 0 => next(&mut initialized),
            (State::Exited | State::Unknown, _) => {
                if role == Role::Init
                    && !restarts_after_exit(pod, role, container, status.exit_code.max(1))
                {
                    plan.kill_pod = true;
                    return false;
                }
                if status.state == State::Unknown {
                    plan.kill.push(unknown_kill(status));
                }
                starts.push(start(input, role, index, container));
            }
        }
    }
    if !passed {
        starts.push(start(input, init_role(&inits[0]), 0, &inits[0]));
    }
    starts.sort_by_key(|s| s.index);
    plan.start.extend(starts);
    initialized
}

enum Health {
    Good,
    Starting,
    Kill(Kill),
}

fn sidecar_health(input: &Input<'_>, container: &Container, status: &ContainerRecord) -> Health {
    let kill = |reason, what: &str| {
        Health::Kill(Kill {
            id: status.id.clone(),
            name: container.name.clone(),
            message: format!("Init container {} {what}", container.name),
            reason,
        })
    };
    if status.hash != container_hash(container) {
        return kill(KillReason::Changed, "definition changed, will be restarted");
    }
    if container.startup_probe.is_some() {
        match input.probes.startup(&status.id) {
            Some(ProbeResult::Success) => {}
            Some(ProbeResult::Failure) => {
                return kill(
                    KillReason::Startup,
                    "failed startup probe, will be restarted",
                );
            }
            Some(ProbeResult::Unknown) | None => return Health::Starting,
        }
    }
    if input.probes.liveness(&status.id) == Some(ProbeResult::Failure) {
        return kill(
            KillReason::Liveness,
            "failed liveness probe, will be restarted",
        );
    }
    Health::Good
}

fn unknown_kill(status: &ContainerRecord) -> Kill {
    Kill {
        id: status.id.clone(),
        name: status.name.clone(),
        message: "Container is in \"unknown\" state, try killing it before restart".to_owned(),
        reason: KillReason::Unknown,
    }
}

fn main_steps(input: &Input<'_>, plan: &mut Plan) {
    let Input {
        pod,
        runtime,
        probes,
        ..
    } = input;
    let mut kept = 0;
    let mut starts = Vec::new();
    for (index, container) in pod.pod_spec().containers.iter().enumerate() {
        let new_start = || start(input, Role::Main, index, container);
        let Some(status) = runtime.latest(&container.name) else {
            starts.push(new_start());
            continue;
        };
        match status.state {
            State::Running => {}
            State::Created => {
                starts.push(new_start());
                continue;
            }
            State::Exited => {
                if input.replaced.contains(&status.id)
                    || restarts_after_exit(pod, Role::Main, container, status.exit_code)
                {
                    starts.push(new_start());
                }
                continue;
            }
            State::Unknown => {
                plan.kill.push(unknown_kill(status));
                starts.push(new_start());
                continue;
            }
        }
        let mut restart = restarts_after_exit(pod, Role::Main, container, 137);
        let (reason, what) = if status.hash != container_hash(container) {
            restart = true;
            (KillReason::Changed, "definition changed")
        } else if probes.liveness(&status.id) == Some(ProbeResult::Failure) {
            (KillReason::Liveness, "failed liveness probe")
        } else if probes.startup(&status.id) == Some(ProbeResult::Failure) {
            (KillReason::Startup, "failed startup probe")
        } else {
            kept += 1;
            continue;
        };
        let will = if restart { ", will be restarted" } else { "" };
        let message = format!("Container {} {what}{will}", container.name);
        plan.kill.push(Kill {
            id: status.id.clone(),
            name: container.name.clone(),
            message,
            reason,
        });
        if restart {
            starts.push(new_start());
        }
    }
    if kept == 0 && starts.is_empty() {
        plan.kill_pod = true;
        plan.start.clear();
        return;
    }
    plan.start.extend(starts);
}

/// How often a container was started before whose instances the runtime does not have any more. One that the status tells of
/// as running or ended is not in its count yet: its log and its number are not those of the next.
fn told_restarts(pod: &Pod, name: &str) -> u32 {
    let status = pod.pod_status();
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    let Some(told) = all.find(|s| s.name == name) else {
        return 0;
    };
    let is_there = |s: &ContainerState| s.running.is_some() || s.terminated.is_some();
    let uncounted = told.state.as_ref().is_some_and(is_there);
    u32::try_from(told.restart_count).unwrap_or(0) + u32::from(uncounted)
}

fn start(input: &Input<'_>, role: Role, index: usize, container: &Container) -> Start {
    let latest = input.runtime.latest(&container.name);
    let restart_count = match latest {
        // An instance that was created and never started is replaced without counting as a restart.
        Some(s) if s.state == State::Created => s.restart_count,
        Some(s) => s.restart_count + 1,
        None => told_restarts(input.pod, &container.name),
    };
    let key = backoff_key(container);
    let after = latest
        .filter(|s| s.state != State::Running)
        .map(|s| s.finished.unwrap_or(s.created));
    let wait = after
        .and_then(|at| input.backoff.remaining(&key, at, input.now))
        .map(|left| Wait {
            left,
            of: input.backoff.wait(&key),
        });
    Start {
        role,
        index,
        name: container.name.clone(),
        restart_count,
        wait,
        after,
    }
}

#[cfg(test)]
mod tests;
