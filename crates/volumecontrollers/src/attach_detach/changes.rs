//! What the controller hears of: changes of six kinds as one sequence.

use davit_client::{Change, Subscription};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use std::sync::Arc;

/// Changes of all kinds that matter.
pub(super) struct AttachChanges {
    pub(super) pods: Subscription<Pod>,
    pub(super) nodes: Subscription<Node>,
    pub(super) claims: Subscription<PersistentVolumeClaim>,
    pub(super) volumes: Subscription<PersistentVolume>,
    pub(super) drivers: Subscription<CSIDriver>,
    pub(super) attachments: Subscription<VolumeAttachment>,
}

/// One of them.
pub(super) enum AttachChange {
    Pod(Change<Pod>),
    Node(Change<Node>),
    Claim(Change<PersistentVolumeClaim>),
    Volume(Change<PersistentVolume>),
    /// Some driver's description.
    Driver,
    /// Some attachment.
    Attachment,
}

impl AttachChanges {
    /// The next change if there is one now; nodes go first.
    pub(super) fn try_next(&mut self) -> Option<AttachChange> {
        let node = self.nodes.try_next().map(AttachChange::Node);
        node.or_else(|| self.pods.try_next().map(AttachChange::Pod))
            .or_else(|| self.claims.try_next().map(AttachChange::Claim))
            .or_else(|| self.volumes.try_next().map(AttachChange::Volume))
            .or_else(|| self.drivers.try_next().map(|_| AttachChange::Driver))
            .or_else(|| {
                self.attachments
                    .try_next()
                    .map(|_| AttachChange::Attachment)
            })
    }

    /// Waits for a change.
    pub(super) async fn next(&mut self) -> AttachChange {
        tokio::select! {
            Some(change) = self.nodes.next() => AttachChange::Node(change),
            Some(change) = self.pods.next() => AttachChange::Pod(change),
            Some(change) = self.claims.next() => AttachChange::Claim(change),
            Some(change) = self.volumes.next() => AttachChange::Volume(change),
            Some(_) = self.drivers.next() => AttachChange::Driver,
            Some(_) = self.attachments.next() => AttachChange::Attachment,
            else => std::future::pending().await,
        }
    }
}

/// The object of a change, as it was and as it is.
pub(super) fn states<K>(change: Change<K>) -> impl Iterator<Item = Arc<K>> {
    let (old, new) = match change {
        Change::Synced => (None, None),
        Change::Deleted(last) => (Some(last), None),
        Change::Applied { old, new } => (old, Some(new)),
    };
    old.into_iter().chain(new)
}
