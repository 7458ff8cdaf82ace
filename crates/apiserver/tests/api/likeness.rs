//! Answers that clients compare with kube-apiserver's.

use serde_json::{Value, json};

use crate::cluster::*;

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap()
}

#[tokio::test]
async fn endpoints_are_deprecated() {
    let c = Cluster::new().await;
    let warned = c
        .get("/api/v1/namespaces/default/endpoints")
        .await
        .warnings();
    let text =
        "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";
    assert_eq!(warned, [text]);
    assert!(c.get(CONFIG_MAPS).await.warnings().is_empty());
}

#[tokio::test]
async fn what_connects_is_discovered_by_the_verbs_of_its_methods() {
    let c = Cluster::new().await;
    let core = c.get("/api/v1").await.ok(200);
    let verbs = |name: &str| {
        let resources = core["resources"].as_array().unwrap();
        let found = resources.iter().find(|resource| resource["name"] == name);
        found.unwrap()["verbs"].clone()
    };
    assert_eq!(verbs("pods/exec"), json!(["create", "get"]));
    let all = json!(["create", "delete", "get", "patch", "update"]);
    assert_eq!(verbs("services/proxy"), all);
    assert_eq!(verbs("pods/log"), json!(["get"]));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let answer = c
        .request("GET", "/api", &[("accept", accept)], "")
        .await
        .ok(200);
    let resources = answer["items"][0]["versions"][0]["resources"]
        .as_array()
        .unwrap();
    let nodes = resources
        .iter()
        .find(|resource| resource["resource"] == "nodes")
        .unwrap();
    assert_eq!(
        nodes["responseKind"],
        json!({"group": "", "version": "", "kind": "Node"})
    );
    assert_eq!(nodes["subresources"][0]["verbs"], all);
}

#[tokio::test]
async fn an_object_says_what_it_is_called() {
    let c = Cluster::new().await;
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {}});
    let url = format!("{CONFIG_MAPS}/x");
    let apply = [("content-type", "application/apply-patch+yaml")];
    let applying = format!("{url}?fieldManager=m");
    let applied = c.request("PATCH", &applying, &apply, nameless.to_string());
    for answer in [c.put(&url, &nameless).await, applied.await] {
        assert_eq!(
            message(&answer.error(400, "BadRequest")),
            "the name of the object (x based on URL) was undeterminable: name must be provided"
        );
    }
    c.config_map("x", &json!({})).await;
    let applied = c.request("PATCH", &applying, &apply, nameless.to_string());
    applied.await.ok(200);
}

#[tokio::test]
async fn patches_end_where_the_original_ends_them() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "b"})).await;
    let url = format!("{CONFIG_MAPS}/x");
    let unknown = json!({"nope": 1});
    let strict = c
        .patch(&format!("{url}?fieldValidation=Strict"), "merge", &unknown)
        .await;
    let status = strict.error(422, "Invalid");
    let text = message(&status);
    assert!(
        text.starts_with(" \"\" is invalid: patch: Invalid value: \"{"),
        "{text}"
    );
    assert!(
        text.ends_with("strict decoding error: unknown field \"nope\""),
        "{text}"
    );
    let status = c
        .patch(&url, "merge", &json!({"data": {"a": 1}}))
        .await
        .error(422, "Invalid");
    assert!(message(&status).starts_with(" \"\" is invalid: patch: Invalid value: \"{"));
    for (kind, body, code, text) in [
        (
            "merge",
            json!([]),
            400,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (
            "json",
            json!({}),
            400,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        (
            "json",
            json!([{"op": "jump", "path": "/data"}]),
            422,
            "the server rejected our request due to an error in our request",
        ),
    ] {
        let answer = c.patch(&url, kind, &body).await;
        assert_eq!(answer.code, code, "{body}");
        assert_eq!(message(&answer.json()), text);
    }
}

#[tokio::test]
async fn list_options_are_refused_in_the_original_s_words() {
    let c = Cluster::new().await;
    for (query, text) in [
        (
            "resourceVersion=abc",
            "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax",
        ),
        (
            "fieldSelector=foo%3Dx",
            "\"foo\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        let status = c
            .get(&format!("{CONFIG_MAPS}?{query}"))
            .await
            .error(400, "BadRequest");
        assert_eq!(message(&status), text);
    }
    let status = c
        .get(&format!("{PODS}?fieldSelector=foo%3Dx"))
        .await
        .error(400, "BadRequest");
    assert_eq!(message(&status), "field label not supported: foo");
}

#[tokio::test]
async fn owners_and_finalizers_are_blamed_as_the_original_blames_them() {
    let c = Cluster::new().await;
    let controller = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true});
    let mut map = config_map("x", &json!({}));
    map["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p"}, controller("a"), controller("b")]);
    map["metadata"]["finalizers"] = json!(["example.com/x", "plain"]);
    let status = c.post(CONFIG_MAPS, &map).await.error(422, "Invalid");
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.ownerReferences.uid",
            "metadata.ownerReferences",
            "metadata.finalizers[1]"
        ]
    );
    let text = causes[1]["message"].as_str().unwrap();
    assert!(
        text.ends_with("Found \"true\" in references for Pod/a and Pod/b"),
        "{text}"
    );
}

