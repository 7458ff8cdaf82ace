//! Keeps the EndpointSlices of every Service with a selector (KEP-752), and mirrors Endpoints written by hand.

mod desired;
pub(crate) mod mirroring;

use crate::endpoints::pods::{self, TRIGGER_TIME, TriggerTimes};
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_netplan::{SlicePlacement, place_endpoints, same_ports};
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use desired::{Group, MANAGED_BY, MANAGER, SERVICE_NAME};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::{DeleteParams, ListParams, PostParams};
use parking_lot::Mutex;
use std::collections::BTreeMap;

struct EndpointSlices {
    client: kube::Client,
    informers: Informers,
    triggers: Mutex<TriggerTimes>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("endpointslice-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(EndpointSlices {
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
    spawner.feed(
        &informers.endpoint_slices,
        &queue,
        |slice: &EndpointSlice| service_key(slice, MANAGER).into_iter().collect(),
    );
    // A node's zone stands in the endpoints of its pods.
    let (services, on_nodes) = (informers.services.clone(), informers.pods.clone());
    spawner.feed_changes(
        &informers.nodes,
        &queue,
        |old: &Node, new: &Node| old.metadata.labels != new.metadata.labels,
        move |node: &Node| {
            let on_node = |pod: &Pod| {
                pod.spec.as_ref().and_then(|s| s.node_name.as_ref()) == node.metadata.name.as_ref()
            };
            let all = on_nodes.list();
            all.iter()
                .filter(|pod| on_node(pod))
                .flat_map(|pod| pods::services_of(&services, pod))
                .collect()
        },
    );
}

/// The service whose slice this is, if `manager` keeps it.
fn service_key(slice: &EndpointSlice, manager: &str) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    (labels.get(MANAGED_BY)? == manager).then(|| ObjectKey {
        namespace: slice.metadata.namespace.clone().unwrap_or_default(),
        name: labels.get(SERVICE_NAME).cloned().unwrap_or_default(),
    })
}

#[async_trait]
impl Reconcile for EndpointSlices {
    const NAME: &'static str = "endpointslice";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(service) = self.informers.services.get(Some(&key.namespace), &key.name) else {
            // The slices go with their owner, by garbage collection.
            self.triggers.lock().forget(key);
            return Ok(Next::Wait);
        };
        let Some(selector) = pods::selector_of(&service) else {
            return Ok(Next::Wait);
        };
        if service.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let mut selected = self.informers.pods.list_namespace(&key.namespace);
        selected.retain(|pod| pods::selects(selector, pod.metadata.labels.as_ref()));
        let chosen = selected.iter().map(AsRef::as_ref);
        let trigger = self.triggers.lock().next(&service, chosen.clone());
        let groups = desired::groups(&service, &chosen, |node| {
            self.informers.nodes.get(None, node)
        });
        let owner = service
            .controller_owner_ref(&())
            .ok_or_else(|| Error::Invalid(format!("service {key} has no uid")))?;
        let family = Family {
            client: &self.client,
            service: key,
            manager: MANAGER,
            owner,
            labels: desired::labels(&service),
            annotations: BTreeMap::new(),
            trigger,
            placeholder: desired::address_types(&service).first().copied(),
        };
        family.reconcile(groups).await?;
        Ok(Next::Wait)
    }
}

/// The slices that one manager keeps for one service.
struct Family<'a> {
    client: &'a kube::Client,
    service: &'a ObjectKey,
    manager: &'a str,
    owner: OwnerReference,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    trigger: Option<String>,
    /// The address type of the empty slice that stands for a service without endpoints.
    placeholder: Option<&'static str>,
}

