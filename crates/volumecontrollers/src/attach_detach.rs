//! Volumes of CSI and FlexVolume drivers are attached to the nodes whose pods need them, and detached when these let go of
//! them.
//!
//! An attachment of a CSI volume is a VolumeAttachment object, which the driver's external attacher answers; FlexVolume
//! drivers are executables that are called here. [`wanted`] says what pods
//! need, [`state`] decides, [`operations`] asks drivers and nodes; this file connects the three with the informers.

mod actions;
mod changes;
mod flex;
mod nodes;
mod objects;
mod operations;
mod state;
mod wanted;

#[cfg(test)]
mod tests;

use actions::{AttachAction, DetachResult, NodeListing, VolumeOnNode};
use changes::{AttachChange, AttachChanges, states};
use davit_client::{Change, EventRecorder, Informer, ObjectKey};
use davit_flexvolume::FlexDrivers;
use davit_reconcile::pods::node_of;
use davit_reconcile::{Informers, Spawner, attempt};
use davit_volume::binding::claim_ref;
use davit_volume::names::{attachment_name, split_csi_volume_name};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use nodes::{facts_of, is_managed};
use objects::StorageInformers;
use operations::{AttachError, Operations};
use state::AttachState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use wanted::{AttachSource, CsiSource, StorageObjects, wanted_volumes};

/// Changes are gathered for this long before they are acted on.
const GATHERING: Duration = Duration::from_millis(100);
/// How often attachments are compared with what drivers say.
const VERIFY_PERIOD: Duration = Duration::from_secs(60);
/// How long one operation may take; longer than any answer is waited for.
const OPERATION_DEADLINE: Duration = Duration::from_secs(150);
/// How long the kinds that only this controller watches may take to be listed before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);

/// Starts the controller.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, flex_drivers: Arc<FlexDrivers>) {
    let Some(spawner) = &mut spawner.start("persistentvolume-attach-detach-controller") else {
        return;
    };
    let client = spawner.client.clone();
    let attachments: Informer<VolumeAttachment> = spawner.informer();
    let drivers: Informer<CSIDriver> = spawner.informer();
    let events = spawner.events("attachdetach-controller");
    let controller = AttachDetach::new(
        client,
        spawner.informers.clone(),
        attachments,
        drivers,
        flex_drivers,
        events,
    );
    spawner.task(TASK, controller.run());
}

/// The name in logs.
const TASK: &str = "attach-detach";

struct AttachDetach {
    objects: StorageInformers,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    attachments: Informer<VolumeAttachment>,
    events: EventRecorder,
    operations: Operations,
    running: JoinSet<EndedOperation>,
    state: AttachState,
    /// Nodes whose pods are to be looked at.
    dirty: BTreeSet<String>,
    /// Nodes that this controller attaches for.
    managed: BTreeSet<String>,
    /// The nodes whose pods name a claim.
    by_claim: HashMap<ObjectKey, BTreeSet<String>>,
    /// The claims that the pods of a node name.
    claims: HashMap<String, BTreeSet<ObjectKey>>,
    probes: flex::FlexProbes,
}

/// An operation that has ended.
enum EndedOperation {
    Attach {
        at: VolumeOnNode,
        volume: String,
        result: Result<String, AttachError>,
    },
    Detach {
        at: VolumeOnNode,
        result: Result<(), AttachError>,
    },
    List {
        node: String,
        result: Result<NodeListing, AttachError>,
    },
    Verify {
        at: VolumeOnNode,
        result: Result<bool, AttachError>,
    },
    Probe {
        driver: String,
        /// Whether it attaches.
        result: Result<bool, AttachError>,
    },
}

impl AttachDetach {
    fn new(
        client: kube::Client,
        informers: Informers,
        attachments: Informer<VolumeAttachment>,
        drivers: Informer<CSIDriver>,
        flex_drivers: Arc<FlexDrivers>,
        events: EventRecorder,
    ) -> Self {
        Self {
            objects: StorageInformers {
                claims: informers.claims,
                volumes: informers.volumes,
                drivers,
                flex_drivers: BTreeMap::new(),
            },
            nodes: informers.nodes,
            pods: informers.pods,
            operations: Operations {
                client,
                attachments: attachments.clone(),
                changed: Arc::new(Notify::new()),
                flex_drivers,
            },
            attachments,
            events,
            running: JoinSet::new(),
            state: AttachState::default(),
            dirty: BTreeSet::new(),
            managed: BTreeSet::new(),
            by_claim: HashMap::new(),
            claims: HashMap::new(),
            probes: flex::FlexProbes::default(),
        }
    }

