//! Finding sockets below a folder.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

const MAX_DEPTH: usize = 8;
const MAX_ENTRIES: usize = 4096;

/// Tells a socket from another one made later at the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation {
    inode: u64,
    seconds: i64,
    nanos: i64,
}

impl Generation {
    fn of(meta: &Metadata) -> Self {
        Self {
            inode: meta.ino(),
            // Not the change time: that moves with permissions.
            seconds: meta.mtime(),
            nanos: meta.mtime_nsec(),
        }
    }

    #[cfg(test)]
    pub(super) fn test(inode: u64) -> Self {
        Self {
            inode,
            seconds: 0,
            nanos: 0,
        }
    }
}

/// All sockets below `dir`, without those whose name, or whose folder's, begins with a dot.
pub(super) fn sockets(dir: &Path) -> BTreeMap<PathBuf, Generation> {
    let mut found = BTreeMap::new();
    let mut looked = 0;
    let mut folders = vec![(dir.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            looked += 1;
            if looked > MAX_ENTRIES {
                tracing::warn!(dir = %dir.display(), "too many files in the plugin registry; some are left out");
                return found;
            }
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok(meta) = entry.metadata() else {
                continue;
            };
            if meta.file_type().is_socket() {
                found.insert(entry.path(), Generation::of(&meta));
            } else if meta.is_dir() && depth < MAX_DEPTH {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_024_only_visible_sockets_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        std::fs::create_dir_all(at("sub/deep")).unwrap();
        std::fs::create_dir_all(at(".hidden")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let bind = |p: &str| std::os::unix::net::UnixListener::bind(at(p)).unwrap();
        let _kept = [
            bind("a.sock"),
            bind("sub/deep/b.sock"),
            bind(".c.sock"),
            bind(".hidden/d.sock"),
        ];
        let found: Vec<PathBuf> = sockets(dir.path()).into_keys().collect();
        assert_eq!(found, [at("a.sock"), at("sub/deep/b.sock")]);
    }
}
