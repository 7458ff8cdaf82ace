//! Volumes of CSI drivers: attached by others, staged once on the node, published for each pod (spec storage.md 5.4).
//!
//! What a driver may have done is on disk before it is asked (`vol_data.json`), and nowhere else: after a restart the
//! records say what there is to undo.

mod attach;
mod device;
mod expand;
mod undo;

pub(super) use device::map_of;
pub(super) use undo::Staged;

use super::claims::Claimed;
use super::error::{Cause, Error, io_error};
use super::node_expand::When;
use super::{Ready, Volumes, entries, fs_group, group_of};
use davit_beneath::mountinfo::is_mount_point;
use davit_csi::fs_group::{FsGroup, decide};
use davit_csi::request::{PodAttributes, PublishVolume, StageVolume};
use davit_csi::secrets::{self, SecretError, SecretField, SecretName};
use davit_csi::vol_data::{self, PublishData, StageData, VOL_DATA};
use davit_csi::{
    Capabilities, Class, CsiVolume, DriverClient, DriverSettings, LifecycleMode, paths,
};
use davit_pods::pod::PodExt;
use k8s_openapi::api::authentication::v1::TokenRequestStatus;
use k8s_openapi::api::core::v1::{CSIVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of such volumes below a pod's.
pub(super) const PLUGIN: &str = "kubernetes.io~csi";
/// How long a token of a pod's service account is asked for if the driver does not say.
const TOKEN_SECONDS: i64 = 3600;

/// All that one volume for one pod is made of.
struct Job<'a> {
    volumes: &'a Volumes,
    pod: &'a Pod,
    volume: &'a CsiVolume,
    read_only: bool,
    driver: Arc<DriverClient>,
    capabilities: Capabilities,
    settings: DriverSettings,
    fs_group: FsGroup,
    publish_context: BTreeMap<String, String>,
}

impl Volumes {
    /// A volume that a pod describes itself.
    pub(super) async fn inline_csi(
        &self,
        pod: &Pod,
        name: &str,
        source: &CSIVolumeSource,
    ) -> Result<Ready, Error> {
        let volume = CsiVolume::inline(source, name, pod.ns(), pod.uid());
        let made = self.csi(pod, &volume, volume.read_only).await;
        made.map_err(|cause| Error::SetUp {
            volume: name.to_owned(),
            cause,
        })
    }

    /// A persistent volume of a CSI driver.
    pub(super) async fn persistent_csi(
        &self,
        pod: &Pod,
        claimed: &Claimed,
    ) -> Result<Ready, Cause> {
        let mut volume = CsiVolume::persistent(&claimed.volume)
            .ok_or(Cause::NotBuilt("csi without a driver"))?;
        volume.mount_options = claimed.mount_options();
        let key = (pod.uid().to_owned(), volume.name.clone());
        let when = When::of(self.published.lock().contains(&key));
        let ready = self.csi(pod, &volume, claimed.read_only).await?;
        self.expand_csi(pod, claimed, &volume, ready.path(), when)
            .await?;
        Ok(ready)
    }

