//! Mount options.

use nix::libc;

/// Mount options, sorted into what the kernel's calls take.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) attrs: u64,
    pub(super) recursive_readonly: bool,
    pub(super) bind: bool,
    pub(super) recursive: bool,
    pub(super) propagation: Option<u64>,
    pub(super) data: Vec<String>,
}

impl Options {
    pub(super) fn parse(options: Option<&Vec<String>>) -> Self {
        let mut parsed = Options::default();
        for option in options.into_iter().flatten() {
            match option.as_str() {
                "ro" => parsed.attrs |= libc::MOUNT_ATTR_RDONLY,
                "rro" => {
                    parsed.attrs |= libc::MOUNT_ATTR_RDONLY;
                    parsed.recursive_readonly = true;
                }
                "nosuid" => parsed.attrs |= libc::MOUNT_ATTR_NOSUID,
                "nodev" => parsed.attrs |= libc::MOUNT_ATTR_NODEV,
                "noexec" => parsed.attrs |= libc::MOUNT_ATTR_NOEXEC,
                "noatime" => parsed.attrs |= libc::MOUNT_ATTR_NOATIME,
                "strictatime" => parsed.attrs |= libc::MOUNT_ATTR_STRICTATIME,
                "nodiratime" => parsed.attrs |= libc::MOUNT_ATTR_NODIRATIME,
                "rw" | "suid" | "dev" | "exec" | "relatime" | "defaults" => {}
                "bind" => parsed.bind = true,
                "rbind" => (parsed.bind, parsed.recursive) = (true, true),
                "private" | "rprivate" => parsed.propagation = Some(libc::MS_PRIVATE),
                "slave" | "rslave" => parsed.propagation = Some(libc::MS_SLAVE),
                "shared" | "rshared" => parsed.propagation = Some(libc::MS_SHARED),
                "unbindable" | "runbindable" => parsed.propagation = Some(libc::MS_UNBINDABLE),
                data => parsed.data.push(data.to_owned()),
            }
        }
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let list: Vec<String> = ["rbind", "rprivate", "ro", "nosuid", "size=64k"]
            .map(str::to_owned)
            .into();
        let parsed = Options::parse(Some(&list));
        assert!(parsed.bind && parsed.recursive && !parsed.recursive_readonly);
        assert_eq!(
            parsed.attrs,
            libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID
        );
        assert_eq!(parsed.propagation, Some(libc::MS_PRIVATE));
        assert_eq!(parsed.data, ["size=64k"]);
    }
}
