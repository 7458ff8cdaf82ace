//! Addresses for Services of type LoadBalancer on machines without a cloud: those of the nodes themselves, or of a range for
//! which one node or another answers (spec network.md 2.5). Nothing has to listen there: the Service proxy of each node takes
//! what is sent to an address in the status.
//!
//! A Service whose `loadBalancerClass` is set is somebody else's, and so is one whose addresses somebody else has written:
//! who wrote them stands in `managedFields`.

mod announced;

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_netplan::{
    BalanceVerdict, Balanced, BalancerAddress, BalancerAddresses, BalancerPool, PROXIES_SERVICES,
    addresses_of, balance, balance_from, balanced_at, balancer_addresses_of, external_addresses_of,
    host_ports, is_balanced_by, keeps_to_nodes, nodes_with_endpoints, wants_balancer,
};
use davit_reconcile::{
    Context, Error, Informers, Next, Notices, Reconcile, Spawner, Tone, cluster_key, gone_is_none,
};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Who has written an address, in `managedFields`.
const MANAGER: &str = "load-balancer.davit.dev";
/// The index of Services by type.
const LOAD_BALANCER: &str = "LoadBalancer";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// How long somebody else may take to give an address before it is said that davit gives none.
const OTHERS: Duration = Duration::from_secs(10);
/// The one key: what one Service gets depends on what the others have.
const ALL: &str = "services";

/// Where Services of type LoadBalancer have their addresses from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoadBalancing {
    /// The addresses of nodes that are ready.
    Nodes,
    /// A range of addresses of their own, each of which a node that is ready answers for.
    Range(BalancerPool),
    /// Nowhere: another load balancer's matter.
    #[default]
    Others,
}

struct LoadBalancer {
    client: kube::Client,
    informers: Informers,
    notices: Notices,
    from: LoadBalancing,
    owners: Mutex<HashMap<ObjectKey, Owner>>,
}

/// Who has written the addresses of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: Option<String>,
    addresses: BTreeSet<String>,
    is_davit: bool,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, from: LoadBalancing) {
    let Some(spawner) = &mut spawner.start("service-lb-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let notices = Notices::new(spawner.events("service-controller"));
    let gives = from != LoadBalancing::Others;
    let queue = spawner.controller(LoadBalancer {
        client: spawner.client.clone(),
        informers: informers.clone(),
        notices,
        from,
        owners: Mutex::default(),
    });
    let all = || vec![cluster_key(ALL)];
    let is_exposed =
        |service: &Service| matches!(kind_of(service), Some("LoadBalancer" | "NodePort"));
    spawner.feed(&informers.services, &queue, move |service: &Service| {
        if is_exposed(service) {
            all()
        } else {
            Vec::new()
        }
    });
    if !gives {
        return;
    }
    let matters = |old: &Node, new: &Node| balancer_addresses_of(old) != balancer_addresses_of(new);
    spawner.feed_changes(&informers.nodes, &queue, matters, move |_: &Node| all());
    let matters = |old: &Pod, new: &Pod| host_ports(old) != host_ports(new);
    spawner.feed_changes(&informers.pods, &queue, matters, move |pod: &Pod| {
        if host_ports(pod).is_empty() {
            Vec::new()
        } else {
            all()
        }
    });
    let services = informers.services.clone();
    let endpoints = move |slice: &EndpointSlice| {
        if announced::is_announcement(slice) {
            return all();
        }
        let service = service_of(slice);
        let service = service.and_then(|key| services.get(Some(&key.namespace), &key.name));
        match service {
            Some(service) if wants_balancer(&service) && keeps_to_nodes(&service) => all(),
            _ => Vec::new(),
        }
    };
    spawner.feed(&informers.endpoint_slices, &queue, endpoints);
}

/// The Service that a slice is of.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: slice.metadata.namespace.clone()?,
        name: slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?.clone(),
    })
}

fn kind_of(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.type_.as_deref()
}

