//! Why volumes are not ready.

use std::io;

/// Why a volume of a pod is not ready.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be mounted.
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {cause}")]
    SetUp {
        /// Name of the persistent volume, or of the volume in the pod.
        volume: String,
        /// What failed.
        cause: Cause,
    },
    /// A device of it cannot be given to the pod.
    #[error("MapVolume.SetUpDevice failed for volume \"{volume}\" : {cause}")]
    Map {
        /// Name of the persistent volume.
        volume: String,
        /// What failed.
        cause: Cause,
    },
    /// What it has on this node does not grow with it.
    #[error("MountVolume.NodeExpandVolume failed for volume \"{volume}\" : {cause}")]
    Expand {
        /// Name of the persistent volume.
        volume: String,
        /// What failed.
        cause: Box<Cause>,
    },
    /// The volume is not to be had on this node.
    #[error(
        "MountVolume.NodeAffinity check failed for volume \"{volume}\" : no matching NodeSelectorTerms"
    )]
    Affinity {
        /// Name of the persistent volume.
        volume: String,
    },
    /// It is not known what to mount.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[{volume}]: {cause}",
        .unmounted.join(" ")
    )]
    Unprocessed {
        /// Name of the volume in the pod.
        volume: String,
        /// All volumes of the pod that are not mounted.
        unmounted: Vec<String>,
        /// What failed.
        cause: Cause,
    },
}

impl Error {
    /// The CSI driver that takes no more volumes on this node, if that is it.
    pub fn full_driver(&self) -> Option<&str> {
        match self {
            Self::SetUp { cause, .. } | Self::Map { cause, .. } => match cause {
                Cause::AttachLimit { driver, .. } => Some(driver),
                _ => None,
            },
            _ => None,
        }
    }

    /// The reason of the event that tells it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SetUp { .. }
            | Self::Expand { .. }
            | Self::Affinity { .. }
            | Self::Unprocessed { .. } => "FailedMount",
            Self::Map { .. } => "FailedMapVolume",
        }
    }
}

/// What failed about one volume.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// An object that is not optional does not exist.
    #[error("{kind} \"{name}\" not found")]
    Missing {
        /// `configmap`, `secret` or `clustertrustbundle`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object lacks a key that is asked for.
    #[error("references non-existent {kind} key: {key}")]
    MissingKey {
        /// `config` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// Files that come to more than a volume takes.
    #[error("the volume's files are more than {files}, or more than {mebibytes} MiB together")]
    TooMuch {
        /// How many there may be.
        files: usize,
        /// How large they may be.
        mebibytes: usize,
    },
    /// Volumes, of objects and fields, that come to more than a pod takes.
    #[error("the objects and files of the pod's volumes are more than {0} MiB together")]
    TooMuchOfPod(usize),
    /// More tokens than a pod has.
    #[error("the pod's volumes want more than {0} different tokens of its service account")]
    TooManyTokens(usize),
    /// Trust bundles that cannot be used.
    #[error(transparent)]
    TrustBundle(#[from] super::trust_bundle::Error),
    /// What is at a hostPath is not what the pod says.
    #[error("hostPath type check failed: {path} is not a {expected}")]
    HostPathType {
        /// The path.
        path: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Reading an object failed.
    #[error(transparent)]
    Object(#[from] davit_pods::objects::Error),
    /// A field of the downward API.
    #[error(transparent)]
    Field(#[from] davit_pods::env::Error),
    /// Files or mounts.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// What is said about the claim or the volume does not allow to use it.
    #[error("{0}")]
    Claim(String),
    /// A CSI driver.
    #[error(transparent)]
    Csi(#[from] davit_csi::Error),
    /// A FlexVolume driver.
    #[error(transparent)]
    Flex(#[from] davit_flexvolume::Error),
    /// A device, or the file system on it.
    #[error(transparent)]
    Device(#[from] super::device_mount::DeviceError),
    /// A program of the host that mounts.
    #[error(transparent)]
    Helper(#[from] super::helper::HelperError),
    /// The node takes no more volumes of this driver.
    #[error("{message}")]
    AttachLimit {
        /// The CSI driver.
        driver: String,
        /// What the attacher said.
        message: String,
    },
    /// The node's part in growing the volume.
    #[error(transparent)]
    Expand(Box<Cause>),
    /// Nobody here can grow what the volume is on this node.
    #[error("{0}")]
    CannotExpand(String),
    /// A kind of volume that this node cannot mount.
    #[error("volumes of kind {0} are not built into this node")]
    NotBuilt(&'static str),
}

pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Cause {
    move |source| Cause::Io { what, source }
}
