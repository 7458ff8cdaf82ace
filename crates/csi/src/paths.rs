//! Where CSI volumes are below the agent's root directory. Names of objects hold no `/`; one that is in a name all the same
//! becomes `~`, so that each name is one directory.

use crate::names::sha256_hex;
use std::path::{Path, PathBuf};

/// Below [`pod_volume_dir`]: where the driver publishes the volume.
pub const MOUNT: &str = "mount";

/// The directory of a staged volume with its `vol_data.json`.
pub fn staging_dir(root: &Path, driver: &str, volume_handle: &str) -> PathBuf {
    plugin_dir(root)
        .join(one(driver))
        .join(sha256_hex(&[volume_handle]))
}

/// Where a file system is staged, below [`staging_dir`].
pub fn global_mount(root: &Path, driver: &str, volume_handle: &str) -> PathBuf {
    staging_dir(root, driver, volume_handle).join("globalmount")
}

/// The directory of a pod's volume: `mount` and `vol_data.json` are in it.
pub fn pod_volume_dir(root: &Path, pod_uid: &str, volume_name: &str) -> PathBuf {
    pod_dir(root, pod_uid)
        .join("volumes")
        .join(one(crate::PLUGIN_NAME))
        .join(one(volume_name))
}

/// Where a file system is published for a pod.
pub fn pod_mount(root: &Path, pod_uid: &str, volume_name: &str) -> PathBuf {
    pod_volume_dir(root, pod_uid, volume_name).join(MOUNT)
}

/// A pod's symlink to a device, named as the PersistentVolume.
pub fn pod_device(root: &Path, pod_uid: &str, volume_name: &str) -> PathBuf {
    pod_dir(root, pod_uid)
        .join("volumeDevices")
        .join(one(crate::PLUGIN_NAME))
        .join(one(volume_name))
}

/// Where a device is staged.
pub fn device_staging(root: &Path, volume_name: &str) -> PathBuf {
    devices_dir(root).join("staging").join(one(volume_name))
}

/// Where the driver publishes a device for a pod.
pub fn device_publish(root: &Path, volume_name: &str, pod_uid: &str) -> PathBuf {
    devices_dir(root)
        .join("publish")
        .join(one(volume_name))
        .join(one(pod_uid))
}

/// The directory of the links of all pods to a device.
pub fn device_map(root: &Path, volume_name: &str) -> PathBuf {
    devices_dir(root).join(one(volume_name)).join("dev")
}

/// The directory of a device's record, see [`crate::vol_data::DeviceData`].
pub fn device_data(root: &Path, volume_name: &str) -> PathBuf {
    devices_dir(root).join(one(volume_name)).join("data")
}

/// Below it are the staging directories, by driver, and [`devices_dir`].
pub fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins").join(crate::PLUGIN_NAME)
}

/// Below it are all devices.
pub fn devices_dir(root: &Path) -> PathBuf {
    plugin_dir(root).join("volumeDevices")
}

fn pod_dir(root: &Path, pod_uid: &str) -> PathBuf {
    root.join("pods").join(one(pod_uid))
}

fn one(name: &str) -> String {
    name.replace('/', "~")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let root = Path::new("/var/lib/kubelet");
        let text = |path: PathBuf| path.display().to_string();
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            text(global_mount(root, "d.example.com", "abc")),
            format!("/var/lib/kubelet/plugins/kubernetes.io/csi/d.example.com/{hash}/globalmount")
        );
        assert_eq!(
            text(pod_mount(root, "u", "pv")),
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv/mount"
        );
        assert_eq!(
            text(pod_device(root, "u", "pv")),
            "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~csi/pv"
        );
        let devices = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices";
        assert_eq!(
            text(device_staging(root, "pv")),
            format!("{devices}/staging/pv")
        );
        assert_eq!(
            text(device_publish(root, "pv", "u")),
            format!("{devices}/publish/pv/u")
        );
        assert_eq!(text(device_map(root, "pv")), format!("{devices}/pv/dev"));
        assert_eq!(
            text(device_data(root, "a/../b")),
            format!("{devices}/a~..~b/data")
        );
    }
}
