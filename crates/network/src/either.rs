//! CNI where there is a configuration of it, davit's own links where there is none.

use crate::PodLinks;
use async_trait::async_trait;
use davit_oci::network::{Error, Network, PodNetwork};
use davit_oci::{Cni, CniOptions};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Asks at each pod whether there is a configuration in the directory: it may be written by a pod in the host's network
/// while others run. Each pod is disconnected by whoever has connected it.
#[derive(Debug)]
pub struct CniOrOwn {
    conf_dir: PathBuf,
    cni: Cni,
    own: PodLinks,
}

impl CniOrOwn {
    /// CNI by these options, or else links of davit's own.
    #[must_use]
    pub fn new(options: CniOptions, own: PodLinks) -> Self {
        Self {
            conf_dir: options.conf_dir.clone(),
            cni: Cni::new(options),
            own,
        }
    }

    /// Whether there is a file that CNI would read, good or bad: what an administrator has put there is not passed over.
    async fn is_configured(&self) -> bool {
        let Ok(mut entries) = tokio::fs::read_dir(&self.conf_dir).await else {
            return false;
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            let path = entry.path();
            let kind = path.extension().and_then(|kind| kind.to_str());
            if kind.is_some_and(|kind| ["conf", "conflist", "json"].contains(&kind)) {
                return true;
            }
        }
        false
    }
}

#[async_trait]
impl Network for CniOrOwn {
    async fn ready(&self) -> Result<(), Error> {
        let is_configured = self.is_configured().await;
        self.own.set_beside_cni(is_configured).await?;
        match is_configured {
            true => self.cni.ready().await,
            false => self.own.ready().await,
        }
    }

    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        if !self.is_configured().await {
            return self.own.attach(pod).await;
        }
        // before the pod asks for names
        self.own.set_beside_cni(true).await?;
        self.cni.attach(pod).await
    }

    async fn detach(&self, pod: &PodNetwork) -> Result<(), Error> {
        match self.own.has(&pod.sandbox_id) {
            true => self.own.detach(pod).await,
            false => self.cni.detach(pod).await,
        }
    }

    async fn collect(&self, living: &BTreeSet<String>) -> Result<(), Error> {
        self.own.collect(living).await?;
        self.cni.collect(living).await
    }
}
