//! Which pods are to be evicted when, without any call.

use davit_allocator::{Effect, Taint, TaintRule, Toleration};
use davit_api::resource_claims::{is_pod, is_pod_group};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, ResourceClaim, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A pod that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Eviction {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) at: Timestamp,
    /// The rules that ask for it; empty if the driver itself tainted the device.
    pub(super) rules: Vec<String>,
}

/// The pods of a group, by its name, that use a claim of it.
pub(super) type Members<'a> = &'a dyn Fn(&ResourceClaim, &str) -> Vec<Arc<Pod>>;

/// A taint that evicts, where it comes from and since when it is there.
struct Cause {
    taint: Taint,
    since: Timestamp,
    rule: Option<String>,
}

/// Driver, pool, device.
type DeviceKey<'a> = (&'a str, &'a str, &'a str);

/// The pool that a slice is of. A node's own slices are a pool apart: they may be written by its credential, which may name
/// any pool, and any generation of it.
fn pool(spec: &ResourceSliceSpec) -> (&str, &str, Option<&str>) {
    (&spec.driver, &spec.pool.name, spec.node_name.as_deref())
}

/// The devices of the newest generation of each pool, with their taints, and the node whose they are.
fn devices(
    slices: &[Arc<ResourceSlice>],
) -> impl Iterator<Item = (DeviceKey<'_>, Option<&str>, &[DeviceTaint])> {
    let mut newest: HashMap<_, i64> = HashMap::new();
    for spec in slices.iter().map(|s| &s.spec) {
        let generation = newest.entry(pool(spec)).or_default();
        *generation = spec.pool.generation.max(*generation);
    }
    let specs = slices.iter().map(|s| &s.spec);
    let current = move |spec: &&ResourceSliceSpec| newest[&pool(spec)] == spec.pool.generation;
    specs.filter(current).flat_map(|spec| {
        spec.devices.iter().flatten().map(move |device| {
            let key = (&*spec.driver, &*spec.pool.name, &*device.name);
            let taints = device.taints.as_deref().unwrap_or_default();
            (key, spec.node_name.as_deref(), taints)
        })
    })
}

/// The one node whose devices are among a claim's.
fn node_of(claim: &ResourceClaim) -> Option<&str> {
    davit_allocator::node_of(claim.status.as_ref()?.allocation.as_ref()?)
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
    let devices = allocation.and_then(|a| a.devices.as_ref());
    devices.into_iter().flat_map(|d| &d.results).flatten()
}

/// When a device's taints end its use; `None`: never.
fn end(
    result: &DeviceRequestAllocationResult,
    causes: &[Cause],
) -> Option<(Timestamp, Vec<String>)> {
    let mut earliest: Option<Timestamp> = None;
    let mut rules = Vec::new();
    for cause in causes {
        let tolerations = result.tolerations.iter().flatten();
        let matching: Vec<_> = tolerations
            .filter(|t| Toleration::from(*t).tolerates(&cause.taint))
            .collect();
        let limited = matching.iter().filter_map(|t| t.toleration_seconds).min();
        let at = match limited {
            None if !matching.is_empty() => continue,
            None => cause.since,
            Some(seconds) => {
                let patience = SignedDuration::from_secs(seconds.max(0));
                cause
                    .since
                    .saturating_add(patience)
                    .unwrap_or(Timestamp::MAX)
            }
        };
        earliest = Some(earliest.map_or(at, |e| e.min(at)));
        rules.extend(cause.rule.clone());
    }
    earliest.map(|at| (at, rules))
}