    async fn csi(&self, pod: &Pod, volume: &CsiVolume, read_only: bool) -> Result<Ready, Cause> {
        let object = self.objects.csi_driver(&volume.driver).await?;
        let settings = DriverSettings::of(object.as_ref());
        let key = (pod.uid().to_owned(), volume.name.clone());
        let ready = if volume.block {
            let path = self.paths.volume_device(pod.uid(), PLUGIN, &volume.name);
            Ready::Device { path, read_only }
        } else {
            let path = paths::pod_mount(self.paths.root(), pod.uid(), &volume.name);
            Ready::Directory { path, read_only }
        };
        let known = self.published.lock().contains(&key);
        if known && (volume.block || !settings.requires_republish) {
            return Ok(ready);
        }
        settings
            .check_lifecycle(&volume.driver, volume.lifecycle)
            .map_err(|error| Cause::Claim(error.to_string()))?;
        let persistent = volume.lifecycle == LifecycleMode::Persistent;
        let publish_context = if persistent && settings.attach_required {
            self.attached(pod, volume, &settings).await?
        } else {
            BTreeMap::new()
        };
        let driver = self.drivers.get(&volume.driver).map_err(csi_cause)?;
        let capabilities = driver.capabilities().await.map_err(csi_cause)?;
        let group = group_of(pod).map(i64::from);
        let policy = settings.fs_group_policy;
        let job = Job {
            volumes: self,
            pod,
            volume,
            read_only,
            fs_group: decide(group, policy, volume, read_only, capabilities),
            driver,
            capabilities,
            settings,
            publish_context,
        };
        // Until the pod's record is there nothing says that the staged volume is used.
        let lock = self
            .volumes
            .of(&format!("{}/{}", volume.driver, volume.handle));
        let _alone = lock.lock().await;
        let done = if volume.block {
            job.run_device().await
        } else {
            job.run(ready.path(), known).await
        };
        match done {
            Ok(()) => {}
            // What was published before stays as it was.
            Err(error) if known => {
                tracing::warn!(pod = %pod.format(), volume = volume.name, %error, "the volume was not published anew");
            }
            Err(error) => return Err(error),
        }
        self.published.lock().insert(key);
        Ok(ready)
    }
}

fn csi_cause(error: impl Into<davit_csi::Error>) -> Cause {
    Cause::Csi(error.into())
}

impl Job<'_> {
    async fn run(&self, target: &Path, known: bool) -> Result<(), Cause> {
        let root = self.volumes.paths.root();
        let staging = paths::global_mount(root, &self.volume.driver, &self.volume.handle);
        let persistent = self.volume.lifecycle == LifecycleMode::Persistent;
        let key = (self.volume.driver.clone(), self.volume.handle.clone());
        let staged = self.volumes.staged.lock().contains(&key);
        if persistent && self.capabilities.stage_unstage && !known && !staged {
            self.stage(&staging).await?;
            self.volumes.staged.lock().insert(key);
        }
        self.publish(&staging, target, known).await?;
        if let FsGroup::Agent(_) = self.fs_group
            && !known
        {
            fs_group::apply(self.volumes, self.pod, target).await?;
        }
        Ok(())
    }

    async fn stage(&self, staging: &Path) -> Result<(), Cause> {
        let dir = staging.parent().unwrap_or(staging).to_owned();
        let record = StageData::of(self.volume);
        let (mount, at) = (staging.to_owned(), dir.join(VOL_DATA));
        let paths = self.volumes.paths.clone();
        let fresh = super::blocking(move || {
            let fresh = !at.exists();
            // The root of a volume that is staged already is the volume's matter.
            if !is_mount_point(&mount).map_err(io_error("cannot know what is mounted"))? {
                paths
                    .make_dir(&mount)
                    .map_err(|e| io_error("cannot make the staging directory")(e.into()))?;
            }
            vol_data::write(&at, &record).map_err(|e| Cause::Claim(e.to_string()))?;
            Ok(fresh)
        })
        .await?;
        let staged = self.ask_to_stage(staging).await;
        if let Err(Cause::Csi(error)) = &staged
            && error.class() == Class::Final
            && fresh
        {
            undo::remove_records(dir).await;
        }
        staged
    }

    async fn ask_to_stage(&self, staging: &Path) -> Result<(), Cause> {
        let secret = self.volume.stage_secret.as_ref();
        let secrets = self.volumes.csi_secrets(SecretField::Stage, secret).await?;
        let request = StageVolume {
            volume: self.volume,
            capabilities: self.capabilities,
            staging_path: &text(staging),
            publish_context: &self.publish_context,
            secrets: &secrets,
            fs_group: self.fs_group,
        };
        let staged = self.driver.stage(request.request()).await;
        staged.map_err(csi_cause)
    }

    async fn publish(&self, staging: &Path, target: &Path, known: bool) -> Result<(), Cause> {
        let dir = target.parent().unwrap_or(target).to_owned();
        if !known {
            let record = PublishData::of(self.volume, &self.volumes.node_name);
            let at = dir.clone();
            let paths = self.volumes.paths.clone();
            super::blocking(move || {
                paths
                    .make_dir(&at)
                    .map_err(|e| io_error("cannot make the volume's directory")(e.into()))?;
                vol_data::write(&at.join(VOL_DATA), &record)
                    .map_err(|e| Cause::Claim(e.to_string()))
            })
            .await?;
        }
        let published = self.ask_to_publish(staging, target).await;
        if let Err(Cause::Csi(error)) = &published
            && error.class() == Class::Final
            && !known
        {
            undo::remove_records(dir).await;
        }
        published
    }

    async fn ask_to_publish(&self, staging: &Path, target: &Path) -> Result<(), Cause> {
        let secret = self.volume.publish_secret.as_ref();
        let secrets = self
            .volumes
            .csi_secrets(SecretField::Publish, secret)
            .await?;
        let tokens = self.tokens().await?;
        let pod = self.pod;
        let account = pod.pod_spec().service_account_name.clone();
        let attributes = PodAttributes {
            name: pod.pod_name().to_owned(),
            namespace: pod.ns().to_owned(),
            uid: pod.uid().to_owned(),
            service_account: account.unwrap_or_else(|| "default".to_owned()),
        };
        let request = PublishVolume {
            volume: self.volume,
            capabilities: self.capabilities,
            settings: &self.settings,
            pod: &attributes,
            tokens: &tokens,
            staging_path: &text(staging),
            target_path: &text(target),
            read_only: self.read_only,
            publish_context: &self.publish_context,
            secrets: &secrets,
            fs_group: self.fs_group,
        };
        let request = request
            .request()
            .map_err(|error| Cause::Claim(format!("cannot write tokens: {error}")))?;
        let published = self.driver.publish(request).await;
        published.map_err(csi_cause)
    }

    /// The tokens that the driver wants, by audience.
    async fn tokens(&self) -> Result<BTreeMap<String, TokenRequestStatus>, Cause> {
        let mut out = BTreeMap::new();
        for wanted in &self.settings.token_requests {
            let seconds = wanted.expiration_seconds.unwrap_or(TOKEN_SECONDS);
            let audience = Some(wanted.audience.as_str()).filter(|a| !a.is_empty());
            let tokens = &self.volumes.tokens;
            let token = tokens.token(self.pod, audience, seconds).await?;
            let status = TokenRequestStatus {
                expiration_timestamp: Some(Time(token.expires)),
                token: Some(token.token),
            };
            out.insert(wanted.audience.clone(), status);
        }
        Ok(out)
    }
}

