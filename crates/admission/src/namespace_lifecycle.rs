//! Objects are created only in namespaces that exist and are not going away; the namespaces the
//! cluster stands on are not deleted.

use std::time::Duration;

use davit_api::status::{Qualified, Status};
use serde_json::Value;

use super::{Attributes, Mutating, Operation, forbidden, named};

const UNDELETABLE: [&str; 3] = ["default", "kube-system", "kube-public"];
/// A namespace created a moment ago through another server may not be visible yet.
const WAIT: Duration = Duration::from_millis(50);

pub(super) struct NamespaceLifecycle;

impl Mutating for NamespaceLifecycle {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        if attributes.is("", "namespaces") {
            if attributes.operation == Operation::Delete && UNDELETABLE.contains(&attributes.name) {
                return Err(forbidden(
                    attributes,
                    None,
                    "this namespace may not be deleted",
                ));
            }
            return Ok(());
        }
        let checked = matches!(attributes.operation, Operation::Create | Operation::Update);
        let review = attributes.resource.row.kind == "LocalSubjectAccessReview";
        if !checked
            || review
            || attributes.namespace.is_empty()
            || attributes.resource.row.plural == "namespaces"
        {
            return Ok(());
        }
        let namespace = attributes.namespace;
        let mut found = attributes
            .server
            .object("", "namespaces", "", namespace)
            .await?;
        if found.is_none() && attributes.operation == Operation::Create {
            tokio::time::sleep(WAIT).await;
            found = attributes
                .server
                .object("", "namespaces", "", namespace)
                .await?;
        }
        let Some(found) = found else {
            return Err(Status::not_found(
                Qualified::new("", "namespaces"),
                namespace,
            ));
        };
        let phase = found.pointer("/status/phase").and_then(Value::as_str);
        if attributes.operation == Operation::Create && phase == Some("Terminating") {
            let name = named(attributes, object.as_deref());
            let resource = attributes.resource.qualified();
            return Err(Status::namespace_terminating(resource, name, namespace));
        }
        Ok(())
    }
}
