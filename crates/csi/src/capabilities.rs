//! What a driver's program on the node can do.

use davit_proto::csi::v1::NodeGetCapabilitiesResponse;
use davit_proto::csi::v1::node_service_capability::{Type, rpc};

/// The answer of NodeGetCapabilities; what it does not list, the driver cannot do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// STAGE_UNSTAGE_VOLUME: volumes are staged before they are published.
    pub stage_unstage: bool,
    /// GET_VOLUME_STATS.
    pub volume_stats: bool,
    /// EXPAND_VOLUME.
    pub expand: bool,
    /// VOLUME_CONDITION, of CSI 1.12 and before.
    pub volume_condition: bool,
    /// SINGLE_NODE_MULTI_WRITER: the driver knows the modes SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_MULTI_WRITER.
    pub single_node_multi_writer: bool,
    /// VOLUME_MOUNT_GROUP: the driver gives files to a group itself.
    pub volume_mount_group: bool,
}

impl From<&NodeGetCapabilitiesResponse> for Capabilities {
    fn from(answer: &NodeGetCapabilitiesResponse) -> Self {
        let mut all = Self::default();
        for capability in &answer.capabilities {
            let Some(Type::Rpc(rpc)) = &capability.r#type else {
                continue;
            };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => all.stage_unstage = true,
                rpc::Type::GetVolumeStats => all.volume_stats = true,
                rpc::Type::ExpandVolume => all.expand = true,
                rpc::Type::VolumeCondition => all.volume_condition = true,
                rpc::Type::SingleNodeMultiWriter => all.single_node_multi_writer = true,
                rpc::Type::VolumeMountGroup => all.volume_mount_group = true,
                rpc::Type::Unknown | rpc::Type::GetVolumeHealth | rpc::Type::GetStorageHealth => {}
            }
        }
        all
    }
}
