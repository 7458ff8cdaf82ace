//! emptyDir volumes: on the disk, in memory, on huge pages.

use super::error::{Cause, io_error};
use super::{Volumes, blocking, group_of};
use davit_beneath::{Inode, Links, Permissions, Root};
use davit_pods::pod::PodExt;
use davit_pods::resources;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use std::io;
use std::path::{Path, PathBuf};

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
    let pods = volumes.paths.pods();
    let medium = source.medium.clone().unwrap_or_default();
    let own = source.size_limit.as_ref().map(resources::value);
    let size = memory_size([
        own,
        resources::pod_limit(pod, "memory"),
        volumes.allocatable_memory(),
    ]);
    let page = huge_page_size(pod, &medium);
    blocking(move || {
        let making = || io_error("cannot make the volume's directory");
        let known = make_dir(&pods, &target).map_err(making())?;
        let mounted = mounter
            .is_mount_point(&target)
            .map_err(io_error("cannot know what is mounted"))?;
        if medium == "Memory" && !mounted {
            mounter
                .mount_memory(&target, size)
                .map_err(io_error("cannot mount tmpfs"))?;
        } else if medium.starts_with("HugePages") && !mounted {
            let page = page.ok_or(Cause::NotBuilt("emptyDir with an unknown huge page size"))?;
            mounter
                .mount_hugepages(&target, page)
                .map_err(io_error("cannot mount hugetlbfs"))?;
        } else if known {
            return Ok(());
        }
        // As in the kubelet, which leaves a tmpfs its sticky bit: one user's files are not another's to remove.
        let sticky = if medium == "Memory" { 0o1000 } else { 0 };
        let mode = if group.is_some() { 0o2777 } else { 0o777 } | sticky;
        // What is mounted there by now, if something is.
        let volume = below(&pods, &target).map_err(making())?;
        let permissions = Permissions {
            uid: None,
            gid: group,
            mode: Some(mode),
        };
        let set = volume.set(&permissions).map_err(io::Error::from);
        set.map_err(io_error("cannot set the volume's mode and group"))?;
        Ok(())
    })
    .await?;
    Ok(dir)
}

/// The bytes that a volume in memory has room for: the least that anything says (KEP-1967). What is beyond them is refused,
/// where otherwise a process would be ended that has written too much.
fn memory_size(limits: [Option<i64>; 3]) -> Option<u64> {
    let limits = limits.into_iter().flatten().filter(|n| *n > 0);
    limits.filter_map(|n| u64::try_from(n).ok()).min()
}

/// Makes the directory of a pod's volume, and says whether it was there. Whoever has the agent's directory as a volume of his
/// own may have put links there: none is followed.
///
/// # Errors
/// A link on the way, or what the kernel says.
pub(super) fn make_dir(pods: &Path, target: &Path) -> io::Result<bool> {
    std::fs::create_dir_all(pods)?;
    let way = target.strip_prefix(pods).map_err(io::Error::other)?;
    let pods = Root::open_itself(pods, Links::Refused)?;
    let known = pods.entry(way).is_ok();
    pods.mkdir_all(way, 0o755)?;
    Ok(known)
}

fn below(pods: &Path, target: &Path) -> io::Result<Inode> {
    let way = target.strip_prefix(pods).map_err(io::Error::other)?;
    Ok(Root::open_itself(pods, Links::Refused)?.entry(way)?)
}

impl Volumes {
    /// What all pods of this node may have together, where that is known.
    fn allocatable_memory(&self) -> Option<i64> {
        let node = self.node.as_ref()?.get(None, &self.node_name)?;
        let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
        allocatable.get("memory").map(resources::value)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_111_a_volume_in_memory_has_the_least_of_its_limits() {
        assert_eq!(memory_size([Some(3), Some(2), Some(9)]), Some(2));
        assert_eq!(memory_size([Some(1), Some(2), Some(9)]), Some(1));
        assert_eq!(memory_size([Some(0), None, Some(9)]), Some(9));
        assert_eq!(memory_size([None; 3]), None);
    }
}