/// All pods that are to be evicted, now or later.
pub(super) fn evictions(
    claims: &[Arc<ResourceClaim>],
    slices: &[Arc<ResourceSlice>],
    rules: &[Arc<DeviceTaintRule>],
    members: Members<'_>,
) -> Vec<Eviction> {
    // Looked at again and again in large clusters, of whose devices few are tainted, and mostly none.
    let is_tainted = |slice: &Arc<ResourceSlice>| {
        let mut devices = slice.spec.devices.iter().flatten();
        devices.any(|d| d.taints.as_ref().is_some_and(|t| !t.is_empty()))
    };
    if rules.is_empty() && !slices.iter().any(is_tainted) {
        return Vec::new();
    }
    let tainted = devices(slices).filter(|(.., taints)| !taints.is_empty());
    let tainted = tainted.map(|(key, node, taints)| ((key, node), taints));
    let tainted: HashMap<_, _> = tainted.collect();
    let compiled: Vec<(&Arc<DeviceTaintRule>, TaintRule)> = rules
        .iter()
        .filter_map(|r| Some((r, TaintRule::new(r)?)))
        .filter(|(_, r)| r.taint.effect == Effect::NoExecute)
        .collect();
    let mut out: BTreeMap<String, Eviction> = BTreeMap::new();
    if tainted.is_empty() && compiled.is_empty() {
        return Vec::new();
    }
    for claim in claims {
        let node = node_of(claim);
        for result in results(claim) {
            let key = (&*result.driver, &*result.pool, &*result.device);
            // What a node says of a device is about its own.
            let speakers = [None].into_iter().chain(node.map(Some));
            let own = speakers.filter_map(|node| tainted.get(&(key, node)).copied());
            let own = own.flatten();
            let mut causes: Vec<Cause> = own
                .map(|t| (Taint::from(t), t.time_added.as_ref()))
                .filter(|(t, _)| t.effect == Effect::NoExecute)
                .map(|(taint, since)| Cause {
                    taint,
                    since: since.map_or(Timestamp::UNIX_EPOCH, |t| t.0),
                    rule: None,
                })
                .collect();
            for (rule, compiled) in &compiled {
                if compiled.covers(&result.driver, &result.pool, &result.device) {
                    let since = rule.spec.taint.time_added.as_ref();
                    causes.push(Cause {
                        taint: compiled.taint.clone(),
                        since: since.map_or(Timestamp::UNIX_EPOCH, |t| t.0),
                        rule: rule.metadata.name.clone(),
                    });
                }
            }
            let Some((at, rules)) = end(result, &causes) else {
                continue;
            };
            for (pod, uid) in users(claim, members) {
                let entry = out.entry(uid.clone()).or_insert_with(|| Eviction {
                    namespace: claim.metadata.namespace.clone().unwrap_or_default(),
                    pod,
                    uid,
                    at,
                    rules: Vec::new(),
                });
                entry.at = entry.at.min(at);
                entry.rules.extend(rules.iter().cloned());
                entry.rules.sort();
                entry.rules.dedup();
            }
        }
    }
    out.into_values().collect()
}

/// Names and UIDs of the pods that may use a claim.
fn users(claim: &ResourceClaim, members: Members<'_>) -> Vec<(String, String)> {
    let mut pods = Vec::new();
    for user in claim.status.iter().flat_map(|s| &s.reserved_for).flatten() {
        if is_pod(user) {
            pods.push((user.name.clone(), user.uid.clone()));
        } else if is_pod_group(user) {
            let members = members(claim, &user.name);
            let named = members.iter().map(|pod| &pod.metadata);
            pods.extend(named.filter_map(|meta| meta.name.clone().zip(meta.uid.clone())));
        }
    }
    pods
}

