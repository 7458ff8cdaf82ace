//! The items of the DRA checklist about the API, through the whole pipeline.

use davit_api::features::Features;
use serde_json::{Value, json};

use crate::cluster::*;
use crate::hook::{Hook, allow, review};

const V1: &str = "/apis/resource.k8s.io/v1";
const BETA: &str = "/apis/resource.k8s.io/v1beta1";

fn claims(version: &str) -> String {
    format!("{version}/namespaces/default/resourceclaims")
}

fn templates(version: &str) -> String {
    format!("{version}/namespaces/default/resourceclaimtemplates")
}

fn exactly(name: &str, members: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "k"});
    for (key, value) in members.as_object().unwrap() {
        exactly[key] = value.clone();
    }
    json!({"name": name, "exactly": exactly})
}

fn claim(name: &str, requests: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
}

fn slice(name: &str, devices: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "driver": "d.example", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": devices}})
}

async fn with_gates(list: &str) -> Cluster {
    let mut features = Features::default();
    features.set_all(list).unwrap();
    Cluster::with(|options| options.features = features).await
}

async fn patch(c: &Cluster, url: &str, media: &str, body: &Value) -> Value {
    let headers = [("content-type", media)];
    let answer = c.request("PATCH", url, &headers, body.to_string()).await;
    answer.ok(200)
}

#[track_caller]
fn invalid(answer: Answer, text: &str) {
    let status = answer.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(text), "{text}: {message}");
}

const PATCHES: [&str; 3] = [
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Create, read, replace, patch in four ways, list, delete.
#[tokio::test]
async fn item_2_all_kinds_are_written_in_every_way() {
    let c = Cluster::new().await;
    let spec = claim("x", json!([exactly("r", json!({}))]))["spec"].clone();
    let kinds = [
        (format!("{V1}/deviceclasses"), "DeviceClass", json!({})),
        (
            format!("{V1}/resourceslices"),
            "ResourceSlice",
            slice("x", json!([{"name": "a"}]))["spec"].clone(),
        ),
        (claims(V1), "ResourceClaim", spec.clone()),
        (
            templates(V1),
            "ResourceClaimTemplate",
            json!({"spec": spec}),
        ),
    ];
    for (url, kind, spec) in kinds {
        let new = json!({"metadata": {"name": "x", "labels": {"a": "1"}}, "spec": spec});
        let made = c.post(&url, &new).await.ok(201);
        assert_eq!(made["kind"], kind);
        let one = format!("{url}/x");
        let mut held = c.get(&one).await.ok(200);
        assert_eq!(held["metadata"]["uid"], made["metadata"]["uid"]);
        held["metadata"]["labels"]["a"] = json!("2");
        let put = c.put(&one, &held).await.ok(200);
        assert_eq!(put["metadata"]["labels"]["a"], "2");
        let json_patch = json!([{"op": "add", "path": "/metadata/labels/json", "value": "1"}]);
        patch(&c, &one, "application/json-patch+json", &json_patch).await;
        for (i, media) in PATCHES.iter().enumerate() {
            let change = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {
                "name": "x", "labels": {format!("patch-{i}"): "1"}}});
            let sent = if i == 2 {
                format!("{one}?fieldManager=test")
            } else {
                one.clone()
            };
            patch(&c, &sent, media, &change).await;
        }
        let list = c
            .get(&format!("{url}?labelSelector=json,patch-0,patch-1,patch-2"))
            .await
            .ok(200);
        assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
        c.delete(&one, &json!({})).await.ok(200);
        c.get(&one).await.error(404, "NotFound");
    }
}

#[tokio::test]
async fn item_3_an_empty_allocation_is_applied() {
    let c = Cluster::new().await;
    c.post(&claims(V1), &claim("c", json!([]))).await.ok(201);
    let status = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c"}, "status": {"allocation": {}}});
    let url = format!("{}/c/status?fieldManager=test&force=true", claims(V1));
    let answer = patch(&c, &url, PATCHES[2], &status).await;
    let allocation = &answer["status"]["allocation"];
    assert_eq!(*allocation, json!({"devices": {}}), "{answer}");
}

