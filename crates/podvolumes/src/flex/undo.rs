//! Undoing what drivers have mounted: for a pod with the pod, for all pods when none is left.

use super::super::csi::Staged;
use super::super::{Volumes, entries, name_of, unmount_below};
use super::unique_name;
use davit_flexvolume::{DriverName, paths};
use davit_volume::names::unique_volume_name;
use futures::future::join_all;
use std::io;
use std::path::{Path, PathBuf};

impl Volumes {
    /// Has the drivers unmount the volumes of a pod, by the directories that are there. Those of a driver that is not
    /// installed wait for it. What is remembered of the pod is forgotten with its CSI volumes.
    pub(crate) async fn unmount_flex(&self, uid: &str) -> io::Result<()> {
        let pod = self.paths.pod(uid);
        let volumes = volumes_of_pod(&pod)?;
        if volumes.is_empty() {
            return Ok(());
        }
        // What containers got of the volumes are mounts of their own.
        let (mounter, subpaths) = (self.mounter.clone(), pod.join("volume-subpaths"));
        let unmounted = tokio::task::spawn_blocking(move || unmount_below(&*mounter, &subpaths));
        unmounted.await.map_err(io::Error::other)??;
        let unmount = async |(dir, driver, volume): &(PathBuf, DriverName, String)| {
            let unmounted = self.unmount_for_pod(uid, dir, driver, volume).await;
            unmounted.map_err(|cause| {
                // an in-line volume by its name in the pod
                let told = volume.split('~').next().unwrap_or(volume);
                io::Error::other(format!(
                    "UnmountVolume.TearDown failed for volume {told:?} : {cause}"
                ))
            })
        };
        join_all(volumes.iter().map(unmount))
            .await
            .into_iter()
            .collect()
    }

    async fn unmount_for_pod(
        &self,
        uid: &str,
        dir: &Path,
        name: &DriverName,
        volume: &str,
    ) -> Result<(), UnmountError> {
        let driver = self.flex_drivers.get(name.as_str()).await?;
        let lock = self.volumes.of(&unique_name(&driver, uid, volume));
        let _alone = lock.lock().await;
        if !driver.unmount(dir).await? {
            self.unmount_plainly(dir).await?;
        }
        Ok(remove_dir(dir).await?)
    }

    /// What is mounted for all pods, by directory.
    pub(crate) async fn flex_mounts(&self) -> Vec<(PathBuf, Staged)> {
        let root = self.paths.root().to_owned();
        let mounts = tokio::task::spawn_blocking(move || paths::global_mounts(&root)).await;
        // What cannot be listed now is looked at again.
        let mounts = mounts.map(Result::unwrap_or_default).unwrap_or_default();
        let mounts = mounts.into_iter();
        mounts
            .map(|(dir, driver, volume)| (dir, Staged::Flex(driver, volume)))
            .collect()
    }

    /// Has the driver unmount a volume if no pod uses it any more.
    pub(crate) async fn unmount_unused_flex(&self, dir: &Path, driver: &DriverName, volume: &str) {
        if let Err(error) = self.unmount_if_unused(dir, driver, volume).await {
            tracing::warn!(%driver, volume, %error, "the volume is still mounted");
        }
    }

    async fn unmount_if_unused(
        &self,
        dir: &Path,
        name: &DriverName,
        volume: &str,
    ) -> Result<(), UnmountError> {
        let unique = unique_volume_name(name.as_str(), volume);
        let lock = self.volumes.of(&unique);
        let _alone = lock.lock().await;
        let is_wanted = self.wanted.lock().iter().any(|(_, name)| *name == unique);
        if is_wanted || !self.others_with("", &name.directory(), volume)?.is_empty() {
            return Ok(());
        }
        if self.mounter.is_mount_point(dir)? {
            let driver = self.flex_drivers.get(name.as_str()).await?;
            if !driver.unmount_device(dir).await? {
                self.unmount_plainly(dir).await?;
            }
        }
        remove_dir(dir).await?;
        self.look.notify_one();
        Ok(())
    }

    /// The volumes that are mounted for all pods, and may not be detached.
    pub(crate) fn flex_in_use(&self) -> io::Result<impl Iterator<Item = String>> {
        let mounts = paths::global_mounts(self.paths.root())?.into_iter();
        Ok(mounts.map(|(_, driver, volume)| unique_volume_name(driver.as_str(), &volume)))
    }

    async fn unmount_plainly(&self, dir: &Path) -> io::Result<()> {
        let (mounter, dir) = (self.mounter.clone(), dir.to_owned());
        let unmounted = tokio::task::spawn_blocking(move || mounter.unmount(&dir));
        unmounted.await.map_err(io::Error::other)?
    }
}

/// Why a volume is still mounted.
#[derive(Debug, thiserror::Error)]
enum UnmountError {
    #[error(transparent)]
    Driver(#[from] davit_flexvolume::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The directories of FlexVolume drivers' volumes in a pod's directory.
fn volumes_of_pod(pod: &Path) -> io::Result<Vec<(PathBuf, DriverName, String)>> {
    let mut out = Vec::new();
    for plugin in entries(&pod.join("volumes"))? {
        let Some(driver) = DriverName::of_directory(&name_of(&plugin)) else {
            continue;
        };
        for volume in entries(&plugin)? {
            let name = name_of(&volume);
            out.push((volume, driver.clone(), name));
        }
    }
    Ok(out)
}

/// Removes a directory that is empty. The driver may have done so.
pub(super) async fn remove_dir(dir: &Path) -> io::Result<()> {
    match tokio::fs::remove_dir(dir).await {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io::Error::new(
            e.kind(),
            format!("remove {}: {e}", dir.display()),
        )),
        Ok(()) => Ok(()),
    }
}
