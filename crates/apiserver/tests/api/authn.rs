//! Bootstrap tokens, OpenID Connect, token and access webhooks, certificate requests.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use davit_access::UserInfo;
use davit_access::authn::{Authentication, TokenWebhook};
use davit_access::authz::{AccessWebhook, Authorization, Mode};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::cluster::*;
use crate::hook::Hook;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

async fn review(c: &Cluster, token: &str) -> Value {
    let review = json!({"spec": {"token": token}});
    c.post(REVIEWS, &review).await.ok(201)["status"].clone()
}

fn kubeconfig(hook: &Hook) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \
         \"https://{}/ask\", certificate-authority-data: {}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n",
        hook.address,
        hook.bundle()
    )
}

#[tokio::test]
async fn item_184_bootstrap_tokens_authenticate_until_their_secret_goes() {
    let c = Cluster::with(|options| options.authentication.bootstrap_tokens = true).await;
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:edge",
        },
    });
    c.post(secrets, &secret).await.ok(201);
    let token = "abcdef.0123456789abcdef";
    let status = review(&c, token).await;
    assert_eq!(status["user"]["username"], "system:bootstrap:abcdef");
    assert_eq!(
        status["user"]["groups"],
        json!([
            "system:bootstrappers",
            "system:bootstrappers:edge",
            "system:authenticated"
        ])
    );
    let url = format!("{secrets}/bootstrap-token-abcdef");
    c.delete(&url, &Value::Null).await.ok(200);
    assert!(review(&c, token).await.get("authenticated").is_none());
}

#[tokio::test]
async fn item_184_tokens_of_a_local_issuer_are_verified_by_its_keys() {
    let key = KeyPair::generate().unwrap();
    let published = Arc::new(Mutex::new(jwk(&key, "k1")));
    let keys = Arc::clone(&published);
    let address: Arc<OnceLock<String>> = Arc::default();
    let known = Arc::clone(&address);
    // one document is both the configuration and the keys
    let issuer = Hook::new(&[], move |_| {
        let url = known.get().cloned().unwrap_or_default();
        let jwk = keys.lock().unwrap().clone();
        json!({ "issuer": url, "jwks_uri": format!("{url}/keys"), "keys": [jwk] })
    })
    .await;
    let url = format!("https://{}", issuer.address);
    address.set(url.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("authentication.yaml");
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": url, "audiences": ["davit"], "certificateAuthority": issuer.pem},
            "claimMappings": {
                "username": {"expression": "claims.email.split('@')[0]"},
                "groups": {"claim": "groups", "prefix": "oidc:"},
            },
            "claimValidationRules": [{"expression": "claims.?email_verified.orValue(true) == true"}],
            "userValidationRules": [{"expression": "user.username != 'root'"}],
        }],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let c = Cluster::with(|options| {
        options.authentication = Authentication {
            config_file: Some(file.clone()),
            ..Authentication::default()
        };
    })
    .await;
    let by = |key: &KeyPair, claims: &Value| {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("k1".to_owned());
        let signing = EncodingKey::from_ec_der(key.serialized_der());
        jsonwebtoken::encode(&header, claims, &signing).unwrap()
    };
    let sign = |claims: &Value| by(&key, claims);
    let now = jiff::Timestamp::now().as_second();
    let claims = |email: &str, audience: &str, expires: i64| {
        json!({
            "iss": url, "aud": audience, "sub": "x", "exp": now + expires, "email": email,
            "groups": ["dev"],
        })
    };
    let status = review(&c, &sign(&claims("ann@example.com", "davit", 600))).await;
    assert_eq!(status["user"]["username"], "ann", "{status}");
    assert_eq!(
        status["user"]["groups"],
        json!(["oidc:dev", "system:authenticated"])
    );
    for refused in [
        claims("ann@example.com", "other", 600),
        claims("ann@example.com", "davit", -600),
        claims("root@example.com", "davit", 600),
    ] {
        let status = review(&c, &sign(&refused)).await;
        assert!(status.get("authenticated").is_none(), "{status}");
    }
    // discovery and keys, once each
    assert_eq!(issuer.calls().len(), 2);

    // Another key of the same name counts from when it is shown, and the one before no more.
    let next = KeyPair::generate().unwrap();
    *published.lock().unwrap() = jwk(&next, "k1");
    let of_ann = claims("ann@example.com", "davit", 600);
    let told = async {
        while review(&c, &by(&next, &of_ann)).await["authenticated"] != true {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    told.expect("the new key is fetched");
    let status = review(&c, &sign(&of_ann)).await;
    assert!(status.get("authenticated").is_none(), "{status}");
}

/// The public half of a key as an issuer shows it.
fn jwk(key: &KeyPair, id: &str) -> Value {
    let point = key.public_key_raw();
    json!({
        "kty": "EC", "crv": "P-256", "kid": id, "alg": "ES256", "use": "sig",
        "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
    })
}

/// An issuer with a key: one document is both its configuration and its keys.
struct Issuing {
    hook: Hook,
    key: KeyPair,
}

impl Issuing {
    async fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let jwk = jwk(&key, "k");
        let address: Arc<OnceLock<String>> = Arc::default();
        let known = Arc::clone(&address);
        let hook = Hook::new(&[], move |_| {
            let url = known.get().cloned().unwrap_or_default();
            json!({ "issuer": url, "jwks_uri": format!("{url}/keys"), "keys": [jwk] })
        })
        .await;
        address.set(format!("https://{}", hook.address)).unwrap();
        Self { hook, key }
    }

    fn url(&self) -> String {
        format!("https://{}", self.hook.address)
    }

    /// A token of this issuer for `davit` with further claims.
    fn token(&self, claims: Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("k".to_owned());
        let signing = EncodingKey::from_ec_der(self.key.serialized_der());
        let expires = jiff::Timestamp::now().as_second() + 600;
        let mut all = json!({ "iss": self.url(), "aud": "davit", "sub": "x", "exp": expires });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        jsonwebtoken::encode(&header, &all, &signing).unwrap()
    }
}

