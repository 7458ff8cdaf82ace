//! From what pods use to how many there should be.
//!
//! Pods that are not ready yet, that fail or that are ended count less than others, so that what is not known leads to
//! the smaller change; how fast a change may be is for [`ScalingHistory`] to say. Specified in
//! <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details>.
//! No I/O and no clock.
#![forbid(unsafe_code)]

mod behavior;

pub use behavior::{Normalized, ScalingCondition, ScalingHistory, least};

use davit_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const CPU: &str = "cpu";

/// What a pod uses, in thousandths.
#[derive(Debug, Clone, PartialEq)]
pub struct PodMetric {
    /// How much.
    pub milli: i64,
    /// The end of the time it was measured over.
    pub at: Timestamp,
    /// How long it was measured.
    pub window: SignedDuration,
}

/// By pod.
pub type PodMetrics = BTreeMap<String, PodMetric>;

/// What counts where an object does not say otherwise: kube-controller-manager's flags `--horizontal-pod-autoscaler-…`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoscalerSettings {
    /// How often each object is looked at.
    pub sync_period: Duration,
    /// How far from its target a metric may be without leading to a change, as a ratio.
    pub tolerance: f64,
    /// How long recommendations hold the number up.
    pub downscale_stabilization: Duration,
    /// How long after its start a pod's CPU use may be that of its start.
    pub cpu_initialization_period: SignedDuration,
    /// How long after its start a pod that was never ready is taken to be starting.
    pub initial_readiness_delay: SignedDuration,
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            sync_period: Duration::from_secs(15),
            tolerance: 0.1,
            downscale_stabilization: Duration::from_secs(300),
            cpu_initialization_period: SignedDuration::from_secs(300),
            initial_readiness_delay: SignedDuration::from_secs(30),
        }
    }
}

/// How far from 1 a ratio may be without leading to a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Above.
    pub up: f64,
    /// Below.
    pub down: f64,
}

impl Tolerance {
    fn contains(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= 1.0 + self.up
    }
}

/// How many replicas a metric asks for, and what it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// How many there should be.
    pub replicas: i32,
    /// Percent of what is requested.
    pub utilization: i32,
    /// Mean of the pods, in thousandths.
    pub raw_milli: i64,
}

/// The pods of a target, sorted by what their metrics are worth.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn ceil(value: f64) -> i32 {
    // what is beyond the range stays at its end
    value.ceil() as i32
}

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
}

/// Times are what nodes and servers of metrics say, the end of all times too.
fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}

/// Whether the pod's use of CPU is that of a pod that starts.
fn is_starting(
    pod: &Pod,
    metric: &PodMetric,
    settings: &AutoscalerSettings,
    now: Timestamp,
) -> bool {
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    let (Some(ready), Some(started)) = (ready_condition(pod), started) else {
        return true;
    };
    let is_false = ready.status == "False";
    let changed = ready
        .last_transition_time
        .as_ref()
        .map_or(started.0, |t| t.0);
    if after(started.0, settings.cpu_initialization_period) > now {
        // measured in part before it was ready
        is_false || metric.at < after(changed, metric.window)
    } else {
        is_false && after(started.0, settings.initial_readiness_delay) > changed
    }
}

