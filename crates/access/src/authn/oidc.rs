//! Tokens of OpenID Connect issuers: the `jwt` authenticators of `AuthenticationConfiguration`.
//!
//! Keys are fetched when a token needs one that is not known. Specified in
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens>.

pub(super) mod config;
mod distributed;
mod mapping;
mod verifier;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use davit_webhook::Tasks;
use serde_json::Value;

use super::service_accounts::AuthenticatedToken;
use config::Issuer;
use distributed::Resolver;
use mapping::{Mapping, Source};
use verifier::Verifier;

/// One issuer's tokens.
pub(super) struct JwtAuthenticator {
    verifier: Verifier,
    mapping: Mapping,
    /// Looks up the groups where a token does not have them.
    groups: Option<Resolver>,
}

impl std::fmt::Debug for JwtAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JwtAuthenticator({})", self.issuer())
    }
}

/// The claims of a token, unverified: enough to see whose it is.
pub(super) fn unverified_issuer(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Value = serde_json::from_slice(&bytes).ok()?;
    claims["iss"].as_str().map(str::to_owned)
}

impl JwtAuthenticator {
    fn new(issuer: Issuer, mapping: Mapping, tasks: Tasks) -> Self {
        let groups = match &mapping.groups {
            Some(Source::Claim { claim, .. }) => Some(Resolver::new(claim)),
            _ => None,
        };
        Self {
            verifier: Verifier::new(issuer, tasks),
            mapping,
            groups,
        }
    }

    pub(super) fn issuer(&self) -> &str {
        &self.verifier.issuer().url
    }

    /// Whom the token stands for.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, String> {
        let mut claims = self.verifier.verify(token).await?;
        if let Some(groups) = &self.groups {
            groups.expand(&self.verifier, &mut claims).await?;
        }
        Ok(AuthenticatedToken {
            user: self.mapping.user(&claims)?,
            audiences: audiences.to_vec(),
            note: super::Note::default(),
        })
    }
}