#[tokio::test]
async fn items_4_5_6_old_forms_are_read_and_told_as_they_were_written() {
    let c = Cluster::new().await;
    let old = slice(
        "s",
        json!([{"name": "a", "basic": {"attributes": {"m": {"string": "x"}}}}]),
    );
    c.post(&format!("{BETA}/resourceslices"), &old)
        .await
        .ok(201);
    let new = c.get(&format!("{V1}/resourceslices/s")).await.ok(200);
    assert_eq!(
        new["spec"]["devices"],
        json!([{"name": "a", "attributes": {"m": {"string": "x"}}}])
    );
    let new = slice(
        "t",
        json!([{"name": "b", "capacity": {"m": {"value": "1"}}}]),
    );
    c.post(&format!("{V1}/resourceslices"), &new).await.ok(201);
    let old = c.get(&format!("{BETA}/resourceslices/t")).await.ok(200);
    assert_eq!(
        old["spec"]["devices"],
        json!([{"name": "b", "basic": {"capacity": {"m": {"value": "1"}}}}])
    );

    let either = json!([{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "k"}]}]);
    c.post(&claims(BETA), &claim("f", either)).await.ok(201);
    let read = c.get(&format!("{}/f", claims(V1))).await.ok(200);
    let request = &read["spec"]["devices"]["requests"][0];
    assert_eq!(request["firstAvailable"][0]["name"], "a");
    assert!(request.get("exactly").is_none(), "{request}");

    let none = claim("g", json!([{"name": "r", "allocationMode": "ExactCount"}]));
    let at = "spec.devices.requests[0].deviceClassName: Required value";
    invalid(c.post(&claims(BETA), &none).await, at);
    invalid(
        c.post(&claims(BETA), &claim("g", json!([{"name": "r"}])))
            .await,
        at,
    );
    let none = claim("g", json!([{"name": "r", "exactly": {}}]));
    let at = "spec.devices.requests[0].exactly.deviceClassName: Required value";
    invalid(c.post(&claims(V1), &none).await, at);
    let template = json!({"metadata": {"name": "g"}, "spec": {"spec": {"devices": {"requests": [{"name": "r"}]}}}});
    let at = "spec.spec.devices.requests[0].deviceClassName: Required value";
    invalid(c.post(&templates(BETA), &template).await, at);
    let bad = slice(
        "u",
        json!([{"name": "a", "basic": {"attributes": {"m": {}}}}]),
    );
    let at = "spec.devices[0].basic.attributes[m]: Invalid value";
    invalid(c.post(&format!("{BETA}/resourceslices"), &bad).await, at);
    let bad = slice("u", json!([{"name": "A", "basic": {}}]));
    invalid(
        c.post(&format!("{BETA}/resourceslices"), &bad).await,
        "spec.devices[0].name: Invalid value",
    );
}

