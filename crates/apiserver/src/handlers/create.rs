//! Creating objects.

use davit_api::status::Status;
use davit_registry::{ResourceInfo, errors, object};
use http::{Request, StatusCode};

use super::options::WriteOptions;
use super::{namespace_of, read_object};
use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::Offer;
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::Writer;
use crate::{ownership, respond};

/// `POST` on a collection.
pub(crate) async fn create(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let options = WriteOptions::parse(context, "CreateOptions", false)?;
    let new = read_object(context, resource, request.into_body(), options.validation).await?;
    let namespace = namespace_of(context, resource);
    check_namespace(resource.row.namespaced, namespace, object::namespace(&new))?;
    let writer = Writer::of(
        context,
        server,
        resource,
        namespace,
        Tracking::Update(ownership::manager(context)),
    )
    .dry_run(options.dry_run);
    let mut stored = writer.create(new).await?;
    if options.dry_run {
        object::remove_meta(&mut stored.value, &["resourceVersion"]);
    }
    respond::stored(context, accepted, resource, StatusCode::CREATED, stored)
}

/// Body and URL must agree about the namespace.
pub(crate) fn check_namespace(
    namespaced: bool,
    from_url: &str,
    from_body: &str,
) -> Result<(), Status> {
    if namespaced && !from_body.is_empty() && from_body != from_url {
        return Err(Status::bad_request(errors::NAMESPACE_MISMATCH));
    }
    Ok(())
}
