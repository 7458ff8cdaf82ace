//! Resizes of a running pod: granting them, and bringing them into its containers.

use super::Worker;
use crate::plan::{Kill, KillReason};
use crate::resize::{
    self, Actual, IN_PROGRESS, NodeLimits, PENDING, Record, Sizes, details, needs_restart,
    same_size, within,
};
use crate::runtime_state::{PodRuntime, State};
use davit_pods::pod::Waiting;
use davit_pods::pod::{PodExt, Role};
use davit_pods::resources::{self, LimitRules};
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, ResourceRequirements};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long the runtime may take for one container.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a resize that waits for room is looked at without a sign that others gave some: the node may have grown.
const DEFERRED: Duration = Duration::from_secs(10);
/// How often a resize that the runtime refused is tried again.
const FAILED: Duration = Duration::from_secs(5);

/// A size that was not granted.
#[derive(Debug, Clone, PartialEq)]
struct Pending {
    deferred: bool,
    message: String,
    generation: i64,
}

/// What the worker knows of its pod's size.
#[derive(Default)]
pub(super) struct Sizing {
    /// What is granted and what containers have; `None` until the pod is admitted.
    record: Option<Record>,
    pending: Option<Pending>,
    error: Option<String>,
    /// Tells that others gave room.
    room: Option<watch::Receiver<()>>,
    /// The pod as the API has it, and the same with what is granted.
    seen: Option<(Arc<Pod>, Arc<Pod>)>,
}

impl Sizing {
    /// The pod as granted.
    pub(super) fn view(&mut self, wanted: &Arc<Pod>) -> Arc<Pod> {
        let Some(record) = &self.record else {
            return wanted.clone();
        };
        if record.granted.same(&Sizes::of(wanted)) {
            return wanted.clone();
        }
        if let Some((of, view)) = &self.seen
            && Arc::ptr_eq(of, wanted)
        {
            return view.clone();
        }
        let mut view = (**wanted).clone();
        record.granted.put_into(&mut view);
        let view = Arc::new(view);
        self.seen = Some((wanted.clone(), view.clone()));
        view
    }

    /// The pod is admitted with the size it asks for.
    pub(super) fn admitted(&mut self, pod: &Pod) {
        self.record.get_or_insert_with(|| Record {
            granted: Sizes::of(pod),
            ..Record::default()
        });
    }

    /// When to look again without being told of a change.
    pub(super) fn retry(&self) -> Option<Duration> {
        let deferred = self.pending.as_ref().is_some_and(|p| p.deferred);
        let failed = self.error.is_some();
        let both = [deferred.then_some(DEFERRED), failed.then_some(FAILED)];
        both.into_iter().flatten().min()
    }

    /// Waits until a resize that was deferred may fit; for ever when there is none.
    pub(super) async fn room(&mut self) {
        let deferred = self.pending.as_ref().is_some_and(|p| p.deferred);
        if let Some(room) = self.room.as_mut().filter(|_| deferred)
            && room.changed().await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// The resources of the pod as a whole that are in force while others are granted.
    pub(super) fn level(&self) -> Option<&ResourceRequirements> {
        let record = self.record.as_ref()?;
        let level = |size: Option<&ResourceRequirements>| size.cloned().unwrap_or_default();
        let granted = level(record.granted.pod.as_ref());
        let mut actual = record.actual.values().filter_map(|a| a.pod.as_ref());
        actual.find(|pod| !same_size(pod, &granted))
    }

    /// The conditions that stand now.
    pub(super) fn conditions(&self) -> Vec<PodCondition> {
        let condition =
            |kind: &str, reason: Option<&str>, message: Option<&str>, generation| PodCondition {
                type_: kind.to_owned(),
                status: "True".to_owned(),
                reason: reason.map(str::to_owned),
                message: message.map(str::to_owned),
                observed_generation: Some(generation),
                ..PodCondition::default()
            };
        let pending = self.pending.as_ref().map(|p| {
            let reason = if p.deferred { "Deferred" } else { "Infeasible" };
            condition(PENDING, Some(reason), Some(&p.message), p.generation)
        });
        let since = self.record.as_ref().and_then(|r| r.in_progress);
        let progress = since.map(|generation| {
            let reason = self.error.as_ref().map(|_| "Error");
            condition(IN_PROGRESS, reason, self.error.as_deref(), generation)
        });
        pending.into_iter().chain(progress).collect()
    }

    /// Sizes of running containers that are not (yet) what is granted.
    pub(super) fn differing(&self) -> BTreeMap<String, ResourceRequirements> {
        let Some(record) = &self.record else {
            return BTreeMap::new();
        };
        let all = record.actual.iter();
        let some = all.filter(|(name, actual)| {
            let granted = record.granted.containers.get(*name);
            granted.is_some_and(|g| !same_size(g, &actual.size))
        });
        some.map(|(name, actual)| (name.clone(), actual.size.clone()))
            .collect()
    }
}

/// Since when a pod waits for room, by its status; now when it has not waited.
fn deferred_since(pod: &Pod) -> Timestamp {
    let conditions = pod.pod_status().conditions.iter().flatten();
    let mut deferred =
        conditions.filter(|c| c.type_ == PENDING && c.reason.as_deref() == Some("Deferred"));
    let since = deferred.find_map(|c| c.last_transition_time.clone());
    since.map_or_else(Timestamp::now, |t| t.0)
}

/// What is to be done to one running container.
struct Step {
    name: String,
    id: String,
    from: Actual,
    restart: bool,
}

impl Worker {
    /// The pod ran before this node agent started: finds out what it had been granted.
    pub(super) fn recall_size(&mut self) {
        let (wanted, uid) = (&self.pod, &self.uid);
        let record = Record::load(&self.ctx.paths, uid).unwrap_or_else(|error| {
            tracing::warn!(pod = %wanted.format(), %error, "the record of the pod's resizes is lost; its status in the API stands in");
            None
        });
        self.sizing.record = Some(record.unwrap_or_else(|| Record {
            granted: Sizes::by_status(wanted),
            ..Record::default()
        }));
        self.pod = self.sizing.view(wanted);
        // The agent may have been started with other limits; a resize that was under way comes to its end by itself.
        let resizing = self.sizing.record.as_ref().and_then(|r| r.in_progress);
        if resizing.is_none()
            && let Err(error) = self.ctx.limit_pod(&self.pod)
        {
            tracing::warn!(pod = %self.pod.format(), %error, "cannot limit the running pod");
        }
    }

