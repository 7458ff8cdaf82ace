//! Admission webhooks: MutatingWebhookConfiguration and ValidatingWebhookConfiguration.
//!
//! Configurations are read from the store at each write (an unchanged one is not parsed again), so
//! that a new configuration holds for the very next write. Mutating webhooks run one after the
//! other in the order of their configurations' names, validating ones at the same time.
//! <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/>

mod call;
mod configurations;
pub(super) mod matching;
mod metrics;
mod mutate;
pub(super) mod review;
mod validate;
pub(super) mod versions;

use std::time::Instant;

use davit_api::field::quote;
use davit_api::status::Status;
use davit_webhook::{HostCredentials, Kubeconfig};

use self::call::Failure;
use self::configurations::{Configurations, Webhook};
use super::config::{Config, ConfigError};
use super::{Attributes, Operation};

pub use self::metrics::WebhookMetrics;
pub(super) use self::mutate::Mutators;
pub(super) use self::validate::Validators;

const GROUP: &str = "admissionregistration.k8s.io";

/// What both plugins need.
#[derive(Debug)]
struct Source {
    configurations: Configurations,
    credentials: Option<HostCredentials>,
}

impl Source {
    fn new(
        plugin: &'static str,
        plural: &'static str,
        config: &Config,
    ) -> Result<Self, ConfigError> {
        let file = config
            .of(plugin)
            .and_then(|value| value["kubeConfigFile"].as_str())
            .filter(|file| !file.is_empty());
        let credentials = file
            .map(|file| Kubeconfig::read(&config.path(plugin, file))?.hosts())
            .transpose()
            .map_err(|source| ConfigError::Kubeconfig { plugin, source })?;
        Ok(Self {
            configurations: Configurations::new(plural),
            credentials,
        })
    }
}

/// Requests no webhook sees: those on the objects that configure admission, so that a broken
/// configuration can be repaired.
fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let row = &attributes.resource.row;
    row.group == GROUP
        && matches!(
            row.plural,
            "validatingwebhookconfigurations"
                | "mutatingwebhookconfigurations"
                | "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        )
}

/// What a failed call means under the webhook's policy.
fn failed_call(webhook: &Webhook, why: &str) -> Status {
    Status::internal(format!(
        "failed calling webhook {}: {why}",
        quote(&webhook.name)
    ))
}

fn no_dry_run(webhook: &Webhook) -> Status {
    Status::bad_request(format!(
        "admission webhook {} does not support dry run",
        quote(&webhook.name)
    ))
}

/// Counts what became of a call.
fn observe(
    attributes: &Attributes<'_>,
    webhook: &Webhook,
    kind: &'static str,
    started: Instant,
    outcome: Result<(), &Failure>,
) {
    let operation: Operation = attributes.operation;
    let (rejected, error_type, code) = match outcome {
        Ok(()) => (false, "no_error", 200),
        Err(Failure::Denied(status)) => (true, "no_error", status.code),
        Err(Failure::Call { code, .. }) => {
            (!webhook.ignores_failure, "calling_webhook_error", *code)
        }
        Err(Failure::Server(status)) => (true, "apiserver_internal_error", status.code),
    };
    attributes.server.webhook_metrics().observe(
        &webhook.name,
        kind,
        operation.name(),
        rejected,
        error_type,
        code,
        started.elapsed(),
    );
}

/// Reads an answer and everything in it that the server acts on.
pub(super) fn check(
    answer: &serde_json::Value,
    version: &str,
    uid: &str,
    mutating: bool,
) -> Result<(), String> {
    let response = review::read(answer, version, uid, mutating)?;
    let denied = review::denial("fuzz.example.com", &response.status);
    if denied.code < 400 {
        return Err(format!("a denial with code {}", denied.code));
    }
    if !response.patch.is_empty() {
        let patch = davit_schema::patch::JsonPatch::parse(&response.patch);
        let patch = patch.map_err(|error| error.to_string())?;
        let object = serde_json::json!({ "metadata": { "name": "x", "labels": { "a": "b" } } });
        patch.apply(&object).map_err(|error| error.to_string())?;
    }
    Ok(())
}
