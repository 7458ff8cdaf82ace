//! Reading and writing objects, with what was being done in every error.

use super::{Failure, Look, MANAGER, Outcome};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::fmt::Debug;

/// Names what was being done.
pub(super) fn doing(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Failure {
    let doing = what.into();
    move |source| Failure::Api { doing, source }
}

impl Look<'_> {
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.operator.client.clone(), &self.namespace)
    }

    pub(super) async fn list<K>(&self, labels: &str) -> Outcome<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + serde::de::DeserializeOwned
            + Clone
            + Debug,
    {
        let params = ListParams::default().labels(labels);
        let listed = self.api::<K>().list(&params).await;
        Ok(listed
            .map_err(doing(format!("list {}", K::plural(&()))))?
            .items)
    }

    /// Makes an object unless it is there.
    pub(super) async fn create<K>(&self, body: Value) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + serde::de::DeserializeOwned
            + serde::Serialize
            + Clone
            + Debug,
    {
        let object: K = serde_json::from_value(body)?;
        match self
            .api::<K>()
            .create(&PostParams::default(), &object)
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(doing(format!(
                "make {} {}",
                K::kind(&()),
                object.name_any()
            ))(error)),
        }
    }

    /// Makes an object what it is to be; what others have put there beside stays.
    pub(super) async fn apply<K>(&self, mut body: Value) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + serde::de::DeserializeOwned
            + Clone
            + Debug,
    {
        body["apiVersion"] = json!(K::api_version(&()));
        body["kind"] = json!(K::kind(&()));
        let name = body["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let params = PatchParams::apply(MANAGER).force();
        let applied = self
            .api::<K>()
            .patch(&name, &params, &Patch::Apply(&body))
            .await;
        applied.map_err(doing(format!("apply {} {name}", K::kind(&()))))?;
        Ok(())
    }

    pub(super) async fn delete<K>(&self, name: &str) -> Outcome<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + serde::de::DeserializeOwned
            + Clone
            + Debug,
    {
        match self
            .api::<K>()
            .delete(name, &DeleteParams::background())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(doing(format!("delete {} {name}", K::kind(&())))(error)),
        }
    }
}
