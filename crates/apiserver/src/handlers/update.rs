//! Replacing objects.

use davit_access::{RequestInfo, authz};
use davit_api::status::{Reason, Status};
use davit_registry::{ResourceInfo, object};
use http::{Request, StatusCode};
use serde_json::Value;

use super::create::check_namespace;
use super::options::WriteOptions;
use super::{namespace_of, read_object};
use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::Offer;
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Seen, Writer, leave_out_repeated};
use crate::{ownership, respond};

/// `PUT` of an object, or of a subresource that has the object's form.
pub(crate) async fn update(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let options = WriteOptions::parse(context, "UpdateOptions", false)?;
    let mut new = read_object(context, resource, request.into_body(), options.validation).await?;
    let name = context.info.name.as_str();
    let subresource = context.info.subresource.as_str();
    let namespace = namespace_of(context, resource);
    check_namespace(resource.row.namespaced, namespace, object::namespace(&new))?;
    if object::name(&new).is_empty() {
        return Err(undeterminable(name));
    }
    check_name(name, &mut new)?;
    let repeated = leave_out_repeated(&mut new, Seen::InRequest);
    context.warnings.add(repeated.unwrap_or_default());
    let writer = Writer::of(
        context,
        server,
        resource,
        namespace,
        Tracking::Update(ownership::manager(context)),
    )
    .dry_run(options.dry_run);
    let mut transform = |_: &Value| Ok(new.clone());
    let (code, stored) = match writer.update(name, subresource, &mut transform).await {
        Ok(updated) => (StatusCode::OK, updated),
        Err(status) if creates(resource, subresource, &status, &new) => {
            let request = RequestInfo {
                verb: "create".to_owned(),
                ..context.info.clone()
            };
            authz::check(&server.authorizer(), &context.user, &request).await?;
            // of an object that is gone: it is made anew
            object::remove_meta(&mut new, &["resourceVersion"]);
            (StatusCode::CREATED, writer.create(new).await?)
        }
        Err(status) => return Err(status),
    };
    respond::stored(context, accepted, resource, code, stored)
}

/// Whether a PUT of this missing object makes it.
fn creates(resource: &ResourceInfo, subresource: &str, status: &Status, new: &Value) -> bool {
    status.reason == Reason::NotFound
        && subresource.is_empty()
        && resource.strategy.allow_create_on_update()
        && object::uid(new).is_empty()
}

/// The refusal of an object that does not say what it is called.
pub(crate) fn undeterminable(from_url: &str) -> Status {
    Status::bad_request(format!(
        "the name of the object ({from_url} based on URL) was undeterminable: name must be provided"
    ))
}

/// Body and URL must agree about the name; a body without one takes the URL's.
pub(crate) fn check_name(from_url: &str, new: &mut Value) -> Result<(), Status> {
    match object::name(new) {
        "" => {
            object::set_meta(new, "name", from_url);
            Ok(())
        }
        name if name == from_url => Ok(()),
        name => Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({from_url})"
        ))),
    }
}
