//! Who is who, and who may what.

use davit_access::UserInfo;
use davit_access::authn::parse_token_file;
use davit_access::authz::Authorization;
use davit_apiserver::Options;
use serde_json::json;

use crate::cluster::*;

#[tokio::test]
async fn anonymous_callers_only_see_health_and_version() {
    let c = Cluster::new().await;
    c.ready().await;
    let nobody = UserInfo::anonymous();
    let answer = whole(c.send_as(&nobody, "GET", "/api/v1/pods", &[], "").await).await;
    let status = answer.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" \
         at the cluster scope"
    );
    let answer = whole(c.send_as(&nobody, "GET", "/metrics", &[], "").await).await;
    let status = answer.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "forbidden: User \"system:anonymous\" cannot get path \"/metrics\""
    );
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(
            c.send_as(&nobody, "GET", path, &[], "").await.status(),
            200,
            "{path}"
        );
    }
}

#[tokio::test]
async fn without_configuration_users_may_what_their_roles_say() {
    let c = Cluster::new().await;
    let default = Options::new(c.store()).authorization;
    assert_eq!(default, Authorization::default());
    let c = Cluster::with(|options| options.authorization = default).await;
    let somebody = UserInfo::new("somebody", &[]);
    for path in ["/api/v1/pods", "/api/v1/secrets", "/metrics"] {
        let answer = c.send_as(&somebody, "GET", path, &[], "").await;
        assert_eq!(answer.status(), 403, "{path}");
    }
    // nodes are restricted, too
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let foreign = json!({"metadata": {"name": "n2"}}).to_string();
    let json = [("content-type", "application/json")];
    let answer = c.send_as(&node, "POST", "/api/v1/nodes", &json, foreign);
    assert_eq!(answer.await.status(), 403);
}

#[tokio::test]
async fn item_187_reviews_answer() {
    let c = Cluster::with(|options| {
        options.static_tokens = parse_token_file("secret,alice,u1,\"g1\"").unwrap();
    })
    .await;
    let me = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let me = c
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &me)
        .await
        .ok(201);
    assert_eq!(me["status"]["userInfo"]["username"], "tester");
    let url = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = c
        .post(url, &json!({"spec": {"token": "secret"}}))
        .await
        .ok(201);
    assert_eq!(review["status"]["authenticated"], true);
    assert_eq!(review["status"]["user"]["username"], "alice");
    let review = c
        .post(url, &json!({"spec": {"token": "wrong"}}))
        .await
        .ok(201);
    assert!(review["status"].get("authenticated").is_none());
    let may = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(c.post(url, &may).await.ok(201)["status"]["allowed"], true);
    // what only the server decides is left out, other metadata refused
    let mut kept = may;
    kept["metadata"] =
        json!({"uid": "u", "selfLink": "/x", "creationTimestamp": "2024-02-29T23:59:59Z"});
    let kept = c.post(url, &kept).await.ok(201);
    assert_eq!(kept["metadata"].get("uid"), None, "{kept}");
    let named = json!({"metadata": {"name": "n"}, "spec": {}});
    c.post(url, &named).await.error(422, "Invalid");
    let may = json!({"spec": {
        "user": "system:anonymous", "resourceAttributes": {"verb": "get", "resource": "pods"},
    }});
    let url = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(c.post(url, &may).await.ok(201)["status"]["allowed"], false);
    let rules = json!({"spec": {"namespace": "default"}});
    let url = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = c.post(url, &rules).await.ok(201);
    assert_eq!(rules["status"]["resourceRules"][0]["verbs"], json!(["*"]));
}

#[tokio::test]
async fn item_186_requested_tokens_are_bound_and_end_with_their_pod() {
    let c = Cluster::new().await;
    c.service_account().await;
    let pod = c.pod("p").await;
    let url = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let short = json!({"spec": {"expirationSeconds": 60}});
    c.post(url, &short).await.error(422, "Invalid");
    // of an account that was there before, or will be
    let another = json!({"metadata": {"uid": "of-another"}, "spec": {}});
    c.post(url, &another).await.error(409, "Conflict");
    let wanted = json!({"spec": {
        "audiences": ["https://kubernetes.default.svc.cluster.local"],
        "expirationSeconds": 600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]},
    }});
    let answer = c.post(url, &wanted).await.ok(201);
    let token = answer["status"]["token"].as_str().unwrap();
    let review = json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = c.post(reviews, &review).await.ok(201);
    assert_eq!(status["status"]["authenticated"], true, "{status}");
    let user = &status["status"]["user"];
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    let groups = user["groups"].as_array().unwrap();
    for group in [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ] {
        assert!(groups.contains(&json!(group)), "{group}");
    }
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["p"])
    );
    c.delete(&format!("{PODS}/p"), &json!(null)).await.ok(200);
    let status = c.post(reviews, &review).await.ok(201);
    assert!(status["status"].get("authenticated").is_none());
}

/// A token as the controller of token Secrets makes it.
fn legacy_token(c: &Cluster, secret: &str, account: &serde_json::Value) -> String {
    let pair = rcgen::KeyPair::from_pem(c.server.service_account_key()).unwrap();
    let key = jsonwebtoken::EncodingKey::from_ec_der(pair.serialized_der());
    let claims = json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": secret,
        "kubernetes.io/serviceaccount/service-account.name": "default",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
        "sub": "system:serviceaccount:default:default",
    });
    let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
    jsonwebtoken::encode(&header, &claims, &key).unwrap()
}