    /// Grants the size the pod asks for if that can be, and brings what is granted into its containers. True when a
    /// container was killed, so that it starts with its new size.
    pub(super) async fn resize(&mut self, runtime: &PodRuntime) -> bool {
        self.sizing.admitted(&self.pod);
        self.note_instances(runtime);
        self.grant(runtime);
        let before = self.sizing.record.clone();
        let killed = self.bring_in(runtime).await;
        self.complete(runtime);
        if self.sizing.record != before {
            self.keep_record();
        }
        killed
    }

    /// Instances that are new to the worker were made with what was granted then.
    fn note_instances(&mut self, runtime: &PodRuntime) {
        let Some(record) = &mut self.sizing.record else {
            return;
        };
        let running = |name: &str| runtime.latest(name).filter(|c| c.state == State::Running);
        record
            .actual
            .retain(|name, a| running(name).is_some_and(|c| c.id == a.id));
        for (name, size) in &record.granted.containers {
            let Some(instance) = running(name) else {
                continue;
            };
            record.actual.entry(name.clone()).or_insert_with(|| Actual {
                id: instance.id.clone(),
                size: size.clone(),
                pod: record.granted.pod.clone(),
            });
        }
    }

    /// Decides about what the pod asks for.
    fn grant(&mut self, runtime: &PodRuntime) {
        let wanted = self.input.read().pod;
        let sizes = Sizes::of(&wanted);
        let Some(record) = &self.sizing.record else {
            return;
        };
        if record.granted.same(&sizes) {
            self.sizing.pending = None;
            self.ctx.pods.settle(&self.pod);
            return;
        }
        let generation = wanted.metadata.generation.unwrap_or(0);
        if let Err((deferred, message)) = self.room_for(&wanted) {
            self.refuse_size(&wanted, deferred, message);
            return;
        }
        let Some(record) = &mut self.sizing.record else {
            return;
        };
        let old = record.clone();
        record.granted = sizes;
        record.in_progress = Some(generation);
        if let Err(error) = record.store(&self.ctx.paths, &self.uid) {
            // Nothing may take effect that a restart would forget.
            *record = old;
            self.ctx.pods.adopt(&self.pod);
            self.refuse_size(&wanted, true, format!("cannot record the resize: {error}"));
            return;
        }
        self.sizing.pending = None;
        self.sizing.error = None;
        self.pod = self.sizing.view(&wanted);
        self.ctx.pods.set(&self.pod);
        let text = format!("Pod resize started: {}", details(&self.pod, None));
        let reference = self.pod.reference();
        self.ctx.recorder.normal(&reference, "ResizeStarted", text);
        self.publish(runtime, false);
    }

