//! Persistent volumes of type `local`: a directory of the node, or a device with or without a file system (spec storage.md
//! 7.2).

mod image;

use super::block::{self, DeviceMap};
use super::claims::Claimed;
use super::error::{Cause, io_error};
use super::node_expand::When;
use super::{Ready, Volumes, blocking, device_mount, fs_group, mount_options};
use davit_disk::VolumeRecord;
use davit_pods::pod::PodExt;
use davit_volume::binding::{claim_ref, uid_of};
use k8s_openapi::api::core::v1::{LocalVolumeSource, PersistentVolume, Pod};
use rustix::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Directory of such volumes below a pod's.
pub(super) const PLUGIN: &str = "kubernetes.io~local-volume";

/// The plugin's directory below the node's: file systems on devices in `mounts`, devices of pods in `volumeDevices`.
const BELOW: &str = "plugins/kubernetes.io/local-volume";

/// Whose a volume is, if it is one of davit's own provisioner.
pub(super) fn own_record(volume: &PersistentVolume) -> Option<VolumeRecord> {
    davit_volume::local::is_ours(volume)
        .then(|| record_of(volume))
        .flatten()
}

/// The record that the directory or image of a volume has beside it: whose it is.
pub fn record_of(volume: &PersistentVolume) -> Option<VolumeRecord> {
    let reference = claim_ref(volume)?;
    Some(VolumeRecord {
        pv: volume.metadata.name.clone()?,
        namespace: reference.namespace.clone()?,
        claim: reference.name.clone()?,
        uid: uid_of(reference)?.to_owned(),
    })
}

/// What is at a volume's path, held open: what was looked at is what is used.
enum LocalPath {
    Directory(OwnedFd),
    Device,
}

/// Binds the directory into the pod's, or finds that it is there; mounts the file system on a device before, once for all
/// pods. A volume with `volumeMode: Block` has to be a device, which the pod is given.
///
/// # Errors
/// Nothing is at the path, or it is neither; mount options that are not known; the file system cannot be mounted.
pub(super) async fn set_up(
    volumes: &Volumes,
    pod: &Pod,
    claimed: &Claimed,
    source: &LocalVolumeSource,
) -> Result<Ready, Cause> {
    if claimed.is_block() {
        return device(volumes, pod, claimed, source).await;
    }
    let name = claimed.name();
    let target = volumes.paths.volume(pod.uid(), PLUGIN, name);
    let options = mount_options::parse(&claimed.mount_options())?;
    let read_only = claimed.read_only || options.read_only();
    let shared = volumes.others_with(pod.uid(), PLUGIN, name);
    let shared = shared.map_err(io_error("cannot know which pods have the volume"))?;
    let fresh = !volumes.is_mounted(&target)?;
    if fresh {
        let directory = volumes.local_directory(claimed, source).await?;
        let (mounter, to) = (volumes.mounter.clone(), target.clone());
        let paths = volumes.paths.clone();
        blocking(move || {
            paths
                .make_dir(&to)
                .map_err(|e| io_error("cannot make the volume's directory")(e.into()))?;
            mounter
                .bind(&directory, &to)
                .map_err(io_error("cannot bind the volume's directory"))?;
            if !options.is_empty() {
                mounter
                    .restrict(&to, &options)
                    .map_err(io_error("cannot set the volume's mount options"))?;
            }
            Ok(())
        })
        .await?;
    }
    if fresh && !read_only {
        if !shared.is_empty() {
            warn_of_other_group(volumes, pod, name, target.clone()).await;
        }
        fs_group::apply(volumes, pod, &target).await?;
    }
    let when = When::of(!fresh);
    let grow = async |_| volumes.grow_local(claimed, source).await;
    volumes.expand(pod, claimed, when, grow).await?;
    Ok(Ready::Directory {
        path: target,
        read_only,
    })
}

/// Gives the pod the device.
async fn device(
    volumes: &Volumes,
    pod: &Pod,
    claimed: &Claimed,
    source: &LocalVolumeSource,
) -> Result<Ready, Cause> {
    let (name, uid) = (claimed.name(), pod.uid().to_owned());
    let map = volumes.local_map(name);
    let (marked, path) = (map.clone(), PathBuf::from(&source.path));
    let image = volumes.own_image(claimed)?;
    let is_own = image.is_some();
    let device = blocking(move || {
        let Some(image) = image else {
            let device = block::open(&path)?;
            marked.mark(&uid)?;
            return Ok(device);
        };
        // The mark says that the image may have a device.
        marked.mark(&uid)?;
        block::open(&image.attach()?)
    })
    .await?;
    let path = volumes.map_device(pod, PLUGIN, name, &map, device).await?;
    if !is_own {
        // The device has its size already. Of davit's own its keeper says it, who makes it so.
        let grown = async |_| Ok(());
        volumes.expand(pod, claimed, When::Running, grown).await?;
    }
    Ok(Ready::Device {
        path,
        read_only: claimed.read_only,
    })
}

