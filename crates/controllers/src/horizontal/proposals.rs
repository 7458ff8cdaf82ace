//! How many replicas each metric of an autoscaler asks for.

use super::Autoscaler;
use davit_api::quantity::Quantity;
use davit_autoscaling::{Against, AutoscalerSettings, Observed, PodMetrics, Proposal, Tolerance};
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, CrossVersionObjectReference, ExternalMetricSource,
    ExternalMetricStatus, HPAScalingRules, HorizontalPodAutoscaler, MetricSpec, MetricStatus,
    MetricTarget, MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// What is known when the metrics of an object are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) hpa: &'a HorizontalPodAutoscaler,
    pub(super) selector: &'a str,
    pub(super) pods: &'a [Arc<Pod>],
    /// Replicas that are asked for now.
    pub(super) current: i32,
    /// Replicas that there are.
    pub(super) observed: i32,
    /// What counts where the object does not say otherwise.
    pub(super) settings: AutoscalerSettings,
}

/// What a metric asks for.
#[derive(Debug)]
pub(super) struct MetricProposal {
    pub(super) replicas: i32,
    /// Names the metric in events.
    pub(super) name: String,
    pub(super) status: MetricStatus,
}

/// Why a metric asks for nothing.
#[derive(Debug)]
pub(super) struct Failure {
    /// Reason of the condition and the event.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

fn failure(reason: &'static str) -> impl Fn(String) -> Failure {
    move |message| Failure { reason, message }
}

fn milli(quantity: Option<&Text>) -> Option<i64> {
    let parsed = Quantity::parse(&quantity?.0).ok()?;
    Some(parsed.milli_value()).filter(|milli| *milli > 0)
}

fn text(milli: i64) -> Text {
    Text(Quantity::from_milli(milli).to_string())
}

fn selector(selector: Option<&LabelSelector>) -> Result<String, String> {
    let Some(selector) = selector else {
        return Ok(String::new());
    };
    let equal = selector.match_labels.iter().flatten();
    let mut terms: Vec<String> = equal.map(|(key, value)| format!("{key}={value}")).collect();
    for term in selector.match_expressions.iter().flatten() {
        let (key, values) = (&term.key, term.values.clone().unwrap_or_default().join(","));
        terms.push(match term.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.clone(),
            "DoesNotExist" => format!("!{key}"),
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        });
    }
    Ok(terms.join(","))
}

fn tolerance(hpa: &HorizontalPodAutoscaler, settings: &AutoscalerSettings) -> Tolerance {
    let rules = hpa.spec.behavior.as_ref();
    let of = |rules: Option<&HPAScalingRules>| {
        let given = rules.and_then(|rules| rules.tolerance.as_ref());
        given
            .and_then(|given| Quantity::parse(&given.0).ok())
            .map_or(settings.tolerance, Quantity::as_f64)
    };
    Tolerance {
        up: of(rules.and_then(|rules| rules.scale_up.as_ref())),
        down: of(rules.and_then(|rules| rules.scale_down.as_ref())),
    }
}

impl Seen<'_> {
    fn namespace(&self) -> &str {
        self.hpa.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn of_pods(
        &self,
        metrics: &PodMetrics,
        resource: &str,
        against: Against<'_>,
    ) -> Result<Proposal, String> {
        let observed = Observed {
            current: self.current,
            pods: self.pods,
            metrics,
            resource,
            tolerance: tolerance(self.hpa, &self.settings),
            settings: self.settings,
            now: Timestamp::now(),
        };
        davit_autoscaling::of_pods(observed, against)
    }
}