#[tokio::test]
async fn components_are_healthy_while_they_watch() {
    let c = Cluster::new().await;
    let url = "/api/v1/componentstatuses";
    let list = |answer: Value| -> Vec<(String, String)> {
        let items = answer["items"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        items
            .map(|item| {
                (
                    text(&item["metadata"]["name"]),
                    text(&item["conditions"][0]["status"]),
                )
            })
            .collect()
    };
    let told = |controllers: &str, scheduler: &str| {
        [
            ("controller-manager", controllers),
            ("scheduler", scheduler),
            ("etcd-0", "True"),
        ]
        .map(|(name, status)| (name.to_owned(), status.to_owned()))
    };
    let answer = c.get(url).await;
    assert_eq!(
        answer.warnings(),
        ["299 - \"v1 ComponentStatus is deprecated in v1.19+\""]
    );
    assert_eq!(list(answer.ok(200)), told("False", "False"));
    let scheduler = davit_access::UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
    let watch = c
        .send_as(&scheduler, "GET", &format!("{PODS}?watch=true"), &[], "")
        .await;
    assert_eq!(list(c.get(url).await.ok(200)), told("False", "True"));
    assert_eq!(
        c.get(&format!("{url}/scheduler")).await.ok(200)["conditions"][0]["message"],
        "ok"
    );
    drop(watch);
    assert_eq!(list(c.get(url).await.ok(200)), told("False", "False"));
    let one = c
        .get(&format!("{url}?fieldSelector=metadata.name%3Detcd-0"))
        .await
        .ok(200);
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let none = c.get(&format!("{url}?labelSelector=a")).await.ok(200);
    assert!(none["items"].as_array().unwrap().is_empty());
    c.get(&format!("{url}?fieldSelector=x%3Dy"))
        .await
        .error(400, "BadRequest");
    c.get(&format!("{url}/nobody")).await.error(404, "NotFound");
}

#[tokio::test]
async fn metrics_have_the_names_and_labels_that_dashboards_ask_for() {
    let c = Cluster::with(|options| {
        options.build = davit_apiserver::version::Build {
            commit: "c0ffee",
            date: "2026-01-01T00:00:00Z",
        };
    })
    .await;
    let mut watch = c.watch(&format!("{CONFIG_MAPS}?watch=true")).await;
    c.config_map("x", &json!({})).await;
    watch.next().await;
    c.get("/api/v1/namespaces/default/endpoints").await;
    let answer = c.get("/metrics").await;
    assert_eq!(
        answer.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = answer.text();
    let has = |name: &str, labels: &[&str]| {
        text.lines().any(|line| {
            line.starts_with(&format!("{name}{{"))
                && labels.iter().all(|label| line.contains(label))
        })
    };
    let create = [
        "verb=\"CREATE\"",
        "group=\"\"",
        "version=\"v1\"",
        "resource=\"configmaps\"",
        "scope=\"namespace\"",
    ];
    for name in [
        "apiserver_request_total",
        "apiserver_request_duration_seconds_bucket",
        "apiserver_request_sli_duration_seconds_count",
        "apiserver_response_sizes_sum",
    ] {
        assert!(has(name, &create), "{name} in {text}");
    }
    let trial = ["le=\"1.25\"", "dry_run=\"\"", "verb=\"CREATE\""];
    assert!(
        has("apiserver_request_duration_seconds_bucket", &trial),
        "{text}"
    );
    let maps = ["group=\"\"", "version=\"v1\"", "resource=\"configmaps\""];
    assert!(has("apiserver_watch_events_total", &maps), "{text}");
    let admission = [
        "operation=\"CREATE\"",
        "rejected=\"false\"",
        "type=\"validate\"",
    ];
    assert!(
        has(
            "apiserver_admission_step_admission_duration_seconds_count",
            &admission
        ),
        "{text}"
    );
    let lifecycle = [
        "name=\"NamespaceLifecycle\"",
        "operation=\"CREATE\"",
        "type=\"admit\"",
    ];
    assert!(
        has(
            "apiserver_admission_controller_admission_duration_seconds_count",
            &lifecycle
        ),
        "{text}"
    );
    assert!(
        has(
            "apiserver_requested_deprecated_apis",
            &["resource=\"endpoints\""]
        ),
        "{text}"
    );
    assert!(
        has("kubernetes_build_info", &["git_commit=\"c0ffee\""]),
        "{text}"
    );
    for kind in [
        "# TYPE apiserver_request_total counter",
        "# TYPE process_cpu_seconds_total counter",
        "apiserver_current_inflight_requests{request_kind=\"mutating\"} 0",
    ] {
        assert!(text.lines().any(|line| line == kind), "{kind} in {text}");
    }
    let accept = [("accept", "application/openmetrics-text;version=1.0.0")];
    let open = c.request("GET", "/metrics", &accept, "").await;
    assert!(
        open.header("content-type")
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text().ends_with("# EOF\n"));
    let version = c.get("/version").await.ok(200);
    assert_eq!(version["gitCommit"], "c0ffee");
    assert_eq!(version["buildDate"], "2026-01-01T00:00:00Z");
}

#[tokio::test]
async fn a_method_that_a_path_has_not_is_refused_in_a_status() {
    let c = Cluster::new().await;
    for (method, path) in [
        ("POST", "/api"),
        ("POST", "/version"),
        ("PUT", "/apis/apps/v1"),
        ("PUT", PODS),
        ("DELETE", "/api/v1/namespaces"),
        ("POST", "/api/v1/pods"),
    ] {
        let answer = c.request(method, path, &[], "{}").await;
        let status = answer.error(405, "MethodNotAllowed");
        let why = "the server does not allow this method on the requested resource";
        assert_eq!(message(&status), why, "{method} {path}");
        assert_eq!(status["details"], json!({}), "{method} {path}");
    }
    for (path, code) in [
        ("/api", 405),
        ("/version", 405),
        (PODS, 405),
        ("/metrics", 200),
    ] {
        let answer = c.request("HEAD", path, &[], "").await;
        assert_eq!(answer.code, code, "{path}");
    }
}

/// Fields without `omitempty` in Go, which typed clients rely on.
#[tokio::test]
async fn zeroes_that_go_writes_are_written() {
    let c = Cluster::new().await;
    let class = json!({"metadata": {"name": "none"}, "value": 0});
    let made = c
        .post("/apis/scheduling.k8s.io/v1/priorityclasses", &class)
        .await
        .ok(201);
    assert_eq!(made["value"], 0);
    let budget = json!({
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}},
    });
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let made = c.post(budgets, &budget).await.ok(201);
    let status = json!({
        "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
    });
    assert_eq!(made["status"], status);
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    let made = c
        .post("/api/v1/namespaces/default/events", &event)
        .await
        .ok(201);
    for name in ["reportingComponent", "reportingInstance"] {
        assert_eq!(made[name], "", "{name}");
    }
    let same = c
        .get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        .await
        .ok(200);
    for name in ["reportingController", "reportingInstance"] {
        assert_eq!(same.get(name), None, "{name}");
    }
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}],
    }}}});
    let made = c
        .post("/apis/batch/v1/namespaces/default/jobs", &job)
        .await
        .ok(201);
    assert_eq!(made["spec"]["manualSelector"], false);
    let scaler = json!({"metadata": {"name": "h"}, "spec": {
        "maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
    }});
    let scalers = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let made = c.post(scalers, &scaler).await.ok(201);
    assert_eq!(
        made["status"],
        json!({"currentReplicas": 0, "desiredReplicas": 0})
    );
}

