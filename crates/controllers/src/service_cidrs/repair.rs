//! Services and the claims on their addresses say the same of each other, or it is repaired: a Service that has no claim gets
//! one, a claim of nobody goes (spec network.md 2.4). Nothing is decided by what was remembered alone.

use super::{ALLOCATOR, MANAGED_BY, is_allocated, networks};
use async_trait::async_trait;
use davit_client::{EventRecorder, Informer, ObjectKey, object_ref};
use davit_netplan::Family;
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, exists_is_none, gone_is_none};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, ParentReference, ServiceCIDR};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams, Preconditions};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// Everything is looked at again after this long.
const RESYNC: Duration = Duration::from_secs(3 * 60);
/// A request takes no longer: by then a claim has its Service, or will never have it.
const REQUEST: Duration = Duration::from_secs(60);
/// How long a claim for a Service that there is already may be on its way back.
const TAKEN_BACK: Duration = Duration::from_secs(5);
const NOT_SYNCED: Duration = Duration::from_secs(1);

pub(super) fn spawn(
    spawner: &mut Spawner<'_>,
    ranges: &Informer<ServiceCIDR>,
    claims: &Informer<IPAddress>,
) {
    let Some(spawner) = &mut spawner.start("service-ip-repair-controller") else {
        return;
    };
    let events = spawner.events("ipallocator-repair-controller");
    let services = spawner.informers.services.clone();
    let queue = spawner.controller(ServiceRepair {
        client: spawner.client.clone(),
        services: services.clone(),
        ranges: ranges.clone(),
        claims: claims.clone(),
        events: events.clone(),
    });
    spawner.feed(&services, &queue, |service: &Service| {
        vec![ObjectKey::of(service)]
    });
    // one that has lost its claim
    spawner.feed(claims, &queue, |claim: &IPAddress| {
        parent(claim).into_iter().collect()
    });
    let queue = spawner.controller(ClaimRepair {
        client: spawner.client.clone(),
        claims: claims.clone(),
        events,
    });
    spawner.feed(claims, &queue, |claim: &IPAddress| {
        vec![ObjectKey::of(claim)]
    });
    spawner.feed(&services, &queue, |service: &Service| {
        let ips = cluster_ips(service).into_iter();
        ips.map(|name| ObjectKey {
            namespace: String::new(),
            name,
        })
        .collect()
    });
}

/// The Service that a claim is for.
fn parent(claim: &IPAddress) -> Option<ObjectKey> {
    let parent = &claim.spec.parent_ref;
    let is_service =
        parent.group.as_deref().unwrap_or_default().is_empty() && parent.resource == "services";
    is_service.then(|| ObjectKey {
        namespace: parent.namespace.clone().unwrap_or_default(),
        name: parent.name.clone(),
    })
}

/// The addresses that a Service has.
fn cluster_ips(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    if is_external_name(service) {
        return Vec::new();
    }
    let all = spec.cluster_ips.clone();
    let all = all.unwrap_or_else(|| spec.cluster_ip.iter().cloned().collect());
    all.into_iter()
        .filter(|ip| !ip.is_empty() && ip != "None")
        .collect()
}

fn is_external_name(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.type_.as_deref()) == Some("ExternalName")
}

fn claim_for(service: &ObjectKey, ip: IpAddr) -> IPAddress {
    let mut claim = IPAddress::default();
    claim.metadata.name = Some(ip.to_string());
    claim.metadata.labels = Some(BTreeMap::from([
        (FAMILY.to_owned(), Family::of(ip).name().to_owned()),
        (MANAGED_BY.to_owned(), ALLOCATOR.to_owned()),
    ]));
    claim.spec.parent_ref = ParentReference {
        group: Some(String::new()),
        resource: "services".to_owned(),
        namespace: Some(service.namespace.clone()),
        name: service.name.clone(),
    };
    claim
}

