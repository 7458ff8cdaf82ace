//! Items 11–19: forms of answers.

use serde_json::json;

use crate::cluster::*;
use crate::crds::{establish, shirt};

#[tokio::test]
async fn item_011_unknown_accept_is_406_and_empty_is_json() {
    let c = Cluster::new().await;
    let answer = c
        .request("GET", "/api/v1/namespaces", &[("accept", "text/foo")], "")
        .await;
    let status = answer.error(406, "NotAcceptable");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("406: Not Acceptable\n\nAvailable representations: application/json")
    );
    assert_eq!(status["details"], serde_json::json!({}));
    // of a form that is known of another version or kind, the others are named
    let table = "application/json;as=Table;v=v2;g=meta.k8s.io";
    let answer = c
        .request("GET", "/api/v1/namespaces", &[("accept", table)], "")
        .await;
    let status = answer.error(406, "NotAcceptable");
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("only the following media types are accepted: application/json"));
    let answer = c
        .request(
            "PATCH",
            "/api/v1/namespaces/default",
            &[("content-type", "text/plain")],
            "x",
        )
        .await;
    let status = answer.error(415, "UnsupportedMediaType");
    assert_eq!(status["message"], "415: Unsupported Media Type");
    for accept in ["", "*/*", "application/cbor,application/json"] {
        let answer = c
            .request("GET", "/api/v1/namespaces", &[("accept", accept)], "")
            .await;
        assert_eq!(
            answer.header("content-type"),
            "application/json",
            "{accept}"
        );
        answer.ok(200);
    }
}

#[tokio::test]
async fn items_012_and_067_protobuf_answers_lists_and_watches() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "b"})).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let accept = [("accept", protobuf)];
    let kinds = davit_api::kinds::builtin();
    let read = |body: &[u8]| davit_schema::protobuf::decode_object(kinds, body, None).unwrap();
    let answer = c
        .request("GET", &format!("{CONFIG_MAPS}/x"), &accept, "")
        .await;
    assert_eq!(answer.header("content-type"), protobuf);
    let map = read(&answer.body);
    assert_eq!(
        (map.kind.as_str(), &map.value["data"]["a"]),
        ("ConfigMap", &json!("b"))
    );
    let list = read(&c.request("GET", CONFIG_MAPS, &accept, "").await.body);
    assert_eq!(list.kind, "ConfigMapList");
    assert_eq!(list.value["items"][0]["metadata"]["name"], "x");
    // Lists are put together from the messages of their objects, made now or before, and are what the whole would be.
    for form in ["", ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"] {
        let (json, accept) = (
            format!("application/json{form}"),
            format!("{protobuf}{form}"),
        );
        let whole = async || {
            let accept = [("accept", json.as_str())];
            let whole = c.request("GET", CONFIG_MAPS, &accept, "").await.ok(200);
            davit_schema::protobuf::encode_object(kinds, &whole).unwrap()
        };
        // Others write meanwhile, which the lists' resourceVersion shows.
        let mut looks = 0;
        let mut before = whole().await;
        while looks < 2 {
            let list = c
                .request("GET", CONFIG_MAPS, &[("accept", &accept)], "")
                .await;
            let after = whole().await;
            if before == after {
                assert_eq!(list.body, after, "{form}");
                looks += 1;
            }
            before = after;
        }
    }
    let missing = c
        .request("GET", &format!("{CONFIG_MAPS}/y"), &accept, "")
        .await;
    let status = read(&missing.body);
    assert_eq!(
        (missing.code, &status.value["reason"]),
        (404, &json!("NotFound"))
    );
    let url = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1");
    let stream = [("accept", "application/vnd.kubernetes.protobuf;stream=watch")];
    let answer = c.request("GET", &url, &stream, "").await;
    assert_eq!(
        answer.header("content-type"),
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let length = u32::from_be_bytes(answer.body[..4].try_into().unwrap()) as usize;
    assert_eq!(answer.body.len(), 4 + length);
    // The event itself is bare, only its object is in an envelope.
    assert_eq!(&answer.body[4..11], b"\x0a\x05ADDED");
}

