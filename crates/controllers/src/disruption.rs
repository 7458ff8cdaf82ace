//! Keeps the status of PodDisruptionBudgets, by which evictions are allowed or refused.
//! <https://kubernetes.io/docs/concepts/workloads/pods/disruptions/>

use crate::pod_control::ready_since;
use async_trait::async_trait;
use davit_api::time::age;
use davit_client::scale::{ScaleTarget, Scales};
use davit_client::{EventRecorder, Informer, ObjectKey, object_ref};
use davit_reconcile::owners::controller_of;
use davit_reconcile::pods::is_terminal;
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, write_status};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use kube::core::{Selector, SelectorExt};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const ALLOWED: &str = "DisruptionAllowed";
/// An eviction that was allowed but does not happen within this time is forgotten.
const CONFIRMATION: Duration = Duration::from_secs(120);

struct Disruption {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
    scales: Scales,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("disruption-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("controllermanager");
    let queue = spawner.controller(Disruption {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
        scales: Scales::new(spawner.client.clone()),
    });
    spawner.feed(
        &informers.disruption_budgets,
        &queue,
        |b: &PodDisruptionBudget| vec![ObjectKey::of(b)],
    );
    let budgets = informers.disruption_budgets.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        budgets_of(&budgets, pod)
    });
}

fn selector_of(budget: &PodDisruptionBudget) -> Option<Selector> {
    let selector = budget.spec.as_ref()?.selector.clone()?;
    selector.try_into().ok()
}

fn selects(selector: &Selector, pod: &Pod) -> bool {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    selector.matches(pod.metadata.labels.as_ref().unwrap_or(&NONE))
}

fn budgets_of(budgets: &Informer<PodDisruptionBudget>, pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let all = budgets.list_namespace(namespace);
    all.iter()
        .filter(|budget| selector_of(budget).is_some_and(|selector| selects(&selector, pod)))
        .map(|budget| ObjectKey::of(&**budget))
        .collect()
}

/// How many pods there should be, and how many of them must be healthy.
#[derive(Debug, PartialEq, Eq)]
struct Need {
    expected: i32,
    desired: i32,
}

#[async_trait]
impl Reconcile for Disruption {
    const NAME: &'static str = "disruption";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let budget = self
            .informers
            .disruption_budgets
            .get(Some(&key.namespace), &key.name);
        let Some(budget) = budget else {
            return Ok(Next::Wait);
        };
        let mut pods = self.informers.pods.list_namespace(&key.namespace);
        match selector_of(&budget) {
            Some(selector) => pods.retain(|pod| selects(&selector, pod)),
            None => pods.clear(),
        }
        let now = Timestamp::now();
        if pods.is_empty() {
            let text = "No matching pods found";
            self.events.normal(&object_ref(&*budget), "NoPods", text);
        }
        let customs = self.custom_scales(&key.namespace, &pods).await;
        let need = need(&budget, &pods, |pod| self.scale_of(pod, &customs));
        let (status, next) = match need {
            Ok(need) => status_of(&budget, &pods, &need, now),
            Err(error) => {
                let text = format!("Failed to calculate the number of expected pods: {error}");
                self.events.warning(
                    &object_ref(&*budget),
                    "CalculateExpectedPodCountFailed",
                    text,
                );
                (failed(&budget, &error, now), Next::Wait)
            }
        };
        if budget.status.as_ref() != Some(&status) {
            let changed = PodDisruptionBudget {
                status: Some(status),
                ..PodDisruptionBudget::clone(&budget)
            };
            write_status(&self.client, &changed).await?;
        }
        Ok(next)
    }
}

/// Controllers whose replicas are known from their own objects.
const BUILT_IN: [&str; 3] = ["ReplicaSet", "StatefulSet", "ReplicationController"];

/// The replicas that controllers of other kinds want, by their uids.
type CustomScales = BTreeMap<String, Result<i32, String>>;