/// The condition of a rule.
pub(super) fn condition(
    rule: &DeviceTaintRule,
    evictions: &[Eviction],
    evicted: usize,
    claims: &[Arc<ResourceClaim>],
    slices: &[Arc<ResourceSlice>],
    members: Members<'_>,
) -> Condition {
    let name = rule.metadata.name.clone().unwrap_or_default();
    let pending = evictions.iter().filter(|e| e.rules.contains(&name)).count();
    let (status, reason, message) = match &*rule.spec.taint.effect {
        "NoExecute" if pending > 0 => (
            "True",
            "PodsPendingEviction",
            format!("{pending} pods need to be evicted, {evicted} pods were evicted"),
        ),
        "NoExecute" if evicted > 0 => (
            "False",
            "Completed",
            format!("{evicted} pods were evicted since the controller started"),
        ),
        "NoExecute" => (
            "False",
            "NotStarted",
            "no pod uses a device of the rule".to_owned(),
        ),
        "None" => {
            let (devices, pods) = hits(rule, claims, slices, members);
            let text = format!(
                "the effect None does not evict; with NoExecute {pods} pods would be evicted from {devices} devices"
            );
            ("False", "NoEffect", text)
        }
        _ => (
            "False",
            "OtherEffect",
            "the effect does not evict".to_owned(),
        ),
    };
    Condition {
        type_: "EvictionInProgress".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: Time(Timestamp::now()),
        observed_generation: rule.metadata.generation,
    }
}

/// Whether the rule's status says so already.
pub(super) fn has_condition(rule: &DeviceTaintRule, wanted: &Condition) -> bool {
    let conditions = rule.status.iter().flat_map(|s| &s.conditions).flatten();
    let mut named = conditions.filter(|c| c.type_ == wanted.type_);
    named.any(|c| {
        c.status == wanted.status && c.reason == wanted.reason && c.message == wanted.message
    })
}