impl LoadBalancer {
    /// Those that may get addresses, those that have some first, then the older ones.
    async fn wishes(&self) -> Result<Vec<Balanced>, Error> {
        let mut wishes = Vec::new();
        for service in self.informers.services.list_indexed(LOAD_BALANCER) {
            if wants_balancer(&service) && self.may_write(&service).await? {
                wishes.push(self.wish(service));
            }
        }
        wishes.sort_by_cached_key(|wish| {
            let created = wish.service.metadata.creation_timestamp.as_ref();
            let created = created.map(|time| time.0);
            (
                !self.has_some(wish),
                created,
                ObjectKey::of(wish.service.as_ref()),
            )
        });
        Ok(wishes)
    }

    /// Whether a Service has addresses; those that were just written may not have come back yet.
    fn has_some(&self, wish: &Balanced) -> bool {
        let owners = self.owners.lock();
        let written = owners
            .get(&ObjectKey::of(wish.service.as_ref()))
            .filter(|owner| owner.uid == wish.service.metadata.uid);
        let written = written.is_some_and(|owner| !owner.addresses.is_empty());
        written || !balanced_at(&wish.service).is_empty()
    }

    /// Whether the addresses of a Service are davit's, or there are none. Informers do not keep `managedFields`: the API
    /// server is asked once of each set of addresses.
    async fn may_write(&self, service: &Service) -> Result<bool, Error> {
        let addresses = balanced_at(service);
        if addresses.is_empty() {
            return Ok(true);
        }
        let key = ObjectKey::of(service);
        let uid = service.metadata.uid.clone();
        if let Some(owner) = self.owners.lock().get(&key)
            && owner.uid == uid
            && owner.addresses == addresses
        {
            return Ok(owner.is_davit);
        }
        let stored = self.services(&key).get_opt(&key.name).await;
        let stored = stored.context(|| format!("read service {key}"))?;
        let is_davit = stored.is_some_and(|service| is_balanced_by(&service, MANAGER));
        let owner = Owner {
            uid,
            addresses,
            is_davit,
        };
        self.owners.lock().insert(key, owner);
        Ok(is_davit)
    }

    fn services(&self, key: &ObjectKey) -> Api<Service> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn wish(&self, service: Arc<Service>) -> Balanced {
        let key = ObjectKey::of(service.as_ref());
        let nodes = keeps_to_nodes(&service).then(|| {
            let slices = self
                .informers
                .endpoint_slices
                .list_namespace(&key.namespace);
            let own = slices
                .iter()
                .filter(|slice| service_of(slice).as_ref() == Some(&key));
            nodes_with_endpoints(own.map(AsRef::as_ref))
        });
        Balanced { service, nodes }
    }

    /// The addresses of nodes whose agents answer for others.
    fn announcing(&self) -> Vec<BalancerAddress> {
        let mut found = BalancerAddresses::default();
        for node in self.informers.nodes.list() {
            let annotations = node.metadata.annotations.as_ref();
            let proxies = annotations.and_then(|all| all.get(PROXIES_SERVICES));
            if proxies.is_some_and(|proxies| proxies == "true") {
                found.add_node(&node, &[]);
            }
        }
        found.all()
    }

    /// The addresses of nodes, and who has ports there.
    fn addresses(&self) -> Vec<BalancerAddress> {
        let informers = &self.informers;
        let mut found = BalancerAddresses::default();
        for node in informers.nodes.list() {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            found.add_node(&node, &informers.pods.list_indexed(name));
        }
        let servers = informers.endpoint_slices.get(Some("default"), "kubernetes");
        if let Some(slice) = servers {
            found.add_api_servers(&slice);
        }
        for kind in ["NodePort", LOAD_BALANCER] {
            for service in informers.services.list_indexed(kind) {
                found.add_node_ports(&service);
            }
        }
        found.all()
    }

    fn forget_the_gone(&self) {
        let services = &self.informers.services;
        let is_there = |key: &ObjectKey| {
            let held = services.get(Some(&key.namespace), &key.name);
            held.is_some_and(|service| kind_of(&service) == Some(LOAD_BALANCER))
        };
        self.notices.retain(is_there);
        self.owners.lock().retain(|key, _| is_there(key));
    }

