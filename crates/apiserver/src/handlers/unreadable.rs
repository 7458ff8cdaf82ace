//! Deleting an object that cannot be read: its encryption key is lost, or it is damaged
//! (option `ignoreStoreReadErrorWithClusterBreakingPotential` of `DeleteOptions`,
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#force-deletion>).
//!
//! Nobody knows what it was: admission, preconditions and finalizers have no say, and nothing that it held is released. Only the
//! value that was found unreadable is deleted, never one that was written since.

use davit_access::RequestInfo;
use davit_access::authz::{Attributes, Decision};
use davit_api::status::Status;
use davit_registry::{ResourceInfo, errors};

use super::namespace_of;
use crate::context::Context;
use crate::server::ApiServer;
use crate::writes::read_errors_fault;

/// What one must be allowed beside `delete`.
const VERB: &str = "unsafe-delete-ignore-read-errors";
const AUDITED: &str = "apiserver.k8s.io/unsafe-delete-ignore-read-error";

/// Deletes the object that the request names.
///
/// # Errors
/// Forbidden without the verb; Invalid if the object can be read or is not there; Conflict if it was written meanwhile.
pub(super) async fn delete(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> Result<(), Status> {
    davit_audit::annotate(AUDITED, "");
    authorize(server, context, resource).await?;
    let (namespace, name) = (namespace_of(context, resource), &context.info.name);
    let storage = &resource.storage;
    let failed = |error| errors::storage(error, resource, name);
    let unreadable = storage.unreadable(namespace, name).await;
    let Some(revision) = unreadable.map_err(failed)? else {
        let why =
            "is exclusively used to delete corrupt object(s), try again by removing this option";
        return Err(Status::invalid(
            resource.qualified(),
            name,
            &[read_errors_fault(why)],
        ));
    };
    let deleted = storage.delete(namespace, name, revision).await;
    deleted.map_err(failed)?;
    tracing::warn!(
        key = storage.key(namespace, name),
        user = context.user.name,
        "an object that cannot be read was deleted"
    );
    Ok(())
}

async fn authorize(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> Result<(), Status> {
    let request = RequestInfo {
        verb: VERB.to_owned(),
        ..context.info.clone()
    };
    let asked = Attributes {
        user: &context.user,
        request: &request,
    };
    match server.authorizer().decide(&asked).await {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            let why = format!("not permitted to do {VERB:?}, reason: {reason}");
            Err(Status::forbidden(resource.qualified(), &request.name, why))
        }
    }
}
