//! Objects as the graph of owners sees them: a part of their metadata. The rest of it, owners of fields first, is larger by
//! far, and each change of each object comes by here.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use kube::core::{ApiResource, DynamicResourceScope};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// An object of any kind, with its identity, what holds it and whose it is.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct OwnedObject {
    #[serde(deserialize_with = "needed")]
    pub(super) metadata: ObjectMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Needed {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn needed<'de, D: Deserializer<'de>>(input: D) -> Result<ObjectMeta, D::Error> {
    let needed = Needed::deserialize(input)?;
    Ok(ObjectMeta {
        namespace: needed.namespace,
        name: needed.name,
        uid: needed.uid,
        resource_version: needed.resource_version,
        deletion_timestamp: needed.deletion_timestamp,
        finalizers: needed.finalizers,
        owner_references: needed.owner_references,
        ..ObjectMeta::default()
    })
}

impl Resource for OwnedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.kind)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.group)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.version)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Cow::Borrowed(&resource.plural)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
