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

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sockets: BTreeMap<PathBuf, Generation>,
    /// There are more files than are looked at.
    pub(super) too_many: bool,
}

/// All sockets below `dir`, without those whose name, or whose folder's, begins with a dot. Those that are known stay, however
/// many files somebody else makes there.
pub(super) fn sockets<'a>(dir: &Path, known: impl IntoIterator<Item = &'a PathBuf>) -> Found {
    let mut found = Found::default();
    for path in known {
        if let Ok(meta) = std::fs::symlink_metadata(path)
            && meta.file_type().is_socket()
        {
            found.sockets.insert(path.clone(), Generation::of(&meta));
        }
    }
    let mut looked = 0;
    let mut folders = vec![(dir.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            looked += 1;
            if looked > MAX_ENTRIES {
                found.too_many = true;
                return found;
            }
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Ok(meta) = entry.metadata() else {
                continue;
            };
            if meta.file_type().is_socket() {
                found.sockets.insert(entry.path(), Generation::of(&meta));
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
        let found = sockets(dir.path(), []);
        let found: Vec<PathBuf> = found.sockets.into_keys().collect();
        assert_eq!(found, [at("a.sock"), at("sub/deep/b.sock")]);
    }

    /// A plugin that makes files without end had the others' sockets left out, and so their drivers taken out of service.
    #[test]
    fn known_sockets_stay_however_many_files_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        let known: Vec<PathBuf> = (0..4)
            .map(|n| at(&format!("sub-{n}/driver.sock")))
            .collect();
        let bound = known.iter().map(|path| {
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::os::unix::net::UnixListener::bind(path).unwrap()
        });
        let _kept: Vec<_> = bound.collect();
        assert_eq!(sockets(dir.path(), []).sockets.len(), 4);
        for n in 0..=MAX_ENTRIES {
            std::fs::write(at(&format!("file-{n}")), "").unwrap();
        }
        let found = sockets(dir.path(), &known);
        assert!(found.too_many);
        assert_eq!(found.sockets.into_keys().collect::<Vec<_>>(), known);
        std::fs::remove_file(&known[0]).unwrap();
        assert_eq!(sockets(dir.path(), &known).sockets.len(), 3);
    }
}
