//! Making, replacing and removing.

use crate::error::{Error, Result};
use crate::inode::{Inode, Permissions};
use crate::resolve;
use crate::root::{Links, Root, TargetKind};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fstat, linkat, mkdirat, mknodat, openat, readlinkat, renameat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Links that lead to what does not exist yet and are followed while making it, as many as the kernel follows at most.
const MAX_LINKS: u8 = 40;

impl Root {
    /// Opens a directory, making it and its parents where they are missing, with the permission bits `mode`.
    ///
    /// # Errors
    /// Something else is there, or a way that leaves the root.
    pub fn mkdir_all(&self, path: impl AsRef<Path>, mode: u32) -> Result<Root> {
        let fd = self.make_dirs(path.as_ref(), mode, MAX_LINKS)?;
        Root::from_fd(fd, self.links())
    }

    /// Opens what a mount is to go on, making an empty directory or file (and the parents) where nothing is.
    ///
    /// # Errors
    /// A way that leaves the root.
    pub fn target(&self, path: impl AsRef<Path>, kind: TargetKind) -> Result<Inode> {
        let path = path.as_ref();
        match kind {
            TargetKind::Directory => self.make_dirs(path, 0o755, MAX_LINKS),
            TargetKind::File => self.make_file(path, MAX_LINKS),
        }
        .map(Inode::from)
    }

    fn make_dirs(&self, path: &Path, mode: u32, links: u8) -> Result<OwnedFd> {
        match self.look(path, OFlags::PATH | OFlags::DIRECTORY) {
            Err(error) if error.is_not_found() => {}
            other => return other,
        }
        let (above, name) = resolve::split(path)?;
        let parent = self.make_dirs(above, mode, links)?;
        match mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
            Ok(()) => made_directory(&parent, name, mode).map_err(Error::at(path)),
            Err(Errno::EXIST) => {
                // Somebody made it meanwhile, or it is a link to what does not exist yet.
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                match resolve::child(&parent, name, flags) {
                    Err(Errno::NOTDIR | Errno::LOOP) => {
                        let onward = self.follow(path, above, &parent, name, links)?;
                        self.make_dirs(&onward, mode, links - 1)
                    }
                    other => other.map_err(Error::at(path)),
                }
            }
            Err(error) => Err(Error::at(path)(error)),
        }
    }

    fn make_file(&self, path: &Path, links: u8) -> Result<OwnedFd> {
        match self.look(path, OFlags::PATH) {
            Err(error) if error.is_not_found() => {}
            other => return other,
        }
        let (above, name) = resolve::split(path)?;
        let parent = self.make_dirs(above, 0o755, links)?;
        match exclusive(&parent, name, 0o644) {
            Ok(file) => Ok(file),
            Err(Errno::EXIST) => match resolve::child(&parent, name, OFlags::PATH) {
                Ok(fd) if !is_link(&fd) => Ok(fd),
                Ok(_) => {
                    let onward = self.follow(path, above, &parent, name, links)?;
                    self.make_file(&onward, links - 1)
                }
                Err(error) => Err(Error::at(path)(error)),
            },
            Err(error) => Err(Error::at(path)(error)),
        }
    }

    /// Where a link leads whose end does not exist yet; the answer is resolved below the root like any other path.
    fn follow(
        &self,
        path: &Path,
        above: &Path,
        parent: &OwnedFd,
        name: &OsStr,
        links: u8,
    ) -> Result<PathBuf> {
        if links == 0 || self.links() == Links::Refused {
            return Err(Error::Escapes(path.to_owned()));
        }
        let text = readlinkat(parent, name, Vec::new()).map_err(Error::at(path))?;
        let to = Path::new(OsStr::from_bytes(text.to_bytes()));
        if to.is_absolute() && self.links() == Links::Inside {
            return Err(Error::Escapes(path.to_owned()));
        }
        Ok(if to.is_absolute() {
            to.to_owned()
        } else {
            above.join(to)
        })
    }

    /// Makes a file that was not there, in a directory that is.
    ///
    /// # Errors
    /// Something is there already ([`std::io::ErrorKind::AlreadyExists`]), or a way that leaves the root.
    pub fn create_new(&self, path: impl AsRef<Path>, mode: u32) -> Result<File> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let file = exclusive(&parent, name, mode).map_err(Error::at(path))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(Error::at(path))?;
        Ok(file.into())
    }

    /// Puts a file with this content in the place of whatever is there (unless a directory is), at once: a reader sees
    /// all of the old or all of the new. A link that is there is replaced, not followed.
    ///
    /// # Errors
    /// A way that leaves the root, or what the kernel says.
    pub fn write(&self, path: impl AsRef<Path>, data: &[u8], to: &Permissions) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let (staged, file) = staging_file(&parent).map_err(Error::at(path))?;
        let mut file = File::from(file);
        let written = file
            .write_all(data)
            .map_err(Error::io(path))
            .and_then(|()| {
                Inode::from(OwnedFd::from(file)).set(&Permissions {
                    mode: Some(to.mode.unwrap_or(0o600)),
                    ..*to
                })?;
                renameat(&parent, &staged, &parent, name).map_err(Error::at(path))
            });
        if written.is_err() {
            let _ = unlinkat(&parent, &staged, AtFlags::empty());
        }
        written
    }

    /// Gives a file this content and these permission bits where it is, or makes it: whoever has it mounted or open sees what
    /// is new. A link is not followed, and what is no file, or another account's, is left alone.
    ///
    /// # Errors
    /// Something else is there, a way that leaves the root, or what the kernel says.
    pub fn write_in_place(&self, path: impl AsRef<Path>, data: &[u8], mode: u32) -> Result<()> {
        let path = path.as_ref();
        let inode = match self.entry_itself(path) {
            Err(error) if error.is_not_found() => {
                let mut file = self.create_new(path, mode)?;
                return file.write_all(data).map_err(Error::io(path));
            }
            found => found?,
        };
        if inode.kind()? != FileType::RegularFile {
            return Err(Error::NotRegular(path.to_owned()));
        }
        crate::ours(path, inode.stat()?.st_uid)?;
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mut file = File::from(inode.reopen(flags)?);
        file.write_all(data).map_err(Error::io(path))?;
        inode.set(&Permissions::mode(mode))
    }

    /// Makes a symbolic link. What it says is not looked at.
    ///
    /// # Errors
    /// Something is there already, or a way that leaves the root.
    pub fn symlink(&self, says: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        symlinkat(says.as_ref(), &parent, name).map_err(Error::at(path))
    }

    /// Gives what is at `existing` (a link itself, not its end) another name.
    ///
    /// # Errors
    /// Something is there already, or a way that leaves the root.
    pub fn hard_link(&self, existing: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (existing, path) = (existing.as_ref(), path.as_ref());
        let (from, old) = self.parent(existing)?;
        let (to, new) = self.parent(path)?;
        linkat(&from, old, &to, new, AtFlags::empty()).map_err(Error::at(path))
    }

    /// Makes a device file, FIFO or socket and answers with it.
    ///
    /// # Errors
    /// Something is there already, or a way that leaves the root.
    pub fn mknod(
        &self,
        path: impl AsRef<Path>,
        kind: FileType,
        device: u64,
        to: &Permissions,
    ) -> Result<Inode> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let mode = Mode::from_raw_mode(to.mode.unwrap_or(0o600) & 0o7777);
        mknodat(&parent, name, kind, mode, device).map_err(Error::at(path))?;
        let made =
            Inode::from(resolve::child(&parent, name, OFlags::PATH).map_err(Error::at(path))?);
        let stat = made.stat()?;
        let devices = [FileType::CharacterDevice, FileType::BlockDevice];
        if FileType::from_raw_mode(stat.st_mode) != kind
            || (devices.contains(&kind) && stat.st_rdev != device)
        {
            return Err(Error::Unexpected {
                what: "device file",
                expected: "the one that was just made",
            });
        }
        made.set(to)?;
        Ok(made)
    }

    /// Moves an entry, in the place of what is there.
    ///
    /// # Errors
    /// A way that leaves the root, or what the kernel says.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (old_dir, old) = self.parent(from)?;
        let (new_dir, new) = self.parent(to)?;
        renameat(&old_dir, old, &new_dir, new).map_err(Error::at(to))
    }

    /// Removes what is not a directory.
    ///
    /// # Errors
    /// Nothing is there, a directory is, or a way that leaves the root.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        unlinkat(&parent, name, AtFlags::empty()).map_err(Error::at(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// It is not there, not empty or no directory, or a way that leaves the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(Error::at(path))
    }
}

