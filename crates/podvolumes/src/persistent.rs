//! Persistent volumes: which mechanism brings one to the pod.

use super::claims::Claimed;
use super::error::{Cause, Error, io_error};
use super::{Ready, Volumes, csi, flex, host_path, local, nfs};
use davit_pods::env::NodeFacts;
use davit_pods::pod::PodExt;
use davit_volume::matching::fits_node;
use k8s_openapi::api::core::v1::{PersistentVolumeSpec, Pod};

impl Volumes {
    /// Brings a persistent volume to the pod.
    ///
    /// # Errors
    /// It may not be used here, or its mechanism fails.
    pub(super) async fn persistent(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        facts: &NodeFacts,
    ) -> Result<Ready, Error> {
        let failed = |cause| {
            let volume = claimed.name().to_owned();
            match cause {
                Cause::Expand(cause) => Error::Expand { volume, cause },
                cause if claimed.is_block() => Error::Map { volume, cause },
                cause => Error::SetUp { volume, cause },
            }
        };
        let Some(spec) = &claimed.volume.spec else {
            return Err(failed(Cause::NotBuilt("unknown")));
        };
        // The scheduler may not have placed the pod, or the node may be another by now.
        if !fits_node(&claimed.volume, &facts.labels) {
            return Err(Error::Affinity {
                volume: claimed.name().to_owned(),
            });
        }
        // One operation at a time on a volume that several pods share.
        let lock = self.volumes.of(claimed.name());
        let _alone = lock.lock().await;
        self.check_one_pod(pod, claimed).map_err(failed)?;
        self.bring(pod, claimed, spec).await.map_err(failed)
    }

    async fn bring(
        &self,
        pod: &Pod,
        claimed: &Claimed,
        spec: &PersistentVolumeSpec,
    ) -> Result<Ready, Cause> {
        if let Some(source) = &spec.local {
            return local::set_up(self, pod, claimed, source).await;
        }
        if let (Some(source), false) = (&spec.host_path, claimed.is_block()) {
            return Ok(Ready::Directory {
                path: host_path::set_up(source)?,
                read_only: claimed.read_only,
            });
        }
        if let (Some(source), false) = (&spec.nfs, claimed.is_block()) {
            let (options, read_only) = (claimed.mount_options(), claimed.read_only);
            let share = nfs::Share::new(claimed.name(), source, options, read_only);
            return self.nfs(pod, &share).await;
        }
        if spec.csi.is_some() {
            return self.persistent_csi(pod, claimed).await;
        }
        if spec.flex_volume.is_some() {
            return self.persistent_flex(pod, claimed).await;
        }
        Err(Cause::NotBuilt(kind_of(spec, claimed.is_block())))
    }

    /// `ReadWriteOncePod` holds also where pods were placed without the scheduler.
    fn check_one_pod(&self, pod: &Pod, claimed: &Claimed) -> Result<(), Cause> {
        if !claimed.is_for_one_pod() {
            return Ok(());
        }
        let (uid, name) = (pod.uid(), claimed.name());
        let flex = flex::directory_of(&claimed.volume);
        let plugins = [local::PLUGIN, csi::PLUGIN, nfs::PLUGIN]
            .into_iter()
            .chain(flex.as_deref());
        let mut others: Vec<String> = Vec::new();
        let unknown = || io_error("cannot know which pods have the volume");
        for plugin in plugins {
            others.extend(self.others_with(uid, plugin, name).map_err(unknown())?);
        }
        for map in [csi::map_of(&self.paths, name), self.local_map(name)] {
            let pods = map.pods().map_err(unknown())?;
            others.extend(pods.into_iter().filter(|other| other != uid));
        }
        if !others.is_empty() {
            let text =
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return Err(Cause::Claim(text.to_owned()));
        }
        Ok(())
    }
}

fn kind_of(spec: &PersistentVolumeSpec, block: bool) -> &'static str {
    let kinds = [
        (
            spec.host_path.is_some() && block,
            "hostPath with volumeMode Block",
        ),
        (spec.nfs.is_some(), "nfs with volumeMode Block"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.fc.is_some(), "fc"),
    ];
    let found = kinds.into_iter().find(|(set, _)| *set);
    found.map_or("unknown", |(_, name)| name)
}
