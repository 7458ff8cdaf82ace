//! Keeps an Endpoints object for every Service with a selector: the addresses of its pods, grouped by their ports.

pub(crate) mod pods;

use crate::pod_control::ready_since;
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, exists_is_none, gone_is_none,
};
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use parking_lot::Mutex;
use pods::{HEADLESS, TRIGGER_TIME, TriggerTimes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Addresses of one Endpoints object; what is beyond is left out and the object marked.
const CAPACITY: usize = 1000;
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";

struct EndpointsController {
    client: kube::Client,
    informers: Informers,
    triggers: Mutex<TriggerTimes>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("endpoints-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(EndpointsController {
        client: spawner.client.clone(),
        informers: informers.clone(),
        triggers: Mutex::default(),
    });
    spawner.feed(&informers.services, &queue, |service: &Service| {
        vec![ObjectKey::of(service)]
    });
    let services = informers.services.clone();
    spawner.feed_changes(&informers.pods, &queue, pods::matters, move |pod: &Pod| {
        pods::services_of(&services, pod)
    });
    spawner.feed(&informers.endpoints, &queue, |e: &Endpoints| {
        vec![ObjectKey::of(e)]
    });
}

#[async_trait]
impl Reconcile for EndpointsController {
    const NAME: &'static str = "endpoints";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let api: kube::Api<Endpoints> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let held = self
            .informers
            .endpoints
            .get(Some(&key.namespace), &key.name);
        let service = self.informers.services.get(Some(&key.namespace), &key.name);
        let Some(service) = service else {
            self.triggers.lock().forget(key);
            // Endpoints without a Service are somebody's own (leader election of old) unless we made them.
            if held.is_some_and(|e| is_ours(&e)) {
                gone_is_none(api.delete(&key.name, &DeleteParams::default()).await)
                    .context(|| format!("delete endpoints {key}"))?;
            }
            return Ok(Next::Wait);
        };
        let Some(selector) = pods::selector_of(&service) else {
            return Ok(Next::Wait);
        };
        let mut selected = self.informers.pods.list_namespace(&key.namespace);
        selected.retain(|pod| pods::selects(selector, pod.metadata.labels.as_ref()));
        let (subsets, truncated) = subsets(&service, &selected);
        let trigger = self
            .triggers
            .lock()
            .next(&service, selected.iter().map(AsRef::as_ref));
        let wanted = endpoints(&service, held.as_deref(), subsets, truncated);
        match held {
            None => {
                let wanted = with_trigger(wanted, trigger);
                exists_is_none(api.create(&PostParams::default(), &wanted).await)
                    .context(|| format!("create endpoints {key}"))?;
            }
            Some(held) if is_same(&held, &wanted) => {}
            Some(_) => {
                let wanted = with_trigger(wanted, trigger);
                gone_is_none(
                    api.replace(&key.name, &PostParams::default(), &wanted)
                        .await,
                )
                .context(|| format!("update endpoints {key}"))?;
            }
        }
        Ok(Next::Wait)
    }
}

fn is_ours(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.is_some_and(|l| l.get(MANAGED_BY).is_some_and(|by| by == MANAGER))
}

fn is_same(held: &Endpoints, wanted: &Endpoints) -> bool {
    let empty = |m: &ObjectMeta| {
        let mut annotations = m.annotations.clone().unwrap_or_default();
        annotations.remove(TRIGGER_TIME);
        (m.labels.clone().unwrap_or_default(), annotations)
    };
    held.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default()
        && empty(&held.metadata) == empty(&wanted.metadata)
}

fn with_trigger(mut endpoints: Endpoints, trigger: Option<String>) -> Endpoints {
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    match trigger {
        Some(at) => annotations.insert(TRIGGER_TIME.to_owned(), at),
        None => annotations.remove(TRIGGER_TIME),
    };
    endpoints
}

