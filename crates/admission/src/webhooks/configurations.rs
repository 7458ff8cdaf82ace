//! The configured webhooks, parsed once for each change.

use std::sync::Arc;
use std::time::Duration;

use davit_api::labels::Selector;
use davit_api::status::Status;
use davit_registry::{errors, storage};
use davit_store::ListOptions;
use davit_webhook::{CallError, ClientConfig};
use parking_lot::Mutex;
use serde_json::Value;

use super::GROUP;
use super::matching::Rule;
use crate::ServerView;
use crate::cel_conditions::Conditions;
use davit_cel::policy::{Scope, environment};

const TIMEOUT_SECONDS: u64 = 10;

/// One webhook, ready to be matched and called.
#[derive(Debug)]
pub(super) struct Webhook {
    pub(super) name: String,
    pub(super) configuration: String,
    /// Identifies it within one write.
    pub(super) id: String,
    pub(super) client: Result<ClientConfig, CallError>,
    pub(super) rules: Vec<Rule>,
    pub(super) ignores_failure: bool,
    pub(super) equivalent: bool,
    pub(super) namespaces: Option<Selector>,
    pub(super) objects: Option<Selector>,
    pub(super) dry_run_safe: bool,
    pub(super) timeout: Duration,
    /// The newest review version both sides know.
    pub(super) version: Option<&'static str>,
    pub(super) repeats: bool,
    pub(super) conditions: Option<Conditions>,
}

/// All webhooks in the order in which they run.
pub(super) type Webhooks = Arc<Vec<Webhook>>;

/// The stored configurations that were read: their keys and revisions.
type Fingerprint = Vec<(Arc<str>, u64)>;

#[derive(Debug)]
pub(super) struct Configurations {
    plural: &'static str,
    parsed: Mutex<(Fingerprint, Webhooks)>,
}

impl Configurations {
    pub(super) fn new(plural: &'static str) -> Self {
        Self {
            plural,
            parsed: Mutex::new((Vec::new(), Arc::default())),
        }
    }

    /// The webhooks of this moment.
    ///
    /// # Errors
    /// When the store cannot be read: a write must not slip past the webhooks.
    pub(super) async fn current(&self, server: &dyn ServerView) -> Result<Webhooks, Status> {
        let snapshot = server.registry().snapshot();
        let Some(resource) = snapshot.by_group_resource(GROUP, self.plural) else {
            return Ok(Arc::default());
        };
        let listing = resource.storage.list(None, ListOptions::default()).await;
        let listing = listing.map_err(|error| errors::storage(error, resource, ""))?;
        let revisions: Vec<(Arc<str>, u64)> = listing
            .items
            .iter()
            .map(|pair| (Arc::clone(&pair.key), pair.mod_revision))
            .collect();
        {
            let parsed = self.parsed.lock();
            if parsed.0 == revisions {
                return Ok(Arc::clone(&parsed.1));
            }
        }
        let mut webhooks = Vec::new();
        for pair in &listing.items {
            let stored = storage::decode(pair).map_err(|e| errors::storage(e, resource, ""))?;
            webhooks.extend(parse(&stored.value));
        }
        let webhooks = Arc::new(webhooks);
        *self.parsed.lock() = (revisions, Arc::clone(&webhooks));
        Ok(webhooks)
    }
}

/// The webhooks of one configuration; keys of the store are in the order of names.
fn parse(configuration: &Value) -> Vec<Webhook> {
    let name = davit_registry::object::name(configuration);
    let list = configuration["webhooks"].as_array().into_iter().flatten();
    let webhooks = list.enumerate().map(|(i, hook)| webhook(name, i, hook));
    webhooks.collect()
}

fn webhook(configuration: &str, index: usize, hook: &Value) -> Webhook {
    let text = |key: &str| hook[key].as_str().unwrap_or_default();
    let selector = |key: &str| {
        let value = hook.get(key).filter(|value| !value.is_null());
        value.map_or_else(
            || Some(Selector::everything()),
            |value| Selector::from_label_selector(Some(value)).ok(),
        )
    };
    let versions = hook["admissionReviewVersions"].as_array();
    let version = versions
        .into_iter()
        .flatten()
        .find_map(|version| match version.as_str() {
            Some("v1") => Some("v1"),
            Some("v1beta1") => Some("v1beta1"),
            _ => None,
        });
    let rules = hook["rules"].as_array().into_iter().flatten();
    Webhook {
        name: text("name").to_owned(),
        configuration: configuration.to_owned(),
        id: format!("{configuration}/{}/{index}", text("name")),
        client: ClientConfig::from_value(&hook["clientConfig"]),
        rules: rules.map(Rule::from_value).collect(),
        ignores_failure: text("failurePolicy") == "Ignore",
        equivalent: text("matchPolicy") != "Exact",
        namespaces: selector("namespaceSelector"),
        objects: selector("objectSelector"),
        dry_run_safe: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
        timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(TIMEOUT_SECONDS)),
        version,
        repeats: text("reinvocationPolicy") == "IfNeeded",
        conditions: conditions(&hook["matchConditions"]),
    }
}

/// Compiled once; most webhooks have none.
fn conditions(list: &Value) -> Option<Conditions> {
    let some = list.as_array().is_some_and(|list| !list.is_empty());
    some.then(|| Conditions::new(list, &environment(Scope::WEBHOOK)))
}
