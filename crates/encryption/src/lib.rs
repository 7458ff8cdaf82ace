//! Encryption at rest: values of chosen resources are encrypted before they reach the store
//! (<https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/>).
//!
//! [`Encryption`] holds what an `EncryptionConfiguration` says and can be given another one while
//! the server runs. [`EncryptedStore`] puts it between the server and a store. Stored values have
//! the form of kube-apiserver: `k8s:enc:{provider}:v1:{key name}:` and the ciphertext; the key of
//! the store is authenticated with it where the cipher can do that. How keys say of which resource they are is a [`Naming`].

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod ciphers;
mod config;
mod kms;
mod naming;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use ciphers::Provider;
use config::Rule;
use kms::Plugin;
pub use naming::{Named, Naming, OwnNaming};
pub use store::EncryptedStore;

/// How often a followed file is read.
const RELOAD: Duration = Duration::from_secs(5);
/// Between tries to reach a plugin at start, and between looks whether one is to be asked.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const PREFIX: &[u8] = b"k8s:enc:";

/// Why a configuration cannot be used or a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncryptionError {
    /// The file cannot be read.
    #[error("encryption configuration {}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        detail: String,
    },
    /// The text is no `EncryptionConfiguration`, or one that makes no sense.
    #[error("encryption configuration: {0}")]
    Config(String),
    /// No provider of the resource can read the value.
    #[error("no configured provider can read the value: {0}")]
    Unreadable(String),
    /// A plugin that keeps keys is not well.
    #[error("kms plugin {name:?}: {why}")]
    Plugin {
        /// The plugin.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Encrypting failed.
    #[error("encrypting with {provider}: {detail}")]
    Encrypt {
        /// The provider.
        provider: &'static str,
        /// What went wrong.
        detail: String,
    },
}

/// A value as it was before it was encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plain {
    /// The value.
    pub value: Bytes,
    /// It is not stored as it would be stored today: with another key, provider, or none.
    pub stale: bool,
}

/// What is encrypted, and how.
#[derive(Debug)]
pub struct Encryption {
    rules: ArcSwap<Vec<Rule>>,
}

