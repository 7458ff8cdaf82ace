//! Admission webhooks against a real HTTPS server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::*;
use crate::hook::{Hook, Said, allow, patch, review};

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

fn webhook(hook: &Hook, name: &str, resource: &str) -> Value {
    json!({
        "name": name, "clientConfig": hook.by_url(), "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [{
            "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
            "resources": [resource],
        }],
    })
}

async fn configure(c: &Cluster, url: &str, name: &str, webhooks: &[Value]) {
    let body = json!({ "metadata": { "name": name }, "webhooks": webhooks });
    c.post(url, &body).await.ok(201);
}

#[tokio::test]
async fn item_170_patches_come_before_validation_and_reinvocation_once() {
    let c = Cluster::new().await;
    // the first would make an invalid object of it, the second repairs that
    let first = Hook::new(&[], |r: &Value| {
        let labelled = r["request"]["object"]["metadata"]["labels"]["a"].is_string();
        if labelled {
            return allow(r);
        }
        patch(
            r,
            &json!([{ "op": "add", "path": "/metadata/labels", "value": { "a": "bad value" } }]),
        )
    })
    .await;
    let second = Hook::new(&[], |r: &Value| {
        patch(
            r,
            &json!([{ "op": "add", "path": "/metadata/labels/a", "value": "good" }]),
        )
    })
    .await;
    let mut one = webhook(&first, "one.example.com", "configmaps");
    one["reinvocationPolicy"] = json!("IfNeeded");
    configure(&c, MUTATING, "a", &[one]).await;
    configure(
        &c,
        MUTATING,
        "b",
        &[webhook(&second, "two.example.com", "configmaps")],
    )
    .await;
    let made = c.config_map("x", &json!({})).await;
    assert_eq!(made["metadata"]["labels"]["a"], "good");
    assert_eq!(
        first.heard().len(),
        2,
        "once more after the second's change"
    );
    assert_eq!(second.heard().len(), 1);
    let request = &first.heard()[0];
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(
        request["kind"],
        json!({ "group": "", "version": "v1", "kind": "ConfigMap" })
    );
    assert_eq!(
        request["resource"],
        json!({ "group": "", "version": "v1", "resource": "configmaps" })
    );
    assert_eq!(request["namespace"], "default");
    assert_eq!(request["name"], "x");
    assert_eq!(request["userInfo"]["username"], "tester");
    assert_eq!(request["object"]["kind"], "ConfigMap");
    assert_eq!(request["object"]["apiVersion"], "v1");
    assert_eq!(request["oldObject"], Value::Null);
    assert_eq!(request["dryRun"], false);
    assert_eq!(request["options"]["kind"], "CreateOptions");
    assert_eq!(first.calls()[0].0, "/hook?timeout=10s");
    assert_eq!(first.connections(), 1, "the connection is used again");
}

#[tokio::test]
async fn item_171_denials_carry_name_message_and_code() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| {
        review(
            r,
            json!({
                "allowed": false, "warnings": ["look out"],
                "status": { "code": 403, "reason": "Forbidden", "message": "not today" },
            }),
        )
    })
    .await;
    configure(
        &c,
        VALIDATING,
        "v",
        &[webhook(&hook, "deny.example.com", "configmaps")],
    )
    .await;
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    assert_eq!(answer.warnings(), ["299 - \"look out\""]);
    let status = answer.error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "admission webhook \"deny.example.com\" denied the request: not today"
    );
    let metrics = c.get("/metrics").await.text();
    assert!(
        metrics.contains("apiserver_admission_webhook_rejection_count{name=\"deny.example.com\",type=\"validating\",operation=\"CREATE\",error_type=\"no_error\",rejection_code=\"403\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn item_171_reasons_that_kubernetes_does_not_know_reach_the_client() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| {
        review(
            r,
            json!({
                "allowed": false,
                "status": {
                    "code": 418, "reason": "QuotaTooGreedy", "status": "Failure",
                    "details": {
                        "kind": "teapots", "retryAfterSeconds": 7,
                        "causes": [{ "reason": "TooMany", "message": "5 of 3", "field": "data" }],
                    },
                },
            }),
        )
    })
    .await;
    let webhook = webhook(&hook, "greedy.example.com", "configmaps");
    configure(&c, VALIDATING, "v", &[webhook]).await;
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    assert_eq!(answer.header("retry-after"), "7");
    let status = answer.error(418, "QuotaTooGreedy");
    assert_eq!(
        status["message"],
        "admission webhook \"greedy.example.com\" denied the request: QuotaTooGreedy"
    );
    assert_eq!(status["details"]["kind"], "teapots");
    assert_eq!(status["details"]["causes"][0]["reason"], "TooMany");
}

