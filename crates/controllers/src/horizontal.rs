//! Horizontal pod autoscalers: the number of replicas follows metrics.
//!
//! [`davit_autoscaling`] says how many replicas a metric asks for, [`ScalingHistory`] how fast that may happen, [`metrics`] asks the
//! metrics APIs. Specified in <https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/>.

mod lane;
mod metrics;
mod proposals;
mod selectors;

use async_trait::async_trait;
use davit_api::labels::Selector;
use davit_autoscaling::{AutoscalerSettings, ScalingHistory, least};
use davit_client::scale::{ScaleError, ScaleTarget, Scales};
use davit_client::{EventRecorder, Informer, ObjectKey, object_ref};
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, write_status};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
    MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::watcher;
use lane::{LOOKING, Lane, Turn};
use metrics::Metrics;
use parking_lot::Mutex;
use selectors::Selectors;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

const COMPONENT: &str = "horizontal-pod-autoscaler";

type Hpa = HorizontalPodAutoscaler;

pub(crate) fn spawn(spawner: &mut Spawner<'_>, settings: AutoscalerSettings) {
    let Some(spawner) = &mut spawner.start("horizontal-pod-autoscaler-controller") else {
        return;
    };
    let client = spawner.client.clone();
    let hpas: Informer<Hpa> = Informer::spawn(
        kube::Api::all(spawner.shared.clone()),
        watcher::Config::default(),
        spawner.tasks.set(),
        spawner.cancel.clone(),
    );
    let autoscaler = Autoscaler {
        scales: Scales::new(client.clone()),
        lane: Lane::default(),
        metrics: Metrics::new(client.clone()),
        informers: spawner.informers.clone(),
        hpas: hpas.clone(),
        events: spawner.events(COMPONENT),
        history: Mutex::default(),
        selectors: Selectors::default(),
        settings,
        client,
    };
    let queue = spawner.controller(autoscaler);
    // what it writes itself is no reason to look again before the time
    let matters = |old: &Hpa, new: &Hpa| {
        old.spec != new.spec || old.metadata.annotations != new.metadata.annotations
    };
    spawner.feed_changes(&hpas, &queue, matters, |hpa: &Hpa| vec![ObjectKey::of(hpa)]);
}

struct Autoscaler {
    client: kube::Client,
    informers: Informers,
    hpas: Informer<Hpa>,
    scales: Scales,
    lane: Lane,
    metrics: Metrics,
    events: EventRecorder,
    history: Mutex<HashMap<ObjectKey, ScalingHistory>>,
    selectors: Selectors,
    settings: AutoscalerSettings,
}

/// What one look at an object leads to.
struct Look {
    status: HorizontalPodAutoscalerStatus,
}

impl Look {
    fn new(hpa: &Hpa) -> Self {
        let mut status = hpa.status.clone().unwrap_or_default();
        status.observed_generation = hpa.metadata.generation;
        Self { status }
    }

    fn condition(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let conditions = self.status.conditions.get_or_insert_default();
        let at = conditions.iter().position(|c| c.type_ == kind);
        let at = at.unwrap_or_else(|| {
            conditions.push(HorizontalPodAutoscalerCondition {
                type_: kind.to_owned(),
                ..HorizontalPodAutoscalerCondition::default()
            });
            conditions.len() - 1
        });
        let held = &mut conditions[at];
        if held.status != status {
            held.last_transition_time = Some(Time(Timestamp::now()));
            status.clone_into(&mut held.status);
        }
        held.reason = Some(reason.to_owned());
        held.message = Some(message.into());
    }
}

/// Metrics could not be turned into a number; conditions and events say why.
#[derive(Debug)]
struct NoNumber;

#[async_trait]
impl Reconcile for Autoscaler {
    const NAME: &'static str = "horizontal-pod-autoscaler";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(hpa) = self.hpas.get(Some(&key.namespace), &key.name) else {
            self.history.lock().remove(key);
            self.selectors.forget(key);
            self.lane.forget(key);
            return Ok(Next::Wait);
        };
        if hpa.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let mut look = Look::new(&hpa);
        let turn = self.lane.look(key, self.look_at(key, &hpa, &mut look));
        match turn.await {
            Turn::Done => {}
            Turn::Late => {
                let text =
                    format!("the HPA controller was unable to get the metrics within {LOOKING:?}");
                self.warn(&hpa, "FailedComputeMetricsReplicas", &text);
                look.condition("ScalingActive", false, "FailedComputeMetricsReplicas", text);
            }
            Turn::Waits => return Ok(Next::After(self.settings.sync_period / 3)),
        }
        if hpa.status.as_ref() != Some(&look.status) {
            let mut new = Hpa::clone(&hpa);
            new.status = Some(look.status);
            write_status(&self.client, &new).await?;
        }
        Ok(Next::After(self.settings.sync_period))
    }
}

