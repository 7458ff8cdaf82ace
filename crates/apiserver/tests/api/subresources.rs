//! Items 90–95 and the streams' checks before a node is asked.

use serde_json::{Value, json};

use crate::cluster::*;

#[tokio::test]
async fn item_090_scale_reads_and_writes_replicas() {
    let c = Cluster::new().await;
    c.post(DEPLOYMENTS, &deployment("web")).await.ok(201);
    let url = format!("{DEPLOYMENTS}/web/scale");
    let scale = c.get(&url).await.ok(200);
    assert_eq!(
        (&scale["kind"], &scale["apiVersion"]),
        (&json!("Scale"), &json!("autoscaling/v1"))
    );
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["selector"], "app=web");
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(5);
    let put = c.put(&url, &wanted).await.ok(200);
    assert_eq!(put["spec"]["replicas"], 5);
    c.put(&url, &wanted).await.error(409, "Conflict");
    let patched = c
        .patch(&url, "merge", &json!({"spec": {"replicas": 1}}))
        .await
        .ok(200);
    assert_eq!(patched["spec"]["replicas"], 1);
    let workload = c.get(&format!("{DEPLOYMENTS}/web")).await.ok(200);
    assert_eq!(workload["spec"]["replicas"], 1);
    assert_eq!(workload["metadata"]["generation"], 3);
}

#[tokio::test]
async fn item_091_a_pod_is_bound_once() {
    let c = Cluster::new().await;
    c.service_account().await;
    c.pod("p").await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let done = c.post(&format!("{PODS}/p/binding"), &binding).await.ok(201);
    assert_eq!(done["status"], "Success");
    let pod = c.get(&format!("{PODS}/p")).await.ok(200);
    assert_eq!(pod["spec"]["nodeName"], "n1");
    assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
    let again = c
        .post("/api/v1/namespaces/default/bindings", &binding)
        .await;
    let status = again.error(409, "Conflict");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("is already assigned to node \"n1\""),
        "{message}"
    );
}

#[tokio::test]
async fn item_091_a_bound_pod_is_nominated_for_no_node() {
    let c = Cluster::new().await;
    c.service_account().await;
    c.pod("p").await;
    let nominate = |node| json!({"status": {"nominatedNodeName": node}});
    let status = format!("{PODS}/p/status");
    c.patch(&status, "merge", &nominate("n1")).await.ok(200);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    c.post(&format!("{PODS}/p/binding"), &binding).await.ok(201);
    let pod = c.get(&format!("{PODS}/p")).await.ok(200);
    assert_eq!(pod["status"]["nominatedNodeName"], Value::Null);
    let refused = c.patch(&status, "merge", &nominate("n2")).await;
    let refused = refused.error(422, "Invalid");
    let message = refused["message"].as_str().unwrap();
    let why = "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node";
    assert!(message.ends_with(why), "{message}");
}

#[tokio::test]
async fn item_092_gated_pods_cannot_be_bound() {
    let c = Cluster::new().await;
    c.service_account().await;
    let mut gated = pod("p");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    c.post(PODS, &gated).await.ok(201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    c.post(&format!("{PODS}/p/binding"), &binding)
        .await
        .error(409, "Conflict");
}

#[tokio::test]
async fn item_093_ephemeral_containers_are_added_only() {
    let c = Cluster::new().await;
    c.service_account().await;
    c.pod("p").await;
    let url = format!("{PODS}/p/ephemeralcontainers");
    let add = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "busybox"}]}});
    let with = c.patch(&url, "strategic-merge", &add).await.ok(200);
    assert_eq!(with["spec"]["ephemeralContainers"][0]["name"], "d");
    let drop = json!({"spec": {"ephemeralContainers": []}});
    c.patch(&url, "merge", &drop).await.error(422, "Invalid");
}

#[tokio::test]
async fn item_094_resize_changes_resources_only() {
    let c = Cluster::new().await;
    c.service_account().await;
    let mut small = pod("p");
    small["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    c.post(PODS, &small).await.ok(201);
    let more = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}});
    c.patch(&format!("{PODS}/p"), "strategic-merge", &more)
        .await
        .error(422, "Invalid");
    let resized = c
        .patch(&format!("{PODS}/p/resize"), "strategic-merge", &more)
        .await
        .ok(200);
    assert_eq!(
        resized["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "200m"
    );
}

