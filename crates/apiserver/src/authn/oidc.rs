//! Tokens of OpenID Connect issuers: the `jwt` authenticators of `AuthenticationConfiguration`.
//!
//! Keys are fetched when a token needs one that is not known. Specified in
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens>.

pub(super) mod config;
mod mapping;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Uri;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::Value;
use tokio::sync::Mutex;

use super::service_accounts::AuthenticatedToken;
use crate::tls::Trust;
use crate::webhook::{Call, Client, Credentials, Dial, Settings, Tasks};
use config::Issuer;
use mapping::Mapping;

const FETCH: Duration = Duration::from_secs(10);
/// A token with a key nobody knows makes the keys be fetched, but not more often than this.
const REFETCH: Duration = Duration::from_secs(1);
/// Clock difference forgiven for `nbf` and `exp`, seconds.
const LEEWAY: u64 = 10;
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// One issuer's tokens.
pub(super) struct JwtAuthenticator {
    issuer: Issuer,
    mapping: Mapping,
    tasks: Tasks,
    keys: Mutex<Keys>,
}

impl std::fmt::Debug for JwtAuthenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JwtAuthenticator({})", self.issuer.url)
    }
}

#[derive(Default)]
struct Keys {
    set: Vec<Jwk>,
    jwks_uri: Option<String>,
    fetched: Option<Instant>,
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
        Self {
            issuer,
            mapping,
            tasks,
            keys: Mutex::default(),
        }
    }

    pub(super) fn issuer(&self) -> &str {
        &self.issuer.url
    }

    /// Whom the token stands for.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<AuthenticatedToken, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| error.to_string())?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(format!(
                "oidc: signing algorithm {:?} is not allowed",
                header.alg
            ));
        }
        let candidates = self.keys_for(header.kid.as_deref()).await?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.validate_aud = true;
        validation.aud = Some(self.issuer.audiences.iter().cloned().collect());
        validation.set_issuer(&[&self.issuer.url]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let mut last = "oidc: no key of the issuer fits the token".to_owned();
        for jwk in candidates {
            let Ok(key) = DecodingKey::from_jwk(&jwk) else {
                continue;
            };
            match jsonwebtoken::decode::<Value>(token, &key, &validation) {
                Ok(data) => {
                    return Ok(AuthenticatedToken {
                        user: self.mapping.user(&data.claims)?,
                        audiences: audiences.to_vec(),
                        note: super::Note::default(),
                    });
                }
                Err(error) => last = format!("oidc: verify token: {error}"),
            }
        }
        Err(last)
    }

    /// The keys a token may be signed with: the one it names, or all if it names none.
    async fn keys_for(&self, id: Option<&str>) -> Result<Vec<Jwk>, String> {
        let mut keys = self.keys.lock().await;
        let chosen = |keys: &Keys| -> Vec<Jwk> {
            let fits = |jwk: &&Jwk| id.is_none() || jwk.common.key_id.as_deref() == id;
            keys.set.iter().filter(fits).cloned().collect()
        };
        let known = chosen(&keys);
        let recent = keys.fetched.is_some_and(|at| at.elapsed() < REFETCH);
        if !known.is_empty() || recent {
            return Ok(known);
        }
        self.fetch(&mut keys).await?;
        Ok(chosen(&keys))
    }

    async fn fetch(&self, keys: &mut Keys) -> Result<(), String> {
        keys.fetched = Some(Instant::now());
        let uri = match &keys.jwks_uri {
            Some(uri) => uri.clone(),
            None => {
                let uri = self.discover().await?;
                keys.jwks_uri = Some(uri.clone());
                uri
            }
        };
        let document = self.get(&uri).await?;
        // keys of kinds nobody here knows must not spoil the others
        let all = document["keys"].as_array().cloned().unwrap_or_default();
        let set = JwkSet {
            keys: all
                .into_iter()
                .filter_map(|key| serde_json::from_value(key).ok())
                .collect(),
        };
        keys.set = set.keys;
        Ok(())
    }

    /// The address of the keys, from the discovery document.
    async fn discover(&self) -> Result<String, String> {
        let url = match &self.issuer.discovery_url {
            Some(url) => url.clone(),
            None => {
                let issuer = self.issuer.url.trim_end_matches('/');
                format!("{issuer}/.well-known/openid-configuration")
            }
        };
        let document = self.get(&url).await?;
        if document["issuer"] != self.issuer.url.as_str() {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {}",
                self.issuer.url, document["issuer"]
            ));
        }
        document["jwks_uri"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("oidc: the document at {url} names no jwks_uri"))
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("oidc: {url}: {error}");
        let base: Uri = url.parse().map_err(|error| wrong(&error))?;
        let path = base
            .path_and_query()
            .map_or_else(|| "/".to_owned(), ToString::to_string);
        let trust = match &self.issuer.certificate_authority {
            Some(pem) => Trust::Authorities(pem.clone()),
            None => Trust::System,
        };
        let settings = Settings {
            base,
            dial: Dial::Direct,
            trust,
            server_name: None,
            credentials: Credentials::default(),
        };
        let client = Client::new(settings, self.tasks.clone()).map_err(|error| wrong(&error))?;
        let call = Call::get(&path, FETCH);
        client.json(call).await.map_err(|error| wrong(&error))
    }
}
