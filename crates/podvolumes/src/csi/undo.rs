//! Undoing what drivers have done: unpublished with the pod, unstaged when no pod is left.

use super::super::Volumes;
use super::device::device_records;
use crate::{entries, missing};
use davit_csi::paths::{self, MOUNT};
use davit_csi::vol_data::{self, DeviceData, Loaded, PublishData, StageData, VOL_DATA};
use davit_flexvolume::DriverName;
use davit_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often staged volumes are compared with what pods have.
const PERIOD: Duration = Duration::from_secs(10);

/// A volume that is on the node for all pods.
pub(crate) enum Staged {
    Csi(StageData),
    /// A device, by name of the persistent volume.
    Device(String, DeviceData),
    /// The file system on a device of the node, by name of the persistent volume.
    Local(String),
    /// By driver and name.
    Flex(DriverName, String),
}

impl Volumes {
    /// Has the drivers unpublish the volumes of a pod, by the records that are on disk.
    pub(crate) async fn unpublish(&self, uid: &str) -> io::Result<()> {
        let dir = self.paths.pod(uid).join("volumes").join(super::PLUGIN);
        let volumes = entries(&dir)?;
        // A driver that hangs or is gone does not keep what others have published.
        let undone = join_all(volumes.iter().map(|volume| self.unpublish_one(volume)));
        let (undone, devices) = tokio::join!(undone, self.unpublish_devices(uid));
        undone.into_iter().collect::<io::Result<()>>()?;
        devices?;
        self.published.lock().retain(|(pod, _)| pod != uid);
        self.wanted.lock().retain(|(pod, _)| pod != uid);
        self.unstage.notify_one();
        Ok(())
    }

    async fn unpublish_one(&self, dir: &Path) -> io::Result<()> {
        let mount = dir.join(MOUNT);
        let record =
            vol_data::read::<PublishData>(&dir.join(VOL_DATA)).map_err(io::Error::other)?;
        match record {
            Loaded::Found(record) => {
                let failed = |error: davit_csi::Error| {
                    io::Error::other(format!(
                        "UnmountVolume.TearDown failed for volume {:?} : kubernetes.io/csi: Unmounter.TearDownAt failed: {error}",
                        record.spec_vol_id
                    ))
                };
                let driver = self.drivers.get(&record.driver_name);
                let driver = driver.map_err(|e| failed(e.into()))?;
                let request = NodeUnpublishVolumeRequest {
                    volume_id: record.volume_handle.clone(),
                    target_path: mount.to_string_lossy().into_owned(),
                };
                driver.unpublish(request).await.map_err(failed)?;
            }
            Loaded::Missing => {}
            Loaded::Unknown(why) if is_mounted(&mount)? => {
                return Err(io::Error::other(format!(
                    "{} is mounted by a driver that is not known: {why}",
                    mount.display()
                )));
            }
            // Cut off by a power failure before the driver was asked.
            Loaded::Unknown(_) => {}
        }
        remove_records(dir.to_owned()).await;
        if dir.exists() {
            return Err(io::Error::other(format!(
                "{} is still there",
                dir.display()
            )));
        }
        Ok(())
    }

