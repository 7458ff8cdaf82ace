//! Mounts by descriptor: what is mounted and where it goes are both open before, so that no path is resolved.

use crate::error::{Error, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Puts a mount that is nowhere yet (of [`clone_tree`] or [`file_system`]) onto `target`.
///
/// # Errors
/// What the kernel says.
pub fn attach(mount: impl AsFd, target: impl AsFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags).map_err(failed("mount"))
}

/// A mount of what is open as `source` (what `mount --bind` makes), with the mounts below it when `recursive`.
///
/// # Errors
/// What the kernel says.
pub fn clone_tree(source: impl AsFd, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(source, "", flags).map_err(failed("clone a mount"))
}

/// A new file system: `options` as `key=value` or a lone `key`, `attributes` as `MOUNT_ATTR_*`.
///
/// # Errors
/// What the kernel says.
pub fn file_system<S: AsRef<str>>(
    kind: &str,
    source: &Path,
    options: impl IntoIterator<Item = S>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd> {
    let make = || {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(context.as_fd(), "source", source)?;
        for option in options {
            match option.as_ref().split_once('=') {
                Some((key, value)) => fsconfig_set_string(context.as_fd(), key, value)?,
                None => fsconfig_set_flag(context.as_fd(), option.as_ref())?,
            }
        }
        fsconfig_create(context.as_fd())?;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(failed(kind))
}

fn failed(what: &str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::Io {
        path: what.into(),
        source: errno.into(),
    }
}
