//! Clients whose requests are those of service accounts
//! (<https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/>).

use crate::Error;
use crate::bearer::{Bearer, Lasting, header_of, with_bearer};
use http::HeaderValue;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use kube::config::AuthInfo;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// What is asked for; a server may give another time.
const LIFE_SECONDS: i64 = 3600;
/// How long one token may take to get.
const LIMIT: Duration = Duration::from_secs(30);

/// Why a service account has no token.
#[derive(Debug, thiserror::Error)]
pub enum AccountTokenError {
    /// The API server refuses it.
    #[error("cannot {what}")]
    Api {
        /// What was attempted, with the account's name.
        what: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
    /// The API server has not answered.
    #[error("no token for service account {account} within {LIMIT:?}")]
    Late {
        /// Namespace and name.
        account: String,
    },
    /// What it has answered is no token.
    #[error("the API server has given service account {account} no token that a request can have")]
    Unusable {
        /// Namespace and name.
        account: String,
    },
}

/// Makes clients of the service accounts of one namespace. The accounts are made where they are missing, and their tokens
/// asked for when they are needed, and again before they end or after one was refused.
#[derive(Clone)]
pub struct ServiceAccounts {
    /// Asks for accounts and tokens.
    issuer: kube::Client,
    /// Reaches the same server, and says of nobody.
    nobody: kube::Client,
    namespace: Arc<str>,
}

impl ServiceAccounts {
    /// Those of `namespace` on the server that `config` reaches, whose credentials may make accounts and tokens there.
    ///
    /// # Errors
    /// [`Error::Client`] when its credentials cannot be used, [`Error::Plugin`] when a program does not say them.
    pub async fn new(config: kube::Config, namespace: &str) -> Result<Self, Error> {
        let mut nobody = config.clone();
        nobody.auth_info = AuthInfo::default();
        Ok(Self {
            issuer: crate::from_config(config).await?,
            nobody: crate::from_config(nobody).await?,
            namespace: namespace.into(),
        })
    }

    /// A client whose requests are those of the account `name`.
    pub fn client(&self, name: &str) -> kube::Client {
        let token = AccountToken {
            issuer: self.issuer.clone(),
            namespace: Arc::clone(&self.namespace),
            name: name.into(),
            last: Arc::new(Mutex::new(Lasting::NOTHING)),
        };
        with_bearer(self.nobody.clone(), token)
    }
}

/// The token of one account.
#[derive(Clone)]
struct AccountToken {
    issuer: kube::Client,
    namespace: Arc<str>,
    name: Arc<str>,
    last: Arc<Mutex<Lasting>>,
}

impl Bearer for AccountToken {
    type Error = AccountTokenError;

    async fn header(&self) -> Result<Option<HeaderValue>, AccountTokenError> {
        let mut last = self.last.lock().await;
        if last.is_over() {
            let asked = tokio::time::timeout(LIMIT, self.ask()).await;
            let account = || self.account();
            *last = asked.map_err(|_| AccountTokenError::Late { account: account() })??;
        }
        Ok(last.header.clone())
    }

    async fn refused(&self, header: HeaderValue) {
        self.last.lock().await.refuse(&header);
    }
}

impl AccountToken {
    fn account(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// A token of the account, which is made if it is missing.
    async fn ask(&self) -> Result<Lasting, AccountTokenError> {
        let failed = |what: &str| {
            let what = format!("{what} service account {}", self.account());
            move |source| AccountTokenError::Api { what, source }
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.issuer.clone(), &self.namespace);
        let params = PostParams::default();
        let request = token_request();
        let given = match accounts
            .create_token_request(&self.name, &params, &request)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let account = ServiceAccount {
                    metadata: ObjectMeta {
                        name: Some(self.name.to_string()),
                        ..ObjectMeta::default()
                    },
                    ..ServiceAccount::default()
                };
                match accounts.create(&params, &account).await {
                    Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                    created => {
                        created.map_err(failed("make"))?;
                    }
                }
                accounts
                    .create_token_request(&self.name, &params, &request)
                    .await
            }
            given => given,
        };
        let given = given.map_err(failed("get a token for"))?;
        let status = given.status.unwrap_or_default();
        let token = status.token.filter(|token| !token.is_empty());
        let header = token.and_then(|token| header_of(&token));
        let (Some(header), Some(end)) = (header, status.expiration_timestamp) else {
            let account = self.account();
            return Err(AccountTokenError::Unusable { account });
        };
        Ok(Lasting {
            header: Some(header),
            renewed_at: Some(renewal(Timestamp::now(), end.0)),
        })
    }
}

