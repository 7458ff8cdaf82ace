//! One call of one webhook.

use bytes::Bytes;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use davit_webhook::{Call, told};
use serde_json::Value;

use super::Source;
use super::configurations::Webhook;
use super::review::{self, Response};
use super::versions::shown;
use super::{failed_call, no_dry_run};
use crate::Attributes;

/// Why a webhook did not let the request pass.
#[derive(Debug)]
pub(super) enum Failure {
    /// It said no.
    Denied(Status),
    /// It could not be asked, or its answer makes no sense: its policy decides.
    Call { why: String, code: u16 },
    /// The request cannot be put to it at all.
    Server(Status),
}

impl Failure {
    /// The answer to the client; none when the policy lets the request pass.
    pub(super) fn status(self, webhook: &Webhook) -> Option<Status> {
        match self {
            Self::Denied(status) | Self::Server(status) => Some(status),
            Self::Call { why, .. } if webhook.ignores_failure => {
                tracing::warn!(
                    webhook = webhook.name,
                    why,
                    "failed calling webhook, failing open"
                );
                None
            }
            Self::Call { why, .. } => {
                tracing::warn!(
                    webhook = webhook.name,
                    why,
                    "failed calling webhook, failing closed"
                );
                Some(failed_call(webhook, &why))
            }
        }
    }
}

/// Asks `webhook`; the object is in the storage version. Warnings and annotations of the answer
/// have been passed on when this returns.
pub(super) async fn ask(
    source: &Source,
    webhook: &Webhook,
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    object: Option<&Value>,
    mutating: bool,
) -> Result<(Response, Value), Failure> {
    if attributes.dry_run && !webhook.dry_run_safe {
        return Err(Failure::Server(no_dry_run(webhook)));
    }
    let unanswered = |why: String, code: u16| Failure::Call {
        why: format!("failed to call webhook: {why}"),
        code,
    };
    let Some(version) = webhook.version else {
        let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(Failure::Call {
            why: why.to_owned(),
            code: 0,
        });
    };
    let new = shown(attributes, resource, object)
        .await
        .map_err(Failure::Server)?;
    let old = shown(attributes, resource, attributes.old)
        .await
        .map_err(Failure::Server)?;
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(attributes, resource, version, &uid, new.clone(), old);
    let config = webhook
        .client
        .as_ref()
        .map_err(|error| unanswered(error.to_string(), 0))?;
    let client = attributes
        .server
        .webhooks()
        .client(config, source.credentials.as_ref())
        .map_err(|error| Failure::Call {
            why: format!("could not get REST client: {error}"),
            code: 0,
        })?;
    let call = Call::post(Bytes::from(body.to_string()), webhook.timeout).with_timeout_query();
    let answer = client
        .json(call)
        .await
        .map_err(|error| unanswered(error.to_string(), error.code().unwrap_or(0)))?;
    let response = review::read(&answer, version, &uid, mutating).map_err(|why| Failure::Call {
        why: told(&format!("received invalid webhook response: {why}")).into_owned(),
        code: 0,
    })?;
    for (key, value) in &response.annotations {
        attributes.annotate(format!("{}/{key}", webhook.name), value.clone());
    }
    for warning in &response.warnings {
        attributes.warn(warning.clone());
    }
    if response.allowed {
        Ok((response, new))
    } else {
        Err(Failure::Denied(review::denial(
            &webhook.name,
            &response.status,
        )))
    }
}

/// Whether `matchConditions` want the webhook called: they see what it would see.
pub(super) async fn conditions_hold(
    webhook: &Webhook,
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    object: Option<&Value>,
) -> Result<bool, Status> {
    let Some(conditions) = &webhook.conditions else {
        return Ok(true);
    };
    let new = shown(attributes, resource, object).await?;
    let old = shown(attributes, resource, attributes.old).await?;
    let review = review::request(attributes, resource, "v1", "", new, old);
    conditions
        .want_call(attributes, &review["request"], webhook.ignores_failure)
        .await
}
