//! Container Storage Interface (<https://github.com/container-storage-interface/spec>): served by drivers; the node agent
//! calls `Identity` and `Node`, the drivers' sidecars `Controller`.

/// Version 1, with the fields of CSI 1.12 and 1.13.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    include!("generated/csi/csi.v1.rs");
}

use std::fmt;

/// A debug print with the named fields only.
macro_rules! debug_without_secrets {
    ($($message:path { $($field:ident),* })*) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    )*};
}

// Left out are secrets, what a driver hands from call to call (credentials for the storage), contexts (tokens of
// service accounts) and mount flags (passwords of network file systems).
debug_without_secrets! {
    v1::volume_capability::MountVolume { fs_type, volume_mount_group }
    v1::CreateVolumeRequest { name, capacity_range, volume_capabilities, volume_content_source, accessibility_requirements }
    v1::DeleteVolumeRequest { volume_id }
    v1::ControllerPublishVolumeRequest { volume_id, node_id, volume_capability, readonly }
    v1::ControllerUnpublishVolumeRequest { volume_id, node_id }
    v1::ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities }
    v1::ControllerListVolumeHealthRequest { max_entries, starting_token }
    v1::ControllerGetVolumeHealthRequest { volume_id }
    v1::ControllerModifyVolumeRequest { volume_id }
    v1::ControllerExpandVolumeRequest { volume_id, capacity_range, volume_capability }
    v1::CreateSnapshotRequest { source_volume_id, name }
    v1::DeleteSnapshotRequest { snapshot_id }
    v1::ListSnapshotsRequest { max_entries, starting_token, source_volume_id, snapshot_id }
    v1::GetSnapshotRequest { snapshot_id }
    v1::NodeStageVolumeRequest { volume_id, staging_target_path, volume_capability }
    v1::NodePublishVolumeRequest { volume_id, staging_target_path, target_path, volume_capability, readonly }
    v1::NodeExpandVolumeRequest { volume_id, volume_path, capacity_range, staging_target_path }
    v1::NodeGetStorageHealthRequest {}
}

#[cfg(test)]
mod tests {
    use super::v1::*;
    use std::collections::BTreeMap;

    #[test]
    fn secrets_contexts_and_flags_are_not_printed() {
        let hidden = BTreeMap::from([("hidden-key".to_owned(), "hidden-value".to_owned())]);
        let mount = volume_capability::MountVolume {
            mount_flags: vec!["password=hidden".to_owned()],
            ..Default::default()
        };
        let request = NodePublishVolumeRequest {
            volume_id: "v1".to_owned(),
            secrets: hidden.clone(),
            volume_context: hidden.clone(),
            publish_context: hidden,
            volume_capability: Some(VolumeCapability {
                access_type: Some(volume_capability::AccessType::Mount(mount)),
                access_mode: None,
            }),
            ..Default::default()
        };
        let text = format!("{request:?}");
        assert!(text.contains("v1") && !text.contains("hidden"), "{text}");
    }
}
