//! Persistent volumes of type `local`: a directory of the node, bound into the pod's (spec storage.md 7.2).

use super::claims::Claimed;
use super::error::{Cause, io_error};
use super::{Ready, Volumes, blocking, fs_group, mount_options};
use crate::paths::PRIVATE_DIR;
use crate::pod::PodExt;
use davit_beneath::private_dir;
use k8s_openapi::api::core::v1::{LocalVolumeSource, Pod};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Directory of such volumes below a pod's.
pub(super) const PLUGIN: &str = "kubernetes.io~local-volume";

/// Binds the directory into the pod's, or finds that it is there.
///
/// # Errors
/// Nothing is at the path, or it is no directory; mount options that are not known.
pub(super) async fn set_up(
    volumes: &Volumes,
    pod: &Pod,
    claimed: &Claimed,
    source: &LocalVolumeSource,
) -> Result<Ready, Cause> {
    let name = claimed.name();
    let target = volumes.paths.volume(pod.uid(), PLUGIN, name);
    let options = mount_options::parse(&claimed.mount_options())?;
    let read_only = claimed.read_only || options.read_only();
    let (mounter, to, from) = (volumes.mounter.clone(), target.clone(), source.path.clone());
    let shared = volumes.others_with(pod.uid(), PLUGIN, name);
    let fresh = blocking(move || {
        if mounter.is_mount_point(&to) {
            return Ok(false);
        }
        let directory = open(&from)?;
        private_dir(&to, PRIVATE_DIR)
            .map_err(|e| io_error("cannot make the volume's directory")(e.into()))?;
        mounter
            .bind(&directory, &to)
            .map_err(io_error("cannot bind the volume's directory"))?;
        if !options.is_empty() {
            mounter
                .restrict(&to, &options)
                .map_err(io_error("cannot set the volume's mount options"))?;
        }
        Ok(true)
    })
    .await?;
    if fresh && !read_only {
        if !shared.is_empty() {
            warn_of_other_group(volumes, pod, name, &target);
        }
        fs_group::apply(volumes, pod, &target).await?;
    }
    Ok(Ready::Directory {
        path: target,
        read_only,
    })
}

/// The directory, held open: what was looked at is what is bound. The administrator may have put a link there.
fn open(path: &str) -> Result<OwnedFd, Cause> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            return Err(Cause::Claim(format!("path {path:?} does not exist")));
        }
        other => other.map_err(|e| io_error("cannot open the volume's path")(e.into()))?,
    };
    let stat = rustix::fs::fstat(&found)
        .map_err(|e| io_error("cannot look at the volume's path")(e.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(found),
        FileType::BlockDevice => Err(Cause::NotBuilt("local with a file system on a device")),
        _ => Err(Cause::Claim(format!(
            "path {path:?} is neither a directory nor a block device"
        ))),
    }
}

/// Pods with other groups take the files from one another.
fn warn_of_other_group(volumes: &Volumes, pod: &Pod, name: &str, target: &Path) {
    use std::os::unix::fs::MetadataExt;
    let (Some(wanted), Ok(held)) = (super::group_of(pod), std::fs::metadata(target)) else {
        return;
    };
    if held.gid() != wanted {
        let text = format!(
            "The requested fsGroup is {wanted}, but the volume {name} has GID {}. The volume may not be shareable.",
            held.gid()
        );
        volumes.warn(pod, "AlreadyMountedVolume", text);
    }
}
