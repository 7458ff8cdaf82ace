//! What the parts of davit's own provisioner say to one another: the controller that makes the objects, and the nodes
//! that keep the directories (spec storage.md 8).

use davit_api::selector::Labels;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;

use crate::annotations::PROVISIONED_BY;
use crate::binding::annotation;
use crate::matching::capacity_of;

/// Name of the provisioner, and of its CSIDriver object.
pub const PROVISIONER: &str = "local.davit.dev";
/// Name of the class that every cluster begins with.
pub const CLASS: &str = "standard";
/// Label of a volume: the node that keeps it, as [`label_of_node`] writes it.
pub const NODE_LABEL: &str = "local.davit.dev/node";
/// Annotation of a volume: what its node has done, `Ready` or `Removed`.
pub const STATE: &str = "local.davit.dev/state";
/// Annotation of a node that keeps volumes: a [`NodeStorage`] in JSON.
pub const STORAGE: &str = "local.davit.dev/storage";
/// Annotation of a volume that is an image: the bytes that its node has made it.
pub const SIZE: &str = "local.davit.dev/size";
/// Annotation of a volume that begins as a copy of another one of its node: that one's name.
pub const SOURCE: &str = "local.davit.dev/source";
/// Parameter of a class, and annotation of a volume: what holds its data to its size, a [`VolumeLimit`].
pub const LIMIT: &str = "davit.dev/limit";
/// Directory of the data below a volume's own, and at the root of the file system on an image.
pub const DATA: &str = "data";
/// In its place the file whose content is that of the device, of a volume with `volumeMode: Block`, or a file system.
pub const IMAGE: &str = "data.img";
/// The most characters that a label's value has.
const LABEL_VALUE: usize = 63;

/// What a node has done for a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its directory is there.
    Ready,
    /// Its data is not there any more.
    Removed,
}

impl State {
    /// As [`STATE`] says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Removed => "Removed",
        }
    }

    /// What the volume says.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        [Self::Ready, Self::Removed]
            .into_iter()
            .find(|state| annotation(meta, STATE) == Some(state.as_str()))
    }
}

/// What holds the data of a volume with a file system to its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VolumeLimit {
    /// Nothing: it is a directory among others.
    #[default]
    None,
    /// Its file system is its own, on a file of the size.
    Image,
}

impl VolumeLimit {
    /// As [`LIMIT`] says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Image => "image",
        }
    }

    /// What is called so.
    pub fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Image]
            .into_iter()
            .find(|limit| limit.as_str() == name)
    }

    /// What a class asks for; `none` where it does not say.
    ///
    /// # Errors
    /// A sentence about the parameter that is not known.
    pub fn of_class(class: &StorageClass) -> Result<Self, String> {
        let mut limit = Self::default();
        for (name, value) in class.parameters.iter().flatten() {
            if name != LIMIT {
                return Err(format!(
                    "{PROVISIONER} has no parameter {name:?}: there is {LIMIT:?}"
                ));
            }
            limit = Self::named(value).ok_or_else(|| {
                format!("{LIMIT} is \"none\" or \"image\" with {PROVISIONER}, not {value:?}")
            })?;
        }
        Ok(limit)
    }
}

/// Where a node keeps volumes, and how much it may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStorage {
    /// The directory of all volumes.
    pub path: String,
    /// Bytes that all volumes may have together: the size of the file system without its reserve.
    pub size: u64,
    /// Bytes that are free beyond the reserve.
    pub available: u64,
}

/// Whether the volume is one of this provisioner's.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    annotation(&volume.metadata, PROVISIONED_BY) == Some(PROVISIONER)
}

/// Whether the volume's data is the content of a file: it is a device, or has a file system of its own.
pub fn is_image(volume: &PersistentVolume) -> bool {
    is_device(volume) || has_file_system(volume)
}

