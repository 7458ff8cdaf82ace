//! What is asked of drivers and nodes: VolumeAttachments are made and deleted, and the external attacher's answer is
//! waited for. FlexVolume drivers are called here.

use super::actions::{NodeListing, VolumeOnNode};
use super::nodes::version_of;
use super::wanted::{AttachSource, CsiSource, FlexSource};
use davit_client::{Informer, message_of};
use davit_flexvolume::FlexDrivers;
use davit_volume::names::attachment_name;
use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use k8s_openapi::api::storage::v1::{
    VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a driver may take to attach or detach.
const DRIVER_DEADLINE: Duration = Duration::from_secs(120);

/// Why a volume was not attached or detached, in the words of events.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("kubernetes.io/csi: attacher.Attach failed: {}", message_of(.0))]
    Create(kube::Error),
    #[error("kubernetes.io/csi: detacher.Detach failed to delete VolumeAttachment [{name}]: {}", message_of(.source))]
    Delete { name: String, source: kube::Error },
    #[error("failed to get node: {}", message_of(.0))]
    Node(kube::Error),
    #[error(
        "timed out waiting for external-attacher of {driver} CSI driver to {what} volume {handle}"
    )]
    TimedOut {
        driver: String,
        what: &'static str,
        handle: String,
    },
    #[error("volume attachment is being deleted")]
    BeingDeleted,
    #[error("volume attachment has been deleted")]
    Deleted,
    /// The driver's own words.
    #[error("{0}")]
    Driver(String),
    /// A FlexVolume driver.
    #[error(transparent)]
    Flex(#[from] davit_flexvolume::Error),
    #[error("volume is still in use by node, according to Node status")]
    InUse,
    /// The operation did not end in an answer.
    #[error(transparent)]
    Unfinished(#[from] davit_reconcile::Error),
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The calls of the controller. Cheap to clone.
#[derive(Clone)]
pub(super) struct Operations {
    pub(super) client: kube::Client,
    pub(super) attachments: Informer<VolumeAttachment>,
    /// Told of every change of a VolumeAttachment.
    pub(super) changed: Arc<Notify>,
    pub(super) flex_drivers: Arc<FlexDrivers>,
}

impl Operations {
    /// Attaches a volume to a node; ends when the driver says that it has, or that it cannot. Answers its device, which may
    /// be empty.
    pub(super) async fn attach(
        &self,
        source: &AttachSource,
        node: &str,
    ) -> Result<String, AttachError> {
        match source {
            AttachSource::Csi(source) => {
                self.attach_csi(source, node).await?;
                Ok(String::new())
            }
            AttachSource::Flex(source) => {
                let driver = self.flex_drivers.get(&source.driver).await?;
                driver.get_volume_name(&source.options).await?;
                let device = driver.attach(&source.options, node).await?;
                Ok(device.unwrap_or_default())
            }
        }
    }

    /// Whether the driver says that the volume is attached; one that does not tell is believed.
    pub(super) async fn is_attached(
        &self,
        source: &FlexSource,
        node: &str,
    ) -> Result<bool, AttachError> {
        let driver = self.flex_drivers.get(&source.driver).await?;
        let attached = driver.is_attached(&source.options, node).await?;
        Ok(attached.unwrap_or(true))
    }

    async fn attach_csi(&self, source: &CsiSource, node: &str) -> Result<(), AttachError> {
        let name = attachment_name(&source.handle, &source.driver, node);
        let mut seen = self.attachments.get(None, &name).is_some();
        if !seen {
            self.create(&name, source, node).await?;
        }
        let look = || match self.attachments.get(None, &name) {
            None if seen => Some(Err(AttachError::Deleted)),
            None => None,
            Some(attachment) => {
                seen = true;
                attach_answer(&attachment)
            }
        };
        let answer = self.wait(look).await;
        answer.unwrap_or_else(|| Err(timed_out(source, "attach")))
    }

    async fn create(&self, name: &str, source: &CsiSource, node: &str) -> Result<(), AttachError> {
        let mut attachment = VolumeAttachment {
            spec: VolumeAttachmentSpec {
                attacher: source.driver.clone(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(source.persistent_volume.clone()),
                    inline_volume_spec: None,
                },
            },
            ..VolumeAttachment::default()
        };
        attachment.metadata.name = Some(name.to_owned());
        let api: kube::Api<VolumeAttachment> = kube::Api::all(self.client.clone());
        match api.create(&PostParams::default(), &attachment).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(AttachError::Create(error)),
        }
    }

    /// Detaches a volume from a node; `ask_node` looks once more whether the node uses it.
    pub(super) async fn detach(
        &self,
        at: &VolumeOnNode,
        source: &AttachSource,
        ask_node: bool,
    ) -> Result<(), AttachError> {
        if ask_node && self.is_in_use(at).await? {
            return Err(AttachError::InUse);
        }
        match source {
            AttachSource::Csi(source) => self.detach_csi(at, source).await,
            AttachSource::Flex(source) => {
                let driver = self.flex_drivers.get(&source.driver).await?;
                driver.detach(&source.volume, &at.node).await?;
                Ok(())
            }
        }
    }

    async fn detach_csi(&self, at: &VolumeOnNode, source: &CsiSource) -> Result<(), AttachError> {
        let name = attachment_name(&source.handle, &source.driver, &at.node);
        let api: kube::Api<VolumeAttachment> = kube::Api::all(self.client.clone());
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(source) => return Err(AttachError::Delete { name, source }),
        }
        let look = || match self.attachments.get(None, &name) {
            None => Some(Ok(())),
            Some(attachment) => {
                let status = attachment.status.as_ref();
                let error = status.and_then(|s| s.detach_error.as_ref())?;
                let message = error.message.clone().unwrap_or_default();
                Some(Err(AttachError::Driver(message)))
            }
        };
        let answer = self.wait(look).await;
        answer.unwrap_or_else(|| Err(timed_out(source, "detach")))
    }

    /// Whether the node, asked now, uses the volume. One that is gone uses nothing.
    async fn is_in_use(&self, at: &VolumeOnNode) -> Result<bool, AttachError> {
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        match api.get(&at.node).await {
            Ok(node) => {
                let in_use = node.status.iter().flat_map(|s| &s.volumes_in_use);
                Ok(in_use.flatten().any(|volume| *volume == at.volume))
            }
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(AttachError::Node(error)),
        }
    }

    /// Writes which volumes are attached to a node.
    pub(super) async fn list(
        &self,
        node: &str,
        volumes: BTreeMap<String, String>,
    ) -> Result<NodeListing, AttachError> {
        let attached = volumes.iter().map(|(name, path)| AttachedVolume {
            name: name.clone(),
            device_path: path.clone(),
        });
        let attached: Vec<AttachedVolume> = attached.collect();
        let attached = (!attached.is_empty()).then_some(attached);
        let patch = Patch::Merge(json!({ "status": { "volumesAttached": attached } }));
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        match api
            .patch_status(node, &PatchParams::default(), &patch)
            .await
        {
            Ok(written) => Ok(NodeListing {
                volumes,
                version: version_of(&written),
            }),
            // there is no status to be wrong
            Err(error) if is_gone(&error) => Ok(NodeListing {
                volumes,
                version: 0,
            }),
            Err(error) => Err(AttachError::Node(error)),
        }
    }

    /// Looks at every change of a VolumeAttachment until there is an answer; `None` when that takes too long.
    async fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + DRIVER_DEADLINE;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // from here on no change is missed
            changed.as_mut().enable();
            if let Some(answer) = look() {
                return Some(answer);
            }
            tokio::time::timeout_at(deadline, changed).await.ok()?;
        }
    }
}

fn attach_answer(attachment: &VolumeAttachment) -> Option<Result<(), AttachError>> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Some(Err(AttachError::BeingDeleted));
    }
    let status = attachment.status.as_ref()?;
    if status.attached {
        return Some(Ok(()));
    }
    let error = status.attach_error.as_ref()?;
    let message = error.message.clone().unwrap_or_default();
    Some(Err(AttachError::Driver(message)))
}

fn timed_out(source: &CsiSource, what: &'static str) -> AttachError {
    AttachError::TimedOut {
        driver: source.driver.clone(),
        what,
        handle: source.handle.clone(),
    }
}
