//! Publishes a set of files in a directory so that readers see all of the old or all of the new.
//!
//! The visible names are links to `..data/<name>`, `..data` is a link to a directory `..<time>` that holds the files;
//! an update writes a new directory and renames the link. Programs watch `..data` to notice updates, so the layout is
//! part of the interface.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
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

/// Brings `dir` to hold exactly `payload`. Returns whether anything changed.
///
/// # Errors
/// I/O errors, and paths that lead out of the volume.
pub fn write(dir: &Path, payload: &Payload, group: Option<u32>) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    std::fs::create_dir_all(dir)?;
    let link = dir.join(DATA);
    let current = std::fs::read_link(&link).ok().map(|name| dir.join(name));
    if let Some(current) = &current
        && same(current, payload)
    {
        sync_links(dir, payload)?;
        return Ok(false);
    }
    let fresh = dir.join(format!(
        "..{}.{:09}",
        jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S"),
        rand::random_range(0..1_000_000_000_u32)
    ));
    write_files(&fresh, payload, group)?;
    let staged = dir.join("..data_tmp");
    remove_if_there(&staged)?;
    let name = fresh
        .file_name()
        .ok_or_else(|| io::Error::other("time-stamped directory has no name"))?;
    symlink(name, &staged)?;
    std::fs::rename(&staged, &link)?;
    sync_links(dir, payload)?;
    if let Some(current) = current {
        std::fs::remove_dir_all(current).or_else(ignore_missing)?;
    }
    remove_leftovers(dir, name)?;
    Ok(true)
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(error)
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path).or_else(ignore_missing)
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

fn write_files(root: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    std::fs::create_dir(root)?;
    set_mode(root, if group.is_some() { 0o2755 } else { 0o755 })?;
    if group.is_some() {
        chown(root, None, group)?;
    }
    for (path, file) in payload {
        let target = root.join(path);
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&target, &file.data)?;
        if file.owner.is_some() || group.is_some() {
            chown(&target, file.owner, group)?;
        }
        // A group that owns the volume must be able to read it.
        let mode = if group.is_some() {
            file.mode | 0o440
        } else {
            file.mode
        };
        set_mode(&target, mode)?;
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn same(current: &Path, payload: &Payload) -> bool {
    let mut found = BTreeSet::new();
    if collect(current, current, &mut found).is_err() {
        return false;
    }
    found.len() == payload.len()
        && payload.iter().all(|(path, file)| {
            found.contains(Path::new(path))
                && std::fs::read(current.join(path)).is_ok_and(|data| data == file.data)
                && std::fs::metadata(current.join(path))
                    .is_ok_and(|m| m.permissions().mode() & file.mode == file.mode)
        })
}

fn collect(root: &Path, dir: &Path, out: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, out)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            out.insert(relative.to_owned());
        }
    }
    Ok(())
}

/// Makes the visible links agree with the payload's first path elements.
fn sync_links(dir: &Path, payload: &Payload) -> io::Result<()> {
    let wanted: BTreeSet<&str> = payload
        .keys()
        .filter_map(|p| p.split('/').find(|s| !s.is_empty()))
        .collect();
    for name in &wanted {
        let path = dir.join(name);
        let target = Path::new(DATA).join(name);
        if std::fs::read_link(&path).ok().as_deref() == Some(target.as_path()) {
            continue;
        }
        remove_if_there(&path)?;
        symlink(&target, &path)?;
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..")
            && !wanted.contains(name.as_ref())
            && entry.file_type()?.is_symlink()
        {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes time-stamped directories that a crash left behind.
fn remove_leftovers(dir: &Path, keep: &std::ffi::OsStr) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != keep && name.to_string_lossy().starts_with("..") && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path()).or_else(ignore_missing)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