/// How many devices a rule selects, and how many pods use them without tolerating the taint.
fn hits(
    rule: &DeviceTaintRule,
    claims: &[Arc<ResourceClaim>],
    slices: &[Arc<ResourceSlice>],
    members: Members<'_>,
) -> (usize, usize) {
    let Some(compiled) = TaintRule::new(rule) else {
        return (0, 0);
    };
    let known: BTreeSet<_> = devices(slices).map(|(key, ..)| key).collect();
    let selected = known.iter().filter(|(d, p, n)| compiled.covers(d, p, n));
    let mut evicting = rule.clone();
    "NoExecute".clone_into(&mut evicting.spec.taint.effect);
    let none: Vec<Arc<ResourceSlice>> = Vec::new();
    let pods = evictions(claims, &none, &[Arc::new(evicting)], members);
    let pods: BTreeSet<&str> = pods.iter().map(|e| e.uid.as_str()).collect();
    (selected.count(), pods.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(selector: serde_json::Value, effect: &str) -> Arc<DeviceTaintRule> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": "rule"}, "spec": {
            "deviceSelector": selector, "taint": {"key": "k", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}}})).unwrap())
    }

    fn claim(tolerations: serde_json::Value) -> Arc<ResourceClaim> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}, "status": {
            "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x", "tolerations": tolerations}]}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": "u"}]}})).unwrap())
    }

    fn nobody(_: &ResourceClaim, _: &str) -> Vec<Arc<Pod>> {
        Vec::new()
    }

    #[test]
    fn a_group_with_a_tainted_device_loses_its_pods() {
        let group = json!({"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"});
        let mut shared = (*claim(json!([]))).clone();
        let status = shared.status.as_mut().unwrap();
        status.reserved_for = serde_json::from_value(json!([group])).unwrap();
        let members = |claim: &ResourceClaim, group: &str| {
            assert_eq!((claim.metadata.name.as_deref(), group), (Some("c"), "g"));
            let pod = |name: &str| {
                let meta = json!({"name": name, "namespace": "n", "uid": name});
                Arc::new(serde_json::from_value(json!({ "metadata": meta })).unwrap())
            };
            vec![pod("a"), pod("b")]
        };
        let rules = [rule(json!({"driver": "d"}), "NoExecute")];
        let (claims, slices) = ([Arc::new(shared)], [slice()]);
        let evicted = evictions(&claims, &slices, &rules, &members);
        let names: Vec<&str> = evicted.iter().map(|e| &*e.pod).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(evicted.iter().all(|e| e.namespace == "n"));
        let told = condition(&rules[0], &evicted, 0, &claims, &slices, &members);
        assert!(told.message.starts_with("2 pods need to be evicted"));
    }

    fn slice() -> Arc<ResourceSlice> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x"}, {"name": "y"}]}})).unwrap())
    }

    /// Checklist 97, 99.
    #[test]
    fn tolerations_delay_or_prevent() {
        let added: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |rules: &[Arc<DeviceTaintRule>], tolerations| {
            evictions(&[claim(tolerations)], &[slice()], rules, &nobody)
                .first()
                .map(|e| (e.at.as_second() - added.as_second(), e.rules.clone()))
        };
        let all = [rule(json!({"driver": "d"}), "NoExecute")];
        assert_eq!(at(&all, json!([])), Some((0, vec!["rule".to_owned()])));
        assert_eq!(
            at(
                &all,
                json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}])
            )
            .unwrap()
            .0,
            60
        );
        assert_eq!(at(&all, json!([{"operator": "Exists", "tolerationSeconds": 60}, {"operator": "Exists", "tolerationSeconds": 5}])).unwrap().0, 5);
        assert_eq!(at(&all, json!([{"operator": "Exists"}])), None);
        assert_eq!(
            at(&[rule(json!({"driver": "other"}), "NoExecute")], json!([])),
            None
        );
        assert_eq!(
            at(&[rule(json!({"driver": "d"}), "NoSchedule")], json!([])),
            None
        );
        assert_eq!(at(&[rule(json!(null), "NoExecute")], json!([])), None);
        assert_eq!(at(&[], json!([])), None);
    }

    /// The slice may be written by the credential of its node, which may name any pool and any generation.
    #[test]
    fn a_node_taints_no_devices_of_another() {
        let tainted = |node: serde_json::Value, generation: i64| -> Arc<ResourceSlice> {
            let mut slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d",
                "pool": {"name": "p", "generation": generation, "resourceSliceCount": 1},
                "devices": [{"name": "x", "taints": [{"key": "k", "effect": "NoExecute"}]}]}});
            match node.is_null() {
                true => slice["spec"]["allNodes"] = json!(true),
                false => slice["spec"]["nodeName"] = node,
            }
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let on = |node: Option<&str>| -> Arc<ResourceClaim> {
            let mut claim = (*claim(json!([]))).clone();
            let allocation = claim.status.as_mut().unwrap().allocation.as_mut().unwrap();
            allocation.node_selector = node.map(|node| {
                let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
                let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
                serde_json::from_value(terms).unwrap()
            });
            Arc::new(claim)
        };
        let evicts = |slices: &[Arc<ResourceSlice>], claim| {
            !evictions(&[claim], slices, &[], &nobody).is_empty()
        };
        let own = tainted(json!("n"), 1);
        assert!(evicts(std::slice::from_ref(&own), on(Some("n"))));
        let other = tainted(json!("m"), i64::MAX);
        for claim in [on(Some("n")), on(None)] {
            assert!(!evicts(std::slice::from_ref(&other), claim));
        }
        // nor does it keep the node's own from being heard
        assert!(evicts(&[own, other], on(Some("n"))));
        let shared = tainted(json!(null), 1);
        for claim in [on(Some("n")), on(None)] {
            assert!(evicts(std::slice::from_ref(&shared), claim));
        }
    }

    /// Checklist 98.
    #[test]
    fn rules_say_how_far_they_are() {
        let (claims, slices) = ([claim(json!([]))], [slice()]);
        let none = condition(
            &rule(json!({"driver": "d"}), "None"),
            &[],
            0,
            &claims,
            &slices,
            &nobody,
        );
        assert_eq!(none.reason, "NoEffect");
        assert!(
            none.message
                .contains("1 pods would be evicted from 2 devices"),
            "{}",
            none.message
        );
        let rule = rule(json!({"driver": "d"}), "NoExecute");
        let pending = evictions(&claims, &slices, std::slice::from_ref(&rule), &nobody);
        assert_eq!(
            condition(&rule, &pending, 0, &claims, &slices, &nobody).reason,
            "PodsPendingEviction"
        );
        assert_eq!(
            condition(&rule, &[], 1, &claims, &slices, &nobody).reason,
            "Completed"
        );
    }
}
