//! Mutating webhooks, one after the other.

use std::time::Instant;

use davit_api::field::quote;
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use davit_schema::patch::{JsonPatch, PatchError};
use serde_json::{Value, json};

use super::call::{Failure, ask, conditions_hold};
use super::configurations::Webhook;
use super::matching::matched;
use super::versions::taken;
use super::{Source, is_exempt, observe};
use crate::config::{Config, ConfigError};
use crate::{Attributes, Mutating};

const NAME: &str = "MutatingAdmissionWebhook";
const PREFIX: &str = "mutation.webhook.admission.k8s.io";

/// The plugin.
pub(crate) struct Mutators(Source);

impl Mutators {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        Source::new(NAME, "mutatingwebhookconfigurations", config).map(Self)
    }
}

impl Mutating for Mutators {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<(), Status> {
        if is_exempt(attributes) {
            return Ok(());
        }
        let webhooks = self.0.configurations.current(attributes.server).await?;
        if webhooks.is_empty() {
            return Ok(());
        }
        let rounds = &attributes.reinvocation;
        let second = rounds.is_second_round();
        if second {
            rounds.of(NAME, |state| {
                // built-in plugins changed what webhooks have seen
                if state.is_changed(object.as_deref()) {
                    state.repeat_previous();
                }
            });
        }
        for (index, webhook) in webhooks.iter().enumerate() {
            let resource = matched(webhook, attributes, object.as_deref()).await?;
            let Some(resource) = resource else { continue };
            if second && !rounds.of(NAME, |state| state.repeats(&webhook.id)) {
                continue;
            }
            if !conditions_hold(webhook, attributes, &resource, object.as_deref()).await? {
                continue;
            }
            let changed = self
                .one(webhook, index, attributes, &resource, object.as_deref_mut())
                .await?;
            if changed {
                rounds.of(NAME, super::super::reinvocation::Rounds::repeat_previous);
                rounds.want_second_round();
            }
            if webhook.repeats {
                rounds.of(NAME, |state| state.ran(&webhook.id));
            }
        }
        rounds.of(NAME, |state| state.leave(object.as_deref()));
        Ok(())
    }
}

impl Mutators {
    /// Calls one webhook and applies its patch; whether the object changed.
    async fn one(
        &self,
        webhook: &Webhook,
        index: usize,
        attributes: &Attributes<'_>,
        resource: &ResourceInfo,
        object: Option<&mut Value>,
    ) -> Result<bool, Status> {
        let started = Instant::now();
        let round = u8::from(attributes.reinvocation.is_second_round());
        let place = format!("round_{round}_index_{index}");
        let result = self.call(webhook, attributes, resource, object).await;
        let outcome = result.as_ref().map(|_| ());
        observe(attributes, webhook, "admit", started, outcome);
        let failed = matches!(&result, Err(Failure::Call { .. }));
        match result {
            Ok(patch) => {
                let mutated = patch.is_some();
                let record = json!({
                    "configuration": webhook.configuration, "webhook": webhook.name,
                    "mutated": mutated,
                });
                attributes.annotate(format!("{PREFIX}/{place}"), record.to_string());
                if let Some(patch) = patch {
                    let record = json!({
                        "configuration": webhook.configuration, "webhook": webhook.name,
                        "patch": patch, "patchType": "JSONPatch",
                    });
                    let key = format!("patch.webhook.admission.k8s.io/{place}");
                    attributes.annotate(key, record.to_string());
                }
                Ok(mutated)
            }
            Err(failure) => match failure.status(webhook) {
                Some(status) => Err(status),
                None => {
                    if failed {
                        attributes.annotate(format!("failed-open.{PREFIX}/{place}"), &webhook.name);
                        let metrics = attributes.server.webhook_metrics();
                        metrics.failed_open(&webhook.name, "admit");
                    }
                    Ok(false)
                }
            },
        }
    }

    /// The patch, if it changed something.
    async fn call(
        &self,
        webhook: &Webhook,
        attributes: &Attributes<'_>,
        resource: &ResourceInfo,
        object: Option<&mut Value>,
    ) -> Result<Option<Value>, Failure> {
        let asked = ask(
            &self.0,
            webhook,
            attributes,
            resource,
            object.as_deref(),
            true,
        );
        let (response, shown) = asked.await?;
        if response.patch.is_empty() {
            return Ok(None);
        }
        let internal = |error: String| Failure::Server(Status::internal(error));
        let patch = JsonPatch::parse(&response.patch).map_err(|error| match error {
            // An answer that makes no sense, as any other; what cannot be done to this object is the request's failure.
            PatchError::Malformed(why) => Failure::Call {
                why: format!("received undecodable patch in webhook response: {why}"),
                code: 503,
            },
            error => internal(error.to_string()),
        })?;
        if patch.is_empty() {
            return Ok(None);
        }
        let Some(object) = object else {
            return Err(internal(format!(
                "admission webhook {} attempted to modify the object, which is not supported for this operation",
                quote(&webhook.name)
            )));
        };
        let patched = patch.apply(&shown).map_err(|e| internal(e.to_string()))?;
        if patched == shown {
            return Ok(None);
        }
        let new = taken(attributes, resource, patched)
            .await
            .map_err(Failure::Server)?;
        let changed = new != *object;
        *object = new;
        let patch = serde_json::from_slice(&response.patch).unwrap_or(Value::Null);
        Ok(changed.then_some(patch))
    }
}
