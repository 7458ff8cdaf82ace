//! Verifying the tokens of one issuer by its published keys.

use std::time::{Duration, Instant};

use davit_webhook::tls::Trust;
use davit_webhook::{Answer, Call, CallError, Client, Credentials, Dial, Settings, Tasks, parse};
use http::Uri;
use http::header::{AUTHORIZATION, HeaderValue};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::Mutex;

use super::config::Issuer;

const FETCH: Duration = Duration::from_secs(10);
/// A token with a key nobody knows makes the keys be fetched, but not more often than this.
const REFETCH: Duration = Duration::from_secs(1);
/// Clock difference forgiven for `nbf` and `exp`, seconds.
const LEEWAY: u64 = 10;
/// Bytes of a document or token.
const LIMIT: usize = 1024 * 1024;
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

/// What the keys that are known are good for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// If there are any, they are tried.
    Suffices,
    /// The token was not signed with any of them.
    HasFailed,
}

/// Why a token is not believed.
struct TokenFault {
    text: String,
    /// With another key it might be.
    is_the_key: bool,
}

/// The claims of a token that is signed with one of the keys.
fn decode(token: &str, keys: &[Jwk], validation: &Validation) -> Result<Value, TokenFault> {
    let mut last = TokenFault {
        text: "oidc: no key of the issuer fits the token".to_owned(),
        is_the_key: true,
    };
    for jwk in keys {
        let Ok(key) = DecodingKey::from_jwk(jwk) else {
            continue;
        };
        match jsonwebtoken::decode::<Value>(token, &key, validation) {
            Ok(data) => return Ok(data.claims),
            Err(error) => {
                last = TokenFault {
                    text: format!("oidc: verify token: {error}"),
                    is_the_key: matches!(error.kind(), ErrorKind::InvalidSignature),
                }
            }
        }
    }
    Err(last)
}

/// One issuer, and the keys that are known of it.
pub(super) struct Verifier {
    issuer: Issuer,
    tasks: Tasks,
    /// What is known; nobody waits for it.
    keys: RwLock<Vec<Jwk>>,
    source: Mutex<KeySource>,
}

/// Where keys are fetched, by one at a time.
#[derive(Default)]
struct KeySource {
    jwks_uri: Option<String>,
    fetched: Option<Instant>,
}

impl Verifier {
    pub(super) fn new(issuer: Issuer, tasks: Tasks) -> Self {
        Self {
            issuer,
            tasks,
            keys: RwLock::default(),
            source: Mutex::default(),
        }
    }

    pub(super) fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// A verifier of another issuer, which is reached and believed as this one.
    pub(super) fn for_other(&self, url: &str) -> Self {
        let issuer = Issuer {
            url: url.to_owned(),
            discovery_url: None,
            ..self.issuer.clone()
        };
        Self::new(issuer, self.tasks.clone())
    }

    /// The claims of a token that the issuer has signed for one of the audiences, and that is valid now.
    pub(super) async fn verify(&self, token: &str) -> Result<Value, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| error.to_string())?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(format!(
                "oidc: signing algorithm {:?} is not allowed",
                header.alg
            ));
        }
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.validate_aud = true;
        validation.aud = Some(self.issuer.audiences.iter().cloned().collect());
        validation.set_issuer(&[&self.issuer.url]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let id = header.kid.as_deref();
        let known = self.keys_for(id, Known::Suffices).await?;
        match decode(token, &known, &validation) {
            // The issuer may have another key of this name now, or none of these any more.
            Err(fault) if fault.is_the_key => {
                let fresh = self.keys_for(id, Known::HasFailed).await?;
                decode(token, &fresh, &validation)
            }
            other => other,
        }
        .map_err(|fault| fault.text)
    }

    /// The keys a token may be signed with: the one it names, or all if it names none. Tokens with a key that is known
    /// do not wait for those without, whoever sends them and however slow the issuer is.
    async fn keys_for(&self, id: Option<&str>, held: Known) -> Result<Vec<Jwk>, String> {
        let chosen = || -> Vec<Jwk> {
            let fits = |jwk: &&Jwk| id.is_none() || jwk.common.key_id.as_deref() == id;
            self.keys.read().iter().filter(fits).cloned().collect()
        };
        let suffice = |known: &[Jwk]| !known.is_empty() && held == Known::Suffices;
        let known = chosen();
        if suffice(&known) {
            return Ok(known);
        }
        let mut source = self.source.lock().await;
        let known = chosen();
        let recent = source.fetched.is_some_and(|at| at.elapsed() < REFETCH);
        if suffice(&known) || recent {
            return Ok(known);
        }
        let fetched = self.fetch(&mut source).await;
        // those who have waited meanwhile do not each wait as long again
        source.fetched = Some(Instant::now());
        drop(source);
        fetched?;
        Ok(chosen())
    }

    async fn fetch(&self, source: &mut KeySource) -> Result<(), String> {
        let uri = match &source.jwks_uri {
            Some(uri) => uri.clone(),
            None => {
                let uri = self.discover().await?;
                source.jwks_uri = Some(uri.clone());
                uri
            }
        };
        let document = self.get_json(&uri).await?;
        // keys of kinds nobody here knows must not spoil the others
        let all = document["keys"].as_array().cloned().unwrap_or_default();
        let set = all
            .into_iter()
            .filter_map(|key| serde_json::from_value(key).ok())
            .collect();
        *self.keys.write() = set;
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
        let document = self.get_json(&url).await?;
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

    async fn get_json(&self, url: &str) -> Result<Value, String> {
        let answer = self.get(url, "").await;
        let parsed = answer.and_then(|answer| parse(&answer));
        parsed.map_err(|error| format!("oidc: {url}: {error}"))
    }

    /// The text at a URL, which is asked for with a bearer token unless that is empty.
    pub(super) async fn get_text(&self, url: &str, bearer: &str) -> Result<String, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{url}: {error}");
        let answer = self.get(url, bearer).await.map_err(|error| wrong(&error))?;
        if !answer.status.is_success() {
            return Err(wrong(&answer.status));
        }
        let text = String::from_utf8(answer.body.to_vec());
        text.map_err(|_| wrong(&"the answer is no text"))
    }

    async fn get(&self, url: &str, bearer: &str) -> Result<Answer, CallError> {
        let wrong = |error: &dyn std::fmt::Display| CallError::Config(error.to_string());
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
        let client = Client::new(settings, self.tasks.clone())?;
        let mut call = Call::get(&path, FETCH);
        call.limit = LIMIT;
        if !bearer.is_empty() {
            let value = HeaderValue::from_str(&format!("Bearer {bearer}"));
            let mut value = value.map_err(|error| wrong(&error))?;
            value.set_sensitive(true);
            call.headers.insert(AUTHORIZATION, value);
        }
        client.send(call).await
    }
}