#[tokio::test]
async fn item_172_failures_follow_the_policy_and_the_timeout() {
    let c = Cluster::new().await;
    let slow = Hook::new(&[], |r: &Value| Said {
        after: Duration::from_secs(20),
        ..allow(r).into()
    })
    .await;
    let mut hook = webhook(&slow, "slow.example.com", "configmaps");
    hook["timeoutSeconds"] = json!(1);
    configure(&c, VALIDATING, "v", &[hook]).await;
    let url = format!("https://{}/hook?timeout=1s", slow.address);
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    let status = answer.error(500, "InternalError");
    assert_eq!(
        status["message"],
        format!(
            "Internal error occurred: failed calling webhook \"slow.example.com\": failed to call webhook: Post \"{url}\": context deadline exceeded"
        )
    );
    let path = format!("{VALIDATING}/v");
    c.patch(
        &path,
        "json",
        &json!([{ "op": "add", "path": "/webhooks/0/failurePolicy", "value": "Ignore" }]),
    )
    .await
    .ok(200);
    c.config_map("x", &json!({})).await;
    let metrics = c.get("/metrics").await.text();
    assert!(
        metrics.contains("apiserver_admission_webhook_fail_open_count{name=\"slow.example.com\",type=\"validating\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn item_172_lies_crashes_and_strangers_are_failures() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| match r["request"]["name"].as_str() {
        Some("uid") => review(&json!({ "apiVersion": "admission.k8s.io/v1" }), json!({})).into(),
        Some("boom") => Said {
            code: 500,
            body: "boom".to_owned(),
            after: Duration::ZERO,
        },
        Some("text") => Said {
            code: 200,
            body: "hello".to_owned(),
            after: Duration::ZERO,
        },
        _ => allow(r).into(),
    })
    .await;
    configure(
        &c,
        VALIDATING,
        "v",
        &[webhook(&hook, "h.example.com", "configmaps")],
    )
    .await;
    for (name, part) in [
        (
            "uid",
            "failed calling webhook \"h.example.com\": received invalid webhook response: expected response.uid=",
        ),
        (
            "boom",
            "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding",
        ),
        ("text", "failed to call webhook: couldn't decode"),
    ] {
        let answer = c.post(CONFIG_MAPS, &config_map(name, &json!({}))).await;
        let status = answer.error(500, "InternalError");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(part), "{message}");
    }
    // another certificate is not believed
    let other = Hook::new(&[], allow).await;
    let mut stranger = webhook(&hook, "s.example.com", "configmaps");
    stranger["clientConfig"]["caBundle"] = json!(other.bundle());
    configure(&c, VALIDATING, "w", &[stranger]).await;
    let answer = c.post(CONFIG_MAPS, &config_map("y", &json!({}))).await;
    let message = answer.error(500, "InternalError")["message"].to_string();
    assert!(
        message.contains(
            "tls: failed to verify certificate: x509: certificate signed by unknown authority"
        ),
        "{message}"
    );
}

#[tokio::test]
async fn item_172_services_are_reached_through_their_endpoints() {
    let c = Cluster::new().await;
    let hook = Hook::new(&["hook.default.svc"], allow).await;
    let mut by_service = webhook(&hook, "svc.example.com", "configmaps");
    by_service["clientConfig"] = json!({
        "service": { "namespace": "default", "name": "hook", "path": "/mutate" },
        "caBundle": hook.bundle(),
    });
    configure(&c, VALIDATING, "v", &[by_service]).await;
    let refused = "Internal error occurred: failed calling webhook \"svc.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/mutate?timeout=10s\": ";
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    assert_eq!(
        answer.error(500, "InternalError")["message"],
        format!("{refused}service \"hook\" not found")
    );
    let service = json!({
        "metadata": { "name": "hook" },
        "spec": { "ports": [{ "name": "https", "port": 443, "targetPort": "web" }] },
    });
    c.post("/api/v1/namespaces/default/services", &service)
        .await
        .ok(201);
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    assert_eq!(
        answer.error(500, "InternalError")["message"],
        format!("{refused}no endpoints available for service \"hook\"")
    );
    // endpoints may not be on loopback, slices say nothing of the kind for this address
    let slice = json!({
        "metadata": { "name": "hook-1", "labels": { "kubernetes.io/service-name": "hook" } },
        "addressType": "FQDN",
        "endpoints": [{ "addresses": ["localhost"], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": hook.address.port() }],
    });
    c.post(
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        &slice,
    )
    .await
    .ok(201);
    c.config_map("x", &json!({})).await;
    assert_eq!(hook.calls()[0].0, "/mutate?timeout=10s");
}

#[tokio::test]
async fn item_173_dry_run_needs_a_webhook_without_side_effects() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], allow).await;
    configure(
        &c,
        VALIDATING,
        "v",
        &[webhook(&hook, "h.example.com", "configmaps")],
    )
    .await;
    let url = format!("{CONFIG_MAPS}?dryRun=All");
    c.post(&url, &config_map("x", &json!({}))).await.ok(201);
    assert_eq!(hook.heard()[0]["dryRun"], true);
    assert_eq!(hook.heard()[0]["options"]["dryRun"], json!(["All"]));
    // v1 refuses configurations with side effects in the first place
    let mut unsafe_hook = webhook(&hook, "h.example.com", "configmaps");
    unsafe_hook["sideEffects"] = json!("Some");
    let body = json!({ "metadata": { "name": "w" }, "webhooks": [unsafe_hook] });
    let status = c.post(VALIDATING, &body).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\""),
        "{message}"
    );
}

