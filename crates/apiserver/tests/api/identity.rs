//! Who is who, and who may what.

use davit_apiserver::{UserInfo, parse_token_file};
use serde_json::json;

use crate::cluster::*;

#[tokio::test]
async fn anonymous_callers_only_see_health_and_version() {
    let c = Cluster::new().await;
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
        message.contains("cannot impersonate resource \"users\""),
        "{message}"
    );
}
