//! The requests to a driver's program on the node.
//!
//! What goes into them is copied: nothing that one pod adds is ever seen by another.

use crate::fs_group::FsGroup;
use crate::{Capabilities, CsiVolume, DriverSettings, LifecycleMode};
use davit_proto::csi::v1 as pb;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use std::collections::BTreeMap;

/// Texts by key, as drivers get them.
pub type Texts = BTreeMap<String, String>;

const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
const SERVICE_ACCOUNT: &str = "csi.storage.k8s.io/serviceAccount.name";
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// What NodeStageVolume is made of. Has no debug print: it holds secrets.
#[derive(Clone, Copy)]
pub struct StageVolume<'a> {
    /// The volume.
    pub volume: &'a CsiVolume,
    /// What the driver can do.
    pub capabilities: Capabilities,
    /// Where to stage it.
    pub staging_path: &'a str,
    /// `attachmentMetadata` of the VolumeAttachment; empty without one.
    pub publish_context: &'a Texts,
    /// Data of the volume's secret for staging.
    pub secrets: &'a Texts,
    /// Who gives the files to the pod's group.
    pub fs_group: FsGroup,
}

impl StageVolume<'_> {
    /// The request.
    pub fn request(self) -> pb::NodeStageVolumeRequest {
        pb::NodeStageVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: self.staging_path.to_owned(),
            volume_capability: Some(capability(self.volume, self.capabilities, self.fs_group)),
            secrets: self.secrets.clone(),
            volume_context: self.volume.attributes.clone(),
        }
    }
}

/// For whom a volume is published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodAttributes {
    /// Name of the pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// The service account it runs as.
    pub service_account: String,
}

/// What NodePublishVolume is made of. Has no debug print: it holds secrets.
#[derive(Clone, Copy)]
pub struct PublishVolume<'a> {
    /// The volume.
    pub volume: &'a CsiVolume,
    /// What the driver can do.
    pub capabilities: Capabilities,
    /// What the driver wants to be told.
    pub settings: &'a DriverSettings,
    /// For whom.
    pub pod: &'a PodAttributes,
    /// Tokens of the pod's service account by audience, one for each of the driver's token requests.
    pub tokens: &'a BTreeMap<String, TokenRequestStatus>,
    /// Where the volume is staged if the driver stages; of a device, always.
    pub staging_path: &'a str,
    /// Where to publish it.
    pub target_path: &'a str,
    /// `readOnly` of the claim in the pod; of in-line volumes their own field counts.
    pub read_only: bool,
    /// `attachmentMetadata` of the VolumeAttachment; empty without one.
    pub publish_context: &'a Texts,
    /// Data of the volume's secret for publishing.
    pub secrets: &'a Texts,
    /// Who gives the files to the pod's group.
    pub fs_group: FsGroup,
}

impl PublishVolume<'_> {
    /// The request.
    ///
    /// # Errors
    /// The tokens cannot be written down.
    pub fn request(self) -> Result<pb::NodePublishVolumeRequest, serde_json::Error> {
        let volume = self.volume;
        let ephemeral = volume.lifecycle == LifecycleMode::Ephemeral;
        let staged = volume.block || (self.capabilities.stage_unstage && !ephemeral);
        let mut context = volume.attributes.clone();
        if self.settings.pod_info_on_mount {
            context.extend(pod_info(self.pod, ephemeral));
        }
        let mut secrets = self.secrets.clone();
        // Devices get no tokens, as upstream has it.
        if !volume.block && !self.tokens.is_empty() {
            let into = if self.settings.tokens_in_secrets {
                &mut secrets
            } else {
                &mut context
            };
            into.insert(TOKENS.to_owned(), tokens(self.tokens)?);
        }
        let staging_path = if staged { self.staging_path } else { "" };
        Ok(pb::NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: self.publish_context.clone(),
            staging_target_path: staging_path.to_owned(),
            target_path: self.target_path.to_owned(),
            volume_capability: Some(capability(volume, self.capabilities, self.fs_group)),
            readonly: if ephemeral {
                volume.read_only
            } else {
                self.read_only
            },
            secrets,
            volume_context: context,
        })
    }
}

/// NodeExpandVolume to at least `required_bytes`. The path is the pod's mount, or the device.
pub fn expand(
    volume: &CsiVolume,
    capabilities: Capabilities,
    volume_path: &str,
    staging_path: &str,
    required_bytes: i64,
    secrets: &Texts,
) -> pb::NodeExpandVolumeRequest {
    let staging_path = if capabilities.stage_unstage {
        staging_path
    } else {
        ""
    };
    pb::NodeExpandVolumeRequest {
        volume_id: volume.handle.clone(),
        volume_path: volume_path.to_owned(),
        capacity_range: Some(pb::CapacityRange {
            required_bytes,
            limit_bytes: 0,
        }),
        staging_target_path: staging_path.to_owned(),
        volume_capability: Some(capability(volume, capabilities, FsGroup::Leave)),
        secrets: secrets.clone(),
    }
}

fn capability(
    volume: &CsiVolume,
    capabilities: Capabilities,
    fs_group: FsGroup,
) -> pb::VolumeCapability {
    let group = match fs_group {
        FsGroup::Driver(group) => Some(group),
        FsGroup::Agent(_) | FsGroup::Leave => None,
    };
    volume.capability(capabilities.single_node_multi_writer, group)
}

fn pod_info(pod: &PodAttributes, ephemeral: bool) -> [(String, String); 5] {
    [
        (POD_NAME, pod.name.clone()),
        (POD_NAMESPACE, pod.namespace.clone()),
        (POD_UID, pod.uid.clone()),
        (SERVICE_ACCOUNT, pod.service_account.clone()),
        (EPHEMERAL, ephemeral.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

/// A token in the words of its API, in the order in which Go writes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Token<'a> {
    token: &'a str,
    expiration_timestamp: Option<&'a Time>,
}

fn tokens(by_audience: &BTreeMap<String, TokenRequestStatus>) -> serde_json::Result<String> {
    let tokens: BTreeMap<&str, Token<'_>> = by_audience
        .iter()
        .map(|(audience, status)| {
            let token = Token {
                token: status.token.as_deref().unwrap_or_default(),
                expiration_timestamp: status.expiration_timestamp.as_ref(),
            };
            (audience.as_str(), token)
        })
        .collect();
    serde_json::to_string(&tokens)
}
