//! Items 97–107: server-side apply and who owns what.

use serde_json::{Value, json};

use crate::cluster::*;

const APPLY: &str = "application/apply-patch+yaml";

async fn apply(c: &Cluster, url: &str, query: &str, body: &Value) -> Answer {
    c.request(
        "PATCH",
        &format!("{url}?{query}"),
        &[("content-type", APPLY)],
        body.to_string(),
    )
    .await
}

/// The entries as `manager operation subresource`.
fn managers(object: &Value) -> Vec<String> {
    object["metadata"]["managedFields"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            format!(
                "{} {} {}",
                text("manager"),
                text("operation"),
                text("subresource")
            )
            .trim()
            .to_owned()
        })
        .collect()
}

fn fields<'a>(object: &'a Value, manager: &str) -> &'a Value {
    object["metadata"]["managedFields"]
        .as_array()
        .and_then(|entries| entries.iter().find(|entry| entry["manager"] == manager))
        .map_or(&Value::Null, |entry| &entry["fieldsV1"])
}

#[tokio::test]
async fn item_097_the_first_apply_creates() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let body = config_map("x", &json!({"a": "1"}));
    let made = apply(&c, &url, "fieldManager=m", &body).await.ok(201);
    assert_eq!(managers(&made), ["m Apply"]);
    assert_eq!(
        fields(&made, "m"),
        &json!({"f:data": {"f:a": {}}}),
        "only what was applied is owned"
    );
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!(entry["apiVersion"], "v1");
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert!(entry["time"].is_string());
    // the same again changes nothing
    let again = apply(&c, &url, "fieldManager=m", &body).await.ok(200);
    assert_eq!(again, made);
    assert_eq!(c.get(&url).await.ok(200), made);
    // YAML is what kubectl sends
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: z\ndata:\n  a: one\n";
    let answer = c
        .request(
            "PATCH",
            &format!("{CONFIG_MAPS}/z?fieldManager=m"),
            &[("content-type", APPLY)],
            yaml,
        )
        .await;
    assert_eq!(answer.ok(201)["data"]["a"], "one");
}

#[tokio::test]
async fn item_098_a_field_of_another_manager_conflicts() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let one = config_map("x", &json!({"a": "1"}));
    apply(&c, &url, "fieldManager=one", &one).await.ok(201);
    let two = config_map("x", &json!({"a": "2"}));
    let status = apply(&c, &url, "fieldManager=two", &two)
        .await
        .error(409, "Conflict");
    assert_eq!(
        status["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{"reason": "FieldManagerConflict",
            "message": "conflict with \"one\"", "field": ".data.a"}])
    );
    // the same value is shared
    let shared = apply(&c, &url, "fieldManager=two", &one).await.ok(200);
    let mut both = managers(&shared);
    both.sort();
    assert_eq!(both, ["one Apply", "two Apply"]);
}

#[tokio::test]
async fn item_099_force_takes_ownership() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let one = config_map("x", &json!({"a": "1", "b": "1"}));
    apply(&c, &url, "fieldManager=one", &one).await.ok(201);
    let two = config_map("x", &json!({"a": "2"}));
    let taken = apply(&c, &url, "fieldManager=two&force=true", &two)
        .await
        .ok(200);
    assert_eq!(taken["data"], json!({"a": "2", "b": "1"}));
    assert_eq!(fields(&taken, "one"), &json!({"f:data": {"f:b": {}}}));
    assert_eq!(fields(&taken, "two"), &json!({"f:data": {"f:a": {}}}));
    // force belongs to apply alone
    let url = format!("{url}?force=true");
    c.patch(&url, "merge", &json!({"data": {"a": "3"}}))
        .await
        .error(422, "Invalid");
}

#[tokio::test]
async fn item_100_what_is_no_longer_applied_goes() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let body = config_map("x", &json!({"a": "1", "b": "1"}));
    apply(&c, &url, "fieldManager=m", &body).await.ok(201);
    c.patch(&url, "merge", &json!({"data": {"c": "by another"}}))
        .await
        .ok(200);
    let less = config_map("x", &json!({"a": "1"}));
    let left = apply(&c, &url, "fieldManager=m", &less).await.ok(200);
    assert_eq!(left["data"], json!({"a": "1", "c": "by another"}));
}

