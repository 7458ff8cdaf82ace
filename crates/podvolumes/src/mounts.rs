//! The few mount operations that volumes need, behind a trait so that they can be left out where the node lacks the
//! privilege, and in tests.

use super::mount_options::MountOptions;
use davit_beneath::mount::{attach, clone_tree};
use davit_beneath::mountinfo;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Mounts of volumes.
pub trait Mounter: Send + Sync {
    /// Whether something is mounted exactly on `path`.
    ///
    /// # Errors
    /// It cannot be known; that never means that nothing is.
    fn is_mount_point(&self, path: &Path) -> io::Result<bool>;
    /// Mounts a memory file system of at most `size` bytes (no limit when `None`).
    fn mount_memory(&self, path: &Path, size: Option<u64>) -> io::Result<()>;
    /// Mounts huge pages of `page_size` bytes.
    fn mount_hugepages(&self, path: &Path, page_size: u64) -> io::Result<()>;
    /// Binds what is open as `source` onto `target`.
    fn bind(&self, source: &OwnedFd, target: &Path) -> io::Result<()>;
    /// Mounts the file system on a device, without set-user-ID programs and devices.
    fn mount_device(
        &self,
        device: &Path,
        target: &Path,
        fs_type: &str,
        read_only: bool,
    ) -> io::Result<()>;
    /// Restricts what is mounted on `target`.
    fn restrict(&self, target: &Path, options: &MountOptions) -> io::Result<()>;
    /// Takes everything mounted on `path` off. Success when there is nothing.
    fn unmount(&self, path: &Path) -> io::Result<()>;
    /// Before mounts below `path` are taken off: those of the host stay, of which they are parts.
    ///
    /// # Errors
    /// It cannot be known or done.
    fn part_from_outside(&self, path: &Path) -> io::Result<()>;
    /// The same of a file system whose server does not answer: what waits for it fails, and what was not written is lost.
    ///
    /// # Errors
    /// What the kernel says.
    fn unmount_by_force(&self, path: &Path) -> io::Result<()>;
    /// Makes `path` a shared mount, so that mounts inside it reach containers and back.
    fn make_shared(&self, path: &Path) -> io::Result<()>;
    /// Undoes [`make_shared`](Self::make_shared) where nothing is mounted inside any more.
    fn release_shared(&self, path: &Path);
}

/// A directory that is a shared mount until this is dropped, however the agent ends.
#[derive(Default)]
pub struct SharedMount(Option<(Arc<dyn Mounter>, PathBuf)>);

impl SharedMount {
    /// Makes it one.
    ///
    /// # Errors
    /// As [`Mounter::make_shared`].
    pub fn make(&mut self, mounter: &Arc<dyn Mounter>, path: &Path) -> io::Result<()> {
        let path = path.canonicalize()?;
        let (_, path) = self.0.insert((mounter.clone(), path));
        mounter.make_shared(path)
    }
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        if let Some((mounter, path)) = &self.0 {
            mounter.release_shared(path);
        }
    }
}

/// Real mounts; needs root.
#[derive(Debug, Default)]
pub struct SystemMounter;

impl Mounter for SystemMounter {
    fn is_mount_point(&self, path: &Path) -> io::Result<bool> {
        mountinfo::is_mount_point(path)
    }