impl Disruption {
    /// Asks the scale subresources of the pods' controllers of other kinds.
    async fn custom_scales(&self, namespace: &str, pods: &[Arc<Pod>]) -> CustomScales {
        let mut found = CustomScales::new();
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else {
                continue;
            };
            if BUILT_IN.contains(&owner.kind.as_str()) || found.contains_key(&owner.uid) {
                continue;
            }
            let replicas = self.custom_scale(namespace, owner).await;
            found.insert(owner.uid.clone(), replicas);
        }
        found
    }

    async fn custom_scale(&self, namespace: &str, owner: &OwnerReference) -> Result<i32, String> {
        let target = ScaleTarget {
            namespace,
            api_version: &owner.api_version,
            kind: &owner.kind,
            name: &owner.name,
        };
        let resource = self.scales.resource(&owner.api_version, &owner.kind).await;
        let resource = resource.map_err(|error| error.to_string())?;
        match self.scales.get(target).await {
            // another object of the same name wants nothing of this pod
            Ok(scale) if scale.metadata.uid.as_ref() != Some(&owner.uid) => Ok(0),
            // custom kinds may let their users write less than none
            Ok(scale) => Ok(scale.spec.and_then(|s| s.replicas).unwrap_or(0).max(0)),
            Err(error) if error.is_not_found() => {
                // the object is gone, or its kind has no scale
                match self.scales.has_scale(&owner.api_version, &owner.kind).await {
                    Ok(true) => Ok(0),
                    Ok(false) => Err(format!(
                        "{}.{} does not implement the scale subresource",
                        resource.plural, resource.group
                    )),
                    Err(error) => Err(error.to_string()),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The controller at the top of a pod and how many pods it wants.
    fn scale_of(&self, pod: &Pod, customs: &CustomScales) -> Result<(String, i32), String> {
        let namespace = pod.metadata.namespace.as_deref();
        let Some(owner) = controller_of(&pod.metadata) else {
            return Ok((pod.metadata.uid.clone().unwrap_or_default(), 1));
        };
        let i = &self.informers;
        let replicas = match owner.kind.as_str() {
            "ReplicaSet" => i.replica_sets.get(namespace, &owner.name).map(|set| {
                let parent = controller_of(&set.metadata).filter(|o| o.kind == "Deployment");
                let deployment = parent.and_then(|o| i.deployments.get(namespace, &o.name));
                match deployment {
                    Some(d) => (
                        d.metadata.uid.clone(),
                        d.spec.as_ref().and_then(|s| s.replicas),
                    ),
                    None => (
                        set.metadata.uid.clone(),
                        set.spec.as_ref().and_then(|s| s.replicas),
                    ),
                }
            }),
            "StatefulSet" => i.stateful_sets.get(namespace, &owner.name).map(|set| {
                (
                    set.metadata.uid.clone(),
                    set.spec.as_ref().and_then(|s| s.replicas),
                )
            }),
            "ReplicationController" => {
                i.replication_controllers
                    .get(namespace, &owner.name)
                    .map(|rc| {
                        (
                            rc.metadata.uid.clone(),
                            rc.spec.as_ref().and_then(|s| s.replicas),
                        )
                    })
            }
            _ => {
                let replicas = customs.get(&owner.uid).cloned().unwrap_or(Ok(0));
                return Ok((owner.uid.clone(), replicas?));
            }
        };
        // A controller that is gone wants nothing.
        Ok(replicas.map_or((owner.uid.clone(), 0), |(uid, n)| {
            (uid.unwrap_or_default(), n.unwrap_or(1))
        }))
    }
}

/// A number, or a percentage of `total` rounded up.
fn scaled(value: &IntOrString, total: i32) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let scaled = percent.saturating_mul(total.into()).saturating_add(99);
            i32::try_from(scaled.div_euclid(100)).unwrap_or(i32::MAX)
        }
    }
}

fn need(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale_of: impl Fn(&Pod) -> Result<(String, i32), String>,
) -> Result<Need, String> {
    let spec = budget.spec.clone().unwrap_or_default();
    let by_controllers = || -> Result<i32, String> {
        let (mut seen, mut total) = (BTreeSet::new(), 0_i32);
        for pod in pods {
            let (uid, replicas) = scale_of(pod)?;
            if seen.insert(uid) {
                total = total.saturating_add(replicas);
            }
        }
        Ok(total)
    };
    Ok(match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = by_controllers()?;
            let desired = expected.saturating_sub(scaled(most, expected)).max(0);
            Need { expected, desired }
        }
        (None, Some(IntOrString::Int(least))) => Need {
            expected: i32::try_from(pods.len()).unwrap_or(i32::MAX),
            desired: *least,
        },
        (None, Some(least)) => {
            let expected = by_controllers()?;
            let desired = scaled(least, expected);
            Need { expected, desired }
        }
        (None, None) => Need {
            expected: i32::try_from(pods.len()).unwrap_or(i32::MAX),
            desired: 0,
        },
    })
}

fn status_of(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    need: &Need,
    now: Timestamp,
) -> (PodDisruptionBudgetStatus, Next) {
    let old = budget.status.clone().unwrap_or_default();
    let mut disrupted = old.disrupted_pods.clone().unwrap_or_default();
    let mut soonest: Option<Duration> = None;
    disrupted.retain(|name, since| {
        let pod = pods
            .iter()
            .find(|pod| pod.metadata.name.as_ref() == Some(name));
        let waits = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
        let left = CONFIRMATION.saturating_sub(age(since.0, now));
        if waits && !left.is_zero() {
            soonest = Some(soonest.map_or(left, |s| s.min(left)));
            return true;
        }
        false
    });
    let healthy = pods
        .iter()
        .filter(|pod| {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            pod.metadata.deletion_timestamp.is_none()
                && !is_terminal(pod)
                && !disrupted.contains_key(name)
                && ready_since(pod).is_some()
        })
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let allowed = if need.expected <= 0 {
        0
    } else {
        healthy.saturating_sub(need.desired).max(0)
    };
    let condition = if allowed > 0 {
        ("True", "SufficientPods", "")
    } else {
        ("False", "InsufficientPods", "")
    };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(need.desired),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(need.expected),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: Some(with_condition(budget, condition, now)),
    };
    (status, soonest.map_or(Next::Wait, Next::After))
}