#[tokio::test]
async fn item_184_groups_may_be_elsewhere() {
    let (issuer, other) = (Issuing::new().await, Issuing::new().await);
    let answer: Arc<parking_lot::Mutex<(u16, String)>> = Arc::default();
    let said = Arc::clone(&answer);
    let source = Hook::new(&[], move |_| {
        let (code, body) = said.lock().clone();
        crate::hook::Said {
            code,
            body,
            after: Duration::ZERO,
        }
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("authentication.yaml");
    let authorities = [&*issuer.hook.pem, &*other.hook.pem, &*source.pem].concat();
    let config = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {
                "url": issuer.url(), "audiences": ["davit"], "certificateAuthority": authorities,
            },
            "claimMappings": {
                "username": { "claim": "email", "prefix": "" },
                "groups": { "claim": "groups", "prefix": "far:" },
            },
        }],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let c = Cluster::with(|options| {
        options.authentication = Authentication {
            config_file: Some(file.clone()),
            ..Authentication::default()
        };
    })
    .await;
    // answers are kept by token, so each look has a user of its own
    let look = async |who: &str, code: u16, body: String| {
        *answer.lock() = (code, body);
        let endpoint = format!("https://{}/groups?of={who}", source.address);
        let token = issuer.token(json!({
            "email": who,
            "_claim_names": { "groups": "directory" },
            "_claim_sources": { "directory": { "endpoint": endpoint, "access_token": "sesame" } },
        }));
        review(&c, &token).await
    };
    let groups = |issuer: &Issuing| issuer.token(json!({ "groups": ["dev", "ops"] }));
    for (who, by) in [("ann", &issuer), ("bob", &other), ("cyd", &other)] {
        let status = look(who, 200, groups(by)).await;
        assert_eq!(status["user"]["username"], who, "{status}");
        assert_eq!(
            status["user"]["groups"],
            json!(["far:dev", "far:ops", "system:authenticated"])
        );
    }
    assert_eq!(source.bearers(), ["Bearer sesame"; 3]);
    assert_eq!(source.calls()[0].0, "/groups?of=ann");
    assert_eq!(other.hook.calls().len(), 2, "its keys are kept");
    let stranger = Issuing::new().await;
    for (who, code, body) in [
        ("dan", 500, groups(&issuer)),
        ("eve", 200, "no token".to_owned()),
        ("fay", 200, issuer.token(json!({ "roles": ["dev"] }))),
        (
            "gus",
            200,
            other.token(json!({ "groups": ["dev"], "aud": "others" })),
        ),
        (
            "hal",
            200,
            other.token(json!({ "groups": ["dev"], "exp": 1000 })),
        ),
        // nobody vouches for its certificate
        ("ida", 200, groups(&stranger)),
    ] {
        let status = look(who, code, body).await;
        assert!(status.get("authenticated").is_none(), "{who}: {status}");
    }
    // groups in the token are those that count
    let here = issuer.token(json!({
        "email": "jan", "groups": "near", "_claim_names": { "groups": "nowhere" },
    }));
    let status = review(&c, &here).await;
    assert_eq!(status["user"]["groups"][0], "far:near", "{status}");
}

