//! Why something below a root cannot be had.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something below a root cannot be had. Paths are relative to the root.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path, or a link on it, leads out of the root, or is a link where none is followed.
    #[error("{}: leads out of its root or through a symbolic link", .0.display())]
    Escapes(PathBuf),
    /// A file was wanted that is not a regular one.
    #[error("{}: not a regular file", .0.display())]
    NotRegular(PathBuf),
    /// The file, directory or tree is larger than what the caller is ready to take.
    #[error("{}: more than {limit}", path.display())]
    TooLarge {
        /// Of what.
        path: PathBuf,
        /// Bytes, entries or levels.
        limit: u64,
    },
    /// A descriptor or file system is not what it has to be.
    #[error("{what}: not {expected}")]
    Unexpected {
        /// What was looked at.
        what: &'static str,
        /// What it should have been.
        expected: &'static str,
    },
    /// Another account's, where it has to be our own or root's.
    #[error("{}: belongs to user {uid}, who could change what is in it", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The kernel's answer.
    #[error("{}: {source}", path.display())]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Whether nothing is there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    /// The nearest kind of I/O error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Escapes(_) | Error::Foreign { .. } => io::ErrorKind::PermissionDenied,
            Error::NotRegular(_) | Error::Unexpected { .. } => io::ErrorKind::InvalidInput,
            Error::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            Error::Io { source, .. } => source.kind(),
        }
    }

    /// For `map_err` on system calls that concern `path`.
    pub(crate) fn at(path: impl AsRef<Path>) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            // What `openat2` says of a path that leaves its root, and of a link that is not to be followed.
            Errno::XDEV | Errno::LOOP => Error::Escapes(path.as_ref().to_owned()),
            errno => Error::Io {
                path: path.as_ref().to_owned(),
                source: errno.into(),
            },
        }
    }

    pub(crate) fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Error::Io {
            path: path.as_ref().to_owned(),
            source,
        }
    }

    /// The same of the whole path, where the name alone was looked at.
    pub(crate) fn of(self, path: &Path) -> Self {
        let path = path.to_owned();
        match self {
            Error::Escapes(_) => Error::Escapes(path),
            Error::Io { source, .. } => Error::Io { path, source },
            other => other,
        }
    }

    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Error::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(error.kind(), error)
    }
}
