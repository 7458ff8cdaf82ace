//! Who calls the node server, and what they may do.

use davit_client::subject::Subject;
use http::{HeaderMap, Method, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(10);
const MAX_CACHED: usize = 1024;
const MASTERS: &str = "system:masters";

/// Whose word is taken (KubeletConfiguration `authentication` and `authorization`,
/// <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/>). The defaults are the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessOptions {
    /// Who shows nothing is `system:anonymous`.
    pub anonymous: bool,
    /// The API server is asked whose a bearer token is; else none is taken.
    pub tokens: bool,
    /// How long its answer is kept.
    pub token_for: Duration,
    /// Who decides.
    pub authorize: Authorize,
    /// How long a yes is kept.
    pub allowed_for: Duration,
    /// How long a no is kept.
    pub denied_for: Duration,
}

/// Who decides what callers may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorize {
    /// The API server, by SubjectAccessReview.
    Webhook,
    /// Nobody: whoever is known may do everything.
    AlwaysAllow,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self {
            anonymous: false,
            tokens: true,
            token_for: Duration::from_secs(2 * 60),
            authorize: Authorize::Webhook,
            allowed_for: Duration::from_secs(5 * 60),
            denied_for: Duration::from_secs(30),
        }
    }
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) name: String,
    groups: Vec<String>,
}

impl Caller {
    fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
        }
    }

    /// Whether the caller has shown nothing.
    pub(super) fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let token = value
        .strip_prefix("Bearer ")
        .or_else(|| value.strip_prefix("bearer "))?;
    Some(token.trim())
}

/// Whom a client's certificates (its own first) stand for now: they may have ended since the connection was made.
pub(super) fn by_certificate(
    clients: &dyn ClientCertVerifier,
    chain: &[CertificateDer<'_>],
) -> Option<Caller> {
    let (own, intermediates) = chain.split_first()?;
    let now = UnixTime::now();
    if let Err(error) = clients.verify_client_cert(own, intermediates, now) {
        tracing::debug!(%error, "client certificate refused");
        return None;
    }
    let subject = Subject::of_certificate(own).ok()?;
    let mut groups = subject.organizations;
    groups.push("system:authenticated".to_owned());
    let name = subject.common_name;
    Some(Caller { name, groups })
}

/// Answers of a review with their end.
struct Cache<T> {
    entries: Mutex<HashMap<String, (T, Instant)>>,
}

impl<T: Clone> Cache<T> {
    fn new() -> Self {
        Self {
            entries: Mutex::default(),
        }
    }

    fn get(&self, key: &str) -> Option<T> {
        let entries = self.entries.lock();
        entries
            .get(key)
            .filter(|(_, until)| *until > Instant::now())
            .map(|(value, _)| value.clone())
    }

    fn put(&self, key: String, value: T, ttl: Duration) {
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_CACHED {
            entries.clear();
        }
        entries.insert(key, (value, Instant::now() + ttl));
    }
}

/// Asks the API server about callers.
pub(super) struct Access {
    client: kube::Client,
    node: String,
    options: AccessOptions,
    tokens: Cache<Option<Caller>>,
    decisions: Cache<bool>,
}

fn first_segment(path: &str) -> &str {
    let path = path.trim_start_matches('/');
    path.split('/').next().unwrap_or_default()
}

/// The subresource of nodes that a path belongs to.
pub(super) fn subresource(path: &str) -> &'static str {
    match first_segment(path) {
        "stats" => "stats",
        "metrics" => "metrics",
        "logs" => "log",
        _ => "proxy",
    }
}

/// The paths by which something is executed or reached in a container, whatever the method: WebSockets begin with GET.
const EXECUTING: [&str; 4] = ["exec", "attach", "run", "portForward"];

/// The API verb of a request.
pub(super) fn verb(method: &Method, path: &str) -> &'static str {
    if EXECUTING.contains(&first_segment(path)) {
        return "create";
    }
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

impl Access {
    pub(super) fn new(client: kube::Client, node: String, options: AccessOptions) -> Self {
        Self {
            client,
            node,
            options,
            tokens: Cache::new(),
            decisions: Cache::new(),
        }
    }

    /// Who calls without a certificate that counts: whoever the bearer token stands for. A wrong one makes nobody anonymous.
    pub(super) async fn without_certificate(&self, headers: &HeaderMap) -> Option<Caller> {
        match bearer(headers).filter(|_| self.options.tokens) {
            Some(token) => self.by_token(token).await,
            None => self.options.anonymous.then(Caller::anonymous),
        }
    }

    async fn by_token(&self, token: &str) -> Option<Caller> {
        // Not the token itself: a cache must not be a store of secrets.
        let key = Sha256::digest(token.as_bytes())
            .iter()
            .fold(String::new(), |t, b| t + &format!("{b:02x}"));
        if let Some(known) = self.tokens.get(&key) {
            return known;
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let answer = tokio::time::timeout(DEADLINE, api.create(&params, &review))
            .await
            .ok()?
            .ok()?;
        let status = answer.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let caller = user.map(|u| Caller {
            name: u.username.unwrap_or_default(),
            groups: u.groups.unwrap_or_default(),
        });
        self.tokens.put(key, caller.clone(), self.options.token_for);
        caller
    }

    /// Whether the caller may do this. Without an answer from the API server only `system:masters` may.
    pub(super) async fn allows(&self, caller: &Caller, method: &Method, path: &str) -> bool {
        if self.options.authorize == Authorize::AlwaysAllow
            || caller.groups.iter().any(|g| g == MASTERS)
        {
            return true;
        }
        let (verb, subresource) = (verb(method, path), subresource(path));
        let key = format!(
            "{}\0{}\0{verb}\0{subresource}",
            caller.name,
            caller.groups.join("\0")
        );
        if let Some(known) = self.decisions.get(&key) {
            return known;
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(caller.name.clone()),
                groups: Some(caller.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node.clone()),
                    version: Some("v1".to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let Ok(Ok(answer)) = tokio::time::timeout(DEADLINE, api.create(&params, &review)).await
        else {
            return false;
        };
        let allowed = answer
            .status
            .is_some_and(|s| s.allowed && s.denied != Some(true));
        let (yes, no) = (self.options.allowed_for, self.options.denied_for);
        self.decisions
            .put(key, allowed, if allowed { yes } else { no });
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executing_is_creating_whatever_the_method() {
        for path in [
            "/exec/ns/p/c",
            "//exec/ns/p/c",
            "/attach/a",
            "/run/a",
            "/portForward/a/b",
        ] {
            assert_eq!(verb(&Method::GET, path), "create", "{path}");
            assert_eq!(subresource(path), "proxy", "{path}");
        }
        assert_eq!(verb(&Method::GET, "/pods"), "get");
        assert_eq!(verb(&Method::GET, "/containerLogs/ns/exec/c"), "get");
        assert_eq!(subresource("/metrics/resource"), "metrics");
    }
}
