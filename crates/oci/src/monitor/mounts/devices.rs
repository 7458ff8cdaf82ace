//! Device files of a container.

use super::{NewRoot, Result};
use davit_beneath::{Permissions, Root};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Spec};
use rustix::fs::{FileType, makedev};
use std::io::ErrorKind;
use std::path::Path;

/// The devices that every container has, with their numbers.
const DEFAULT: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
/// The customary links of `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

impl NewRoot {
    /// Makes the device files, and the customary links in `/dev`.
    pub(in crate::monitor) fn devices(&self, spec: &Spec) -> Result<()> {
        if let Some(dev) = &self.dev {
            let theirs = Permissions {
                uid: Some(0),
                gid: Some(0),
                mode: Some(0o666),
            };
            for (name, major, minor) in DEFAULT {
                let number = makedev(major, minor);
                device(
                    dev,
                    Path::new(name),
                    FileType::CharacterDevice,
                    number,
                    &theirs,
                    true,
                )?;
            }
            for (name, says) in LINKS {
                match dev.symlink(says, name) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                        return Err(format!("link /dev/{error}"));
                    }
                    _ => {}
                }
            }
        }
        let linux = spec.linux().as_ref();
        for listed in linux
            .and_then(|l| l.devices().as_ref())
            .into_iter()
            .flatten()
        {
            self.listed(listed)?;
        }
        Ok(())
    }

    fn listed(&self, listed: &LinuxDevice) -> Result<()> {
        let kind = match listed.typ() {
            LinuxDeviceType::B => FileType::BlockDevice,
            LinuxDeviceType::P => FileType::Fifo,
            _ => FileType::CharacterDevice,
        };
        let number = makedev(listed.major() as u32, listed.minor() as u32);
        let theirs = Permissions {
            uid: Some(listed.uid().unwrap_or(0)),
            gid: Some(listed.gid().unwrap_or(0)),
            mode: Some(listed.file_mode().unwrap_or(0o666) & 0o7777),
        };
        let path = super::place::clean_path(listed.path());
        match (&self.dev, path.strip_prefix("/dev")) {
            (Some(dev), Ok(below)) => device(dev, below, kind, number, &theirs, true),
            _ => device(&self.root, &path, kind, number, &theirs, false),
        }
    }
}

/// Makes one device file. One that is there already stays when it is the same device, and is changed only in a `/dev`
/// of the container's own: elsewhere it may be the host's. Another file is replaced: a later entry wins. What is mounted in
/// that `/dev` stays as it is.
fn device(
    root: &Root,
    path: &Path,
    kind: FileType,
    number: u64,
    to: &Permissions,
    own: bool,
) -> Result<()> {
    let failed = |e: davit_beneath::Error| format!("device {}: {e}", path.display());
    if let Some(parent) = path.parent() {
        root.mkdir_all(parent, 0o755).map_err(failed)?;
    }
    match root.mknod(path, kind, number, to) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        other => return other.map(drop).map_err(failed),
    }
    let there = root.entry_itself(path).map_err(failed)?;
    let stat = there.stat().map_err(failed)?;
    let of_own = rustix::fs::fstat(root).map_err(|e| format!("device {}: {e}", path.display()))?;
    if own && stat.st_dev != of_own.st_dev {
        return Ok(());
    }
    if FileType::from_raw_mode(stat.st_mode) == kind && stat.st_rdev == number {
        return if own {
            there.set(to).map_err(failed)
        } else {
            Ok(())
        };
    }
    root.remove_file(path).map_err(failed)?;
    root.mknod(path, kind, number, to).map(drop).map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
    use std::os::unix::fs::MetadataExt as _;

    /// node-problem-detector is privileged and mounts the host's `/dev/kmsg` to read it: it is the host's, and stays as it is.
    #[test]
    fn what_is_mounted_in_dev_wins_and_is_not_changed() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (dev, host) = (dir.path().join("dev"), dir.path().join("host"));
        std::fs::create_dir(&dev).unwrap();
        std::fs::create_dir(&host).unwrap();
        if rustix::mount::mount("tmpfs", &host, "tmpfs", MountFlags::empty(), None).is_err() {
            println!("skipped: this machine does not let mount");
            return;
        }
        let (theirs, number) = (host.join("kmsg"), makedev(1, 11));
        let mode = rustix::fs::Mode::from_raw_mode(0o640);
        let kind = FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, &theirs, kind, mode, number).unwrap();
        let own = Root::open(&dev, davit_beneath::Links::Refused).unwrap();
        let to = Permissions {
            uid: Some(0),
            gid: Some(0),
            mode: Some(0o666),
        };
        let name = Path::new("kmsg");
        std::fs::write(dev.join(name), "").unwrap();
        let mut made = Vec::new();
        for read_only in [false, true] {
            mount_bind(&theirs, dev.join(name)).unwrap();
            if read_only {
                let flags = MountFlags::BIND | MountFlags::RDONLY;
                mount_remount(dev.join(name), flags, "").unwrap();
            }
            // the same device, and another one of the name
            made.push(device(&own, name, kind, number, &to, true));
            made.push(device(&own, name, kind, makedev(1, 3), &to, true));
            unmount(dev.join(name), UnmountFlags::DETACH).unwrap();
        }
        let left = std::fs::metadata(&theirs).unwrap();
        unmount(&host, UnmountFlags::DETACH).unwrap();
        assert_eq!(made, [Ok(()), Ok(()), Ok(()), Ok(())]);
        assert_eq!(left.mode() & 0o7777, 0o640);
        // What is no mount is the container's own.
        device(&own, name, kind, makedev(1, 3), &to, true).unwrap();
        device(&own, name, kind, makedev(1, 3), &to, true).unwrap();
        let of_own = std::fs::metadata(dev.join(name)).unwrap();
        assert_eq!(
            (of_own.rdev(), of_own.mode() & 0o7777),
            (makedev(1, 3), 0o666)
        );
    }
}
