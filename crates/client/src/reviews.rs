//! Delegated authentication and authorization: the API server is asked whose a token is and what its owner may do, as the
//! servers of Kubernetes' components do
//! (<https://kubernetes.io/docs/reference/access-authn-authz/webhook/>). Answers are kept for a while.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Answers kept at most; beyond it all are dropped.
const MAX_CACHED: usize = 1024;
/// Who may do everything, whether the API server answers or not.
const MASTERS: &str = "system:masters";

/// An authenticated caller. What is left empty is not known of him.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reviewed {
    /// The user.
    pub name: String,
    /// The user's UID.
    pub uid: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// What else is known of the user. It may say that he may less than others of his name.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What somebody wants to do.
#[derive(Debug, Clone)]
pub enum AccessAttributes {
    /// A verb on a resource.
    Resource(Box<ResourceAttributes>),
    /// A verb (`get`) on a path that is no resource.
    Path {
        /// The verb.
        verb: String,
        /// The path.
        path: String,
    },
}

impl Reviewed {
    /// Whether the caller is of `system:masters`, who may do everything whether the API server answers or not.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|g| g == MASTERS)
    }
}

/// Answers with their ends.
struct Kept<T>(Mutex<HashMap<String, (T, Instant)>>);

impl<T: Clone> Kept<T> {
    fn get(&self, key: &str) -> Option<T> {
        let entries = self.0.lock();
        let entry = entries
            .get(key)
            .filter(|(_, until)| *until > Instant::now());
        entry.map(|(value, _)| value.clone())
    }

    fn put(&self, key: String, value: T, ttl: Duration) {
        let mut entries = self.0.lock();
        if entries.len() >= MAX_CACHED {
            entries.clear();
        }
        entries.insert(key, (value, Instant::now() + ttl));
    }
}

/// Asks an API server about callers.
pub struct Reviews {
    /// Whom to ask whose a token is.
    authentication: kube::Client,
    /// Whom to ask what may be done.
    authorization: kube::Client,
    token_for: Duration,
    allowed_for: Duration,
    denied_for: Duration,
    tokens: Kept<Option<Reviewed>>,
    decisions: Kept<bool>,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reviews")
    }
}

impl Reviews {
    /// Asks these API servers, and keeps answers about tokens, a yes and a no for so long.
    pub fn new(
        authentication: kube::Client,
        authorization: kube::Client,
        [token_for, allowed_for, denied_for]: [Duration; 3],
    ) -> Self {
        Self {
            authentication,
            authorization,
            token_for,
            allowed_for,
            denied_for,
            tokens: Kept(Mutex::default()),
            decisions: Kept(Mutex::default()),
        }
    }

    /// Whose a bearer token is; `None`: nobody's, or there is no answer.
    pub async fn token(&self, token: &str) -> Option<Reviewed> {
        // Not the token itself: a cache must not be a store of secrets.
        let digest = Sha256::digest(token.as_bytes());
        let key = digest
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
        let api: Api<TokenReview> = Api::all(self.authentication.clone());
        let params = PostParams::default();
        let asked = tokio::time::timeout(DEADLINE, api.create(&params, &review)).await;
        let status = asked.ok()?.ok()?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true));
        let reviewed = user.map(|u| Reviewed {
            name: u.username.unwrap_or_default(),
            uid: u.uid.unwrap_or_default(),
            groups: u.groups.unwrap_or_default(),
            extra: u.extra.unwrap_or_default(),
        });
        self.tokens.put(key, reviewed.clone(), self.token_for);
        reviewed
    }

    /// Whether a caller may do something. Without an answer only `system:masters` may.
    pub async fn allows(&self, caller: &Reviewed, what: AccessAttributes) -> bool {
        if caller.is_master() {
            return true;
        }
        // Written so that nothing in a name reads as the end of it.
        let key = format!("{caller:?} {what:?}");
        if let Some(known) = self.decisions.get(&key) {
            return known;
        }
        let (resource, path) = match what {
            AccessAttributes::Resource(resource) => (Some(*resource), None),
            AccessAttributes::Path { verb, path } => (
                None,
                Some(NonResourceAttributes {
                    path: Some(path),
                    verb: Some(verb),
                }),
            ),
        };
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(caller.name.clone()),
                uid: Some(caller.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(caller.groups.clone()),
                extra: Some(caller.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: resource,
                non_resource_attributes: path,
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.authorization.clone());
        let params = PostParams::default();
        let asked = tokio::time::timeout(DEADLINE, api.create(&params, &review)).await;
        let Ok(Ok(answer)) = asked else {
            return false;
        };
        let status = answer.status;
        let allowed = status.is_some_and(|s| s.allowed && s.denied != Some(true));
        let ttl = if allowed {
            self.allowed_for
        } else {
            self.denied_for
        };
        self.decisions.put(key, allowed, ttl);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use tower::BoxError;

    /// An API server that knows one token, and allows a user's requests where his scope is `all`.
    fn server() -> (Reviews, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let to = asked.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let to = to.clone();
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let mut review: Value = serde_json::from_slice(&body)?;
                review["status"] = if review["kind"] == "TokenReview" {
                    json!({"authenticated": true, "user": {
                        "username": "u", "uid": "1", "groups": ["g"], "extra": {"scopes": ["few"]}}})
                } else {
                    json!({"allowed": review["spec"]["extra"]["scopes"] == json!(["all"])})
                };
                to.lock().push(review.clone());
                let answer = Full::new(Bytes::from(review.to_string()));
                Ok::<_, BoxError>(Response::new(answer))
            }
        });
        let client = crate::in_process(service, "default");
        let kept = [Duration::from_secs(60); 3];
        (Reviews::new(client.clone(), client, kept), asked)
    }

    fn path() -> AccessAttributes {
        AccessAttributes::Path {
            verb: "get".to_owned(),
            path: "/metrics".to_owned(),
        }
    }

    /// A token that may less than its owner is told by what an authenticator says beside the name.
    #[tokio::test]
    async fn all_that_is_known_of_a_caller_is_told() {
        let (reviews, asked) = server();
        let caller = reviews.token("t").await.unwrap();
        assert!(!reviews.allows(&caller, path()).await);
        let told = asked.lock().last().unwrap()["spec"].clone();
        assert_eq!(told["uid"], "1");
        assert_eq!(told["extra"], json!({"scopes": ["few"]}));
        // The answer about the one is none about the other.
        let mut other = caller.clone();
        other.extra = [("scopes".to_owned(), vec!["all".to_owned()])].into();
        assert!(reviews.allows(&other, path()).await);
        assert!(!reviews.allows(&caller, path()).await);
    }

    /// Names and groups that read alike when they stand behind one another.
    #[tokio::test]
    async fn answers_are_of_one_caller() {
        let (reviews, asked) = server();
        for (name, groups) in [("a", vec!["b"]), ("a\0b", vec![]), ("a", vec!["b", ""])] {
            let caller = Reviewed {
                name: name.to_owned(),
                groups: groups.into_iter().map(str::to_owned).collect(),
                ..Reviewed::default()
            };
            assert!(!reviews.allows(&caller, path()).await);
        }
        assert_eq!(asked.lock().len(), 3);
    }
}
