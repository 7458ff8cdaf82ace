//! A CSI volume as a PersistentVolume or a pod describes it.

use crate::names;
use crate::secrets::SecretName;
use davit_proto::csi::v1::VolumeCapability;
use davit_proto::csi::v1::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume, SecretReference};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Whether a volume outlives its pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LifecycleMode {
    /// A PersistentVolume.
    #[default]
    Persistent,
    /// An in-line volume of a pod, made with it and gone with it.
    Ephemeral,
}

impl fmt::Display for LifecycleMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        })
    }
}

/// What requests about a volume are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsiVolume {
    /// Name of the PersistentVolume; of an in-line volume, its name in the pod. Directories are called so.
    pub name: String,
    /// The driver's name.
    pub driver: String,
    /// How the driver calls the volume.
    pub handle: String,
    /// Whether it outlives its pods.
    pub lifecycle: LifecycleMode,
    /// Empty: the driver chooses.
    pub fs_type: String,
    /// For the driver.
    pub attributes: BTreeMap<String, String>,
    /// The first one counts; none is ReadWriteOnce.
    pub access_modes: Vec<String>,
    /// Options of the mount, such as `noatime`.
    pub mount_options: Vec<String>,
    /// A device instead of a file system.
    pub block: bool,
    /// Of an in-line volume: it cannot be written. Of a PersistentVolume this stands in the pod.
    pub read_only: bool,
    /// The secret of NodeStageVolume.
    pub stage_secret: Option<SecretName>,
    /// The secret of NodePublishVolume.
    pub publish_secret: Option<SecretName>,
    /// The secret of NodeExpandVolume.
    pub expand_secret: Option<SecretName>,
}

impl CsiVolume {
    /// A PersistentVolume; nothing if it is no CSI volume.
    pub fn persistent(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let source = spec.csi.as_ref()?;
        let secret = |reference: &Option<SecretReference>| {
            let reference = reference.as_ref()?;
            Some(SecretName {
                namespace: reference.namespace.clone().unwrap_or_default(),
                name: reference.name.clone().unwrap_or_default(),
            })
        };
        Some(Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            lifecycle: LifecycleMode::Persistent,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            read_only: false,
            stage_secret: secret(&source.node_stage_secret_ref),
            publish_secret: secret(&source.node_publish_secret_ref),
            expand_secret: secret(&source.node_expand_secret_ref),
        })
    }

    /// An in-line volume of a pod.
    pub fn inline(
        source: &CSIVolumeSource,
        name: &str,
        pod_namespace: &str,
        pod_uid: &str,
    ) -> Self {
        let secret = source.node_publish_secret_ref.as_ref();
        Self {
            name: name.to_owned(),
            driver: source.driver.clone(),
            handle: names::inline_handle(pod_uid, name),
            lifecycle: LifecycleMode::Ephemeral,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            read_only: source.read_only.unwrap_or(false),
            publish_secret: secret.map(|reference| SecretName {
                namespace: pod_namespace.to_owned(),
                name: reference.name.clone(),
            }),
            ..Self::default()
        }
    }

    /// How the driver is told the volume is used; `group` is for drivers with VOLUME_MOUNT_GROUP.
    pub(crate) fn capability(
        &self,
        single_node_multi_writer: bool,
        group: Option<i64>,
    ) -> VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|g| g.to_string()).unwrap_or_default(),
            })
        };
        let first = self.access_modes.first().map(String::as_str);
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode {
                mode: mode(first.unwrap_or("ReadWriteOnce"), single_node_multi_writer).into(),
            }),
        }
    }
}

/// The mode of CSI for one of Kubernetes. Drivers that do not tell workloads of a node apart know one mode for a single
/// node.
fn mode(access: &str, single_node_multi_writer: bool) -> Mode {
    match (access, single_node_multi_writer) {
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}
