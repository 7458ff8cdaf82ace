//! Admission: what may change or refuse a write after authorization.
//!
//! Plugins have the names and the order of kube-apiserver ([`plugin_names`]). Mutating plugins see and
//! may change the object before it is validated, validating plugins see the final object. When a
//! webhook or policy changed the object the mutating plugins run once more, so that all of them
//! have seen the outcome ([`Reinvocation`]).
//!
//! The server is known by [`ServerView`] alone: what plugins ask of it beside the write at hand.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]
// every error of a request is a Status, which is made once and moved a few times on a cold path
#![allow(clippy::result_large_err)]

mod cel_conditions;
pub mod certificates;
mod config;
mod config_shapes;
mod defaults;
pub mod device_access;
mod erased;
mod event_rate_limit;
mod image_policy;
mod limit_ranger;
mod metrics;
mod mountable_secrets;
mod namespace_lifecycle;
mod node_restriction;
mod nodes;
mod owners;
mod placement;
mod plugins;
mod pod_fields;
mod pod_groups;
mod pod_security;
mod pod_tolerations;
mod pods;
mod policies;
mod priority;
mod quota;
mod reinvocation;
mod service_account;
mod switches;
mod webhooks;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use davit_access::{Lookup, UserInfo, Warnings, authz};
use davit_api::features::Features;
use davit_api::status::Status;
use davit_registry::{Registry, ResourceInfo};
use davit_webhook::Webhooks;
use serde_json::Value;

use crate::metrics::Step;

pub use config::{Config, ConfigError};
use erased::{AnyMutating, AnyValidating};
pub use metrics::AdmissionMetrics;
pub use node_restriction::is_nodes_label;
pub use plugins::names as plugin_names;
pub use priority::SYSTEM_CLASSES;
pub use reinvocation::Reinvocation;
pub use webhooks::WebhookMetrics;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change, also by patch and through a subresource.
    Update,
    /// A deletion.
    Delete,
    /// A connection (exec, attach, port-forward, proxy).
    Connect,
}

impl Operation {
    /// As rules of webhooks and policies name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// The server as plugins see it: what they ask beside the write at hand, and no more.
#[async_trait]
pub trait ServerView: Lookup {
    /// What is served.
    fn registry(&self) -> &Registry;
    /// The feature gates.
    fn features(&self) -> &Features;
    /// Who decides about requests now.
    fn authorizer(&self) -> Arc<authz::Chain>;
    /// Whether nodes may change only what is theirs.
    fn restricts_nodes(&self) -> bool;
    /// Calls to servers outside.
    fn webhooks(&self) -> &Webhooks;
    /// What admission took.
    fn admission_metrics(&self) -> &AdmissionMetrics;
    /// What calls of admission webhooks came to.
    fn webhook_metrics(&self) -> &WebhookMetrics;
    /// Makes a namespace in the server's own name, unless it is there.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn make_namespace(&self, name: &str, warnings: &Warnings) -> Result<(), Status>;
}

/// The attributes of a write.
pub struct Attributes<'a> {
    /// The server, to look up other objects.
    pub server: &'a dyn ServerView,
    /// What is being done.
    pub operation: Operation,
    /// The resource of the path.
    pub resource: &'a ResourceInfo,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace, or empty.
    pub namespace: &'a str,
    /// The name; empty while it is still to be generated.
    pub name: &'a str,
    /// Who does it.
    pub user: &'a UserInfo,
    /// By which verb it was asked for; `update` and `patch` may have permissions of their own.
    pub verb: &'a str,
    /// Nothing will be stored.
    pub dry_run: bool,
    /// The object before the write, in the storage version.
    pub old: Option<&'a Value>,
    /// What the client and the audit log are told.
    pub warnings: &'a Warnings,
    /// Which plugins run again.
    pub reinvocation: Reinvocation,
}

impl Attributes<'_> {
    /// Whether this is about a resource itself, in the storage version of the group given.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.about(group, plural)
    }

    /// As [`Attributes::is`], through whatever subresource.
    pub fn about(&self, group: &str, plural: &str) -> bool {
        self.resource.row.group == group && self.resource.row.plural == plural
    }

    /// Group, version and kind of the request's object: those of the resource, unless the
    /// subresource has a form of its own (`Eviction`, `PodExecOptions`).
    pub fn kind(&self) -> (&str, &str, &str) {
        let row = &self.resource.row;
        match self.resource.subresource(self.subresource) {
            Some(sub) => (sub.group, sub.version, sub.kind),
            None => (row.group, row.version, row.kind),
        }
    }

    /// Whether the object is of the resource's own kind, and so in the storage version.
    pub fn has_own_kind(&self) -> bool {
        self.kind().2 == self.resource.row.kind
    }

    /// The namespace the request is in; for Namespace objects their own name, as in Kubernetes.
    pub fn request_namespace(&self) -> &str {
        if self.about("", "namespaces") {
            self.name
        } else {
            self.namespace
        }
    }

    /// Tells the client something.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.add(text);
    }

    /// Tells the audit log something, under a key like `plugin.example.com/key`.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        self.warnings.annotate(key, value);
    }

    /// Creates or updates, on the resource itself.
    pub(crate) fn writes(&self) -> bool {
        matches!(self.operation, Operation::Create | Operation::Update)
    }
}

