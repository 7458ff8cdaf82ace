//! Items 142–162: custom kinds.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::*;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SHIRTS: &str = "/apis/stable.example.com/v1/namespaces/default/shirts";

fn definition(group: &str, plural: &str, kind: &str, versions: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind}, "versions": versions},
    })
}

fn version(name: &str, storage: bool, schema: Value) -> Value {
    json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
}

fn object_schema(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

pub(crate) fn shirts() -> Value {
    let mut version = version(
        "v1",
        true,
        object_schema(json!({"spec": {"type": "object", "properties": {
            "color": {"type": "string"}, "size": {"type": "string"},
            "count": {"type": "integer", "default": 1, "minimum": 0},
            "note": {"type": "string", "nullable": true},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        }}, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})),
    );
    version["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    version["additionalPrinterColumns"] = json!([
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "Size", "type": "string", "jsonPath": ".spec.size", "priority": 1}]);
    version["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.count",
        "statusReplicasPath": ".status.count", "labelSelectorPath": ".status.selector"}});
    let mut definition = definition("stable.example.com", "shirts", "Shirt", json!([version]));
    definition["spec"]["names"]["shortNames"] = json!(["sh"]);
    definition["spec"]["names"]["categories"] = json!(["all"]);
    definition
}

pub(crate) fn shirt(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "Shirt",
        "metadata": {"name": name}, "spec": spec})
}

/// Makes a definition and waits until it is established.
pub(crate) async fn establish(c: &Cluster, definition: &Value) -> Value {
    c.post(CRDS, definition).await.ok(201);
    wait(c, definition, "Established").await
}

