//! Pods whose devices break, by the policies of their resources; the pods API.

use super::*;
use davit_proto::pods::v1alpha1 as pods;
use davit_sdk::deviceplugin::{
    Allocation, Device, DevicePlugin, PluginServer, Refusal, Route, Running,
};
use davit_sdk::watch;
use k8s_openapi::api::core::v1::Pod;

struct Plugin(watch::Sender<Vec<Device>>);

#[davit_sdk::async_trait]
impl DevicePlugin for Plugin {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        Ok(Allocation::new()
            .env("GIVEN", ids.join(","))
            .env("OTHER", "of the plugin")
            .annotation("vendor.example/devices", ids.join(","))
            .annotation("io.kubernetes.container.hash", "forged"))
    }
}

/// A plugin with one device, which breaks as the sender says.
pub(super) fn plugin(node: &Node, resource: &str) -> (Running, watch::Sender<Vec<Device>>) {
    let devices = watch::Sender::new(vec![Device::healthy("d0")]);
    let dir = node.dir.path().join("kubelet/device-plugins");
    let server = PluginServer::new(resource, Plugin(devices.clone())).route(Route::Register(dir));
    (server.start().unwrap(), devices)
}

/// A pod that holds the device of a resource, once the node offers it.
pub(super) async fn user(node: &Node, name: &str, resource: &str) -> String {
    let api = node.api.clone();
    wait("the device is there", || {
        let node = api.get("/api/v1/nodes/n1")?;
        (node["status"]["allocatable"][resource] == "1").then_some(())
    })
    .await;
    let mut main = container("main", "sleep");
    main["resources"] = json!({"limits": {resource: "1"}, "requests": {resource: "1"}});
    let path = node.pod(
        name,
        json!({"containers": [main], "terminationGracePeriodSeconds": 1}),
    );
    node.phase(&path, "Running").await;
    path
}

fn creations(node: &Node) -> usize {
    node.runtime
        .calls()
        .iter()
        .filter(|c| c.as_str() == "start main")
        .count()
}

fn breaks(devices: &watch::Sender<Vec<Device>>, healthy: bool) {
    devices.send_modify(|all| all[0].healthy = healthy);
}