impl Volumes {
    /// The data of a secret that a volume names.
    async fn csi_secrets(
        &self,
        field: SecretField,
        name: Option<&SecretName>,
    ) -> Result<BTreeMap<String, String>, Cause> {
        let Some(name) = name else {
            return Ok(BTreeMap::new());
        };
        let failed = |cause: String| {
            let secret = name.clone();
            let error = SecretError {
                field,
                secret,
                cause,
            };
            Cause::Claim(error.to_string())
        };
        let found = self.objects.secret(&name.namespace, &name.name).await;
        let found = found.map_err(|e| failed(e.to_string()))?;
        let found = found.ok_or_else(|| failed(format!("secrets \"{}\" not found", name.name)))?;
        secrets::data(field, name, &found).map_err(|e| Cause::Claim(e.to_string()))
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The records of the pods that have, or may have, a volume published.
///
/// # Errors
/// They cannot be looked at now, which does not mean that there are none.
fn published_records(pods: &Path) -> io::Result<Vec<(PathBuf, PublishData)>> {
    let mut records = Vec::new();
    for pod in entries(pods)? {
        for volume in entries(&pod.join("volumes").join(PLUGIN))? {
            let record = vol_data::read(&volume.join(VOL_DATA)).map_err(io::Error::other)?;
            if let vol_data::Loaded::Found(record) = record {
                records.push((volume, record));
            }
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