impl Autoscaler {
    fn warn(&self, hpa: &Hpa, reason: &str, message: &str) {
        self.events
            .warning(&object_ref(hpa), reason, message.to_owned());
    }

    async fn look_at(&self, key: &ObjectKey, hpa: &Hpa, look: &mut Look) {
        let reference = &hpa.spec.scale_target_ref;
        let target = ScaleTarget {
            namespace: &key.namespace,
            api_version: reference.api_version.as_deref().unwrap_or_default(),
            kind: &reference.kind,
            name: &reference.name,
        };
        let scale = match self.scales.get(target).await {
            Ok(scale) => scale,
            Err(error) => return self.no_scale(hpa, look, &error),
        };
        let text = "the HPA controller was able to get the target's current scale";
        look.condition("AbleToScale", true, "SucceededGetScale", text);
        let current = scale
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(0);
        self.with_history(key, |history| {
            history.begin(current, Instant::now().into_std());
        });
        let before = (current, look.status.desired_replicas);
        let Ok((desired, reason)) = self.desired(key, hpa, &scale, current, look).await else {
            look.status.current_replicas = Some(before.0);
            return;
        };
        look.status.current_replicas = Some(current);
        look.status.desired_replicas = desired;
        if desired != current
            && !self
                .rescale(key, hpa, target, scale, desired, &reason, look)
                .await
        {
            look.status.desired_replicas = before.1;
        }
    }

    fn with_history<T>(&self, key: &ObjectKey, work: impl FnOnce(&mut ScalingHistory) -> T) -> T {
        work(self.history.lock().entry(key.clone()).or_default())
    }

    fn no_scale(&self, hpa: &Hpa, look: &mut Look, error: &ScaleError) {
        let said = error.to_string();
        self.warn(hpa, "FailedGetScale", &said);
        let text =
            format!("the HPA controller was unable to get the target's current scale: {said}");
        look.condition("AbleToScale", false, "FailedGetScale", text);
    }