async fn event(node: &Node, pod: &str, reason: &str) -> String {
    let api = node.api.clone();
    let what = format!("event {reason} of {pod}");
    let event = wait(&what, || {
        api.list("/api/v1/namespaces/default/events")
            .into_iter()
            .find(|e| e["involvedObject"]["name"] == pod && e["reason"] == reason)
    })
    .await;
    event["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn broken_devices_are_marked_restart_or_evict_by_policy() {
    let mut node = Node::start_as(|options| {
        options
            .unhealthy_devices
            .set("a.com/restart=restart")
            .unwrap();
        options.unhealthy_devices.set("a.com/evict=evict").unwrap();
        options
            .unhealthy_devices
            .set("a.com/ignore=ignore")
            .unwrap();
    })
    .await;
    let (_mark, marked) = plugin(&node, "a.com/mark");
    let (_restart, restarting) = plugin(&node, "a.com/restart");
    let (_evict, evicting) = plugin(&node, "a.com/evict");
    let (_ignore, ignored) = plugin(&node, "a.com/ignore");
    let mark = user(&node, "mark", "a.com/mark").await;
    let ignore = user(&node, "ignore", "a.com/ignore").await;
    assert_eq!(creations(&node), 2);

    breaks(&marked, false);
    breaks(&ignored, false);
    let text = event(&node, "mark", "UnhealthyDevice").await;
    assert_eq!(
        text,
        "The device d0 of a.com/mark is unhealthy: the plugin says so"
    );
    let health = |path: &str| {
        let pod = node.api.get(path)?;
        let status = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
        (status[0]["resources"][0]["health"] == "Unhealthy").then_some(())
    };
    wait("the status says so", || health(&mark)).await;
    wait("the other one's too", || health(&ignore)).await;
    breaks(&marked, true);
    let text = event(&node, "mark", "HealthyDevice").await;
    assert_eq!(text, "The device d0 of a.com/mark is healthy again");
    // Neither has touched a container.
    assert_eq!(creations(&node), 2);

    let restart = user(&node, "restart", "a.com/restart").await;
    breaks(&restarting, false);
    let text = event(&node, "restart", "Killing").await;
    assert_eq!(
        text,
        "Container main holds the unhealthy device d0 of a.com/restart"
    );
    let api = node.api.clone();
    wait("its container has been restarted", || {
        let pod = api.get(&restart)?;
        (pod["status"]["containerStatuses"][0]["restartCount"] == 1).then_some(())
    })
    .await;
    // Once, although the device stays broken.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(creations(&node), 4);

    let evict = user(&node, "evict", "a.com/evict").await;
    evicting.send_replace(Vec::new());
    let pod = node.phase(&evict, "Failed").await;
    assert_eq!(pod["status"]["reason"], "UnhealthyDevice");
    assert_eq!(
        pod["status"]["message"],
        "The device d0 of a.com/evict is unhealthy: the plugin does not list it any more"
    );
    let events = node.api.list("/api/v1/namespaces/default/events");
    assert!(
        !events
            .iter()
            .any(|e| e["involvedObject"]["name"] == "ignore" && e["reason"] == "UnhealthyDevice")
    );
    node.stop().await;
}

#[tokio::test]
async fn item_144_more_devices_than_there_are_fail_the_pod_for_good() {
    let mut node = Node::start().await;
    let (_running, _devices) = plugin(&node, "a.com/foo");
    user(&node, "holder", "a.com/foo").await;
    let mut main = container("main", "sleep");
    main["resources"] = json!({"limits": {"a.com/foo": "1"}, "requests": {"a.com/foo": "1"}});
    let path = node.pod("late", json!({"containers": [main]}));
    let late = node.phase(&path, "Failed").await;
    assert_eq!(late["status"]["reason"], "UnexpectedAdmissionError");
    let told = "Allocate failed due to requested number of devices unavailable for a.com/foo. \
                Requested: 1, Available: 0, which is unexpected";
    let message = late["status"]["message"].as_str().unwrap();
    assert!(message.ends_with(told), "{message}");
    let text = event(&node, "late", "UnexpectedAdmissionError").await;
    assert_eq!(text, told);
    // It is not tried again when there is room.
    node.delete("/api/v1/namespaces/default/pods/holder", 0);
    let api = node.api.clone();
    wait("the holder is gone", || {
        let gone = api.get("/api/v1/namespaces/default/pods/holder").is_none();
        gone.then_some(())
    })
    .await;
    user(&node, "next", "a.com/foo").await;
    assert_eq!(node.api.get(&path).unwrap()["status"]["phase"], "Failed");
    node.stop().await;
}

#[tokio::test]
async fn items_079_080_085_the_pods_own_words_win_over_the_plugins() {
    let mut node = Node::start().await;
    let (_plugin, _devices) = plugin(&node, "a.com/x");
    let api = node.api.clone();
    wait("the device is there", || {
        let node = api.get("/api/v1/nodes/n1")?;
        (node["status"]["allocatable"]["a.com/x"] == "1").then_some(())
    })
    .await;
    let mut main = container("main", "sleep");
    main["resources"] = json!({"limits": {"a.com/x": "1"}, "requests": {"a.com/x": "1"}});
    main["env"] = json!([{"name": "GIVEN", "value": "mine"}]);
    main["args"] = json!(["$(OTHER)", "$(GIVEN)", "$(NOBODYS)"]);
    let path = node.pod("a", json!({"containers": [main]}));
    node.phase(&path, "Running").await;
    let (_, container) = node.runtime.running().remove(0);
    let config = container.config;
    let value = |name: &str| {
        let of = config.envs.iter().filter(|e| e.key == name);
        of.map(|e| e.text().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(value("GIVEN"), ["mine"]);
    assert_eq!(value("OTHER"), ["of the plugin"]);
    assert_eq!(config.args, ["of the plugin", "mine", "$(NOBODYS)"]);
    assert_eq!(config.annotations["vendor.example/devices"], "d0");
    assert_ne!(config.annotations["io.kubernetes.container.hash"], "forged");
    node.stop().await;
}

fn decoded(bytes: &[u8]) -> Pod {
    let types = &davit_api::kinds::builtin().types;
    let root = types.id("core/v1.Pod").unwrap();
    let value = davit_schema::protobuf::decode(types, root, bytes).unwrap();
    serde_json::from_value(value).unwrap()
}

async fn next(
    stream: &mut tonic::Streaming<pods::WatchPodsEvent>,
) -> (pods::EventType, Option<Pod>) {
    let event = tokio::time::timeout(Duration::from_secs(20), stream.message());
    let event = event.await.unwrap().unwrap().unwrap();
    let pod = (!event.pod.is_empty()).then(|| decoded(&event.pod));
    (event.r#type(), pod)
}

#[tokio::test]
async fn item_138_the_pods_api_lists_gets_and_watches() {
    let mut node = Node::start().await;
    let path = node.pod(
        "b",
        json!({"containers": [container("main", "sleep")], "terminationGracePeriodSeconds": 1}),
    );
    node.phase(&path, "Running").await;
    let socket = node.dir.path().join("kubelet/pods-api/pods-api.sock");
    let channel = davit_proto::unix::connect(&socket, Duration::from_secs(5))
        .await
        .unwrap();
    let mut client = pods::pods_client::PodsClient::new(channel);
    let list = client
        .list_pods(pods::ListPodsRequest {})
        .await
        .unwrap()
        .into_inner();
    let listed: Vec<Pod> = list.pods.iter().map(|p| decoded(p)).collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].metadata.name.as_deref(), Some("b"));
    let one = client
        .get_pod(pods::GetPodRequest {
            pod_uid: "uid-b".to_owned(),
        })
        .await
        .unwrap();
    let one = decoded(&one.into_inner().pod);
    assert_eq!(one.status.unwrap().phase.as_deref(), Some("Running"));
    let none = client
        .get_pod(pods::GetPodRequest {
            pod_uid: "uid-x".to_owned(),
        })
        .await;
    assert_eq!(none.unwrap_err().code(), tonic::Code::NotFound);

    let mut stream = client
        .watch_pods(pods::WatchPodsRequest {})
        .await
        .unwrap()
        .into_inner();
    let (kind, pod) = next(&mut stream).await;
    assert_eq!(kind, pods::EventType::Added);
    assert_eq!(pod.unwrap().metadata.uid.as_deref(), Some("uid-b"));
    assert_eq!(
        next(&mut stream).await.0,
        pods::EventType::InitialSyncComplete
    );

    let other = node.pod(
        "c",
        json!({"containers": [container("main", "sleep")], "terminationGracePeriodSeconds": 1}),
    );
    let (kind, pod) = next(&mut stream).await;
    assert_eq!(kind, pods::EventType::Added);
    assert_eq!(pod.unwrap().metadata.name.as_deref(), Some("c"));
    // Later versions follow until it runs.
    loop {
        let (kind, pod) = next(&mut stream).await;
        assert_eq!(kind, pods::EventType::Modified);
        if pod.unwrap().status.and_then(|s| s.phase).as_deref() == Some("Running") {
            break;
        }
    }
    node.delete(&other, 0);
    node.api.remove(&other);
    let gone = loop {
        let (kind, pod) = next(&mut stream).await;
        if kind == pods::EventType::Deleted {
            break pod.unwrap();
        }
    };
    assert_eq!(gone.metadata.uid.as_deref(), Some("uid-c"));
    assert_eq!(gone.metadata.name.as_deref(), Some("c"));
    let spec = gone.spec.unwrap_or_default();
    assert!(spec.containers.is_empty(), "only names are told");
    node.stop().await;
    assert!(
        stream.message().await.is_err(),
        "the stream says that the agent stops"
    );
}
