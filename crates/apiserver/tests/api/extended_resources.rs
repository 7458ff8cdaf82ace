//! Extended resources in pods, quotas and nodes. The numbers are those of the checklist of node devices.

use davit_access::UserInfo;
use davit_access::authz::{Authorization, Mode};
use serde_json::{Value, json};

use crate::cluster::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const FOO: &str = "example.com/foo";

fn with(name: &str, resources: &Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = resources.clone();
    pod
}

#[tokio::test]
async fn items_140_141_146_what_a_pod_may_ask_for() {
    let c = Cluster::new().await;
    c.service_account().await;
    for (resources, text) in [
        (json!({"limits": {FOO: "1500m"}}), "must be an integer"),
        (
            json!({"limits": {FOO: "2"}, "requests": {FOO: "1"}}),
            "must be equal to example.com/foo limit of 2",
        ),
        (
            json!({"requests": {FOO: "1"}}),
            "Limit must be set for non overcommitable resources",
        ),
    ] {
        let refused = c.post(PODS, &with("p", &resources)).await;
        let refused = refused.error(422, "Invalid");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(text), "{message}");
    }
    let made = c
        .post(PODS, &with("p", &json!({"limits": {FOO: "2"}})))
        .await;
    let made = made.ok(201);
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"][FOO], "2");
    assert_eq!(made["status"]["qosClass"], "BestEffort");

    let mut whole = pod("w");
    whole["spec"]["resources"] = json!({"limits": {FOO: "1"}});
    let refused = c.post(PODS, &whole).await.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("spec.resources.limits[example.com/foo]: Unsupported value"),
        "{message}"
    );

    let guaranteed = json!({"limits": {"cpu": "1", "memory": "1Gi", FOO: "1"}});
    let made = c.post(PODS, &with("g", &guaranteed)).await.ok(201);
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
}

#[tokio::test]
async fn item_142_quotas_bound_requests() {
    let c = Cluster::new().await;
    c.service_account().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = |name: &str| json!({"metadata": {"name": "q"}, "spec": {"hard": {name: "3"}}});
    let refused = c.post(quotas, &quota("foo")).await;
    let refused = refused.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("must be a standard resource for quota"),
        "{message}"
    );
    c.post(quotas, &quota("requests.example.com/foo"))
        .await
        .ok(201);
    let two = json!({"limits": {FOO: "2"}});
    c.post(PODS, &with("a", &two)).await.ok(201);
    let refused = c.post(PODS, &with("b", &two)).await.error(403, "Forbidden");
    assert_eq!(
        refused["message"],
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.example.com/foo=2, \
         used: requests.example.com/foo=2, limited: requests.example.com/foo=3"
    );
    c.post(PODS, &pod("c")).await.ok(201);
}

#[tokio::test]
async fn item_143_a_node_writes_no_other_nodes_status() {
    let c = Cluster::with(|options| {
        let modes = vec![Mode::Node, Mode::Rbac];
        options.authorization = Authorization::Modes(modes);
    })
    .await;
    for name in ["n1", "n2"] {
        let node = json!({"metadata": {"name": name}});
        c.post("/api/v1/nodes", &node).await.ok(201);
    }
    let node = UserInfo::new("system:node:n1", &["system:nodes"]);
    let patch = json!([{"op": "add", "path": "/status/capacity", "value": {FOO: "4"}}]);
    let headers = [("content-type", "application/json-patch+json")];
    let write = async |name: &str| {
        let url = format!("/api/v1/nodes/{name}/status");
        let answer = c.send_as(&node, "PATCH", &url, &headers, patch.to_string());
        whole(answer.await).await
    };
    assert_eq!(write("n1").await.ok(200)["status"]["capacity"][FOO], "4");
    let refused = write("n2").await.error(403, "Forbidden");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("node \"n1\" is not allowed to modify node \"n2\""),
        "{refused}"
    );
    let untouched = c.get("/api/v1/nodes/n2").await.ok(200);
    assert_eq!(untouched["status"]["capacity"], Value::Null);
}
