//! By which controller an object is managed.

use davit_client::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The owner reference with `controller: true`.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .as_ref()?
        .iter()
        .find(|r| r.controller == Some(true))
}

/// The queue key of the controller of `kind` that an object belongs to.
pub fn controller_key(meta: &ObjectMeta, kind: &str) -> Option<ObjectKey> {
    let owner = controller_of(meta).filter(|r| r.kind == kind)?;
    Some(ObjectKey {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: owner.name.clone(),
    })
}
