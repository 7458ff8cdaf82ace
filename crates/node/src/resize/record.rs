//! What a resized pod was granted, in a file of its directory.

use super::Sizes;
use davit_pods::paths::Paths;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The largest file that is read; a larger one is damage.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// The size that a running instance has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Actual {
    /// The instance's ID in the runtime.
    pub id: String,
    /// Its resources.
    pub size: ResourceRequirements,
    /// Those of the pod as a whole, which stand in for limits the container does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ResourceRequirements>,
}

/// Everything that a restart of the node agent must not forget about a resized pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// What the pod has been granted.
    pub granted: Sizes,
    /// What its containers have, by name.
    #[serde(default)]
    pub actual: BTreeMap<String, Actual>,
    /// `metadata.generation` of the grant that is not in all containers yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_progress: Option<i64>,
}

/// Why a record cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// The file.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// Its content.
    #[error("{}: {source}", path.display())]
    Content {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Record {
    fn path(paths: &Paths, uid: &str) -> PathBuf {
        paths.pod(uid).join("resize.json")
    }

    /// The record of a pod; `None` for a pod that was never resized.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub(crate) fn load(paths: &Paths, uid: &str) -> Result<Option<Self>, RecordError> {
        let path = Self::path(paths, uid);
        match davit_beneath::read_own(&path, MAX_FILE).map_err(io::Error::from) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| RecordError::Content { path, source }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::Io { path, source }),
        }
    }

    /// Writes the record; it is on the disk when this returns. Goes with the pod's directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn store(&self, paths: &Paths, uid: &str) -> Result<(), RecordError> {
        let path = Self::path(paths, uid);
        let content = match serde_json::to_vec(self) {
            Ok(content) => content,
            Err(source) => return Err(RecordError::Content { path, source }),
        };
        replace(paths, &path, &content).map_err(|source| RecordError::Io { path, source })
    }
}

fn replace(paths: &Paths, path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    paths.make_dir(dir)?;
    davit_beneath::write_private(path, content)?;
    File::open(dir)?.sync_all()
}
