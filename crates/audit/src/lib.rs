//! The audit log: who asked for what, when, and what became of it
//! (<https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/>).
//!
//! A policy decides for each request how much is recorded; the events go to a file, to a webhook,
//! or to both. While a request is handled, its record is reached from anywhere in its task:
//! authenticators, authorizers and admission plugins call [`annotate`].

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod event;
mod log;
mod policy;
mod webhook;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use serde_json::Value;

pub use event::{Record, Request};
pub use log::LogOptions;
pub use policy::{Level, Policy, PolicyError, Stage};

use log::LogFile;
use webhook::Webhook;

/// How the audit log is kept.
#[derive(Debug, Clone, Default)]
pub struct AuditOptions {
    /// What is recorded; without a policy nothing is.
    pub policy: Option<Policy>,
    /// Where events are written.
    pub log: Option<LogOptions>,
    /// A kubeconfig that names where events are sent.
    pub webhook: Option<PathBuf>,
}

/// Why the audit log cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The log file cannot be opened.
    #[error("audit log {}: {detail}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        detail: String,
    },
    /// The webhook's configuration cannot be used.
    #[error("audit webhook {}: {detail}", path.display())]
    Webhook {
        /// The kubeconfig file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
}

tokio::task_local! {
    static CURRENT: Arc<Slot>;
}

/// The record of a request, once there is one: only when its user is known can the policy decide.
#[derive(Debug, Default)]
pub struct Slot(OnceLock<Record>);

impl Slot {
    /// The record, if there is one.
    pub fn record(&self) -> Option<&Record> {
        self.0.get()
    }
}

/// Runs the handling of a request with its slot in reach.
pub async fn scope<T>(slot: Arc<Slot>, handling: impl Future<Output = T>) -> T {
    CURRENT.scope(slot, handling).await
}

fn with(act: impl FnOnce(&Record)) {
    // outside of a request there is nobody to tell
    let _ = CURRENT.try_with(|slot| {
        if let Some(record) = slot.record() {
            act(record);
        }
    });
}

/// Puts an annotation on the record of the request that is being handled, if it has one. The first
/// value of a key stays.
pub fn annotate(key: &str, value: &str) {
    with(|record| record.annotate(key, value));
}

/// Records the object a request brought.
pub fn request_object(object: &Value) {
    with(|record| record.request_object(object));
}

/// Records the object a request is answered with.
pub fn response_object(object: impl FnOnce() -> Value) {
    with(|record| record.response_object(object));
}

/// Records as whom the request goes on.
pub fn impersonated(user: &davit_access::UserInfo) {
    with(|record| record.impersonated(user));
}

/// Decides what is recorded and hands it to the back ends.
#[derive(Debug)]
pub struct Auditor {
    policy: Policy,
    log: Option<LogFile>,
    webhook: Option<Webhook>,
    events: Counter,
    errors: Counter,
}

impl Auditor {
    /// None when nothing would be recorded anywhere. Events and what goes wrong with them are counted.
    ///
    /// # Errors
    /// When the log cannot be opened, or the webhook's configuration cannot be used.
    pub fn new(
        options: AuditOptions,
        events: Counter,
        errors: Counter,
    ) -> Result<Option<Self>, AuditError> {
        let Some(policy) = options.policy else {
            return Ok(None);
        };
        if options.log.is_none() && options.webhook.is_none() {
            return Ok(None);
        }
        let log = options.log.map(LogFile::open).transpose()?;
        let webhook = options
            .webhook
            .map(|path| Webhook::start(&path, errors.clone()))
            .transpose()?;
        Ok(Some(Self {
            policy,
            log,
            webhook,
            events,
            errors,
        }))
    }

    /// Begins the record of a request, unless the policy wants none.
    pub fn begin(&self, slot: &Slot, request: &Request<'_>) {
        let verdict = self.policy.judge(request.user, request.info);
        if verdict.level == Level::None {
            return;
        }
        let _ = slot.0.set(Record::new(verdict, request));
    }

    /// Writes the event of a stage.
    pub fn stage(&self, record: &Record, stage: Stage) {
        let Some(event) = record.event(stage) else {
            return;
        };
        self.events.inc();
        if let Some(log) = &self.log
            && let Err(error) = log.write(&event)
        {
            self.errors.inc();
            tracing::error!(%error, "writing the audit log");
        }
        if let Some(webhook) = &self.webhook {
            webhook.send(&event);
        }
    }

    /// Sends what waits, for at most `limit`.
    pub async fn close(&self, limit: Duration) {
        if let Some(webhook) = &self.webhook {
            webhook.close(limit).await;
        }
    }
}

#[cfg(test)]
mod tests;
