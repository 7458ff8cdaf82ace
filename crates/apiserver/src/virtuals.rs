//! Kinds that are only posted and answered, never stored: reviews, bindings; and what is only
//! computed: component statuses, the use of resources by nodes and pods.

mod access_reviews;
mod component_statuses;
mod resource_metrics;
mod token_reviews;

use std::sync::Arc;

use davit_admission::Operation;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use http::{Request, StatusCode};
use serde_json::json;

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{
    Expected, WriteOptions, check_namespace, decode_body, format, not_allowed, read_body,
};
use crate::posted::attributes;
use crate::respond;
use crate::server::ApiServer;
use crate::writes::remove_system_metadata;
use crate::{negotiate::Offer, subresources};

/// Answers a request for a kind that is not stored.
pub(crate) async fn handle(
    server: &Arc<ApiServer>,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let verb = context.info.verb.as_str();
    if resource.row.group == crate::resource_metrics::GROUP {
        return resource_metrics::handle(server, context, resource).await;
    }
    if resource.row.plural == "componentstatuses" {
        return component_statuses::handle(server, context, resource).await;
    }
    if verb != "create" || !context.info.name.is_empty() {
        return Err(not_allowed(resource, verb));
    }
    if resource.row.kind == "Binding" {
        return subresources::bind(server, context, "", request).await;
    }
    let accepted = respond::accepted(context, Offer::Answers)?;
    let options = WriteOptions::parse(context, "CreateOptions", false)?;
    let format = format(&context.headers)?;
    let bytes = read_body(request.into_body()).await?;
    let expected = Expected::of(resource);
    let mut review = decode_body(context, &bytes, format, &expected, options.validation)?;
    // Of what is not kept the server decides nothing of this.
    remove_system_metadata(&mut review);
    check_namespace(
        resource.row.namespaced,
        context.namespace(),
        davit_registry::object::namespace(&review),
    )?;
    let asked = attributes(
        server,
        context,
        resource,
        Operation::Create,
        "",
        options.dry_run,
    );
    let admission = server.admission();
    admission.mutate(&asked, Some(&mut review)).await?;
    let status = match resource.row.kind {
        "TokenReview" => token_reviews::token(server, &review).await?,
        "SelfSubjectReview" => json!({ "userInfo": context.user.to_value() }),
        "SubjectAccessReview" => access_reviews::subject(server, &review).await?,
        "LocalSubjectAccessReview" => {
            access_reviews::local(server, context.namespace(), &review).await?
        }
        "SelfSubjectAccessReview" => access_reviews::own(server, &context.user, &review).await?,
        "SelfSubjectRulesReview" => access_reviews::rules(server, &context.user, &review).await?,
        kind => {
            return Err(Status::failure(
                davit_api::status::Reason::MethodNotAllowed,
                format!("creating {kind} is not built into this version"),
            ));
        }
    };
    admission.validate(&asked, Some(&review)).await?;
    if !review["metadata"].is_object() {
        review["metadata"] = json!({});
    }
    if resource.row.namespaced {
        review["metadata"]["namespace"] = json!(context.namespace());
    }
    if resource.row.kind == "SelfSubjectReview" {
        review["metadata"] = json!({ "creationTimestamp": davit_registry::object::now() });
    }
    review["status"] = status;
    respond::shaped(context, accepted, resource, StatusCode::CREATED, review)
}
