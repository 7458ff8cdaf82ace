//! Items 30–47: metadata and validation.

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_030_uid_and_creation_time_are_the_servers() {
    let c = Cluster::new().await;
    let mut map = config_map("x", &json!({}));
    map["metadata"]["uid"] = json!("mine");
    map["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let made = c.post(CONFIG_MAPS, &map).await.ok(201);
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_ne!(
        made["metadata"]["creationTimestamp"],
        "2001-01-01T00:00:00Z"
    );
}

#[tokio::test]
async fn item_031_create_with_a_resource_version_fails() {
    let c = Cluster::new().await;
    let mut map = config_map("x", &json!({}));
    map["metadata"]["resourceVersion"] = json!("5");
    let status = c.post(CONFIG_MAPS, &map).await.error(500, "");
    assert_eq!(
        status["message"],
        "resourceVersion should not be set on objects to be created"
    );
    // what else is wrong is said first
    map["metadata"]["name"] = json!("Not A Name");
    c.post(CONFIG_MAPS, &map).await.error(422, "Invalid");
}

#[tokio::test]
async fn item_032_generate_name_appends_five_characters() {
    let c = Cluster::new().await;
    for (base, kept) in [("abc-", 4), (&*"x".repeat(80), 58)] {
        let map = json!({"metadata": {"generateName": base}});
        let made = c.post(CONFIG_MAPS, &map).await.ok(201);
        let name = made["metadata"]["name"].as_str().unwrap();
        assert_eq!(name.len(), kept + 5);
        assert_eq!(&name[..kept], &base[..kept]);
        assert!(
            name[kept..]
                .chars()
                .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c))
        );
    }
}