#[tokio::test]
async fn item_192_token_webhooks_are_asked_once_and_their_word_counts() {
    let hook = Hook::new(&[], |review| {
        let known = review["spec"]["token"] == "good";
        let user = json!({"username": "webby", "uid": "7", "groups": ["g"]});
        json!({
            "apiVersion": review["apiVersion"], "kind": "TokenReview",
            "status": if known { json!({"authenticated": true, "user": user}) } else { json!({}) },
        })
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("webhook.kubeconfig");
    std::fs::write(&file, kubeconfig(&hook)).unwrap();
    let c = Cluster::with(|options| {
        options.authentication.token_webhook = Some(TokenWebhook {
            config_file: file,
            cache_ttl: Duration::from_secs(60),
            version: "v1".to_owned(),
        });
    })
    .await;
    for _ in 0..3 {
        let status = review(&c, "good").await;
        assert_eq!(status["user"]["username"], "webby", "{status}");
        assert_eq!(
            status["user"]["groups"],
            json!(["g", "system:authenticated"])
        );
    }
    assert!(review(&c, "bad").await.get("authenticated").is_none());
    let calls = hook.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].0, "/ask");
    assert_eq!(calls[0].1["apiVersion"], "authentication.k8s.io/v1");
}

fn access(hook: &Hook, dir: &tempfile::TempDir, fails_closed: bool) -> AccessWebhook {
    let file = dir.path().join("access.kubeconfig");
    std::fs::write(&file, kubeconfig(hook)).unwrap();
    AccessWebhook {
        name: "out".to_owned(),
        kubeconfig: Some(file),
        version: "v1".to_owned(),
        timeout: Duration::from_secs(2),
        authorized_ttl: Duration::from_secs(60),
        unauthorized_ttl: Duration::from_secs(60),
        fails_closed,
        match_conditions: vec!["request.user != 'carol'".to_owned()],
    }
}

