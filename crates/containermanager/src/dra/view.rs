//! What containers get of the claims in the allocation log, and what others are told of it. Pure.

use super::Error;
use super::claims;
use super::health::DeviceHealth;
use super::pod;
use crate::allocation::{ClaimHold, PreparedDevice, Table};
use davit_proto::podresources::v1 as pb;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceHealth, ResourceStatus};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A claim, or some requests of it, that a container uses.
pub(super) struct Use {
    /// Name in the pod's spec; empty for the claim of extended resources.
    entry: String,
    /// Name of the claim object.
    pub(super) claim: String,
    /// `None` for all requests.
    pub(super) request: Option<String>,
}

pub(super) fn uses(pod: &Pod, container: &Container) -> Vec<Use> {
    let mut uses = Vec::new();
    let asked = container.resources.as_ref().and_then(|r| r.claims.as_ref());
    for asked in asked.into_iter().flatten() {
        let mut named = pod::resource_claims(pod).filter(|e| e.name == asked.name);
        if let Some(entry) = named.next().and_then(|e| claims::entry(pod, e)) {
            uses.push(Use {
                entry: entry.name,
                claim: entry.claim,
                request: asked.request.clone().filter(|r| !r.is_empty()),
            });
        }
    }
    if let Some(status) = pod::extended(pod) {
        let of_container = status.request_mappings.iter();
        let of_container = of_container.filter(|m| m.container_name == container.name);
        uses.extend(of_container.map(|m| Use {
            entry: String::new(),
            claim: status.resource_claim_name.clone(),
            request: Some(m.request_name.clone()),
        }));
    }
    uses
}

fn hold<'a>(table: &'a Table, pod: &Pod, claim: &str) -> Option<&'a Arc<ClaimHold>> {
    let mut named = table
        .claims_of(pod::uid(pod))
        .filter(|h| h.claim.name == claim && h.claim.namespace == pod::namespace(pod));
    named.next()
}

/// Whether a device serves a request, or all are asked for.
fn serves(device: &PreparedDevice, request: Option<&str>) -> bool {
    let Some(request) = request else { return true };
    // The answer may name an alternative, `request/alternative`.
    let mut names = device.requests.iter();
    device.requests.is_empty()
        || names.any(|n| n == request || n.split('/').next() == Some(request))
}

/// The CDI names of a container, each once, in the order of its claims.
pub(crate) fn cdi_devices(
    pod: &Pod,
    container: &Container,
    table: &Table,
) -> Result<Vec<String>, Error> {
    let (mut names, mut given) = (Vec::new(), BTreeSet::new());
    for used in uses(pod, container) {
        let hold = hold(table, pod, &used.claim)
            .filter(|h| h.drivers.values().all(|d| d.prepared))
            .ok_or_else(|| Error::NotPrepared(used.claim.clone()))?;
        let devices = hold.drivers.values().flat_map(|d| &d.devices);
        for device in devices.filter(|d| serves(d, used.request.as_deref())) {
            let new = device.cdi.iter().filter(|n| given.insert((*n).clone()));
            names.extend(new.cloned());
        }
    }
    Ok(names)
}

/// The claims of a container for podresources: each claim once, with the devices of the requests the container sees.
pub(crate) fn dynamic_resources(
    pod: &Pod,
    container: &Container,
    table: &Table,
) -> Vec<pb::DynamicResource> {
    let uses = uses(pod, container);
    let mut claims: Vec<&str> = uses.iter().map(|u| u.claim.as_str()).collect();
    let mut seen = BTreeSet::new();
    claims.retain(|c| seen.insert(*c));
    let resource = |claim: &&str| {
        let hold = hold(table, pod, claim)?;
        let devices = hold
            .drivers
            .iter()
            .flat_map(|(driver, d)| d.devices.iter().map(move |device| (driver, device)));
        let visible = devices.filter(|(_, device)| {
            let mut of_claim = uses.iter().filter(|u| u.claim == *claim);
            of_claim.any(|u| serves(device, u.request.as_deref()))
        });
        Some(pb::DynamicResource {
            claim_name: hold.claim.name.clone(),
            claim_namespace: hold.claim.namespace.clone(),
            claim_resources: visible
                .map(|(driver, device)| pb::ClaimResource {
                    cdi_devices: device
                        .cdi
                        .iter()
                        .map(|name| pb::CdiDevice { name: name.clone() })
                        .collect(),
                    driver_name: driver.clone(),
                    pool_name: device.pool.clone(),
                    device_name: device.device.clone(),
                    share_id: device.share.clone(),
                })
                .collect(),
        })
    };
    claims.iter().filter_map(resource).collect()
}

