//! Authentication: client certificates, authenticating proxies, bearer tokens of many kinds,
//! anonymous.
//!
//! The first authenticator that knows the credential decides. A credential that none accepts is
//! refused; it never degrades to the anonymous user.

mod bootstrap_tokens;
mod client_certificates;
mod legacy_tokens;
mod oidc;
mod request_header;
mod service_accounts;
mod static_tokens;
mod webhook;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use async_trait::async_trait;
use davit_api::status::Status;
use davit_client::bootstrap_token::BootstrapToken;
use davit_webhook::tls::TlsError;
use davit_webhook::{KubeconfigError, Tasks};
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use rustls_pki_types::CertificateDer;

pub use oidc::config::{Anonymous, AuthenticationConfigError, OidcFlags};
pub use request_header::RequestHeader;
pub use static_tokens::{StaticToken, TokenFileError, parse_token_file};
pub use webhook::TokenWebhook;

use crate::lookup::Lookup;
use crate::metrics::AccessMetrics;
use crate::tokens::TokenKeys;
use crate::user::UserInfo;
use crate::warnings::Warnings;
use client_certificates::{ClientCertificates, end, next_change};
use oidc::config::Configuration;
use request_header::Proxies;
use static_tokens::StaticTokens;

pub use service_accounts::AuthenticatedToken;
pub(crate) use service_accounts::Note;
pub(crate) use webhook::is_passing;

/// The server as authenticators of tokens see it.
#[async_trait]
pub trait TokenView: Lookup {
    /// Where tokens are counted.
    fn access_metrics(&self) -> &AccessMetrics;
    /// Writes a label of a Secret.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn label_secret(
        &self,
        namespace: &str,
        name: &str,
        label: &str,
        value: &str,
    ) -> Result<(), Status>;
}

/// Ways to authenticate beside the cluster's own certificates and tokens.
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// Further authorities of client certificates, PEM.
    pub client_ca: Option<String>,
    /// The file they were read from; it is read again when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// An authenticating proxy in front.
    pub request_header: Option<RequestHeader>,
    /// Whether bootstrap tokens are accepted.
    pub bootstrap_tokens: bool,
    /// A server that reviews tokens.
    pub token_webhook: Option<TokenWebhook>,
    /// An `AuthenticationConfiguration` file, read again when it changes.
    pub config_file: Option<PathBuf>,
    /// The legacy flags for one OpenID Connect issuer.
    pub oidc: Option<OidcFlags>,
    /// Who is served without credentials, unless the configuration file says.
    pub anonymous: Anonymous,
}