/// Whether the volume has a file system of its own.
pub fn has_file_system(volume: &PersistentVolume) -> bool {
    let limit = annotation(&volume.metadata, LIMIT).and_then(VolumeLimit::named);
    !is_device(volume) && limit == Some(VolumeLimit::Image)
}

/// Whether the volume is a device.
pub fn is_device(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

/// The name of the volume that this one begins as a copy of.
pub fn source_of(volume: &PersistentVolume) -> Option<&str> {
    annotation(&volume.metadata, SOURCE)
}

/// The claim of the same namespace whose data a claim asks to begin with. `Err` for a source of another kind.
///
/// # Errors
/// The kind of the source.
pub fn source_claim(claim: &PersistentVolumeClaim) -> Result<Option<&str>, &str> {
    let Some(spec) = &claim.spec else {
        return Ok(None);
    };
    let (kind, group, name, namespace) = match (&spec.data_source_ref, &spec.data_source) {
        (Some(source), _) => (
            &source.kind,
            &source.api_group,
            &source.name,
            &source.namespace,
        ),
        (None, Some(source)) => (&source.kind, &source.api_group, &source.name, &None),
        (None, None) => return Ok(None),
    };
    let is_claim =
        kind == "PersistentVolumeClaim" && group.as_deref().unwrap_or_default().is_empty();
    let is_here = namespace.is_none() || *namespace == claim.metadata.namespace;
    match is_claim && is_here {
        true => Ok(Some(name)),
        false => Err(kind),
    }
}

/// The bytes that the volume is to have; none of a negative size.
pub fn wanted_bytes(volume: &PersistentVolume) -> u64 {
    u64::try_from(capacity_of(volume).value()).unwrap_or(0)
}

/// The bytes that the volume's node has made it.
pub fn made_bytes(volume: &PersistentVolume) -> Option<u64> {
    annotation(&volume.metadata, SIZE)?.parse().ok()
}

/// The value of [`NODE_LABEL`] for a node. Names of nodes can be longer than labels.
pub fn label_of_node(node: &str) -> String {
    if node.len() <= LABEL_VALUE {
        return node.to_owned();
    }
    digest(node)
}

/// The name of the CSIStorageCapacity of a class on a node. Both names together may be longer than a name.
pub fn capacity_name(class: &str, node: &str) -> String {
    format!("local-{}", digest(&format!("{class}/{node}")))
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(16).fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The selector of the volumes that a node keeps.
pub fn selector_of_node(node: &str) -> String {
    format!("{NODE_LABEL}={}", label_of_node(node))
}

/// Whether labels say that the node keeps the volume.
pub fn is_kept_by(labels: Option<&Labels>, node: &str) -> bool {
    labels.and_then(|labels| labels.get(NODE_LABEL)) == Some(&label_of_node(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_nodes_are_short_and_differ() {
        assert_eq!(label_of_node("edge-1"), "edge-1");
        let long = |end: &str| label_of_node(&format!("{}{end}", "n".repeat(100)));
        assert!(long("a").len() <= LABEL_VALUE && long("a") != long("b"));
        assert_ne!(capacity_name("a", "b"), capacity_name("b", "a"));
    }

    #[test]
    fn a_class_says_what_holds_its_volumes_to_their_size_and_nothing_else() {
        let of = |parameters: serde_json::Value| {
            let class = serde_json::json!({"provisioner": PROVISIONER, "parameters": parameters});
            VolumeLimit::of_class(&serde_json::from_value(class).unwrap())
        };
        assert_eq!(of(serde_json::json!({})), Ok(VolumeLimit::None));
        for limit in [VolumeLimit::None, VolumeLimit::Image] {
            assert_eq!(of(serde_json::json!({ LIMIT: limit.as_str() })), Ok(limit));
        }
        for wrong in [
            serde_json::json!({ LIMIT: "quota" }),
            serde_json::json!({"davit.dev/limits": "image"}),
        ] {
            assert!(of(wrong).unwrap_err().contains(LIMIT));
        }
    }
}
