//! What makes a pod an endpoint of a service: pure rules shared by Endpoints and EndpointSlices.

use crate::pod_control::ready_since;

use davit_api::names::check_non_special_ip;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::pods::is_terminal;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Annotation with the moment of the change that led to what the object says (SLI of network programming).
pub(crate) const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Label of what belongs to a service without a cluster IP.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";

/// The selector of a service whose endpoints are its pods; `None` when they are written by hand or by DNS.
pub(crate) fn selector_of(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|s| !s.is_empty())?;
    (spec.type_.as_deref() != Some("ExternalName")).then_some(selector)
}

/// Whether all of the selector's labels are among `labels`.
pub(crate) fn selects(
    selector: &BTreeMap<String, String>,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.is_some_and(|l| l.get(key) == Some(value)))
}

/// The services that select a pod.
pub(crate) fn services_of(services: &Informer<Service>, pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    services
        .list_namespace(namespace)
        .iter()
        .filter(|s| selector_of(s).is_some_and(|sel| selects(sel, pod.metadata.labels.as_ref())))
        .map(|s| ObjectKey::of(&**s))
        .collect()
}

/// Whether an update of a pod can change what endpoints say of it.
pub(crate) fn matters(old: &Pod, new: &Pod) -> bool {
    let seen = |pod: &Pod| {
        let spec = pod.spec.as_ref();
        (
            pod.metadata.uid.clone(),
            pod.metadata.labels.clone(),
            pod.metadata.deletion_timestamp.is_some(),
            is_terminal(pod),
            ready_since(pod),
            addresses(pod),
            spec.map(|s| (s.node_name.clone(), s.hostname.clone(), s.subdomain.clone())),
        )
    };
    seen(old) != seen(new)
}

/// Whether the pod has an address to be reached by and has not ended.
pub(crate) fn is_endpoint(pod: &Pod, include_terminating: bool) -> bool {
    let going = pod.metadata.deletion_timestamp.is_some();
    !is_terminal(pod) && (include_terminating || !going) && !addresses(pod).is_empty()
}

/// The pod's addresses, of all families. Those that no endpoint may have are left out: the pod's node says which they are, and
/// one of them would have all that is written of the service refused, the other pods' with it.
pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = pod.status.as_ref() else {
        return Vec::new();
    };
    let read = |text: &str| -> Option<IpAddr> {
        let address = text.parse().ok()?;
        check_non_special_ip(text).is_empty().then_some(address)
    };
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut found: Vec<IpAddr> = listed.filter_map(read).collect();
    if status.pod_ips.iter().flatten().next().is_none() {
        found.extend(status.pod_ip.as_deref().and_then(read));
    }
    found
}

/// The number a service's port has on a pod; `None` when the pod has no port of that name.
pub(crate) fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let protocol = protocol_of(port.protocol.as_deref());
    spec.containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten())
        .find(|p| p.name.as_deref() == Some(name) && protocol_of(p.protocol.as_deref()) == protocol)
        .map(|p| p.container_port)
}

/// A protocol with its default.
pub(crate) fn protocol_of(protocol: Option<&str>) -> &str {
    protocol.filter(|p| !p.is_empty()).unwrap_or("TCP")
}

/// The host name under which cluster DNS knows the pod through this service.
pub(crate) fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let of_service = spec.subdomain.is_some()
        && spec.subdomain == service.metadata.name
        && pod.metadata.namespace == service.metadata.namespace;
    spec.hostname
        .clone()
        .filter(|h| of_service && !h.is_empty())
}

/// The reference from an endpoint to its pod.
pub(crate) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Whether the service has no cluster IP.
pub(crate) fn is_headless(service: &Service) -> bool {
    let ip = service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref());
    ip == Some("None")
}

/// When what a service's endpoints say was caused: remembers what has been accounted for.
#[derive(Debug, Default)]
pub(crate) struct TriggerTimes {
    services: HashMap<ObjectKey, Known>,
}

#[derive(Debug, Default)]
struct Known {
    created: Option<Timestamp>,
    pods: HashMap<String, Timestamp>,
}

impl TriggerTimes {
    /// The earliest change of the service or its pods that no earlier call has seen, in RFC 3339.
    pub(crate) fn next<'a>(
        &mut self,
        service: &Service,
        pods: impl Iterator<Item = &'a Pod>,
    ) -> Option<String> {
        let known = self.services.entry(ObjectKey::of(service)).or_default();
        let mut earliest: Option<Timestamp> = None;
        let mut note = |at: Timestamp| earliest = Some(earliest.map_or(at, |e| e.min(at)));
        let mut now = HashMap::new();
        for pod in pods {
            let Some(changed) = last_change(pod) else {
                continue;
            };
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if known.pods.get(&uid).is_none_or(|seen| *seen < changed) {
                note(changed);
            }
            now.insert(uid, changed);
        }
        let created = service.metadata.creation_timestamp.as_ref().map(|t| t.0);
        if created.is_some() && known.created != created {
            created.into_iter().for_each(&mut note);
        }
        known.created = created;
        known.pods = now;
        earliest.map(|at| at.to_string())
    }

    /// Forgets a service that is gone.
    pub(crate) fn forget(&mut self, service: &ObjectKey) {
        self.services.remove(service);
    }
}

/// When the pod's readiness last changed.
fn last_change(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|t| t.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn named_ports_are_found_on_containers_and_sidecars_of_the_same_protocol() {
        let pod = pod(json!({ "spec": {
            "containers": [{ "name": "c", "ports": [{ "name": "web", "containerPort": 53, "protocol": "UDP" }] }],
            "initContainers": [
                { "name": "once", "ports": [{ "name": "web", "containerPort": 1 }] },
                { "name": "side", "restartPolicy": "Always", "ports": [{ "name": "web", "containerPort": 8080 }] },
            ],
        }}));
        let port = |target: serde_json::Value| {
            let port = json!({ "port": 80, "protocol": "TCP", "targetPort": target });
            target_port(&pod, &serde_json::from_value(port).unwrap())
        };
        assert_eq!(port(json!("web")), Some(8080));
        assert_eq!(port(json!("none")), None);
        assert_eq!(port(json!(9)), Some(9));
        assert_eq!(port(json!(null)), Some(80));
    }

    #[test]
    fn a_pod_without_address_or_past_its_end_is_no_endpoint() {
        let with =
            |phase: &str, ip: &str| pod(json!({ "status": { "phase": phase, "podIP": ip } }));
        assert!(is_endpoint(&with("Running", "10.0.0.1"), false));
        for address in [
            "127.0.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "fe80::1",
        ] {
            assert!(!is_endpoint(&with("Running", address), true), "{address}");
        }
        assert!(!is_endpoint(&with("Running", ""), false));
        assert!(!is_endpoint(&with("Succeeded", "10.0.0.1"), true));
        let mut going = with("Running", "10.0.0.1");
        going.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH),
        );
        assert!(!is_endpoint(&going, false));
        assert!(is_endpoint(&going, true));
    }

    #[test]
    fn a_change_triggers_once() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z" },
        }))
        .unwrap();
        let at = |time: &str| {
            pod(json!({
                "metadata": { "uid": "u" },
                "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": time }] },
            }))
        };
        let mut times = TriggerTimes::default();
        let early = at("2026-01-02T00:00:00Z");
        assert_eq!(
            times.next(&service, [&early].into_iter()).unwrap(),
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(times.next(&service, [&early].into_iter()), None);
        let late = at("2026-01-03T00:00:00Z");
        assert_eq!(
            times.next(&service, [&late].into_iter()).unwrap(),
            "2026-01-03T00:00:00Z"
        );
    }
}
