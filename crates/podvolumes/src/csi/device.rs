//! CSI volumes as devices (spec storage.md 5.7): staged and published without a mount, then bound to the pod's device file.

use super::super::block::{self, DeviceMap};
use super::super::error::{Cause, io_error};
use super::super::{Volumes, blocking, entries, missing, name_of};
use super::{Job, PLUGIN};
use davit_csi::vol_data::{self, DeviceData, Loaded, VOL_DATA};
use davit_csi::{Class, paths};
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use davit_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest};
use futures::future::join_all;
use std::io;
use std::path::{Path, PathBuf};

/// The device files of a volume.
pub(crate) fn map_of(own: &Paths, volume: &str) -> DeviceMap {
    DeviceMap::new(own, paths::device_map(own.root(), volume))
}

/// The volumes whose devices are on the node, with their records.
///
/// # Errors
/// They cannot be looked at now.
pub(super) fn device_records(root: &Path) -> io::Result<Vec<(String, DeviceData)>> {
    let mut records = Vec::new();
    for volume in entries(&paths::devices_dir(root))? {
        let name = name_of(&volume);
        let at = paths::device_data(root, &name).join(VOL_DATA);
        if let Loaded::Found(record) = vol_data::read(&at).map_err(io::Error::other)? {
            records.push((name, record));
        }
    }
    Ok(records)
}

impl Job<'_> {
    /// Stages the volume if no pod has it, publishes its device, and gives it to the pod.
    pub(super) async fn run_device(&self) -> Result<(), Cause> {
        let (root, volume) = (self.volumes.paths.root(), self.volume);
        let uid = self.pod.uid();
        self.record_device().await?;
        let staging = paths::device_staging(root, &volume.name);
        let key = (volume.driver.clone(), volume.handle.clone());
        let staged = self.volumes.staged.lock().contains(&key);
        if self.capabilities.stage_unstage && !staged {
            self.ask_to_stage(&staging).await?;
            self.volumes.staged.lock().insert(key);
        }
        let map = map_of(&self.volumes.paths, &volume.name);
        let (marked, of) = (map.clone(), uid.to_owned());
        let target = paths::device_publish(root, &volume.name, uid);
        let parent = target.parent().unwrap_or(&target).to_owned();
        let own = self.volumes.paths.clone();
        let fresh = blocking(move || {
            own.make_dir(&parent)
                .map_err(|e| io_error("cannot make the directory of devices")(e.into()))?;
            marked.mark(&of)
        })
        .await?;
        let published = self.ask_to_publish(&staging, &target).await;
        if let Err(Cause::Csi(error)) = &published
            && error.class() == Class::Final
            && fresh
        {
            let (map, of) = (map.clone(), uid.to_owned());
            blocking(move || {
                map.unmark(&of)
                    .map_err(io_error("cannot remove the pod's device file"))
            })
            .await?;
        }
        published?;
        let device = blocking(move || block::open(&target)).await?;
        self.volumes
            .map_device(self.pod, PLUGIN, &volume.name, &map, device)
            .await?;
        Ok(())
    }

    /// Writes down what there may be to undo. Another volume under the same name has to be undone first.
    async fn record_device(&self) -> Result<(), Cause> {
        let root = self.volumes.paths.root();
        let dir = paths::device_data(root, &self.volume.name);
        let staging = paths::device_staging(root, &self.volume.name);
        let stage = self.capabilities.stage_unstage;
        let record = DeviceData::of(self.volume, &self.volumes.node_name);
        let own = self.volumes.paths.clone();
        blocking(move || {
            let failed = || "cannot make the directory of the volume's device";
            own.make_dir(&dir)
                .map_err(|e| io_error(failed())(e.into()))?;
            if stage {
                own.make_dir(&staging)
                    .map_err(|e| io_error(failed())(e.into()))?;
            }
            let at = dir.join(VOL_DATA);
            let held = vol_data::read::<DeviceData>(&at);
            match held.map_err(|e| Cause::Claim(e.to_string()))? {
                Loaded::Found(held) if held == record => return Ok(()),
                Loaded::Found(held)
                    if (&held.driver_name, &held.volume_handle)
                        != (&record.driver_name, &record.volume_handle) =>
                {
                    return Err(Cause::Claim(format!(
                        "the device of volume {:?} of driver {} is still on the node under this name",
                        held.volume_handle, held.driver_name
                    )));
                }
                _ => {}
            }
            vol_data::write(&at, &record).map_err(|e| Cause::Claim(e.to_string()))
        })
        .await
    }
}