/// Nothing is allowed while nobody knows how many pods there should be.
fn failed(budget: &PodDisruptionBudget, error: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    PodDisruptionBudgetStatus {
        disruptions_allowed: Some(0),
        observed_generation: budget.metadata.generation,
        conditions: Some(with_condition(budget, ("False", "SyncFailed", error), now)),
        ..budget.status.clone().unwrap_or_default()
    }
}

fn with_condition(
    budget: &PodDisruptionBudget,
    (status, reason, message): (&str, &str, &str),
    now: Timestamp,
) -> Vec<Condition> {
    let old = budget.status.as_ref().and_then(|s| s.conditions.clone());
    let mut conditions = old.unwrap_or_default();
    let held = conditions.iter().position(|c| c.type_ == ALLOWED);
    let held = held.map(|at| conditions.remove(at));
    let since = held
        .filter(|c| c.status == status)
        .map_or(Time(now), |c| c.last_transition_time);
    conditions.push(Condition {
        type_: ALLOWED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
        observed_generation: budget.metadata.generation,
    });
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn budget(spec: serde_json::Value, disrupted: serde_json::Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": { "name": "b", "generation": 3 }, "spec": spec,
            "status": { "disruptedPods": disrupted, "currentHealthy": 0, "desiredHealthy": 0,
                "disruptionsAllowed": 0, "expectedPods": 0 },
        }))
        .unwrap()
    }

    fn pods(ready: &[bool]) -> Vec<Arc<Pod>> {
        let pod = |(i, ready): (usize, &bool)| {
            let ready = if *ready { "True" } else { "False" };
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": { "name": format!("p{i}"), "uid": format!("u{i}") },
                    "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] },
                }))
                .unwrap(),
            )
        };
        ready.iter().enumerate().map(pod).collect()
    }

    fn of_four(_: &Pod) -> Result<(String, i32), String> {
        Ok(("d".to_owned(), 4))
    }

    #[test]
    fn needs_are_counted_from_pods_or_from_their_controller() {
        let pods = pods(&[true, true, true]);
        let of = |spec| need(&budget(spec, json!({})), &pods, of_four).unwrap();
        assert_eq!(
            of(json!({ "minAvailable": 2 })),
            Need {
                expected: 3,
                desired: 2
            }
        );
        assert_eq!(
            of(json!({ "minAvailable": "30%" })),
            Need {
                expected: 4,
                desired: 2
            }
        );
        assert_eq!(
            of(json!({ "maxUnavailable": 1 })),
            Need {
                expected: 4,
                desired: 3
            }
        );
        assert_eq!(
            of(json!({ "maxUnavailable": "30%" })),
            Need {
                expected: 4,
                desired: 2
            }
        );
    }

    #[test]
    fn numbers_at_the_end_of_their_range_are_counted() {
        let pods = pods(&[true, true]);
        for replicas in [i32::MIN, -1, i32::MAX] {
            for spec in [
                json!({ "maxUnavailable": i32::MAX }),
                json!({ "maxUnavailable": "100%" }),
                json!({ "minAvailable": format!("{}%", i64::MAX) }),
            ] {
                let budget = budget(spec, json!({}));
                let each = |pod: &Pod| Ok((pod.metadata.uid.clone().unwrap(), replicas));
                let need = need(&budget, &pods, each).unwrap();
                let (status, _) = status_of(&budget, &pods, &need, Timestamp::now());
                assert!(status.disruptions_allowed >= Some(0));
            }
        }
    }

    #[test]
    fn item_118_disruptions_are_what_is_healthy_beyond_the_need() {
        let now = Timestamp::now();
        let (status, _) = status_of(
            &budget(json!({ "minAvailable": 1 }), json!({})),
            &pods(&[true, true, false]),
            &Need {
                expected: 3,
                desired: 1,
            },
            now,
        );
        assert_eq!(
            (status.current_healthy, status.disruptions_allowed),
            (Some(2), Some(1))
        );
        assert_eq!(status.conditions.unwrap()[0].reason, "SufficientPods");
        // An eviction that was allowed counts until the pod goes, for two minutes.
        let disrupted = budget(
            json!({}),
            json!({ "p0": now.to_string(), "p1": "2020-01-01T00:00:00Z", "gone": now.to_string() }),
        );
        let need = Need {
            expected: 2,
            desired: 1,
        };
        let (status, next) = status_of(&disrupted, &pods(&[true, true]), &need, now);
        assert_eq!(
            (status.current_healthy, status.disruptions_allowed),
            (Some(1), Some(0))
        );
        assert_eq!(
            status.disrupted_pods.unwrap().keys().collect::<Vec<_>>(),
            ["p0"]
        );
        assert!(matches!(next, Next::After(_)));
    }
}