#[tokio::test]
async fn protobuf_bodies_of_typed_clients_are_read() {
    let c = Cluster::new().await;
    // ConfigMap{metadata{name: "x"}, data{"a": "b"}} in its envelope
    let body: Vec<u8> = [
        b"k8s\0".as_slice(),
        b"\x0a\x0f\x0a\x02v1\x12\x09ConfigMap",
        b"\x12\x0d\x0a\x03\x0a\x01x\x12\x06\x0a\x01a\x12\x01b",
    ]
    .concat();
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    let made = c
        .request("POST", CONFIG_MAPS, &protobuf, body)
        .await
        .ok(201);
    assert_eq!(made["metadata"]["name"], "x");
    assert_eq!(made["data"], json!({"a": "b"}));
}

#[tokio::test]
async fn item_014_yaml_goes_in_and_out() {
    let c = Cluster::new().await;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yam\ndata:\n  a: \"1\"\n";
    let headers = [
        ("content-type", "application/yaml"),
        ("accept", "application/yaml"),
    ];
    let answer = c.request("POST", CONFIG_MAPS, &headers, yaml).await;
    assert_eq!(answer.code, 201);
    assert_eq!(answer.header("content-type"), "application/yaml");
    assert!(answer.text().contains("name: yam"), "{}", answer.text());
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn item_015_tables_have_columns_and_partial_objects() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1"})).await;
    let table = c
        .request("GET", CONFIG_MAPS, &[("accept", TABLE)], "")
        .await
        .ok(200);
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["columnDefinitions"][0]["format"], "name");
    assert_eq!(table["rows"][0]["cells"][0], "x");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][0]["object"]["metadata"]["name"], "x");
    assert!(table["rows"][0]["object"].get("data").is_none());
    let one = format!("{CONFIG_MAPS}/x");
    let table = c
        .request("GET", &one, &[("accept", TABLE)], "")
        .await
        .ok(200);
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn item_016_include_object_chooses_the_rows_object() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1"})).await;
    let table = |include: &str| format!("{CONFIG_MAPS}?includeObject={include}");
    let full = c
        .request("GET", &table("Object"), &[("accept", TABLE)], "")
        .await
        .ok(200);
    assert_eq!(full["rows"][0]["object"]["data"]["a"], "1");
    let none = c
        .request("GET", &table("None"), &[("accept", TABLE)], "")
        .await
        .ok(200);
    assert!(none["rows"][0]["object"].is_null());
    let bad = c
        .request("GET", &table("Some"), &[("accept", TABLE)], "")
        .await;
    bad.error(400, "BadRequest");
}

#[tokio::test]
async fn item_017_partial_metadata_lists_in_json() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1"})).await;
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = c
        .request("GET", CONFIG_MAPS, &[("accept", accept)], "")
        .await
        .ok(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert!(list["items"][0].get("data").is_none());
}

/// Indented answers are written from values, plain ones are gathered from bytes.
#[tokio::test]
async fn items_015_to_017_gathered_lists_are_the_bytes_of_written_ones() {
    let c = Cluster::new().await;
    let annotated = json!({
        "metadata": {
            "name": "x", "labels": { "app": "a" },
            "annotations": { "text": "\u{e9} \u{1f980} \" \\ \n \u{7} <&>", "n": "1" },
        },
        "data": { "k": "v", "u": "\u{2028}" },
    });
    c.post(CONFIG_MAPS, &annotated).await.ok(201);
    c.config_map("y", &json!({})).await;
    c.service_account().await;
    for name in ["a", "b", "c"] {
        c.pod(name).await;
    }
    let ended = json!({ "status": { "phase": "Succeeded", "reason": "Done" } });
    c.patch(&format!("{PODS}/b/status"), "merge", &ended)
        .await
        .ok(200);
    let shirts = "/apis/stable.example.com/v1/namespaces/default/shirts";
    establish(&c, &crate::crds::shirts()).await;
    for n in 0..3 {
        let spec = json!({ "size": "\u{e9}\"", "color": "red", "count": n, "tags": ["a"] });
        let mut shirt = shirt(&format!("s{n}"), spec);
        shirt["metadata"]["annotations"] = json!({ "a": "b" });
        shirt["status"] = json!({ "list": [n, 1.5, 1e30] });
        c.post(shirts, &shirt).await.ok(201);
    }
    let scaler = json!({
        "metadata": { "name": "h" },
        "spec": {
            "maxReplicas": 3,
            "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" },
        },
    });
    let scalers = "namespaces/default/horizontalpodautoscalers";
    c.post(&format!("/apis/autoscaling/v2/{scalers}"), &scaler)
        .await
        .ok(201);
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    for path in [
        CONFIG_MAPS.to_owned(),
        PODS.to_owned(),
        format!("{PODS}?limit=2"),
        format!("{PODS}?labelSelector=none"),
        shirts.to_owned(),
        format!("/apis/autoscaling/v1/{scalers}"),
        "/api/v1/namespaces".to_owned(),
        "/api/v1/events".to_owned(),
        "/apis/rbac.authorization.k8s.io/v1/clusterroles".to_owned(),
        "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
    ] {
        let and = if path.contains('?') { '&' } else { '?' };
        for (query, accept) in [
            ("includeObject=None", TABLE),
            ("includeObject=Metadata", TABLE),
            ("includeObject=Object", TABLE),
            ("", partial),
        ] {
            same_bytes(&c, &format!("{path}{and}{query}"), accept).await;
        }
    }
}

