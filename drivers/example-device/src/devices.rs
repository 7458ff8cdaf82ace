//! The plugin's folder: device nodes, a file about them, the list of broken devices.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

/// Major and minor number of `/dev/null`, which every device here behaves like.
const NULL: (u32, u32) = (1, 3);

pub(crate) struct Folder {
    path: PathBuf,
    nodes: BTreeSet<String>,
}

impl Folder {
    /// Makes the folder and in it a character device for each ID, where that is allowed and
    /// such devices can be opened (not on a file system mounted `nodev`).
    pub(crate) fn make(path: &Path, ids: &[String]) -> Result<Self> {
        std::fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        let mut folder = Self {
            path: path.to_owned(),
            nodes: BTreeSet::new(),
        };
        for id in ids {
            match folder.make_node(id) {
                Ok(()) => {
                    folder.nodes.insert(id.clone());
                }
                Err(e) => {
                    tracing::info!(error = %e, "no real devices here: containers get environment and mount only");
                    folder.remove_nodes(ids);
                    break;
                }
            }
        }
        Ok(folder)
    }

    fn make_node(&self, id: &str) -> io::Result<()> {
        let path = self.path.join(id);
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        let mode = Mode::from_raw_mode(0o666);
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            mode,
            makedev(NULL.0, NULL.1),
        )?;
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map(drop)
    }

    fn remove_nodes(&mut self, ids: &[String]) {
        for id in ids {
            // It may never have been made.
            let _ = std::fs::remove_file(self.path.join(id));
        }
        self.nodes.clear();
    }

    /// Whether the devices are real ones.
    pub(crate) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The device node of a device, if it has one.
    pub(crate) fn node(&self, id: &str) -> Option<PathBuf> {
        self.nodes.get(id).map(|id| self.path.join(id))
    }

    /// Writes the files that containers get mounted; returns their folder.
    pub(crate) fn write_info(&self, resource: &str) -> io::Result<PathBuf> {
        let dir = self.path.join("info");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("resource"), format!("{resource}\n"))?;
        std::path::absolute(dir)
    }

    /// IDs in the file `unhealthy`.
    pub(crate) fn broken(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(self.path.join("unhealthy")).unwrap_or_default();
        text.lines()
            .map(|line| line.trim().to_owned())
            .filter(|id| !id.is_empty())
            .collect()
    }

    /// Removes what was made; the folder itself only when nothing else is in it.
    pub(crate) fn remove(&self) {
        for id in &self.nodes {
            if let Err(e) = std::fs::remove_file(self.path.join(id)) {
                tracing::debug!(id, error = %e, "device node not removed");
            }
        }
        // A container may still have the mount; then the folder stays until the next start.
        let _ = std::fs::remove_dir_all(self.path.join("info"));
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_real_devices_or_none_and_removes_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("devices");
        let ids = ["foo-0".to_owned(), "foo-1".to_owned()];
        let folder = Folder::make(&path, &ids).unwrap();
        assert_eq!(folder.node("foo-0").is_some(), folder.has_nodes());
        if let Some(node) = folder.node("foo-1") {
            std::fs::write(node, "gone").unwrap();
        }
        std::fs::write(path.join("unhealthy"), "foo-1\n\n").unwrap();
        assert_eq!(folder.broken(), BTreeSet::from(["foo-1".to_owned()]));
        std::fs::remove_file(path.join("unhealthy")).unwrap();
        let info = folder.write_info("a.com/x").unwrap();
        assert_eq!(
            std::fs::read_to_string(info.join("resource")).unwrap(),
            "a.com/x\n"
        );
        folder.remove();
        assert!(!path.exists());
    }
}