fn has_labels(claim: &IPAddress) -> bool {
    let family = claim
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(FAMILY));
    let ip = claim
        .metadata
        .name
        .as_ref()
        .and_then(|name| name.parse().ok());
    let wanted = ip.map(|ip| Family::of(ip).name());
    is_allocated(claim) && family.is_some() && family.map(String::as_str) == wanted
}

fn age(claim: &IPAddress) -> Duration {
    let made = claim.metadata.creation_timestamp.as_ref();
    let age = made.map(|made| Timestamp::now().duration_since(made.0));
    age.and_then(|age| Duration::try_from(age).ok())
        .unwrap_or_default()
}

async fn service(client: &kube::Client, key: &ObjectKey) -> Result<Option<Service>, Error> {
    let api: kube::Api<Service> = kube::Api::namespaced(client.clone(), &key.namespace);
    let found = api.get_opt(&key.name).await;
    found.context(|| format!("read service {key}"))
}

/// Deletes just this claim.
async fn delete(client: &kube::Client, claim: &IPAddress) -> Result<(), Error> {
    let api: kube::Api<IPAddress> = kube::Api::all(client.clone());
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: claim.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match gone_is_none(api.delete(name, &params).await) {
        // another one has taken its place
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        deleted => deleted
            .context(|| format!("delete IP address {name}"))
            .map(drop),
    }
}

struct ServiceRepair {
    client: kube::Client,
    services: Informer<Service>,
    ranges: Informer<ServiceCIDR>,
    claims: Informer<IPAddress>,
    events: EventRecorder,
}

#[async_trait]
impl Reconcile for ServiceRepair {
    const NAME: &'static str = "service-ip-repair";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(service) = self.services.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let ips = cluster_ips(&service);
        if ips.is_empty() {
            return Ok(Next::Wait);
        }
        if self.ranges.wait_synced(NOT_SYNCED).await.is_err() {
            return Ok(Next::After(NOT_SYNCED));
        }
        for text in ips {
            self.check(key, &service, &text).await?;
        }
        Ok(Next::After(RESYNC))
    }
}

impl ServiceRepair {
    async fn check(&self, key: &ObjectKey, service: &Service, text: &str) -> Result<(), Error> {
        let about = object_ref(service);
        let Ok(ip) = text.parse::<IpAddr>() else {
            let why = format!("Cluster IP {text} is not a valid IP; please recreate Service");
            self.events.warning(&about, "ClusterIPNotValid", why);
            return Ok(());
        };
        let family = Family::of(ip);
        let ranges = self.ranges.list();
        let mut networks = ranges.iter().flat_map(|range| networks(range));
        if !networks.any(|network| network.contains(ip)) {
            let why = format!(
                "Cluster IP [{family}]: {ip} is not within any configured Service CIDR; please recreate service"
            );
            self.events.warning(&about, "ClusterIPOutOfRange", why);
            return Ok(());
        }
        let is_good = |claim: &IPAddress| parent(claim).as_ref() == Some(key) && has_labels(claim);
        if self
            .claims
            .get(None, text)
            .is_some_and(|claim| is_good(&claim))
        {
            return Ok(());
        }
        let api: kube::Api<IPAddress> = kube::Api::all(self.client.clone());
        let held = api
            .get_opt(text)
            .await
            .context(|| format!("read IP address {text}"))?;
        // what is known may be old: the Service must have the address still
        let is_current = self::service(&self.client, key).await?;
        let is_current =
            is_current.is_some_and(|now| cluster_ips(&now).iter().any(|ip| ip == text));
        if !is_current || held.as_ref().is_some_and(is_good) {
            return Ok(());
        }
        if let Some(held) = held {
            if parent(&held).as_ref() != Some(key) {
                if self.is_of_another(&held, text).await? {
                    let why = format!(
                        "Cluster IP [{family}]:{ip} was assigned to multiple services; please recreate service"
                    );
                    self.events
                        .warning(&about, "ClusterIPAlreadyAllocated", why);
                    return Ok(());
                }
                let why = format!(
                    "the ClusterIP [{family}]: {ip} for Service {key} has a wrong reference; repairing"
                );
                self.events.warning(&about, "ClusterIPNotAllocated", why);
            }
            delete(&self.client, &held).await?;
        } else {
            let why = format!("Cluster IP [{family}]: {ip} is not allocated; repairing");
            self.events.warning(&about, "ClusterIPNotAllocated", why);
        }
        let made = api
            .create(&PostParams::default(), &claim_for(key, ip))
            .await;
        let made = exists_is_none(made);
        made.context(|| format!("create IP address {text}"))
            .map(drop)
    }