    /// Has drivers unstage and unmount what no pod uses, until it is dropped. Volumes are undone side by side, and one
    /// that is still under way is not begun anew: a driver that hangs holds up its own volumes only.
    pub async fn keep_staged(&self) {
        let mut busy = BTreeSet::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            // What cannot be listed now is looked at again.
            let csi = staged_records(self.paths.root()).unwrap_or_default();
            let csi = csi.into_iter();
            let csi = csi.map(|(dir, record)| (dir, Staged::Csi(record)));
            let devices = device_records(self.paths.root()).unwrap_or_default();
            let devices = devices.into_iter();
            let devices = devices.map(|(name, record)| {
                let dir = paths::device_data(self.paths.root(), &name);
                (dir, Staged::Device(name, record))
            });
            let local = self.local_mounts();
            let local = local.map(|(dir, name)| (dir, Staged::Local(name)));
            let flex = self.flex_mounts().await;
            for (dir, volume) in csi.chain(devices).chain(local).chain(flex) {
                if busy.insert(dir.clone()) {
                    under_way.push(self.undo_unused(dir, volume));
                }
            }
            let round = tokio::time::timeout(PERIOD, self.unstage.notified());
            tokio::pin!(round);
            loop {
                tokio::select! {
                    _ = &mut round => break,
                    Some(dir) = under_way.next() => drop(busy.remove(&dir)),
                }
            }
        }
    }

    /// Undoes one volume if no pod uses it. Answers with its directory.
    async fn undo_unused(&self, dir: PathBuf, volume: Staged) -> PathBuf {
        match volume {
            Staged::Csi(record) => {
                if let Err(error) = self.unstage_unused(&dir, &record).await {
                    tracing::warn!(driver = record.driver_name, volume = record.volume_handle, %error, "the volume is still staged");
                }
            }
            Staged::Device(volume, record) => {
                if let Err(error) = self.unstage_unused_device(&volume, &record).await {
                    tracing::warn!(driver = record.driver_name, volume, %error, "the device is still staged");
                }
            }
            Staged::Local(volume) => self.unmount_unused_local(&dir, &volume).await,
            Staged::Flex(driver, volume) => {
                self.unmount_unused_flex(&dir, &driver, &volume).await;
            }
        }
        dir
    }

    pub(super) async fn unstage_unused(&self, dir: &Path, record: &StageData) -> io::Result<()> {
        let name = format!("{}/{}", record.driver_name, record.volume_handle);
        let lock = self.volumes.of(&name);
        let _alone = lock.lock().await;
        let uses = |other: &PublishData| {
            other.driver_name == record.driver_name && other.volume_handle == record.volume_handle
        };
        let pods = super::published_records(&self.paths.pods())?;
        if pods.iter().any(|(_, other)| uses(other)) {
            return Ok(());
        }
        let driver = self.drivers.get(&record.driver_name);
        let driver = driver.map_err(io::Error::other)?;
        let root = self.paths.root();
        let staging = paths::global_mount(root, &record.driver_name, &record.volume_handle);
        let request = NodeUnstageVolumeRequest {
            volume_id: record.volume_handle.clone(),
            staging_target_path: staging.to_string_lossy().into_owned(),
        };
        let key = (record.driver_name.clone(), record.volume_handle.clone());
        self.staged.lock().remove(&key);
        driver.unstage(request).await.map_err(io::Error::other)?;
        remove_records(dir.to_owned()).await;
        self.look.notify_one();
        Ok(())
    }
}

/// The records of staged volumes.
///
/// # Errors
/// They cannot be looked at now.
pub(super) fn staged_records(root: &Path) -> io::Result<Vec<(PathBuf, StageData)>> {
    let mut records = Vec::new();
    for driver in entries(&paths::plugin_dir(root))? {
        if driver == paths::devices_dir(root) {
            continue;
        }
        for volume in entries(&driver)? {
            let record = vol_data::read(&volume.join(VOL_DATA)).map_err(io::Error::other)?;
            if let Loaded::Found(record) = record {
                records.push((volume, record));
            }
        }
    }
    Ok(records)
}

fn is_mounted(path: &Path) -> io::Result<bool> {
    davit_beneath::mountinfo::is_mount_point(path)
}

/// Removes the directories of a volume with its record. Only empty directories go: what a driver has left in them stays.
pub(super) async fn remove_records(dir: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || {
        for name in [MOUNT, "globalmount"] {
            let at = dir.join(name);
            match std::fs::remove_dir(&at) {
                // A driver may have made a file or a link of it.
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                    missing(std::fs::remove_file(at))?;
                }
                other => missing(other)?,
            }
        }
        missing(std::fs::remove_file(dir.join(VOL_DATA)))?;
        missing(std::fs::remove_dir(&dir))
    });
    match removed.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "a directory of a CSI volume stays"),
        Err(error) => tracing::error!(%error, "a directory of a CSI volume stays"),
    }
}
