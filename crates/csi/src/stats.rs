//! How full a volume is.

use crate::Error;
use davit_proto::csi::v1::NodeGetVolumeStatsResponse;
use davit_proto::csi::v1::volume_usage::Unit;

/// The answer of NodeGetVolumeStats. What the driver does not say is zero, as upstream has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Bytes that can still be written.
    pub available_bytes: i64,
    /// Bytes in all.
    pub capacity_bytes: i64,
    /// Bytes written.
    pub used_bytes: i64,
    /// Inodes that can still be made.
    pub inodes_free: i64,
    /// Inodes in all.
    pub inodes: i64,
    /// Inodes in use.
    pub inodes_used: i64,
    /// Whether something is wrong with the volume, and what; only drivers with VOLUME_CONDITION say so.
    pub condition: Option<(bool, String)>,
}

impl VolumeStats {
    /// Reads the answer.
    ///
    /// # Errors
    /// [`Error::NoUsage`] when it says nothing at all.
    pub(crate) fn read(answer: NodeGetVolumeStatsResponse) -> Result<Self, Error> {
        let mut stats = Self {
            condition: answer.volume_condition.map(|c| (c.abnormal, c.message)),
            ..Self::default()
        };
        if answer.usage.is_empty() && stats.condition.is_none() {
            return Err(Error::NoUsage);
        }
        for usage in &answer.usage {
            // Who reads the node's statistics knows no negative numbers there, and would read nothing of the whole node.
            let [available, total, used] =
                [usage.available, usage.total, usage.used].map(|number| number.max(0));
            match usage.unit() {
                Unit::Bytes => {
                    stats.available_bytes = available;
                    stats.capacity_bytes = total;
                    stats.used_bytes = used;
                }
                Unit::Inodes => {
                    stats.inodes_free = available;
                    stats.inodes = total;
                    stats.inodes_used = used;
                }
                Unit::Unknown => tracing::warn!(unit = usage.unit, "unknown unit in VolumeUsage"),
            }
        }
        Ok(stats)
    }
}