/// A request of v1beta1 has its class beside the alternatives, and writes none as an empty one.
#[tokio::test]
async fn an_empty_class_in_v1beta1_is_none() {
    let c = Cluster::new().await;
    let claims =
        |version| format!("/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims");
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "d"}]},
    ]}}});
    let made = c.post(&claims("v1beta1"), &claim).await.ok(201);
    let request = |claim: &Value| claim["spec"]["devices"]["requests"][0].clone();
    assert_eq!(request(&made)["deviceClassName"], "");
    let same = c.get(&format!("{}/c", claims("v1"))).await.ok(200);
    assert_eq!(request(&same).get("exactly"), None);
    c.put(&format!("{}/c", claims("v1beta1")), &made)
        .await
        .ok(200);
}

#[tokio::test]
async fn what_the_server_sets_cannot_be_changed() {
    let c = Cluster::new().await;
    let mut made = c.config_map("x", &json!({})).await;
    let url = format!("{CONFIG_MAPS}/x");
    for (key, value) in [
        ("deletionTimestamp", json!("2020-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(5)),
    ] {
        let mut changed = made.clone();
        changed["metadata"][key] = value;
        let status = c.put(&url, &changed).await.error(422, "Invalid");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["field"], format!("metadata.{key}"));
        assert!(message(&status).ends_with("field is immutable"), "{status}");
    }
    let other = json!({"metadata": {"uid": "other"}});
    let status = c.patch(&url, "merge", &other).await.error(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.uid");
    made["metadata"]["uid"] = json!("other");
    c.put(&url, &made).await.error(409, "Conflict");
    let nameless = json!([{"op": "remove", "path": "/metadata/name"}]);
    let status = c.patch(&url, "json", &nameless).await;
    let status = status.error(400, "BadRequest");
    assert!(message(&status).contains("was undeterminable"), "{status}");
}

#[tokio::test]
async fn a_patch_does_not_change_what_kind_of_object_it_is() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let url = format!("{CONFIG_MAPS}/x");
    for patch in [json!({"kind": "Pod"}), json!({"apiVersion": "v2"})] {
        let same = c.patch(&url, "strategic-merge", &patch).await.ok(200);
        assert_eq!(
            (&same["kind"], &same["apiVersion"]),
            (&json!("ConfigMap"), &json!("v1"))
        );
        c.patch(&url, "merge", &patch).await.error(422, "Invalid");
    }
}

#[tokio::test]
async fn failed_preconditions_of_deletions_name_the_kind() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let options = json!({"preconditions": {"uid": "other"}});
    let status = c.delete(&format!("{CONFIG_MAPS}/x"), &options).await;
    let status = status.error(409, "Conflict");
    assert_eq!(status["details"]["kind"], "ConfigMap");
    let told = "Operation cannot be fulfilled on ConfigMap \"x\": the UID in the precondition (other) does not match";
    assert!(message(&status).starts_with(told), "{status}");
}

