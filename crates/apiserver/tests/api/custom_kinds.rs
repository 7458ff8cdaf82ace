//! Custom kinds: what clients see in the small, as kube-apiserver shows it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::*;
use crate::crds::establish;
use crate::hook::{Hook, Said};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

fn version(name: &str, spec: &Value) -> Value {
    json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}}}})
}

fn things(versions: &[Value]) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"}, "versions": versions}})
}

fn thing(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec})
}

async fn apply(c: &Cluster, query: &str, object: &Value) -> Answer {
    let url = format!("{THINGS}/a?fieldManager=m{query}");
    let media = [("content-type", "application/apply-patch+yaml")];
    c.request("PATCH", &url, &media, object.to_string()).await
}

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap()
}

#[tokio::test]
async fn an_applied_null_stays_where_it_is_a_value_and_is_refused_elsewhere() {
    let c = Cluster::new().await;
    let spec = json!({"plain": {"type": "string"}, "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "string", "nullable": true}, "set": {"type": "integer", "default": 3}});
    establish(&c, &things(&[version("v1", &spec)])).await;
    for (field, kind) in [("plain", "string"), ("map", "object")] {
        let answer = apply(&c, "", &thing(&json!({field: null}))).await;
        let status = answer.error(422, "Invalid");
        let text = format!(
            "Thing.example.com \"a\" is invalid: spec.{field}: Invalid value: \"null\": spec.{field} in \
             body must be of type {kind}: \"null\""
        );
        assert_eq!(message(&status), text);
    }
    let made = apply(&c, "", &thing(&json!({"free": null, "set": null}))).await;
    let made = made.ok(201);
    assert_eq!(made["spec"], json!({"free": null, "set": 3}));
    // other writers' nulls are nothing
    let patch = json!({"spec": {"plain": "x", "map": {"a": "b"}}});
    c.patch(&format!("{THINGS}/a"), "merge", &patch)
        .await
        .ok(200);
    let nothing = json!([{"op": "add", "path": "/spec/plain", "value": null}]);
    let patched = c.patch(&format!("{THINGS}/a"), "json", &nothing).await;
    assert_eq!(patched.ok(200)["spec"].get("plain"), None);
}

#[tokio::test]
async fn a_null_is_a_change_and_counts() {
    let c = Cluster::new().await;
    let spec = json!({"free": {"type": "string", "nullable": true}});
    establish(&c, &things(&[version("v1", &spec)])).await;
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    let add = json!([{"op": "add", "path": "/spec/free", "value": null}]);
    let url = format!("{THINGS}/a");
    let patched = c.patch(&url, "json", &add).await.ok(200);
    assert_eq!(patched["metadata"]["generation"], 2);
    let labelled = json!({"metadata": {"labels": {"x": "y"}}});
    let patched = c.patch(&url, "merge", &labelled).await.ok(200);
    assert_eq!(patched["metadata"]["generation"], 2);
}

#[tokio::test]
async fn defaults_are_those_of_the_version_that_is_stored() {
    let c = Cluster::new().await;
    let text = |default: &str| json!({"type": "string", "default": default});
    let plain = json!({"type": "string"});
    let stored = json!({"a": text("one"), "b": plain, "only1": text("1")});
    let other = json!({"a": text("two"), "b": text("bee"), "only2": text("2")});
    establish(
        &c,
        &things(&[version("v1", &stored), version("v2", &other)]),
    )
    .await;
    let v2 = THINGS.replace("/v1/", "/v2/");
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    for url in [format!("{v2}/a"), v2.clone()] {
        let answer = c.get(&url).await.ok(200);
        let spec = answer.pointer("/items/0/spec").unwrap_or(&answer["spec"]);
        assert_eq!(*spec, json!({"a": "one"}), "{url}");
    }
    // what the stored version does not know is not kept, and not told as if it were
    let mut b = thing(&json!({}));
    b["apiVersion"] = json!("example.com/v2");
    b["metadata"]["name"] = json!("b");
    let made = c.post(&v2, &b).await.ok(201);
    assert_eq!(made["spec"], json!({"a": "two", "b": "bee"}));
    assert_eq!(
        c.get(&format!("{v2}/b")).await.ok(200)["spec"],
        made["spec"]
    );
    let seen = c.get(&format!("{THINGS}/b")).await.ok(200);
    assert_eq!(seen["spec"], json!({"a": "two", "b": "bee", "only1": "1"}));
}

#[tokio::test]
async fn a_definition_that_goes_takes_no_objects_and_serves_while_it_is_held() {
    let c = Cluster::new().await;
    let mut definition = things(&[version("v1", &json!({"x": {"type": "string"}}))]);
    definition["metadata"]["finalizers"] = json!(["example.com/hold"]);
    establish(&c, &definition).await;
    let mut held = thing(&json!({}));
    held["metadata"] = json!({"name": "held", "finalizers": ["example.com/x"]});
    c.post(THINGS, &held).await.ok(201);
    let url = format!("{CRDS}/things.example.com");
    c.delete(&url, &Value::Null).await.ok(200);
    let refused = "things.example.com \"a\" is forbidden: create not allowed while custom resource definition \
                   is terminating";
    for _ in 0..200 {
        if c.post(&format!("{THINGS}?dryRun=All"), &thing(&json!({})))
            .await
            .code
            == 403
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let status = c
        .post(THINGS, &thing(&json!({})))
        .await
        .error(403, "Forbidden");
    assert_eq!(message(&status), refused);
    let status = apply(&c, "", &thing(&json!({})))
        .await
        .error(403, "Forbidden");
    assert_eq!(message(&status), refused);
    let release = json!({"metadata": {"finalizers": null}});
    c.patch(&format!("{THINGS}/held"), "merge", &release)
        .await
        .ok(200);
    let ours = json!(["example.com/hold"]);
    for _ in 0..1000 {
        if c.get(&url).await.ok(200)["metadata"]["finalizers"] == ours {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(c.get(&url).await.ok(200)["metadata"]["finalizers"], ours);
    c.get(THINGS).await.ok(200);
    c.get("/apis/example.com/v1").await.ok(200);
    c.post(THINGS, &thing(&json!({})))
        .await
        .error(403, "Forbidden");
    c.patch(&url, "merge", &release).await.ok(200);
    for _ in 0..200 {
        if c.get(THINGS).await.code == 404 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the kind is still served");
}

#[tokio::test]
async fn another_kind_in_the_body_is_invalid_and_says_where() {
    let c = Cluster::new().await;
    establish(&c, &things(&[version("v1", &json!({}))])).await;
    let other = |key: &str, value: &str| {
        let mut object = thing(&json!({}));
        object[key] = json!(value);
        object
    };
    let kind = "Foo.example.com \"a\" is invalid: kind: Invalid value: \"Foo\": must be Thing";
    let status = c
        .post(THINGS, &other("kind", "Foo"))
        .await
        .error(422, "Invalid");
    assert_eq!(message(&status), kind);
    assert_eq!(status["details"]["causes"][0]["field"], "kind");
    let status = c.post(THINGS, &other("apiVersion", "example.com/v2")).await;
    status.error(400, "BadRequest");
    let status = c
        .post(THINGS, &other("apiVersion", ""))
        .await
        .error(400, "BadRequest");
    assert_eq!(
        message(&status),
        "the API version in the data () does not match the expected API version (example.com/v1)"
    );
    let status = c
        .post(THINGS, &json!({"metadata": {"name": "a"}}))
        .await
        .error(400, "BadRequest");
    let text = message(&status);
    assert!(
        text.contains("(must be of type Thing): Object 'Kind' is missing in '"),
        "{text}"
    );
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    let url = format!("{THINGS}/a");
    let status = c
        .put(&url, &other("kind", "Foo"))
        .await
        .error(422, "Invalid");
    assert_eq!(message(&status), kind);
    let status = c
        .patch(&url, "merge", &json!({"kind": "Foo"}))
        .await
        .error(422, "Invalid");
    assert_eq!(message(&status), kind);
    let patch = json!({"apiVersion": "example.com/v9"});
    let status = c.patch(&url, "merge", &patch).await.error(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "apiVersion");
}

#[tokio::test]
async fn objects_without_a_count_can_be_scaled() {
    let c = Cluster::new().await;
    let mut version = version(
        "v1",
        &json!({"n": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}}}),
    );
    version["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}});
    establish(&c, &things(&[version.clone()])).await;
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    let scale = format!("{THINGS}/a/scale?fieldManager=s");
    let status = c.get(&scale).await.error(500, "InternalError");
    assert!(message(&status).ends_with("the spec replicas field \".spec.n\" does not exist"));
    let scaled = c
        .patch(&scale, "merge", &json!({"spec": {"replicas": 4}}))
        .await
        .ok(200);
    assert_eq!(scaled["spec"]["replicas"], 4);
    let object = c.get(&format!("{THINGS}/a")).await.ok(200);
    assert_eq!(object["spec"]["n"], 4);
    // who owns the count is told of the object, not of its scale
    assert_eq!(
        c.get(&scale).await.ok(200)["metadata"].get("managedFields"),
        None
    );
    let status = c
        .patch(&scale, "merge", &json!({"spec": {"replicas": -1}}))
        .await
        .error(422, "Invalid");
    assert_eq!(
        message(&status),
        "Thing.example.com \"a\" is invalid: .spec.n: Invalid value: -1: should be a non-negative integer"
    );
    let nameless =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 1}});
    c.put(&scale, &nameless).await.error(400, "BadRequest");
}

#[tokio::test]
async fn a_scale_path_is_names_between_dots() {
    let c = Cluster::new().await;
    let list = json!({"list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    let mut version = version("v1", &list);
    version["subresources"] = json!({"scale": {"specReplicasPath": ".spec.list[0].n", "statusReplicasPath": ".status.n"}});
    establish(&c, &things(&[version])).await;
    c.post(THINGS, &thing(&json!({"list": [{"n": 3}]})))
        .await
        .ok(201);
    let status = c
        .get(&format!("{THINGS}/a/scale"))
        .await
        .error(500, "InternalError");
    assert!(
        message(&status).ends_with("the spec replicas field \".spec.list[0].n\" does not exist")
    );
}

#[tokio::test]
async fn faults_of_a_status_and_of_what_stands_in_a_path() {
    let c = Cluster::new().await;
    let mut version = version("v1", &json!({"n": {"type": "integer"}}));
    version["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.n",
        "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.selector"}});
    establish(&c, &things(&[version])).await;
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    let url = format!("{THINGS}/a/status");
    let status = c
        .patch(&url, "merge", &json!({"status": {"n": "x"}}))
        .await
        .error(422, "Invalid");
    assert_eq!(
        message(&status),
        "Thing.example.com \"a\" is invalid: [status.n: Invalid value: \"string\": n in body must be of type \
         integer: \"string\", .status.n: Invalid value: 0: .status.n accessor error: x is of the type string, \
         expected int64]"
    );
    let status = c
        .patch(&url, "merge", &json!({"status": ["x", 1]}))
        .await
        .error(422, "Invalid");
    let text = message(&status);
    assert!(
        text.contains(".status.selector accessor error: [x 1] is of the type []interface {}, expected map[string]interface{}"),
        "{text}"
    );
}

#[tokio::test]
async fn finalizers_that_are_added_are_warned_about() {
    let c = Cluster::new().await;
    establish(&c, &things(&[version("v1", &json!({}))])).await;
    let mut object = thing(&json!({}));
    object["metadata"]["finalizers"] = json!(["x.y", "plain", "orphan", "example.com/fine"]);
    let warned = c.post(THINGS, &object).await.warnings();
    let text = |name: &str, with: &str| {
        format!(
            "299 - \"metadata.finalizers: \\\"{name}\\\": prefer a domain-qualified finalizer name{with} to avoid \
             accidental conflicts with other finalizer writers\""
        )
    };
    assert_eq!(
        warned,
        [text("plain", ""), text("x.y", " including a path (/)")]
    );
    let patch = json!({"metadata": {"finalizers": ["x.y", "plain", "orphan", "new"]}});
    let warned = c
        .patch(&format!("{THINGS}/a"), "merge", &patch)
        .await
        .warnings();
    assert_eq!(warned, [text("new", "")]);
}

#[tokio::test]
async fn rules_show_scalars_and_nothing_larger() {
    let c = Cluster::new().await;
    let mut version = version(
        "v1",
        &json!({"name": {"type": "string", "maxLength": 9,
        "x-kubernetes-validations": [{"rule": "self.startsWith('x')", "message": "begins with x"}]}}),
    );
    let spec = version
        .pointer_mut("/schema/openAPIV3Schema/properties/spec")
        .unwrap();
    spec["x-kubernetes-validations"] = json!([{"rule": "has(self.name)", "message": "has a name"}]);
    establish(&c, &things(&[version])).await;
    let said = |answer: Answer| message(&answer.error(422, "Invalid")).to_owned();
    assert_eq!(
        said(c.post(THINGS, &thing(&json!({"name": "y"}))).await),
        "Thing.example.com \"a\" is invalid: spec.name: Invalid value: \"y\": begins with x"
    );
    assert_eq!(
        said(c.post(THINGS, &thing(&json!({}))).await),
        "Thing.example.com \"a\" is invalid: spec: Invalid value: has a name"
    );
}

/// Fifty who watch a kind in a version that a slow webhook makes cost it as many calls as there are events.
#[tokio::test]
async fn a_converter_is_asked_once_whoever_watches() {
    let converter = Hook::new(&[], |question: &Value| {
        let request = &question["request"];
        let mut objects = request["objects"].clone();
        for object in objects.as_array_mut().unwrap() {
            object["apiVersion"] = request["desiredAPIVersion"].clone();
        }
        let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
            "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}});
        Said {
            after: Duration::from_millis(500),
            ..answer.into()
        }
    })
    .await;
    let c = Cluster::new().await;
    let mut definition = things(&[version("v1", &json!({})), {
        let mut other = version("v2", &json!({}));
        other["storage"] = json!(false);
        other
    }]);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": converter.by_url()}});
    establish(&c, &definition).await;
    let others = "/apis/example.com/v2/namespaces/default/things?watch=1";
    let mut watches = Vec::new();
    for _ in 0..50 {
        watches.push(c.watch(others).await);
    }
    c.post(THINGS, &thing(&json!({}))).await.ok(201);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    c.patch(&format!("{THINGS}/a"), "merge", &label)
        .await
        .ok(200);
    let before = std::time::Instant::now();
    let all = watches.iter_mut().map(async |events| {
        for kind in ["ADDED", "MODIFIED"] {
            let event = events.next().await.unwrap();
            assert_eq!(event["type"], kind, "{event}");
            assert_eq!(event["object"]["apiVersion"], "example.com/v2");
        }
    });
    futures::future::join_all(all).await;
    assert_eq!(converter.heard().len(), 2);
    assert!(before.elapsed() < Duration::from_secs(5));
}
