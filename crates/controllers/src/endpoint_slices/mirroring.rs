//! Copies Endpoints that somebody writes by hand for a Service without selector into EndpointSlices, which is what
//! today's consumers read.

use super::desired::{Group, MANAGED_BY, SERVICE_NAME, address_type};
use super::{Family, service_key};
use crate::endpoints::pods::TRIGGER_TIME;
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::Resource;
use std::net::IpAddr;

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Addresses of one subset that are mirrored (`--mirroring-max-endpoints-per-subset`).
const PER_SUBSET: usize = 1000;

struct Mirroring {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("endpointslice-mirroring-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Mirroring {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.endpoints, &queue, |e: &Endpoints| {
        vec![ObjectKey::of(e)]
    });
    spawner.feed_changes(
        &informers.services,
        &queue,
        |old: &Service, new: &Service| is_by_hand(old) != is_by_hand(new),
        |service: &Service| vec![ObjectKey::of(service)],
    );
    spawner.feed(
        &informers.endpoint_slices,
        &queue,
        |slice: &EndpointSlice| service_key(slice, MANAGER).into_iter().collect(),
    );
}

fn is_by_hand(service: &Service) -> bool {
    let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_none_or(std::collections::BTreeMap::is_empty)
}

fn is_mirrored(endpoints: &Endpoints) -> bool {
    let meta = &endpoints.metadata;
    let skip = meta.labels.as_ref().and_then(|l| l.get(SKIP));
    let leader = meta
        .annotations
        .as_ref()
        .is_some_and(|a| a.contains_key(LEADER));
    skip.is_none_or(|s| s != "true") && !leader
}

#[async_trait]
impl Reconcile for Mirroring {
    const NAME: &'static str = "endpointslicemirroring";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let get = |name| self.informers.services.get(Some(&key.namespace), name);
        let service = get(&key.name).filter(|s| is_by_hand(s));
        let endpoints = self
            .informers
            .endpoints
            .get(Some(&key.namespace), &key.name)
            .filter(|e| service.is_some() && is_mirrored(e));
        let mirrors = self
            .informers
            .endpoint_slices
            .list_namespace(&key.namespace)
            .iter()
            .any(|slice| service_key(slice, MANAGER).as_ref() == Some(key));
        let Some(endpoints) = endpoints else {
            if mirrors {
                self.family(key, &Endpoints::default())
                    .reconcile(Vec::new())
                    .await?;
            }
            return Ok(Next::Wait);
        };
        let groups = groups(endpoints.subsets.as_deref().unwrap_or_default());
        self.family(key, &endpoints).reconcile(groups).await?;
        Ok(Next::Wait)
    }
}

impl Mirroring {
    fn family<'a>(&'a self, key: &'a ObjectKey, endpoints: &Endpoints) -> Family<'a> {
        let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
        labels.insert(SERVICE_NAME.to_owned(), key.name.clone());
        labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
        let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
        annotations.remove(LAST_APPLIED);
        let trigger = annotations.remove(TRIGGER_TIME);
        Family {
            client: &self.client,
            service: key,
            manager: MANAGER,
            owner: endpoints.controller_owner_ref(&()).unwrap_or_default(),
            labels,
            annotations,
            trigger,
            placeholder: None,
        }
    }
}

/// Each subset's addresses, by family.
fn groups(subsets: &[EndpointSubset]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for subset in subsets {
        let ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: port.protocol.clone().or_else(|| Some("TCP".to_owned())),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let unready = subset
            .not_ready_addresses
            .iter()
            .flatten()
            .map(|a| (a, false));
        for (address, ready) in ready.chain(unready).take(PER_SUBSET) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else {
                continue;
            };
            let kind = address_type(ip);
            let endpoint = endpoint(address, ready);
            let same = |g: &&mut Group| g.address_type == kind && g.ports == ports;
            match groups.iter_mut().find(same) {
                Some(group) => group.endpoints.push(endpoint),
                None => groups.push(Group {
                    address_type: kind,
                    ports: ports.clone(),
                    endpoints: vec![endpoint],
                }),
            }
        }
    }
    groups
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone().filter(|h| !h.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_copied_by_family_with_their_readiness() {
        let subsets: Vec<EndpointSubset> = serde_json::from_value(json!([{
            "addresses": [{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }],
            "notReadyAddresses": [{ "ip": "192.0.2.2", "hostname": "h" }],
            "ports": [{ "name": "web", "port": 80, "protocol": "TCP" }],
        }]))
        .unwrap();
        let groups = groups(&subsets);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            (groups[0].address_type, groups[0].endpoints.len()),
            ("IPv4", 2)
        );
        assert_eq!(
            groups[0].endpoints[1].conditions.as_ref().unwrap().ready,
            Some(false)
        );
        assert_eq!(groups[0].endpoints[1].hostname.as_deref(), Some("h"));
        assert_eq!(groups[1].address_type, "IPv6");
        assert_eq!(groups[1].ports[0].port, Some(80));
    }

    #[test]
    fn what_asks_to_be_left_alone_is() {
        let with = |meta: serde_json::Value| -> Endpoints {
            serde_json::from_value(json!({ "metadata": meta })).unwrap()
        };
        assert!(is_mirrored(&with(json!({ "name": "a" }))));
        assert!(!is_mirrored(&with(json!({ "labels": { SKIP: "true" } }))));
        assert!(!is_mirrored(&with(
            json!({ "annotations": { LEADER: "{}" } })
        )));
    }
}
