//! Where volumes are mounted, below the agent's root directory.

use crate::DriverName;
use std::path::{Path, PathBuf};

/// Name of the directory, below that of a driver, in which its volumes are mounted for all pods.
const MOUNTS: &str = "mounts";

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
        assert_eq!(
            split_global_mount(root, &path),
            Some((driver, "pv".to_owned()))
        );
        for other in ["/r/plugins/kubernetes.io/flexvolume/acme/mem/pv", "/x"] {
            assert_eq!(split_global_mount(root, Path::new(other)), None);
        }
    }
}