#[tokio::test]
async fn item_192_access_webhooks_decide_and_are_asked_once() {
    let hook = Hook::new(&[], |review| {
        let spec = &review["spec"];
        let allowed = spec["user"] == "ann" && spec["resourceAttributes"]["verb"] == "list";
        json!({"kind": "SubjectAccessReview", "status": {"allowed": allowed, "reason": "so said"}})
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let webhook = access(&hook, &dir, true);
    let c = Cluster::with(|options| {
        let modes = vec![Mode::Webhook(webhook)];
        options.authorization = Authorization::Modes(modes);
    })
    .await;
    let get = async |name: &str, url: &str| {
        let user = UserInfo::new(name, &[]);
        whole(c.send_as(&user, "GET", url, &[], "").await).await
    };
    let selected = format!("{PODS}?fieldSelector=spec.nodeName%3Dn&labelSelector=app%3Da");
    get("ann", &selected).await.ok(200);
    get("ann", &selected).await.ok(200);
    assert_eq!(hook.calls().len(), 1);
    let spec = &hook.calls()[0].1["spec"];
    assert_eq!(
        spec["resourceAttributes"]["fieldSelector"]["requirements"],
        json!([{"key": "spec.nodeName", "operator": "In", "values": ["n"]}])
    );
    assert_eq!(
        spec["resourceAttributes"]["labelSelector"]["requirements"],
        json!([{"key": "app", "operator": "In", "values": ["a"]}])
    );
    let status = get("bob", PODS).await.error(403, "Forbidden");
    assert!(status["message"].as_str().unwrap().ends_with(": so said"));
    let asked = hook.calls().len();
    get("carol", PODS).await.error(403, "Forbidden");
    assert_eq!(hook.calls().len(), asked, "carol does not match");
    // nobody there: the policy refuses
    drop(hook);
    get("ann", "/api/v1/nodes").await.error(403, "Forbidden");
}

fn request(names: &[(rcgen::DnType, &str)]) -> (KeyPair, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, name) in names {
        params.distinguished_name.push(kind.clone(), *name);
    }
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    (key, STANDARD.encode(pem))
}

/// Who may write statuses of requests of pods still signs only for signers that are his (KEP-4317).
#[tokio::test]
async fn statuses_of_pod_certificate_requests_are_written_for_ones_own_signer() {
    let c = Cluster::with(|options| {
        options.authorization = Authorization::Modes(vec![Mode::Rbac]);
        options.runtime_config = "certificates.k8s.io/v1beta1=true".parse().unwrap();
    })
    .await;
    let requests = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
    let key = KeyPair::generate().unwrap();
    let stub = rcgen::CertificateParams::default().serialize_request(&key);
    let made = json!({"metadata": {"name": "r"}, "spec": {
        "signerName": "example.com/s", "podName": "p", "podUID": "u", "serviceAccountName": "s", "serviceAccountUID": "v",
        "nodeName": "n", "nodeUID": "w", "maxExpirationSeconds": 3600,
        "stubPKCS10Request": STANDARD.encode(stub.unwrap().der())}});
    c.post(requests, &made).await.ok(201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let grant = async |name: &str, rule: Value| {
        let rule = json!({"metadata": {"name": name}, "rules": [rule]});
        c.post(&format!("{rbac}/clusterroles"), &rule).await.ok(201);
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]});
        let url = format!("{rbac}/clusterrolebindings");
        c.post(&url, &binding).await.ok(201);
    };
    let of_group = |resource: &str, verb: &str, names: &[&str]| json!({"verbs": [verb], "apiGroups": ["certificates.k8s.io"], "resources": [resource], "resourceNames": names});
    grant(
        "writes",
        of_group("podcertificaterequests/status", "patch", &[]),
    )
    .await;
    grant(
        "others",
        of_group("signers", "sign", &["example.com/other"]),
    )
    .await;
    let bob = UserInfo::new("bob", &[]);
    let patch = async |change: &Value| {
        let headers = [("content-type", "application/merge-patch+json")];
        let url = format!("{requests}/r/status");
        whole(
            c.send_as(&bob, "PATCH", &url, &headers, change.to_string())
                .await,
        )
        .await
    };
    let denied = json!({"status": {"conditions": [{"type": "Denied", "status": "True", "reason": "Test", "message": "no",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let status = patch(&denied).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    let why = "spec.signerName: Forbidden: User \"bob\" is not permitted to \"sign\" for signer \"example.com/s\"";
    assert!(message.ends_with(why), "{message}");
    // what changes nothing of the status is nobody's signature
    patch(&json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok(200);
    grant("own", of_group("signers", "sign", &["example.com/s"])).await;
    patch(&denied).await.ok(200);
}

#[tokio::test]
async fn item_095_approval_needs_the_signers_permission_and_requesters_are_recorded() {
    let c = Cluster::with(|options| {
        options.authorization = Authorization::Modes(vec![Mode::Rbac]);
    })
    .await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let csr = |name: &str, request: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "request": request, "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["client auth"], "username": "somebody-else",
            },
        })
    };
    let (_, pem) = request(&[(rcgen::DnType::CommonName, "ann")]);
    let made = c.post(requests, &csr("a", &pem)).await.ok(201);
    assert_eq!(made["spec"]["username"], "tester");
    let groups = [
        (rcgen::DnType::OrganizationName, "system:masters"),
        (rcgen::DnType::CommonName, "root"),
    ];
    let (_, root) = request(&groups);
    let status = c
        .post(requests, &csr("b", &root))
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "certificatesigningrequests.certificates.k8s.io \"b\" is forbidden: use of \
         kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
    // may write approvals, but not for this signer
    let role = json!({
        "metadata": {"name": "approver"},
        "rules": [{"verbs": ["get", "update"], "apiGroups": ["certificates.k8s.io"],
                   "resources": ["certificatesigningrequests", "certificatesigningrequests/approval"]}],
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let url = format!("{rbac}/clusterroles");
    c.post(&url, &role).await.ok(201);
    let bind = async |role: &str| {
        let binding = json!({
            "metadata": {"name": format!("bob-{}", role.replace(':', "-"))},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
        });
        let url = format!("{rbac}/clusterrolebindings");
        c.post(&url, &binding).await.ok(201);
    };
    bind("approver").await;
    let bob = UserInfo::new("bob", &[]);
    let mut approved = made;
    approved["metadata"]["annotations"] = json!({"approved-by": "bob"});
    approved["status"] = json!({"conditions": [
        {"type": "Approved", "status": "True", "reason": "Test", "message": "fine"},
    ]});
    let approve = async || {
        let url = format!("{requests}/a/approval");
        let headers = [("content-type", "application/json")];
        whole(
            c.send_as(&bob, "PUT", &url, &headers, approved.to_string())
                .await,
        )
        .await
    };
    let status = approve().await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "certificatesigningrequests.certificates.k8s.io \"a\" is forbidden: user not permitted to approve \
         requests with signerName \"kubernetes.io/kube-apiserver-client\""
    );
    bind("system:certificates.k8s.io:kube-apiserver-client-approver").await;
    let done = approve().await.ok(200);
    assert_eq!(
        done["metadata"]["annotations"],
        json!({"approved-by": "bob"})
    );
    let condition = &done["status"]["conditions"][0];
    assert_eq!(condition["type"], "Approved");
    assert!(condition["lastUpdateTime"].is_string(), "{condition}");
    assert!(condition["lastTransitionTime"].is_string(), "{condition}");
}
