//! The class that a cluster begins with, made once: who deletes or changes it has the last word.

use super::Shared;
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{Context, Error, Next, Reconcile, exists_is_none};
use davit_volume::annotations::IS_DEFAULT_CLASS;
use davit_volume::{class, local};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "kube-system";
/// Remembers that the class was made.
const MARK: &str = "davit-storage-class";

pub(super) struct DefaultClass(pub(super) Arc<Shared>);

fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| Error::Invalid(error.to_string()))
}

fn storage_class(is_default: bool) -> Value {
    let mut made = json!({
        "metadata": {"name": local::CLASS},
        "provisioner": local::PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
    });
    if is_default {
        made["metadata"]["annotations"] = json!({(IS_DEFAULT_CLASS): "true"});
    }
    made
}

#[async_trait]
impl Reconcile for DefaultClass {
    const NAME: &'static str = "local-volumes-class";
    const WORKERS: usize = 1;

    async fn sync(&self, _: &ObjectKey) -> Result<Next, Error> {
        let client = || self.0.client.clone();
        let marks: Api<ConfigMap> = Api::namespaced(client(), NAMESPACE);
        let mark = marks.get_opt(MARK).await;
        if mark
            .context(|| format!("read config map {NAMESPACE}/{MARK}"))?
            .is_some()
        {
            return Ok(Next::Wait);
        }
        let drivers: Api<CSIDriver> = Api::all(client());
        let driver: CSIDriver = parsed(json!({
            "metadata": {"name": local::PROVISIONER},
            "spec": {"attachRequired": false, "podInfoOnMount": false, "storageCapacity": true},
        }))?;
        let made = drivers.create(&PostParams::default(), &driver).await;
        exists_is_none(made).context(|| format!("create CSI driver {}", local::PROVISIONER))?;
        let classes: Api<StorageClass> = Api::all(client());
        let held = classes.list(&ListParams::default()).await;
        let held = held.context(|| "list storage classes".to_owned())?;
        let is_default = !held.items.iter().any(class::is_default);
        let new: StorageClass = parsed(storage_class(is_default))?;
        let made = classes.create(&PostParams::default(), &new).await;
        exists_is_none(made).context(|| format!("create storage class {}", local::CLASS))?;
        let mark: ConfigMap = parsed(json!({
            "metadata": {"name": MARK, "namespace": NAMESPACE},
            "data": {"made": local::CLASS},
        }))?;
        let made = marks.create(&PostParams::default(), &mark).await;
        exists_is_none(made).context(|| format!("create config map {NAMESPACE}/{MARK}"))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_122_the_class_is_the_default_if_no_other_is() {
        let made = |is_default| parsed::<StorageClass>(storage_class(is_default)).unwrap();
        assert!(class::is_default(&made(true)) && !class::is_default(&made(false)));
        assert_eq!(
            class::binding_mode(Some(&made(true))),
            class::BindingMode::WaitForFirstConsumer
        );
    }
}