fn token_request() -> TokenRequest {
    TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(LIFE_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    }
}

/// When a token is renewed that was given `now` and ends at `end`: after four fifths of its life.
fn renewal(now: Timestamp, end: Timestamp) -> Timestamp {
    let life = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    now.saturating_add(life / 5 * 4).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::AUTHORIZATION;
    use http::{Method, Request, Response};
    use http_body_util::Full;
    use kube::client::Body;
    use parking_lot::Mutex as Lock;
    use serde_json::json;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A server on which the account is missing at first, and what it was asked.
    #[derive(Clone, Default)]
    struct Server {
        asked: Arc<Lock<Vec<String>>>,
        given: Arc<AtomicU64>,
        has_account: Arc<Lock<bool>>,
        refuses: Arc<Lock<Option<String>>>,
        life: Arc<AtomicU64>,
    }

    impl Server {
        fn client(&self) -> kube::Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let answer = server.answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            crate::in_process(service, "default")
        }

        fn answer(&self, request: &Request<Body>) -> Response<Full<bytes::Bytes>> {
            let token = request.headers().get(AUTHORIZATION);
            let token = token.map_or("", |t| t.to_str().unwrap()).to_owned();
            let path = request.uri().path().to_owned();
            self.asked
                .lock()
                .push(format!("{} {path} {token}", request.method()));
            let (code, body) = if path.ends_with("/token") && !*self.has_account.lock() {
                let status = json!({"kind": "Status", "apiVersion": "v1", "code": 404,
                    "status": "Failure", "reason": "NotFound", "message": "gone"});
                (404, status)
            } else if path.ends_with("/token") {
                let number = self.given.fetch_add(1, Ordering::Relaxed);
                let life = Duration::from_secs(self.life.load(Ordering::Relaxed));
                let end = Timestamp::now() + life;
                (
                    201,
                    json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
                    "metadata": {}, "spec": {"audiences": []},
                    "status": {"token": format!("t{number}"), "expirationTimestamp": end.to_string()}}),
                )
            } else if request.method() == Method::POST {
                *self.has_account.lock() = true;
                (
                    201,
                    json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "a"}}),
                )
            } else if self.refuses.lock().as_ref() == Some(&token) {
                let status = json!({"kind": "Status", "apiVersion": "v1", "code": 401,
                    "status": "Failure", "reason": "Unauthorized", "message": "no"});
                (401, status)
            } else {
                (
                    200,
                    json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "a"}}),
                )
            };
            let response = Response::builder().status(code);
            let body = Full::from(body.to_string());
            response
                .header("content-type", "application/json")
                .body(body)
                .unwrap()
        }

        fn accounts(&self) -> ServiceAccounts {
            ServiceAccounts {
                issuer: self.client(),
                nobody: self.client(),
                namespace: "kube-system".into(),
            }
        }
    }

    #[tokio::test]
    async fn accounts_are_made_and_tokens_renewed() {
        let server = Server::default();
        server.life.store(3600, Ordering::Relaxed);
        let client = server.accounts().client("a");
        let api: Api<ServiceAccount> = Api::namespaced(client, "kube-system");
        api.get("a").await.unwrap();
        api.get("a").await.unwrap();
        let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
        let expected = [
            format!("POST {accounts}/a/token "),
            format!("POST {accounts} "),
            format!("POST {accounts}/a/token "),
            format!("GET {accounts}/a Bearer t0"),
            format!("GET {accounts}/a Bearer t0"),
        ];
        assert_eq!(*server.asked.lock(), expected);

        // One that is refused is not shown again.
        *server.refuses.lock() = Some("Bearer t0".to_owned());
        assert!(api.get("a").await.is_err());
        api.get("a").await.unwrap();
        assert_eq!(server.given.load(Ordering::Relaxed), 2);

        // One that is nearly over is renewed before it ends.
        *server.refuses.lock() = Some("Bearer t1".to_owned());
        server.life.store(0, Ordering::Relaxed);
        assert!(api.get("a").await.is_err());
        for _ in 0..3 {
            api.get("a").await.unwrap();
        }
        assert_eq!(server.given.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life() {
        let now = Timestamp::UNIX_EPOCH;
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        assert_eq!(renewal(now, at(3600)), at(2880));
        assert_eq!(renewal(at(10), at(5)), at(10), "one that is over, at once");
    }
}