    /// Writes the addresses of a Service, unless it has them.
    async fn write(&self, wish: &Balanced, addresses: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let key = ObjectKey::of(wish.service.as_ref());
        let texts: BTreeSet<String> = addresses.iter().map(ToString::to_string).collect();
        if balanced_at(&wish.service) == texts {
            return Ok(());
        }
        let ingress: Vec<_> = addresses
            .iter()
            .map(|ip| json!({ "ip": ip, "ipMode": "VIP" }))
            .collect();
        let ingress = (!ingress.is_empty()).then_some(ingress);
        let patch = json!({
            "metadata": { "resourceVersion": wish.service.metadata.resource_version },
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = self
            .services(&key)
            .patch_status(&key.name, &params, &Patch::Merge(patch))
            .await;
        gone_is_none(written).context(|| format!("write the addresses of service {key}"))?;
        let owner = Owner {
            uid: wish.service.metadata.uid.clone(),
            addresses: texts,
            is_davit: true,
        };
        self.owners.lock().insert(key, owner);
        Ok(())
    }

    async fn give(&self) -> Result<(), Error> {
        let wishes = self.wishes().await?;
        self.announce(&BTreeMap::new()).await?;
        if wishes.is_empty() {
            return Ok(());
        }
        let places = self.addresses();
        self.write_all(balance(&places, &wishes)).await
    }

    /// Addresses of a range, and the nodes that answer for them. What is given up is first nobody's to answer for.
    async fn give_from(&self, pool: &BalancerPool) -> Result<(), Error> {
        let wishes = self.wishes().await?;
        let nodes = self.informers.nodes.list();
        let taken = nodes
            .iter()
            .flat_map(|node| addresses_of(node).chain(external_addresses_of(node)));
        let taken: BTreeSet<IpAddr> = taken.collect();
        let (places, held) = (self.announcing(), self.announced());
        let pooled = balance_from(pool, &taken, &places, &held, &wishes);
        self.announce(&pooled.announcers).await?;
        self.write_all(pooled.verdicts).await
    }

    async fn write_all(&self, verdicts: Vec<(&Balanced, BalanceVerdict)>) -> Result<(), Error> {
        let mut failed = None;
        for (wish, verdict) in verdicts {
            let none = BTreeSet::new();
            let addresses = match &verdict {
                BalanceVerdict::Given(addresses) => addresses,
                BalanceVerdict::Refused { .. } => &none,
            };
            // What one Service stumbles over is no matter of the others.
            if let Err(error) = self.write(wish, addresses).await {
                failed = Some(error);
                continue;
            }
            let about = wish.service.as_ref();
            match verdict {
                BalanceVerdict::Given(_) => {
                    let words = "Ensured load balancer";
                    self.notices
                        .say(about, Tone::Normal, "EnsuredLoadBalancer", words);
                }
                BalanceVerdict::Refused { reason, message } => {
                    self.notices.say(about, Tone::Warning, reason, &message);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes back what was given before it was switched off, and says who has to give addresses now.
    async fn leave_to_others(&self) -> Result<Next, Error> {
        self.announce(&BTreeMap::new()).await?;
        let now = Timestamp::now();
        let mut next = Next::Wait;
        for wish in self.wishes().await? {
            self.write(&wish, &BTreeSet::new()).await?;
            let created = wish.service.metadata.creation_timestamp.as_ref();
            let age = created.map_or(Duration::MAX, |time| {
                now.duration_since(time.0)
                    .try_into()
                    .unwrap_or(Duration::ZERO)
            });
            if age < OTHERS {
                next = Next::After(OTHERS.saturating_sub(age));
                continue;
            }
            let words = "davit gives no addresses to Services here (--load-balancer=none): it waits for \
                         another load balancer";
            let about = wish.service.as_ref();
            self.notices
                .say(about, Tone::Warning, "NoLoadBalancer", words);
        }
        Ok(next)
    }
}

#[async_trait]
impl Reconcile for LoadBalancer {
    const NAME: &'static str = "load-balancer";
    const WORKERS: usize = 1;

    async fn sync(&self, _: &ObjectKey) -> Result<Next, Error> {
        self.forget_the_gone();
        match &self.from {
            LoadBalancing::Nodes => self.give().await.map(|()| Next::Wait),
            LoadBalancing::Range(pool) => self.give_from(pool).await.map(|()| Next::Wait),
            LoadBalancing::Others => self.leave_to_others().await,
        }
    }
}
