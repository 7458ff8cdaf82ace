//! NodeExpandVolume: the driver grows what a volume is on the node.

use super::super::Volumes;
use super::super::claims::Claimed;
use super::super::error::Cause;
use super::super::node_expand::When;
use super::{csi_cause, text};
use davit_csi::request::expand;
use davit_csi::secrets::SecretField;
use davit_csi::{CsiVolume, paths};
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use std::path::Path;

impl Volumes {
    /// Has the driver grow a volume that has grown; `mounted` is where the pod has it.
    pub(super) async fn expand_csi(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        volume: &CsiVolume,
        mounted: &Path,
        when: When,
    ) -> Result<(), Cause> {
        let root = self.paths.root();
        let (at, staging) = if volume.block {
            let at = paths::device_publish(root, &volume.name, pod.uid());
            (at, paths::device_staging(root, &volume.name))
        } else {
            let staging = paths::global_mount(root, &volume.driver, &volume.handle);
            (mounted.to_owned(), staging)
        };
        self.expand(pod, claimed, when, async |to| {
            let driver = self.drivers.get(&volume.driver).map_err(csi_cause)?;
            let capabilities = driver.capabilities().await.map_err(csi_cause)?;
            if !capabilities.expand {
                return Err(Cause::CannotExpand(format!(
                    "NodeExpand is not supported by the CSI driver {}",
                    volume.driver
                )));
            }
            let secret = volume.expand_secret.as_ref();
            let secrets = self.csi_secrets(SecretField::Expand, secret).await?;
            let (at, staging, size) = (text(&at), text(&staging), to.value());
            let request = expand(volume, capabilities, &at, &staging, size, &secrets);
            driver.expand(request).await.map_err(csi_cause)?;
            Ok(())
        })
        .await
    }
}
