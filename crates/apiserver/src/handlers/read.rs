//! Getting one object.

use http::StatusCode;

use davit_api::status::Status;
use davit_registry::ResourceInfo;

use super::namespace_of;
use crate::context::{Context, HandlerResult};
use crate::negotiate::Offer;
use crate::respond;

/// `GET …/{name}`. Always the most recent state, which is also not older than any revision that
/// exists.
pub(crate) async fn get(context: &Context, resource: &ResourceInfo) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    if let Some(text) = context.query.text("resourceVersion") {
        let wanted: u64 = text
            .parse()
            .map_err(|_| Status::bad_request(format!("invalid resource version \"{text}\"")))?;
        super::list::wait_for_revision(&resource.storage, wanted).await?;
    }
    let namespace = namespace_of(context, resource);
    let name = &context.info.name;
    let found = resource.storage.get(namespace, name).await;
    let found = found.map_err(|error| davit_registry::errors::storage(error, resource, name))?;
    let Some(stored) = found else {
        return Err(Status::not_found(resource.qualified(), name));
    };
    respond::stored(context, accepted, resource, StatusCode::OK, stored)
}