fn is_link(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}

/// Opens the directory that was just made and gives it what the umask took away. When somebody has put another
/// directory in its place, that one's permissions stay as they are.
fn made_directory(parent: &OwnedFd, name: &OsStr, mode: u32) -> rustix::io::Result<OwnedFd> {
    let fd = resolve::child(parent, name, OFlags::PATH | OFlags::DIRECTORY)?;
    let stat = fstat(&fd)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    // A group that the parent's set-group-ID bit gave on stays.
    let bits = (mode & 0o7777) | (stat.st_mode & 0o2000);
    if !ours || stat.st_mode & 0o7777 == bits {
        return Ok(fd);
    }
    let inode = Inode::from(fd);
    inode
        .set(&Permissions::mode(bits))
        .map_err(|e| e.errno().unwrap_or(Errno::IO))?;
    Ok(inode.into())
}

fn exclusive(parent: &OwnedFd, name: &OsStr, mode: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::from_raw_mode(mode & 0o7777))
}

/// A new file under a name that nothing else uses. Never more than the owner's until it is complete.
fn staging_file(parent: &OwnedFd) -> rustix::io::Result<(String, OwnedFd)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    const TRIES: usize = 64;
    let process = rustix::process::getpid().as_raw_nonzero();
    for _ in 0..TRIES {
        let name = format!("..new-{process}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        match exclusive(parent, OsStr::new(&name), 0o600) {
            Err(Errno::EXIST) => {}
            other => return other.map(|fd| (name, fd)),
        }
    }
    Err(Errno::EXIST)
}