    async fn run(mut self) {
        while let Err(error) = tokio::try_join!(
            self.attachments.wait_synced(SYNC_WARNING),
            self.objects.drivers.wait_synced(SYNC_WARNING),
        ) {
            tracing::warn!(%error, "attaching waits for the API server");
        }
        let mut changes = AttachChanges {
            pods: self.pods.subscribe(),
            nodes: self.nodes.subscribe(),
            claims: self.objects.claims.subscribe(),
            volumes: self.objects.volumes.subscribe(),
            drivers: self.objects.drivers.subscribe(),
            attachments: self.attachments.subscribe(),
        };
        self.restore();
        let mut next_verification = Instant::now() + VERIFY_PERIOD;
        loop {
            // Nothing is decided before all that is known has been looked at: a volume whose pod was not seen yet would
            // be detached.
            while let Some(change) = changes.try_next() {
                self.note(change);
            }
            self.look_at_nodes();
            let now = Instant::now();
            let next_probe = self.probe(now);
            if now >= next_verification {
                self.verify();
                next_verification = now + VERIFY_PERIOD;
            }
            for action in self.state.next_actions(now) {
                self.start(action);
            }
            let due = self.state.next_due(now);
            let times = due.into_iter().chain(next_probe);
            let due = times.fold(next_verification, Instant::min);
            tokio::select! {
                change = changes.next() => self.note(change),
                Some(Ok(ended)) = self.running.join_next() => self.end(ended),
                () = tokio::time::sleep_until(due) => {}
            }
            tokio::time::sleep(GATHERING).await;
            while let Some(Ok(ended)) = self.running.try_join_next() {
                self.end(ended);
            }
        }
    }

    /// Takes over what an earlier run attached: what nodes list is attached, what there is a VolumeAttachment for may be.
    fn restore(&mut self) {
        for node in self.nodes.list() {
            self.set_node(&node);
            let name = node.metadata.name.as_deref().unwrap_or_default();
            if !self.managed.contains(name) {
                continue;
            }
            for volume in facts_of(&node).listing.volumes.into_keys() {
                let Some((driver, handle)) = split_csi_volume_name(&volume) else {
                    continue;
                };
                let source = CsiSource {
                    persistent_volume: String::new(),
                    driver: driver.to_owned(),
                    handle: handle.to_owned(),
                    exclusive: false,
                };
                let (node, source) = (name.to_owned(), AttachSource::Csi(source));
                self.state
                    .restore(VolumeOnNode { volume, node }, source, true);
            }
        }
        for attachment in self.attachments.list() {
            let spec = &attachment.spec;
            let volume = spec.source.persistent_volume_name.as_deref();
            let volume = volume.and_then(|name| self.objects.volume(name));
            let Some(source) = volume.as_deref().and_then(CsiSource::of) else {
                let name = attachment.metadata.name.as_deref();
                tracing::warn!(name, "VolumeAttachment without a CSI volume left alone");
                continue;
            };
            let node = spec.node_name.clone();
            if self.nodes.get(None, &node).is_some() && !self.managed.contains(&node) {
                continue;
            }
            let source = AttachSource::Csi(source);
            let volume = source.name();
            self.state
                .restore(VolumeOnNode { volume, node }, source, false);
        }
    }

    /// Notes which nodes a change concerns.
    fn note(&mut self, change: AttachChange) {
        match change {
            AttachChange::Node(Change::Deleted(node)) => {
                let name = node.metadata.name.clone().unwrap_or_default();
                self.state.remove_node(&name);
                self.dirty.insert(name);
            }
            AttachChange::Node(Change::Applied { new, .. }) => self.set_node(&new),
            AttachChange::Node(Change::Synced) => {}
            AttachChange::Pod(change) => {
                for pod in states(change) {
                    self.dirty.extend(node_of(&pod).map(str::to_owned));
                }
            }
            AttachChange::Claim(change) => {
                for claim in states(change) {
                    self.note_claim(&ObjectKey::of(&*claim));
                }
            }
            AttachChange::Volume(change) => {
                for volume in states(change) {
                    if let Some(claim) = claim_ref(&volume) {
                        let namespace = claim.namespace.clone().unwrap_or_default();
                        let name = claim.name.clone().unwrap_or_default();
                        self.note_claim(&ObjectKey { namespace, name });
                    }
                }
            }
            AttachChange::Driver => self.dirty.extend(self.claims.keys().cloned()),
            AttachChange::Attachment => self.operations.changed.notify_waiters(),
        }
    }

    fn note_claim(&mut self, claim: &ObjectKey) {
        let nodes = self.by_claim.get(claim).into_iter().flatten();
        self.dirty.extend(nodes.cloned());
    }

    fn set_node(&mut self, node: &Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if is_managed(node) && self.managed.insert(name.clone()) {
            self.dirty.insert(name.clone());
        }
        if self.managed.contains(&name) {
            self.state.set_node(&name, facts_of(node));
        }
    }

    /// Finds out what the pods of changed nodes need.
    fn look_at_nodes(&mut self) {
        for node in std::mem::take(&mut self.dirty) {
            let gone = self.nodes.get(None, &node).is_none();
            let pods = self.pods.list_indexed(&node);
            if gone && pods.is_empty() && !self.state.has_volumes(&node) {
                self.managed.remove(&node);
            }
            let managed = self.managed.contains(&node);
            let pods = if managed { &*pods } else { &[] };
            let wanted = wanted_volumes(pods, &self.objects);
            self.index(&node, wanted.claims);
            self.probes.set(&node, wanted.flex_drivers);
            self.state.set_wanted(&node, wanted.volumes);
        }
    }

