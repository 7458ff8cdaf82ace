//! Where volumes are mounted, below the agent's root directory.

use crate::DriverName;
use crate::name::MOUNTS;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of all drivers' volumes that are mounted for all pods.
pub fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins/kubernetes.io/flexvolume")
}

/// Where a volume is mounted for all pods.
pub fn global_mount(root: &Path, driver: &DriverName, volume: &str) -> PathBuf {
    let of_driver = plugin_dir(root).join(driver.as_str());
    of_driver.join(MOUNTS).join(volume)
}

/// Driver and volume of a path that [`global_mount`] made.
pub fn split_global_mount(root: &Path, path: &Path) -> Option<(DriverName, String)> {
    let below = path.strip_prefix(plugin_dir(root)).ok()?;
    let volume = below.file_name()?.to_str()?;
    let mounts = below.parent()?;
    if mounts.file_name()?.to_str()? != MOUNTS {
        return None;
    }
    let driver = DriverName::new(mounts.parent()?.to_str()?).ok()?;
    Some((driver, volume.to_owned()))
}

/// Levels of directories above volumes: vendor, driver, and the one of the mounts.
const LEVELS: usize = 3;

/// All directories that [`global_mount`] made and that are there, with driver and volume. Links are not followed. Blocks.
///
/// # Errors
/// A directory is there and cannot be listed.
pub fn global_mounts(root: &Path) -> io::Result<Vec<(PathBuf, DriverName, String)>> {
    let mut out = Vec::new();
    // Looks at names only: what is mounted may hang.
    let mut left = vec![(plugin_dir(root), 0)];
    while let Some((dir, level)) = left.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            match split_global_mount(root, &path) {
                Some((driver, volume)) => out.push((path, driver, volume)),
                // What a driver leaves beside its mounts, a file system or a link into the host's, is not gone through.
                None if level < LEVELS && entry.file_type()?.is_dir() => {
                    left.push((path, level + 1));
                }
                None => {}
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_global_mount_tells_driver_and_volume() {
        let (root, driver) = (Path::new("/r"), DriverName::new("acme/mem").unwrap());
        let path = global_mount(root, &driver, "pv");
        assert_eq!(
            path,
            Path::new("/r/plugins/kubernetes.io/flexvolume/acme/mem/mounts/pv")
        );
        let tmp = tempfile::tempdir().unwrap();
        assert!(global_mounts(tmp.path()).unwrap().is_empty());
        let there = global_mount(tmp.path(), &driver, "pv");
        std::fs::create_dir_all(there.join("content/mounts/x")).unwrap();
        // A driver leaves links to its own directory, two of each: as many ways as there are paths.
        for name in ["a", "b"] {
            for dir in ["", "acme", "acme/mem"] {
                let at = plugin_dir(tmp.path()).join(dir).join(name);
                std::os::unix::fs::symlink(".", at).unwrap();
            }
        }
        std::fs::create_dir_all(plugin_dir(tmp.path()).join("acme/host/etc/x/mounts/y")).unwrap();
        assert_eq!(
            global_mounts(tmp.path()).unwrap(),
            [(there, driver.clone(), "pv".to_owned())]
        );
        assert_eq!(
            split_global_mount(root, &path),
            Some((driver, "pv".to_owned()))
        );
        for other in ["/r/plugins/kubernetes.io/flexvolume/acme/mem/pv", "/x"] {
            assert_eq!(split_global_mount(root, Path::new(other)), None);
        }
    }
}
