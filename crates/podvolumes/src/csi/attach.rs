//! Volumes that others attach: the node says that it wants one, and waits until it is told that it has it (spec storage.md
//! 3.10).

use super::super::Volumes;
use super::super::error::Cause;
use davit_csi::names::attachment_name;
use davit_csi::{CsiVolume, DriverSettings};
use davit_pods::pod::PodExt;
use davit_volume::names::csi_volume_name;
use k8s_openapi::api::core::v1::{Node, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// How long one attempt waits.
const LIMIT: Duration = Duration::from_secs(123);
/// What attachers say with the code of gRPC when a node takes no more volumes.
const RESOURCE_EXHAUSTED: i32 = 8;
const POLL: Duration = Duration::from_millis(100);

impl Volumes {
    /// Waits until the volume is attached. Answers what the attacher wants the driver to know.
    pub(super) async fn attached(
        &self,
        pod: &Pod,
        volume: &CsiVolume,
        settings: &DriverSettings,
    ) -> Result<BTreeMap<String, String>, Cause> {
        let name = csi_volume_name(&volume.driver, &volume.handle);
        let wait = async {
            loop {
                if self.device_in_place(pod, &name).is_some() {
                    let object = attachment_name(&volume.handle, &volume.driver, &self.node_name);
                    let found = self.objects.attachment(&object).await?;
                    let status = found.and_then(|attachment| attachment.status);
                    if let Some(status) = status.filter(|status| status.attached) {
                        return Ok(status.attachment_metadata.unwrap_or_default());
                    }
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(attached) => attached,
            Err(_) => Err(self.why_not_attached(volume, settings, &name).await),
        }
    }

    /// A driver that lets its limit be asked for anew may have less room than the scheduler was told.
    async fn why_not_attached(
        &self,
        volume: &CsiVolume,
        settings: &DriverSettings,
        name: &str,
    ) -> Cause {
        if settings.allocatable_update_period().is_some() {
            let object = attachment_name(&volume.handle, &volume.driver, &self.node_name);
            let found = self.objects.attachment(&object).await.ok().flatten();
            let error = found.and_then(|attachment| attachment.status?.attach_error);
            if let Some(error) = error
                && error.error_code == Some(RESOURCE_EXHAUSTED)
            {
                return Cause::AttachLimit {
                    driver: volume.driver.clone(),
                    message: error.message.unwrap_or_default(),
                };
            }
        }
        not_attached(name)
    }

    /// Waits until the volume is attached, where no VolumeAttachment tells of it. Answers its device, which may be empty.
    pub(crate) async fn attached_device(&self, pod: &Pod, name: &str) -> Result<String, Cause> {
        let wait = async {
            loop {
                if let Some(device) = self.device_in_place(pod, name) {
                    return device;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let waited = tokio::time::timeout(LIMIT, wait).await;
        waited.map_err(|_| not_attached(name))
    }

    /// Says that the pod wants a volume; the device once the node has been told that it is attached.
    fn device_in_place(&self, pod: &Pod, name: &str) -> Option<String> {
        let key = (pod.uid().to_owned(), name.to_owned());
        if self.wanted.lock().insert(key) {
            self.look.notify_one();
        }
        let node = self.node.as_ref()?.get(None, &self.node_name)?;
        in_place(&node, name)
    }

    /// The volumes that may not be detached: those that pods want, have published, or had staged.
    ///
    /// # Errors
    /// It cannot be known now.
    pub fn in_use(&self) -> io::Result<Vec<String>> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        names.extend(self.wanted.lock().iter().map(|(_, name)| name.clone()));
        for (_, record) in super::published_records(&self.paths.pods())? {
            if record.volume_lifecycle_mode == davit_csi::LifecycleMode::Persistent {
                names.insert(csi_volume_name(&record.driver_name, &record.volume_handle));
            }
        }
        for (_, record) in super::undo::staged_records(self.paths.root())? {
            names.insert(csi_volume_name(&record.driver_name, &record.volume_handle));
        }
        for (_, record) in super::device::device_records(self.paths.root())? {
            names.insert(csi_volume_name(&record.driver_name, &record.volume_handle));
        }
        names.extend(self.flex_in_use()?);
        Ok(names.into_iter().collect())
    }
}

fn not_attached(name: &str) -> Cause {
    Cause::Claim(format!(
        "timed out waiting for volume {name} to be attached"
    ))
}

/// The device of a volume that the node has said to use, and been told to be attached.
fn in_place(node: &Node, name: &str) -> Option<String> {
    let status = node.status.as_ref()?;
    let mut used = status.volumes_in_use.iter().flatten();
    let mut attached = status.volumes_attached.iter().flatten();
    let attached = attached.find(|volume| volume.name == name)?;
    used.any(|used| used == name)
        .then(|| attached.device_path.clone())
}
