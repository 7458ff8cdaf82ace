//! Which node answers for which address of a range: for each address an EndpointSlice in `kube-system`, with the address and
//! the node's name. Nodes see slices, and nobody but the controllers writes these.

use super::LoadBalancer;
use davit_netplan::{Family, number};
use davit_reconcile::{Context, Error, exists_is_none, gone_is_none};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;

const NAMESPACE: &str = "kube-system";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The slices belong together under this name; there is no such Service.
const ADDRESSES: &str = "davit-addresses";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "load-balancer.davit.dev";

/// Whether a slice says who answers for an address.
pub(super) fn is_announcement(slice: &EndpointSlice) -> bool {
    let labels = slice.labels();
    slice.metadata.namespace.as_deref() == Some(NAMESPACE)
        && labels
            .get(SERVICE_NAME)
            .is_some_and(|name| name == ADDRESSES)
        && labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER)
}

/// The address of a slice, and the node that answers for it.
fn read(slice: &EndpointSlice) -> Option<(IpAddr, String)> {
    let endpoint = slice.endpoints.as_ref()?.first()?;
    let address = endpoint.addresses.first()?.parse().ok()?;
    Some((address, endpoint.node_name.clone()?))
}

fn name_of(address: IpAddr) -> String {
    format!("davit-address-{:x}", number(address))
}

fn slice_of(address: IpAddr, node: &str) -> Result<EndpointSlice, Error> {
    let slice = json!({
        "metadata": {
            "name": name_of(address), "namespace": NAMESPACE,
            "labels": { SERVICE_NAME: ADDRESSES, MANAGED_BY: MANAGER },
        },
        "addressType": Family::of(address).name(),
        "endpoints": [{ "addresses": [address], "nodeName": node }],
        "ports": [],
    });
    serde_json::from_value(slice).map_err(|error| Error::Invalid(error.to_string()))
}

impl LoadBalancer {
    /// Who answers for which address.
    pub(super) fn announced(&self) -> BTreeMap<IpAddr, String> {
        let slices = self.informers.endpoint_slices.list_namespace(NAMESPACE);
        let slices = slices.iter().filter(|slice| is_announcement(slice));
        slices.filter_map(|slice| read(slice)).collect()
    }

    /// Has these nodes answer for these addresses, and nobody for others.
    pub(super) async fn announce(&self, wanted: &BTreeMap<IpAddr, String>) -> Result<(), Error> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let held = self.informers.endpoint_slices.list_namespace(NAMESPACE);
        let held = held.iter().filter(|slice| is_announcement(slice));
        let mut missing = wanted.clone();
        for slice in held {
            let name = slice.name_any();
            let what = || format!("endpoint slice {NAMESPACE}/{name}");
            let found = read(slice).filter(|(address, _)| name == name_of(*address));
            let node = found.and_then(|(address, node)| {
                let wanted = missing.remove(&address)?;
                Some((address, node, wanted))
            });
            match node {
                None => {
                    let deleted = slices.delete(&name, &DeleteParams::default()).await;
                    gone_is_none(deleted).context(|| format!("delete {}", what()))?;
                }
                Some((_, node, wanted)) if node == wanted => {}
                Some((address, _, wanted)) => {
                    let mut new = slice.as_ref().clone();
                    new.endpoints = slice_of(address, &wanted)?.endpoints;
                    let written = slices.replace(&name, &PostParams::default(), &new).await;
                    gone_is_none(written).context(|| format!("write {}", what()))?;
                }
            }
        }
        for (address, node) in missing {
            let new = slice_of(address, &node)?;
            let made = slices.create(&PostParams::default(), &new).await;
            exists_is_none(made).context(|| format!("create {NAMESPACE}/{}", name_of(address)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_for_an_address() {
        for (text, name) in [
            ("192.0.2.200", "davit-address-c00002c8"),
            (
                "2001:db8::",
                "davit-address-20010db8000000000000000000000000",
            ),
        ] {
            let address: IpAddr = text.parse().unwrap();
            let slice = slice_of(address, "node-1").unwrap();
            assert_eq!(slice.name_any(), name);
            assert!(is_announcement(&slice));
            assert_eq!(read(&slice), Some((address, "node-1".to_owned())));
            let mut other = slice;
            other.metadata.namespace = Some("default".to_owned());
            assert!(!is_announcement(&other), "what users write");
        }
    }
}