async fn wait(c: &Cluster, definition: &Value, condition: &str) -> Value {
    let name = definition["metadata"]["name"].as_str().unwrap();
    let url = format!("{CRDS}/{name}");
    for _ in 0..200 {
        let object = c.get(&url).await.json();
        let conditions = object["status"]["conditions"].as_array().cloned();
        let is = |c: &Value| c["type"] == condition && c["status"] == "True";
        if conditions.unwrap_or_default().iter().any(is) {
            return object;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} is not {condition}: {:?}", c.get(&url).await.text());
}

#[tokio::test]
async fn item_142_a_definition_is_served_at_once_and_discovered() {
    let c = Cluster::new().await;
    let made = establish(&c, &shirts()).await;
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "ShirtList");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(
        made["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    let stored = c
        .post(SHIRTS, &shirt("a", json!({"color": "blue"})))
        .await
        .ok(201);
    assert_eq!(stored["spec"]["count"], 1);
    assert_eq!(stored["metadata"]["generation"], 1);
    let list = c.get("/apis/stable.example.com/v1").await.ok(200);
    let shown = &list["resources"][0];
    assert_eq!(shown["name"], "shirts");
    assert_eq!(shown["singularName"], "shirt");
    assert_eq!(shown["shortNames"], json!(["sh"]));
    assert_eq!(shown["categories"], json!(["all"]));
    let index = c.get("/openapi/v3").await.ok(200);
    let path = "apis/stable.example.com/v1";
    let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap();
    let document = c.get(url).await.ok(200);
    let schema = &document["components"]["schemas"]["com.example.stable.v1.Shirt"];
    assert_eq!(
        schema["x-kubernetes-group-version-kind"][0]["kind"],
        "Shirt"
    );
    assert_eq!(
        schema["properties"]["spec"]["properties"]["count"]["default"],
        1
    );
    let selectable = json!([{"fieldPath": "spec.color"}]);
    assert_eq!(schema["x-kubernetes-selectable-fields"], selectable);
    let v2 = c.get("/openapi/v2").await.ok(200);
    let list = &v2["definitions"]["com.example.stable.v1.ShirtList"];
    assert_eq!(list["x-kubernetes-selectable-fields"], selectable);
    // Without a namespace there are lists and watches, and no other path.
    let all = "/apis/stable.example.com/v1/shirts";
    c.get(all).await.ok(200);
    for path in [format!("{all}/a"), format!("{all}/a/status")] {
        assert_eq!(c.get(&path).await.code, 404, "{path}");
    }
    let posted = c.post(all, &shirt("a", json!({}))).await;
    assert_eq!(posted.code, 404);
}

/// Who sees a kind in discovery reads its definition, changes it and writes it back: it is not written any more then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn discovery_shows_kinds_whose_definitions_say_that_they_are_established() {
    let c = Cluster::new().await;
    for round in 0..20 {
        let group = format!("g{round}.example.com");
        let schema = object_schema(json!({}));
        let made = definition(
            &group,
            "shirts",
            "Shirt",
            json!([version("v1", true, schema)]),
        );
        c.post(CRDS, &made).await.ok(201);
        let (path, url) = (format!("/apis/{group}"), format!("{CRDS}/shirts.{group}"));
        let deadline = Instant::now() + Duration::from_secs(10);
        while c.get(&path).await.code != 200 {
            assert!(Instant::now() < deadline, "{group} is not discovered");
        }
        let mut read = c.get(&url).await.ok(200);
        assert_eq!(read["status"]["acceptedNames"]["kind"], "Shirt", "{read}");
        read["metadata"]["labels"] = json!({"read": "early"});
        c.put(&url, &read).await.ok(200);
    }
}

#[tokio::test]
async fn item_143_schemas_that_are_not_structural_are_refused() {
    let c = Cluster::new().await;
    let bad = definition(
        "example.com",
        "bads",
        "Bad",
        json!([version(
            "v1",
            true,
            object_schema(json!({"a": {"properties": {}}}))
        )]),
    );
    let error = c.post(CRDS, &bad).await.error(422, "Invalid");
    assert_eq!(
        error["message"],
        "CustomResourceDefinition.apiextensions.k8s.io \"bads.example.com\" is invalid: \
         spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for \
         specified object fields"
    );
}

#[tokio::test]
async fn item_144_to_146_objects_are_pruned_defaulted_and_judged() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    let strict = format!("{SHIRTS}?fieldValidation=Strict");
    let body = shirt("a", json!({"color": "red", "colour": "red"}));
    let error = c.post(&strict, &body).await.error(400, "BadRequest");
    assert_eq!(
        error["message"],
        "Shirt in version \"v1\" cannot be handled as a Shirt: strict decoding error: unknown \
         field \"spec.colour\""
    );
    let answer = c.post(SHIRTS, &body).await;
    assert_eq!(
        answer.warnings(),
        ["299 - \"unknown field \\\"spec.colour\\\"\""]
    );
    let stored = answer.ok(201);
    assert_eq!(stored["spec"], json!({"color": "red", "count": 1}));
    // unset, null and zero differ
    let body = shirt(
        "b",
        json!({"count": 0, "note": null, "color": null, "size": ""}),
    );
    let stored = c.post(SHIRTS, &body).await.ok(201);
    assert_eq!(
        stored["spec"],
        json!({"count": 0, "note": null, "size": ""})
    );
    let wrong = shirt("c", json!({"count": "3", "tags": ["a", "a"]}));
    let error = c.post(SHIRTS, &wrong).await.error(422, "Invalid");
    assert_eq!(
        error["message"],
        "Shirt.stable.example.com \"c\" is invalid: [spec.count: Invalid value: \"string\": \
         spec.count in body must be of type integer: \"string\", .spec.count: Invalid value: 0: \
         .spec.count accessor error: 3 is of the type string, expected int64, spec.tags[1]: Duplicate value: \
         \"a\"]"
    );
    // a default that is added later applies to what was stored before
    let url = format!("{CRDS}/shirts.stable.example.com");
    let patch = json!([{"op": "add", "value": "L",
        "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default"}]);
    let media = [("content-type", "application/json-patch+json")];
    c.request("PATCH", &url, &media, patch.to_string())
        .await
        .ok(200);
    for _ in 0..200 {
        if c.get(&format!("{SHIRTS}/a")).await.json()["spec"]["size"] == "L" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let list = c.get(SHIRTS).await.ok(200);
    assert_eq!(list["items"][0]["spec"]["size"], "L");
    assert_eq!(list["items"][1]["spec"]["size"], "");
}

#[tokio::test]
async fn item_013_083_custom_kinds_have_no_protobuf_and_no_strategic_merge() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    c.post(SHIRTS, &shirt("a", json!({}))).await.ok(201);
    let url = format!("{SHIRTS}/a");
    let protobuf = "application/vnd.kubernetes.protobuf";
    let answer = c.request("GET", &url, &[("accept", protobuf)], "").await;
    assert_eq!(answer.code, 406);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let why = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    assert!(text.contains(why), "{text}");
    let both = "application/vnd.kubernetes.protobuf,application/json";
    c.request("GET", &url, &[("accept", both)], "")
        .await
        .ok(200);
    let patch = json!({"spec": {"color": "x"}});
    let refused = c.patch(&url, "strategic-merge", &patch).await;
    refused.error(415, "UnsupportedMediaType");
    let merged = c.patch(&url, "merge", &patch).await.ok(200);
    assert_eq!(merged["spec"]["color"], "x");
    assert_eq!(merged["metadata"]["generation"], 2);
    // 37
    let mut unconditional = shirt("a", json!({}));
    let error = c.put(&url, &unconditional).await.error(422, "Invalid");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("must be specified for an update")
    );
    unconditional["metadata"]["resourceVersion"] = merged["metadata"]["resourceVersion"].clone();
    c.put(&url, &unconditional).await.ok(200);
}

