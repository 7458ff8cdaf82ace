//! What is kept on disk about volumes, so that they can be undone after a restart of the agent. The same files as the
//! kubelet's: one line of JSON, an object of texts.
//!
//! They are written before the driver is called. One that cannot be read is [`Loaded::Unknown`]: something was done, but
//! not what is known.

use crate::{CsiVolume, LifecycleMode, names};
use davit_beneath::Error as Strange;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name of the record in the directory of a staged or published file system.
pub const VOL_DATA: &str = "vol_data.json";
/// Longest record that is read, in bytes.
const LIMIT: u64 = 1 << 20;

/// `vol_data.json` of a staged file system, in [`crate::paths::staging_dir`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageData {
    /// The driver's name.
    pub driver_name: String,
    /// The SELinux label it was mounted with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
    /// How the driver calls the volume.
    pub volume_handle: String,
}

/// `vol_data.json` of a published file system, in [`crate::paths::pod_volume_dir`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublishData {
    /// Name of the VolumeAttachment, whether there is one or not.
    #[serde(rename = "attachmentID", default)]
    pub attachment_id: String,
    /// The driver's name.
    pub driver_name: String,
    /// The node.
    #[serde(default)]
    pub node_name: String,
    /// The SELinux label it was mounted with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub se_linux_mount_context: String,
    /// Name of the PersistentVolume, or of the in-line volume in the pod.
    #[serde(rename = "specVolID")]
    pub spec_vol_id: String,
    /// How the driver calls the volume.
    pub volume_handle: String,
    /// Whether it outlives the pod.
    #[serde(default)]
    pub volume_lifecycle_mode: LifecycleMode,
}

/// The record of a device, [`crate::paths::device_data`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceData {
    /// Name of the VolumeAttachment, whether there is one or not.
    #[serde(rename = "attachmentID", default)]
    pub attachment_id: String,
    /// The driver's name.
    pub driver_name: String,
    /// The node.
    #[serde(default)]
    pub node_name: String,
    /// Name of the PersistentVolume.
    #[serde(rename = "specVolID")]
    pub spec_vol_id: String,
    /// How the driver calls the volume.
    pub volume_handle: String,
}

impl StageData {
    /// The record of a volume.
    pub fn of(volume: &CsiVolume) -> Self {
        Self {
            driver_name: volume.driver.clone(),
            se_linux_mount_context: String::new(),
            volume_handle: volume.handle.clone(),
        }
    }
}

impl PublishData {
    /// The record of a volume on a node.
    pub fn of(volume: &CsiVolume, node: &str) -> Self {
        Self {
            attachment_id: names::attachment_name(&volume.handle, &volume.driver, node),
            driver_name: volume.driver.clone(),
            node_name: node.to_owned(),
            se_linux_mount_context: String::new(),
            spec_vol_id: volume.name.clone(),
            volume_handle: volume.handle.clone(),
            volume_lifecycle_mode: volume.lifecycle,
        }
    }
}

impl DeviceData {
    /// The record of a volume on a node.
    pub fn of(volume: &CsiVolume, node: &str) -> Self {
        Self {
            attachment_id: names::attachment_name(&volume.handle, &volume.driver, node),
            driver_name: volume.driver.clone(),
            node_name: node.to_owned(),
            spec_vol_id: volume.name.clone(),
            volume_handle: volume.handle.clone(),
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::StageData {}
    impl Sealed for super::PublishData {}
    impl Sealed for super::DeviceData {}
}

/// One of the records.
pub trait VolumeRecord: Serialize + DeserializeOwned + sealed::Sealed {
    /// What a volume is undone by; it is in every record that is whole.
    fn volume(&self) -> (&str, &str);
}

impl VolumeRecord for StageData {
    fn volume(&self) -> (&str, &str) {
        (&self.driver_name, &self.volume_handle)
    }
}

impl VolumeRecord for PublishData {
    fn volume(&self) -> (&str, &str) {
        (&self.driver_name, &self.volume_handle)
    }
}

impl VolumeRecord for DeviceData {
    fn volume(&self) -> (&str, &str) {
        (&self.driver_name, &self.volume_handle)
    }
}

/// What was found where a record is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded<R> {
    /// The record.
    Found(R),
    /// No file.
    Missing,
    /// A file that is empty, cut off or not a record, and what is wrong with it.
    Unknown(String),
}

/// A record could not be written or looked at.
#[derive(Debug, thiserror::Error)]
#[error("{what} volume data {path}: {cause}")]
pub struct VolDataError {
    what: &'static str,
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    File(#[from] davit_beneath::Error),
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
}

/// Puts a record in its place at once: it is on disk with its name in the directory when this returns. Blocks.
///
/// # Errors
/// The directory is not there, or what the kernel says; the record that was there before still is.
pub fn write(path: &Path, record: &impl VolumeRecord) -> Result<(), VolDataError> {
    let put = || {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        Ok(davit_beneath::write_private(path, &line)?)
    };
    put().map_err(|cause| VolDataError {
        what: "write",
        path: path.to_owned(),
        cause,
    })
}

/// Reads a record. Blocks.
///
/// # Errors
/// The file is there but cannot be looked at now; that says nothing about what is in it.
pub fn read<R: VolumeRecord>(path: &Path) -> Result<Loaded<R>, VolDataError> {
    match davit_beneath::read_own(path, LIMIT) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(error) if error.is_not_found() => Ok(Loaded::Missing),
        Err(error @ (Strange::Escapes(_) | Strange::NotRegular(_) | Strange::TooLarge { .. })) => {
            Ok(Loaded::Unknown(error.to_string()))
        }
        Err(error) => Err(VolDataError {
            what: "read",
            path: path.to_owned(),
            cause: error.into(),
        }),
    }
}

fn parse<R: VolumeRecord>(bytes: &[u8]) -> Loaded<R> {
    match serde_json::from_slice::<R>(bytes) {
        Ok(record) => {
            let (driver, handle) = record.volume();
            if driver.is_empty() || handle.is_empty() {
                return Loaded::Unknown("names no driver or no volume".to_owned());
            }
            Loaded::Found(record)
        }
        Err(_) if bytes.is_empty() => Loaded::Unknown("empty".to_owned()),
        Err(error) => Loaded::Unknown(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