impl Encryption {
    /// Reads an `EncryptionConfiguration` (YAML or JSON).
    ///
    /// # Errors
    /// When it is malformed, overlaps itself or names a provider that is not built.
    pub fn parse(text: &str) -> Result<Self, EncryptionError> {
        Ok(Self {
            rules: ArcSwap::from_pointee(config::parse(text)?),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Encryption::parse`], and when the file cannot be read.
    pub fn from_file(path: &Path) -> Result<Self, EncryptionError> {
        Self::parse(&read(path)?)
    }

    /// Puts another configuration in the place of the current one, once the plugins it names have
    /// answered.
    ///
    /// # Errors
    /// As [`Encryption::parse`], and when a plugin is not well; the current one then stays.
    pub async fn reload(&self, text: &str) -> Result<(), EncryptionError> {
        let rules = config::parse(text)?;
        for plugin in rules.iter().flat_map(Rule::plugins) {
            let asked = plugin.refresh().await;
            asked.map_err(|why| EncryptionError::Plugin {
                name: plugin.name().to_owned(),
                why,
            })?;
        }
        self.rules.store(Arc::new(rules));
        Ok(())
    }

    fn plugins(&self) -> Vec<Arc<Plugin>> {
        let rules = self.rules.load();
        rules.iter().flat_map(Rule::plugins).cloned().collect()
    }

    /// Whether any plugin keeps keys.
    pub fn has_plugins(&self) -> bool {
        self.rules
            .load()
            .iter()
            .any(|rule| rule.plugins().next().is_some())
    }

    /// Waits until all plugins have answered once, at most as long as `limit`.
    ///
    /// # Errors
    /// What is wrong with a plugin when the time is over.
    pub async fn ready(&self, limit: Duration) -> Result<(), EncryptionError> {
        let until = tokio::time::Instant::now() + limit;
        for plugin in self.plugins() {
            while let Err(why) = plugin.refresh().await {
                if tokio::time::Instant::now() + FIRST_PAUSE > until {
                    return Err(EncryptionError::Plugin {
                        name: plugin.name().to_owned(),
                        why,
                    });
                }
                tokio::time::sleep(FIRST_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Polls the plugins until cancelled.
    pub async fn attend(&self, cancel: CancellationToken) {
        loop {
            let plugins = self.plugins();
            let due = plugins.iter().map(|plugin| plugin.due_in()).min();
            let pause = due.unwrap_or(RELOAD).clamp(LEAST_PAUSE, RELOAD);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            for plugin in plugins {
                if plugin.due_in().is_zero() {
                    // what is wrong is kept and logged there
                    let _asked = plugin.refresh().await;
                }
            }
        }
    }

    /// What is wrong with plugins.
    pub fn faults(&self) -> Vec<String> {
        let fault = |plugin: &Arc<Plugin>| {
            let fault = plugin.fault()?;
            Some(format!("{}: {fault}", plugin.name()))
        };
        self.plugins().iter().filter_map(fault).collect()
    }

    /// Sees to it that [`Encryption::encrypt_as`] has a key for a value.
    ///
    /// # Errors
    /// When the plugin that keeps the key is not well.
    pub async fn prepare(&self, named: &Named<'_>) -> Result<(), EncryptionError> {
        let rules = self.rules.load_full();
        let first = rule(&rules, named).and_then(|rule| rule.providers.first());
        match first {
            Some(Provider::Kms(plugin)) => plugin.prepare().await,
            _ => Ok(()),
        }
    }

    /// Sees to it that [`Encryption::decrypt_as`] has the key of a stored value.
    pub async fn unlock(&self, named: &Named<'_>, stored: &[u8]) {
        let rules = self.rules.load_full();
        for plugin in rule(&rules, named).into_iter().flat_map(Rule::plugins) {
            if let Err(error) = plugin.unlock(stored).await {
                tracing::warn!(key = &*named.context, error, "reading an encrypted value");
            }
        }
    }

    /// Takes over changes of a file until cancelled. A file that cannot be used is logged, and what
    /// was read before stays in force.
    pub async fn follow(&self, path: &Path, cancel: CancellationToken) {
        let mut last = read(path).ok();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(RELOAD) => {}
            }
            match read(path) {
                Ok(text) if last.as_ref() == Some(&text) => {}
                Ok(text) => {
                    match self.reload(&text).await {
                        Ok(()) => {
                            tracing::info!(path = %path.display(), "encryption configuration reloaded");
                        }
                        Err(error) => {
                            tracing::error!(%error, "encryption configuration not reloaded");
                        }
                    }
                    last = Some(text);
                }
                Err(error) => tracing::error!(%error, "encryption configuration not reloaded"),
            }
        }
    }

    /// The stored form of a value under one of davit's own keys.
    ///
    /// # Errors
    /// When the cipher fails.
    pub fn encrypt(&self, key: &str, value: Bytes) -> Result<Bytes, EncryptionError> {
        self.encrypt_as(&OwnNaming.named(key), value)
    }

    /// The value of a stored form under one of davit's own keys.
    ///
    /// # Errors
    /// When no provider of the resource can read it.
    pub fn decrypt(&self, key: &str, stored: Bytes) -> Result<Plain, EncryptionError> {
        self.decrypt_as(&OwnNaming.named(key), stored)
    }

    /// The stored form of a value.
    ///
    /// # Errors
    /// When the cipher fails.
    pub fn encrypt_as(&self, named: &Named<'_>, value: Bytes) -> Result<Bytes, EncryptionError> {
        let rules = self.rules.load();
        let Some(first) = rule(&rules, named).and_then(|rule| rule.providers.first()) else {
            return Ok(value);
        };
        first.encrypt(&named.context, value)
    }

    /// The value of a stored form.
    ///
    /// # Errors
    /// When no provider of the resource can read it.
    pub fn decrypt_as(&self, named: &Named<'_>, stored: Bytes) -> Result<Plain, EncryptionError> {
        let rules = self.rules.load();
        let Some(rule) = rule(&rules, named) else {
            // a resource that is not configured is read and written in the clear
            if stored.starts_with(PREFIX) {
                let why = "it is encrypted, its resource is not configured";
                return Err(EncryptionError::Unreadable(why.to_owned()));
            }
            return Ok(Plain {
                value: stored,
                stale: false,
            });
        };
        let mut last = "none is configured for its key".to_owned();
        for (at, provider) in rule.providers.iter().enumerate() {
            match provider.decrypt(&named.context, &stored) {
                None => {}
                Some(Ok((value, first_key))) => {
                    let stale = at > 0 || !first_key;
                    return Ok(Plain { value, stale });
                }
                Some(Err(why)) => last = why,
            }
        }
        Err(EncryptionError::Unreadable(last))
    }
}

fn read(path: &Path) -> Result<String, EncryptionError> {
    std::fs::read_to_string(path).map_err(|error| EncryptionError::File {
        path: path.to_owned(),
        detail: error.to_string(),
    })
}

fn rule<'a>(rules: &'a [Rule], named: &Named<'_>) -> Option<&'a Rule> {
    let (group, plural) = named.resource?;
    rules.iter().find(|rule| rule.covers(group, plural))
}

#[cfg(test)]
mod tests;