#[tokio::test]
async fn item_108_apply_merges_by_the_schema() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    let url = format!("{SHIRTS}/a");
    let media = [("content-type", "application/apply-patch+yaml")];
    let one = shirt("a", json!({"tags": ["x"]})).to_string();
    let query = format!("{url}?fieldManager=one");
    c.request("PATCH", &query, &media, one).await.ok(201);
    let two = shirt("a", json!({"tags": ["y"]})).to_string();
    let query = format!("{url}?fieldManager=two");
    let merged = c.request("PATCH", &query, &media, two).await.ok(200);
    assert_eq!(merged["spec"]["tags"], json!(["x", "y"]));
}

#[tokio::test]
async fn item_153_versions_without_conversion_show_the_same_object() {
    let c = Cluster::new().await;
    let schema = object_schema(json!({"spec": {"type": "object", "properties": {
        "a": {"type": "string"}}}}));
    let both = json!([
        version("v1beta1", false, schema.clone()),
        version("v1", true, schema)
    ]);
    let made = definition("example.com", "things", "Thing", both);
    establish(&c, &made).await;
    let group = c.get("/apis/example.com").await.ok(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let old = "/apis/example.com/v1beta1/namespaces/default/things";
    let new = "/apis/example.com/v1/namespaces/default/things";
    let mut events = c.watch(&format!("{new}?watch=1")).await;
    let thing = json!({"apiVersion": "example.com/v1beta1", "kind": "Thing",
        "metadata": {"name": "t"}, "spec": {"a": "x"}});
    let stored = c.post(old, &thing).await.ok(201);
    assert_eq!(stored["apiVersion"], "example.com/v1beta1");
    let event = events.next().await.unwrap();
    assert_eq!(event["object"]["apiVersion"], "example.com/v1");
    for (url, wanted) in [(old, "example.com/v1beta1"), (new, "example.com/v1")] {
        let object = c.get(&format!("{url}/t")).await.ok(200);
        assert_eq!(object["apiVersion"], wanted);
        assert_eq!(object["spec"]["a"], "x");
        let list = c.get(url).await.ok(200);
        assert_eq!(list["items"][0]["apiVersion"], wanted);
    }
    // item 155
    let url = format!("{CRDS}/things.example.com");
    let mut current = c.get(&url).await.json();
    current["spec"]["versions"][0]["storage"] = json!(true);
    current["spec"]["versions"][1]["storage"] = json!(false);
    let changed = c.put(&url, &current).await.ok(200);
    assert_eq!(
        changed["status"]["storedVersions"],
        json!(["v1", "v1beta1"])
    );
    let mut current = c.get(&url).await.json();
    current["spec"]["versions"]
        .as_array_mut()
        .unwrap()
        .remove(1);
    let error = c.put(&url, &current).await.error(422, "Invalid");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(
            "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions"
        ),
        "{message}"
    );
    let object = c.get(&format!("{new}/t")).await.ok(200);
    assert_eq!(object["apiVersion"], "example.com/v1");
}

