//! Authentication: client certificates, static tokens, service account tokens, anonymous.
//!
//! The first authenticator that knows the credential decides. A credential that none accepts is
//! refused; it never degrades to the anonymous user. More authenticators (OIDC, token webhook,
//! front proxy) join [`Authenticator::token`].

mod service_accounts;
mod static_tokens;

use std::net::SocketAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};

pub use static_tokens::{StaticToken, TokenFileError, parse_token_file};

use crate::server::ApiServer;
use crate::tls::ClientCertificates;
use crate::tokens::TokenKeys;
use crate::user::UserInfo;
use static_tokens::StaticTokens;

pub(crate) use service_accounts::AuthenticatedToken;

/// What a connection proved when it was made.
#[derive(Debug)]
pub(crate) struct ConnectionIdentity {
    /// The other end.
    pub(crate) peer: Option<SocketAddr>,
    /// The client certificate's user; why it was refused; none was shown.
    pub(crate) certificate: Option<Result<UserInfo, String>>,
}

/// The credential was refused (401).
#[derive(Debug)]
pub(crate) struct Refused;

/// The configured authenticators.
pub(crate) struct Authenticator {
    certificates: Option<ClientCertificates>,
    static_tokens: StaticTokens,
    tokens: TokenKeys,
}

impl Authenticator {
    pub(crate) fn new(
        certificates: Option<ClientCertificates>,
        static_tokens: &[StaticToken],
        tokens: TokenKeys,
    ) -> Self {
        Self {
            certificates,
            static_tokens: StaticTokens::new(static_tokens),
            tokens,
        }
    }

    /// The keys of service account tokens.
    pub(crate) fn token_keys(&self) -> &TokenKeys {
        &self.tokens
    }

    /// Decides about a connection's certificates once.
    pub(crate) fn connection(
        &self,
        chain: Option<&[rustls_pki_types::CertificateDer<'_>]>,
        peer: SocketAddr,
    ) -> ConnectionIdentity {
        let certificate = match (chain, &self.certificates) {
            (Some(chain), Some(certificates)) if !chain.is_empty() => {
                Some(certificates.identify(chain))
            }
            _ => None,
        };
        ConnectionIdentity {
            peer: Some(peer),
            certificate,
        }
    }

    /// Who makes the request. `Ok(anonymous)` when it carries no credential at all.
    pub(crate) async fn request(
        &self,
        server: &ApiServer,
        headers: &HeaderMap,
        connection: &ConnectionIdentity,
    ) -> Result<UserInfo, Refused> {
        match &connection.certificate {
            Some(Ok(user)) => return Ok(user.clone()),
            Some(Err(reason)) => {
                tracing::debug!(peer = ?connection.peer, reason, "client certificate refused");
            }
            None => {}
        }
        if let Some(token) = bearer_token(headers) {
            let audiences = self.tokens.audiences();
            return match self.token(server, &token, audiences).await {
                Ok(found) => Ok(found.user),
                Err(reason) => {
                    tracing::debug!(peer = ?connection.peer, reason, "bearer token refused");
                    Err(Refused)
                }
            };
        }
        if matches!(connection.certificate, Some(Err(_))) {
            return Err(Refused);
        }
        Ok(UserInfo::anonymous())
    }

    /// Who a bearer token stands for, and for which of `audiences` it is good.
    pub(crate) async fn token(
        &self,
        server: &ApiServer,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, String> {
        if let Some(user) = self.static_tokens.find(token) {
            return Ok(AuthenticatedToken {
                user,
                audiences: self.tokens.audiences().to_vec(),
            });
        }
        if self.tokens.claims_issuer(token) {
            return service_accounts::authenticate(server, &self.tokens, token, audiences).await;
        }
        Err("no authenticator knows the token".to_owned())
    }
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
pub(crate) fn strip_credentials(headers: &mut HeaderMap) {
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