    /// Reserves what the pod asks for now. Otherwise says why not, and whether that can change.
    fn room_for(&mut self, wanted: &Arc<Pod>) -> Result<(), (bool, String)> {
        let allocatable = self.available();
        let limits = NodeLimits {
            static_cpus: self.ctx.devices.manages_cpus(),
            static_memory: self.ctx.devices.manages_memory(),
            allocatable: &allocatable,
        };
        let granted = self.sizing.record.as_ref().map(|r| r.granted.clone());
        if let Some(why) = resize::infeasible(wanted, &granted.unwrap_or_default(), &limits) {
            self.ctx.pods.settle(&self.pod);
            return Err((false, why));
        }
        let pods = &self.ctx.pods;
        let room = self.sizing.room.get_or_insert_with(|| pods.room());
        room.mark_unchanged();
        let reserved = pods.resize(wanted, deferred_since(wanted), &allocatable);
        reserved.map_err(|shortage| (true, shortage.to_string()))
    }

    fn refuse_size(&mut self, wanted: &Pod, deferred: bool, message: String) {
        let pending = Pending {
            deferred,
            message,
            generation: wanted.metadata.generation.unwrap_or(0),
        };
        let known = self.sizing.pending.replace(pending.clone());
        // Who holds what changes all the time; that is not worth an event.
        if known.is_some_and(|k| k.deferred == deferred && k.generation == pending.generation) {
            return;
        }
        let (reason, word) = if deferred {
            ("ResizeDeferred", "Deferred")
        } else {
            ("ResizeInfeasible", "Infeasible")
        };
        let text = format!(
            "Pod resize {word}: {}",
            details(wanted, Some(&pending.message))
        );
        let reference = wanted.reference();
        self.ctx.recorder.warning(&reference, reason, text);
    }

    /// Containers whose size is not the granted one.
    fn resize_steps(&self, runtime: &PodRuntime) -> Vec<Step> {
        let Some(record) = &self.sizing.record else {
            return Vec::new();
        };
        let level = |size: &Option<ResourceRequirements>| size.clone().unwrap_or_default();
        let mut steps = Vec::new();
        for (name, actual) in &record.actual {
            let Some((_, container)) = self.pod.container(name) else {
                continue;
            };
            let granted = container.resources.clone().unwrap_or_default();
            let same = same_size(&granted, &actual.size)
                && same_size(&level(&record.granted.pod), &level(&actual.pod));
            if same || runtime.latest(name).is_none_or(|c| c.id != actual.id) {
                continue;
            }
            let from = within(&actual.size, actual.pod.as_ref());
            let to = within(&granted, record.granted.pod.as_ref());
            steps.push(Step {
                name: name.clone(),
                id: actual.id.clone(),
                restart: needs_restart(&container, &from, &to),
                from: actual.clone(),
            });
        }
        steps
    }

    /// The pod with what its running containers have.
    fn as_it_runs(&self) -> Option<Pod> {
        let record = self.sizing.record.as_ref()?;
        let mut sizes = record.granted.clone();
        for (name, actual) in &record.actual {
            sizes.containers.insert(name.clone(), actual.size.clone());
            sizes.pod.clone_from(&actual.pod);
        }
        let mut pod = (*self.pod).clone();
        sizes.put_into(&mut pod);
        Some(pod)
    }

    /// Makes room for what containers get while others still have what they had.
    fn widen(&self) -> Result<(), String> {
        let (Some(groups), Some(before)) = (&self.ctx.cgroups, self.as_it_runs()) else {
            return Ok(());
        };
        let unthrottled = self.ctx.is_unthrottled(&self.pod);
        let widened = groups.widen(&before, &self.pod, unthrottled);
        widened.map_err(|error| error.to_string())
    }

    async fn bring_in(&mut self, runtime: &PodRuntime) -> bool {
        let known = self.sizing.error.take();
        let mut killed = false;
        let steps = self.resize_steps(runtime);
        if !steps.is_empty()
            && let Err(error) = self.widen()
        {
            self.note_resize_error(error, known.as_deref());
            return false;
        }
        for step in steps {
            let Some((role, container)) = self.pod.container(&step.name) else {
                continue;
            };
            let container = container.into_owned();
            if step.restart {
                let kill = Kill {
                    id: step.id.clone(),
                    name: step.name.clone(),
                    message: format!("Container {} resize requires restart", step.name),
                    reason: KillReason::Resized,
                };
                self.will_replace(&step.name, &step.id);
                self.kill_one(runtime, &kill).await;
                killed = true;
                continue;
            }
            match self.update_container(role, &container, &step).await {
                Ok(()) => {
                    if let Some(record) = &mut self.sizing.record
                        && let Some(actual) = record.actual.get_mut(&step.name)
                    {
                        actual.size = container.resources.clone().unwrap_or_default();
                        actual.pod.clone_from(&record.granted.pod);
                    }
                }
                Err(error) => self.note_resize_error(error, known.as_deref()),
            }
        }
        killed
    }