/// `allocatedResourcesStatus` of a container's claims.
pub(super) fn status(
    pod: &Pod,
    container: &Container,
    table: &Table,
    health: impl Fn(&str, &PreparedDevice) -> DeviceHealth,
) -> Vec<ResourceStatus> {
    let mut statuses: Vec<ResourceStatus> = Vec::new();
    for used in uses(pod, container) {
        if used.entry.is_empty() {
            continue;
        }
        let Some(hold) = hold(table, pod, &used.claim) else {
            continue;
        };
        let mut resources = Vec::new();
        for (driver, part) in &hold.drivers {
            let devices = part.devices.iter();
            for device in devices.filter(|d| serves(d, used.request.as_deref())) {
                let found = health(driver, device);
                let id = device.cdi.first().cloned();
                let place = || format!("{driver}/{}/{}", device.pool, device.device);
                resources.push(ResourceHealth {
                    resource_id: id.unwrap_or_else(place),
                    health: Some(found.word.to_owned()),
                    message: found.message,
                });
            }
        }
        resources.sort_by(|a, b| a.resource_id.cmp(&b.resource_id));
        let request = used.request.map(|r| format!("/{r}")).unwrap_or_default();
        statuses.push(ResourceStatus {
            name: format!("claim:{}{request}", used.entry),
            resources: Some(resources),
        });
    }
    statuses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{Change, ClaimDriver, ClaimName};
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "resourceClaims": [{"name": "a", "resourceClaimName": "claim-a"}],
                "containers": [
                    {"name": "all", "resources": {"claims": [{"name": "a"}]}},
                    {"name": "one", "resources": {"claims": [{"name": "a", "request": "r0"}, {"name": "a", "request": "r1"}]}},
                    {"name": "extended", "resources": {"limits": {"e.com/x": "1"}}},
                    {"name": "none"}]},
            "status": {"extendedResourceClaimStatus": {"resourceClaimName": "ext", "requestMappings": [
                {"containerName": "extended", "resourceName": "e.com/x", "requestName": "container-2-request-0"}]}},
        }))
        .unwrap()
    }

    fn device(request: &str, name: &str) -> PreparedDevice {
        PreparedDevice {
            requests: vec![request.to_owned()],
            pool: "pool".into(),
            device: name.into(),
            cdi: vec![format!("v.dev/c={name}"), "v.dev/c=common".to_owned()],
            share: Some(format!("share-{name}")),
        }
    }

    fn table(prepared: bool) -> Table {
        let mut table = Table::default();
        let pod = claims::pod_name(&pod());
        let hold = |uid: &str, name: &str, devices| {
            let driver = ClaimDriver {
                prepared,
                handle: None,
                devices,
            };
            Change::Claim(ClaimHold {
                claim: ClaimName {
                    uid: uid.into(),
                    namespace: "ns".into(),
                    name: name.into(),
                },
                classic: false,
                pods: vec![pod.clone()],
                drivers: [("d".to_owned(), driver)].into(),
                since: 0,
            })
        };
        let devices = vec![device("r0", "0"), device("r1/big", "1"), device("r2", "2")];
        table.apply(&hold("1", "claim-a", devices)).unwrap();
        let devices = vec![device("container-2-request-0", "9")];
        table.apply(&hold("2", "ext", devices)).unwrap();
        table
    }

    fn container(n: usize) -> Container {
        pod().spec.unwrap().containers.remove(n)
    }

    #[test]
    fn item_108_containers_see_the_devices_of_their_requests() {
        let (pod, unprepared, table) = (pod(), table(false), table(true));
        let names = |n| cdi_devices(&pod, &container(n), &table).unwrap();
        assert_eq!(
            names(0),
            ["v.dev/c=0", "v.dev/c=common", "v.dev/c=1", "v.dev/c=2"]
        );
        assert_eq!(names(1), ["v.dev/c=0", "v.dev/c=common", "v.dev/c=1"]);
        assert_eq!(names(2), ["v.dev/c=9", "v.dev/c=common"]);
        assert!(names(3).is_empty());
        let early = cdi_devices(&pod, &container(0), &unprepared);
        assert!(matches!(early, Err(Error::NotPrepared(_))));
    }

    #[test]
    fn items_116_and_134_podresources_tell_each_claim_once() {
        let (pod, table) = (pod(), table(true));
        let resources = dynamic_resources(&pod, &container(1), &table);
        assert_eq!(resources.len(), 1);
        let claim = &resources[0];
        assert_eq!(
            (claim.claim_name.as_str(), claim.claim_namespace.as_str()),
            ("claim-a", "ns")
        );
        let devices: Vec<(&str, usize, Option<&str>)> = claim
            .claim_resources
            .iter()
            .map(|r| {
                (
                    r.device_name.as_str(),
                    r.cdi_devices.len(),
                    r.share_id.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            devices,
            [("0", 2, Some("share-0")), ("1", 2, Some("share-1"))]
        );
        assert_eq!(dynamic_resources(&pod, &container(2), &table).len(), 1);
    }

    #[test]
    fn status_names_claim_and_request() {
        let (pod, table) = (pod(), table(true));
        let unhealthy = |_: &str, device: &PreparedDevice| DeviceHealth {
            word: if device.device == "0" {
                "Unhealthy"
            } else {
                "Healthy"
            },
            message: None,
        };
        let all = status(&pod, &container(1), &table, unhealthy);
        let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["claim:a/r0", "claim:a/r1"]);
        let resources = all[0].resources.as_ref().unwrap();
        assert_eq!(resources[0].resource_id, "v.dev/c=0");
        assert_eq!(resources[0].health.as_deref(), Some("Unhealthy"));
        assert!(status(&pod, &container(2), &table, unhealthy).is_empty());
    }
}
