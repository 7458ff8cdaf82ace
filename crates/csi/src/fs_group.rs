//! Who gives a volume's files to the fsGroup of a pod.

use crate::{Capabilities, CsiVolume, LifecycleMode};

/// `fsGroupPolicy` of a CSIDriver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FsGroupPolicy {
    /// Only volumes with a file system type that one node at a time may write.
    #[default]
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

impl FsGroupPolicy {
    /// The policy of a name; the default for none, and for one that is not known.
    pub fn parse(name: Option<&str>) -> Self {
        match name {
            Some("File") => Self::File,
            Some("None") => Self::None,
            _ => Self::ReadWriteOnceWithFsType,
        }
    }
}

/// What is to be done for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsGroup {
    /// Nothing.
    Leave,
    /// The driver does it; it is told the group with stage and publish.
    Driver(i64),
    /// The agent passes over the files after they are published.
    Agent(i64),
}

/// Decides for one pod. `read_only` is whether the pod cannot write the volume.
pub fn decide(
    group: Option<i64>,
    policy: FsGroupPolicy,
    volume: &CsiVolume,
    read_only: bool,
    capabilities: Capabilities,
) -> FsGroup {
    let Some(group) = group.filter(|_| !volume.block) else {
        return FsGroup::Leave;
    };
    if capabilities.volume_mount_group {
        return FsGroup::Driver(group);
    }
    let wanted = match policy {
        FsGroupPolicy::None => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFsType => {
            let once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
            let by_one = volume.lifecycle == LifecycleMode::Ephemeral
                || volume.access_modes.iter().any(once);
            by_one && !volume.fs_type.is_empty()
        }
    };
    if wanted && !read_only {
        FsGroup::Agent(group)
    } else {
        FsGroup::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(fs_type: &str, modes: &[&str]) -> CsiVolume {
        CsiVolume {
            fs_type: fs_type.to_owned(),
            access_modes: modes.iter().map(|m| (*m).to_owned()).collect(),
            ..CsiVolume::default()
        }
    }

    #[test]
    fn item_082_the_policies() {
        let plain = Capabilities::default();
        let by = |policy, volume: &CsiVolume, read_only| {
            decide(Some(7), policy, volume, read_only, plain) == FsGroup::Agent(7)
        };
        let default = FsGroupPolicy::parse(None);
        for (fs_type, modes, expected) in [
            ("ext4", vec!["ReadWriteOnce"], true),
            ("ext4", vec!["ReadOnlyMany", "ReadWriteOncePod"], true),
            ("ext4", vec!["ReadWriteMany"], false),
            ("ext4", vec![], false),
            ("", vec!["ReadWriteOnce"], false),
        ] {
            let volume = volume(fs_type, &modes);
            assert_eq!(by(default, &volume, false), expected, "{fs_type} {modes:?}");
            assert!(!by(default, &volume, true));
            assert!(by(FsGroupPolicy::File, &volume, false));
            assert!(!by(FsGroupPolicy::File, &volume, true));
            assert!(!by(FsGroupPolicy::None, &volume, false));
        }
        let inline = CsiVolume {
            lifecycle: LifecycleMode::Ephemeral,
            ..volume("ext4", &[])
        };
        assert!(by(default, &inline, false));
        assert_eq!(
            decide(None, FsGroupPolicy::File, &inline, false, plain),
            FsGroup::Leave
        );
    }

    #[test]
    fn a_driver_that_can_does_it_alone() {
        let able = Capabilities {
            volume_mount_group: true,
            ..Capabilities::default()
        };
        let decided = |volume: &CsiVolume| decide(Some(7), FsGroupPolicy::None, volume, true, able);
        assert_eq!(decided(&volume("", &[])), FsGroup::Driver(7));
        let block = CsiVolume {
            block: true,
            ..CsiVolume::default()
        };
        assert_eq!(decided(&block), FsGroup::Leave);
    }
}
