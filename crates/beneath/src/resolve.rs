//! From a path to a descriptor.

use crate::error::{Error, Result};
use crate::root::Links;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

/// The kernel asks for another try when anything was renamed or mounted while it passed a `..`.
const TRIES: usize = 256;

/// The path below the root: what follows the leading slashes, `.` for the root itself.
pub(crate) fn relative(path: &Path) -> &Path {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    }
}

fn rules(links: Links) -> ResolveFlags {
    match links {
        Links::Confined => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        Links::Inside => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    }
}

/// Opens what `path` is below `root`.
pub(crate) fn open(
    root: impl AsFd,
    path: &Path,
    links: Links,
    flags: OFlags,
    more: ResolveFlags,
) -> Result<OwnedFd> {
    let below = relative(path);
    for _ in 0..TRIES {
        let opened = openat2(
            root.as_fd(),
            below,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            rules(links) | more,
        );
        match opened {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other.map_err(Error::at(path)),
        }
    }
    Err(Error::at(path)(Errno::AGAIN))
}

/// Opens one name in a directory that is open, whatever it is, without following it.
pub(crate) fn child(dir: impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(
        dir,
        name,
        flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// The directory part and the last name. A path that ends in `..` or is the root names nothing that could be made.
pub(crate) fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    let below = relative(path);
    match below.components().next_back() {
        Some(Component::Normal(name)) => Ok((below.parent().unwrap_or(Path::new("")), name)),
        _ => Err(Error::at(path)(Errno::INVAL)),
    }
}