impl Autoscaler {
    /// What one metric asks for.
    pub(super) async fn proposal(
        &self,
        seen: &Seen<'_>,
        spec: &MetricSpec,
    ) -> Result<MetricProposal, Failure> {
        let invalid = || Failure {
            reason: "InvalidMetricSourceType",
            message: format!("unknown metric source type {:?}", spec.type_),
        };
        match spec.type_.as_str() {
            "Resource" => {
                let source = spec.resource.as_ref().ok_or_else(invalid)?;
                self.resource(seen, &source.name, &source.target, None)
                    .await
            }
            "ContainerResource" => {
                let source = spec.container_resource.as_ref().ok_or_else(invalid)?;
                let container = Some(source.container.as_str());
                self.resource(seen, &source.name, &source.target, container)
                    .await
            }
            "Pods" => {
                let source = spec.pods.as_ref().ok_or_else(invalid)?;
                let failed = failure("FailedGetPodsMetric");
                let labels = selector(source.metric.selector.as_ref()).map_err(&failed)?;
                let name = &source.metric.name;
                let metrics = self
                    .metrics
                    .of_pods(name, seen.namespace(), seen.selector, &labels)
                    .await;
                let wrapped = |error| failed(format!("failed to get pods metric value: {error}"));
                let unable = |error| format!("unable to get metric {name}: {error}");
                let metrics = metrics.map_err(unable).map_err(wrapped)?;
                let target = milli(source.target.average_value.as_ref());
                let target =
                    target.ok_or_else(|| wrapped("the target has no averageValue".to_owned()))?;
                let against = Against::Average { milli: target };
                let proposal = seen.of_pods(&metrics, "", against).map_err(wrapped)?;
                Ok(MetricProposal {
                    replicas: proposal.replicas,
                    name: format!("pods metric {name}"),
                    status: MetricStatus {
                        type_: "Pods".to_owned(),
                        pods: Some(PodsMetricStatus {
                            metric: source.metric.clone(),
                            current: MetricValueStatus {
                                average_value: Some(text(proposal.raw_milli)),
                                ..MetricValueStatus::default()
                            },
                        }),
                        ..MetricStatus::default()
                    },
                })
            }
            "Object" => {
                let source = spec.object.as_ref().ok_or_else(invalid)?;
                self.object(seen, source).await
            }
            "External" => {
                let source = spec.external.as_ref().ok_or_else(invalid)?;
                self.external(seen, source).await
            }
            _ => Err(invalid()),
        }
    }

    /// Use of a resource by the pods, or by one container of each.
    async fn resource(
        &self,
        seen: &Seen<'_>,
        name: &str,
        target: &MetricTarget,
        container: Option<&str>,
    ) -> Result<MetricProposal, Failure> {
        let failed = failure(match container {
            None => "FailedGetResourceMetric",
            Some(_) => "FailedGetContainerResourceMetric",
        });
        let against = match (
            milli(target.average_value.as_ref()),
            target.average_utilization,
        ) {
            (Some(milli), _) => Against::Average { milli },
            (None, Some(percent)) if percent > 0 => Against::Utilization { percent, container },
            _ => {
                let text = "invalid resource metric source: neither an average utilization nor an \
                            average value (usage) target was set";
                return Err(failed(text.to_owned()));
            }
        };
        let of_target = matches!(against, Against::Utilization { .. });
        let wrapped = |error: String| {
            let what = if of_target { "utilization" } else { "usage" };
            failed(format!("failed to get {name} {what}: {error}"))
        };
        let metrics = self
            .metrics
            .of_resource(name, seen.namespace(), seen.selector, container)
            .await
            .map_err(wrapped)?;
        let proposal = seen.of_pods(&metrics, name, against).map_err(wrapped)?;
        let current = MetricValueStatus {
            average_utilization: of_target.then_some(proposal.utilization),
            average_value: Some(text(proposal.raw_milli)),
            value: None,
        };
        let kind = if container.is_some() {
            "container resource"
        } else {
            "resource"
        };
        let title = match of_target {
            true => format!("{name} {kind} utilization (percentage of request)"),
            false => format!("{name} {kind}"),
        };
        let status = match container {
            None => MetricStatus {
                type_: "Resource".to_owned(),
                resource: Some(ResourceMetricStatus {
                    name: name.to_owned(),
                    current,
                }),
                ..MetricStatus::default()
            },
            Some(container) => MetricStatus {
                type_: "ContainerResource".to_owned(),
                container_resource: Some(ContainerResourceMetricStatus {
                    name: name.to_owned(),
                    container: container.to_owned(),
                    current,
                }),
                ..MetricStatus::default()
            },
        };
        Ok(MetricProposal {
            replicas: proposal.replicas,
            name: title,
            status,
        })
    }