    fn note_resize_error(&mut self, error: String, known: Option<&str>) {
        if known != Some(error.as_str()) {
            tracing::warn!(pod = %self.pod.format(), %error, "cannot resize the pod");
            let text = format!("Pod resize error: {}", details(&self.pod, Some(&error)));
            let reference = self.pod.reference();
            self.ctx.recorder.warning(&reference, "ResizeError", text);
        }
        self.sizing.error = Some(error);
    }

    async fn update_container(
        &self,
        role: Role,
        container: &Container,
        step: &Step,
    ) -> Result<(), String> {
        let rules = LimitRules {
            hugepage_sizes: Vec::new(),
            ..self.ctx.limit_rules()
        };
        let mut now = resources::linux_resources(&self.pod, role, container, &rules);
        let compute = self.ctx.devices.compute_options(&self.uid, &step.name);
        compute.apply(&mut now);
        let old = &step.from.size;
        let old_limit = old.limits.as_ref().and_then(|l| l.get("memory"));
        let old_limit = old_limit.map_or(i64::MAX, resources::value);
        let limit = now.memory_limit_in_bytes;
        if limit > 0 && limit < old_limit {
            self.check_usage(step, limit).await?;
        }
        let update = cri::LinuxContainerResources {
            cpu_period: now.cpu_period,
            cpu_quota: now.cpu_quota,
            cpu_shares: now.cpu_shares,
            memory_limit_in_bytes: limit,
            memory_swap_limit_in_bytes: now.memory_swap_limit_in_bytes,
            unified: now.unified,
            ..cri::LinuxContainerResources::default()
        };
        let call = self
            .ctx
            .runtime
            .update_container_resources(&step.id, update);
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(done) => done.map_err(|e| format!("container {:?}: {e}", step.name)),
            Err(_) => Err(format!(
                "container {:?}: no answer from the runtime",
                step.name
            )),
        }
    }

    /// A limit below what is in use would have the container killed.
    async fn check_usage(&self, step: &Step, limit: i64) -> Result<(), String> {
        let call = self.ctx.runtime.container_stats(&step.id);
        let Ok(Ok(stats)) = tokio::time::timeout(DEADLINE, call).await else {
            return Ok(());
        };
        let Some(memory) = stats.memory else {
            return Ok(());
        };
        let usage = memory.usage_bytes.or(memory.working_set_bytes);
        let usage = usage.map_or(0, |u| i64::try_from(u.value).unwrap_or(i64::MAX));
        if usage <= limit {
            return Ok(());
        }
        Err(format!(
            "attempting to set container {:?} memory limit ({limit}) below current usage ({usage})",
            step.name
        ))
    }

    /// The resize is over when all running containers have what is granted.
    fn complete(&mut self, runtime: &PodRuntime) {
        let in_progress = |sizing: &Sizing| sizing.record.as_ref()?.in_progress;
        let done = self.sizing.error.is_none() && self.resize_steps(runtime).is_empty();
        if !done || in_progress(&self.sizing).is_none() {
            return;
        }
        // Last, so that no container has more than its pod for a moment.
        if let Err(error) = self.ctx.limit_pod(&self.pod) {
            self.note_resize_error(error.to_string(), None);
            return;
        }
        if let Some(record) = &mut self.sizing.record {
            record.in_progress = None;
        }
        let text = format!("Pod resize completed: {}", details(&self.pod, None));
        let reference = self.pod.reference();
        self.ctx
            .recorder
            .normal(&reference, "ResizeCompleted", text);
    }

    /// A record that cannot be kept means that the update is done once more after a restart, which changes nothing.
    fn keep_record(&self) {
        let Some(record) = &self.sizing.record else {
            return;
        };
        let stored = record.store(&self.ctx.paths, &self.uid);
        if let Err(error) = stored {
            tracing::warn!(pod = %self.pod.format(), %error, "cannot record what the pod's containers have");
        }
    }

    /// An instance is about to be ended only to come back with another size or definition: its pod is not over then.
    pub(super) fn will_replace(&mut self, name: &str, id: &str) {
        self.replaced.insert(id.to_owned());
        let waiting = Waiting {
            reason: "ContainerCreating".to_owned(),
            message: String::new(),
        };
        self.waiting.insert(name.to_owned(), waiting);
    }
}
