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
    let scheduler =
        davit_apiserver::UserInfo::new("system:kube-scheduler", &["system:authenticated"]);
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