#[tokio::test]
async fn item_174_selectors_scope_and_versions_choose_the_calls() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], allow).await;
    let mut chosen = webhook(&hook, "h.example.com", "configmaps");
    chosen["objectSelector"] = json!({ "matchLabels": { "watched": "yes" } });
    chosen["namespaceSelector"] = json!({ "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"] }] });
    chosen["rules"][0]["scope"] = json!("Namespaced");
    configure(&c, VALIDATING, "v", &[chosen]).await;
    c.config_map("plain", &json!({})).await;
    assert!(hook.heard().is_empty());
    let mut labelled = config_map("labelled", &json!({}));
    labelled["metadata"]["labels"] = json!({ "watched": "yes" });
    c.post(CONFIG_MAPS, &labelled).await.ok(201);
    assert_eq!(hook.heard().len(), 1);
    c.post("/api/v1/namespaces/kube-system/configmaps", &labelled)
        .await
        .ok(201);
    assert_eq!(hook.heard().len(), 1, "another namespace");
    // taking the label away is still seen, by the old object
    let path = format!("{CONFIG_MAPS}/labelled");
    c.patch(&path, "merge", &json!({ "metadata": { "labels": null } }))
        .await
        .ok(200);
    let update = hook.heard()[1].clone();
    assert_eq!(update["operation"], "UPDATE");
    assert_eq!(update["oldObject"]["metadata"]["labels"]["watched"], "yes");
    assert_eq!(update["options"]["kind"], "PatchOptions");

    // a rule for one version sees requests for the other, in its version
    let events = Hook::new(&[], allow).await;
    let mut by_version = webhook(&events, "e.example.com", "horizontalpodautoscalers");
    by_version["rules"][0]["apiGroups"] = json!(["autoscaling"]);
    by_version["rules"][0]["apiVersions"] = json!(["v2"]);
    configure(&c, VALIDATING, "w", &[by_version]).await;
    let scaler = json!({
        "metadata": { "name": "x" },
        "spec": {
            "scaleTargetRef": { "kind": "Deployment", "name": "x", "apiVersion": "apps/v1" },
            "maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        },
    });
    c.post(
        "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers",
        &scaler,
    )
    .await
    .ok(201);
    let request = &events.heard()[0];
    assert_eq!(request["kind"]["version"], "v2");
    assert_eq!(request["requestKind"]["version"], "v1");
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v2");
    assert!(request["object"]["spec"]["metrics"].is_array(), "{request}");
}

#[tokio::test]
async fn item_175_configurations_are_never_sent() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| review(r, json!({ "allowed": false }))).await;
    configure(&c, VALIDATING, "v", &[webhook(&hook, "h.example.com", "*")]).await;
    configure(&c, MUTATING, "m", &[webhook(&hook, "h.example.com", "*")]).await;
    c.delete(&format!("{MUTATING}/m"), &Value::Null)
        .await
        .ok(200);
    // The server's own writes of other kinds are sent, whenever they come.
    let group = |request: &Value| request["resource"]["group"].clone();
    let heard: Vec<Value> = hook.heard().iter().map(group).collect();
    assert!(
        !heard.contains(&json!("admissionregistration.k8s.io")),
        "{heard:?}"
    );
    let answer = c.post(CONFIG_MAPS, &config_map("x", &json!({}))).await;
    assert_eq!(
        answer.error(400, "")["message"],
        "admission webhook \"h.example.com\" denied the request without explanation"
    );
    c.delete(&format!("{VALIDATING}/v"), &Value::Null)
        .await
        .ok(200);
    c.config_map("x", &json!({})).await;
}

