//! Devices of persistent volumes with `volumeMode: Block` (spec storage.md 4.7).
//!
//! A volume has a directory with a file for each pod that has its device, or may have; the device is bound to that file, and
//! the pod's link leads there. The file is made before anybody is asked for the device and goes when the device has been
//! given back: after a restart it says what there is to undo.

use super::error::{Cause, io_error};
use super::mounts::Mounter;
use super::{Volumes, blocking, entries, missing, name_of};
use davit_beneath::Root;
use davit_pods::paths::Paths;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Of the files that devices are bound to.
const FILE_MODE: u32 = 0o600;

/// Which pods have the device of one volume.
#[derive(Debug, Clone)]
pub(super) struct DeviceMap {
    paths: Paths,
    dir: PathBuf,
}

impl DeviceMap {
    /// The map in this directory below the root of `paths`, which need not be there.
    pub(super) fn new(paths: &Paths, dir: PathBuf) -> Self {
        Self {
            paths: paths.clone(),
            dir,
        }
    }

    /// What the device is bound to for a pod.
    pub(super) fn file(&self, uid: &str) -> PathBuf {
        self.dir.join(uid)
    }

    /// UIDs of the pods that have the device, or may have.
    pub(super) fn pods(&self) -> io::Result<Vec<String>> {
        let files = entries(&self.dir)?.into_iter();
        Ok(files.map(|file| name_of(&file)).collect())
    }

    /// Whether a pod has the device, or may have.
    pub(super) fn has(&self, uid: &str) -> bool {
        // Not by following: it is a file or a device, and nothing else is there.
        self.file(uid).symlink_metadata().is_ok()
    }

    /// Says that a pod may have the device. Answers whether that is new. Blocks.
    pub(super) fn mark(&self, uid: &str) -> Result<bool, Cause> {
        let dir = self
            .paths
            .make_dir(&self.dir)
            .map_err(|e| io_error("cannot make the directory of the volume's devices")(e.into()))?;
        match dir.create_new(uid, FILE_MODE) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(io_error("cannot make the pod's device file")(error.into())),
        }
    }

    /// Says that a pod has the device no more. The directory goes with the last pod. Blocks.
    pub(super) fn unmark(&self, uid: &str) -> io::Result<()> {
        missing(std::fs::remove_file(self.file(uid)))?;
        match std::fs::remove_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => missing(other),
        }
    }

    /// Binds a device to the pod's file. Answers with the device opened: while it is, its number is given to no other.
    fn bind(&self, mounter: &dyn Mounter, device: &OwnedFd, uid: &str) -> Result<OwnedFd, Cause> {
        let number = device_number(device)?
            .ok_or_else(|| Cause::Claim("what the volume gives is no block device".to_owned()))?;
        let file = self.file(uid);
        let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bound = rustix::fs::openat(CWD, &file, look, Mode::empty())
            .map_err(|e| io_error("cannot open the pod's device file")(e.into()))?;
        if device_number(&bound)? != Some(number) {
            drop(bound);
            let failed = || io_error("cannot bind the volume's device");
            mounter.unmount(&file).map_err(failed())?;
            mounter.bind(device, &file).map_err(failed())?;
        }
        let open = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, &file, open, Mode::empty())
            .map_err(|e| io_error("cannot open the volume's device")(e.into()))
    }
}

/// The number of a block device; nothing for a file of another kind.
fn device_number(file: &OwnedFd) -> Result<Option<u64>, Cause> {
    let stat = rustix::fs::fstat(file)
        .map_err(|e| io_error("cannot look at the volume's device")(e.into()))?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    Ok(is_block.then_some(stat.st_rdev))
}

/// Opens a device without using it. Drivers and administrators may have put a link there.
pub(super) fn open(device: &Path) -> Result<OwnedFd, Cause> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, device, flags, Mode::empty()) {
        Err(Errno::NOENT) => Err(Cause::Claim(format!(
            "path {:?} does not exist",
            device.display().to_string()
        ))),
        other => other.map_err(|e| io_error("cannot open the volume's path")(e.into())),
    }
}

/// Makes a link, or makes one lead here. Blocks.
fn link(dir: &Root, name: &Path, to: &Path) -> davit_beneath::Result<()> {
    match dir.read_link(name) {
        Ok(says) if says == to => return Ok(()),
        Ok(_) => dir.remove_file(name)?,
        Err(_) => {}
    }
    dir.symlink(to, name)
}