fn groups(seen: &Observed<'_>) -> Groups {
    let mut groups = Groups::default();
    for pod in seen.pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || phase == Some("Failed") {
            groups.ignored.insert(name);
        } else if phase == Some("Pending") {
            groups.unready.insert(name);
        } else {
            match seen.metrics.get(&name) {
                None => {
                    groups.missing.insert(name);
                }
                Some(metric)
                    if seen.resource == CPU
                        && is_starting(pod, metric, &seen.settings, seen.now) =>
                {
                    groups.unready.insert(name);
                }
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// What the containers of each pod request, in thousandths.
fn requests(
    pods: &[Arc<Pod>],
    container: Option<&str>,
    resource: &str,
) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let sidecars = spec.and_then(|s| s.init_containers.as_ref());
        let sidecars = sidecars.into_iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
        let mut sum = 0_i64;
        for one in containers.iter().chain(sidecars) {
            if container.is_some_and(|wanted| wanted != one.name) {
                continue;
            }
            let requests = one.resources.as_ref().and_then(|r| r.requests.as_ref());
            let request = requests
                .and_then(|requests| requests.get(resource))
                .and_then(|quantity| Quantity::parse(&quantity.0).ok());
            let Some(request) = request else {
                return Err(format!(
                    "missing request for {resource} in container {} of Pod {name}",
                    one.name
                ));
            };
            sum = sum.saturating_add(request.milli_value());
        }
        all.insert(name, sum);
    }
    Ok(all)
}

/// Ratio to the target, percentage of what is requested, mean.
fn utilization(
    metrics: &PodMetrics,
    requests: &BTreeMap<String, i64>,
    target: i32,
) -> Result<(f64, i32, i64), String> {
    let (mut used, mut requested, mut count) = (0_i64, 0_i64, 0_i64);
    for (name, metric) in metrics {
        // a pod that is gone meanwhile has no requests
        if let Some(request) = requests.get(name) {
            used = used.saturating_add(metric.milli);
            requested = requested.saturating_add(*request);
            count += 1;
        }
    }
    if requested == 0 {
        return Err("no metrics returned matched known pods".to_owned());
    }
    let percent = i128::from(used) * 100 / i128::from(requested);
    let percent = i32::try_from(percent).unwrap_or(i32::MAX);
    Ok((
        f64::from(percent) / f64::from(target),
        percent,
        used / count,
    ))
}

/// Ratio to the target, mean.
fn usage(metrics: &PodMetrics, target_milli: i64) -> (f64, i64) {
    let total = metrics
        .values()
        .fold(0_i64, |sum, m| sum.saturating_add(m.milli));
    let mean = total / i64::try_from(metrics.len().max(1)).unwrap_or(i64::MAX);
    (mean as f64 / target_milli as f64, mean)
}

/// What a target is measured against.
#[derive(Debug, Clone, Copy)]
pub enum Against<'a> {
    /// Percent of what the pods (or one container of each) request.
    Utilization {
        /// How many percent.
        percent: i32,
        /// The container, if it is one.
        container: Option<&'a str>,
    },
    /// A mean, in thousandths.
    Average {
        /// The mean.
        milli: i64,
    },
}

/// Everything that is known when a metric of pods is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// Replicas now.
    pub current: i32,
    /// The pods of the target.
    pub pods: &'a [Arc<Pod>],
    /// What they use, as far as it is known.
    pub metrics: &'a PodMetrics,
    /// The resource, or nothing for other metrics.
    pub resource: &'a str,
    /// What counts as no change.
    pub tolerance: Tolerance,
    /// How long pods are taken to be starting.
    pub settings: AutoscalerSettings,
    /// The time.
    pub now: Timestamp,
}