#[tokio::test]
async fn deletions_evictions_and_scales_are_put_to_webhooks() {
    let c = Cluster::new().await;
    c.service_account().await;
    c.pod("p").await;
    c.config_map("a", &json!({})).await;
    c.config_map("b", &json!({})).await;
    let hook = Hook::new(&[], allow).await;
    configure(
        &c,
        VALIDATING,
        "v",
        &[webhook(&hook, "h.example.com", "*/*")],
    )
    .await;
    c.delete(CONFIG_MAPS, &Value::Null).await.ok(200);
    let deleted: Vec<Value> = hook
        .heard()
        .into_iter()
        .filter(|r| r["operation"] == "DELETE")
        .collect();
    let names: Vec<Value> = deleted.iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["a", "b"], "one review an object");
    assert_eq!(deleted[0]["object"], Value::Null);
    assert_eq!(deleted[0]["oldObject"]["metadata"]["name"], "a");
    assert_eq!(deleted[0]["options"]["kind"], "DeleteOptions");
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" },
    });
    c.post(&format!("{PODS}/p/eviction"), &eviction)
        .await
        .ok(201);
    // The server's own controllers write too, and are put to the webhook as everybody is.
    let heard = hook.heard();
    let eviction = heard.iter().find(|r| r["subResource"] == "eviction");
    let eviction = eviction.unwrap_or_else(|| panic!("no eviction among {heard:?}"));
    assert_eq!(eviction["kind"]["kind"], "Eviction");
    assert_eq!(eviction["operation"], "CREATE");
}

#[tokio::test]
async fn item_174_match_conditions_choose_the_calls() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], allow).await;
    let mut chosen = webhook(&hook, "h.example.com", "configmaps");
    chosen["matchConditions"] =
        json!([{ "name": "chosen", "expression": "object.metadata.name.startsWith('yes')" }]);
    configure(&c, VALIDATING, "v", &[chosen.clone()]).await;
    c.config_map("no", &json!({})).await;
    c.config_map("yes-1", &json!({})).await;
    let names: Vec<Value> = hook.heard().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["yes-1"]);
    // what cannot be evaluated refuses, by the policy
    chosen["matchConditions"][0]["expression"] = json!("object.data.missing == 'x'");
    configure(&c, VALIDATING, "w", &[chosen.clone()]).await;
    c.post(CONFIG_MAPS, &config_map("no-2", &json!({})))
        .await
        .error(403, "Forbidden");
    chosen["matchConditions"][0]["expression"] = json!("object.");
    let body = json!({ "metadata": { "name": "x" }, "webhooks": [chosen] });
    let status = c.post(VALIDATING, &body).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("webhooks[0].matchConditions[0].expression: Invalid value"),
        "{message}"
    );
}

#[tokio::test]
async fn connections_are_put_to_webhooks_as_their_options() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| {
        review(
            r,
            json!({ "allowed": false, "status": { "message": "no" } }),
        )
    })
    .await;
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "nodeName": "n", "containers": [{ "name": "a", "image": "i" }] } });
    let pods = "/api/v1/namespaces/default/pods";
    c.service_account().await;
    c.post(pods, &pod).await.ok(201);
    configure(
        &c,
        VALIDATING,
        "v",
        &[webhook(&hook, "a.example.com", "pods/*")],
    )
    .await;
    for (path, kind, part) in [
        (
            "attach?container=a&stdin=true",
            "PodAttachOptions",
            json!({ "container": "a", "stdin": true }),
        ),
        (
            "exec?container=a&command=ls",
            "PodExecOptions",
            json!({ "container": "a", "command": ["ls"] }),
        ),
        (
            "portforward?ports=80",
            "PodPortForwardOptions",
            json!({ "ports": [80] }),
        ),
        ("proxy/x", "PodProxyOptions", json!({})),
    ] {
        let answer = c.post(&format!("{pods}/p/{path}"), &json!(null)).await;
        assert!(answer.text().contains("denied the request: no"), "{path}");
        let heard = hook.heard();
        let request = heard.last().unwrap();
        assert_eq!(request["operation"], "CONNECT");
        let expected = json!({ "group": "", "version": "v1", "kind": kind });
        assert_eq!(request["kind"], expected, "{path}");
        assert_eq!(request["requestKind"], expected, "{path}");
        assert_eq!(request["object"]["kind"], kind, "{path}");
        for (key, value) in part.as_object().unwrap() {
            assert_eq!(request["object"][key], *value, "{path}");
        }
    }
}