/// The administrator may have put a link there.
fn find(path: &str) -> Result<LocalPath, Cause> {
    let found = block::open(Path::new(path))?;
    let stat = rustix::fs::fstat(&found)
        .map_err(|e| io_error("cannot look at the volume's path")(e.into()))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(LocalPath::Directory(found)),
        FileType::BlockDevice => Ok(LocalPath::Device),
        _ => Err(Cause::Claim(format!(
            "path {path:?} is neither a directory nor a block device"
        ))),
    }
}

impl Volumes {
    /// The directory of a volume, with the file system on its device or image mounted if it has one.
    async fn local_directory(
        &self,
        claimed: &Claimed,
        source: &LocalVolumeSource,
    ) -> Result<OwnedFd, Cause> {
        let name = claimed.name();
        if let Some(image) = self.own_image(claimed)? {
            return self.image_directory(name, image).await;
        }
        let path = source.path.clone();
        if let LocalPath::Directory(directory) = blocking(move || find(&path)).await? {
            return Ok(directory);
        }
        let global = self.local_mount(name);
        if !self.is_mounted(&global)? {
            self.make_volume_dir(&global).await?;
            let fs_type = source.fs_type.as_deref().unwrap_or_default();
            let device = Path::new(&source.path);
            self.mount_local(device, &global, fs_type).await?;
        }
        blocking(move || block::open(&global)).await
    }

    async fn mount_local(&self, device: &Path, at: &Path, fs_type: &str) -> Result<(), Cause> {
        let wanted = device_mount::Wanted {
            device,
            target: at,
            fs_type,
            read_only: false,
        };
        Ok(device_mount::format_and_mount(&self.mounter, wanted).await?)
    }

    /// Where the file system on a device is mounted for all pods.
    fn local_mount(&self, volume: &str) -> PathBuf {
        self.paths.root().join(BELOW).join("mounts").join(volume)
    }

    /// The device files of a volume.
    pub(super) fn local_map(&self, volume: &str) -> DeviceMap {
        let all = self.paths.root().join(BELOW).join("volumeDevices");
        DeviceMap::new(&self.paths, all.join(volume))
    }

    /// Takes the devices of local volumes from a pod.
    pub(super) async fn unmap_local(&self, uid: &str) -> io::Result<()> {
        for (_, volume) in entries(&self.paths.root().join(BELOW).join("volumeDevices")) {
            let map = self.local_map(&volume);
            if !map.has(uid) {
                continue;
            }
            let lock = self.volumes.of(&volume);
            let _alone = lock.lock().await;
            self.unbind_device(&map, uid, &volume).await?;
            let (uid, own) = (uid.to_owned(), self.own.clone());
            let unmarked = tokio::task::spawn_blocking(move || {
                let alone = map.pods()? == [uid.as_str()];
                // Before the last mark goes, which says that there may be a device to take away.
                if let Some(own) = own.filter(|_| alone) {
                    own.detach(&volume).map_err(io::Error::other)?;
                }
                map.unmark(&uid)
            });
            unmarked.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// The file systems that are mounted for all pods, with the names of their volumes.
    pub(super) fn local_mounts(&self) -> impl Iterator<Item = (PathBuf, String)> + use<> {
        entries(&self.paths.root().join(BELOW).join("mounts"))
    }

    /// Unmounts a file system that no pod uses any more.
    pub(super) async fn unmount_unused_local(&self, dir: &Path, volume: &str) {
        let lock = self.volumes.of(volume);
        let _alone = lock.lock().await;
        if self.is_local_volume_used(volume) {
            return;
        }
        let (mounter, at) = (self.mounter.clone(), dir.to_owned());
        let (own, name) = (self.own.clone(), volume.to_owned());
        let unmounted = tokio::task::spawn_blocking(move || {
            mounter.unmount(&at)?;
            // Before the directory goes, which says that there may be a device to take away.
            if let Some(own) = own {
                own.detach(&name).map_err(io::Error::other)?;
            }
            std::fs::remove_dir(&at)
        });
        if let Err(error) = unmounted.await.map_err(io::Error::other).flatten() {
            tracing::warn!(volume, %error, "the file system of a local volume is still mounted");
        }
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (entry.path(), name)
    })
}

/// Pods with other groups take the files from one another.
async fn warn_of_other_group(volumes: &Volumes, pod: &Pod, name: &str, target: PathBuf) {
    use std::os::unix::fs::MetadataExt;
    let Some(wanted) = super::group_of(pod) else {
        return;
    };
    let key = format!("local {}/{name}", pod.uid());
    let held = volumes.waits.run(key, move || std::fs::metadata(target));
    let Ok(held) = held.await.flatten() else {
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
