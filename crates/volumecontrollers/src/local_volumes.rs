//! davit's own provisioner: volumes that are directories of the node where their first pod runs (spec storage.md 8).
//!
//! This controller makes and removes the objects; the agent of the node makes and removes the directory and says so by an
//! annotation of the volume. To all others it is an external provisioner, with capacities that the scheduler looks at,
//! and a resizer.

mod capacity;
mod class;
mod provision;
mod retire;

use davit_client::{EventRecorder, Informer, ObjectKey};
use davit_reconcile::{Informers, Spawner, cluster_key};
use davit_volume::binding::claim_ref;
use davit_volume::{local, provisioning};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use std::sync::Arc;

/// What the parts of the provisioner share.
struct Shared {
    client: kube::Client,
    informers: Informers,
    classes: Informer<StorageClass>,
    events: EventRecorder,
}

impl Shared {
    /// The volumes that a node keeps.
    fn kept_by(&self, node: &str) -> Vec<Arc<PersistentVolume>> {
        let mut kept = self.informers.volumes.list();
        kept.retain(|volume| {
            local::is_ours(volume) && local::is_kept_by(volume.metadata.labels.as_ref(), node)
        });
        kept
    }

    /// The node that keeps a volume.
    fn keeper(&self, volume: &PersistentVolume) -> Option<Arc<Node>> {
        let labels = volume.metadata.labels.as_ref();
        let keeps = |node: &Arc<Node>| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            local::is_kept_by(labels, name)
        };
        self.informers.nodes.list().into_iter().find(keeps)
    }
}

/// Starts the provisioner. Where `default_class` is set it makes the class that a cluster begins with.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, default_class: bool) {
    let Some(spawner) = &mut spawner.start("local-volume-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let shared = Arc::new(Shared {
        client: spawner.client.clone(),
        informers: informers.clone(),
        classes: spawner.informer(),
        events: spawner.events(local::PROVISIONER),
    });
    if default_class {
        let queue = spawner.controller(class::DefaultClass(shared.clone()));
        queue.add(cluster_key(local::CLASS));
    }
    let claims = spawner.controller(provision::Claims(shared.clone()));
    spawner.feed(
        &informers.claims,
        &claims,
        |claim: &PersistentVolumeClaim| vec![ObjectKey::of(claim)],
    );
    // What its node says of a volume is news for its claim.
    spawner.feed(&informers.volumes, &claims, |volume: &PersistentVolume| {
        let reference = local::made_bytes(volume).and_then(|_| claim_ref(volume));
        let key = reference.and_then(|claim| {
            Some(ObjectKey {
                namespace: claim.namespace.clone()?,
                name: claim.name.clone()?,
            })
        });
        key.into_iter().collect()
    });
    let retired = spawner.controller(retire::Volumes(shared.clone()));
    spawner.feed(&informers.volumes, &retired, |volume: &PersistentVolume| {
        let ours = local::is_ours(volume);
        ours.then(|| ObjectKey::of(volume)).into_iter().collect()
    });
    let capacities = capacity::Capacities::new(shared.clone(), spawner);
    let capacities = spawner.controller(capacities);
    let all = informers.nodes.clone();
    let keys = move || {
        all.list()
            .iter()
            .map(|node| ObjectKey::of(&**node))
            .collect()
    };
    let matters =
        |old: &Node, new: &Node| provisioning::storage_of(old) != provisioning::storage_of(new);
    spawner.feed_changes(&informers.nodes, &capacities, matters, |node: &Node| {
        vec![ObjectKey::of(node)]
    });
    spawner.feed(&shared.classes, &capacities, move |_: &StorageClass| keys());
    let of = shared.clone();
    spawner.feed(
        &informers.volumes,
        &capacities,
        move |volume: &PersistentVolume| {
            let node = local::is_ours(volume).then(|| of.keeper(volume)).flatten();
            node.iter().map(|node| ObjectKey::of(&**node)).collect()
        },
    );
}