fn endpoints(
    service: &Service,
    held: Option<&Endpoints>,
    subsets: Vec<EndpointSubset>,
    truncated: bool,
) -> Endpoints {
    let mut metadata = held.map(|e| e.metadata.clone()).unwrap_or_default();
    metadata.name.clone_from(&service.metadata.name);
    metadata.namespace.clone_from(&service.metadata.namespace);
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if pods::is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    metadata.labels = Some(labels);
    let annotations = metadata.annotations.get_or_insert_default();
    if truncated {
        annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    Endpoints {
        metadata,
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

/// Sorts as the API shows: name, number, protocol.
type PortKey = (Option<String>, i32, String, Option<String>);

/// The subsets of a service over its selected pods, and whether some did not fit.
fn subsets(service: &Service, selected: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let spec = service.spec.clone().unwrap_or_default();
    let unready_too = spec.publish_not_ready_addresses == Some(true);
    let v6 = spec
        .ip_families
        .as_ref()
        .and_then(|f| f.first())
        .is_some_and(|f| f == "IPv6");
    let mut groups: BTreeMap<Vec<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>)> =
        BTreeMap::new();
    let (mut ready_count, mut total) = (0_usize, 0_usize);
    for pod in selected {
        if !pods::is_endpoint(pod, unready_too) {
            continue;
        }
        let Some(ip) = pods::addresses(pod)
            .into_iter()
            .find(|ip| ip.is_ipv6() == v6)
        else {
            continue;
        };
        let mut ports: Vec<PortKey> = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| {
                let number = pods::target_port(pod, port)?;
                let protocol = pods::protocol_of(port.protocol.as_deref()).to_owned();
                let name = port.name.clone().filter(|n| !n.is_empty());
                Some((name, number, protocol, port.app_protocol.clone()))
            })
            .collect();
        let has_ports = spec.ports.as_ref().is_some_and(|p| !p.is_empty());
        if ports.is_empty() && (has_ports || !pods::is_headless(service)) {
            continue;
        }
        ports.sort();
        let address = EndpointAddress {
            ip: ip.to_string(),
            hostname: pods::hostname(pod, service),
            node_name: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
            target_ref: Some(pods::reference(pod)),
        };
        total += 1;
        let group = groups.entry(ports).or_default();
        if unready_too || ready_since(pod).is_some() {
            ready_count += 1;
            group.0.push(address);
        } else {
            group.1.push(address);
        }
    }
    truncate(&mut groups, ready_count);
    (groups.into_iter().map(subset).collect(), total > CAPACITY)
}

/// Ready addresses come before those that are not when there is no room for all.
fn truncate(
    groups: &mut BTreeMap<Vec<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>)>,
    ready_count: usize,
) {
    let mut room = CAPACITY;
    let mut unready_room = CAPACITY.saturating_sub(ready_count);
    for (ready, unready) in groups.values_mut() {
        let by_ip = |a: &EndpointAddress, b: &EndpointAddress| a.ip.cmp(&b.ip);
        ready.sort_by(by_ip);
        unready.sort_by(by_ip);
        ready.truncate(room);
        room -= ready.len();
        unready.truncate(unready_room);
        unready_room -= unready.len();
    }
    groups.retain(|_, (ready, unready)| !ready.is_empty() || !unready.is_empty());
}

fn subset(
    (ports, (ready, unready)): (Vec<PortKey>, (Vec<EndpointAddress>, Vec<EndpointAddress>)),
) -> EndpointSubset {
    let some = |list: Vec<EndpointAddress>| (!list.is_empty()).then_some(list);
    let ports: Vec<EndpointPort> = ports
        .into_iter()
        .map(|(name, port, protocol, app_protocol)| EndpointPort {
            name,
            port,
            protocol: Some(protocol),
            app_protocol,
        })
        .collect();
    EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(unready),
        ports: (!ports.is_empty()).then_some(ports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, ip: &str, ready: bool, port: i32) -> Arc<Pod> {
        let ready = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": "n", "uid": name },
                "spec": { "nodeName": "node", "containers": [
                    { "name": "c", "ports": [{ "name": "web", "containerPort": port }] } ] },
                "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                    "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
            }))
            .unwrap(),
        )
    }

    fn service(spec: serde_json::Value) -> Service {
        serde_json::from_value(
            json!({ "metadata": { "name": "s", "namespace": "n" }, "spec": spec }),
        )
        .unwrap()
    }

    #[test]
    fn addresses_are_grouped_by_ports_and_readiness() {
        let service = service(
            json!({ "selector": { "a": "b" }, "ports": [{ "port": 80, "targetPort": "web" }] }),
        );
        let pods = [
            pod("b", "10.0.0.2", true, 8080),
            pod("a", "10.0.0.1", true, 8080),
            pod("c", "10.0.0.3", false, 8080),
            pod("d", "10.0.0.4", true, 9090),
        ];
        let (subsets, truncated) = subsets(&service, &pods);
        assert!(!truncated);
        assert_eq!(subsets.len(), 2);
        let ips = |list: &Option<Vec<EndpointAddress>>| {
            list.iter()
                .flatten()
                .map(|a| a.ip.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ips(&subsets[0].addresses), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(ips(&subsets[0].not_ready_addresses), ["10.0.0.3"]);
        assert_eq!(ips(&subsets[1].addresses), ["10.0.0.4"]);
        assert_eq!(subsets[1].ports.as_ref().unwrap()[0].port, 9090);
    }

    #[test]
    fn unready_addresses_are_published_when_the_service_says_so() {
        let service = service(json!({
            "selector": { "a": "b" }, "clusterIP": "None", "publishNotReadyAddresses": true,
        }));
        let (subsets, _) = subsets(&service, &[pod("c", "10.0.0.3", false, 8080)]);
        assert_eq!(subsets[0].addresses.as_ref().unwrap().len(), 1);
        assert_eq!(subsets[0].ports, None);
    }

    #[test]
    fn beyond_capacity_the_unready_are_left_out_first() {
        let service = service(json!({ "selector": { "a": "b" }, "ports": [{ "port": 80 }] }));
        let pods: Vec<Arc<Pod>> = (0..1100)
            .map(|i| {
                pod(
                    &format!("p{i}"),
                    &format!("10.0.{}.{}", i / 250, i % 250),
                    i >= 200,
                    80,
                )
            })
            .collect();
        let (subsets, truncated) = subsets(&service, &pods);
        assert!(truncated);
        assert_eq!(subsets[0].addresses.as_ref().unwrap().len(), 900);
        assert_eq!(subsets[0].not_ready_addresses.as_ref().unwrap().len(), 100);
    }
}
