//! Publishes a set of files in a directory so that readers see all of the old or all of the new.
//!
//! The visible names are links to `..data/<name>`, `..data` is a link to a directory `..<time>` that holds the files;
//! an update writes a new directory and renames the link. Programs watch `..data` to notice updates, so the layout is
//! part of the interface.

use davit_beneath::{Inode, Links, Permissions, Root};
use rustix::fs::FileType;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// One file to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Content.
    pub data: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner, when it is not to be the node's own user.
    pub owner: Option<u32>,
}

/// Files by their path below the volume.
pub type Payload = BTreeMap<String, File>;

const DATA: &str = "..data";
const STAGED: &str = "..data_tmp";
/// Entries of a volume's directory that are looked at; more than any object has keys.
const MAX_ENTRIES: usize = 1 << 20;

/// Brings `dir` to hold exactly `payload`. Returns whether anything changed. A container with the right to mount may
/// write here, so everything below `dir` is reached by descriptor and no link is followed.
///
/// # Errors
/// I/O errors, and paths that lead out of the volume.
pub fn write(dir: &Path, payload: &Payload, group: Option<u32>) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    std::fs::create_dir_all(dir)?;
    let root = Root::open(dir, Links::Refused)?;
    let current = current(&root);
    if current.is_some_and(|current| same(&current, payload).unwrap_or(false)) {
        sync_links(&root, payload)?;
        return Ok(false);
    }
    let name = format!(
        "..{}.{:09}",
        jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S"),
        rand::random_range(0..1_000_000_000_u32)
    );
    write_files(&root, &name, payload, group)?;
    remove_if_there(&root, STAGED)?;
    root.symlink(&name, STAGED)?;
    root.rename(STAGED, DATA)?;
    sync_links(&root, payload)?;
    remove_old(&root, &name)?;
    Ok(true)
}

/// The directory that is published now, if what `..data` says is one of ours.
fn current(root: &Root) -> Option<Root> {
    let name = root.read_link(DATA).ok()?;
    let mut parts = name.components();
    let plain = matches!(
        (parts.next(), parts.next()),
        (Some(Component::Normal(_)), None)
    );
    let ours = plain && name.to_string_lossy().starts_with("..");
    ours.then(|| root.dir(&name).ok()).flatten()
}

fn remove_if_there(root: &Root, name: &str) -> io::Result<()> {
    match root.remove_file(name) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Refuses absolute paths, `..`, and first names that begin with `..`, which would collide with the layout.
fn check_path(path: &str) -> io::Result<()> {
    let bad = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("invalid path {path:?} in volume"),
        )
    };
    let parsed = Path::new(path);
    if path.is_empty() || path.starts_with("..") {
        return Err(bad());
    }
    let plain = parsed
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    if plain { Ok(()) } else { Err(bad()) }
}

fn write_files(root: &Root, name: &str, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let fresh = root.mkdir_all(name, 0o755)?;
    fresh.entry("")?.set(&Permissions {
        gid: group,
        mode: Some(if group.is_some() { 0o2755 } else { 0o755 }),
        ..Permissions::default()
    })?;
    for (path, file) in payload {
        if let Some(parent) = Path::new(path).parent() {
            fresh.mkdir_all(parent, 0o755)?;
        }
        let mut made = fresh.create_new(path, 0o600)?;
        made.write_all(&file.data)?;
        Inode::from(OwnedFd::from(made)).set(&Permissions {
            uid: file.owner,
            gid: group,
            // A group that owns the volume must be able to read it.
            mode: Some(match group {
                Some(_) => file.mode | 0o440,
                None => file.mode,
            }),
        })?;
    }
    Ok(())
}