async fn same_bytes(c: &Cluster, path: &str, accept: &str) {
    let mut last = (String::new(), String::new());
    // ages and revisions may change between the two
    for _ in 0..5 {
        let headers = [("accept", accept)];
        let plain = c.request("GET", path, &headers, "").await.text();
        let pretty = format!("{path}&pretty=true");
        let pretty = c.request("GET", &pretty, &headers, "").await.text();
        assert!(pretty.starts_with("{\n"), "{pretty}");
        let written = compact(&pretty) + "\n";
        if plain == written {
            return;
        }
        last = (plain, written);
    }
    assert_eq!(last.0, last.1, "{path}");
}

/// JSON without the space between its tokens.
fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    json.chars()
        .filter(|c| {
            let kept = in_string || !c.is_whitespace();
            if *c == '"' && !escaped {
                in_string = !in_string;
            }
            escaped = *c == '\\' && !escaped;
            kept
        })
        .collect()
}

#[tokio::test]
async fn bodies_have_the_order_of_fields_that_clients_know() {
    let c = Cluster::new().await;
    let config = json!({"metadata": {"name": "o"}, "data": {"b": "1", "a": "2"}});
    let made = c.post(CONFIG_MAPS, &config).await.text();
    let begins = |text: &str, start: &str| assert!(text.starts_with(start), "{text}");
    let head = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"o","namespace":"default","uid":""#;
    begins(&made, head);
    let read = c.get(&format!("{CONFIG_MAPS}/o")).await.text();
    assert_eq!(made, read);
    assert!(read.contains(r#""data":{"a":"2","b":"1"}"#), "{read}");
    let list = c.get(CONFIG_MAPS).await.text();
    begins(
        &list,
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":""#,
    );
    let missing = c.get(&format!("{CONFIG_MAPS}/none")).await.text();
    let status =
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"#;
    begins(&missing, status);
}

#[tokio::test]
async fn item_018_people_get_indented_json() {
    let c = Cluster::new().await;
    let plain = c.get("/api/v1/namespaces/default").await.text();
    assert_eq!(plain.lines().count(), 1);
    let pretty = c.get("/api/v1/namespaces/default?pretty=true").await.text();
    assert!(pretty.contains("\n  \"kind\": \"Namespace\""), "{pretty}");
    let curl = [("user-agent", "curl/8.0")];
    let curl = c
        .request("GET", "/api/v1/namespaces/default", &curl, "")
        .await
        .text();
    assert_eq!(curl, pretty);
}

#[tokio::test]
async fn item_019_empty_lists_have_items_and_a_revision() {
    let c = Cluster::new().await;
    let list = c.get("/api/v1/pods").await.ok(200);
    assert_eq!(list["kind"], "PodList");
    assert_eq!(list["items"], json!([]));
    assert!(rv(&list) > 0);
}