/// Events of both groups are one kind, and faults name it as that of the core group.
#[tokio::test]
async fn faults_of_events_name_the_kind_that_is_stored() {
    let c = Cluster::new().await;
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let refused = c.post(events, &json!({"metadata": {"name": "x"}})).await;
    let refused = refused.error(422, "Invalid");
    assert!(
        message(&refused).starts_with("Event \"x\" is invalid: "),
        "{refused}"
    );
    assert_eq!(refused["details"].get("group"), None);
    let event = json!({"metadata": {"name": "x", "finalizers": ["mine"]},
        "involvedObject": {"kind": "Pod", "namespace": "default"}, "type": "Normal"});
    // The core group's finalizers need no domain.
    c.post("/api/v1/namespaces/default/events", &event)
        .await
        .ok(201);
    let options = json!({"preconditions": {"uid": "other"}});
    let status = c.delete(&format!("{events}/x"), &options).await;
    let status = status.error(409, "Conflict");
    let told = "Operation cannot be fulfilled on Event \"x\": the UID in the precondition";
    assert!(message(&status).starts_with(told), "{status}");
}

#[tokio::test]
async fn a_deletion_succeeds_without_a_code() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let gone = c
        .delete(&format!("{CONFIG_MAPS}/x"), &Value::Null)
        .await
        .ok(200);
    assert_eq!(gone.get("code"), None);
}

