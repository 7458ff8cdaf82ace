//! Items 79–96: patches, status, create-on-update.

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_079_json_patches() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1", "b": "2"})).await;
    let url = format!("{CONFIG_MAPS}/x");
    let patch = json!([
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/c", "value": "3"},
        {"op": "replace", "path": "/data/a", "value": "9"},
        {"op": "move", "from": "/data/b", "path": "/data/d"},
        {"op": "copy", "from": "/data/d", "path": "/data/e"},
        {"op": "remove", "path": "/data/c"},
    ]);
    let patched = c.patch(&url, "json", &patch).await.ok(200);
    assert_eq!(patched["data"], json!({"a": "9", "d": "2", "e": "2"}));
    let failing = json!([{"op": "test", "path": "/data/a", "value": "0"}]);
    let status = c.patch(&url, "json", &failing).await.error(422, "Invalid");
    assert_eq!(
        status["message"],
        "the server rejected our request due to an error in our request"
    );
    c.patch(&url, "json", &json!({"not": "a list"}))
        .await
        .error(400, "BadRequest");
}

#[tokio::test]
async fn item_080_merge_patches() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({"a": "1", "b": "2"})).await;
    let patch = json!({"data": {"a": null, "c": "3"}});
    let patched = c
        .patch(&format!("{CONFIG_MAPS}/x"), "merge", &patch)
        .await
        .ok(200);
    assert_eq!(patched["data"], json!({"b": "2", "c": "3"}));
}

#[tokio::test]
async fn item_081_strategic_patches_merge_by_key() {
    let c = Cluster::new().await;
    c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    let url = format!("{DEPLOYMENTS}/web");
    let containers = |list: Value| json!({"spec": {"template": {"spec": {"containers": list}}}});
    let add = containers(json!([
        {"name": "c", "ports": [{"containerPort": 80}]},
        {"name": "side", "image": "busybox"},
    ]));
    let patched = c.patch(&url, "strategic-merge", &add).await.ok(200);
    let list = patched
        .pointer("/spec/template/spec/containers")
        .unwrap()
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(list.len(), 2);
    let main = list.iter().find(|c| c["name"] == "c").unwrap();
    assert_eq!(main["image"], "nginx");
    assert_eq!(main["ports"][0]["protocol"], "TCP");
    let drop = containers(json!([{"name": "side", "$patch": "delete"}]));
    let patched = c.patch(&url, "strategic-merge", &drop).await.ok(200);
    let list = patched
        .pointer("/spec/template/spec/containers")
        .unwrap()
        .as_array()
        .unwrap();
    assert_eq!(list.len(), 1);
}

#[tokio::test]
async fn item_084_patches_survive_concurrent_updates() {
    let c = Cluster::new().await;
    let made = c.config_map("x", &json!({})).await;
    let url = format!("{CONFIG_MAPS}/x");
    let writes = (0..20).map(|i| {
        let (c, url) = (&c, &url);
        async move {
            let patch = json!({"data": {format!("k{i}"): "v"}});
            c.patch(url, "merge", &patch).await.ok(200);
        }
    });
    futures::future::join_all(writes).await;
    let all = c.get(&url).await.ok(200);
    assert_eq!(all["data"].as_object().unwrap().len(), 20);
    let stale = json!({"metadata": {"resourceVersion": rv(&made).to_string()}, "data": {"z": "1"}});
    c.patch(&url, "merge", &stale).await.error(409, "Conflict");
}

#[tokio::test]
async fn item_089_status_and_spec_are_written_apart() {
    let c = Cluster::new().await;
    let made = c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    let url = format!("{DEPLOYMENTS}/web");
    let mut both = made.clone();
    both["spec"]["replicas"] = json!(7);
    both["status"] = json!({"replicas": 1, "observedGeneration": 1});
    let after = c.put(&format!("{url}/status"), &both).await.ok(200);
    assert_eq!(after["spec"]["replicas"], 2);
    assert_eq!(after["status"]["replicas"], 1);
    let mut both = after.clone();
    both["spec"]["replicas"] = json!(7);
    both["status"] = json!({"replicas": 5});
    let after = c.put(&url, &both).await.ok(200);
    assert_eq!(after["spec"]["replicas"], 7);
    assert_eq!(after["status"]["replicas"], 1);
}

#[tokio::test]
async fn item_096_put_creates_only_listed_kinds() {
    let c = Cluster::new().await;
    c.put(&format!("{CONFIG_MAPS}/x"), &config_map("x", &json!({})))
        .await
        .error(404, "NotFound");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"},
    });
    let url = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let made = c.put(url, &lease).await.ok(201);
    assert_eq!(made["spec"]["holderIdentity"], "me");
}

#[tokio::test]
async fn versions_of_one_resource_share_their_objects() {
    let c = Cluster::new().await;
    let v1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let hpa = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
        },
    });
    let made = c.post(v1, &hpa).await.ok(201);
    assert_eq!(made["apiVersion"], "autoscaling/v1");
    let v2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h";
    let read = c.get(v2).await.ok(200);
    assert_eq!(read["apiVersion"], "autoscaling/v2");
    assert_eq!(
        read["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        50
    );
    let list = c.get(v1).await.ok(200);
    assert_eq!(
        list["items"][0]["spec"]["targetCPUUtilizationPercentage"],
        50
    );
}

#[tokio::test]
async fn the_extended_resource_example_works_as_written() {
    let c = Cluster::new().await;
    let node = json!({
        "metadata": {"name": "n"},
        "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}},
    });
    c.post("/api/v1/nodes", &node).await.ok(201);
    let url = "/api/v1/nodes/n/status";
    let add = json!([{"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "4"}]);
    let patched = c.patch(url, "json", &add).await.ok(200);
    assert_eq!(patched["status"]["capacity"]["example.com/dongle"], "4");
    let remove = json!([{"op": "remove", "path": "/status/capacity/example.com~1dongle"}]);
    let patched = c.patch(url, "json", &remove).await.ok(200);
    assert!(
        patched["status"]["capacity"]
            .get("example.com/dongle")
            .is_none()
    );
}

/// As client-go programs do that fill in a namespace for everything they make.
#[tokio::test]
async fn the_namespace_of_a_cluster_scoped_object_is_dropped() {
    let c = Cluster::new().await;
    let role = json!({"metadata": {"name": "r", "namespace": "default"}, "rules": []});
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let made = c.post(roles, &role).await.ok(201);
    assert!(made["metadata"]["namespace"].is_null(), "{made}");
    let mut changed = made;
    changed["metadata"]["namespace"] = json!("default");
    let one = format!("{roles}/r");
    let changed = c.put(&one, &changed).await.ok(200);
    assert!(changed["metadata"]["namespace"].is_null(), "{changed}");
    let patch = json!({"metadata": {"namespace": "default", "labels": {"a": "b"}}});
    let patched = c.patch(&one, "merge", &patch).await.ok(200);
    assert!(patched["metadata"]["namespace"].is_null(), "{patched}");
}