    /// Whether the Service that a claim names has its address.
    async fn is_of_another(&self, claim: &IPAddress, ip: &str) -> Result<bool, Error> {
        let Some(parent) = parent(claim) else {
            return Ok(false);
        };
        let other = service(&self.client, &parent).await?;
        Ok(other.is_some_and(|other| cluster_ips(&other).iter().any(|held| held == ip)))
    }
}

struct ClaimRepair {
    client: kube::Client,
    claims: Informer<IPAddress>,
    events: EventRecorder,
}

#[async_trait]
impl Reconcile for ClaimRepair {
    const NAME: &'static str = "ip-address-repair";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let claim = self.claims.get(None, &key.name);
        let Some(claim) = claim.filter(|claim| is_allocated(claim)) else {
            return Ok(Next::Wait);
        };
        let name = &key.name;
        let Some(parent) = parent(&claim) else {
            let why = format!(
                "IPAddress {name} appears to have been modified, not referencing a Service: cleaning up"
            );
            self.events
                .warning(&object_ref(&*claim), "IPAddressNotAllocated", why);
            delete(&self.client, &claim).await?;
            return Ok(Next::Wait);
        };
        let (reason, why, patience) = match service(&self.client, &parent).await? {
            Some(service) if cluster_ips(&service).contains(name) => {
                return Ok(Next::After(RESYNC));
            }
            None => (
                "IPAddressNotAllocated",
                format!(
                    "IPAddress: {name} for Service {parent} appears to have leaked: cleaning up"
                ),
                REQUEST,
            ),
            Some(service) => (
                "IPAddressWrongReference",
                format!(
                    "IPAddress: {name} for Service {parent} has a wrong reference; cleaning up"
                ),
                // it may be about to get this address
                if is_external_name(&service) {
                    REQUEST
                } else {
                    TAKEN_BACK
                },
            ),
        };
        let left = patience.saturating_sub(age(&claim));
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        self.events.warning(&object_ref(&*claim), reason, why);
        delete(&self.client, &claim).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_and_services_name_each_other() {
        let key = ObjectKey {
            namespace: "a".to_owned(),
            name: "s".to_owned(),
        };
        let mut claim = claim_for(&key, "10.0.0.7".parse().unwrap());
        assert_eq!(parent(&claim), Some(key));
        assert!(has_labels(&claim));
        claim.metadata.labels = Some(BTreeMap::from([(
            MANAGED_BY.to_owned(),
            ALLOCATOR.to_owned(),
        )]));
        assert!(!has_labels(&claim));
        claim.spec.parent_ref.resource = "pods".to_owned();
        assert_eq!(parent(&claim), None);
        let ips = |spec| cluster_ips(&serde_json::from_value(json!({ "spec": spec })).unwrap());
        assert_eq!(
            ips(json!({ "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"] })),
            ["10.0.0.7"]
        );
        assert_eq!(ips(json!({ "clusterIP": "10.0.0.7" })), ["10.0.0.7"]);
        assert!(ips(json!({ "clusterIP": "None", "clusterIPs": ["None"] })).is_empty());
        assert!(ips(json!({ "clusterIP": "10.0.0.7", "type": "ExternalName" })).is_empty());
        assert!(ips(json!({})).is_empty());
    }
}