    /// Enters which claims the pods of a node name.
    fn index(&mut self, node: &str, claims: BTreeSet<ObjectKey>) {
        for claim in self.claims.remove(node).into_iter().flatten() {
            if let Some(nodes) = self.by_claim.get_mut(&claim) {
                nodes.remove(node);
                if nodes.is_empty() {
                    self.by_claim.remove(&claim);
                }
            }
        }
        for claim in &claims {
            let nodes = self.by_claim.entry(claim.clone()).or_default();
            nodes.insert(node.to_owned());
        }
        if !claims.is_empty() {
            self.claims.insert(node.to_owned(), claims);
        }
    }

    /// Finds attachments that somebody else has taken away.
    fn verify(&mut self) {
        let is_lost = |(at, source): &(&VolumeOnNode, &AttachSource)| {
            let AttachSource::Csi(source) = source else {
                return false;
            };
            let name = attachment_name(&source.handle, &source.driver, &at.node);
            let attachment = self.attachments.get(None, &name);
            let attached = attachment.and_then(|a| Some(a.status.as_ref()?.attached));
            attached != Some(true) && self.objects.is_attachable(&source.driver)
        };
        let lost = self.state.settled().filter(is_lost);
        let lost: Vec<VolumeOnNode> = lost.map(|(at, _)| at.clone()).collect();
        for at in lost {
            tracing::warn!(volume = at.volume, node = at.node, "no longer attached");
            self.state.lost(&at);
        }
        self.verify_flex();
    }

    /// Starts an operation, or tells of what was found.
    fn start(&mut self, action: AttachAction) {
        let operations = self.operations.clone();
        match action {
            AttachAction::Warn { pod, text } => {
                self.events.warning(&pod, "FailedAttachVolume", text);
            }
            AttachAction::Attach { at, source } => {
                self.running.spawn(async move {
                    let work = async { Ok(operations.attach(&source, &at.node).await) };
                    let ended = attempt(OPERATION_DEADLINE, TASK, &at, work).await;
                    let result = ended.map_err(AttachError::from).flatten();
                    let volume = source.volume().to_owned();
                    EndedOperation::Attach { at, volume, result }
                });
            }
            AttachAction::Detach { at, source, force } => {
                if let Some(reason) = force {
                    tracing::warn!(
                        volume = at.volume,
                        node = at.node,
                        ?reason,
                        "volume is detached by force"
                    );
                }
                self.running.spawn(async move {
                    let work = async { Ok(operations.detach(&at, &source, force.is_none()).await) };
                    let ended = attempt(OPERATION_DEADLINE, TASK, &at, work).await;
                    let result = ended.map_err(AttachError::from).flatten();
                    EndedOperation::Detach { at, result }
                });
            }
            AttachAction::List { node, volumes } => {
                self.running.spawn(async move {
                    let work = async { Ok(operations.list(&node, volumes).await) };
                    let ended = attempt(OPERATION_DEADLINE, TASK, &node, work).await;
                    let result = ended.map_err(AttachError::from).flatten();
                    EndedOperation::List { node, result }
                });
            }
        }
    }

    /// Takes in what became of an operation.
    fn end(&mut self, ended: EndedOperation) {
        let now = Instant::now();
        match ended {
            EndedOperation::Attach { at, volume, result } => {
                let device = result.as_ref().ok().map(String::as_str);
                self.state.attached(&at, device, now);
                for pod in self.state.pods(&at) {
                    let about = format!("for volume \"{volume}\" ");
                    match &result {
                        Ok(_) => {
                            let text = format!("AttachVolume.Attach succeeded {about}");
                            self.events.normal(pod, "SuccessfulAttachVolume", text);
                        }
                        Err(error) => {
                            let text = format!("AttachVolume.Attach failed {about}: {error}");
                            self.events.warning(pod, "FailedAttachVolume", text);
                        }
                    }
                }
            }
            EndedOperation::Detach { at, result } => {
                let result = match result {
                    Ok(()) => DetachResult::Detached,
                    Err(error) => {
                        tracing::warn!(volume = at.volume, node = at.node, %error, "not detached");
                        if matches!(error, AttachError::InUse) {
                            DetachResult::InUse
                        } else {
                            DetachResult::Failed
                        }
                    }
                };
                self.state.detached(&at, result, now);
            }
            EndedOperation::List { node, result } => {
                if let Err(error) = &result {
                    tracing::warn!(node, %error, "attached volumes not reported");
                }
                self.state.listed(&node, result.ok(), now);
            }
            EndedOperation::Verify { at, result } => self.end_verification(&at, result),
            EndedOperation::Probe { driver, result } => self.end_probe(&driver, result),
        }
    }
}
