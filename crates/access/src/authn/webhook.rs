//! Tokens that a server outside reviews (`--authentication-token-webhook-config-file`).
//!
//! Specified in
//! <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#webhook-token-authentication>.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use davit_webhook::{Call, CallError, Client, Kubeconfig, KubeconfigError, Tasks};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::service_accounts::AuthenticatedToken;
use crate::user::{AUTHENTICATED, UserInfo};

const TIMEOUT: Duration = Duration::from_secs(30);
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const CACHED: usize = 4096;

/// Where tokens are reviewed.
#[derive(Debug, Clone)]
pub struct TokenWebhook {
    /// A kubeconfig: the cluster is the server asked, the user is how this server is known to it.
    pub config_file: PathBuf,
    /// How long answers are kept.
    pub cache_ttl: Duration,
    /// `v1` or `v1beta1`.
    pub version: String,
}

/// A kept answer: nobody, or whom the token stands for.
type Known = Option<AuthenticatedToken>;

#[derive(Debug)]
pub(super) struct WebhookTokens {
    client: Client,
    version: String,
    ttl: Duration,
    /// By digest of token and audiences.
    known: Mutex<HashMap<[u8; 32], (Instant, Known)>>,
}

impl WebhookTokens {
    pub(super) fn new(config: &TokenWebhook, tasks: Tasks) -> Result<Self, KubeconfigError> {
        let content = |detail: String| KubeconfigError::Content {
            path: config.config_file.clone(),
            detail,
        };
        if !matches!(config.version.as_str(), "v1" | "v1beta1") {
            let version = &config.version;
            return Err(content(format!("unknown TokenReview version {version:?}")));
        }
        let settings = Kubeconfig::read(&config.config_file)?.settings()?;
        let client = Client::new(settings, tasks).map_err(|error| content(error.to_string()))?;
        Ok(Self {
            client,
            version: config.version.clone(),
            ttl: config.cache_ttl,
            known: Mutex::default(),
        })
    }

    /// Whom the token stands for; none if the server says nobody.
    pub(super) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<AuthenticatedToken>, String> {
        let key = key(token, audiences);
        if let Some((until, known)) = self.known.lock().get(&key)
            && *until > Instant::now()
        {
            return Ok(known.clone());
        }
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version),
            "kind": "TokenReview",
            "metadata": {},
            "spec": { "token": token, "audiences": audiences },
        });
        let answer = self.ask(&review).await.map_err(|e| e.to_string())?;
        let known = read(&answer, audiences)?;
        if !self.ttl.is_zero() {
            let mut held = self.known.lock();
            if held.len() >= CACHED {
                let now = Instant::now();
                held.retain(|_, (until, _)| *until > now);
                if held.len() >= CACHED {
                    held.clear();
                }
            }
            held.insert(key, (Instant::now() + self.ttl, known.clone()));
        }
        Ok(known)
    }

    /// Tries again while the server cannot be reached or fails.
    async fn ask(&self, review: &Value) -> Result<Value, CallError> {
        let body = bytes::Bytes::from(review.to_string());
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.client.json(Call::post(body.clone(), TIMEOUT)).await {
                Err(error) if is_passing(&error) => {
                    tracing::debug!(%error, "token review, trying again");
                }
                result => return result,
            }
            tokio::time::sleep(pause.mul_f64(1.0 + 0.2 * rand::random::<f64>())).await;
            pause = pause.mul_f64(1.5);
        }
        self.client.json(Call::post(body, TIMEOUT)).await
    }
}

/// Whether a failure may be over at the next try.
pub(crate) fn is_passing(error: &CallError) -> bool {
    match error.code() {
        Some(code) => code == 429 || code >= 500,
        None => matches!(error, CallError::Transport { .. }),
    }
}

fn key(token: &str, audiences: &[String]) -> [u8; 32] {
    let mut digest = Sha256::new();
    let texts = [token]
        .into_iter()
        .chain(audiences.iter().map(String::as_str));
    for text in texts {
        // with its length, so that no two lists of texts are one
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text.as_bytes());
    }
    digest.finalize().into()
}

/// The answer of the server.
fn read(answer: &Value, audiences: &[String]) -> Result<Known, String> {
    let status = &answer["status"];
    if status["authenticated"] != true {
        return match status["error"].as_str().filter(|error| !error.is_empty()) {
            Some(error) => Err(error.to_owned()),
            None => Ok(None),
        };
    }
    let named: Vec<String> = texts(&status["audiences"]);
    let good_for: Vec<String> = if named.is_empty() {
        // a server that knows no audiences speaks for this one
        audiences.to_vec()
    } else {
        audiences
            .iter()
            .filter(|audience| named.contains(audience))
            .cloned()
            .collect()
    };
    if good_for.is_empty() && !audiences.is_empty() {
        return Ok(None);
    }
    let user = &status["user"];
    let text = |key: &str| user[key].as_str().unwrap_or_default().to_owned();
    let extra = user["extra"].as_object().into_iter().flatten();
    let mut user = UserInfo {
        name: text("username"),
        uid: text("uid"),
        groups: texts(&user["groups"]),
        extra: extra
            .map(|(key, values)| (key.clone(), texts(values)))
            .collect(),
    };
    user.add_group(AUTHENTICATED);
    Ok(Some(AuthenticatedToken {
        user,
        audiences: good_for,
        note: super::Note::default(),
    }))
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_one_token_is_of_no_other() {
        let audiences = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
        let one = key("token", &audiences(&["a", "b"]));
        assert_ne!(one, key("token\0a", &audiences(&["b"])));
        assert_ne!(one, key("token", &audiences(&["ab"])));
        assert_ne!(one, key("token", &audiences(&["a\0b"])));
        assert_eq!(one, key("token", &audiences(&["a", "b"])));
    }
}
