//! What pods refer to: ConfigMaps, Secrets, trust bundles, claims and their volumes, service account tokens.
//! All is read; the status of claims is also written, when a volume has grown.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::Value;
use std::time::Duration;

#[cfg(any(test, feature = "test-support"))]
mod fixed;
#[cfg(any(test, feature = "test-support"))]
pub use fixed::FixedObjects;

const TRUST_BUNDLE: &str = "clustertrustbundle";

/// How long one request to the API server may take.
const DEADLINE: Duration = Duration::from_secs(15);

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or could not be reached.
    #[error("failed to get {kind} {namespace}/{name}: {}", davit_client::message_of(.source))]
    Api {
        /// Kind of the object.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// No answer in time.
    #[error(
        "failed to get {kind} {namespace}/{name}: no answer from the API server within {DEADLINE:?}"
    )]
    Deadline {
        /// Kind of the object.
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A token for a projected volume.
#[derive(Debug, Clone)]
pub struct Token {
    /// The bearer token.
    pub token: String,
    /// When it ends.
    pub expires: jiff::Timestamp,
}

/// Reads what pods refer to; `None` stands for an object that does not exist.
#[async_trait]
pub trait ObjectSource: Send + Sync {
    /// A ConfigMap.
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Error>;
    /// A Secret.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Error>;
    /// A service account.
    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ServiceAccount>, Error>;
    /// A PersistentVolumeClaim.
    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PersistentVolumeClaim>, Error>;
    /// A PersistentVolume.
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error>;
    /// Changes the status of a PersistentVolumeClaim by a merge patch; the claim as it is then.
    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, Error>;
    /// A VolumeAttachment.
    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, Error>;
    /// A CSIDriver.
    async fn csi_driver(&self, name: &str) -> Result<Option<CSIDriver>, Error>;
    /// A ClusterTrustBundle.
    async fn trust_bundle(&self, name: &str) -> Result<Option<ClusterTrustBundle>, Error>;
    /// All ClusterTrustBundles of a signer.
    async fn trust_bundles_of(&self, signer: &str) -> Result<Vec<ClusterTrustBundle>, Error>;
    /// A fresh token of the pod's service account, bound to the pod.
    async fn token(&self, pod: &Pod, audience: Option<&str>, seconds: i64) -> Result<Token, Error>;
}

/// Reads from the API server at each call, so that a pod always starts with the newest content.
pub struct ApiObjects {
    client: kube::Client,
}

impl ApiObjects {
    /// Reads through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    async fn get<K>(
        &self,
        kind: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<K>, Error>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        within(kind, namespace, name, api.get_opt(name)).await
    }
}

impl ApiObjects {
    async fn get_cluster<K>(&self, kind: &'static str, name: &str) -> Result<Option<K>, Error>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        within(kind, "", name, api.get_opt(name)).await
    }
}

async fn within<T>(
    kind: &'static str,
    namespace: &str,
    name: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(Error::Api {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Deadline {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
    }
}

#[async_trait]
impl ObjectSource for ApiObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Error> {
        self.get("configmap", namespace, name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Error> {
        self.get("secret", namespace, name).await
    }

    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ServiceAccount>, Error> {
        self.get("serviceaccount", namespace, name).await
    }

    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PersistentVolumeClaim>, Error> {
        self.get("persistentvolumeclaim", namespace, name).await
    }

    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, Error> {
        self.get_cluster("persistentvolume", name).await
    }

    async fn patch_claim_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, Error> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = api.patch_status(name, &params, &patch);
        within("persistentvolumeclaim", namespace, name, call).await
    }

    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, Error> {
        self.get_cluster("volumeattachment", name).await
    }

    async fn csi_driver(&self, name: &str) -> Result<Option<CSIDriver>, Error> {
        self.get_cluster("csidriver", name).await
    }

    async fn trust_bundle(&self, name: &str) -> Result<Option<ClusterTrustBundle>, Error> {
        let api: Api<ClusterTrustBundle> = Api::all(self.client.clone());
        within(TRUST_BUNDLE, "", name, api.get_opt(name)).await
    }

    async fn trust_bundles_of(&self, signer: &str) -> Result<Vec<ClusterTrustBundle>, Error> {
        let api: Api<ClusterTrustBundle> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.signerName={signer}"));
        let list = within(TRUST_BUNDLE, "", signer, api.list(&params)).await?;
        Ok(list.items)
    }

    async fn token(&self, pod: &Pod, audience: Option<&str>, seconds: i64) -> Result<Token, Error> {
        use crate::pod::PodExt;
        let account = pod
            .pod_spec()
            .service_account_name
            .as_deref()
            .filter(|n| !n.is_empty())
            .unwrap_or("default");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audience.map(str::to_owned).into_iter().collect()),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(pod.pod_name().to_owned()),
                    uid: Some(pod.uid().to_owned()),
                }),
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), pod.ns());
        let params = PostParams::default();
        let call = api.create_token_request(account, &params, &request);
        let answer = within("serviceaccount token", pod.ns(), account, call).await?;
        let now = jiff::Timestamp::now();
        let fallback = now + jiff::SignedDuration::from_secs(seconds);
        let status = answer.status.unwrap_or_default();
        let expires = status.expiration_timestamp.map_or(fallback, |t| t.0);
        Ok(Token {
            token: status.token.unwrap_or_default(),
            expires,
        })
    }
}
