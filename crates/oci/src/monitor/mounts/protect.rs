//! After the root has become `/`: what is hidden and what may not be written.

use super::options::Options;
use super::{Result, new_mount};
use crate::sys::{MountAttr, mount_setattr};
use davit_beneath::{Error, Inode, Links, Root, mount as fds};
use nix::libc;
use oci_spec::runtime::Spec;
use rustix::fs::FileType;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is at a path that the configuration protects: nothing is fine, a link is not.
fn there(root: &Root, path: &str) -> Result<Option<Inode>> {
    match root.entry(path) {
        Ok(inode) => Ok(Some(inode)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(format!("protect {error}")),
    }
}

/// A file for masks. It must be the null device and nothing that somebody else has put in its place: the mask would
/// show that file to the container instead, or let it write the masked one (CVE-2025-31133).
fn null(root: &Root) -> Result<Inode> {
    let null = root.entry("/dev/null").map_err(|e| format!("mask: {e}"))?;
    if null.is_char_device(1, 3) {
        Ok(null)
    } else {
        Err("mask: /dev/null is not the null device".to_owned())
    }
}

/// Hides and write-protects what the configuration names, and the root itself when asked to.
pub(in crate::monitor) fn protect(spec: &Spec) -> Result<()> {
    let readonly = MountAttr {
        set: libc::MOUNT_ATTR_RDONLY,
        ..MountAttr::default()
    };
    let Some(linux) = spec.linux() else {
        return Ok(());
    };
    let root = Root::open("/", Links::Refused).map_err(|e| e.to_string())?;
    for path in linux.readonly_paths().iter().flatten() {
        let Some(inode) = there(&root, path)? else {
            continue;
        };
        let shown = |e: Error| format!("protect {path}: {e}");
        let mount = fds::clone_tree(&inode, true).map_err(shown)?;
        mount_setattr(&mount, &readonly, true).map_err(|e| format!("protect {path}: {e}"))?;
        fds::attach(&mount, &inode).map_err(shown)?;
    }
    for path in linux.masked_paths().iter().flatten() {
        if let Some(inode) = there(&root, path)? {
            mask(&root, &inode).map_err(|e| format!("mask {path}: {e}"))?;
        }
    }
    let read_only = spec
        .root()
        .as_ref()
        .and_then(oci_spec::runtime::Root::readonly);
    if read_only.unwrap_or(false) {
        mount_setattr(&root, &readonly, false).map_err(|e| format!("make / read-only: {e}"))?;
    }
    Ok(())
}

fn mask(root: &Root, inode: &Inode) -> Result<()> {
    let shown = |e: Error| e.to_string();
    let mount: OwnedFd = if inode.kind().map_err(shown)? == FileType::Directory {
        let options = Options {
            attrs: libc::MOUNT_ATTR_RDONLY,
            data: vec!["size=0k".to_owned()],
            ..Options::default()
        };
        new_mount("tmpfs", Path::new("tmpfs"), &options).map_err(shown)?
    } else {
        fds::clone_tree(null(root)?, false).map_err(shown)?
    };
    fds::attach(mount, inode).map_err(shown)
}
