//! The node's part in growing a FlexVolume: `expandfs`, or the file system's own program.

use super::super::claims::Claimed;
use super::super::error::Cause;
use super::super::node_expand::When;
use super::super::{Volumes, device_mount};
use super::unique_name;
use davit_flexvolume::{FlexVolume, paths};
use davit_pods::pod::PodExt;
use davit_volume::matching::size_of;
use k8s_openapi::api::core::v1::Pod;
use std::path::Path;

impl Volumes {
    /// Grows a volume that has grown; `mounted` is where the pod has it.
    pub(super) async fn expand_flex(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        volume: &FlexVolume,
        mounted: &Path,
        when: When,
    ) -> Result<(), Cause> {
        self.expand(pod, claimed, when, async |to| {
            let driver = self.flex_drivers.get(volume.driver.as_str()).await?;
            let capabilities = driver.capabilities();
            if !capabilities.requires_fs_resize {
                return Ok(());
            }
            let (device, at) = if capabilities.attach {
                let name = unique_name(&driver, pod.uid(), &volume.name);
                let device = self.attached_device(pod, &name).await?;
                let root = self.paths.root();
                let at = paths::global_mount(root, &volume.driver, &volume.name);
                (device, at)
            } else {
                (String::new(), mounted.to_owned())
            };
            let (new, old) = (to.value(), size_of(&claimed.claim).value());
            let options = volume.options();
            let grown = driver.expand_fs(&options, &device, &at, new, old).await?;
            if !grown && !device.is_empty() {
                device_mount::grow(Path::new(&device), &at).await?;
            }
            Ok(())
        })
        .await
    }
}