/// How many replicas a metric of pods asks for.
///
/// # Errors
/// Why it cannot be told.
pub fn of_pods(seen: Observed<'_>, against: Against<'_>) -> Result<Proposal, String> {
    if seen.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = groups(&seen);
    let mut metrics = seen.metrics.clone();
    metrics.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if metrics.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match against {
        Against::Utilization { container, .. } => requests(seen.pods, container, seen.resource)?,
        Against::Average { .. } => BTreeMap::new(),
    };
    let ratio_of = |metrics: &PodMetrics| match against {
        Against::Utilization { percent, .. } => utilization(metrics, &requests, percent),
        Against::Average { milli } => {
            let (ratio, mean) = usage(metrics, milli);
            Ok((ratio, 0, mean))
        }
    };
    let (ratio, utilization, raw_milli) = ratio_of(&metrics)?;
    let proposal = |replicas: i32| Proposal {
        replicas,
        utilization,
        raw_milli,
    };
    let up_with_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        if seen.tolerance.contains(ratio) {
            return Ok(proposal(seen.current));
        }
        return Ok(proposal(ceil(ratio * groups.ready as f64)));
    }
    let assumed = |milli: i64| PodMetric {
        milli,
        at: seen.now,
        window: SignedDuration::ZERO,
    };
    for name in &groups.missing {
        // what is missing is taken to be what argues for the smaller change
        let milli = match against {
            _ if ratio > 1.0 => 0,
            Against::Utilization { percent, .. } => {
                let request = requests.get(name).copied().unwrap_or(0);
                request.saturating_mul(i64::from(percent.max(100))) / 100
            }
            Against::Average { milli } => milli,
        };
        metrics.insert(name.clone(), assumed(milli));
    }
    if up_with_unready {
        for name in &groups.unready {
            metrics.insert(name.clone(), assumed(0));
        }
    }
    let (again, ..) = ratio_of(&metrics)?;
    let turned = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
    if seen.tolerance.contains(again) || turned {
        return Ok(proposal(seen.current));
    }
    let replicas = ceil(again * metrics.len() as f64);
    let wrong_way =
        (again < 1.0 && replicas > seen.current) || (again > 1.0 && replicas < seen.current);
    Ok(proposal(if wrong_way { seen.current } else { replicas }))
}

/// How many replicas a value for all of them asks for, when it is compared with a target.
pub fn of_value(
    current: i32,
    milli: i64,
    target_milli: i64,
    ready: usize,
    tolerance: Tolerance,
) -> i32 {
    let ratio = milli as f64 / target_milli as f64;
    if current == 0 {
        return ceil(ratio);
    }
    if tolerance.contains(ratio) {
        return current;
    }
    ceil(ratio * ready as f64)
}

/// The same for a target that is a share of each replica; and the share now, in thousandths.
pub fn of_share(current: i32, milli: i64, target_milli: i64, tolerance: Tolerance) -> (i32, i64) {
    let ratio = milli as f64 / (target_milli as f64 * f64::from(current));
    let replicas = if current != 0 && tolerance.contains(ratio) {
        current
    } else {
        ceil(milli as f64 / target_milli as f64)
    };
    let share = (milli as f64 / f64::from(current.max(1))).ceil() as i64;
    (replicas, share)
}