/// KEP-5328: a change that the pod's node does not say it can follow is refused.
#[tokio::test]
async fn a_resize_needs_a_node_that_can_follow() {
    let c = Cluster::new().await;
    c.service_account().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    c.post("/api/v1/nodes", &node).await.ok(201);
    let mut whole = pod("p");
    whole["spec"]["nodeName"] = json!("n");
    whole["spec"]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    c.post(PODS, &whole).await.ok(201);
    let resize = async || {
        let more =
            json!({"spec": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}});
        c.patch(&format!("{PODS}/p/resize"), "strategic-merge", &more)
            .await
    };
    let refused = resize().await.error(403, "Forbidden");
    let told = refused["message"].as_str().unwrap();
    let why = "pod update requires features InPlacePodLevelResourcesVerticalScaling which are not available on node \"n\"";
    assert!(told.ends_with(why), "{told}");
    let declared = json!({"status": {"declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"],
        "allocatable": {"cpu": "1500m", "memory": "1Gi"}}});
    let status = "/api/v1/nodes/n/status";
    c.patch(status, "merge", &declared).await.ok(200);
    let refused = resize().await.error(403, "Forbidden");
    let told = refused["message"].as_str().unwrap();
    let why =
        "node didn't have enough allocatable resources: cpu, requested: 2000, allocatable: 1500";
    assert!(told.ends_with(why), "{told}");
    assert_eq!(refused["details"]["causes"][0]["reason"], "NodeCapacity");
    let more = json!({"status": {"allocatable": {"cpu": "2"}}});
    c.patch(status, "merge", &more).await.ok(200);
    resize().await.ok(200);
}

#[tokio::test]
async fn a_resize_reaches_all_containers_and_removes_nothing() {
    let c = Cluster::new().await;
    c.service_account().await;
    let mut both = pod("p");
    let sized = json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"memory": "2Mi"}});
    both["spec"]["containers"][0]["resources"] = sized.clone();
    both["spec"]["initContainers"] = json!([{"name": "i", "image": "x", "resources": sized},
        {"name": "s", "image": "x", "restartPolicy": "Always", "resources": sized}]);
    c.post(PODS, &both).await.ok(201);
    // An init container that is made anew would begin its work anew.
    let mut again = both.clone();
    again["metadata"]["name"] = json!("again");
    again["spec"]["initContainers"][0]["resizePolicy"] =
        json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let refused = c.post(PODS, &again).await.error(422, "Invalid");
    let causes = &refused["details"]["causes"];
    assert_eq!(
        causes[0]["field"],
        "spec.initContainers[0].resizePolicy[0].restartPolicy"
    );
    let url = format!("{PODS}/p/resize");
    let patch = async |list: &str, name: &str, resources: Value| {
        let patch = json!({"spec": {list: [{"name": name, "resources": resources}]}});
        c.patch(&url, "strategic-merge", &patch).await
    };
    let message = |status: &Value| status["message"].as_str().unwrap_or_default().to_owned();
    let status = patch("containers", "c", json!({"limits": {"memory": null}})).await;
    let told = message(&status.error(422, "Invalid"));
    let limits =
        "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed";
    assert!(told.contains(limits), "{told}");
    let status = patch("containers", "c", json!({"requests": {"cpu": null}})).await;
    let told = message(&status.error(422, "Invalid"));
    assert!(
        told.contains("resource requests cannot be removed"),
        "{told}"
    );
    let status = patch("initContainers", "i", json!({"requests": {"cpu": null}})).await;
    let told = message(&status.error(422, "Invalid"));
    let requests =
        "spec.initContainers[0].resources.requests: Forbidden: resource requests cannot be removed";
    assert!(told.contains(requests), "{told}");
    let init = patch("initContainers", "i", json!({"requests": {"cpu": "200m"}})).await;
    let init = init.ok(200);
    assert_eq!(
        init["spec"]["initContainers"][0]["resources"]["requests"]["cpu"],
        "200m"
    );
    let sidecar = patch("initContainers", "s", json!({"requests": {"cpu": "200m"}})).await;
    let sidecar = sidecar.ok(200);
    assert_eq!(
        sidecar["spec"]["initContainers"][1]["resources"]["requests"]["cpu"],
        "200m"
    );
}

#[tokio::test]
async fn logs_and_exec_check_pod_and_container_first() {
    let c = Cluster::new().await;
    c.service_account().await;
    c.get(&format!("{PODS}/x/log")).await.error(404, "NotFound");
    let mut two = pod("p");
    two["spec"]["containers"] = json!([{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]);
    two["spec"]["initContainers"] = json!([{"name": "i", "image": "x"}]);
    c.post(PODS, &two).await.ok(201);
    let status = c
        .get(&format!("{PODS}/p/log"))
        .await
        .error(400, "BadRequest");
    assert_eq!(
        status["message"],
        "a container name must be specified for pod p, choose one of: [a b] or one of the init \
         containers: [i]"
    );
    let status = c
        .get(&format!("{PODS}/p/log?container=z"))
        .await
        .error(400, "BadRequest");
    assert_eq!(status["message"], "container z is not valid for pod p");
    let log = c.get(&format!("{PODS}/p/log?container=a")).await;
    assert_eq!((log.code, log.body.len()), (204, 0));
    let status = c
        .get(&format!("{PODS}/p/exec?container=a&command=ls"))
        .await;
    let status = status.error(400, "BadRequest");
    assert_eq!(status["message"], "pod p does not have a host assigned");
    let status = c
        .get(&format!("{PODS}/p/log?container=a&tailLines=-1"))
        .await;
    status.error(422, "Invalid");
}