#[tokio::test]
async fn tokens_of_secrets_are_good_while_the_secret_holds_them() {
    use base64::Engine as _;
    let c = Cluster::new().await;
    c.service_account().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let secrets = "/api/v1/namespaces/default/secrets";
    let account = c.get(&format!("{accounts}/default")).await.ok(200);
    let token = legacy_token(&c, "s", &account);
    let review = json!({"spec": {"token": token}});
    let ask = async || {
        let url = "/apis/authentication.k8s.io/v1/tokenreviews";
        c.post(url, &review).await.ok(201)["status"].clone()
    };
    let says = |status: &serde_json::Value, text: &str| {
        let error = status["error"].as_str().unwrap_or_default();
        assert!(error.contains(text), "{status}");
    };
    says(&ask().await, "its secret does not exist");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": { "name": "s", "annotations": { "kubernetes.io/service-account.name": "default" } },
    });
    c.post(secrets, &secret).await.ok(201);
    says(&ask().await, "token does not match server's copy");
    let filled = json!({"data": {
        "token": base64::engine::general_purpose::STANDARD.encode(&token) }});
    let url = format!("{secrets}/s");
    c.patch(&url, "merge", &filled).await.ok(200);
    let status = ask().await;
    let name = "system:serviceaccount:default:default";
    assert_eq!(status["user"]["username"], name, "{status}");
    // its use is noted
    let held = c.get(&url).await.ok(200);
    let used = held["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].as_str();
    assert_eq!(used.map(str::len), Some("2026-01-01".len()));
    let tracking = "/api/v1/namespaces/kube-system/configmaps/\
                    kube-apiserver-legacy-service-account-token-tracking";
    assert_eq!(
        c.get(tracking).await.ok(200)["data"]["since"],
        used.unwrap()
    );
    let invalid = json!({"metadata": {"labels": {
        "kubernetes.io/legacy-token-invalid-since": "2026-01-01" }}});
    c.patch(&url, "merge", &invalid).await.ok(200);
    says(&ask().await, "has been marked invalid");
    let valid = json!({"metadata": {"labels": {
        "kubernetes.io/legacy-token-invalid-since": null }}});
    c.patch(&url, "merge", &valid).await.ok(200);
    assert_eq!(ask().await["authenticated"], true);
    let metrics = c.get("/metrics").await.text();
    for line in [
        "serviceaccount_legacy_manual_token_uses_total 2",
        "serviceaccount_invalid_legacy_auto_token_uses_total 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    // another account of the same name is another one
    c.delete(&format!("{accounts}/default"), &json!(null))
        .await
        .ok(200);
    c.service_account().await;
    says(&ask().await, "does not match claim");
}

#[tokio::test]
async fn the_tokens_of_pods_live_on_for_clients_that_do_not_read_them_anew() {
    use base64::Engine as _;
    let c = Cluster::new().await;
    c.service_account().await;
    c.pod("p").await;
    let url = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let life = async |seconds: i64| {
        let wanted = json!({"spec": { "expirationSeconds": seconds,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"} }});
        let answer = c.post(url, &wanted).await.ok(201);
        let token = answer["status"]["token"].as_str().unwrap().to_owned();
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .decode(token.split('.').nth(1).unwrap())
            .unwrap();
        let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
        let number = |value: &serde_json::Value| value.as_i64();
        let issued = number(&claims["iat"]).unwrap();
        (
            number(&claims["exp"]).unwrap() - issued,
            number(&claims["kubernetes.io"]["warnafter"]).map(|at| at - issued),
        )
    };
    assert_eq!(life(3607).await, (365 * 24 * 3600, Some(3607)));
    assert_eq!(life(3600).await, (3600, None));
}

#[tokio::test]
async fn item_178_pods_get_their_account_and_token_volume() {
    let c = Cluster::new().await;
    let status = c.post(PODS, &pod("p")).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"p\" is forbidden: error looking up service account default/default: serviceaccount \
         \"default\" not found"
    );
    c.service_account().await;
    let pod = c.pod("p").await;
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    let volume = &pod["spec"]["volumes"][0];
    assert!(
        volume["name"]
            .as_str()
            .unwrap()
            .starts_with("kube-api-access-")
    );
    assert_eq!(
        volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"],
        3607
    );
    let mount = &pod["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(
        mount["mountPath"],
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn item_179_priority_classes_become_numbers() {
    let c = Cluster::new().await;
    c.service_account().await;
    let mut important = pod("p");
    important["spec"]["priorityClassName"] = json!("system-node-critical");
    let made = c.post(PODS, &important).await.ok(201);
    assert_eq!(made["spec"]["priority"], 2_000_001_000);
    assert_eq!(made["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let mut unknown = pod("q");
    unknown["spec"]["priorityClassName"] = json!("nope");
    let status = c.post(PODS, &unknown).await.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "pods \"q\" is forbidden: no PriorityClass with name nope was found"
    );
}

#[tokio::test]
async fn item_193_only_administrators_impersonate() {
    let c = Cluster::new().await;
    let me = json!({}).to_string();
    let url = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [
        ("content-type", "application/json"),
        ("impersonate-user", "bob"),
        ("impersonate-group", "g"),
    ];
    let answer = c.request("POST", url, &headers, me.clone()).await.ok(201);
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "bob", "groups": ["g", "system:authenticated"]})
    );
    let plain = UserInfo::new("carol", &[]);
    let answer = whole(c.send_as(&plain, "POST", url, &headers, me).await).await;
    let status = answer.error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("cannot impersonate-on:user-info:create resource \"selfsubjectreviews\""),
        "{message}"
    );
}
