//! What the node reads and deletes of `resource.k8s.io`.

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::Deserialize;
use std::time::Duration;

/// How long one request to the API server may take.
const DEADLINE: Duration = Duration::from_secs(15);

/// A claim of the classic API as far as the node needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassicClaim {
    /// UID.
    pub uid: String,
    /// UIDs of objects that own it.
    pub owners: Vec<String>,
    /// UIDs of pods it is reserved for.
    pub reserved_for: Vec<String>,
    /// The driver, once allocated.
    pub driver: String,
    /// What the driver's controller has for the node plugin; `None` while it is not allocated.
    pub handle: Option<String>,
}

/// The API server as the node's side of dynamic resource allocation sees it. Errors are sentences.
#[async_trait]
pub trait ClaimApi: Send + Sync {
    /// A claim of today's API; `None` when it does not exist.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String>;

    /// A claim of the classic API; `None` when it, or the API, does not exist.
    async fn classic_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ClassicClaim>, String>;

    /// The ResourceSlices of this node; those of devices that several nodes reach are not among them.
    async fn slices(&self) -> Result<Vec<ResourceSlice>, String>;

    /// Deletes this node's ResourceSlices: those of one driver, or of all; those made before a moment, or all.
    async fn delete_slices(
        &self,
        driver: Option<&str>,
        made_before: Option<Timestamp>,
    ) -> Result<(), String>;
}

/// [`ClaimApi`] by a client.
pub struct ApiClaims {
    client: kube::Client,
    node_name: String,
}

impl ApiClaims {
    /// Reads through `client`; slices are those of this node.
    pub fn new(client: kube::Client, node_name: impl Into<String>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
        }
    }
}

async fn limited<T>(
    request: impl Future<Output = Result<T, kube::Error>> + Send,
) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer from the API server within {DEADLINE:?}")),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    driver_name: String,
    allocation: Option<Allocation>,
    reserved_for: Vec<Consumer>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Allocation {
    resource_handle: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Consumer {
    uid: String,
}

#[async_trait]
impl ClaimApi for ApiClaims {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, String> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        limited(api.get_opt(name)).await
    }

    async fn classic_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ClassicClaim>, String> {
        let kind = GroupVersionKind::gvk("resource.k8s.io", "v1alpha1", "ResourceClaim");
        let resource = ApiResource::from_gvk_with_plural(&kind, "resourceclaims");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = async {
            match api.get_opt(name).await {
                // Where the classic API is off, a node may not even ask for names it has to guess.
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
                other => other,
            }
        };
        let Some(object) = limited(found).await? else {
            return Ok(None);
        };
        let status = object.data.get("status").cloned().unwrap_or_default();
        let status: Status = if status.is_null() {
            Status::default()
        } else {
            serde_json::from_value(status).map_err(|e| e.to_string())?
        };
        let owners = object.metadata.owner_references.unwrap_or_default();
        Ok(Some(ClassicClaim {
            uid: object.metadata.uid.unwrap_or_default(),
            owners: owners.into_iter().map(|o| o.uid).collect(),
            reserved_for: status.reserved_for.into_iter().map(|c| c.uid).collect(),
            driver: status.driver_name,
            handle: status.allocation.map(|a| a.resource_handle),
        }))
    }

    async fn slices(&self) -> Result<Vec<ResourceSlice>, String> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let own = ListParams::default().fields(&format!("spec.nodeName={}", self.node_name));
        Ok(limited(api.list(&own)).await?.items)
    }

    async fn delete_slices(
        &self,
        driver: Option<&str>,
        made_before: Option<Timestamp>,
    ) -> Result<(), String> {
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let mut fields = format!("spec.nodeName={}", self.node_name);
        if let Some(driver) = driver {
            fields.push_str(",spec.driver=");
            fields.push_str(driver);
        }
        let slices = limited(api.list(&ListParams::default().fields(&fields))).await?;
        for slice in slices.items {
            let made = slice.metadata.creation_timestamp.as_ref().map(|t| t.0);
            // Times of objects are whole seconds.
            if made_before.is_some_and(|limit| made.is_some_and(|m| m >= limit)) {
                continue;
            }
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: slice.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let name = slice.metadata.name.unwrap_or_default();
            let deleted = async {
                match api.delete(&name, &params).await {
                    // Gone already, or made anew in between.
                    Err(kube::Error::Api(s)) if s.code == 404 || s.code == 409 => Ok(()),
                    other => other.map(|_| ()),
                }
            };
            limited(deleted).await?;
        }
        Ok(())
    }
}
