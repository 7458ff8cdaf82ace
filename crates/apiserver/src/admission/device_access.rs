//! Claims ask for admin access to devices only in namespaces that are marked for it.

use async_trait::async_trait;
use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::status::{Qualified, Status};
use serde_json::Value;

use super::{Attributes, Operation, Validating};
use crate::strategy::admin_requests;

const GROUP: &str = "resource.k8s.io";
const LABEL: &str = "/metadata/labels/resource.kubernetes.io~1admin-access";

pub(super) struct AdminAccess;

#[async_trait]
impl Validating for AdminAccess {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| attributes.writes()) else {
            return Ok(());
        };
        let fields = asked_for(attributes, object);
        if fields.is_empty() {
            return Ok(());
        }
        let namespace = attributes.namespace;
        let found = attributes
            .server
            .object("", "namespaces", "", namespace)
            .await?;
        let label = found.as_ref().and_then(|n| n.pointer(LABEL));
        if label.and_then(Value::as_str) == Some("true") {
            return Ok(());
        }
        let fault = "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
        let errors: ErrorList = fields
            .iter()
            .map(|path| FieldError::forbidden(path, fault))
            .collect();
        let kind = Qualified::new(GROUP, attributes.resource.row.kind);
        let name = crate::object::name(object);
        Err(Status::invalid(kind, name, &errors))
    }
}

/// The fields by which a write asks for admin access that was not given before.
fn asked_for(attributes: &Attributes<'_>, object: &Value) -> Vec<Path> {
    let create = attributes.operation == Operation::Create;
    let spec = Path::new("spec");
    match attributes.subresource {
        "" if create && attributes.is(GROUP, "resourceclaims") => {
            admin_requests(&object["spec"], &spec)
        }
        "" if create && attributes.is(GROUP, "resourceclaimtemplates") => {
            admin_requests(&object["spec"]["spec"], &spec.child("spec"))
        }
        "status" if attributes.about(GROUP, "resourceclaims") => {
            let results = "/status/allocation/devices/results";
            let before = attributes.old.and_then(|old| old.pointer(results));
            if before.is_some() {
                return Vec::new();
            }
            let list = object.pointer(results).and_then(Value::as_array);
            let path = Path::new("status")
                .child("allocation")
                .child("devices")
                .child("results");
            list.into_iter()
                .flatten()
                .enumerate()
                .filter(|(_, r)| r["adminAccess"] == true)
                .map(|(i, _)| path.index(i).child("adminAccess"))
                .collect()
        }
        _ => Vec::new(),
    }
}
