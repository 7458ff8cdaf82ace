//! Volumes of FlexVolume drivers: attached by others, mounted once on the node and then for each pod, as far as the driver
//! does these (spec storage.md 6.3).
//!
//! A directory says that a driver may have mounted something on it: it is made before the driver is asked, and removed when
//! the driver says that nothing is there. After a restart directories and mounts say what there is to undo.

mod expand;
mod undo;

use super::claims::Claimed;
use super::error::{Cause, Error, io_error};
use super::node_expand::When;
use super::{Ready, Volumes, blocking, device_mount, fs_group, group_of};
use davit_flexvolume::{
    AttachWait, FlexDriver, FlexVolume, MountingPod, Outcome, paths, secret_values,
};
use davit_pods::pod::PodExt;
use davit_volume::names::{pod_volume_name, unique_volume_name};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{FlexVolumeSource, PersistentVolume, Pod};
use rustix::fs::{CWD, Mode, OFlags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the directories of a persistent volume's driver below pods'; `None` for volumes of other kinds.
pub(super) fn directory_of(volume: &PersistentVolume) -> Option<String> {
    let volume = FlexVolume::persistent(volume, false)?.ok()?;
    Some(volume.driver.directory())
}

/// The name of a volume for locks, and for the node's status if it is attached.
fn unique_name(driver: &FlexDriver, uid: &str, volume: &str) -> String {
    let name = driver.name().as_str();
    if driver.capabilities().attach {
        unique_volume_name(name, volume)
    } else {
        pod_volume_name(name, uid, volume)
    }
}

/// By what a mounted volume is remembered.
fn key(uid: &str, directory: &str, volume: &str) -> (String, String) {
    (uid.to_owned(), format!("{directory}/{volume}"))
}

/// All that one volume for one pod is made of.
struct FlexJob<'a> {
    volumes: &'a Volumes,
    pod: &'a Pod,
    volume: &'a FlexVolume,
    driver: Arc<FlexDriver>,
    /// Where it is mounted for all pods.
    global: PathBuf,
    /// Where it is mounted for the pod.
    target: PathBuf,
}

impl Volumes {
    /// A volume that a pod describes itself.
    pub(super) async fn inline_flex(
        &self,
        pod: &Pod,
        name: &str,
        source: &FlexVolumeSource,
    ) -> Result<Ready, Error> {
        let made = match FlexVolume::inline(name, source) {
            Ok(volume) => self.flex(pod, &volume).await,
            Err(error) => Err(Cause::Flex(error.into())),
        };
        made.map_err(|cause| Error::SetUp {
            volume: name.to_owned(),
            cause,
        })
    }

    /// A persistent volume.
    pub(super) async fn persistent_flex(
        &self,
        pod: &Pod,
        claimed: &Claimed,
    ) -> Result<Ready, Cause> {
        if claimed.is_block() {
            return Err(Cause::NotBuilt("flexVolume with volumeMode Block"));
        }
        if !claimed.mount_options().is_empty() {
            let text = "mount options are not supported for this volume type";
            return Err(Cause::Claim(text.to_owned()));
        }
        let volume = FlexVolume::persistent(&claimed.volume, claimed.read_only)
            .ok_or(Cause::NotBuilt("flexVolume without a driver"))?;
        let volume = volume.map_err(|error| Cause::Flex(error.into()))?;
        let key = key(pod.uid(), &volume.driver.directory(), &volume.name);
        let when = When::of(self.published.lock().contains(&key));
        let ready = self.flex(pod, &volume).await?;
        self.expand_flex(pod, claimed, &volume, ready.path(), when)
            .await?;
        Ok(ready)
    }

    async fn flex(&self, pod: &Pod, volume: &FlexVolume) -> Result<Ready, Cause> {
        let directory = volume.driver.directory();
        let target = self.paths.volume(pod.uid(), &directory, &volume.name);
        let ready = Ready::Directory {
            path: target.clone(),
            read_only: volume.read_only,
        };
        let key = key(pod.uid(), &directory, &volume.name);
        if self.published.lock().contains(&key) {
            return Ok(ready);
        }
        if !self.is_mounted(&target)? {
            let driver = self.flex_drivers.get(volume.driver.as_str()).await?;
            let name = unique_name(&driver, pod.uid(), &volume.name);
            let device = if driver.capabilities().attach {
                Some(self.attached_device(pod, &name).await?)
            } else {
                None
            };
            let root = self.paths.root();
            let job = FlexJob {
                volumes: self,
                pod,
                volume,
                driver,
                global: paths::global_mount(root, &volume.driver, &volume.name),
                target,
            };
            // Until the pod's directory is there nothing says that the volume is used.
            let lock = self.volumes.of(&name);
            let _alone = lock.lock().await;
            job.run(device.as_deref()).await?;
        }
        self.published.lock().insert(key);
        Ok(ready)
    }
}