impl Volumes {
    /// Gives a pod the device of a volume that [`DeviceMap::mark`] says it may have: `device` is bound, held and linked to.
    /// Answers with the link.
    pub(super) async fn map_device(
        &self,
        pod: &Pod,
        plugin: &str,
        volume: &str,
        map: &DeviceMap,
        device: OwnedFd,
    ) -> Result<PathBuf, Cause> {
        let at = self.paths.volume_device(pod.uid(), plugin, volume);
        let (mounter, uid) = (self.mounter.clone(), pod.uid().to_owned());
        let (map_of_volume, from) = (map.clone(), at.clone());
        let opened = blocking(move || {
            let opened = map_of_volume.bind(&*mounter, &device, &uid)?;
            let dir = from.parent().unwrap_or(&from);
            let dir = map_of_volume.paths.make_dir(dir).map_err(|e| {
                io_error("cannot make the directory of the pod's devices")(e.into())
            })?;
            let name = Path::new(from.file_name().unwrap_or_default());
            link(&dir, name, &map_of_volume.file(&uid))
                .map_err(|e| io_error("cannot link to the volume's device")(e.into()))?;
            Ok(opened)
        })
        .await?;
        let key = (pod.uid().to_owned(), volume.to_owned());
        if self.held.lock().insert(key, opened).is_none() {
            for (name, path) in [("globalMapPath", map.dir.as_path()), ("volumeMapPath", &at)] {
                let text = format!(
                    "MapVolume.MapPodDevice succeeded for volume {volume:?} {name} {:?}",
                    path.display().to_string()
                );
                self.tell(pod, "SuccessfulMountVolume", text);
            }
        }
        Ok(at)
    }

    /// Takes a device off a pod's file, and lets it go. The mark stays.
    pub(super) async fn unbind_device(
        &self,
        map: &DeviceMap,
        uid: &str,
        volume: &str,
    ) -> io::Result<()> {
        let key = (uid.to_owned(), volume.to_owned());
        drop(self.held.lock().remove(&key));
        let (mounter, file) = (self.mounter.clone(), map.file(uid));
        let unbound = tokio::task::spawn_blocking(move || mounter.unmount(&file));
        unbound.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::NoMounter;

    #[test]
    fn a_pod_is_marked_once_and_the_directory_goes_with_the_last() {
        let tmp = tempfile::tempdir().unwrap();
        let paths = Paths::new(tmp.path().to_owned(), tmp.path().join("logs"));
        let map = DeviceMap::new(&paths, tmp.path().join("pv/dev"));
        assert!(map.pods().unwrap().is_empty() && !map.has("a"));
        assert!(map.mark("a").unwrap());
        assert!(!map.mark("a").unwrap());
        assert!(map.mark("b").unwrap());
        let mut pods = map.pods().unwrap();
        pods.sort();
        assert_eq!(pods, ["a", "b"]);
        map.unmark("a").unwrap();
        map.unmark("a").unwrap();
        assert!(map.has("b"));
        map.unmark("b").unwrap();
        assert!(!tmp.path().join("pv/dev").exists());
        // whoever has the directory as a volume
        std::fs::create_dir(tmp.path().join("host")).unwrap();
        std::os::unix::fs::symlink(tmp.path().join("host"), tmp.path().join("pv/dev")).unwrap();
        map.mark("a").unwrap_err();
        assert!(!tmp.path().join("host/a").exists());
    }

    #[test]
    fn a_file_is_not_taken_for_a_device() {
        let tmp = tempfile::tempdir().unwrap();
        let paths = Paths::new(tmp.path().to_owned(), tmp.path().join("logs"));
        let map = DeviceMap::new(&paths, tmp.path().join("dev"));
        map.mark("u").unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = map
            .bind(&NoMounter, &open(&file).unwrap(), "u")
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "what the volume gives is no block device"
        );
        let error = open(&tmp.path().join("none")).unwrap_err().to_string();
        assert!(error.ends_with("/none\" does not exist"), "{error}");
    }

    #[test]
    fn a_link_is_made_anew_where_it_leads_elsewhere() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = Root::open(tmp.path(), davit_beneath::Links::Refused).unwrap();
        for to in ["/a", "/a", "/b"] {
            link(&dir, Path::new("link"), Path::new(to)).unwrap();
            let says = std::fs::read_link(tmp.path().join("link")).unwrap();
            assert_eq!(says, Path::new(to));
        }
    }
}
