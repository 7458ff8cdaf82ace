//! Validating webhooks, all at the same time.

use std::time::Instant;

use davit_api::status::Status;
use davit_registry::ResourceInfo;
use futures::future::join_all;
use serde_json::Value;

use super::call::{Failure, ask, conditions_hold};
use super::configurations::Webhook;
use super::matching::matched;
use super::{Source, is_exempt, observe};
use crate::config::{Config, ConfigError};
use crate::{Attributes, Validating};

const NAME: &str = "ValidatingAdmissionWebhook";

/// The plugin.
pub(crate) struct Validators(Source);

impl Validators {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        Source::new(NAME, "validatingwebhookconfigurations", config).map(Self)
    }
}

impl Validating for Validators {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        if is_exempt(attributes) {
            return Ok(());
        }
        let webhooks = self.0.configurations.current(attributes.server).await?;
        let mut calls = Vec::new();
        for webhook in webhooks.iter() {
            let resource = matched(webhook, attributes, object).await?;
            let Some(resource) = resource else { continue };
            if conditions_hold(webhook, attributes, &resource, object).await? {
                calls.push((webhook, resource));
            }
        }
        let calls = calls
            .iter()
            .enumerate()
            .map(|(index, (webhook, resource))| {
                self.one(webhook, index, attributes, resource, object)
            });
        join_all(calls).await.into_iter().collect()
    }
}

impl Validators {
    async fn one(
        &self,
        webhook: &Webhook,
        index: usize,
        attributes: &Attributes<'_>,
        resource: &ResourceInfo,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let result = ask(&self.0, webhook, attributes, resource, object, false).await;
        let outcome = result.as_ref().map(|_| ());
        observe(attributes, webhook, "validating", started, outcome);
        let Err(failure) = result else {
            return Ok(());
        };
        let failed = matches!(&failure, Failure::Call { .. });
        if let Some(status) = failure.status(webhook) {
            return Err(status);
        }
        if failed {
            let key =
                format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            attributes.annotate(key, &webhook.name);
            let metrics = attributes.server.webhook_metrics();
            metrics.failed_open(&webhook.name, "validating");
        }
        Ok(())
    }
}