impl FlexJob<'_> {
    /// `device` is what attaching answered; `None` for drivers that do not attach.
    async fn run(&self, device: Option<&str>) -> Result<(), Cause> {
        let pod = self.mounting_pod();
        let secrets = self.secrets().await?;
        if let Some(device) = device {
            self.mount_device(device).await?;
        }
        self.volumes.make_volume_dir(&self.target).await?;
        let options = self.volume.mount_options(&pod, &secrets);
        let mounted = match self.driver.mount(&self.target, &options).await {
            Ok(true) => Ok(()),
            Ok(false) => self.bind().await,
            Err(error) => Err(error.into()),
        };
        if let Err(cause) = mounted {
            remove_unless_uncertain(&self.target, &cause).await;
            return Err(cause);
        }
        if !self.volume.read_only && self.driver.capabilities().fs_group {
            let given = fs_group::apply(self.volumes, self.pod, &self.target).await;
            // As upstream: file systems of drivers may have no groups.
            if let Err(error) = given {
                tracing::warn!(volume = self.volume.name, %error, "the group of a FlexVolume stays");
            }
        }
        Ok(())
    }

    /// Mounts the volume for all pods, unless it is.
    async fn mount_device(&self, attached: &str) -> Result<(), Cause> {
        if self.volumes.is_mounted(&self.global)? {
            return Ok(());
        }
        let options = self.volume.options();
        self.driver.get_volume_name(&options).await?;
        let waited = self.driver.wait_for_attach(attached, &options).await?;
        let device = match waited {
            AttachWait::Device(device) => device,
            AttachWait::NotSupported => attached.to_owned(),
        };
        self.volumes.make_volume_dir(&self.global).await?;
        let asked = self
            .driver
            .mount_device(&self.global, &device, &options)
            .await;
        let mounted = match asked {
            Ok(false) if !device.is_empty() => self.mount_plainly(&device).await,
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(cause) = &mounted {
            remove_unless_uncertain(&self.global, cause).await;
        }
        mounted
    }

    /// What happens to a device whose driver does not mount it.
    async fn mount_plainly(&self, device: &str) -> Result<(), Cause> {
        let wanted = device_mount::Wanted {
            device: Path::new(device),
            target: &self.global,
            fs_type: &self.volume.fs_type,
            read_only: self.volume.read_only,
        };
        Ok(device_mount::format_and_mount(&self.volumes.mounter, wanted).await?)
    }

    /// What happens where the driver does not mount for pods.
    async fn bind(&self) -> Result<(), Cause> {
        let (from, to) = (self.global.clone(), self.target.clone());
        let mounter = self.volumes.mounter.clone();
        blocking(move || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let from = rustix::fs::openat(CWD, &from, flags, Mode::empty())
                .map_err(|e| io_error("cannot open the volume's global mount")(e.into()))?;
            mounter
                .bind(&from, &to)
                .map_err(io_error("cannot bind the volume's global mount"))
        })
        .await
    }

    fn mounting_pod(&self) -> MountingPod<'_> {
        let account = self.pod.pod_spec().service_account_name.as_deref();
        MountingPod {
            name: self.pod.pod_name(),
            namespace: self.pod.ns(),
            uid: self.pod.uid(),
            service_account: account.unwrap_or_default(),
            fs_group: group_of(self.pod),
        }
    }

    async fn secrets(&self) -> Result<BTreeMap<String, ByteString>, Cause> {
        let Some(name) = &self.volume.secret else {
            return Ok(BTreeMap::new());
        };
        let namespace = self.volume.secret_namespace.as_deref();
        let namespace = namespace.unwrap_or_else(|| self.pod.ns());
        let failed = |why: &dyn std::fmt::Display| {
            Cause::Claim(format!("couldn't get secret {namespace}/{name} err: {why}"))
        };
        let found = self.volumes.objects.secret(namespace, name).await;
        let found = found.map_err(|error| failed(&error))?;
        let found = found.ok_or_else(|| failed(&format!("secrets \"{name}\" not found")))?;
        secret_values(&self.volume.driver, &found).map_err(|error| failed(&error))
    }
}

/// Removes a directory on which nothing was mounted. Where that is not known it stays, and is unmounted with the pod.
async fn remove_unless_uncertain(path: &Path, cause: &Cause) {
    if let Cause::Flex(error) = cause
        && error.outcome() == Outcome::Uncertain
    {
        return;
    }
    if let Err(error) = undo::remove_dir(path).await {
        tracing::warn!(%error, "the directory of a FlexVolume stays");
    }
}

#[cfg(test)]
mod tests;
