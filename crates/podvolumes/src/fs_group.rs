//! The group of a pod's volumes (`fsGroup`; spec storage.md 4.5).

use super::Volumes;
use super::error::{Cause, io_error};
use davit_beneath::{Inode, Links, Permissions, Root};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use rustix::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const READ_WRITE: u32 = 0o660;
/// Directories: set-group-ID, so that what is made in them is the group's too, and entered by the group.
const DIRECTORY: u32 = 0o2110;
/// Of so many looks at a walk, half a minute after one another, one is told of.
const EVERY: u32 = 2;
/// Levels of a path that are shown of one that is too deep.
const SHOWN: usize = 4;
const ADVICE: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods";

/// Gives the volume at `dir` to the pod's group, if the pod has one.
///
/// # Errors
/// The volume cannot be walked, or its file system does not answer. Single files that cannot be changed are passed over.
pub(super) async fn apply(volumes: &Volumes, pod: &Pod, dir: &Path) -> Result<(), Cause> {
    let Some(gid) = super::group_of(pod) else {
        return Ok(());
    };
    let context = pod.pod_spec().security_context.as_ref();
    let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
    let only_on_mismatch = policy == Some("OnRootMismatch");
    let (root, key) = (dir.to_owned(), format!("fsGroup {}", dir.display()));
    let work = move |done: &AtomicU64| give(&root, gid, only_on_mismatch, done);
    let mut looks = 0_u32;
    let told = |files| {
        looks += 1;
        if looks % EVERY == 1 {
            tell(volumes, pod, dir, looks == 1, files);
        }
    };
    let walked = volumes.waits.run_steps(key, work, told).await.flatten();
    let left_out = walked.map_err(io_error("cannot change the volume's group"))?;
    if let Some(path) = left_out {
        tell_left_out(volumes, pod, &path);
    }
    Ok(())
}

fn tell(volumes: &Volumes, pod: &Pod, dir: &Path, first: bool, files: u64) {
    let shown = dir.strip_prefix(volumes.paths.pods()).unwrap_or(dir);
    let shown = shown.display();
    let message = if first {
        format!(
            "Setting volume ownership for {shown} is taking longer than expected, consider using OnRootMismatch - {ADVICE}"
        )
    } else {
        format!("Setting volume ownership for {shown}, processed {files} files.")
    };
    volumes.warn(pod, "VolumePermissionChangeInProgress", message);
}

/// Another pod may have made it on purpose: what the volume holds otherwise is to be used.
fn tell_left_out(volumes: &Volumes, pod: &Pod, path: &Path) {
    let start: PathBuf = path.components().take(SHOWN).collect();
    let message = format!(
        "The group of files below {}/... in the volume stays: they are too many levels deep.",
        start.display()
    );
    volumes.warn(pod, "VolumePermissionChangeInProgress", message);
}

/// Walks the volume; answers with a directory that was too deep, if there is one. Its root comes last: a walk that was cut off is seen as a mismatch.
fn give(
    dir: &Path,
    gid: u32,
    only_on_mismatch: bool,
    done: &AtomicU64,
) -> io::Result<Option<PathBuf>> {
    let root = Root::open(dir, Links::Refused)?;
    let top = root.entry("")?;
    if only_on_mismatch && is_given(&top, gid)? {
        return Ok(None);
    }
    let left_out = root.walk_upper(|path, inode| {
        if path != Path::new("") {
            if let Err(error) = set(inode, gid) {
                let path: PathBuf = dir.join(path);
                tracing::warn!(path = %path.display(), %error, "the group of a volume's file stays");
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    set(&top, gid)?;
    Ok(left_out)
}

fn is_given(root: &Inode, gid: u32) -> io::Result<bool> {
    let stat = root.stat()?;
    let wanted = READ_WRITE | DIRECTORY;
    Ok(stat.st_gid == gid && stat.st_mode & wanted == wanted)
}

fn set(inode: &Inode, gid: u32) -> davit_beneath::Result<()> {
    let mode = match inode.kind()? {
        FileType::Symlink => None,
        FileType::Directory => Some(READ_WRITE | DIRECTORY),
        _ => Some(READ_WRITE),
    };
    let held = inode.stat()?.st_mode & 0o7777;
    inode.set(&Permissions {
        gid: Some(gid),
        mode: mode.map(|mode| held | mode),
        ..Permissions::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn items_058_and_060_the_tree_is_the_groups_and_its_root_comes_last() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: changing groups needs root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let (volume, outside) = (tmp.path().join("volume"), tmp.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        std::fs::write(volume.join("a/file"), "x").unwrap();
        std::fs::write(&outside, "x").unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&outside, volume.join("a/link")).unwrap();
        let done = AtomicU64::new(0);
        give(&volume, 2000, true, &done).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 4);
        let of = |path: &str| {
            let meta = std::fs::symlink_metadata(volume.join(path)).unwrap();
            (meta.gid(), meta.mode() & 0o7777)
        };
        assert_eq!(of("a/b"), (2000, 0o2775));
        assert_eq!(of("a/file"), (2000, 0o664));
        assert_eq!(of("a/link").0, 2000);
        let target = std::fs::metadata(&outside).unwrap();
        assert_eq!((target.gid(), target.mode() & 0o777), (0, 0o600));

        give(&volume, 2000, true, &done).unwrap();
        assert_eq!(
            done.load(Ordering::Relaxed),
            4,
            "a root that is right is not walked"
        );
        give(&volume, 2000, false, &done).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 8);

        // Made by another pod of the namespace.
        let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
        std::fs::create_dir_all(volume.join(deep)).unwrap();
        let left_out = give(&volume, 2001, false, &done).unwrap().unwrap();
        assert!(left_out.starts_with("d/d"), "{}", left_out.display());
        assert_eq!((of("a/file").0, of("").0), (2001, 2001));
    }
}