#[tokio::test]
async fn item_101_lists_merge_as_their_schema_says() {
    let c = Cluster::new().await;
    let url = "/api/v1/namespaces/default/services/s";
    let service = |ports: Value, finalizers: Value| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "s", "finalizers": finalizers},
            "spec": {"selector": {"a": "b"}, "ports": ports}})
    };
    let one = service(
        json!([{"port": 80, "name": "http"}]),
        json!(["example.com/one"]),
    );
    apply(&c, url, "fieldManager=one", &one).await.ok(201);
    let two = service(
        json!([{"port": 443, "name": "https", "protocol": "TCP"}]),
        json!(["example.com/two"]),
    );
    let both = apply(&c, url, "fieldManager=two", &two).await.ok(200);
    assert_eq!(both["spec"]["ports"].as_array().unwrap().len(), 2);
    assert_eq!(
        both["metadata"]["finalizers"],
        json!(["example.com/one", "example.com/two"])
    );
    // the protocol that was not named is the defaulted one
    let same = service(
        json!([{"port": 80, "name": "http", "protocol": "TCP"}]),
        json!(["example.com/one"]),
    );
    let again = apply(&c, url, "fieldManager=one", &same).await.ok(200);
    assert_eq!(again["spec"]["ports"].as_array().unwrap().len(), 2);
    // an atomic map is one value
    let mut other = service(json!([]), json!([]));
    other["spec"]["selector"] = json!({"c": "d"});
    apply(&c, url, "fieldManager=three", &other)
        .await
        .error(409, "Conflict");
}

#[tokio::test]
async fn item_102_apply_needs_a_manager_and_no_managed_fields() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let mut body = config_map("x", &json!({}));
    let status = apply(&c, &url, "", &body).await.error(422, "Invalid");
    assert_eq!(
        status["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let mut other = body.clone();
    other["apiVersion"] = json!("v2");
    apply(&c, &url, "fieldManager=m", &other)
        .await
        .error(400, "BadRequest");
    body["metadata"]["managedFields"] = json!([]);
    let status = apply(&c, &url, "fieldManager=m", &body)
        .await
        .error(400, "BadRequest");
    assert_eq!(status["message"], "metadata.managedFields must be nil");
    // a field nobody knows
    let mut wrong = config_map("x", &json!({}));
    wrong["dota"] = json!({});
    let status = apply(&c, &url, "fieldManager=m", &wrong).await;
    assert_eq!(status.code, 500);
    assert!(
        status
            .text()
            .contains(".dota: field not declared in schema"),
        "{}",
        status.text()
    );
    c.request(
        "PATCH",
        &format!("{url}?fieldManager=m"),
        &[("content-type", APPLY)],
        "a: [",
    )
    .await
    .error(400, "BadRequest");
}

#[tokio::test]
async fn item_103_old_update_managers_are_joined() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"first": "v"})).await;
    let mut last = Value::Null;
    for i in 0..12 {
        let url = format!("{CONFIG_MAPS}/x?fieldManager=m{i:02}");
        let patch = json!({"data": {format!("k{i}"): "v"}});
        last = c.patch(&url, "merge", &patch).await.ok(200);
    }
    let held = managers(&last);
    assert_eq!(held.len(), 10, "{held:?}");
    assert!(
        held.contains(&"ancient-changes Update".to_owned()),
        "{held:?}"
    );
    assert!(held.contains(&"m11 Update".to_owned()), "{held:?}");
}