#[tokio::test]
async fn item_033_and_034_url_and_body_must_agree() {
    let c = Cluster::new().await;
    let made = c.config_map("x", &json!({})).await;
    let status = c
        .put(&format!("{CONFIG_MAPS}/y"), &made)
        .await
        .error(400, "BadRequest");
    assert_eq!(
        status["message"],
        "the name of the object (x) does not match the name on the URL (y)"
    );
    let mut other = config_map("z", &json!({}));
    other["metadata"]["namespace"] = json!("kube-system");
    let status = c.post(CONFIG_MAPS, &other).await.error(400, "BadRequest");
    assert_eq!(
        status["message"],
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn item_035_and_047_metadata_rules_name_their_fields() {
    let c = Cluster::new().await;
    let cases = [
        (json!({"name": "UPPER"}), "metadata.name"),
        (
            json!({"name": "x", "labels": {"-bad": "x"}}),
            "metadata.labels",
        ),
        (
            json!({"name": "x", "labels": {"ok": "bad value"}}),
            "metadata.labels",
        ),
        (
            json!({"name": "x", "annotations": {"a/b/c": "x"}}),
            "metadata.annotations",
        ),
        (
            json!({"name": "x", "annotations": {"a": "x".repeat(300_000)}}),
            "metadata.annotations",
        ),
        (
            json!({"name": "x", "finalizers": ["nodomain"]}),
            "metadata.finalizers",
        ),
        (json!({}), "metadata.name"),
    ];
    for (metadata, field) in cases {
        let status = c.post(CONFIG_MAPS, &json!({"metadata": metadata})).await;
        let status = status.error(422, "Invalid");
        let found = status["details"]["causes"][0]["field"].as_str().unwrap();
        assert!(found.starts_with(field), "{field}: {status}");
    }
}

#[tokio::test]
async fn item_036_put_with_another_uid_conflicts() {
    let c = Cluster::new().await;
    let mut made = c.config_map("x", &json!({})).await;
    let uid = made["metadata"]["uid"].clone();
    made["metadata"]["uid"] = json!("other");
    let status = c
        .put(&format!("{CONFIG_MAPS}/x"), &made)
        .await
        .error(409, "Conflict");
    let message = status["message"].as_str().unwrap();
    let wanted = format!(
        "Precondition failed: UID in precondition: other, UID in object meta: {}",
        uid.as_str().unwrap()
    );
    assert!(message.ends_with(&wanted), "{message}");
}

#[tokio::test]
async fn item_037_put_without_rv_is_unconditional_for_config_maps() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1"})).await;
    let new = c
        .put(
            &format!("{CONFIG_MAPS}/x"),
            &config_map("x", &json!({"a": "2"})),
        )
        .await
        .ok(200);
    assert_eq!(new["data"]["a"], "2");
}

#[tokio::test]
async fn item_038_generation_counts_spec_changes_only() {
    let c = Cluster::new().await;
    let made = c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let url = format!("{DEPLOYMENTS}/web");
    let labelled = c
        .patch(&url, "merge", &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok(200);
    assert_eq!(labelled["metadata"]["generation"], 1);
    let status = json!({"status": {"replicas": 1}});
    let with_status = c
        .patch(&format!("{url}/status"), "merge", &status)
        .await
        .ok(200);
    assert_eq!(with_status["metadata"]["generation"], 1);
    let scaled = c
        .patch(&url, "merge", &json!({"spec": {"replicas": 5}}))
        .await
        .ok(200);
    assert_eq!(scaled["metadata"]["generation"], 2);
    assert_eq!(scaled["status"]["replicas"], 1);
}

#[tokio::test]
async fn item_039_writes_that_change_nothing_keep_the_rv() {
    let c = Cluster::new().await;
    c.service_account().await;
    for (collection, name, object) in [
        (CONFIG_MAPS, "x", config_map("x", &json!({"a": "1"}))),
        (DEPLOYMENTS, "web", deployment("web")),
        (PODS, "p", pod("p")),
    ] {
        let made = c.post(collection, &object).await.ok(201);
        let url = format!("{collection}/{name}");
        let read = c.get(&url).await.ok(200);
        let put = c.put(&url, &read).await.ok(200);
        assert_eq!(rv(&put), rv(&made), "{url}");
        let patched = c
            .patch(&url, "merge", &json!({"metadata": {"name": name}}))
            .await
            .ok(200);
        assert_eq!(rv(&patched), rv(&made), "{url}");
        let status = c.patch(&format!("{url}/status"), "merge", &json!({})).await;
        if status.code == 200 {
            assert_eq!(rv(&status.json()), rv(&made), "{url}");
        }
    }
}

#[tokio::test]
async fn item_040_and_041_finalizers_hold_a_deleted_object() {
    let c = Cluster::new().await;
    let mut map = config_map("x", &json!({}));
    map["metadata"]["finalizers"] = json!(["a.example/b"]);
    c.post(CONFIG_MAPS, &map).await.ok(201);
    let url = format!("{CONFIG_MAPS}/x");
    let marked = c.delete(&url, &Value::Null).await.ok(200);
    assert_eq!(marked["kind"], "ConfigMap");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["a.example/b", "c.example/d"]}});
    let status = c.patch(&url, "merge", &more).await.error(422, "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("no new finalizers can be added if the object is being deleted"),
        "{message}"
    );
    assert_eq!(
        c.post(CONFIG_MAPS, &map).await.error(409, "AlreadyExists")["message"],
        "object is being deleted: configmaps \"x\" already exists"
    );
    let last = c
        .patch(&url, "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .ok(200);
    assert_eq!(last["metadata"]["name"], "x");
    c.get(&url).await.error(404, "NotFound");
}

#[tokio::test]
async fn item_042_two_controllers_are_refused() {
    let c = Cluster::new().await;
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true});
    let mut map = config_map("x", &json!({}));
    map["metadata"]["ownerReferences"] = json!([owner("a"), owner("b")]);
    c.post(CONFIG_MAPS, &map).await.error(422, "Invalid");
}

#[tokio::test]
async fn item_043_dry_run_checks_everything_and_stores_nothing() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}?dryRun=All");
    let made = c.post(&url, &config_map("x", &json!({}))).await.ok(201);
    assert!(made["metadata"]["uid"].is_string());
    assert!(made["metadata"].get("resourceVersion").is_none());
    c.get(&format!("{CONFIG_MAPS}/x"))
        .await
        .error(404, "NotFound");
    let url = format!("{CONFIG_MAPS}?dryRun=");
    c.post(&url, &config_map("x", &json!({})))
        .await
        .error(422, "Invalid");
    c.delete(&format!("{CONFIG_MAPS}/x?dryRun="), &Value::Null)
        .await
        .error(422, "Invalid");
    let url = format!("{CONFIG_MAPS}?dryRun=x");
    let status = c
        .post(&url, &config_map("x", &json!({})))
        .await
        .error(422, "Invalid");
    assert_eq!(status["details"]["kind"], "CreateOptions");
    assert_eq!(status["details"]["group"], "meta.k8s.io");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "FieldValueNotSupported"
    );
    c.config_map("x", &json!({"a": "1"})).await;
    let one = format!("{CONFIG_MAPS}/x");
    let dry = c
        .patch(
            &format!("{one}?dryRun=All"),
            "merge",
            &json!({"data": {"a": "2"}}),
        )
        .await;
    assert_eq!(dry.ok(200)["data"]["a"], "2");
    c.delete(&format!("{one}?dryRun=All"), &Value::Null)
        .await
        .ok(200);
    assert_eq!(c.get(&one).await.ok(200)["data"]["a"], "1");
}