#[tokio::test]
async fn items_8_13_17_what_is_created_and_what_is_too_much() {
    let c = Cluster::new().await;
    let mut new = claim("c", json!([exactly("r", json!({}))]));
    new["status"] = json!({"allocation": {}});
    let made = c.post(&claims(V1), &new).await.ok(201);
    assert!(made["status"].get("allocation").is_none(), "8: {made}");

    let many = |n: usize| -> Value {
        (0..n)
            .map(|i| exactly(&format!("r{i}"), json!({})))
            .collect()
    };
    c.post(&claims(V1), &claim("many", many(32))).await.ok(201);
    invalid(
        c.post(&claims(V1), &claim("more", many(33))).await,
        "Too many: 33",
    );
    let subs = |n: usize| -> Value {
        let subs: Vec<Value> = (0..n)
            .map(|i| json!({"name": format!("s{i}"), "deviceClassName": "k"}))
            .collect();
        json!([{"name": "r", "firstAvailable": subs}])
    };
    c.post(&claims(V1), &claim("subs", subs(8))).await.ok(201);
    invalid(
        c.post(&claims(V1), &claim("more", subs(9))).await,
        "Too many: 9",
    );
    let select = |n: usize| -> Value {
        let selectors = vec![json!({"cel": {"expression": "true"}}); n];
        json!([exactly("r", json!({"selectors": selectors}))])
    };
    c.post(&claims(V1), &claim("selectors", select(32)))
        .await
        .ok(201);
    invalid(
        c.post(&claims(V1), &claim("more", select(33))).await,
        "Too many: 33",
    );

    let long = format!("device.driver == \"{}\"", "x".repeat(10_241 - 18));
    let nested = (0..7).fold("true".to_owned(), |inner, i| {
        format!("[1,2,3,4,5,6,7,8,9,10].all(x{i}, {inner})")
    });
    for (expression, fault) in [
        (long.as_str(), "Too long: may not be more than 10240 bytes"),
        ("device.driver ==", "compilation failed"),
        ("size(device.driver)", "must evaluate to bool"),
        (nested.as_str(), "too complex, exceeds cost limit"),
    ] {
        let selector = json!([{"cel": {"expression": expression}}]);
        let answer = c
            .post(
                &claims(V1),
                &claim("cel", json!([exactly("r", json!({"selectors": selector}))])),
            )
            .await;
        let status = answer.error(422, "Invalid");
        let cause = &status["details"]["causes"][0];
        assert_eq!(
            cause["field"],
            "spec.devices.requests[0].exactly.selectors[0].cel.expression"
        );
        assert!(
            cause["message"].as_str().unwrap().contains(fault),
            "{cause}"
        );
    }
}

#[tokio::test]
async fn item_19_admin_access_needs_the_label_whatever_plugins_are_off() {
    let config =
        davit_admission::Config::switched(Vec::new(), vec!["NamespaceLifecycle".to_owned()]);
    let chain = davit_admission::Chain::configured(&config).unwrap();
    let c = Cluster::with(|options| options.admission = chain).await;
    let spec = claim("c", json!([exactly("r", json!({"adminAccess": true}))]));
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": spec["spec"]}});
    let text = "`resource.kubernetes.io/admin-access: true` label on the containing namespace";
    let label = async |value: &str| {
        let labels =
            json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": value}}});
        patch(&c, "/api/v1/namespaces/default", PATCHES[0], &labels).await;
    };
    invalid(c.post(&claims(V1), &spec).await, text);
    label("True").await;
    invalid(c.post(&claims(V1), &spec).await, text);
    invalid(c.post(&templates(V1), &template).await, text);
    label("true").await;
    c.post(&claims(V1), &spec).await.ok(201);
    c.post(&templates(V1), &template).await.ok(201);
}