#[tokio::test]
async fn item_104_status_is_tracked_apart() {
    let c = Cluster::new().await;
    c.post(
        &format!("{DEPLOYMENTS}?fieldManager=maker"),
        &deployment("web"),
    )
    .await
    .ok(201);
    let url = format!("{DEPLOYMENTS}/web/status");
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web"},
        "status": {"conditions": [{"type": "Custom", "status": "True"}]}});
    let applied = apply(&c, &url, "fieldManager=watcher", &status)
        .await
        .ok(200);
    assert_eq!(managers(&applied), ["watcher Apply status", "maker Update"]);
    assert_eq!(applied["status"]["conditions"][0]["type"], "Custom");
    assert_eq!(
        fields(&applied, "watcher")["f:status"]["f:conditions"][r#"k:{"type":"Custom"}"#],
        json!({".": {}, "f:type": {}, "f:status": {}})
    );
    // the main resource does not come to own status
    let mut whole = deployment("web");
    whole["status"] = json!({"replicas": 7});
    whole["spec"]["replicas"] = json!(5);
    let put = c
        .put(&format!("{DEPLOYMENTS}/web?fieldManager=putter"), &whole)
        .await
        .ok(200);
    assert_eq!(
        fields(&put, "putter"),
        &json!({"f:spec": {"f:replicas": {}}})
    );
    let put = c
        .request(
            "PUT",
            &url,
            &[
                ("content-type", "application/json"),
                ("user-agent", "ctl/v1 (linux)"),
            ],
            {
                let mut new = put.clone();
                new["status"]["replicas"] = json!(3);
                new.to_string()
            },
        )
        .await
        .ok(200);
    assert!(
        managers(&put).contains(&"ctl Update status".to_owned()),
        "{:?}",
        managers(&put)
    );
    // status of what is not there is not made
    let url = format!("{DEPLOYMENTS}/none/status");
    let mut status = status;
    status["metadata"]["name"] = json!("none");
    apply(&c, &url, "fieldManager=w", &status)
        .await
        .error(404, "NotFound");
}

#[tokio::test]
async fn item_105_an_empty_entry_clears_tracking() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let body = config_map("x", &json!({"a": "1"}));
    let made = apply(&c, &url, "fieldManager=m", &body).await.ok(201);
    let mut reset = made;
    for nobody in [json!([]), json!([{}])] {
        reset["metadata"]["managedFields"] = nobody.clone();
        let cleared = c.put(&url, &reset).await.ok(200);
        assert!(cleared["metadata"]["managedFields"].is_null(), "{cleared}");
        apply(&c, &url, "fieldManager=m", &body).await.ok(200);
        let patch = json!({"metadata": {"managedFields": nobody}});
        let cleared = c.patch(&url, "merge", &patch).await.ok(200);
        assert!(cleared["metadata"]["managedFields"].is_null(), "{cleared}");
        reset = apply(&c, &url, "fieldManager=m", &body).await.ok(200);
        reset["metadata"]["resourceVersion"] = Value::Null;
    }
    let patch = json!({"metadata": {"managedFields": []}});
    let cleared = c.patch(&url, "merge", &patch).await.ok(200);
    assert!(cleared["metadata"]["managedFields"].is_null(), "{cleared}");
    // untracked until somebody applies
    let patched = c
        .patch(&url, "merge", &json!({"data": {"b": "2"}}))
        .await
        .ok(200);
    assert!(patched["metadata"]["managedFields"].is_null(), "{patched}");
    let applied = apply(&c, &url, "fieldManager=m", &body).await.ok(200);
    assert_eq!(managers(&applied), ["m Apply", "before-first-apply Update"]);
}

#[tokio::test]
async fn item_106_every_patch_and_update_is_tracked() {
    let c = Cluster::new().await;
    c.post(
        &format!("{DEPLOYMENTS}?fieldManager=maker"),
        &deployment("web"),
    )
    .await
    .ok(201);
    let url = |manager: &str| format!("{DEPLOYMENTS}/web?fieldManager={manager}");
    let json_patch = json!([{"op": "replace", "path": "/spec/replicas", "value": 3}]);
    c.patch(&url("j"), "json", &json_patch).await.ok(200);
    let merge = json!({"spec": {"paused": true}});
    c.patch(&url("g"), "merge", &merge).await.ok(200);
    let strategic = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "c", "image": "nginx:2"}]}}}});
    let last = c
        .patch(&url("s"), "strategic-merge", &strategic)
        .await
        .ok(200);
    assert_eq!(fields(&last, "j"), &json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(fields(&last, "g"), &json!({"f:spec": {"f:paused": {}}}));
    let container = r#"k:{"name":"c"}"#;
    assert_eq!(
        fields(&last, "s")["f:spec"]["f:template"]["f:spec"]["f:containers"][container],
        json!({"f:image": {}})
    );
    assert!(fields(&last, "maker")["f:spec"]["f:replicas"].is_null());
    // a dry run shows what would be owned and keeps nothing
    let dry = format!("{}&dryRun=All", url("dry"));
    let shown = c
        .patch(&dry, "merge", &json!({"spec": {"replicas": 9}}))
        .await
        .ok(200);
    assert!(!fields(&shown, "dry").is_null());
    let held = c.get(&format!("{DEPLOYMENTS}/web")).await.ok(200);
    assert!(fields(&held, "dry").is_null());
    assert_eq!(held, last);
}

