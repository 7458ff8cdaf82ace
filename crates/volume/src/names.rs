//! Names that are made from other names.

use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The plugin name of volumes of CSI drivers.
pub const CSI_PLUGIN: &str = "kubernetes.io/csi";
/// Stands between driver and handle in the name of a CSI volume. Names of drivers cannot contain it, handles can.
const CSI_SEPARATOR: char = '^';

/// The name by which a cluster knows a volume that can be attached or mounted as a device: the same for all pods that use
/// it. As in `volumesAttached` and `volumesInUse` of nodes.
pub fn unique_volume_name(plugin: &str, volume: &str) -> String {
    format!("{plugin}/{volume}")
}

/// The name of a volume that every pod has for itself.
pub fn pod_volume_name(plugin: &str, pod_uid: &str, volume: &str) -> String {
    format!("{plugin}/{pod_uid}-{volume}")
}

/// The unique name of a CSI volume.
pub fn csi_volume_name(driver: &str, handle: &str) -> String {
    unique_volume_name(CSI_PLUGIN, &format!("{driver}{CSI_SEPARATOR}{handle}"))
}

/// Driver and handle of the unique name of a CSI volume; `None` for other volumes.
pub fn split_csi_volume_name(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix(CSI_PLUGIN)?.strip_prefix('/')?;
    name.split_once(CSI_SEPARATOR)
}

/// The name of the VolumeAttachment of a CSI volume to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = Sha256::new()
        .chain_update(handle)
        .chain_update(driver)
        .chain_update(node)
        .finalize();
    let mut name = "csi-".to_owned();
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// The name of the volume that is made for the claim with this UID.
pub fn provisioned_volume_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}

/// The name of the claim of a pod's generic ephemeral volume.
pub fn ephemeral_claim_name(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names() {
        assert_eq!(
            pod_volume_name("kubernetes.io/empty-dir", "1-2", "tmp"),
            "kubernetes.io/empty-dir/1-2-tmp"
        );
        assert_eq!(
            unique_volume_name("example.com/flex", "pv"),
            "example.com/flex/pv"
        );
        assert_eq!(split_csi_volume_name("example.com/flex/a^b"), None);
        // printf 'vol-1hostpath.csi.k8s.ionode-a' | sha256sum
        assert_eq!(
            attachment_name("vol-1", "hostpath.csi.k8s.io", "node-a"),
            "csi-5a70c5de395ccad5e79daeb27c7c4f2634b675e6e1bb2a397999a016143bc9fb"
        );
        assert_eq!(provisioned_volume_name("u"), "pvc-u");
        assert_eq!(ephemeral_claim_name("pod", "scratch"), "pod-scratch");
    }

    proptest! {
        #[test]
        fn csi_names_split_into_what_they_were_made_of(driver in "[a-z0-9.-]{1,20}", handle in ".*") {
            let name = csi_volume_name(&driver, &handle);
            prop_assert_eq!(split_csi_volume_name(&name), Some((&*driver, &*handle)));
        }
    }
}
