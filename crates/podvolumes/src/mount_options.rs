//! Mount options of binds: those that a kernel can set on what is mounted already.

use super::error::Cause;
use rustix::mount::MountFlags;

/// Options for one mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountOptions(MountFlags);

impl MountOptions {
    /// Nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `ro` is asked for.
    pub fn read_only(&self) -> bool {
        self.0.contains(MountFlags::RDONLY)
    }

    /// As the kernel takes them.
    pub fn flags(&self) -> MountFlags {
        self.0
    }
}

/// Reads options as mount(8) names them; of two that contradict one another the later counts.
///
/// # Errors
/// One that a bind cannot have.
pub(super) fn parse(options: &[String]) -> Result<MountOptions, Cause> {
    let mut flags = MountFlags::empty();
    for option in options {
        match option.trim() {
            "" | "defaults" | "bind" | "rbind" => {}
            "ro" => flags |= MountFlags::RDONLY,
            "rw" => flags -= MountFlags::RDONLY,
            "nosuid" => flags |= MountFlags::NOSUID,
            "suid" => flags -= MountFlags::NOSUID,
            "nodev" => flags |= MountFlags::NODEV,
            "dev" => flags -= MountFlags::NODEV,
            "noexec" => flags |= MountFlags::NOEXEC,
            "exec" => flags -= MountFlags::NOEXEC,
            "noatime" => flags |= MountFlags::NOATIME,
            "atime" => flags -= MountFlags::NOATIME,
            "nodiratime" => flags |= MountFlags::NODIRATIME,
            "diratime" => flags -= MountFlags::NODIRATIME,
            "relatime" => flags |= MountFlags::RELATIME,
            other => {
                return Err(Cause::Claim(format!(
                    "mount option {other:?} is not one of a bind mount"
                )));
            }
        }
    }
    Ok(MountOptions(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let parsed = |text: &str| parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        let both = parsed("ro,noexec,rw").unwrap();
        assert_eq!(both.flags(), MountFlags::NOEXEC);
        assert!(parsed("defaults").unwrap().is_empty());
        assert_eq!(
            parsed("vers=4").unwrap_err().to_string(),
            "mount option \"vers=4\" is not one of a bind mount"
        );
    }
}