#[tokio::test]
async fn item_107_client_side_apply_hands_over_without_conflict() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let mut object = config_map("x", &json!({"a": "1"}));
    let last = object.to_string();
    object["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": last});
    let create = format!("{CONFIG_MAPS}?fieldManager=kubectl-client-side-apply");
    c.post(&create, &object).await.ok(201);
    let body = config_map("x", &json!({"a": "2"}));
    let applied = apply(&c, &url, "fieldManager=kubectl", &body).await.ok(200);
    assert_eq!(applied["data"]["a"], "2");
    // the annotation follows, for a way back
    let kept: Value = serde_json::from_str(
        applied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert_eq!(kept["data"]["a"], "2");
    // anybody else conflicts
    let body = config_map("x", &json!({"a": "3"}));
    apply(&c, &url, "fieldManager=other", &body)
        .await
        .error(409, "Conflict");
}

#[tokio::test]
async fn apply_minds_versions_uids_and_dry_runs() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let mut body = config_map("x", &json!({"a": "1"}));
    let shown = apply(&c, &url, "fieldManager=m&dryRun=All", &body)
        .await
        .ok(201);
    assert!(shown["metadata"]["resourceVersion"].is_null());
    c.get(&url).await.error(404, "NotFound");
    let made = apply(&c, &url, "fieldManager=m", &body).await.ok(201);
    body["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    body["data"]["a"] = json!("2");
    let changed = apply(&c, &url, "fieldManager=m", &body).await.ok(200);
    assert_ne!(rv(&changed), rv(&made));
    // that version is gone
    body["data"]["a"] = json!("3");
    apply(&c, &url, "fieldManager=m", &body)
        .await
        .error(409, "Conflict");
    body["metadata"]["resourceVersion"] = Value::Null;
    body["metadata"]["uid"] = json!("another");
    apply(&c, &url, "fieldManager=m", &body)
        .await
        .error(422, "Invalid");
    // creating by apply needs the namespace
    let url = "/api/v1/namespaces/none/configmaps/x";
    let body = config_map("x", &json!({}));
    apply(&c, url, "fieldManager=m", &body)
        .await
        .error(404, "NotFound");
}

#[tokio::test]
async fn scale_owns_the_replicas_of_its_workload() {
    let c = Cluster::new().await;
    let url = format!("{DEPLOYMENTS}/web");
    let mut wanted = deployment("web");
    wanted["spec"]["replicas"] = json!(1);
    apply(&c, &url, "fieldManager=owner", &wanted).await.ok(201);
    let scale_url = format!("{url}/scale?fieldManager=scaler");
    let scaled = c
        .patch(&scale_url, "merge", &json!({"spec": {"replicas": 4}}))
        .await
        .ok(200);
    // who owns the count is told of the object itself
    assert_eq!(scaled["metadata"].get("managedFields"), None);
    let held = c.get(&url).await.ok(200);
    assert_eq!(
        fields(&held, "scaler"),
        &json!({"f:spec": {"f:replicas": {}}})
    );
    assert!(fields(&held, "owner")["f:spec"]["f:replicas"].is_null());
    let conflict = apply(&c, &url, "fieldManager=owner", &wanted)
        .await
        .error(409, "Conflict");
    assert!(
        conflict["message"].as_str().unwrap().starts_with(
            "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\" using apps/v1"
        ),
        "{conflict}"
    );
    // applying a scale
    let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "web", "namespace": "default"}, "spec": {"replicas": 6}});
    let url = format!("{url}/scale");
    apply(&c, &url, "fieldManager=hpa", &body)
        .await
        .error(409, "Conflict");
    let applied = apply(&c, &url, "fieldManager=hpa&force=true", &body)
        .await
        .ok(200);
    assert_eq!(applied["spec"]["replicas"], 6);
    let held = c.get(&format!("{DEPLOYMENTS}/web")).await.ok(200);
    assert!(managers(&held).contains(&"hpa Apply scale".to_owned()));
}

