//! Publishes where the pods of each node are: for each family one EndpointSlice a node in `kube-system`, with the node's
//! address and, as an annotation, the range of its pods.
//!
//! Nodes need no more to make routes to one another, and may not read one another's Node objects.

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_netplan::{Family, addresses_of, leads_elsewhere, range_of};
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, exists_is_none, gone_is_none,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use std::net::IpAddr;

const NAMESPACE: &str = "kube-system";
/// With what the names of the slices begin, by the family of their addresses.
fn prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "davit-node-",
        Family::V6 => "davit-node6-",
    }
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The slices belong together under this name; there is no such Service.
const NODES: &str = "davit-nodes";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "node-routes.davit.dev";
/// The range of the node's pods.
const RANGE: &str = "davit.dev/pod-cidr";

struct Routes {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("node-route-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Routes {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    let routes = |node: &Node| Family::ALL.map(|family| route_of(node, family));
    let matters = move |old: &Node, new: &Node| routes(old) != routes(new);
    spawner.feed_changes(&informers.nodes, &queue, matters, |node: &Node| {
        vec![ObjectKey::of(node)]
    });
    spawner.feed(
        &informers.endpoint_slices,
        &queue,
        |slice: &EndpointSlice| {
            let labels = slice.labels();
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            let node = Family::ALL
                .into_iter()
                .find_map(|family| name.strip_prefix(prefix(family)));
            let node = node.filter(|_| {
                slice.metadata.namespace.as_deref() == Some(NAMESPACE)
                    && labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER)
            });
            node.map(davit_reconcile::cluster_key).into_iter().collect()
        },
    );
}

/// The range of a node's pods, and the address by which other nodes reach it, of one family. There is none on a machine
/// without a network, whose node has a loopback address.
fn route_of(node: &Node, family: Family) -> Option<(String, IpAddr)> {
    let range = range_of(node, family)?;
    let mut addresses = addresses_of(node)
        .filter(|address| Family::of(*address) == family && leads_elsewhere(address));
    Some((range.to_string(), addresses.next()?))
}

fn slice_of(node: &Node, range: &str, address: IpAddr) -> Result<EndpointSlice, Error> {
    let family = Family::of(address);
    let name = node.name_any();
    let slice = json!({
        "metadata": {
            "name": format!("{}{name}", prefix(family)), "namespace": NAMESPACE,
            "labels": { SERVICE_NAME: NODES, MANAGED_BY: MANAGER },
            "annotations": { RANGE: range },
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Node", "name": name,
                "uid": node.metadata.uid.clone().unwrap_or_default(),
            }],
        },
        "addressType": family.name(),
        "endpoints": [{ "addresses": [address], "nodeName": name }],
        "ports": [],
    });
    serde_json::from_value(slice).map_err(|error| Error::Invalid(error.to_string()))
}

#[async_trait]
impl Reconcile for Routes {
    const NAME: &'static str = "node-routes";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        for family in Family::ALL {
            self.sync_family(key, family).await?;
        }
        Ok(Next::Wait)
    }
}

impl Routes {
    async fn sync_family(&self, key: &ObjectKey, family: Family) -> Result<(), Error> {
        let name = format!("{}{}", prefix(family), key.name);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let held = self.informers.endpoint_slices.get(Some(NAMESPACE), &name);
        let what = || format!("endpoint slice {NAMESPACE}/{name}");
        let node = self.informers.nodes.get(None, &key.name);
        let route = node.as_ref().and_then(|node| route_of(node, family));
        let (Some(node), Some((range, address))) = (node, route) else {
            if held.is_some() {
                let deleted = slices.delete(&name, &DeleteParams::default()).await;
                gone_is_none(deleted).context(|| format!("delete {}", what()))?;
            }
            return Ok(());
        };
        let wanted = slice_of(&node, &range, address)?;
        match held {
            None => {
                let made = slices.create(&PostParams::default(), &wanted).await;
                exists_is_none(made).context(|| format!("create {}", what()))?;
            }
            Some(held)
                if held.annotations().get(RANGE) != Some(&range)
                    || held.endpoints != wanted.endpoints
                    || held.metadata.owner_references != wanted.metadata.owner_references =>
            {
                let mut new = (*held).clone();
                new.endpoints = wanted.endpoints;
                new.metadata.owner_references = wanted.metadata.owner_references;
                new.annotations_mut().insert(RANGE.to_owned(), range);
                let written = slices.replace(&name, &PostParams::default(), &new).await;
                gone_is_none(written).context(|| format!("write {}", what()))?;
            }
            Some(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_takes_a_range_and_an_address() {
        let node = |range: Option<&str>, address: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": { "name": "n", "uid": "u" },
                "spec": { "podCIDR": range },
                "status": { "addresses": [
                    { "type": "Hostname", "address": "n" },
                    { "type": "InternalIP", "address": address },
                ] },
            }))
            .unwrap()
        };
        let address: IpAddr = "192.0.2.7".parse().unwrap();
        let of_four = |node: &Node| route_of(node, Family::V4);
        let found = of_four(&node(Some("10.244.1.0/24"), "192.0.2.7"));
        assert_eq!(found, Some(("10.244.1.0/24".to_owned(), address)));
        assert_eq!(of_four(&node(None, "192.0.2.7")), None);
        assert_eq!(of_four(&node(Some("fd00::/64"), "192.0.2.7")), None);
        assert_eq!(of_four(&node(Some("10.244.1.0/24"), "fd00::7")), None);
        for here in ["127.0.0.1", "169.254.0.7", "0.0.0.0"] {
            let found = of_four(&node(Some("10.244.1.0/24"), here));
            assert_eq!(found, None, "{here}: nobody else reaches it there");
        }
        let slice = slice_of(&node(None, ""), "10.244.1.0/24", address).unwrap();
        assert_eq!(slice.metadata.name.as_deref(), Some("davit-node-n"));
        assert_eq!(slice.annotations()[RANGE], "10.244.1.0/24");
        let six = node(Some("fd00:10:244:1::/64"), "2001:db8::7");
        let (range, address) = route_of(&six, Family::V6).unwrap();
        let slice = slice_of(&six, &range, address).unwrap();
        assert_eq!(slice.metadata.name.as_deref(), Some("davit-node6-n"));
        assert_eq!(slice.address_type, "IPv6");
    }
}