#[tokio::test]
async fn item_156_status_and_scale() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    let mut body = shirt("a", json!({"count": 2}));
    body["status"] = json!({"count": 9});
    let made = c.post(SHIRTS, &body).await.ok(201);
    assert!(made.get("status").is_none());
    let url = format!("{SHIRTS}/a");
    let status = json!({"status": {"count": 1, "selector": "a=b"}, "spec": {"count": 7},
        "metadata": {"labels": {"x": "y"}}});
    let written = c
        .patch(&format!("{url}/status"), "merge", &status)
        .await
        .ok(200);
    assert_eq!(written["spec"]["count"], 2);
    assert_eq!(written["metadata"]["generation"], 1);
    assert!(written["metadata"].get("labels").is_none());
    let scale = c.get(&format!("{url}/scale")).await.ok(200);
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": "a=b"}));
    let patch = json!({"spec": {"replicas": 5}});
    let scaled = c
        .patch(&format!("{url}/scale"), "merge", &patch)
        .await
        .ok(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let object = c.get(&url).await.ok(200);
    assert_eq!(object["spec"]["count"], 5);
    assert_eq!(object["metadata"]["generation"], 2);
    let other = definition(
        "example.com",
        "plains",
        "Plain",
        json!([version("v1", true, json!({"type": "object"}))]),
    );
    establish(&c, &other).await;
    let base = "/apis/example.com/v1/namespaces/default/plains";
    let plain = json!({"apiVersion": "example.com/v1", "kind": "Plain", "metadata": {"name": "p"}});
    c.post(base, &plain).await.ok(201);
    assert_eq!(c.get(&format!("{base}/p/status")).await.code, 404);
    assert_eq!(c.get(&format!("{base}/p/scale")).await.code, 404);
}

#[tokio::test]
async fn item_157_158_fields_select_and_columns_print() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    let blue = format!("{SHIRTS}?fieldSelector=spec.color%3Dblue");
    let mut events = c.watch(&format!("{blue}&watch=1")).await;
    for (name, color) in [("a", "blue"), ("b", "red"), ("c", "blue")] {
        c.post(SHIRTS, &shirt(name, json!({"color": color, "size": "M"})))
            .await
            .ok(201);
    }
    let list = c.get(&blue).await.ok(200);
    let names: Vec<&Value> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(events.summary().await, ("ADDED".to_owned(), "a".to_owned()));
    assert_eq!(events.summary().await, ("ADDED".to_owned(), "c".to_owned()));
    let other = format!("{SHIRTS}?fieldSelector=spec.size%3DM");
    let error = c.get(&other).await.error(400, "BadRequest");
    assert_eq!(error["message"], "field label not supported: spec.size");
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = c
        .request("GET", SHIRTS, &[("accept", accept)], "")
        .await
        .ok(200);
    let names: Vec<&Value> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| &column["name"])
        .collect();
    assert_eq!(names, ["Name", "Color", "Size"]);
    assert_eq!(table["columnDefinitions"][2]["priority"], 1);
    assert_eq!(table["rows"][1]["cells"], json!(["b", "red", "M"]));
}

