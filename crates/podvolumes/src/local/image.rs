//! Images of davit's own provisioner (spec storage.md 8.3.6): the device of one, and the file system on it.

use super::own_record;
use crate::claims::Claimed;
use crate::error::{Cause, io_error};
use crate::{Volumes, blocking, device_mount};
use davit_beneath::{Links, Permissions, Root};
use davit_disk::{Directories, VolumeForm, VolumeRecord};
use davit_volume::local::{self, DATA, State};
use k8s_openapi::api::core::v1::LocalVolumeSource;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The directory for the data as long as it is not open to all.
const NEW_DATA: &str = "data.new";

/// An image that this node keeps.
#[derive(Debug, Clone)]
pub(in crate::local) struct Image {
    directories: Directories,
    record: VolumeRecord,
}

impl Image {
    /// The device of the image, which gets one if it has none. Blocks.
    pub(in crate::local) fn attach(&self) -> Result<PathBuf, Cause> {
        let device = self.directories.attach(&self.record);
        device.map_err(|e| Cause::Claim(e.to_string()))
    }

    /// Makes the image and its device so many bytes. Its keeper does it as well: who comes first. Blocks.
    fn grow(&self, bytes: u64) -> Result<(), Cause> {
        let grown = self
            .directories
            .grow(&self.record, VolumeForm::Image(bytes));
        grown.map_err(|e| Cause::Claim(e.to_string()))
    }
}

impl Volumes {
    /// The image that davit's own provisioner keeps for a volume on this node, if it is one.
    pub(in crate::local) fn own_image(&self, claimed: &Claimed) -> Result<Option<Image>, Cause> {
        if !local::is_image(&claimed.volume) {
            return Ok(None);
        }
        let Some(record) = own_record(&claimed.volume) else {
            return Ok(None);
        };
        if State::of(&claimed.volume.metadata) != Some(State::Ready) {
            return Err(Cause::Claim("its image is not made yet".to_owned()));
        }
        let image = |directories| Image {
            directories,
            record,
        };
        Ok(self.own.clone().map(image))
    }

    /// The directory of a volume whose file system is on an image, mounted once for all pods.
    pub(in crate::local) async fn image_directory(
        &self,
        name: &str,
        image: Image,
    ) -> Result<OwnedFd, Cause> {
        let global = self.local_mount(name);
        if !self.is_mounted(&global)? {
            // The directory says that the image may have a device.
            self.make_volume_dir(&global).await?;
            let device = blocking(move || image.attach()).await?;
            self.mount_local(&device, &global, "").await?;
            // An image that has grown since, or is the copy of a smaller one.
            device_mount::grow(&device, &global).await?;
        }
        blocking(move || {
            data_of(&global)
                .map_err(|e| io_error("cannot open the directory on the volume's image")(e.into()))
        })
        .await
    }

    /// Makes the file system of a local volume as large as its device, and that, where it is davit's own, as the volume.
    pub(in crate::local) async fn grow_local(
        &self,
        claimed: &Claimed,
        source: &LocalVolumeSource,
    ) -> Result<(), Cause> {
        let global = self.local_mount(claimed.name());
        if !self.is_mounted(&global)? {
            // A directory is as large as its file system.
            return Ok(());
        }
        let device = match self.own_image(claimed)? {
            None => PathBuf::from(&source.path),
            Some(image) => {
                let bytes = local::wanted_bytes(&claimed.volume);
                blocking(move || image.grow(bytes).and_then(|()| image.attach())).await?
            }
        };
        Ok(device_mount::grow(&device, &global).await?)
    }

    /// Keeps pods from mounting the file system of a local volume as long as what is returned is held. Nothing where it is
    /// mounted already.
    pub async fn keep_unmounted(&self, volume: &str) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        let alone = self.volumes.of(volume).lock_owned().await;
        (!self.is_local_volume_mounted(volume)).then_some(alone)
    }

    /// Whether the file system on the device or image of a local volume is mounted, or may be.
    pub fn is_local_volume_mounted(&self, volume: &str) -> bool {
        // What cannot be known counts.
        self.local_mount(volume).try_exists().unwrap_or(true)
    }
}

/// The directory at the root of an image's file system that pods get: they neither see what the file system keeps there nor
/// find it in the way of an empty volume. Made once, for everybody, as the directories of the other volumes are.
fn data_of(mount: &Path) -> davit_beneath::Result<OwnedFd> {
    let root = Root::open(mount, Links::Refused)?;
    match root.entry_itself(DATA) {
        Err(e) if e.is_not_found() => {
            let new = root.mkdir_all(NEW_DATA, 0o777)?;
            new.entry("")?.set(&Permissions::mode(0o777))?;
            root.rename(NEW_DATA, DATA)?;
        }
        other => drop(other?),
    }
    Ok(root.dir(DATA)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_directory_of_the_data_is_made_once_and_no_link_is_followed() {
        let tmp = tempfile::tempdir().unwrap();
        data_of(tmp.path()).unwrap();
        let data = tmp.path().join(DATA);
        let mode = || std::fs::metadata(&data).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o777);
        std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700)).unwrap();
        data_of(tmp.path()).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::remove_dir(&data).unwrap();
        std::os::unix::fs::symlink("/etc", &data).unwrap();
        data_of(tmp.path()).unwrap_err();
    }
}