    /// How many replicas there should be, and why.
    async fn desired(
        &self,
        key: &ObjectKey,
        hpa: &Hpa,
        scale: &Scale,
        current: i32,
        look: &mut Look,
    ) -> Result<(i32, String), NoNumber> {
        let spec = &hpa.spec;
        if current == 0 && least(spec) != 0 {
            let text = "scaling is disabled since the replica count of the target is zero";
            look.condition("ScalingActive", false, "ScalingDisabled", text);
            return Ok((0, String::new()));
        }
        if current > spec.max_replicas {
            let why = "Current number of replicas above Spec.MaxReplicas";
            return Ok((spec.max_replicas, why.to_owned()));
        }
        if current < least(spec) {
            let why = "Current number of replicas below Spec.MinReplicas";
            return Ok((least(spec), why.to_owned()));
        }
        let (wanted, name, statuses) = self.by_metrics(hpa, scale, current, look).await?;
        look.status.current_metrics = Some(statuses);
        let why = match wanted.cmp(&current) {
            std::cmp::Ordering::Greater => format!("{name} above target"),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
        let normalized = self.with_history(key, |history| {
            history.normalize(
                spec,
                &self.settings,
                current,
                wanted,
                Instant::now().into_std(),
            )
        });
        let (is_true, reason, message) = normalized.able;
        look.condition("AbleToScale", is_true, reason, message);
        let (is_true, reason, message) = normalized.limited;
        look.condition("ScalingLimited", is_true, reason, message);
        Ok((normalized.replicas, why))
    }

    /// The pods of the target and their selector.
    fn pods(
        &self,
        hpa: &Hpa,
        scale: &Scale,
        look: &mut Look,
    ) -> Result<(String, Vec<Arc<Pod>>), NoNumber> {
        let text = scale.status.as_ref().and_then(|s| s.selector.clone());
        let text = text.unwrap_or_default();
        if text.is_empty() {
            self.warn(hpa, "SelectorRequired", "selector is required");
            let text = "the HPA target's scale is missing a selector";
            look.condition("ScalingActive", false, "InvalidSelector", text);
            return Err(NoNumber);
        }
        let selector = Selector::parse(&text).map_err(|error| {
            let text = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            self.warn(hpa, "InvalidSelector", &text);
            look.condition("ScalingActive", false, "InvalidSelector", text);
            NoNumber
        })?;
        let namespace = hpa.metadata.namespace.as_deref();
        let pods = self.informers.pods.list();
        let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
        let pods = pods.into_iter().filter(|pod| {
            pod.metadata.namespace.as_deref() == namespace && selector.matches(&labels(pod))
        });
        let pods: Vec<Arc<Pod>> = pods.collect();
        self.selectors.put(&ObjectKey::of(hpa), selector);
        let selecting = self
            .selectors
            .selecting(namespace.unwrap_or_default(), &pods);
        if selecting.len() > 1 {
            let text = format!(
                "pods by selector {text} are controlled by multiple HPAs: {}",
                selectors::shown(&selecting)
            );
            self.warn(hpa, "AmbiguousSelector", &text);
            look.condition("ScalingActive", false, "AmbiguousSelector", text);
            return Err(NoNumber);
        }
        Ok((text, pods))
    }

    /// The largest number that a metric asks for, its name, and what all metrics are now.
    async fn by_metrics(
        &self,
        hpa: &Hpa,
        scale: &Scale,
        current: i32,
        look: &mut Look,
    ) -> Result<(i32, String, Vec<MetricStatus>), NoNumber> {
        let (selector, pods) = self.pods(hpa, scale, look)?;
        let seen = proposals::Seen {
            settings: self.settings,
            hpa,
            selector: &selector,
            pods: &pods,
            current,
            observed: scale.status.as_ref().map_or(0, |status| status.replicas),
        };
        let specs = hpa.spec.metrics.clone().unwrap_or_default();
        let mut statuses = Vec::new();
        let mut best: Option<(i32, String)> = None;
        let mut first: Option<proposals::Failure> = None;
        let mut failed = 0;
        for spec in &specs {
            match self.proposal(&seen, spec).await {
                Ok(found) => {
                    if best.as_ref().is_none_or(|(most, _)| found.replicas > *most) {
                        best = Some((found.replicas, found.name));
                    }
                    statuses.push(found.status);
                }
                Err(failure) => {
                    self.warn(hpa, failure.reason, &failure.message);
                    failed += 1;
                    first.get_or_insert(failure);
                }
            }
        }
        if let Some(failure) = first {
            // what is not known could ask for more: the number is not lowered
            let lowers = best.as_ref().is_none_or(|(most, _)| *most < current);
            if lowers {
                let text = format!(
                    "invalid metrics ({failed} invalid out of {}), first error is: {}",
                    specs.len(),
                    failure.message
                );
                self.warn(hpa, "FailedComputeMetricsReplicas", &text);
                let message = format!(
                    "the HPA was unable to compute the replica count: {}",
                    failure.message
                );
                look.condition("ScalingActive", false, failure.reason, message);
                look.status.current_metrics = Some(statuses);
                return Err(NoNumber);
            }
        }
        let (most, name) = best.unwrap_or((current, String::new()));
        let text =
            format!("the HPA was able to successfully calculate a replica count from {name}");
        look.condition("ScalingActive", true, "ValidMetricFound", text);
        Ok((most, name, statuses))
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one write and all that is told of it"
    )]
    async fn rescale(
        &self,
        key: &ObjectKey,
        hpa: &Hpa,
        target: ScaleTarget<'_>,
        mut scale: Scale,
        desired: i32,
        reason: &str,
        look: &mut Look,
    ) -> bool {
        let spec = scale.spec.get_or_insert_default();
        let current = spec.replicas.unwrap_or(0);
        spec.replicas = Some(desired);
        match self.scales.put(target, &scale).await {
            Ok(_) => {
                let text =
                    format!("the HPA controller was able to update the target scale to {desired}");
                look.condition("AbleToScale", true, "SucceededRescale", text);
                let text = format!("New size: {desired}; reason: {reason}");
                self.events
                    .normal(&object_ref(hpa), "SuccessfulRescale", text);
                self.with_history(key, |history| {
                    history.changed(current, desired, Instant::now().into_std());
                });
                look.status.last_scale_time = Some(Time(Timestamp::now()));
                true
            }
            Err(error) => {
                let text = format!("New size: {desired}; reason: {reason}; error: {error}");
                self.warn(hpa, "FailedRescale", &text);
                let text =
                    format!("the HPA controller was unable to update the target scale: {error}");
                look.condition("AbleToScale", false, "FailedUpdateScale", text);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
