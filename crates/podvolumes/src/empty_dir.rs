//! emptyDir volumes: on the disk, in memory, on huge pages.

use super::error::{Cause, io_error};
use super::{Volumes, blocking, group_of};
use davit_pods::pod::PodExt;
use davit_pods::resources;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

/// Makes the directory with what it is to be on.
///
/// # Errors
/// Files or mounts.
pub(super) async fn set_up(
    volumes: &Volumes,
    pod: &Pod,
    volume: &Volume,
    source: &EmptyDirVolumeSource,
) -> Result<PathBuf, Cause> {
    let dir = volumes
        .paths
        .volume(pod.uid(), "kubernetes.io~empty-dir", &volume.name);
    let group = group_of(pod);
    let (mounter, target) = (volumes.mounter.clone(), dir.clone());
    let medium = source.medium.clone().unwrap_or_default();
    let limit = source
        .size_limit
        .as_ref()
        .map(resources::value)
        .filter(|n| *n > 0)
        .and_then(|n| u64::try_from(n).ok());
    let page = huge_page_size(pod, &medium);
    blocking(move || {
        let known = target.exists();
        std::fs::create_dir_all(&target).map_err(io_error("cannot make the volume's directory"))?;
        let mounted = mounter
            .is_mount_point(&target)
            .map_err(io_error("cannot know what is mounted"))?;
        if medium == "Memory" && !mounted {
            mounter
                .mount_memory(&target, limit)
                .map_err(io_error("cannot mount tmpfs"))?;
        } else if medium.starts_with("HugePages") && !mounted {
            let page = page.ok_or(Cause::NotBuilt("emptyDir with an unknown huge page size"))?;
            mounter
                .mount_hugepages(&target, page)
                .map_err(io_error("cannot mount hugetlbfs"))?;
        } else if known {
            return Ok(());
        }
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))
            .map_err(io_error("cannot set the volume's mode"))?;
        if group.is_some() {
            chown(&target, None, group).map_err(io_error("cannot set the volume's group"))?;
            // chown drops the set-group-ID bit on some file systems.
            std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode))
                .map_err(io_error("cannot set the volume's mode"))?;
        }
        Ok(())
    })
    .await?;
    Ok(dir)
}

/// `HugePages-2Mi` names a size; plain `HugePages` takes the one size the pod's containers ask for.
fn huge_page_size(pod: &Pod, medium: &str) -> Option<u64> {
    let parse = |text: &str| {
        let q = k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned());
        u64::try_from(resources::value(&q)).ok().filter(|n| *n > 0)
    };
    if let Some(size) = medium.strip_prefix("HugePages-") {
        return parse(size);
    }
    let requests = resources::pod_requests(pod);
    requests
        .keys()
        .find_map(|name| name.strip_prefix("hugepages-"))
        .and_then(parse)
}
