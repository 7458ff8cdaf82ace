//! procfs that is known to be procfs.
//!
//! Kernel settings of the host and of containers are files of procfs, and some calls reach a descriptor only through
//! `/proc/thread-self/fd`. A mount over a part of `/proc`, or something else mounted there, would turn a write of
//! davit's into one to a file of somebody's choice (CVE-2019-16884, CVE-2025-52881).

use crate::error::{Error, Result};
use rustix::fs::{
    CWD, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, chmodat, fstat, fstatfs, openat, openat2,
};
use rustix::mount::{OpenTreeFlags, open_tree};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// Number of the root directory of every procfs.
const ROOT_INODE: u64 = 1;

/// The root of a procfs, verified. What is mounted over a part of it is never entered.
#[derive(Debug)]
pub struct Procfs {
    root: OwnedFd,
}

impl Procfs {
    /// The procfs that was at `/proc` at the first call. With the privilege to mount it is held as a mount of our own
    /// that is nowhere in the tree, so that nobody can mount anything over it.
    ///
    /// # Errors
    /// There is no procfs.
    pub fn of_host() -> Result<&'static Self> {
        static HOST: OnceLock<Procfs> = OnceLock::new();
        if let Some(host) = HOST.get() {
            return Ok(host);
        }
        let fd = detached().or_else(|_| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, "/proc", flags, Mode::empty()).map_err(Error::at("/proc"))
        })?;
        let opened = Procfs::from_fd(fd)?;
        Ok(HOST.get_or_init(|| opened))
    }

    /// Takes the root of a procfs.
    ///
    /// # Errors
    /// It is not one.
    pub fn from_fd(root: OwnedFd) -> Result<Self> {
        let is_procfs = fstatfs(&root).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC);
        let is_root = fstat(&root).is_ok_and(|stat| stat.st_ino == ROOT_INODE);
        if is_procfs && is_root {
            Ok(Procfs { root })
        } else {
            Err(Error::Unexpected {
                what: "/proc",
                expected: "the root of a procfs",
            })
        }
    }

    /// Opens a file below; nothing that is mounted over a part of the path, no link that leads anywhere.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(&self, path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd> {
        let path = path.as_ref();
        let rules = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        openat2(
            &self.root,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            rules,
        )
        .map_err(Error::at(path))
    }

    /// Reads a file of at most `limit` bytes.
    ///
    /// # Errors
    /// What the kernel says, and [`Error::TooLarge`].
    pub fn read(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let file = File::from(self.open(path, OFlags::RDONLY)?);
        crate::inode::read_limited(file, path, limit)
    }

    /// Writes a setting, in one call.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(&self, path: impl AsRef<Path>, data: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        File::from(self.open(path, OFlags::WRONLY)?)
            .write_all(data.as_ref())
            .map_err(Error::io(path))
    }

    /// Opens anew what is open as `fd`.
    pub(crate) fn reopen(&self, fd: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        let (dir, name) = self.link(fd)?;
        openat(&dir, &name, flags | OFlags::CLOEXEC, Mode::empty()).map_err(Error::at(name))
    }

    /// Sets the permission bits of what is open as `fd`, also with `O_PATH`.
    pub(crate) fn chmod(&self, fd: impl AsFd, mode: Mode) -> Result<()> {
        let (dir, name) = self.link(fd)?;
        chmodat(&dir, &name, mode, rustix::fs::AtFlags::empty()).map_err(Error::at(name))
    }

    /// Where the link is that stands for a descriptor: the directory and the name.
    fn link(&self, fd: impl AsFd) -> Result<(OwnedFd, String)> {
        let dir = self.open("thread-self/fd", OFlags::PATH | OFlags::DIRECTORY)?;
        let name = fd.as_fd().as_raw_fd().to_string();
        // The link itself must not be covered by a mount either.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let rules = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        openat2(&dir, &name, flags, Mode::empty(), rules).map_err(Error::at(&name))?;
        Ok((dir, name))
    }
}

/// A mount of `/proc` without what is mounted over parts of it, and nowhere in the tree.
fn detached() -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, "/proc", flags).map_err(Error::at("/proc"))
}
