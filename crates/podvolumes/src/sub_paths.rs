//! Parts of volumes that containers get (`subPath`): each is a mount of its own, of what was found inside the volume.

use super::Volumes;
use super::mounts::Mounter;
use davit_beneath::{Inode, Links, Root, TargetKind};
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::{Container, Pod};
use rustix::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Mounts with a `subPath` in one container.
const IN_CONTAINER: usize = 256;
/// Mounts with a `subPath` in all containers of a pod together.
const IN_POD: usize = 512;

/// One part of a volume for one container.
#[derive(Debug)]
pub struct SubPath {
    /// The volume's name in the pod.
    pub volume: String,
    /// Which of the container's mounts it is.
    pub index: usize,
    /// Where the volume is.
    pub root: PathBuf,
    /// What of it.
    pub path: String,
}

/// A part of a volume that a container cannot have.
#[derive(Debug)]
pub struct SubPathError {
    /// The volume's name in the pod.
    pub volume: String,
    /// Why.
    pub cause: String,
}

impl Volumes {
    /// Mounts parts of volumes for a container where its mounts take them from; answers with these places. Containers, and
    /// whoever serves the volumes, decide how long it takes.
    ///
    /// # Errors
    /// The first part that cannot be had, or file systems that do not answer.
    pub async fn mount_sub_paths(
        &self,
        pod: &Pod,
        container: &str,
        parts: Vec<SubPath>,
    ) -> Result<Vec<PathBuf>, SubPathError> {
        let Some(first) = parts.first().map(|part| part.volume.clone()) else {
            return Ok(Vec::new());
        };
        let target = |part: &SubPath| {
            self.paths
                .subpath(pod.uid(), &part.volume, container, part.index)
        };
        let targets: Vec<PathBuf> = parts.iter().map(target).collect();
        let (mounter, paths) = (self.mounter.clone(), self.paths.clone());
        let work = move || {
            let each = parts.iter().zip(targets);
            each.map(|(part, target)| {
                mount(&*mounter, &paths, part, target).map_err(|error| SubPathError {
                    volume: part.volume.clone(),
                    cause: format!("{:?}: {error}", part.path),
                })
            })
            .collect()
        };
        let mounted = self.waits.run(format!("sub-paths {}", pod.uid()), work);
        mounted.await.unwrap_or_else(|error| {
            Err(SubPathError {
                volume: first,
                cause: error.to_string(),
            })
        })
    }
}

/// Why a container has more of such mounts than the node makes: each costs the kernel and every container on the node.
pub fn too_many(pod: &Pod, container: &Container) -> Option<String> {
    let of = |container: &Container| {
        let mounts = container.volume_mounts.iter().flatten();
        let is_part = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        mounts
            .filter(|mount| is_part(&mount.sub_path) || is_part(&mount.sub_path_expr))
            .count()
    };
    let (own, all) = (of(container), pod.all_containers());
    let all: usize = all.iter().map(|(_, other)| of(other)).sum();
    if own == 0 || (own <= IN_CONTAINER && all <= IN_POD) {
        return None;
    }
    Some(format!(
        "{own} volume mounts of the container and {all} of the pod have a subPath; this node makes at most \
         {IN_CONTAINER} for a container and {IN_POD} for a pod"
    ))
}

fn mount(
    mounter: &dyn Mounter,
    paths: &Paths,
    part: &SubPath,
    target: PathBuf,
) -> io::Result<PathBuf> {
    if mounter.is_mount_point(&target)? {
        return Ok(target);
    }
    let source = open(&part.root, &part.path)?;
    let kind = match source.kind()? {
        FileType::Directory => TargetKind::Directory,
        _ => TargetKind::File,
    };
    let name = target.file_name().unwrap_or_default();
    let parent = paths.make_dir(target.parent().unwrap_or(&part.root))?;
    parent.target(name, kind)?;
    match mounter.bind(&source.into(), &target) {
        Ok(()) => Ok(target),
        // Nodes that mount nothing run nothing either; the path as it resolves now has to do.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {
            part.root.join(&part.path).canonicalize()
        }
        Err(e) => Err(e),
    }
}

/// Opens what is at a sub-path of a volume; a directory is made where nothing is, with the volume's permissions. Links
/// that containers have put there are followed inside the volume only.
fn open(volume: &Path, sub: &str) -> io::Result<Inode> {
    let root = Root::open(volume, Links::Inside)?;
    match root.entry(sub) {
        Err(error) if error.is_not_found() => {
            let mode = root.entry("")?.stat()?.st_mode & 0o7777;
            Ok(Inode::from(OwnedFd::from(root.mkdir_all(sub, mode)?)))
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// Whoever has the node's directory as a volume puts a link where a mount will be made.
    #[test]
    fn what_a_part_is_mounted_on_is_made_behind_no_link() {
        let tmp = tempfile::tempdir().unwrap();
        let paths = Paths::new(tmp.path().join("kubelet"), tmp.path().join("pods"));
        let (volume, host) = (tmp.path().join("vol"), tmp.path().join("host"));
        for dir in [&volume, &host, &paths.pod("u")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(volume.join("file"), "x").unwrap();
        let part = SubPath {
            volume: "v".to_owned(),
            index: 0,
            root: volume.clone(),
            path: "file".to_owned(),
        };
        let target = paths.subpath("u", "v", "c", 0);
        let made = || mount(&crate::mounts::NoMounter, &paths, &part, target.clone());
        symlink(&host, paths.pod("u").join("volume-subpaths")).unwrap();
        made().unwrap_err();
        std::fs::remove_file(paths.pod("u").join("volume-subpaths")).unwrap();
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        symlink(host.join("file"), &target).unwrap();
        made().unwrap_err();
        assert_eq!(std::fs::read_dir(&host).unwrap().count(), 0);
        std::fs::remove_file(&target).unwrap();
        assert_eq!(made().unwrap(), volume.join("file"));
    }

    #[test]
    fn sub_paths_stay_inside_and_change_nothing_outside() {
        let tmp = tempfile::tempdir().unwrap();
        let (volume, host) = (tmp.path().join("vol"), tmp.path().join("host"));
        for dir in [&volume, &host] {
            std::fs::create_dir(dir).unwrap();
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o3777)).unwrap();
        std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o700)).unwrap();
        open(&volume, "in/deep").unwrap();
        assert_eq!(mode(&volume.join("in")), 0o3777);
        assert_eq!(mode(&volume.join("in/deep")), 0o3777);
        symlink("in/deep", volume.join("good")).unwrap();
        assert_eq!(
            open(&volume, "good").unwrap().stat().unwrap().st_ino,
            std::fs::metadata(volume.join("in/deep")).unwrap().ino()
        );
        symlink(&host, volume.join("out")).unwrap();
        symlink("../host", volume.join("up")).unwrap();
        symlink("../host/none", volume.join("dangling")).unwrap();
        for bad in [
            "out",
            "out/x",
            "up",
            "up/x",
            "dangling",
            "dangling/x",
            "../x",
        ] {
            assert!(open(&volume, bad).is_err(), "{bad}");
        }
        assert_eq!(mode(&host), 0o700);
        assert_eq!(std::fs::read_dir(&host).unwrap().count(), 0);
        assert!(!tmp.path().join("x").exists());
    }
}