impl Volumes {
    /// Takes the devices of a pod back, and has the drivers unpublish them.
    pub(super) async fn unpublish_devices(&self, uid: &str) -> io::Result<()> {
        let root = self.paths.root();
        let had = device_records(root)?
            .into_iter()
            .filter(|(volume, _)| map_of(&self.paths, volume).has(uid));
        let undone = had.map(|(volume, record)| async move {
            let undone = self.unpublish_device(uid, &volume, &record).await;
            undone.map_err(|cause| {
                io::Error::other(format!(
                    "UnmapVolume.UnmapPodDevice failed for volume {volume:?} : {cause}"
                ))
            })
        });
        join_all(undone).await.into_iter().collect()
    }

    async fn unpublish_device(
        &self,
        uid: &str,
        volume: &str,
        record: &DeviceData,
    ) -> io::Result<()> {
        let root = self.paths.root();
        let map = map_of(&self.paths, volume);
        self.unbind_device(&map, uid, volume).await?;
        let driver = self.drivers.get(&record.driver_name);
        let driver = driver.map_err(io::Error::other)?;
        let target = paths::device_publish(root, volume, uid);
        let request = NodeUnpublishVolumeRequest {
            volume_id: record.volume_handle.clone(),
            target_path: super::text(&target),
        };
        driver.unpublish(request).await.map_err(io::Error::other)?;
        let uid = uid.to_owned();
        let removed = tokio::task::spawn_blocking(move || {
            // The driver should have done so. What is bound there stays, and the mark with it.
            missing(std::fs::remove_file(&target))?;
            if let Some(dir) = target.parent() {
                remove_empty(dir)?;
            }
            map.unmark(&uid)
        });
        removed.await.map_err(io::Error::other)?
    }

    /// Has a driver unstage a device that no pod has any more.
    pub(super) async fn unstage_unused_device(
        &self,
        volume: &str,
        record: &DeviceData,
    ) -> io::Result<()> {
        let name = format!("{}/{}", record.driver_name, record.volume_handle);
        let lock = self.volumes.of(&name);
        let _alone = lock.lock().await;
        let root = self.paths.root();
        if !map_of(&self.paths, volume).pods()?.is_empty() {
            return Ok(());
        }
        let driver = self.drivers.get(&record.driver_name);
        let driver = driver.map_err(io::Error::other)?;
        let staging = paths::device_staging(root, volume);
        let key = (record.driver_name.clone(), record.volume_handle.clone());
        self.staged.lock().remove(&key);
        let capabilities = driver.capabilities().await.map_err(io::Error::other)?;
        if capabilities.stage_unstage {
            let request = NodeUnstageVolumeRequest {
                volume_id: record.volume_handle.clone(),
                staging_target_path: super::text(&staging),
            };
            driver.unstage(request).await.map_err(io::Error::other)?;
        }
        let data = paths::device_data(root, volume);
        let removed = tokio::task::spawn_blocking(move || remove_device(&staging, &data));
        match removed.await.map_err(io::Error::other) {
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                tracing::warn!(volume, %error, "a directory of a CSI device stays");
            }
        }
        self.look.notify_one();
        Ok(())
    }
}

/// Removes what was kept about a device. Only empty directories go; the record goes last, so that a rest is tried again.
fn remove_device(staging: &Path, data: &Path) -> io::Result<()> {
    // Drivers stage a device as a file or in the directory that they are given.
    match std::fs::remove_dir(staging) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => std::fs::remove_file(staging)?,
        other => missing(other)?,
    }
    let volume: PathBuf = data.parent().unwrap_or(data).to_owned();
    missing(std::fs::remove_dir(volume.join("dev")))?;
    missing(std::fs::remove_file(data.join(VOL_DATA)))?;
    missing(std::fs::remove_dir(data))?;
    missing(std::fs::remove_dir(volume))
}

fn remove_empty(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        other => missing(other),
    }
}
