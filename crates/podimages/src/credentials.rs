//! Credential provider plugins: programs that know the registry passwords of the moment.
//!
//! A plugin is a program that gets a CredentialProviderRequest on its standard input and answers with credentials by
//! registry. Answers are kept as long as they say; calls for the same image run once. A plugin that fails costs its own
//! credentials only: the pull goes on with what there is.
//! Specified by KEP-2133 and KEP-4412 (service account tokens), kinds of `credentialprovider.kubelet.k8s.io`.

mod cache;
mod config;
mod exec;

pub use config::{ConfigError, Provider, TokenAttributes, TokenCache, read};

use super::keyring::{self, Credential, Source};
use super::pulled::CredentialOrigin;
use cache::Cache;
use davit_pods::objects::ObjectSource;
use davit_pods::pod::PodExt;
use davit_proto::cri::v1 as cri;
use exec::{Request, Response};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Lifetime of service account tokens for plugins, in seconds.
const TOKEN_SECONDS: i64 = 3600;
/// A token is used again while at least this much of its life is left.
const TOKEN_LEFT: jiff::SignedDuration = jiff::SignedDuration::from_mins(12);

type Answer = Result<Arc<Response>, Arc<exec::Error>>;
type Call = BoxFuture<'static, Answer>;

/// Where a node's plugins are.
#[derive(Debug, Clone, Default)]
pub struct CredentialOptions {
    /// The plugins, in the order they are asked.
    pub providers: Vec<Provider>,
    /// Directory of the programs.
    pub bin_dir: PathBuf,
}

/// The plugins of a node.
#[derive(Default)]
pub struct CredentialProviders {
    providers: Vec<Arc<Provider>>,
    bin_dir: PathBuf,
    cache: Arc<Mutex<Cache>>,
    running: Mutex<HashMap<String, WeakShared<Call>>>,
    tokens: Mutex<HashMap<(String, String), davit_pods::objects::Token>>,
}

/// What a plugin is told about the pod's service account.
#[derive(Debug)]
struct Account {
    token: String,
    annotations: BTreeMap<String, String>,
    /// What answers are kept by, besides the image.
    key: String,
    /// Whose the answers are.
    source: Source,
}

impl Account {
    /// Nothing is told: the answers are every pod's.
    fn none() -> Self {
        Self {
            token: String::new(),
            annotations: BTreeMap::new(),
            key: String::new(),
            source: Source::Node,
        }
    }
}

impl CredentialProviders {
    /// Plugins by `options`.
    #[must_use]
    pub fn new(options: CredentialOptions) -> Self {
        Self {
            providers: options.providers.into_iter().map(Arc::new).collect(),
            bin_dir: options.bin_dir,
            ..Self::default()
        }
    }

    /// Credentials for an image by registry pattern, from all plugins that match it.
    pub(super) async fn lookup(
        &self,
        image: &str,
        pod: &Pod,
        objects: &dyn ObjectSource,
    ) -> Vec<(String, Credential)> {
        let image = keyring::repository(image);
        let mut out = Vec::new();
        for provider in &self.providers {
            let wanted = |pattern: &String| keyring::matches(keyring::schemeless(pattern), &image);
            if !provider.match_images.iter().any(wanted) {
                continue;
            }
            match self.ask(provider, &image, pod, objects).await {
                Ok(Some((response, source))) => out.extend(response.credentials(&source)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(plugin = %provider.name, %image, %error, "failed getting credential from external registry credential provider");
                }
            }
        }
        out
    }

    async fn ask(
        &self,
        provider: &Arc<Provider>,
        image: &str,
        pod: &Pod,
        objects: &dyn ObjectSource,
    ) -> Result<Option<(Arc<Response>, Source)>, String> {
        let account = match &provider.token_attributes {
            None => Account::none(),
            Some(attributes) => match self.account(attributes, pod, objects).await? {
                Some(account) => account,
                None => return Ok(None),
            },
        };
        let scope = format!("{}\0{}", provider.name, account.key);
        let source = account.source.clone();
        if let Some(found) = self.cache.lock().get(&scope, image, Instant::now()) {
            return Ok(Some((found, source)));
        }
        let call = self.call(provider, image, account, scope);
        let answer = call.await.map_err(|e| e.to_string())?;
        Ok(Some((answer, source)))
    }