/// A plugin that may change the object.
pub trait Mutating: Send + Sync {
    /// Changes or refuses. `object` is none on delete.
    fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> impl Future<Output = Result<(), Status>> + Send;
}

/// A plugin that only refuses.
pub trait Validating: Send + Sync {
    /// Refuses or not. `object` is none on delete.
    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> impl Future<Output = Result<(), Status>> + Send;
}

/// A plugin by its name: what it does to objects, and what it says to the outcome.
pub struct Plugin {
    name: &'static str,
    mutating: Option<Box<dyn AnyMutating>>,
    validating: Option<Box<dyn AnyValidating>>,
}

impl Plugin {
    /// A plugin that may change objects.
    pub fn mutating(name: &'static str, plugin: impl Mutating + 'static) -> Self {
        Self {
            name,
            mutating: Some(Box::new(plugin)),
            validating: None,
        }
    }

    /// A plugin that only refuses.
    pub fn validating(name: &'static str, plugin: impl Validating + 'static) -> Self {
        Self {
            name,
            mutating: None,
            validating: Some(Box::new(plugin)),
        }
    }

    /// A plugin that does both.
    #[must_use]
    pub fn and_validating(mut self, plugin: impl Validating + 'static) -> Self {
        self.validating = Some(Box::new(plugin));
        self
    }
}

/// The configured plugins.
pub struct Chain {
    plugins: Vec<Plugin>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.plugins.iter().map(|plugin| plugin.name);
        f.debug_list().entries(names).finish()
    }
}

impl Chain {
    /// Runs the given plugins in their order.
    pub fn new(plugins: Vec<Plugin>) -> Self {
        Self { plugins }
    }

    /// The plugins that are on without configuration.
    pub fn standard() -> Self {
        Self::new(plugins::standard())
    }

    /// The plugins that `config` leaves on, with their configuration.
    ///
    /// # Errors
    /// When a name is unknown or a plugin's configuration cannot be used.
    pub fn configured(config: &Config) -> Result<Self, ConfigError> {
        plugins::configured(config).map(Self::new)
    }

    /// Names of the plugins, in their order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name)
    }

    /// Runs the mutating plugins, twice if one asks for it.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let mut done = self.mutate_once(attributes, object.as_deref_mut()).await;
        if done.is_ok() && attributes.reinvocation.begin_second_round() {
            done = self.mutate_once(attributes, object).await;
        }
        attributes.took(Step::Admit, done.is_ok(), started);
        done
    }

    async fn mutate_once(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<(), Status> {
        for plugin in &self.plugins {
            let Some(mutating) = &plugin.mutating else {
                continue;
            };
            let started = Instant::now();
            let done = mutating.admit(attributes, object.as_deref_mut()).await;
            attributes.plugin_took(plugin.name, Step::Admit, done.is_ok(), started);
            done?;
        }
        Ok(())
    }

    /// Runs the validating plugins.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let started = Instant::now();
        let done = self.validate_each(attributes, object).await;
        attributes.took(Step::Validate, done.is_ok(), started);
        done
    }

    async fn validate_each(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        for plugin in &self.plugins {
            let Some(validating) = &plugin.validating else {
                continue;
            };
            let started = Instant::now();
            let done = validating.validate(attributes, object).await;
            attributes.plugin_took(plugin.name, Step::Validate, done.is_ok(), started);
            done?;
        }
        Ok(())
    }
}

impl Attributes<'_> {
    fn took(&self, step: Step, accepted: bool, since: Instant) {
        let metrics = self.server.admission_metrics();
        metrics.step(step, self.operation.name(), accepted, since.elapsed());
    }

    fn plugin_took(&self, name: &'static str, step: Step, accepted: bool, since: Instant) {
        let metrics = self.server.admission_metrics();
        metrics.plugin(name, step, self.operation.name(), accepted, since.elapsed());
    }
}

/// Whether the AdmissionReview with which a webhook answered the request `uid` is believed: what
/// fuzzing tries on arbitrary answers.
///
/// # Errors
/// What is wrong with it, in the words of kube-apiserver.
pub fn check_webhook_answer(
    answer: &Value,
    version: &str,
    uid: &str,
    mutating: bool,
) -> Result<(), String> {
    webhooks::check(answer, version, uid, mutating)
}

/// What a refusal calls the object: the name of the path, else the object's own or the prefix that it will begin with.
fn named<'a>(attributes: &Attributes<'a>, object: Option<&'a Value>) -> &'a str {
    let of = |pointer| object?.pointer(pointer)?.as_str();
    [
        Some(attributes.name),
        of("/metadata/name"),
        of("/metadata/generateName"),
    ]
    .into_iter()
    .flatten()
    .find(|name| !name.is_empty())
    .unwrap_or("Unknown")
}

/// A refusal in the usual form: `pods "x" is forbidden: why`.
fn forbidden(
    attributes: &Attributes<'_>,
    object: Option<&Value>,
    why: impl Into<String>,
) -> Status {
    let name = named(attributes, object);
    Status::forbidden(attributes.resource.qualified(), name, why.into())
}
