//! NFS volumes, which the host's `mount.nfs` mounts for each pod (spec storage.md 7.2).

use super::error::{Cause, io_error};
use super::{Ready, Volumes, entries, helper, missing, unmount_below};
use davit_api::host_port::bracketed;
use davit_pods::pod::PodExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{NFSVolumeSource, Pod};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Directory of such volumes below a pod's.
pub(super) const PLUGIN: &str = "kubernetes.io~nfs";
const HELPER: &str = "mount.nfs";
/// What is to be mounted.
#[derive(Debug)]
pub(super) struct Share<'a> {
    /// Name of the persistent volume, or of the volume in the pod.
    name: &'a str,
    source: &'a NFSVolumeSource,
    options: Vec<String>,
    read_only: bool,
}

impl<'a> Share<'a> {
    pub(super) fn new(
        name: &'a str,
        source: &'a NFSVolumeSource,
        options: Vec<String>,
        read_only: bool,
    ) -> Self {
        Self {
            name,
            source,
            options,
            read_only: read_only || source.read_only == Some(true),
        }
    }

    /// What the helper is called with.
    fn arguments(&self, target: &Path) -> Result<Vec<String>, Cause> {
        let server = &self.source.server;
        // It is the pod's word, and must not be an option of a program that runs as root.
        if server.starts_with('-') || server.contains(|c: char| c.is_whitespace() || c == '/') {
            return Err(Cause::Claim(format!(
                "nfs server {server:?} is neither a name nor an address"
            )));
        }
        let server = bracketed(server);
        let mut arguments = vec![
            format!("{server}:{}", self.source.path),
            target.display().to_string(),
        ];
        let read_only = self.read_only.then(|| "ro".to_owned());
        // Upstream sorts them, too.
        let options: BTreeSet<String> = self.options.iter().cloned().chain(read_only).collect();
        if !options.is_empty() {
            let options: Vec<String> = options.into_iter().collect();
            arguments.extend(["-o".to_owned(), options.join(",")]);
        }
        Ok(arguments)
    }
}

impl Volumes {
    /// Mounts a share for a pod, or finds that it is mounted.
    ///
    /// # Errors
    /// [`Cause::Helper`], or the pod's directory cannot be made.
    pub(super) async fn nfs(&self, pod: &Pod, share: &Share<'_>) -> Result<Ready, Cause> {
        let target = self.paths.volume(pod.uid(), PLUGIN, share.name);
        let ready = Ready::Directory {
            path: target.clone(),
            read_only: share.read_only,
        };
        if self.is_mounted(&target)? {
            return Ok(ready);
        }
        let arguments = share.arguments(&target)?;
        self.make_volume_dir(&target).await?;
        if let Err(error) = helper::mount(&self.helpers, HELPER, arguments).await {
            if !error.is_uncertain() {
                remove_dir(target).await.map_err(io_error(
                    "cannot remove the directory of a share that was not mounted",
                ))?;
            }
            return Err(error.into());
        }
        Ok(ready)
    }

    /// Unmounts the shares of a pod, by force where a server does not answer.
    ///
    /// # Errors
    /// Mounts that stay.
    pub(super) async fn unmount_nfs(&self, uid: &str) -> io::Result<()> {
        let pod = self.paths.pod(uid);
        let shares = entries(&pod.join("volumes").join(PLUGIN))?;
        let unmounted = shares.iter().map(|share| self.unmount_share(&pod, share));
        join_all(unmounted).await.into_iter().collect()
    }

    async fn unmount_share(&self, pod: &Path, share: &Path) -> io::Result<()> {
        let (mounter, at) = (self.mounter.clone(), share.to_owned());
        // What containers got of the share are mounts of their own.
        let subpaths = pod.join("volume-subpaths");
        let work = move || {
            unmount_below(&*mounter, &subpaths)?;
            mounter.unmount(&at)
        };
        let key = format!("unmount {}", share.display());
        match self.waits.run(key, work).await.flatten() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::warn!(share = %share.display(), %error, "unmounted by force");
                let (mounter, at) = (self.mounter.clone(), share.to_owned());
                let key = format!("unmount by force {}", share.display());
                let forced = self.waits.run(key, move || mounter.unmount_by_force(&at));
                forced.await.flatten()?;
            }
            other => other?,
        }
        remove_dir(share.to_owned()).await
    }
}

async fn remove_dir(dir: PathBuf) -> io::Result<()> {
    let removed = tokio::task::spawn_blocking(move || missing(std::fs::remove_dir(dir)));
    removed.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