/// Why authentication could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// Authorities of certificates.
    #[error(transparent)]
    Certificates(#[from] TlsError),
    /// The kubeconfig of the token webhook.
    #[error("token webhook: {0}")]
    Webhook(#[from] KubeconfigError),
    /// The configuration file or the flags for OpenID Connect.
    #[error(transparent)]
    Config(#[from] AuthenticationConfigError),
}

/// What a connection showed when it was made. Whom it stands for is decided at each request: certificates end, and
/// authorities are replaced, while connections go on.
#[derive(Debug)]
pub struct ConnectionIdentity {
    /// The other end.
    pub peer: Option<SocketAddr>,
    /// The client's certificates, its own first.
    chain: Vec<CertificateDer<'static>>,
    /// The last decision.
    judged: ArcSwapOption<Judged>,
}

impl ConnectionIdentity {
    /// Whether the client showed a certificate, of whatever worth.
    pub fn shows_certificate(&self) -> bool {
        !self.chain.is_empty()
    }

    /// `chain`: the certificates the client showed, its own first; `peer`: where it is.
    pub fn new(chain: Option<&[CertificateDer<'_>]>, peer: SocketAddr) -> Self {
        let chain = chain.unwrap_or_default().iter();
        Self {
            peer: Some(peer),
            chain: chain.map(|c| c.clone().into_owned()).collect(),
            judged: ArcSwapOption::empty(),
        }
    }
}

/// Whom the certificates of a connection stand for.
#[derive(Debug)]
struct Judged {
    /// Who was believed then.
    by: Arc<Certificates>,
    /// In which time (seconds since 1970) another look would find the same.
    holds: Range<i64>,
    /// The user; why it is none; no certificate was shown.
    certificate: Option<Result<UserInfo, String>>,
    /// When that certificate ends.
    ends: Option<i64>,
    /// The certificate is that of an authenticating proxy.
    is_proxy: bool,
}

/// The credential was refused (401).
#[derive(Debug)]
pub struct Refused;

/// Who is believed by certificate.
#[derive(Debug, Default)]
struct Certificates {
    clients: Option<ClientCertificates>,
    proxies: Option<Proxies>,
    /// The authorities of clients beside the cluster's own, PEM.
    client_ca: Option<String>,
}

impl Certificates {
    fn new(
        cluster_ca: Option<&str>,
        client_ca: Option<String>,
        request_header: Option<RequestHeader>,
    ) -> Result<Self, TlsError> {
        let authorities: Vec<&str> = cluster_ca.into_iter().chain(client_ca.as_deref()).collect();
        let clients = (!authorities.is_empty())
            .then(|| ClientCertificates::new(&authorities.join("\n")))
            .transpose()?;
        Ok(Self {
            clients,
            proxies: request_header.map(Proxies::new).transpose()?,
            client_ca,
        })
    }
}

/// The configured authenticators.
pub struct Authenticator {
    certificates: ArcSwap<Certificates>,
    cluster_ca: Option<String>,
    client_ca_file: Option<PathBuf>,
    static_tokens: StaticTokens,
    tokens: TokenKeys,
    bootstrap_tokens: bool,
    configured: ArcSwap<Configuration>,
    webhook: Option<webhook::WebhookTokens>,
    anonymous: Anonymous,
    config_file: Option<PathBuf>,
    tasks: Tasks,
}

impl Authenticator {
    /// `cluster_ca`: the cluster's own authority, PEM; `tasks`: what drives connections to issuers and webhooks.
    ///
    /// # Errors
    /// When certificates, a kubeconfig or a configuration file cannot be used.
    pub fn new(
        cluster_ca: Option<&str>,
        options: &Authentication,
        static_tokens: &[StaticToken],
        tokens: TokenKeys,
        tasks: &Tasks,
    ) -> Result<Self, AuthenticationError> {
        let certificates = Certificates::new(
            cluster_ca,
            options.client_ca.clone(),
            options.request_header.clone(),
        )?;
        let mut configured = match &options.config_file {
            Some(path) => read_config(path, tasks)?,
            None => Configuration::default(),
        };
        if let Some(flags) = &options.oidc {
            configured.jwt.push(flags.authenticator(tasks.clone())?);
        }
        let webhook = options.token_webhook.as_ref();
        let webhook = webhook
            .map(|config| webhook::WebhookTokens::new(config, tasks.clone()))
            .transpose()?;
        Ok(Self {
            certificates: ArcSwap::from_pointee(certificates),
            cluster_ca: cluster_ca.map(str::to_owned),
            client_ca_file: options.client_ca_file.clone(),
            static_tokens: StaticTokens::new(static_tokens),
            tokens,
            bootstrap_tokens: options.bootstrap_tokens,
            configured: ArcSwap::from_pointee(configured),
            webhook,
            anonymous: options.anonymous.clone(),
            config_file: options.config_file.clone(),
            tasks: tasks.clone(),
        })
    }

    /// The file that [`Authenticator::reload`] reads.
    pub fn config_file(&self) -> Option<&Path> {
        self.config_file.as_deref()
    }

    /// Reads the configuration file again; what was configured stays if it cannot be used.
    pub fn reload(&self) {
        let Some(path) = &self.config_file else {
            return;
        };
        match read_config(path, &self.tasks) {
            Ok(configured) => {
                tracing::info!(path = %path.display(), "authentication configuration read again");
                self.configured.store(Arc::new(configured));
            }
            Err(error) => tracing::error!(%error, "authentication configuration is kept as it was"),
        }
    }

    /// The files that [`Authenticator::reload_authorities`] reads.
    pub fn authority_files(&self) -> [Option<PathBuf>; 2] {
        let certificates = self.certificates.load();
        let proxies = certificates.proxies.as_ref();
        let proxies = proxies.and_then(|proxies| proxies.config().client_ca_file.clone());
        [self.client_ca_file.clone(), proxies]
    }

    /// Reads the authorities of client certificates and of proxies again; a file that cannot be
    /// used changes nothing.
    pub fn reload_authorities(&self) {
        let held = self.certificates.load();
        let read = |path: &Option<PathBuf>| path.as_ref().map(std::fs::read_to_string).transpose();
        let read = read(&self.client_ca_file)
            .and_then(|client_ca| {
                let mut proxies = held.proxies.as_ref().map(|p| p.config().clone());
                if let Some(config) = &mut proxies
                    && let Some(text) = read(&config.client_ca_file)?
                {
                    config.client_ca = text;
                }
                Ok((client_ca.or_else(|| held.client_ca.clone()), proxies))
            })
            .map_err(|error| error.to_string());
        let made = read.and_then(|(client_ca, proxies)| {
            Certificates::new(self.cluster_ca.as_deref(), client_ca, proxies)
                .map_err(|error| error.to_string())
        });
        match made {
            Ok(certificates) => {
                tracing::info!("authorities of client certificates read again");
                self.certificates.store(Arc::new(certificates));
            }
            Err(error) => {
                tracing::error!(
                    error,
                    "authorities of client certificates are kept as they were"
                );
            }
        }
    }

    /// The authorities of client certificates, PEM.
    pub fn client_authorities(&self) -> String {
        let certificates = self.certificates.load();
        let all = self.cluster_ca.iter().chain(&certificates.client_ca);
        all.map(|pem| pem.trim_end()).collect::<Vec<_>>().join("\n") + "\n"
    }

    /// How authenticating proxies are told from others, if there are any.
    pub fn request_header(&self) -> Option<RequestHeader> {
        let certificates = self.certificates.load();
        certificates.proxies.as_ref().map(|p| p.config().clone())
    }

    /// The keys of service account tokens.
    pub fn token_keys(&self) -> &TokenKeys {
        &self.tokens
    }

    /// Whom a connection's certificates stand for now.
    fn judge(&self, connection: &ConnectionIdentity) -> Arc<Judged> {
        let by = self.certificates.load_full();
        let now = jiff::Timestamp::now().as_second();
        let known = connection.judged.load_full();
        if let Some(known) = known
            && Arc::ptr_eq(&known.by, &by)
            && known.holds.contains(&now)
        {
            return known;
        }
        let chain = connection.chain.as_slice();
        let shown = !chain.is_empty();
        let proxies = by.proxies.as_ref().filter(|_| shown);
        let is_proxy = proxies.is_some_and(|proxies| proxies.is_proxy(chain));
        let clients = by.clients.as_ref().filter(|_| shown);
        let judged = Arc::new(Judged {
            certificate: clients.map(|clients| clients.identify(chain)),
            ends: end(chain),
            is_proxy,
            holds: now..next_change(chain, now),
            by,
        });
        connection.judged.store(Some(Arc::clone(&judged)));
        judged
    }

    /// Who makes the request. `Ok(anonymous)` when it carries no credential at all.
    pub async fn request(
        &self,
        server: &dyn TokenView,
        headers: &HeaderMap,
        connection: &ConnectionIdentity,
        path: &str,
        warnings: &Warnings,
    ) -> Result<UserInfo, Refused> {
        let judged = self.judge(connection);
        if judged.is_proxy {
            let proxies = judged.by.proxies.as_ref();
            if let Some(user) = proxies.and_then(|proxies| proxies.user(headers)) {
                return Ok(user);
            }
        }
        match &judged.certificate {
            Some(Ok(user)) => {
                let left = judged.ends.unwrap_or_default() - jiff::Timestamp::now().as_second();
                server.access_metrics().shown_certificate(left);
                return Ok(user.clone());
            }
            Some(Err(reason)) => {
                tracing::debug!(peer = ?connection.peer, reason, "client certificate refused");
            }
            None => {}
        }
        if let Some(token) = bearer_token(headers) {
            let audiences = self.tokens.audiences();
            return match self.token(server, &token, audiences).await {
                Ok(found) => {
                    found.note.tell(warnings);
                    Ok(found.user)
                }
                Err(reason) => {
                    tracing::debug!(peer = ?connection.peer, reason, "bearer token refused");
                    Err(Refused)
                }
            };
        }
        if matches!(judged.certificate, Some(Err(_))) && !judged.is_proxy {
            return Err(Refused);
        }
        let configured = self.configured.load();
        let anonymous = configured.anonymous.as_ref().unwrap_or(&self.anonymous);
        let served = anonymous.paths.is_empty() || anonymous.paths.iter().any(|p| p == path);
        if anonymous.enabled && served {
            return Ok(UserInfo::anonymous());
        }
        Err(Refused)
    }

    /// Who a bearer token stands for, and for which of `audiences` it is good: nobody, if for none of them.
    pub async fn token(
        &self,
        server: &dyn TokenView,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, String> {
        if token.contains(char::is_control) {
            return Err("a token holds no control characters".to_owned());
        }
        let found = self.find(server, token, audiences).await?;
        found.good_for(audiences)
    }

    async fn find(
        &self,
        server: &dyn TokenView,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, String> {
        // tokens that say nothing of audiences are good for this server
        let here = |user| {
            let audiences = self.tokens.audiences().iter();
            AuthenticatedToken {
                user,
                audiences: audiences.cloned().collect(),
                note: Note::default(),
            }
        };
        if let Some(user) = self.static_tokens.find(token) {
            return Ok(here(user));
        }
        let mut faults = Vec::new();
        if self.tokens.claims_issuer(token) {
            let found = service_accounts::authenticate(server, &self.tokens, token, audiences);
            match found.await {
                Ok(found) => return Ok(found),
                Err(fault) => faults.push(fault),
            }
        }
        if TokenKeys::claims_secret(token) {
            match legacy_tokens::authenticate(server, &self.tokens, token).await {
                Ok(found) => return Ok(found),
                Err(fault) => faults.push(fault),
            }
        }
        if self.bootstrap_tokens
            && let Ok(token) = token.parse::<BootstrapToken>()
        {
            match bootstrap_tokens::authenticate(server, &token).await {
                Ok(user) => return Ok(here(user)),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(issuer) = oidc::unverified_issuer(token) {
            let configured = self.configured.load_full();
            let own = configured.jwt.iter().find(|jwt| jwt.issuer() == issuer);
            if let Some(jwt) = own {
                match jwt.authenticate(token, self.tokens.audiences()).await {
                    Ok(found) => return Ok(found),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        if let Some(webhook) = &self.webhook {
            match webhook.authenticate(token, audiences).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            faults.push("invalid bearer token".to_owned());
        }
        Err(faults.join(", "))
    }

    /// Removes what proves the caller's identity, so that it is never passed on.
    pub fn strip(&self, headers: &mut HeaderMap) {
        strip_credentials(headers);
        if let Some(proxies) = &self.certificates.load().proxies {
            proxies.strip(headers);
        }
    }
}

fn read_config(path: &Path, tasks: &Tasks) -> Result<Configuration, AuthenticationConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| AuthenticationConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    oidc::config::parse(&text, tasks)
}

const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The token of `Authorization: Bearer`, or of the WebSocket subprotocol browsers use.
fn bearer_token(headers: &HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let value = value.to_str().unwrap_or_default().trim();
        let (scheme, token) = value.split_once(' ')?;
        let token = token.trim_start();
        return (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
            .then(|| token.to_owned());
    }
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| protocol.trim().strip_prefix(WEBSOCKET_BEARER))
        .and_then(|encoded| {
            use base64::Engine as _;
            let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
                .decode(encoded.trim_end_matches('='))
                .ok()?;
            String::from_utf8(bytes).ok()
        })
}

/// Removes what proves the caller's identity, so that it is never passed on.
fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    let kept: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|protocol| protocol.trim().to_owned())
        .filter(|protocol| !protocol.starts_with(WEBSOCKET_BEARER))
        .collect();
    if headers.remove(SEC_WEBSOCKET_PROTOCOL).is_some()
        && !kept.is_empty()
        && let Ok(value) = kept.join(", ").parse()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}
