//! What the runtime remembers on disk about sandboxes and containers.

use crate::image::RootLayers;
use crate::monitor::{files, read_json, write_atomically};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::io;
use std::path::{Path, PathBuf};

/// A protobuf message inside a JSON record.
#[derive(Debug, Clone, Default)]
pub(super) struct Proto<T>(pub(super) T);

impl<T: Message> Serialize for Proto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0.encode_to_vec()))
    }
}

impl<'de, T: Message + Default> Deserialize<'de> for Proto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        T::decode(&bytes[..])
            .map(Proto)
            .map_err(serde::de::Error::custom)
    }
}

/// Files that stand for a pod's namespaces; `None` where the pod uses the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespaces {
    /// `Some` where the pod's users are not the host's.
    #[serde(default)]
    pub(super) user: Option<PathBuf>,
    pub(super) net: Option<PathBuf>,
    pub(super) ipc: Option<PathBuf>,
    pub(super) uts: Option<PathBuf>,
    pub(super) pid: PathBuf,
    /// The pod's shared memory directory.
    pub(super) shm: PathBuf,
}

/// The first process of a shared pid namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pause {
    pub(super) pid: i32,
    pub(super) start_ticks: u64,
}

/// A pod sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SandboxRecord {
    pub(super) id: String,
    pub(super) config: Proto<davit_proto::cri::v1::PodSandboxConfig>,
    pub(super) handler: String,
    pub(super) created_at: i64,
    pub(super) hostname: String,
    pub(super) namespaces: Namespaces,
    pub(super) pause: Option<Pause>,
    pub(super) addresses: Vec<String>,
    /// Stopped, its namespaces released.
    pub(super) stopped: bool,
}

/// A container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) sandbox_id: String,
    pub(super) config: Proto<davit_proto::cri::v1::ContainerConfig>,
    pub(super) created_at: i64,
    pub(super) image_id: String,
    /// What status reports as `image_ref`.
    pub(super) image_ref: String,
    pub(super) layers: RootLayers,
    /// Path in the cgroup hierarchies, without a leading slash.
    pub(super) cgroup: String,
    pub(super) log_path: String,
    pub(super) user: (u32, u32, Vec<u32>),
    pub(super) stop_signal: i32,
    pub(super) socket: PathBuf,
}

/// Writes a record; a davit that is killed meanwhile leaves the old one or the new one.
pub(super) fn save<T: Serialize>(dir: &Path, record: &T) -> io::Result<()> {
    write_atomically(
        &dir.join(files::RECORD),
        &serde_json::to_vec(record).map_err(io::Error::other)?,
    )
}

/// Reads a record; `None` when the directory has none (its creation was interrupted).
pub(super) fn load<T: serde::de::DeserializeOwned>(dir: &Path) -> io::Result<Option<T>> {
    read_json(&dir.join(files::RECORD))
}