    async fn described(&self, seen: &Seen<'_>, source: &ObjectMetricSource) -> Result<i64, String> {
        let CrossVersionObjectReference {
            api_version,
            kind,
            name,
        } = &source.described_object;
        let labels = selector(source.metric.selector.as_ref())?;
        let resource = match kind.as_str() {
            "Namespace" => None,
            kind => {
                let version = api_version.as_deref().unwrap_or_default();
                let found = self.scales.resource(version, kind).await;
                Some(found.map_err(|error| error.to_string())?)
            }
        };
        let metric = &source.metric.name;
        let value =
            self.metrics
                .of_object(metric, seen.namespace(), resource.as_ref(), name, &labels);
        value.await.map_err(|error| {
            format!(
                "unable to get metric {metric}: {kind} on {} {name}/{error}",
                seen.namespace()
            )
        })
    }

    async fn object(
        &self,
        seen: &Seen<'_>,
        source: &ObjectMetricSource,
    ) -> Result<MetricProposal, Failure> {
        let failed = failure("FailedGetObjectMetric");
        let wrapped = |error| failed(format!("failed to get object metric value: {error}"));
        let value = self.described(seen, source).await.map_err(wrapped)?;
        let (replicas, current) = compared(seen, value, &source.target).map_err(wrapped)?;
        let kind = &source.described_object.kind;
        Ok(MetricProposal {
            replicas,
            name: format!("{kind} metric {}", source.metric.name),
            status: MetricStatus {
                type_: "Object".to_owned(),
                object: Some(ObjectMetricStatus {
                    described_object: source.described_object.clone(),
                    metric: source.metric.clone(),
                    current,
                }),
                ..MetricStatus::default()
            },
        })
    }

    async fn external(
        &self,
        seen: &Seen<'_>,
        source: &ExternalMetricSource,
    ) -> Result<MetricProposal, Failure> {
        let failed = failure("FailedGetExternalMetric");
        let name = &source.metric.name;
        let labels = selector(source.metric.selector.as_ref()).map_err(&failed)?;
        let wrapped = |error| {
            failed(format!(
                "failed to get {name} external metric value: {error}"
            ))
        };
        let value = self.metrics.external(name, seen.namespace(), &labels).await;
        let unable = |error| {
            format!(
                "unable to get external metric {}/{name}/{labels}: {error}",
                seen.namespace()
            )
        };
        let value = value.map_err(unable).map_err(wrapped)?;
        let (replicas, current) = compared(seen, value, &source.target).map_err(wrapped)?;
        Ok(MetricProposal {
            replicas,
            name: format!("external metric {name}({labels})"),
            status: MetricStatus {
                type_: "External".to_owned(),
                external: Some(ExternalMetricStatus {
                    metric: source.metric.clone(),
                    current,
                }),
                ..MetricStatus::default()
            },
        })
    }
}

/// What a value for all replicas asks for, and what is told of it.
fn compared(
    seen: &Seen<'_>,
    value: i64,
    target: &MetricTarget,
) -> Result<(i32, MetricValueStatus), String> {
    let tolerance = tolerance(seen.hpa, &seen.settings);
    if let Some(target) = milli(target.average_value.as_ref()) {
        let (replicas, share) =
            davit_autoscaling::of_share(seen.observed, value, target, tolerance);
        let status = MetricValueStatus {
            average_value: Some(text(share)),
            ..MetricValueStatus::default()
        };
        return Ok((replicas, status));
    }
    let target = milli(target.value.as_ref())
        .ok_or_else(|| "neither a value target nor an average value target was set".to_owned())?;
    let ready = davit_autoscaling::ready(seen.pods);
    let replicas = davit_autoscaling::of_value(seen.current, value, target, ready, tolerance);
    let status = MetricValueStatus {
        value: Some(text(value)),
        ..MetricValueStatus::default()
    };
    Ok((replicas, status))
}