#[tokio::test]
async fn items_31_32_allocations_stay_until_they_are_cleared() {
    let c = Cluster::new().await;
    let mut held = c
        .post(&claims(V1), &claim("c", json!([exactly("r", json!({}))])))
        .await
        .ok(201);
    let url = format!("{}/c/status", claims(V1));
    let allocation = |device: &str| {
        json!({"devices": {"results": [
        {"request": "r", "driver": "d.example", "pool": "p", "device": device}]}})
    };
    let devices = |device: &str| json!([{"driver": "d.example", "pool": "p", "device": device, "data": {"a": 1}}]);
    held["status"] = json!({"allocation": allocation("a"), "reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]});
    held = c.put(&url, &held).await.ok(200);
    let mut other = held.clone();
    other["status"]["allocation"] = allocation("b");
    invalid(
        c.put(&url, &other).await,
        "status.allocation: Invalid value",
    );
    other = held.clone();
    other["status"]["devices"] = devices("b");
    invalid(
        c.put(&url, &other).await,
        "must be an allocated device in the claim",
    );
    held["status"]["devices"] = devices("a");
    held = c.put(&url, &held).await.ok(200);
    let mut freed = held.clone();
    freed["status"]
        .as_object_mut()
        .unwrap()
        .remove("allocation");
    invalid(c.put(&url, &freed).await, "status.reservedFor");
    freed["status"]["reservedFor"] = json!([]);
    let freed = c.put(&url, &freed).await.ok(200);
    assert!(freed["status"].get("devices").is_none(), "{freed}");
}

#[tokio::test]
async fn items_38_48_gates_decide_what_is_kept() {
    let listed = || {
        slice(
            "s",
            json!([{"name": "a", "attributes": {"l": {"strings": ["x"]}, "m": {"int": 1}}}]),
        )
    };
    let includes = claim(
        "c",
        json!([exactly(
            "r",
            json!({"selectors": [
        {"cel": {"expression": "device.attributes[\"d.example\"].l.includes(\"x\")"}}]})
        )]),
    );
    let slices = format!("{V1}/resourceslices");
    let c = Cluster::new().await;
    // an attribute without a value is none
    invalid(
        c.post(&slices, &listed()).await,
        "attributes[l]: Invalid value",
    );
    let at = "spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value";
    invalid(c.post(&claims(V1), &includes).await, at);
    let at = "spec.devices.requests[0].selectors[0].cel.expression: Invalid value";
    let mut old = includes.clone();
    old["spec"]["devices"]["requests"][0] = json!({"name": "r", "deviceClassName": "k",
        "selectors": includes["spec"]["devices"]["requests"][0]["exactly"]["selectors"]});
    invalid(c.post(&claims(BETA), &old).await, at);

    let c = with_gates("DRAListTypeAttributes=true,DRAConsumableCapacity=false").await;
    let mut made = c.post(&slices, &listed()).await.ok(201);
    assert_eq!(made["spec"]["devices"], listed()["spec"]["devices"]);
    c.post(&claims(V1), &includes).await.ok(201);
    made["spec"]["devices"][0]["allowMultipleAllocations"] = json!(true);
    let made = c.put(&format!("{slices}/s"), &made).await.ok(200);
    assert!(
        made["spec"]["devices"][0]
            .get("allowMultipleAllocations")
            .is_none(),
        "{made}"
    );
}

#[tokio::test]
async fn items_42_88_quotas_count_devices() {
    let c = Cluster::new().await;
    let classes = format!("{V1}/deviceclasses");
    let class =
        json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    c.post(&classes, &class).await.ok(201);
    let hard = json!({"gpu.deviceclass.resource.k8s.io/devices": "5", "requests.example.com/gpu": "5",
        "requests.deviceclass.resource.kubernetes.io/gpu": "5", "count/resourceclaims.resource.k8s.io": "2"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    c.post(quotas, &quota).await.ok(201);
    let ask = |name: &str, count: i32| {
        claim(
            name,
            json!([exactly(
                "r",
                json!({"deviceClassName": "gpu", "count": count})
            )]),
        )
    };
    c.post(&claims(V1), &ask("a", 5)).await.ok(201);
    let used = c.get(&format!("{quotas}/q")).await.ok(200)["status"]["used"].clone();
    assert_eq!(
        used,
        json!({"gpu.deviceclass.resource.k8s.io/devices": "5", "requests.example.com/gpu": "5",
        "requests.deviceclass.resource.kubernetes.io/gpu": "5", "count/resourceclaims.resource.k8s.io": "1"})
    );
    let refused = c
        .post(&claims(V1), &ask("b", 1))
        .await
        .error(403, "Forbidden");
    let text = refused["message"].as_str().unwrap();
    assert!(
        text.contains("exceeded quota: q, requested: gpu.deviceclass.resource.k8s.io/devices=1"),
        "{text}"
    );
    assert!(text.contains("requests.example.com/gpu=5"), "{text}");
    c.post(&claims(V1), &claim("c", json!([]))).await.ok(201);
    let refused = c
        .post(&claims(V1), &claim("d", json!([])))
        .await
        .error(403, "Forbidden");
    let text = refused["message"].as_str().unwrap();
    assert!(text.ends_with("exceeded quota: q, requested: count/resourceclaims.resource.k8s.io=1, \
        used: count/resourceclaims.resource.k8s.io=2, limited: count/resourceclaims.resource.k8s.io=2"), "{text}");
}

#[tokio::test]
async fn item_1_discovery_names_versions_and_kinds() {
    let c = Cluster::new().await;
    let group = c.get("/apis/resource.k8s.io").await.ok(200);
    let versions = group["versions"].as_array().unwrap().iter();
    let versions: Vec<&str> = versions.map(|v| v["version"].as_str().unwrap()).collect();
    assert_eq!(versions[..3], ["v1", "v1beta2", "v1beta1"]);
    assert!(versions.contains(&"v1alpha3"), "{versions:?}");
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let list = c.get(V1).await.ok(200);
    let resources = list["resources"].as_array().unwrap();
    for (name, namespaced) in [
        ("deviceclasses", false),
        ("resourceclaims", true),
        ("resourceclaims/status", true),
        ("resourceclaimtemplates", true),
        ("resourceslices", false),
    ] {
        let found = resources.iter().find(|r| r["name"] == name);
        assert_eq!(found.unwrap()["namespaced"], namespaced, "{name}");
    }
    let alpha = c.get("/apis/resource.k8s.io/v1alpha3").await.ok(200);
    let alpha = alpha["resources"].as_array().unwrap();
    for name in ["devicetaintrules", "resourcepoolstatusrequests"] {
        assert!(alpha.iter().any(|r| r["name"] == name), "{name}");
    }
}

/// 7: by the numbers of the fields, there and back.
#[tokio::test]
async fn item_7_kinds_come_and_go_as_protobuf() {
    let c = Cluster::new().await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let kinds = davit_api::kinds::builtin();
    let spec = claim("x", json!([exactly("r", json!({"count": 2}))]))["spec"].clone();
    let device = json!({"name": "a", "attributes": {"numa": {"int": 1}}, "capacity": {"memory": {"value": "4Gi"}}});
    for (url, kind, spec) in [
        (
            format!("{V1}/deviceclasses"),
            "DeviceClass",
            json!({"selectors": [{"cel": {"expression": "true"}}]}),
        ),
        (
            format!("{V1}/resourceslices"),
            "ResourceSlice",
            slice("x", json!([device]))["spec"].clone(),
        ),
        (claims(V1), "ResourceClaim", spec.clone()),
        (
            templates(V1),
            "ResourceClaimTemplate",
            json!({"spec": spec}),
        ),
    ] {
        let made = c
            .post(&url, &json!({"metadata": {"name": "x"}, "spec": spec}))
            .await
            .ok(201);
        let one = format!("{url}/x");
        let answer = c.request("GET", &one, &[("accept", protobuf)], "").await;
        assert_eq!(answer.header("content-type"), protobuf);
        let told = davit_schema::protobuf::decode_object(kinds, &answer.body, None).unwrap();
        assert_eq!(told.kind, kind);
        // Within a template the metadata has the defaults of a message.
        let of = |object: &Value| match kind {
            "ResourceClaimTemplate" => object["spec"]["spec"].clone(),
            _ => object["spec"].clone(),
        };
        assert_eq!(of(&told.value), of(&made));
        // The same bytes are taken as they were told.
        let headers = [("content-type", protobuf)];
        let put = c.request("PUT", &one, &headers, answer.body.clone()).await;
        assert_eq!(of(&put.ok(200)), of(&made));
    }
}

#[tokio::test]
async fn item_9_what_is_wished_never_changes() {
    let c = Cluster::new().await;
    let spec = claim("x", json!([exactly("r", json!({}))]))["spec"].clone();
    for (url, spec, name) in [
        (claims(V1), spec.clone(), "/spec/devices/requests/0/name"),
        (
            templates(V1),
            json!({"spec": spec}),
            "/spec/spec/devices/requests/0/name",
        ),
    ] {
        let new = json!({"metadata": {"name": "x"}, "spec": spec});
        let made = c.post(&url, &new).await.ok(201);
        let one = format!("{url}/x");
        let mut other = made.clone();
        *other.pointer_mut(name).unwrap() = json!("s");
        invalid(c.put(&one, &other).await, "field is immutable");
        let mut labelled = made;
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(
            c.put(&one, &labelled).await.ok(200)["metadata"]["labels"]["a"],
            "b"
        );
    }
}

#[tokio::test]
async fn items_10_22_35_slices_have_generations_and_places() {
    let c = Cluster::new().await;
    let url = format!("{V1}/resourceslices");
    let mut made = c.post(&url, &slice("a", json!([]))).await.ok(201);
    let one = format!("{url}/a");
    let generation = |slice: &Value| slice["metadata"]["generation"].as_i64().unwrap();
    let first = generation(&made);
    made["metadata"]["labels"] = json!({"a": "b"});
    made = c.put(&one, &made).await.ok(200);
    assert_eq!(generation(&made), first);
    made["spec"]["devices"] = json!([{"name": "d"}]);
    made = c.put(&one, &made).await.ok(200);
    assert_eq!(generation(&made), first + 1);
    for (place, value) in [
        ("/spec/driver", json!("e.example")),
        ("/spec/pool/name", json!("q")),
        ("/spec/nodeName", json!("m")),
    ] {
        let mut moved = made.clone();
        *moved.pointer_mut(place).unwrap() = value;
        invalid(c.put(&one, &moved).await, "field is immutable");
    }
    let mut other = slice("b", json!([]));
    other["spec"]["nodeName"] = json!("m");
    other["spec"]["driver"] = json!("e.example");
    other["spec"]["pool"]["name"] = json!("m");
    c.post(&url, &other).await.ok(201);
    let names = async |selector: &str| {
        let list = c.get(&format!("{url}?fieldSelector={selector}")).await;
        let list = list.ok(200);
        let items = list["items"].as_array().unwrap().iter();
        let names = items.map(|i| i["metadata"]["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<String>>()
    };
    assert_eq!(names("spec.nodeName=n").await, ["a"]);
    assert_eq!(names("spec.driver=e.example").await, ["b"]);
    assert_eq!(
        names("spec.nodeName=n,spec.driver=e.example").await,
        [""; 0]
    );
    let watched = format!("{url}?watch=1&timeoutSeconds=5&fieldSelector=spec.driver%3De.example");
    let mut events = c.watch_as(&watched, "application/json").await;
    assert_eq!(
        events.next().await.unwrap()["object"]["metadata"]["name"],
        "b"
    );
    let some = format!("{url}?fieldSelector=spec.nodeName%3Dm");
    c.delete(&some, &json!({})).await.ok(200);
    assert_eq!(names("").await, ["a"]);
}

#[tokio::test]
async fn items_36_37_tables_tell_states_and_places() {
    let c = Cluster::new().await;
    let rows = async |url: &str| {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let answer = c.request("GET", url, &[("accept", accept)], "").await;
        let table = answer.ok(200);
        let of = |list: &str, member: &str| -> Vec<Value> {
            let list = table[list].as_array().unwrap().iter();
            list.map(|entry| entry[member].clone()).collect()
        };
        (
            of("columnDefinitions", "name"),
            of("rows", "cells").remove(0),
        )
    };
    let state = async || {
        let (columns, cells) = rows(&claims(V1)).await;
        let at = columns.iter().position(|name| name == "State").unwrap();
        cells[at].as_str().unwrap().to_owned()
    };
    let new = claim("c", json!([exactly("r", json!({}))]));
    let mut held = c.post(&claims(V1), &new).await.ok(201);
    assert_eq!(state().await, "pending");
    held["metadata"]["finalizers"] = json!(["resource.kubernetes.io/delete-protection"]);
    let one = format!("{}/c", claims(V1));
    held = c.put(&one, &held).await.ok(200);
    held["status"] = json!({"allocation": {"devices": {"results": []}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]});
    c.put(&format!("{one}/status"), &held).await.ok(200);
    assert_eq!(state().await, "allocated,reserved");
    c.delete(&one, &json!({})).await.ok(200);
    assert_eq!(state().await, "deleted,allocated,reserved");

    let url = format!("{V1}/resourceslices");
    c.post(&url, &slice("s", json!([]))).await.ok(201);
    let (columns, cells) = rows(&url).await;
    assert_eq!(columns[..4], ["Name", "Node", "Driver", "Pool"]);
    let cells = cells.as_array().unwrap();
    assert_eq!(cells[..4], ["s", "n", "d.example", "p"]);
}

#[tokio::test]
async fn item_41_pods_name_one_source_and_containers_what_the_pod_has() {
    let c = Cluster::new().await;
    let pod = |entry: Value, used: &str| {
        json!({"metadata": {"name": "p"}, "spec": {"resourceClaims": [entry], "containers": [
            {"name": "c", "image": "i", "resources": {"claims": [{"name": used}]}}]}})
    };
    let account = json!({"metadata": {"name": "default"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    c.post(accounts, &account).await.ok(201);
    let url = "/api/v1/namespaces/default/pods";
    let both = json!({"name": "e", "resourceClaimName": "a", "resourceClaimTemplateName": "b"});
    for (entry, used, why) in [
        (both, "e", "spec.resourceClaims[0]"),
        (json!({"name": "e"}), "e", "spec.resourceClaims[0]"),
        (
            json!({"name": "e", "resourceClaimName": "a"}),
            "f",
            "spec.containers[0].resources.claims[0]",
        ),
    ] {
        invalid(c.post(url, &pod(entry, used)).await, why);
    }
    let fine = json!({"name": "e", "resourceClaimName": "a"});
    c.post(url, &pod(fine, "e")).await.ok(201);
}

/// A driver's webhook looks at the parameters that are meant for it, in the version it knows, whatever users write.
#[tokio::test]
async fn opaque_parameters_are_put_to_a_webhook() {
    let c = Cluster::new().await;
    let hook = Hook::new(&[], |r: &Value| {
        let object = &r["request"]["object"];
        assert_eq!(object["apiVersion"], "resource.k8s.io/v1");
        let devices = match object["kind"].as_str().unwrap() {
            "ResourceClaim" => &object["spec"]["devices"],
            _ => &object["spec"]["spec"]["devices"],
        };
        let configs = devices["config"].as_array().into_iter().flatten();
        let mut own = configs.filter(|c| c["opaque"]["driver"] == "d.example");
        let wrong = own.find(|c| c["opaque"]["parameters"]["mode"] != "fast");
        match wrong {
            None => allow(r),
            Some(config) => {
                let mode = &config["opaque"]["parameters"]["mode"];
                let message = format!("spec.devices.config: mode {mode} is not known");
                let status = json!({"message": message, "code": 422, "reason": "Invalid"});
                review(r, json!({"allowed": false, "status": status}))
            }
        }
    })
    .await;
    let rules = json!([{"operations": ["CREATE", "UPDATE"], "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"], "resources": ["resourceclaims", "resourceclaimtemplates"]}]);
    let webhook = json!({"name": "parameters.d.example", "clientConfig": hook.by_url(),
        "sideEffects": "None", "admissionReviewVersions": ["v1"], "matchPolicy": "Equivalent", "rules": rules});
    let url = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let configuration = json!({"metadata": {"name": "d"}, "webhooks": [webhook]});
    c.post(url, &configuration).await.ok(201);
    let config = |driver: &str, mode: &str| json!([{"opaque": {"driver": driver, "parameters": {"mode": mode}}}]);
    let wish = |version: &str, name: &str, config: Value| {
        let mut wish = claim(name, json!([exactly("r", json!({}))]));
        if version == BETA {
            let request = json!({"name": "r", "deviceClassName": "k"});
            wish["spec"]["devices"]["requests"] = json!([request]);
        }
        wish["spec"]["devices"]["config"] = config;
        wish
    };
    for version in [V1, BETA] {
        let named = |what: &str| format!("{what}-{}", version.len());
        for (name, config) in [
            ("good", config("d.example", "fast")),
            ("other", config("e.example", "whatever")),
        ] {
            let new = wish(version, &named(name), config);
            c.post(&claims(version), &new).await.ok(201);
        }
        let bad = wish(version, &named("bad"), config("d.example", "slow"));
        let why = "mode \"slow\" is not known";
        invalid(c.post(&claims(version), &bad).await, why);
        let bad = json!({"metadata": {"name": named("bad")}, "spec": {"spec": bad["spec"]}});
        invalid(c.post(&templates(version), &bad).await, why);
    }
    assert_eq!(hook.heard().len(), 8);
}