#[tokio::test]
async fn status_writers_do_not_label_deployments() {
    let c = Cluster::new().await;
    let mut made = c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    made["metadata"]["labels"] = json!({"by": "status"});
    made["metadata"]["annotations"] = json!({"by": "status"});
    let url = format!("{DEPLOYMENTS}/web/status");
    let written = c.put(&url, &made).await.ok(200);
    assert_eq!(written["metadata"]["labels"].get("by"), None);
    assert_eq!(written["metadata"]["annotations"]["by"], "status");
}

#[tokio::test]
async fn reviews_have_a_selector_of_one_form() {
    let c = Cluster::new().await;
    let one = json!([{"key": "a", "operator": "In", "values": ["b"]}]);
    let review = |selector: Value| {
        json!({"spec": {"user": "u", "resourceAttributes": {
            "verb": "list", "resource": "pods", "namespace": "default", "labelSelector": selector,
        }}})
    };
    let group = "/apis/authorization.k8s.io/v1";
    let subject = format!("{group}/subjectaccessreviews");
    for (selector, field) in [
        (json!({}), "requirements"),
        (
            json!({"rawSelector": "a=b", "requirements": one}),
            "rawSelector",
        ),
        (
            json!({"requirements": [{"key": "a", "operator": "In"}]}),
            "requirements[0].values",
        ),
        (
            json!({"requirements": [{"key": "a!", "operator": "Exists"}]}),
            "requirements[0].key",
        ),
    ] {
        for kind in ["subject", "selfsubject", "namespaces/default/localsubject"] {
            let url = format!("{group}/{kind}accessreviews");
            let answer = c.post(&url, &review(selector.clone())).await;
            let status = answer.error(422, "Invalid");
            let path = format!("spec.resourceAttributes.labelSelector.{field}");
            assert_eq!(status["details"]["causes"][0]["field"], path, "{kind}");
        }
    }
    for selector in [
        json!({"rawSelector": "a in ("}),
        json!({"requirements": [{"key": "a", "operator": "Foo"}]}),
    ] {
        let answer = c.post(&subject, &review(selector)).await.ok(201);
        let told = "spec.resourceAttributes.labelSelector ignored due to parse error";
        assert_eq!(answer["status"]["evaluationError"], told);
    }
    let local = format!("{group}/namespaces/default/localsubjectaccessreviews");
    let mut good = review(json!({"requirements": one}));
    let answer = c.post(&local, &good).await.ok(201);
    assert_eq!(answer["metadata"]["namespace"], "default");
    assert_eq!(answer["status"].get("evaluationError"), None);
    good["spec"]["resourceAttributes"]["namespace"] = json!("other");
    let status = c.post(&local, &good).await.error(422, "Invalid");
    let field = &status["details"]["causes"][0]["field"];
    assert_eq!(field, "spec.resourceAttributes.namespace");
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    let none = json!({"spec": {"token": ""}});
    c.post(tokens, &none).await.error(400, "BadRequest");
}

#[tokio::test]
async fn items_of_lists_leave_it_to_the_list_to_say_what_they_are() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "b"})).await;
    c.service_account().await;
    for query in ["", "?pretty=true", "?limit=1"] {
        let list = c.get(&format!("{CONFIG_MAPS}{query}")).await.ok(200);
        assert_eq!(list["kind"], "ConfigMapList");
        let item = list["items"][0].as_object().unwrap();
        let keys: Vec<&String> = item.keys().collect();
        assert_eq!(keys, ["data", "metadata"], "{query}");
    }
    // another version of what is stored
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    c.post(events, &event).await.ok(201);
    let events = events.replace("/api/v1", "/apis/events.k8s.io/v1");
    let list = c.get(&events).await.ok(200);
    let item = &list["items"][0];
    assert_eq!((item.get("kind"), item.get("apiVersion")), (None, None));
    assert_eq!(item["metadata"]["name"], "e");
}
