//! What the informers report of storage.

use std::sync::Arc;

use davit_client::{Change, Subscription};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::watch_all;
use crate::framework::{Action, ClusterEvent, EventObject, EventResource};
use davit_volumecache::{StorageKind, VolumeCache};

/// Changes of the kinds of storage.
pub(super) struct StorageChanges {
    claims: Subscription<PersistentVolumeClaim>,
    volumes: Subscription<PersistentVolume>,
    classes: Subscription<StorageClass>,
    csi_nodes: Subscription<CSINode>,
    drivers: Subscription<CSIDriver>,
    capacities: Subscription<CSIStorageCapacity>,
    attachments: Subscription<VolumeAttachment>,
}

/// One of them.
pub(super) enum StorageChange {
    Claim(Change<PersistentVolumeClaim>),
    Volume(Change<PersistentVolume>),
    Class(Change<StorageClass>),
    CsiNode(Change<CSINode>),
    Driver(Change<CSIDriver>),
    Capacity(Change<CSIStorageCapacity>),
    Attachment(Change<VolumeAttachment>),
}

impl StorageChanges {
    pub(super) fn spawn(
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> Self {
        Self {
            claims: watch_all(client, tasks, stop).subscribe(),
            volumes: watch_all(client, tasks, stop).subscribe(),
            classes: watch_all(client, tasks, stop).subscribe(),
            csi_nodes: watch_all(client, tasks, stop).subscribe(),
            drivers: watch_all(client, tasks, stop).subscribe(),
            capacities: watch_all(client, tasks, stop).subscribe(),
            attachments: watch_all(client, tasks, stop).subscribe(),
        }
    }

    /// The next change if there is one now.
    pub(super) fn try_next(&mut self) -> Option<StorageChange> {
        let class = self.classes.try_next().map(StorageChange::Class);
        class
            .or_else(|| self.drivers.try_next().map(StorageChange::Driver))
            .or_else(|| self.csi_nodes.try_next().map(StorageChange::CsiNode))
            .or_else(|| self.capacities.try_next().map(StorageChange::Capacity))
            .or_else(|| self.attachments.try_next().map(StorageChange::Attachment))
            .or_else(|| self.volumes.try_next().map(StorageChange::Volume))
            .or_else(|| self.claims.try_next().map(StorageChange::Claim))
    }

    /// Waits for a change.
    pub(super) async fn next(&mut self) -> StorageChange {
        tokio::select! {
            Some(change) = self.classes.next() => StorageChange::Class(change),
            Some(change) = self.drivers.next() => StorageChange::Driver(change),
            Some(change) = self.csi_nodes.next() => StorageChange::CsiNode(change),
            Some(change) = self.capacities.next() => StorageChange::Capacity(change),
            Some(change) = self.attachments.next() => StorageChange::Attachment(change),
            Some(change) = self.volumes.next() => StorageChange::Volume(change),
            Some(change) = self.claims.next() => StorageChange::Claim(change),
            else => std::future::pending().await,
        }
    }
}

/// Takes over an object as it is, or its end.
type Enter<K> = fn(&VolumeCache, Option<&Arc<K>>, Option<Arc<K>>);

/// How changes of a kind are taken in.
struct Intake<K> {
    what: StorageKind,
    resource: EventResource,
    label: &'static str,
    set: Enter<K>,
    object: fn(Option<Arc<K>>, Option<Arc<K>>) -> EventObject,
}

impl StorageChange {
    pub(super) fn apply(self, engine: &mut Engine) {
        match self {
            Self::Claim(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Claims,
                    resource: EventResource::PersistentVolumeClaim,
                    label: "PersistentVolumeClaimChange",
                    set: VolumeCache::set_claim,
                    object: |old, new| EventObject::VolumeClaim { old, new },
                },
            ),
            Self::Volume(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Volumes,
                    resource: EventResource::PersistentVolume,
                    label: "PersistentVolumeChange",
                    set: VolumeCache::set_volume,
                    object: |old, new| EventObject::Volume { old, new },
                },
            ),
            Self::Class(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Classes,
                    resource: EventResource::StorageClass,
                    label: "StorageClassChange",
                    set: VolumeCache::set_class,
                    object: |old, new| EventObject::StorageClass { old, new },
                },
            ),
            Self::CsiNode(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::CsiNodes,
                    resource: EventResource::CsiNode,
                    label: "CSINodeChange",
                    set: VolumeCache::set_csi_node,
                    object: |old, new| EventObject::CsiNode { old, new },
                },
            ),
            Self::Driver(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Drivers,
                    resource: EventResource::CsiDriver,
                    label: "CSIDriverChange",
                    set: VolumeCache::set_driver,
                    object: |old, new| EventObject::CsiDriver { old, new },
                },
            ),
            Self::Capacity(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Capacities,
                    resource: EventResource::CsiStorageCapacity,
                    label: "CSIStorageCapacityChange",
                    set: VolumeCache::set_capacity,
                    object: |old, new| EventObject::CsiStorageCapacity { old, new },
                },
            ),
            Self::Attachment(change) => engine.storage(
                change,
                &Intake {
                    what: StorageKind::Attachments,
                    resource: EventResource::VolumeAttachment,
                    label: "VolumeAttachmentChange",
                    set: VolumeCache::set_attachment,
                    object: |old, new| EventObject::VolumeAttachment { old, new },
                },
            ),
        }
    }
}

impl Engine {
    fn storage<K>(&mut self, change: Change<K>, intake: &Intake<K>) {
        let (old, new, action) = match change {
            Change::Synced => return self.storage_synced(intake.what),
            Change::Applied { old: None, new } => (None, Some(new), Action::ADD),
            Change::Applied { old, new } => (old, Some(new), Action::UPDATE_OTHER),
            Change::Deleted(last) => (Some(last), None, Action::DELETE),
        };
        (intake.set)(&self.volumes, old.as_ref(), new.clone());
        let event = ClusterEvent::new(intake.resource, action);
        self.event(intake.label, event, &(intake.object)(old, new));
    }

    /// Pods that waited until all storage is known may go on, if it is.
    fn storage_synced(&mut self, what: StorageKind) {
        self.volumes.synced(what);
        if self.volumes.is_synced() {
            let event = ClusterEvent::new(EventResource::PersistentVolumeClaim, Action::ADD);
            self.event("StorageSynced", event, &EventObject::Other);
        }
    }
}
