//! Node-pressure eviction: when memory, disk or process numbers run short the node says so, gets back what it can, and
//! ends pods, the ones that use more than they asked for first.
//!
//! [`signals`] are what is measured, [`state`] decides what is short for how long, [`rank`] who goes first, [`images`] which
//! images nobody uses; here is the loop around them. Specified by the page "Node-pressure Eviction" of Kubernetes' documentation.

pub(crate) mod images;
pub(crate) mod measure;
pub(crate) mod rank;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod storage;

pub(crate) use measure::{Measure, SystemMeasure};
pub(crate) use signals::{Condition, Config};

use crate::admission::Refusal;
use crate::context::Context;
use crate::metrics::EvictionSignal;
use crate::runtime_state::keys;
use crate::status::NodeDecision;
use crate::worker_input::{Forced, WorkerInputs};
use davit_beneath::DiskUse;
use davit_containermanager::ActivePods;
use davit_oci::cgroup::Hierarchies;
use davit_pods::pod::PodExt;
use davit_pods::resources::Qos;
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;
use measure::OnDisk;
use rank::{Candidate, Usage};
use signals::{Signal, Threshold};
use state::{Observations, Outlook, State, is_met};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

/// How long the loop waits for the containers of an evicted pod.
const CLEAN_UP: Duration = Duration::from_secs(30);
const CLEAN_UP_POLL: Duration = Duration::from_millis(250);
/// Seconds a pod gets at a hard threshold.
const HARD_GRACE: i64 = 1;
/// `status.reason` of evicted pods.
const EVICTED: &str = "Evicted";

