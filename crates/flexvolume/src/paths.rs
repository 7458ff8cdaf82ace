//! Where volumes are mounted, below the agent's root directory.

use crate::DriverName;
use crate::name::MOUNTS;
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

/// All directories that [`global_mount`] made and that are there, with driver and volume. Blocks.
pub fn global_mounts(root: &Path) -> Vec<(PathBuf, DriverName, String)> {
    let mut out = Vec::new();
    // Looks at names only: what is mounted may hang.
    let mut left = vec![plugin_dir(root)];
    while let Some(dir) = left.pop() {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            match split_global_mount(root, &path) {
                Some((driver, volume)) => out.push((path, driver, volume)),
                None => left.push(path),
            }
        }
    }
    out
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
        assert!(global_mounts(tmp.path()).is_empty());
        let there = global_mount(tmp.path(), &driver, "pv");
        std::fs::create_dir_all(there.join("content/mounts/x")).unwrap();
        assert_eq!(
            global_mounts(tmp.path()),
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