#[tokio::test]
async fn item_159_the_second_to_ask_for_a_name_is_not_served() {
    let c = Cluster::new().await;
    let schema = json!({"type": "object"});
    let first = definition(
        "example.com",
        "foos",
        "Foo",
        json!([version("v1", true, schema.clone())]),
    );
    establish(&c, &first).await;
    let mut second = definition(
        "example.com",
        "bars",
        "Foo",
        json!([version("v1", true, schema)]),
    );
    second["spec"]["names"]["listKind"] = json!("BarList");
    second["spec"]["names"]["singular"] = json!("bar");
    c.post(CRDS, &second).await.ok(201);
    let url = format!("{CRDS}/bars.example.com");
    let mut reason = String::new();
    for _ in 0..200 {
        let object = c.get(&url).await.json();
        let conditions = object["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if let Some(found) = conditions.iter().find(|c| c["type"] == "NamesAccepted") {
            assert_eq!(found["status"], "False");
            assert_eq!(found["message"], "\"Foo\" is already in use");
            reason = found["reason"].as_str().unwrap().to_owned();
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(reason, "KindConflict");
    let served = "/apis/example.com/v1/namespaces/default/bars";
    assert_eq!(c.get(served).await.code, 404);
    // the name is free when the first goes
    c.delete(&format!("{CRDS}/foos.example.com"), &Value::Null)
        .await
        .ok(200);
    wait(&c, &second, "Established").await;
    c.get(served).await.ok(200);
}

/// A definition of a built-in kind in a version of its own: objects that nobody has judged, and all gone with the definition.
#[tokio::test]
async fn a_definition_of_a_built_in_kind_is_not_served() {
    let c = Cluster::new().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let group = "rbac.authorization.k8s.io";
    let mut roles = definition(
        group,
        "clusterroles",
        "ClusterRole",
        json!([version("v9", true, schema)]),
    );
    roles["spec"]["scope"] = json!("Cluster");
    roles["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, x"});
    let held = |list: Value| list["items"].as_array().unwrap().len();
    let all = format!("/apis/{group}/v1/clusterroles");
    let role = json!({"metadata": {"name": "held"}, "rules": []});
    c.post(&all, &role).await.ok(201);
    let before = held(c.get(&all).await.json());
    assert!(before > 0);
    c.post(CRDS, &roles).await.ok(201);
    let url = format!("{CRDS}/clusterroles.{group}");
    let mut told = Value::Null;
    for _ in 0..500 {
        let object = c.get(&url).await.json();
        let conditions = object["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        if let Some(found) = conditions.find(|c| c["type"] == "NamesAccepted") {
            told = found;
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        (&told["status"], &told["reason"]),
        (&json!("False"), &json!("PluralConflict"))
    );
    let other = format!("/apis/{group}/v9/clusterroles");
    assert_eq!(c.get(&other).await.code, 404);
    c.delete(&url, &Value::Null).await.ok(200);
    for _ in 0..500 {
        if c.get(&url).await.code == 404 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(c.get(&url).await.code, 404);
    assert_eq!(held(c.get(&all).await.json()), before);
}

#[tokio::test]
async fn item_160_078_deleting_a_definition_deletes_its_objects() {
    let c = Cluster::new().await;
    establish(&c, &shirts()).await;
    let mut held = shirt("held", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/wait"]);
    c.post(SHIRTS, &held).await.ok(201);
    c.post(SHIRTS, &shirt("free", json!({}))).await.ok(201);
    let url = format!("{CRDS}/shirts.stable.example.com");
    c.delete(&url, &Value::Null).await.ok(200);
    wait(&c, &shirts(), "Terminating").await;
    let error = c
        .post(SHIRTS, &shirt("more", json!({})))
        .await
        .error(403, "Forbidden");
    assert_eq!(
        error["message"],
        "shirts.stable.example.com \"more\" is forbidden: create not allowed while custom resource definition is terminating"
    );
    let mut events = c.watch(&format!("{SHIRTS}?watch=1")).await;
    let patch = json!({"metadata": {"finalizers": null}});
    c.patch(&format!("{SHIRTS}/held"), "merge", &patch)
        .await
        .ok(200);
    for _ in 0..400 {
        if c.get(&url).await.code == 404 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(c.get(&url).await.code, 404);
    assert_eq!(c.get(SHIRTS).await.code, 404);
    while events.next().await.is_some() {}
    // nothing of it is left for the next definition of the name
    establish(&c, &shirts()).await;
    let list = c.get(SHIRTS).await.ok(200);
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn item_161_the_groups_of_the_project_need_an_approval() {
    let c = Cluster::new().await;
    let schema = json!({"type": "object"});
    let mut mine = definition(
        "x.k8s.io",
        "mines",
        "Mine",
        json!([version("v1", true, schema)]),
    );
    let error = c.post(CRDS, &mine).await.error(422, "Invalid");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("metadata.annotations[api-approved.kubernetes.io]: Required value"),
        "{message}"
    );
    mine["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    let made = establish(&c, &mine).await;
    let conditions = made["status"]["conditions"].as_array().unwrap();
    let found = conditions
        .iter()
        .find(|c| c["type"] == "KubernetesAPIApprovalPolicyConformant");
    assert_eq!(found.unwrap()["reason"], "UnapprovedAnnotation");
}

#[tokio::test]
async fn item_143_a_stored_schema_that_is_not_structural_is_told_until_it_is_mended() {
    let c = Cluster::new().await;
    let mut old = shirts();
    let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    old.pointer_mut(properties).unwrap()["color"] = json!({"minLength": 1});
    old["metadata"]["uid"] = json!("6a4f3d5e-0000-4000-8000-000000000001");
    old["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    // as an older server may have left it
    let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/shirts.stable.example.com";
    let write = davit_store::Write::put(key, old.to_string());
    c.store().commit(write).await.unwrap();
    let told = wait(&c, &old, "NonStructuralSchema").await;
    let conditions = told["status"]["conditions"].as_array().unwrap();
    let found = conditions
        .iter()
        .find(|c| c["type"] == "NonStructuralSchema");
    let found = found.unwrap();
    assert_eq!(found["reason"], "Violations");
    assert_eq!(
        found["message"],
        "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[color].type: \
         Required value: must not be empty for specified object fields"
    );
    let url = format!("{CRDS}/shirts.stable.example.com");
    let color = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/type";
    let patch = json!([{"op": "add", "path": color, "value": "string"}]);
    c.patch(&url, "json", &patch).await.ok(200);
    for _ in 0..500 {
        let now = c.get(&url).await.json();
        let conditions = now["status"]["conditions"].as_array().unwrap();
        if conditions
            .iter()
            .all(|c| c["type"] != "NonStructuralSchema")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition stays: {}", c.get(&url).await.text());
}

#[tokio::test]
async fn names_and_versions_of_definitions_are_checked() {
    let c = Cluster::new().await;
    let mut bad = shirts();
    bad["metadata"]["name"] = json!("other.stable.example.com");
    bad["spec"]["versions"][0]["storage"] = json!(false);
    bad["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".metadata.name"},
        {"jsonPath": ".spec.missing"}]);
    bad["spec"]["versions"][0]["additionalPrinterColumns"][0]["type"] = json!("text");
    let error = c.post(CRDS, &bad).await.error(422, "Invalid");
    let causes: Vec<String> = error["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap().to_owned())
        .collect();
    for field in [
        "metadata.name",
        "spec.versions",
        "spec.additionalPrinterColumns[0].type",
        "spec.selectableFields[1].jsonPath",
    ] {
        assert!(
            causes.iter().any(|cause| cause == field),
            "{field} in {causes:?}"
        );
    }
}

#[tokio::test]
async fn lists_and_warnings_go_by_what_the_definition_names() {
    let c = Cluster::new().await;
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut versions =
        ["v1", "v2", "v3beta1", "v3"].map(|name| version(name, name == "v3", any.clone()));
    for old in &mut versions[..3] {
        old["deprecated"] = json!(old["name"] != "v2");
    }
    versions[0]["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}});
    let mut pants = definition("lists.example.com", "pants", "Pant", json!(versions));
    pants["spec"]["names"]["listKind"] = json!("Wardrobe");
    establish(&c, &pants).await;

    let url = |version: &str| format!("/apis/lists.example.com/{version}/namespaces/default/pants");
    let mut pant =
        json!({"apiVersion": "lists.example.com/v2", "kind": "Pant", "metadata": {"name": "a"}});
    c.post(&url("v2"), &pant).await.ok(201);
    for accept in [
        "application/json",
        "application/json;pretty=1",
        "application/yaml",
    ] {
        let answer = c
            .request("GET", &url("v2"), &[("accept", accept)], "")
            .await;
        assert!(answer.text().contains("Wardrobe"), "{}", answer.text());
    }
    let warned = |version| {
        let url = url(version);
        let c = &c;
        async move { c.get(&url).await.warnings() }
    };
    assert_eq!(
        warned("v1").await,
        ["299 - \"lists.example.com/v1 Pant is deprecated; use lists.example.com/v3 Pant\""]
    );
    assert!(warned("v2").await.is_empty());
    let resources = c.get("/apis/lists.example.com/v1").await.ok(200);
    let resources = resources["resources"].as_array().unwrap();
    let names: Vec<_> = resources
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["pants", "pants/status", "pants/scale"]);

    // a dry run does not reach the storage, which alone minds a resourceVersion
    pant["metadata"] = json!({"name": "b", "resourceVersion": "5"});
    c.post(&format!("{}?dryRun=All", url("v2")), &pant)
        .await
        .ok(201);
    c.post(&url("v2"), &pant).await.error(500, "");
}