    /// The call of the plugin for this image: the one that runs already, or a new one.
    fn call(
        &self,
        provider: &Arc<Provider>,
        image: &str,
        account: Account,
        scope: String,
    ) -> Shared<Call> {
        let key = format!("{scope}\0{image}");
        let mut running = self.running.lock();
        running.retain(|_, call| call.upgrade().is_some());
        if let Some(call) = running.get(&key).and_then(WeakShared::upgrade) {
            return call;
        }
        let (provider, image) = (provider.clone(), image.to_owned());
        let (program, cache) = (self.bin_dir.join(&provider.name), self.cache.clone());
        let work: Call = async move {
            let request = Request {
                image: &image,
                token: &account.token,
                annotations: &account.annotations,
            };
            let response = exec::run(&provider, &program, &request)
                .await
                .map(Arc::new)
                .map_err(Arc::new)?;
            let lifetime = response.cache_duration.unwrap_or(provider.default_cache);
            if !lifetime.is_zero() {
                let key = response.cache_key_type;
                let mut cache = cache.lock();
                cache.put(
                    &scope,
                    &image,
                    key,
                    response.clone(),
                    lifetime,
                    Instant::now(),
                );
            }
            Ok(response)
        }
        .boxed();
        let shared = work.shared();
        if let Some(weak) = shared.downgrade() {
            running.insert(key, weak);
        }
        shared
    }

    /// Token and annotations of the pod's service account. `None` when the plugin is not for this pod.
    async fn account(
        &self,
        wanted: &TokenAttributes,
        pod: &Pod,
        objects: &dyn ObjectSource,
    ) -> Result<Option<Account>, String> {
        let name = pod.pod_spec().service_account_name.as_deref();
        let Some(name) = name.filter(|n| !n.is_empty()) else {
            return match wanted.require_service_account {
                true => Ok(None),
                false => Ok(Some(Account::none())),
            };
        };
        let found = objects.service_account(pod.ns(), name).await;
        let found = found.map_err(|e| e.to_string())?;
        let Some(found) = found else {
            return Err(format!("service account {}/{name} not found", pod.ns()));
        };
        let all = found.metadata.annotations.unwrap_or_default();
        let required = wanted.required_service_account_annotation_keys.iter();
        let mut annotations = BTreeMap::new();
        for key in required {
            let Some(value) = all.get(key) else {
                tracing::debug!(pod = %pod.format(), %key, "service account lacks an annotation that a credential provider needs");
                return Ok(None);
            };
            annotations.insert(key.clone(), value.clone());
        }
        for key in &wanted.optional_service_account_annotation_keys {
            if let Some(value) = all.get(key) {
                annotations.insert(key.clone(), value.clone());
            }
        }
        let token = self.token(wanted, pod, objects).await?;
        let uid = found.metadata.uid.unwrap_or_default();
        let mut key = format!("{}\0{name}\0{uid}\0{annotations:?}", pod.ns());
        let source = match wanted.cache_type {
            TokenCache::ServiceAccount => Source::ServiceAccount(CredentialOrigin {
                uid,
                namespace: pod.ns().to_owned(),
                name: name.to_owned(),
            }),
            TokenCache::Token => {
                key.push_str(&token);
                Source::Pod
            }
        };
        let digest = Sha256::digest(key.as_bytes());
        Ok(Some(Account {
            token,
            annotations,
            key: digest.iter().map(|b| format!("{b:02x}")).collect(),
            source,
        }))
    }

    async fn token(
        &self,
        wanted: &TokenAttributes,
        pod: &Pod,
        objects: &dyn ObjectSource,
    ) -> Result<String, String> {
        let audience = &wanted.service_account_token_audience;
        let key = (pod.uid().to_owned(), audience.clone());
        let fresh_until = jiff::Timestamp::now() + TOKEN_LEFT;
        if let Some(token) = self.tokens.lock().get(&key)
            && token.expires > fresh_until
        {
            return Ok(token.token.clone());
        }
        let made = objects.token(pod, Some(audience), TOKEN_SECONDS).await;
        let made = made.map_err(|e| format!("failed to get service account token: {e}"))?;
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, token| token.expires > fresh_until);
        tokens.insert(key, made.clone());
        Ok(made.token)
    }
}

impl Response {
    fn credentials(&self, source: &Source) -> Vec<(String, Credential)> {
        let entry = |(pattern, auth): (&String, &exec::Auth)| {
            let auth = cri::AuthConfig {
                username: auth.username.clone(),
                password: auth.password.clone(),
                ..cri::AuthConfig::default()
            };
            let source = source.clone();
            let pattern = keyring::schemeless(pattern).to_owned();
            (pattern, Credential { auth, source })
        };
        self.auth.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests;