#[tokio::test]
async fn scales_are_put_to_webhooks_as_scales() {
    let c = Cluster::new().await;
    c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    let hook = Hook::new(&[], allow).await;
    let mut chosen = webhook(&hook, "h.example.com", "deployments/scale");
    chosen["name"] = json!("h.example.com");
    configure(&c, VALIDATING, "v", &[chosen]).await;
    let bound = Hook::new(&[], |r: &Value| {
        let wanted = r["request"]["object"]["spec"]["replicas"].as_i64();
        if wanted.is_some_and(|n| n > 5) {
            let at_most = json!([{ "op": "replace", "path": "/spec/replicas", "value": 5 }]);
            return patch(r, &at_most);
        }
        allow(r)
    })
    .await;
    configure(
        &c,
        MUTATING,
        "m",
        &[webhook(&bound, "bound.example.com", "*/scale")],
    )
    .await;
    let url = format!("{DEPLOYMENTS}/web/scale");
    let scaled = c
        .patch(&url, "merge", &json!({ "spec": { "replicas": 9 } }))
        .await
        .ok(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let stored = c.get(&format!("{DEPLOYMENTS}/web")).await.ok(200);
    assert_eq!(stored["spec"]["replicas"], 5);
    let heard = hook.heard();
    assert_eq!(heard.len(), 1);
    let request = &heard[0];
    let kind = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
    assert_eq!(request["kind"], kind);
    assert_eq!(request["requestKind"], kind);
    assert_eq!(
        request["resource"],
        json!({ "group": "apps", "version": "v1", "resource": "deployments" })
    );
    assert_eq!(request["subResource"], "scale");
    assert_eq!(request["requestSubResource"], "scale");
    assert_eq!(request["operation"], "UPDATE");
    assert_eq!(request["object"]["kind"], "Scale");
    assert_eq!(request["object"]["spec"]["replicas"], 5);
    assert_eq!(request["oldObject"]["kind"], "Scale");
    assert_eq!(request["oldObject"]["spec"]["replicas"], 2);
    assert_eq!(request["oldObject"]["status"]["selector"], "app=web");
    let mut scale = c.get(&url).await.ok(200);
    scale["spec"]["replicas"] = json!(3);
    let put = c.put(&url, &scale).await.ok(200);
    assert_eq!(put["spec"]["replicas"], 3);
    // the workload itself is another matter
    c.patch(
        &format!("{DEPLOYMENTS}/web"),
        "merge",
        &json!({ "spec": { "replicas": 9 } }),
    )
    .await
    .ok(200);
    assert_eq!(hook.heard().len(), 2);
}

#[tokio::test]
async fn reviews_are_put_to_webhooks() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| {
        let user = r["request"]["object"]["spec"]["user"].as_str();
        review(r, json!({ "allowed": user != Some("mallory") }))
    })
    .await;
    let mut chosen = webhook(&hook, "h.example.com", "*");
    chosen["rules"][0]["apiGroups"] = json!(["authorization.k8s.io", "authentication.k8s.io"]);
    configure(&c, VALIDATING, "v", &[chosen]).await;
    let of = |user: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": { "verb": "get", "resource": "pods" } },
        })
    };
    let url = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answered = c.post(url, &of("bob")).await.ok(201);
    assert_eq!(answered["status"]["allowed"], false);
    let request = hook.heard()[0].clone();
    assert_eq!(request["kind"]["kind"], "SubjectAccessReview");
    assert_eq!(request["resource"]["resource"], "subjectaccessreviews");
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["object"]["spec"]["user"], "bob");
    assert_eq!(request["oldObject"], Value::Null);
    assert!(request.get("name").is_none(), "{request}");
    let refused = c.post(url, &of("mallory")).await.error(400, "");
    assert_eq!(
        refused["message"],
        "admission webhook \"h.example.com\" denied the request without explanation"
    );
    // what is invalid is not put to validating webhooks
    let before = hook.heard().len();
    c.post(url, &json!({ "spec": {} }))
        .await
        .error(422, "Invalid");
    assert_eq!(hook.heard().len(), before);
    let whoami = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let url = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answered = c.post(url, &whoami).await.ok(201);
    assert_eq!(answered["status"]["userInfo"]["username"], "tester");
    let request = hook.heard().pop().unwrap();
    assert_eq!(request["kind"]["kind"], "SelfSubjectReview");
}