/// Pods that run and are ready.
pub fn ready(pods: &[Arc<Pod>]) -> usize {
    let is_ready = |pod: &&Arc<Pod>| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        phase == Some("Running") && ready_condition(pod).is_some_and(|c| c.status == "True")
    };
    pods.iter().filter(is_ready).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TOLERANCE: Tolerance = Tolerance { up: 0.1, down: 0.1 };

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    fn pod(name: &str, phase: &str, ready: bool, minutes: i64) -> Arc<Pod> {
        let at = now() - SignedDuration::from_mins(minutes);
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": phase, "startTime": at.to_string(), "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": at.to_string() }] },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn running(count: usize) -> Vec<Arc<Pod>> {
        (0..count)
            .map(|i| pod(&format!("p{i}"), "Running", true, 60))
            .collect()
    }

    fn metrics(values: &[i64]) -> PodMetrics {
        let metric = |(i, milli): (usize, &i64)| {
            let metric = PodMetric {
                milli: *milli,
                at: now(),
                window: SignedDuration::from_secs(60),
            };
            (format!("p{i}"), metric)
        };
        values.iter().enumerate().map(metric).collect()
    }

    fn cpu(pods: &[Arc<Pod>], values: &[i64], percent: i32) -> Result<Proposal, String> {
        let seen = Observed {
            current: i32::try_from(pods.len()).unwrap(),
            pods,
            metrics: &metrics(values),
            resource: CPU,
            tolerance: TOLERANCE,
            settings: AutoscalerSettings::default(),
            now: now(),
        };
        of_pods(
            seen,
            Against::Utilization {
                percent,
                container: None,
            },
        )
    }

    /// Nodes write when pods began and became ready.
    #[test]
    fn the_end_of_all_times_is_a_time() {
        for is_ready in [false, true] {
            let mut pod = Arc::unwrap_or_clone(pod("p0", "Running", is_ready, 1));
            let end = Timestamp::MAX.to_string();
            let status = pod.status.as_mut().unwrap();
            let condition = &mut status.conditions.as_mut().unwrap()[0];
            condition.last_transition_time = serde_json::from_value(json!(end)).unwrap();
            status.start_time = serde_json::from_value(json!(end)).unwrap();
            // Told, and no panic.
            let _either = cpu(&[Arc::new(pod)], &[500], 30);
        }
    }

    #[test]
    fn use_above_and_below_the_target_changes_the_number() {
        let up = cpu(&running(3), &[300, 500, 700], 30).unwrap();
        assert_eq!((up.replicas, up.utilization, up.raw_milli), (5, 50, 500));
        assert_eq!(cpu(&running(5), &[100; 5], 50).unwrap().replicas, 1);
        assert_eq!(cpu(&running(3), &[540; 3], 50).unwrap().replicas, 3);
    }

    #[test]
    fn pods_that_start_are_taken_to_use_nothing() {
        let mut pods = running(3);
        pods[2] = pod("p2", "Running", true, 0);
        // 2 of 3 count first, then the third one with nothing
        assert_eq!(cpu(&pods, &[600, 600, 900], 30).unwrap().replicas, 4);
        pods[2] = pod("p2", "Pending", false, 1);
        assert_eq!(cpu(&pods, &[600, 600], 30).unwrap().replicas, 4);
    }

    #[test]
    fn what_is_missing_argues_for_the_smaller_change() {
        // down: the missing one is taken to use all it requests
        assert_eq!(cpu(&running(4), &[100, 100, 100], 100).unwrap().replicas, 2);
        // up: nothing
        assert_eq!(cpu(&running(3), &[1000, 1000], 50).unwrap().replicas, 4);
        assert!(
            cpu(&running(2), &[], 50)
                .unwrap_err()
                .starts_with("did not receive metrics")
        );
        assert!(
            cpu(&[], &[], 50)
                .unwrap_err()
                .starts_with("no pods returned")
        );
    }

    #[test]
    fn requests_must_be_there() {
        let mut pods = running(1);
        Arc::make_mut(&mut pods[0])
            .spec
            .as_mut()
            .unwrap()
            .containers[0]
            .resources = None;
        assert_eq!(
            cpu(&pods, &[1], 50).unwrap_err(),
            "missing request for cpu in container c of Pod p0"
        );
    }

    #[test]
    fn means_and_values_are_compared_with_targets() {
        let pods = running(3);
        let seen = Observed {
            current: 3,
            pods: &pods,
            metrics: &metrics(&[20_000, 10_000, 30_000]),
            resource: "",
            tolerance: TOLERANCE,
            settings: AutoscalerSettings::default(),
            now: now(),
        };
        let proposal = of_pods(seen, Against::Average { milli: 10_000 }).unwrap();
        assert_eq!((proposal.replicas, proposal.raw_milli), (6, 20_000));
        assert_eq!(of_value(3, 8600, 4400, 3, TOLERANCE), 6);
        assert_eq!(of_value(0, 8600, 4400, 0, TOLERANCE), 2);
        assert_eq!(of_value(3, 4500, 4400, 3, TOLERANCE), 3);
        assert_eq!(of_share(3, 8600, 2000, TOLERANCE), (5, 2867));
        assert_eq!(of_share(3, 6100, 2000, TOLERANCE).0, 3);
        assert_eq!(ready(&pods), 3);
    }
}