fn same(current: &Root, payload: &Payload) -> io::Result<bool> {
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    current.walk(|path, inode| {
        if inode.kind()? != FileType::Directory {
            found.insert(path.to_owned());
        }
        Ok(())
    })?;
    if found.len() != payload.len() {
        return Ok(false);
    }
    for (path, file) in payload {
        if !found.contains(Path::new(path)) {
            return Ok(false);
        }
        let mode = current.entry(path)?.stat()?.st_mode;
        let as_it_was = mode & file.mode == file.mode
            && current.read_limited(path, file.data.len() as u64)? == file.data;
        if !as_it_was {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the visible links agree with the payload's first path elements. A directory that has such a name stays: containers
/// have something mounted on it.
fn sync_links(root: &Root, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload
        .keys()
        .filter_map(|p| p.split('/').find(|s| !s.is_empty()))
        .collect();
    for name in &wanted {
        let target = Path::new(DATA).join(name);
        if root.read_link(name).ok().as_deref() == Some(target.as_path()) {
            continue;
        }
        let there = root.entry_itself(name).and_then(|inode| inode.kind());
        if there.is_ok_and(|kind| kind == FileType::Directory) {
            continue;
        }
        remove_if_there(root, name)?;
        root.symlink(&target, name)?;
    }
    for entry in root.list("", MAX_ENTRIES)? {
        let name = entry.name.to_string_lossy();
        let old = !name.starts_with("..") && !wanted.contains(name.as_ref());
        if old && entry.kind == FileType::Symlink {
            remove_if_there(root, &name)?;
        }
    }
    Ok(())
}

/// Removes the directory that was published before, and those that a crash left behind.
fn remove_old(root: &Root, keep: &str) -> io::Result<()> {
    for entry in root.list("", MAX_ENTRIES)? {
        let stale = entry.name != keep && entry.name.as_encoded_bytes().starts_with(b"..");
        if stale && entry.kind == FileType::Directory {
            root.remove_tree(&entry.name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File {
            data: data.as_bytes().to_vec(),
            mode: 0o644,
            owner: None,
        };
        files
            .iter()
            .map(|(p, d)| ((*p).to_owned(), file(d)))
            .collect()
    }

    #[test]
    fn files_appear_through_links_and_update_at_once() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("v");
        assert!(write(&dir, &payload(&[("a", "1"), ("sub/b", "2")]), None).unwrap());
        assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), "1");
        assert_eq!(std::fs::read_to_string(dir.join("sub/b")).unwrap(), "2");
        assert_eq!(
            std::fs::read_link(dir.join("a")).unwrap(),
            Path::new("..data/a")
        );
        let first = std::fs::read_link(dir.join(DATA)).unwrap();
        assert!(!write(&dir, &payload(&[("a", "1"), ("sub/b", "2")]), None).unwrap());
        assert_eq!(std::fs::read_link(dir.join(DATA)).unwrap(), first);
        assert!(write(&dir, &payload(&[("a", "3")]), None).unwrap());
        assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("sub").exists());
        assert!(!dir.join(&first).exists());
        let left: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[test]
    fn a_mount_point_in_the_volume_stays_through_updates() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = tmp.path().join("v");
        std::fs::create_dir_all(dir.join("more.d")).unwrap();
        for files in [&[("a", "1")][..], &[("a", "2"), ("more.d/b", "3")], &[]] {
            write(&dir, &payload(files), None).unwrap();
            assert!(dir.join("more.d").symlink_metadata().unwrap().is_dir());
            assert_eq!(dir.join("a").exists(), !files.is_empty());
        }
    }

    #[test]
    fn paths_may_not_leave_the_volume() {
        let tmp = tempfile::tempdir().unwrap();
        for bad in ["../x", "/etc/passwd", "a/../../x", "..data", ""] {
            assert!(
                write(tmp.path(), &payload(&[(bad, "x")]), None).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn leftovers_of_a_crash_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir(tmp.path().join("..2020_01_01_00_00_00.1")).unwrap();
        symlink("..nowhere", tmp.path().join("..data_tmp")).unwrap();
        write(tmp.path(), &payload(&[("a", "1")]), None).unwrap();
        assert!(!tmp.path().join("..2020_01_01_00_00_00.1").exists());
        assert_eq!(std::fs::read_to_string(tmp.path().join("a")).unwrap(), "1");
    }

    #[test]
    fn modes_are_set() {
        let tmp = tempfile::tempdir().unwrap();
        let mut p = payload(&[("k", "secret")]);
        p.get_mut("k").unwrap().mode = 0o400;
        write(tmp.path(), &p, None).unwrap();
        let mode = std::fs::metadata(tmp.path().join("k"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o400);
    }

    #[test]
    fn links_that_a_container_left_are_replaced_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let (host, dir) = (tmp.path().join("..host"), tmp.path().join("v"));
        for made in [&host, &dir] {
            std::fs::create_dir(made).unwrap();
        }
        std::fs::write(host.join("a"), "of the host").unwrap();
        for says in [host.to_str().unwrap(), "../..host", "..host"] {
            let _none = std::fs::remove_file(dir.join(DATA));
            symlink(says, dir.join(DATA)).unwrap();
            let _none = std::fs::remove_file(dir.join("..host"));
            symlink(&host, dir.join("..host")).unwrap();
            assert!(write(&dir, &payload(&[("a", says)]), None).unwrap());
            assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), says);
            assert_eq!(
                std::fs::read_to_string(host.join("a")).unwrap(),
                "of the host"
            );
        }
    }
}