#[tokio::test]
async fn owners_in_other_versions_keep_what_did_not_change() {
    let c = Cluster::new().await;
    let v1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let v2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let one = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 5, "targetCPUUtilizationPercentage": 50}});
    let made = apply(&c, &format!("{v1}/h"), "fieldManager=one", &one)
        .await
        .ok(201);
    assert_eq!(
        made["metadata"]["managedFields"][0]["apiVersion"],
        "autoscaling/v1"
    );
    // through the other version something else changes
    let patched = c
        .patch(
            &format!("{v2}/h?fieldManager=two"),
            "merge",
            &json!({"spec": {"maxReplicas": 7}}),
        )
        .await
        .ok(200);
    let kept = &fields(&patched, "one")["f:spec"];
    assert!(
        !kept["f:targetCPUUtilizationPercentage"].is_null(),
        "{patched}"
    );
    assert!(kept["f:maxReplicas"].is_null(), "{patched}");
    // the metric, as v2 names it, is what one owns in v1
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": 80}}}]);
    let patched = c
        .patch(
            &format!("{v2}/h?fieldManager=two"),
            "merge",
            &json!({"spec": {"metrics": metrics}}),
        )
        .await
        .ok(200);
    let kept = &fields(&patched, "one")["f:spec"];
    assert!(
        kept["f:targetCPUUtilizationPercentage"].is_null(),
        "{patched}"
    );
    assert!(!kept["f:scaleTargetRef"].is_null(), "{patched}");
}

#[tokio::test]
async fn the_servers_own_writes_keep_the_owners() {
    let c = Cluster::new().await;
    c.service_account().await;
    let made = c
        .post(&format!("{PODS}?fieldManager=m"), &pod("p"))
        .await
        .ok(201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    c.post(&format!("{PODS}/p/binding"), &binding).await.ok(201);
    let bound = c.get(&format!("{PODS}/p")).await.ok(200);
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(
        bound["metadata"]["managedFields"],
        made["metadata"]["managedFields"]
    );
}

#[tokio::test]
async fn the_words_of_yaml_1_1_are_booleans() {
    let c = Cluster::new().await;
    let url = |name: &str| format!("{CONFIG_MAPS}/{name}?fieldManager=m");
    let send = async |name: &str, rest: &str| {
        let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n{rest}\n");
        let headers = [("content-type", APPLY)];
        c.request("PATCH", &url(name), &headers, text).await
    };
    let made = send("x", "immutable: yes").await.ok(201);
    assert_eq!(made["immutable"], true);
    assert_eq!(send("word", "data: {a: on}").await.code, 500);
    let quoted = send("quoted", "data: {a: 'on'}").await.ok(201);
    assert_eq!(quoted["data"]["a"], "on");
    let several = send("several", "data: {a: b}\n---\nkind: Pod").await;
    assert_eq!(several.ok(201)["data"]["a"], "b");
}

#[tokio::test]
async fn what_is_not_there_is_applied_whatever_version_it_had() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}/x");
    let mut body = config_map("x", &json!({"a": "1"}));
    body["metadata"]["resourceVersion"] = json!("77");
    apply(&c, &url, "fieldManager=m", &body).await.ok(201);
    // an object that is there has its name already
    let nameless = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x"}, "data": {"b": "2"},
    });
    let applied = apply(&c, &url, "fieldManager=n", &nameless).await.ok(200);
    assert_eq!(applied["data"], json!({"a": "1", "b": "2"}));
    let missing = format!("{CONFIG_MAPS}/y");
    apply(&c, &missing, "fieldManager=n", &nameless)
        .await
        .error(400, "BadRequest");
}
