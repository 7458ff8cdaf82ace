//! Objects held in memory.

use super::{Error, ObjectSource, Token};
use async_trait::async_trait;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The objects.
#[derive(Debug, Default)]
pub struct FixedObjects {
    config_maps: HashMap<(String, String), ConfigMap>,
    secrets: HashMap<(String, String), Secret>,
    accounts: HashMap<(String, String), ServiceAccount>,
    bundles: Vec<ClusterTrustBundle>,
    claims: Mutex<HashMap<(String, String), PersistentVolumeClaim>>,
    volumes: HashMap<String, PersistentVolume>,
    attachments: HashMap<String, VolumeAttachment>,
    csi_drivers: HashMap<String, CSIDriver>,
    asked: AtomicUsize,
}

impl FixedObjects {
    /// Takes those among `objects` that can be asked for; others are ignored.
    pub fn from_json(objects: &[Value]) -> Self {
        let mut out = Self::default();
        for object in objects {
            let text = |path: &str| {
                object
                    .pointer(path)
                    .and_then(|v| v.as_str())
                    .unwrap_or_default()
                    .to_owned()
            };
            let key = (text("/metadata/namespace"), text("/metadata/name"));
            match text("/kind").as_str() {
                "ConfigMap" => insert(&mut out.config_maps, key, object),
                "ServiceAccount" => insert(&mut out.accounts, key, object),
                "Secret" => insert(&mut out.secrets, key, object),
                "PersistentVolumeClaim" => insert(out.claims.get_mut(), key, object),
                "PersistentVolume" => insert(&mut out.volumes, key.1, object),
                "VolumeAttachment" => insert(&mut out.attachments, key.1, object),
                "CSIDriver" => insert(&mut out.csi_drivers, key.1, object),
                "ClusterTrustBundle" => {
                    out.bundles
                        .extend(serde_json::from_value::<ClusterTrustBundle>(object.clone()));
                }
                _ => {}
            }
        }
        out
    }

    /// How often it was asked for what containers and volumes read: ConfigMaps, Secrets, trust bundles, tokens.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }
}

fn insert<K: std::hash::Hash + Eq, V: serde::de::DeserializeOwned>(
    into: &mut HashMap<K, V>,
    key: K,
    object: &Value,
) {
    if let Ok(parsed) = serde_json::from_value(object.clone()) {
        into.insert(key, parsed);
    }
}

#[async_trait]
impl ObjectSource for FixedObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Error> {
        self.count();
        Ok(self
            .config_maps
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned())
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Error> {
        self.count();
        Ok(self
            .secrets
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned())
    }

    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ServiceAccount>, Error> {
        Ok(self
            .accounts
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned())
    }

    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PersistentVolumeClaim>, Error> {
        let key = (namespace.to_owned(), name.to_owned());
        Ok(self.claims.lock().get(&key).cloned())
    }

    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, Error> {
        let key = (namespace.to_owned(), name.to_owned());
        let failed = |source: kube::Error| Error::Api {
            kind: "persistentvolumeclaim",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        };
        let mut claims = self.claims.lock();
        let held = claims.entry(key).or_default();
        let mut value =
            serde_json::to_value(&*held).map_err(|e| failed(kube::Error::SerdeError(e)))?;
        json_patch::merge(&mut value, patch);
        *held = serde_json::from_value(value).map_err(|e| failed(kube::Error::SerdeError(e)))?;
        Ok(held.clone())
    }

    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error> {
        Ok(self.volumes.get(name).cloned())
    }

    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, Error> {
        Ok(self.attachments.get(name).cloned())
    }

    async fn csi_driver(&self, name: &str) -> Result<Option<CSIDriver>, Error> {
        Ok(self.csi_drivers.get(name).cloned())
    }

    async fn trust_bundle(&self, name: &str) -> Result<Option<ClusterTrustBundle>, Error> {
        self.count();
        let is = |b: &&ClusterTrustBundle| b.metadata.name.as_deref() == Some(name);
        Ok(self.bundles.iter().find(is).cloned())
    }

    async fn trust_bundles_of(&self, signer: &str) -> Result<Vec<ClusterTrustBundle>, Error> {
        self.count();
        let is = |b: &&ClusterTrustBundle| b.spec.signer_name.as_deref() == Some(signer);
        Ok(self.bundles.iter().filter(is).cloned().collect())
    }

    async fn token(&self, pod: &Pod, audience: Option<&str>, seconds: i64) -> Result<Token, Error> {
        use crate::pod::PodExt;
        self.count();
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        Ok(Token {
            token: format!("{}.{}", audience.unwrap_or("api"), pod.uid()),
            expires,
        })
    }
}
