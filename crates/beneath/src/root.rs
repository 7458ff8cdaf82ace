//! A directory whose content is not trusted.

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::resolve;
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What becomes of symbolic links on the way. Links of procfs that lead anywhere (`/proc/PID/root`) are always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Followed as a process would follow them whose `/` is the root: an absolute target begins at the root, `..` does
    /// not leave it. For the root file system of a container, where `/var/run -> /run` is ordinary.
    Confined,
    /// Followed while they stay inside; refused when they lead out or are absolute. For sub-paths of volumes.
    Inside,
    /// Refused, all of them.
    Refused,
}

/// What a mount goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A directory.
    Directory,
    /// Anything else.
    File,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: OsString,
    /// What it was when the directory was read.
    pub kind: FileType,
}

/// A directory whose content somebody else may write, held open. Paths are relative to it, with or without a leading
/// slash. The last part of a path is followed like the others where something is opened, and never where something is
/// made, replaced or removed.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    links: Links,
}

impl Root {
    /// Opens a directory by a path of the host that only the host can shape.
    ///
    /// # Errors
    /// It is not there or not a directory.
    pub fn open(path: impl AsRef<Path>, links: Links) -> Result<Self> {
        let path = path.as_ref();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|e| Error::Io {
            path: path.to_owned(),
            source: e.into(),
        })?;
        Ok(Root { fd, links })
    }

    /// Opens a directory in one that others than the host may write, too (`/var/log/pods`): a link that somebody has put in its
    /// place is not followed. What is above is the host's.
    ///
    /// # Errors
    /// It is not there, a link or not a directory.
    pub fn open_itself(path: impl AsRef<Path>, links: Links) -> Result<Self> {
        let path = path.as_ref();
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Self::open(path, links);
        };
        let above = if above == Path::new("") {
            Path::new(".")
        } else {
            above
        };
        let opened = Self::open(above, Links::Refused)?.dir(name);
        opened
            .map(|root| root.with_links(links))
            .map_err(|error| error.of(path))
    }

    /// Takes a directory that is open.
    ///
    /// # Errors
    /// It is not a directory.
    pub fn from_fd(fd: OwnedFd, links: Links) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd).map_err(Error::at(""))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            Ok(Root { fd, links })
        } else {
            Err(Error::Unexpected {
                what: "root",
                expected: "a directory",
            })
        }
    }

    /// The same directory with another rule for links.
    #[must_use]
    pub fn with_links(self, links: Links) -> Self {
        Root { links, ..self }
    }

    /// One more descriptor of the same directory, with a rule for links of its own.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn same(&self, links: Links) -> Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 3).map_err(Error::at(""))?;
        Ok(Root { fd, links })
    }

    /// What becomes of links.
    #[must_use]
    pub fn links(&self) -> Links {
        self.links
    }

    /// Opens what is at the path, whatever it is, without touching it (`O_PATH`).
    ///
    /// # Errors
    /// Nothing there, or a way that leaves the root.
    pub fn entry(&self, path: impl AsRef<Path>) -> Result<Inode> {
        let path = path.as_ref();
        self.look(path, OFlags::PATH).map(Inode::new)
    }

    /// Opens what is at the path; a link there is opened itself instead of followed.
    ///
    /// # Errors
    /// Nothing there, or a way that leaves the root.
    pub fn entry_itself(&self, path: impl AsRef<Path>) -> Result<Inode> {
        let path = path.as_ref();
        if resolve::split(path).is_err() {
            return self.entry(path);
        }
        let (parent, name) = self.parent(path)?;
        resolve::child(&parent, name, OFlags::PATH)
            .map(Inode::new)
            .map_err(Error::at(path))
    }

    /// Opens a directory below as a root of its own: nothing done through it leaves that directory.
    ///
    /// # Errors
    /// No directory there, or a way that leaves the root.
    pub fn dir(&self, path: impl AsRef<Path>) -> Result<Root> {
        let fd = self.look(path.as_ref(), OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Root {
            fd,
            links: self.links,
        })
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Nothing there, something else there (which is not opened), or a way that leaves the root.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        self.entry(path)?.open_regular(path)
    }

    /// Reads a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file), and [`Error::TooLarge`].
    pub fn read_limited(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
        let path = path.as_ref();
        crate::inode::read_limited(self.open_file(path)?, path, limit)
    }

    /// Reads the last `limit` bytes of a regular file.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub fn read_tail(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
        let path = path.as_ref();
        crate::inode::read_tail(self.open_file(path)?, path, limit)
    }

    /// What a link says.
    ///
    /// # Errors
    /// No link there, or a way that leaves the root.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.entry_itself(path)?.read_link()
    }

    /// The entries of a directory, in no order.
    ///
    /// # Errors
    /// No directory there, a way that leaves the root, or more than `limit` entries.
    pub fn list(&self, path: impl AsRef<Path>, limit: usize) -> Result<Vec<DirectoryEntry>> {
        let path = path.as_ref();
        let dir = self.look(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut listed = Vec::new();
        for entry in Dir::new(dir).map_err(Error::at(path))? {
            let entry = entry.map_err(Error::at(path))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if listed.len() >= limit {
                return Err(Error::TooLarge {
                    path: path.to_owned(),
                    limit: limit as u64,
                });
            }
            listed.push(DirectoryEntry {
                name: name.to_owned(),
                kind: entry.file_type(),
            });
        }
        Ok(listed)
    }

    pub(crate) fn look(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        resolve::open(&self.fd, path, self.links, flags, ResolveFlags::empty())
    }

    /// The directory that holds the last part of the path, and that part.
    pub(crate) fn parent<'a>(&self, path: &'a Path) -> Result<(OwnedFd, &'a OsStr)> {
        let (parent, name) = resolve::split(path)?;
        let parent = self.look(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((parent, name))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Root> for OwnedFd {
    fn from(root: Root) -> Self {
        root.fd
    }
}