    fn mount_memory(&self, path: &Path, size: Option<u64>) -> io::Result<()> {
        let size = size.map(|n| format!("size={n}"));
        let mount = |swap: Option<&str>| {
            let options: Vec<&str> = size.as_deref().into_iter().chain(swap).collect();
            let options = std::ffi::CString::new(options.join(","))?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            rustix::mount::mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()))?;
            Ok(())
        };
        // Kernels before 6.4 do not know the option.
        mount(Some("noswap")).or_else(|_: io::Error| mount(None))
    }

    fn mount_hugepages(&self, path: &Path, page_size: u64) -> io::Result<()> {
        let options = std::ffi::CString::new(format!("pagesize={page_size}"))?;
        rustix::mount::mount(
            "nodev",
            path,
            "hugetlbfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            Some(options.as_c_str()),
        )?;
        Ok(())
    }

    fn bind(&self, source: &OwnedFd, target: &Path) -> io::Result<()> {
        // By descriptor, so that a container cannot swap the path for a link in between.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(CWD, target, flags, Mode::empty())?;
        Ok(attach(clone_tree(source, false)?, target)?)
    }

    fn mount_device(
        &self,
        device: &Path,
        target: &Path,
        fs_type: &str,
        read_only: bool,
    ) -> io::Result<()> {
        // What is on it a pod may have written, or whoever had the device before.
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, read_only);
        Ok(rustix::mount::mount(device, target, fs_type, flags, None)?)
    }

    fn restrict(&self, target: &Path, options: &MountOptions) -> io::Result<()> {
        Ok(rustix::mount::mount_remount(
            target,
            MountFlags::BIND | options.flags(),
            "",
        )?)
    }

    fn unmount(&self, path: &Path) -> io::Result<()> {
        for _ in 0..16 {
            match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
                Err(rustix::io::Errno::BUSY) => {
                    // What is mounted on it goes with it.
                    self.part_from_outside(path)?;
                    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn part_from_outside(&self, path: &Path) -> io::Result<()> {
        mountinfo::part_from_outside(path)
    }

    fn unmount_by_force(&self, path: &Path) -> io::Result<()> {
        use rustix::io::Errno;
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE;
        match rustix::mount::unmount(path, flags) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::BUSY) => {}
            Err(e) => return Err(e.into()),
        }
        // What is still used goes with its last user, and nobody comes to it any more.
        self.part_from_outside(path)?;
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        match rustix::mount::unmount(path, flags) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn make_shared(&self, path: &Path) -> io::Result<()> {
        // Bound to itself it would be a second peer of what it lies on: each mount in it would be there twice.
        if mountinfo::is_shared(path)? {
            return Ok(());
        }
        if !self.is_mount_point(path)? {
            rustix::mount::mount_bind(path, path)?;
        }
        rustix::mount::mount_change(
            path,
            MountPropagationFlags::SHARED | MountPropagationFlags::REC,
        )?;
        Ok(())
    }

    fn release_shared(&self, path: &Path) {
        // Busy means that volumes of running pods are inside: they stay.
        let _ = rustix::mount::unmount(path, UnmountFlags::NOFOLLOW);
    }
}

/// No mounts at all: plain directories stand in for memory file systems, and sub-paths are used where they are.
#[derive(Debug, Default)]
pub struct NoMounter;

impl Mounter for NoMounter {
    fn is_mount_point(&self, _: &Path) -> io::Result<bool> {
        Ok(false)
    }
    fn mount_memory(&self, _: &Path, _: Option<u64>) -> io::Result<()> {
        Ok(())
    }
    fn mount_hugepages(&self, _: &Path, _: u64) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "huge page volumes need a node that runs as root",
        ))
    }
    fn bind(&self, _: &OwnedFd, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn mount_device(&self, _: &Path, _: &Path, _: &str, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn restrict(&self, _: &Path, _: &MountOptions) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn unmount(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn part_from_outside(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn unmount_by_force(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn make_shared(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn release_shared(&self, _: &Path) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod has a part of the host's directory, in which something is mounted later.
    #[test]
    fn what_is_mounted_on_the_host_stays_when_a_pod_goes() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let at = |path: &str| tmp.path().join(path);
        let (host, pod) = (at("host"), at("pods/u"));
        for dir in [&host, &pod.join("part")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let mounter = SystemMounter;
        if mounter.mount_memory(&host, None).is_err() {
            println!("skipped: this machine does not let mount");
            return;
        }
        mounter.make_shared(&host).unwrap();
        let disk = host.join("part/disk");
        std::fs::create_dir_all(&disk).unwrap();
        for below in [true, false] {
            let part = OFlags::PATH | OFlags::CLOEXEC;
            let part = rustix::fs::openat(CWD, host.join("part"), part, Mode::empty()).unwrap();
            mounter.bind(&part, &pod.join("part")).unwrap();
            drop(part);
            mounter.mount_memory(&disk, None).unwrap();
            assert!(mounter.is_mount_point(&pod.join("part/disk")).unwrap());
            let gone = match below {
                true => crate::unmount_below(&mounter, &pod),
                false => mounter.unmount(&pod.join("part")),
            };
            let stays = mounter.is_mount_point(&disk).unwrap();
            rustix::mount::unmount(&disk, UnmountFlags::DETACH).ok();
            gone.unwrap();
            assert!(stays, "unmounted on the host");
            assert!(!mounter.is_mount_point(&pod.join("part")).unwrap());
        }
        mounter.unmount(&host).unwrap();
    }

    #[test]
    fn nothing_stays_mounted_however_the_agent_ends() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounts need root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mounter: Arc<dyn Mounter> = Arc::new(SystemMounter);
        let mut shared = SharedMount::default();
        if shared.make(&mounter, dir.path()).is_err() {
            println!("skipped: this machine does not let mount");
            return;
        }
        let bound = mounter.is_mount_point(dir.path()).unwrap();
        assert!(bound || mountinfo::is_shared(Path::new("/")).unwrap());
        drop(shared);
        assert!(!mounter.is_mount_point(dir.path()).unwrap());
    }
}