/// Looks at the node until `cancel`.
pub(crate) async fn run(ctx: Arc<Context>, inputs: WorkerInputs, cancel: CancellationToken) {
    let config = &ctx.options.eviction;
    if config.thresholds.is_empty() && !config.local_storage {
        return cancel.cancelled().await;
    }
    let freed = AtomicBool::new(false);
    // Pods decide how long measuring their files takes; memory that runs out does not wait for that.
    let looking = async {
        tokio::join!(
            hold_to_limits(&ctx, &inputs, &freed),
            watch_node(&ctx, &inputs, &freed)
        );
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = looking => {}
    }
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// Looks at what is left on the node. `freed`: pods that used too much of the disks have been ended since the last look.
async fn watch_node(ctx: &Arc<Context>, inputs: &WorkerInputs, freed: &AtomicBool) {
    let mut state = State::default();
    let mut ticks = ticks(ctx.options.eviction.period);
    loop {
        ticks.tick().await;
        look(ctx, inputs, &mut state, freed).await;
    }
}

/// Ends pods that use more of the disks than they may.
async fn hold_to_limits(ctx: &Arc<Context>, inputs: &WorkerInputs, freed: &AtomicBool) {
    let config = &ctx.options.eviction;
    if !config.local_storage {
        return;
    }
    let mut ticks = ticks(config.period);
    loop {
        ticks.tick().await;
        let over = over_limits(ctx).await;
        end_over_limits(ctx, inputs, &over);
        freed.fetch_or(!over.is_empty(), Ordering::Relaxed);
    }
}

fn end_over_limits(ctx: &Context, inputs: &WorkerInputs, over: &[(Arc<Pod>, storage::Excess)]) {
    for (pod, excess) in over {
        let ending = Ending {
            signal: excess.signal,
            message: excess.message.clone(),
            annotations: Vec::new(),
            grace: HARD_GRACE,
            disruption: false,
        };
        let _ = end(ctx, inputs, pod, ending);
    }
}

async fn look(ctx: &Arc<Context>, inputs: &WorkerInputs, state: &mut State, freed: &AtomicBool) {
    let config = &ctx.options.eviction;
    let observations = ctx.options.measure.observe(&*ctx.runtime).await;
    let Outlook {
        conditions,
        reclaim,
    } = state.look(config, &observations, Instant::now());
    ctx.pressure.send_if_modified(|old| {
        let changed = *old != conditions;
        *old = conditions;
        changed
    });
    // What they set free is seen at the next look.
    let enough = freed.swap(false, Ordering::Relaxed);
    let Some(threshold) = reclaim.filter(|_| !enough) else {
        return;
    };
    let resource = threshold.signal.resource();
    tracing::warn!(
        signal = threshold.signal.as_str(),
        "attempting to reclaim {resource}"
    );
    let text = format!("Attempting to reclaim {resource}");
    ctx.recorder
        .warning(&ctx.node_reference(), "EvictionThresholdMet", text);
    if reclaimed(ctx, &threshold).await {
        return;
    }
    if let Some(uid) = evict(ctx, inputs, &threshold, &observations).await {
        wait_quiet(ctx, &uid).await;
    }
}

/// Gets back what belongs to no pod. True when that was enough.
async fn reclaimed(ctx: &Context, threshold: &Threshold) -> bool {
    if threshold.signal.condition() != Condition::Disk {
        return false;
    }
    if let Err(error) = ctx.image_collector.delete_unused().await {
        tracing::warn!(%error, "cannot delete images that nobody uses");
    }
    let observations = ctx.options.measure.observe(&*ctx.runtime).await;
    observations.contains_key(&threshold.signal) && !is_met(threshold, &observations, true)
}

/// Ends the first pod that may be ended.
async fn evict(
    ctx: &Arc<Context>,
    inputs: &WorkerInputs,
    threshold: &Threshold,
    observations: &Observations,
) -> Option<String> {
    let mut candidates = candidates(ctx, threshold.signal).await;
    rank::sort(&mut candidates, threshold.signal);
    let Some(first) = candidates.iter().find(|c| !rank::is_critical(&c.pod)) else {
        tracing::error!("unable to evict any pods from the node");
        return None;
    };
    let (message, annotations) = rank::message(first, threshold, observations);
    let pod = &first.pod;
    let grace = if threshold.is_hard() {
        HARD_GRACE
    } else {
        let own = pod.pod_spec().termination_grace_period_seconds;
        own.unwrap_or(30).min(ctx.options.eviction.max_pod_grace)
    };
    let ending = Ending {
        signal: threshold.signal.as_str(),
        message,
        annotations,
        grace,
        disruption: true,
    };
    end(ctx, inputs, pod, ending)
}

/// How the node ends a pod.
struct Ending {
    /// Label of the metrics.
    signal: &'static str,
    message: String,
    /// Of the event.
    annotations: Vec<(&'static str, String)>,
    /// Seconds it gets.
    grace: i64,
    /// Whether it goes for the sake of others.
    disruption: bool,
}

fn end(ctx: &Context, inputs: &WorkerInputs, pod: &Pod, ending: Ending) -> Option<String> {
    let input = inputs.lock().get(pod.uid()).cloned()?;
    if input.forced().is_some() {
        return Some(pod.uid().to_owned());
    }
    let message = ending.message;
    tracing::warn!(pod = %pod.format(), %message, "evicting the pod");
    ctx.recorder
        .warning_annotated(&pod.reference(), EVICTED, &message, ending.annotations);
    let label = EvictionSignal {
        eviction_signal: ending.signal.to_owned(),
    };
    ctx.metrics.evictions.get_or_create(&label).inc();
    input.force(Forced {
        verdict: NodeDecision {
            reason: EVICTED.to_owned(),
            message,
            disruption: ending.disruption,
        },
        grace: Duration::from_secs(u64::try_from(ending.grace).unwrap_or(0)),
    });
    Some(pod.uid().to_owned())
}

/// Pods that use more local storage than they may. Those that nothing limits are not measured.
async fn over_limits(ctx: &Arc<Context>) -> Vec<(Arc<Pod>, storage::Excess)> {
    let ending = ctx.pods.ending_pods();
    let mut limited = ctx.pods.active_pods();
    limited.retain(|pod| {
        storage::is_limited(pod) && !rank::is_critical(pod) && !ending.contains(pod.uid())
    });
    if limited.is_empty() {
        return Vec::new();
    }
    let stats = ctx.runtime.list_container_stats(None).await;
    let mut layers: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for one in stats.unwrap_or_default() {
        let Some(labels) = one.attributes.as_ref().map(|a| &a.labels) else {
            continue;
        };
        let (Some(uid), Some(name)) = (labels.get(keys::POD_UID), labels.get(keys::CONTAINER_NAME))
        else {
            continue;
        };
        let layer = one.writable_layer.and_then(|l| l.used_bytes);
        let bytes = layer.map_or(0, |b| i64::try_from(b.value).unwrap_or(i64::MAX));
        layers
            .entry(uid.clone())
            .or_default()
            .insert(name.clone(), bytes);
    }
    let ctx = ctx.clone();
    let until = Instant::now() + MEASURING;
    let measured = tokio::task::spawn_blocking(move || {
        let hierarchies = Hierarchies::detect().ok();
        let of = |pod: &Pod| {
            let none = BTreeMap::new();
            let layers = layers.get(pod.uid()).unwrap_or(&none);
            let deleted = hierarchies
                .as_ref()
                .map_or(0, |all| deleted(&ctx, all, pod));
            let used = storage::measure(&ctx.paths, pod, layers, deleted, until);
            storage::excess(pod, &used)
        };
        let all = limited.into_iter();
        all.filter_map(|pod| of(&pod).map(|excess| (pod, excess)))
            .collect()
    });
    in_time(measured).await
}

/// The pods that have not ended, with what they use.
async fn candidates(ctx: &Arc<Context>, signal: Signal) -> Vec<Candidate> {
    let stats = ctx.runtime.list_container_stats(None).await;
    let stats = stats.unwrap_or_default();
    let mut layers = BTreeMap::new();
    if signal.condition() == Condition::Disk {
        let known = ctx.runtime.layers_in_use(Instant::now() + LAYERS).await;
        layers = known.unwrap_or_default();
    }
    let ctx = ctx.clone();
    // Directories may be large.
    let gathered = tokio::task::spawn_blocking(move || gather(&ctx, &stats, &layers, signal));
    in_time(gathered).await
}

/// How long it is waited for what containers have written; statistics leave out what is not known at once.
const LAYERS: Duration = Duration::from_secs(20);

/// Processes of a pod whose descriptors are looked at, and how long that may take.
const PIDS: usize = 10_000;
const DELETED: Duration = Duration::from_secs(2);

/// How long measuring what pods have on disks may take; after that what was known before has to do.
const MEASURING: Duration = Duration::from_secs(45);
/// How long the whole look at the disks may take. A file system may hang.
const LOOKING: Duration = Duration::from_secs(60);

async fn in_time<T: Default>(measured: tokio::task::JoinHandle<T>) -> T {
    match tokio::time::timeout(LOOKING, measured).await {
        Ok(measured) => measured.unwrap_or_default(),
        Err(_) => {
            tracing::warn!("what pods have on disks cannot be measured in time");
            T::default()
        }
    }
}

fn gather(
    ctx: &Context,
    stats: &[cri::ContainerStats],
    layers: &BTreeMap<String, DiskUse>,
    signal: Signal,
) -> Vec<Candidate> {
    let mut by_pod: BTreeMap<String, Vec<&cri::ContainerStats>> = BTreeMap::new();
    for one in stats {
        let labels = one.attributes.as_ref().map(|a| &a.labels);
        if let Some(uid) = labels.and_then(|l| l.get(keys::POD_UID)) {
            by_pod.entry(uid.clone()).or_default().push(one);
        }
    }
    let on_disk = signal.condition() == Condition::Disk;
    let until = on_disk.then(|| Instant::now() + MEASURING);
    let measured = |dir: &Path| until.and_then(|until| measure::directory(dir, until));
    let hierarchies = match signal {
        Signal::PidAvailable => Hierarchies::detect().ok(),
        _ if on_disk => Hierarchies::detect().ok(),
        _ => None,
    };
    let active = ctx.pods.active_pods();
    let candidate = |pod: Arc<Pod>| {
        let containers = by_pod.get(pod.uid()).map(|list| {
            let usage = |one: &&cri::ContainerStats| usage(ctx, &pod, one, layers, &measured);
            list.iter().map(usage).collect()
        });
        let volumes = ctx.paths.pod(pod.uid());
        let volumes = measured(&volumes.join("volumes/kubernetes.io~empty-dir"));
        let all = hierarchies.as_ref();
        let held = all
            .filter(|_| on_disk)
            .map_or(0, |all| deleted(ctx, all, &pod));
        let held = OnDisk {
            bytes: held,
            ..OnDisk::default()
        };
        let processes = all
            .filter(|_| !on_disk)
            .and_then(|all| processes(ctx, all, &pod));
        Candidate {
            containers,
            volumes: volumes.unwrap_or_default().with(held),
            processes,
            pod,
        }
    };
    active.into_iter().map(candidate).collect()
}

/// Process numbers in the pod's cgroup.
fn processes(ctx: &Context, hierarchies: &Hierarchies, pod: &Pod) -> Option<i64> {
    let count = hierarchies.cgroup(&ctx.pod_cgroup(pod)).usage().processes;
    i64::try_from(count).ok()
}

/// Bytes of files that containers of the pod have deleted and still hold, as far as that is seen soon.
fn deleted(ctx: &Context, hierarchies: &Hierarchies, pod: &Pod) -> i64 {
    let path = ctx.pod_cgroup(pod);
    let pids = hierarchies.cgroup(&path).all_pids(PIDS);
    let until = Instant::now() + DELETED;
    let bytes = davit_oci::deleted_files(&pids, &path, pod.uid(), until);
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn usage(
    ctx: &Context,
    pod: &Pod,
    stats: &cri::ContainerStats,
    layers: &BTreeMap<String, DiskUse>,
    measured: &impl Fn(&Path) -> Option<OnDisk>,
) -> Usage {
    let number = |value: &Option<cri::UInt64Value>| {
        let value = value.as_ref().map_or(0, |v| v.value);
        i64::try_from(value).unwrap_or(i64::MAX)
    };
    let labels = stats.attributes.as_ref().map(|a| &a.labels);
    let name = labels.and_then(|l| l.get(keys::CONTAINER_NAME)).cloned();
    let container = name.unwrap_or_default();
    let layer = stats.writable_layer.as_ref();
    let logs = ctx.paths.pod_log_dir(pod.ns(), pod.pod_name(), pod.uid());
    let logs = measured(&logs.join(Path::new(&container))).unwrap_or_default();
    let id = stats.attributes.as_ref().map_or("", |a| &a.id);
    let disk = match layers.get(id) {
        Some(known) => OnDisk::from(*known),
        None => OnDisk {
            bytes: layer.map_or(0, |l| number(&l.used_bytes)),
            inodes: layer.map_or(0, |l| number(&l.inodes_used)),
            in_part: false,
        },
    };
    let disk = disk.with(OnDisk { inodes: 0, ..logs });
    Usage {
        container,
        memory: stats
            .memory
            .as_ref()
            .map_or(0, |m| number(&m.working_set_bytes)),
        disk,
    }
}

/// Waits for the end of an evicted pod, so that the next look sees what it has set free.
async fn wait_quiet(ctx: &Context, uid: &str) {
    let deadline = Instant::now() + CLEAN_UP;
    while ctx.pods.active_pods().iter().any(|p| p.uid() == uid) {
        if Instant::now() >= deadline {
            tracing::warn!(%uid, "timed out waiting for an evicted pod to end");
            return;
        }
        tokio::time::sleep(CLEAN_UP_POLL).await;
    }
}

/// Whether a pod may start under these conditions.
///
/// # Errors
/// `Evicted`, with the conditions.
pub(crate) fn admit(pod: &Pod, conditions: &[Condition]) -> Result<(), Refusal> {
    if conditions.is_empty() || rank::is_critical(pod) {
        return Ok(());
    }
    if conditions == [Condition::Memory]
        && (Qos::of(pod) != Qos::BestEffort || tolerates_memory_pressure(pod))
    {
        return Ok(());
    }
    let names: Vec<&str> = conditions.iter().map(|c| c.as_str()).collect();
    Err(Refusal {
        reason: EVICTED.to_owned(),
        message: format!("The node had condition: [{}]. ", names.join(" ")),
        misfit: None,
    })
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let taint = k8s_openapi::api::core::v1::Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Default::default()
    };
    let tolerations = pod.pod_spec().tolerations.as_deref().unwrap_or_default();
    tolerations
        .iter()
        .any(|t| davit_api::taint::tolerates(t, &taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_may_start_under_pressure() {
        let pod = |spec: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
        };
        let plain = pod(json!({"containers": [{"name": "c"}]}));
        let asking = pod(
            json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]}),
        );
        let critical = pod(json!({"priority": 2_000_000_000, "containers": [{"name": "c"}]}));
        let tolerant = pod(json!({"containers": [{"name": "c"}], "tolerations": [
            {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]}));
        let memory = [Condition::Memory];
        assert!(admit(&plain, &[]).is_ok());
        for fine in [&asking, &critical, &tolerant] {
            assert!(admit(fine, &memory).is_ok());
        }
        assert_eq!(
            admit(&plain, &memory).unwrap_err().message,
            "The node had condition: [MemoryPressure]. "
        );
        let both = [Condition::Memory, Condition::Disk];
        assert!(admit(&asking, &both).is_err() && admit(&tolerant, &both).is_err());
        assert!(admit(&critical, &both).is_ok());
    }
}
