//! Something below a root, held open without having been touched.

use crate::error::{Error, Result};
use crate::procfs::Procfs;
use crate::root::{Links, Root};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fgetxattr, fsetxattr, fstat, makedev, utimensat,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The attribute by which overlayfs knows directories that hide those below.
const OPAQUE: &str = "trusted.overlay.opaque";

/// Whose something is and who may use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Owner; `None` leaves it.
    pub uid: Option<u32>,
    /// Group; `None` leaves it.
    pub gid: Option<u32>,
    /// Permission bits, set exactly, whatever the process's umask; `None` leaves them.
    pub mode: Option<u32>,
}

impl Permissions {
    /// Permission bits only.
    #[must_use]
    pub fn mode(mode: u32) -> Self {
        Permissions {
            mode: Some(mode),
            ..Permissions::default()
        }
    }
}

/// A file, directory, link, device, FIFO or socket that is held open (`O_PATH`). It stays the same one whatever happens to
/// the path that led to it.
#[derive(Debug)]
pub struct Inode {
    fd: OwnedFd,
}

impl Inode {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Inode { fd }
    }

    /// Its metadata.
    ///
    /// # Errors
    /// I/O errors of the file system.
    pub fn stat(&self) -> Result<Stat> {
        fstat(&self.fd).map_err(Error::at(""))
    }

    /// What it is.
    ///
    /// # Errors
    /// I/O errors of the file system.
    pub fn kind(&self) -> Result<FileType> {
        Ok(FileType::from_raw_mode(self.stat()?.st_mode))
    }

    /// Whether it is the character device with these numbers: `(1, 3)` is `/dev/null`, and nothing else is.
    #[must_use]
    pub fn is_char_device(&self, major: u32, minor: u32) -> bool {
        self.stat().is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
                && stat.st_rdev == makedev(major, minor)
        })
    }

    /// What a link says.
    ///
    /// # Errors
    /// It is not a link.
    pub fn read_link(&self) -> Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.fd, "", Vec::new()).map_err(Error::at(""))?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Opens it for use. Only for what is known to be harmless to open: a FIFO waits, a device acts.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        Procfs::of_host()?.reopen(&self.fd, flags)
    }

    /// Opens a regular file for reading; `path` is for the error.
    ///
    /// # Errors
    /// It is something else, which is then not opened.
    pub fn open_regular(&self, path: impl AsRef<Path>) -> Result<File> {
        if self.kind()? != FileType::RegularFile {
            return Err(Error::NotRegular(path.as_ref().to_owned()));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.reopen(flags).map(File::from)
    }

    /// Gives it to others and sets its permission bits. Of links only the owner is set: they have no permissions.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set(&self, to: &Permissions) -> Result<()> {
        if to.uid.is_some() || to.gid.is_some() {
            let (uid, gid) = (to.uid.map(Uid::from_raw), to.gid.map(Gid::from_raw));
            chownat(&self.fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(Error::at(""))?;
        }
        // After the owner: a change of owner takes set-ID bits away.
        match to.mode {
            Some(mode) if self.kind()? != FileType::Symlink => {
                Procfs::of_host()?.chmod(&self.fd, Mode::from_raw_mode(mode & 0o7777))
            }
            _ => Ok(()),
        }
    }

    /// Sets when it was changed last.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_modified(&self, seconds: i64) -> Result<()> {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(&self.fd, "", &times, AtFlags::EMPTY_PATH).map_err(Error::at(""))
    }

    /// Sets an extended attribute of a file or directory; nothing else can have one that davit knows.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        let fd = self.readable()?;
        fsetxattr(&fd, name, value, XattrFlags::empty()).map_err(Error::at(name))
    }

    /// Whether it is a directory of an overlay's layer that hides what the layers below have there.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        let mut value = [0; 1];
        self.readable().is_ok_and(|fd| {
            fgetxattr(&fd, OPAQUE, &mut value[..]).is_ok_and(|length| value[..length] == *b"y")
        })
    }

    /// Makes it such a directory.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_opaque(&self) -> Result<()> {
        self.set_attribute(OPAQUE, b"y")
    }

    /// A descriptor that attributes can be reached by. Only regular files and directories are harmless to open.
    fn readable(&self) -> Result<OwnedFd> {
        match self.kind()? {
            FileType::RegularFile | FileType::Directory => {
                self.reopen(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
            }
            _ => Err(Error::Unexpected {
                what: "file with attributes",
                expected: "a regular file or directory",
            }),
        }
    }

    /// The directory as a root of its own.
    ///
    /// # Errors
    /// It is not a directory.
    pub fn into_root(self, links: Links) -> Result<Root> {
        Root::from_fd(self.fd, links)
    }
}

impl AsFd for Inode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Inode> for OwnedFd {
    fn from(inode: Inode) -> Self {
        inode.fd
    }
}

impl From<OwnedFd> for Inode {
    fn from(fd: OwnedFd) -> Self {
        Inode { fd }
    }
}

/// All of the file, unless it is longer than `limit`.
pub(crate) fn read_limited(file: File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_large = || Error::TooLarge {
        path: path.to_owned(),
        limit,
    };
    if file.metadata().map_err(Error::io(path))?.len() > limit {
        return Err(too_large());
    }
    let mut content = Vec::new();
    // It may grow meanwhile, and files of procfs say that they are empty.
    file.take(limit.saturating_add(1))
        .read_to_end(&mut content)
        .map_err(Error::io(path))?;
    if content.len() as u64 > limit {
        return Err(too_large());
    }
    Ok(content)
}

/// The end of the file.
pub(crate) fn read_tail(mut file: File, path: &Path, limit: u64) -> Result<Vec<u8>> {
    let length = file.metadata().map_err(Error::io(path))?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))
        .map_err(Error::io(path))?;
    let mut content = Vec::new();
    file.take(limit)
        .read_to_end(&mut content)
        .map_err(Error::io(path))?;
    Ok(content)
}
