//! Volumes that others attach: the node says that it wants one, and waits until it is told that it has it (spec storage.md
//! 3.10).

use super::super::Volumes;
use super::super::error::Cause;
use crate::pod::PodExt;
use davit_csi::CsiVolume;
use davit_csi::names::attachment_name;
use davit_volume::names::csi_volume_name;
use k8s_openapi::api::core::v1::{Node, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long one attempt waits.
const LIMIT: Duration = Duration::from_secs(123);
const POLL: Duration = Duration::from_millis(100);

impl Volumes {
    /// Waits until the volume is attached. Answers what the attacher wants the driver to know.
    pub(super) async fn attached(
        &self,
        pod: &Pod,
        volume: &CsiVolume,
    ) -> Result<BTreeMap<String, String>, Cause> {
        let name = csi_volume_name(&volume.driver, &volume.handle);
        let key = (pod.uid().to_owned(), name.clone());
        if self.wanted.lock().insert(key) {
            self.look.notify_one();
        }
        let wait = async {
            loop {
                let node = self
                    .node
                    .as_ref()
                    .and_then(|n| n.get(None, &self.node_name));
                if node.is_some_and(|node| is_in_place(&node, &name)) {
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
            Err(_) => Err(Cause::Claim(format!(
                "timed out waiting for volume {name} to be attached"
            ))),
        }
    }

    /// The volumes that may not be detached: those that pods want, have published, or had staged.
    pub fn in_use(&self) -> Vec<String> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        names.extend(self.wanted.lock().iter().map(|(_, name)| name.clone()));
        for (_, record) in super::published_records(&self.paths.pods()) {
            if record.volume_lifecycle_mode == davit_csi::LifecycleMode::Persistent {
                names.insert(csi_volume_name(&record.driver_name, &record.volume_handle));
            }
        }
        for (_, record) in super::undo::staged_records(self.paths.root()) {
            names.insert(csi_volume_name(&record.driver_name, &record.volume_handle));
        }
        names.into_iter().collect()
    }
}

/// The node has said that it uses the volume, and been told that it is attached.
fn is_in_place(node: &Node, name: &str) -> bool {
    let Some(status) = &node.status else {
        return false;
    };
    let mut used = status.volumes_in_use.iter().flatten();
    let mut attached = status.volumes_attached.iter().flatten();
    used.any(|n| n == name) && attached.any(|v| v.name == name)
}