impl Family<'_> {
    /// Makes the slices say what `groups` say.
    async fn reconcile(&self, mut groups: Vec<Group>) -> Result<(), Error> {
        // Read live: a slice that the informer has not seen yet would be made twice.
        let selector = format!(
            "{SERVICE_NAME}={},{MANAGED_BY}={}",
            self.service.name, self.manager
        );
        let listed = self
            .api()
            .list(&ListParams::default().labels(&selector))
            .await
            .context(|| format!("list endpoint slices of {}", self.service))?;
        let mut left: Vec<EndpointSlice> = listed
            .items
            .into_iter()
            .filter(|s| s.metadata.deletion_timestamp.is_none())
            .collect();
        left.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        if groups.iter().all(|g| g.endpoints.is_empty()) {
            groups.clear();
            if let Some(address_type) = self.placeholder {
                return self.only_placeholder(left, address_type).await;
            }
        }
        let mut placed = Vec::with_capacity(groups.len());
        for group in groups {
            let (ours, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|slice| {
                slice.address_type == group.address_type
                    && same_ports(slice.ports.as_ref(), &group.ports)
            });
            left = others;
            let placement = place_endpoints(ours.clone(), group.endpoints);
            self.restore_labels(&ours, &placement).await?;
            placed.push((placement, group.address_type, group.ports));
        }
        for (placement, address_type, ports) in placed {
            self.apply(placement, address_type, &ports, &mut left)
                .await?;
        }
        for slice in left {
            self.delete(&slice).await?;
        }
        Ok(())
    }

    /// A service without endpoints has one empty slice, by which others see that it was looked at.
    async fn only_placeholder(
        &self,
        existing: Vec<EndpointSlice>,
        address_type: &'static str,
    ) -> Result<(), Error> {
        let mut kept = false;
        for mut slice in existing {
            let empty = slice.endpoints.iter().flatten().next().is_none()
                && slice.ports.iter().flatten().next().is_none();
            if kept || slice.address_type != address_type {
                self.delete(&slice).await?;
                continue;
            }
            kept = true;
            if !empty || !self.is_labelled(&slice) {
                slice.endpoints = Some(Vec::new());
                slice.ports = Some(Vec::new());
                self.update(slice).await?;
            }
        }
        if kept {
            return Ok(());
        }
        self.create(Vec::new(), address_type, &[]).await
    }

    /// Slices whose endpoints are right may still lack a label that the service has got.
    async fn restore_labels(
        &self,
        slices: &[EndpointSlice],
        placement: &SlicePlacement,
    ) -> Result<(), Error> {
        let touched = |slice: &EndpointSlice| {
            placement
                .update
                .iter()
                .chain(&placement.delete)
                .any(|s| s.metadata.name == slice.metadata.name)
        };
        for slice in slices.iter().filter(|s| !touched(s)) {
            if !self.is_labelled(slice) {
                self.update(slice.clone()).await?;
            }
        }
        Ok(())
    }

    fn is_labelled(&self, slice: &EndpointSlice) -> bool {
        slice.metadata.labels.as_ref() == Some(&self.labels)
            && self.annotations.iter().all(|(key, value)| {
                let held = slice.metadata.annotations.as_ref();
                held.is_some_and(|a| a.get(key) == Some(value))
            })
    }

    /// A slice that is needed no more becomes one that is, so that nobody sees both: one without ports, or with ports that
    /// the service had, beside those it has.
    async fn apply(
        &self,
        placement: SlicePlacement,
        address_type: &str,
        ports: &[EndpointPort],
        unneeded: &mut Vec<EndpointSlice>,
    ) -> Result<(), Error> {
        for endpoints in placement.create {
            let free = unneeded.iter().position(|s| s.address_type == address_type);
            let Some(mut slice) = free.map(|at| unneeded.remove(at)) else {
                self.create(endpoints, address_type, ports).await?;
                continue;
            };
            slice.endpoints = Some(endpoints);
            slice.ports = Some(ports.to_vec());
            self.update(slice).await?;
        }
        for slice in placement.update {
            self.update(slice).await?;
        }
        for slice in placement.delete {
            self.delete(&slice).await?;
        }
        Ok(())
    }

    fn api(&self) -> kube::Api<EndpointSlice> {
        kube::Api::namespaced(self.client.clone(), &self.service.namespace)
    }

    fn annotated(
        &self,
        mut annotations: BTreeMap<String, String>,
    ) -> Option<BTreeMap<String, String>> {
        annotations.extend(self.annotations.clone());
        match &self.trigger {
            Some(at) => annotations.insert(TRIGGER_TIME.to_owned(), at.clone()),
            None => annotations.remove(TRIGGER_TIME),
        };
        (!annotations.is_empty()).then_some(annotations)
    }

    async fn create(
        &self,
        endpoints: Vec<Endpoint>,
        address_type: &str,
        ports: &[EndpointPort],
    ) -> Result<(), Error> {
        let slice = EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", self.service.name)),
                namespace: Some(self.service.namespace.clone()),
                labels: Some(self.labels.clone()),
                annotations: self.annotated(BTreeMap::new()),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            address_type: address_type.to_owned(),
            endpoints: Some(endpoints),
            ports: Some(ports.to_vec()),
        };
        self.api()
            .create(&PostParams::default(), &slice)
            .await
            .context(|| format!("create an endpoint slice of {}", self.service))?;
        Ok(())
    }

    async fn update(&self, mut slice: EndpointSlice) -> Result<(), Error> {
        slice.metadata.labels = Some(self.labels.clone());
        slice.metadata.annotations =
            self.annotated(slice.metadata.annotations.take().unwrap_or_default());
        let name = slice.metadata.name.clone().unwrap_or_default();
        gone_is_none(
            self.api()
                .replace(&name, &PostParams::default(), &slice)
                .await,
        )
        .context(|| format!("update endpoint slice {}/{name}", self.service.namespace))?;
        Ok(())
    }

    async fn delete(&self, slice: &EndpointSlice) -> Result<(), Error> {
        let name = slice.metadata.name.clone().unwrap_or_default();
        gone_is_none(self.api().delete(&name, &DeleteParams::default()).await)
            .context(|| format!("delete endpoint slice {}/{name}", self.service.namespace))?;
        Ok(())
    }
}