#[tokio::test]
async fn item_044_field_validation_ignores_warns_or_refuses() {
    let c = Cluster::new().await;
    let body = |name: &str| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\"}},\
             \"unknown\":1,\"data\":{{\"a\":\"1\",\"a\":\"2\"}}}}"
        )
    };
    let json = [("content-type", "application/json")];
    let url = |mode: &str| format!("{CONFIG_MAPS}?fieldValidation={mode}");
    let strict = c.request("POST", &url("Strict"), &json, body("a")).await;
    let strict = strict.error(400, "BadRequest");
    assert_eq!(
        strict["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: \
         unknown field \"unknown\", duplicate field \"data.a\""
    );
    let warn = c.request("POST", &url("Warn"), &json, body("b")).await;
    assert_eq!(
        warn.warnings(),
        [
            r#"299 - "unknown field \"unknown\"""#,
            r#"299 - "duplicate field \"data.a\"""#
        ]
    );
    assert_eq!(warn.ok(201)["data"]["a"], "2");
    let apply = [("content-type", "application/apply-patch+yaml")];
    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata:\n  a: v\n  a: w\n";
    let url_of = |mode: &str| format!("{CONFIG_MAPS}/d?fieldManager=m&fieldValidation={mode}");
    let strict = c.request("PATCH", &url_of("Strict"), &apply, applied).await;
    assert_eq!(
        strict.error(400, "BadRequest")["message"],
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  \
         line 6: key \"a\" already set in map"
    );
    let ignored = c.request("PATCH", &url_of("Ignore"), &apply, applied).await;
    assert_eq!(ignored.ok(201)["data"]["a"], "w");
    let ignore = c.request("POST", &url("Ignore"), &json, body("c")).await;
    assert!(ignore.warnings().is_empty());
    ignore.ok(201);
    c.request("POST", &url("Odd"), &json, body("d"))
        .await
        .error(422, "Invalid");
}

#[tokio::test]
async fn item_045_long_field_managers_are_refused() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}?fieldManager={}", "m".repeat(129));
    let status = c
        .post(&url, &config_map("x", &json!({})))
        .await
        .error(422, "Invalid");
    assert_eq!(status["details"]["causes"][0]["field"], "fieldManager");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "FieldValueTooLong"
    );
    let url = format!("{CONFIG_MAPS}?fieldManager={}", "m".repeat(128));
    c.post(&url, &config_map("x", &json!({}))).await.ok(201);
}

#[tokio::test]
async fn item_046_missing_and_terminating_namespaces_take_nothing() {
    let c = Cluster::new().await;
    let map = config_map("x", &json!({}));
    let status = c
        .post("/api/v1/namespaces/nope/configmaps", &map)
        .await
        .error(404, "NotFound");
    assert_eq!(status["message"], "namespaces \"nope\" not found");
    c.post(
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "going"}}),
    )
    .await
    .ok(201);
    let accounts = "/api/v1/namespaces/going/serviceaccounts";
    let account = json!({"metadata": {"name": "robot"}});
    c.post(accounts, &account).await.ok(201);
    c.delete("/api/v1/namespaces/going", &Value::Null)
        .await
        .ok(200);
    let status = c
        .post("/api/v1/namespaces/going/configmaps", &map)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "configmaps \"x\" is forbidden: unable to create new content in namespace going because it \
         is being terminated"
    );
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let unnamed = json!({"metadata": {"generateName": "x-"}});
    let status = c
        .post("/api/v1/namespaces/going/configmaps", &unnamed)
        .await
        .error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("configmaps \"x-\" is forbidden: "),
        "{message}"
    );
    // what is created of an object has its name
    let token = json!({"spec": {"audiences": []}});
    let status = c
        .post(&format!("{accounts}/robot/token"), &token)
        .await
        .error(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("serviceaccounts \"robot\" is forbidden: unable"),
        "{message}"
    );
    let status = c
        .delete("/api/v1/namespaces/default", &Value::Null)
        .await
        .error(403, "Forbidden");
    assert_eq!(
        status["message"],
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );
}
