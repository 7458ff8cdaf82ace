//! The status of objects, as controllers write it.

use crate::controller::{Context, Error, gone_is_none};
use davit_client::{Object, ObjectKey};
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;

/// Writes the status of an object, which it has been given. What the API server has then; none if the object has gone.
///
/// # Errors
/// When the API server does not take it; a conflict where somebody else has changed the object.
pub async fn write_status<K>(client: &kube::Client, object: &K) -> Result<Option<K>, Error>
where
    K: Object + serde::Serialize + kube::Resource<Scope = NamespaceResourceScope>,
{
    let key = ObjectKey::of(object);
    let api: kube::Api<K> = kube::Api::namespaced(client.clone(), &key.namespace);
    let params = PostParams::default();
    let written = api.replace_status(&key.name, &params, object).await;
    gone_is_none(written).context(|| format!("update status of {} {key}", K::kind(&())))
}
