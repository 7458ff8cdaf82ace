//! Dynamic resource allocation with a real driver: one in Go, built on the official helper, against the real binary.

use crate::{harness, node_harness, peers::parts};
use davit_proto::podresources::v1::{ListPodResourcesRequest, PodResources};
use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal, Route};
use davit_sdk::{async_trait, watch};
use harness::root;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use node_harness::{NodeCluster, within};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DRIVER: &str = "gadget.peers.davit.dev";
/// The resource by which pods may ask for gadgets without a claim.
const EXTENDED: &str = "peers.davit.dev/gadget";
const SOON: Duration = Duration::from_secs(60);
/// Runs only with a device of the driver.
const NEEDS_DEVICE: &str = "env | grep -q ^PEER_GADGET_ && while :; do sleep 1000; done";

/// A device plugin that answers with the name of a CDI device.
struct NamesCdi(watch::Sender<Vec<Device>>);

#[async_trait]
impl DevicePlugin for NamesCdi {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.0.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        Ok(Allocation::new().cdi(format!("vendor.example/thing={}", ids[0])))
    }
}

/// A driver process and what it has said.
struct Driver {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Driver {
    fn start(program: &Path, node: &NodeCluster, instance: &str) -> Self {
        let mut child = Command::new(program)
            .args(["--node", "node-1", "--instance", instance])
            .arg("--kubeconfig")
            .arg(&node.cluster.kubeconfig)
            .arg("--kubelet-dir")
            .arg(node.kubelet_dir())
            .arg("--cdi-dir")
            .arg(node.cluster.dir.path().join("root/var/run/cdi"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let heard = said.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { child, said }
    }

    /// How often it has said something that begins so.
    fn count(&self, beginning: &str) -> usize {
        let said = self.said.lock().unwrap();
        said.iter().filter(|l| l.starts_with(beginning)).count()
    }

    async fn says(&self, beginning: &str) {
        within(SOON, &format!("driver says {beginning:?}"), async || {
            (self.count(beginning) > 0).then_some(())
        })
        .await;
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Ends it as an orderly update does.
    fn stop(&mut self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.child.wait().unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

async fn create<K>(api: Api<K>, value: Value)
where
    K: kube::Resource + Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object: K = serde_json::from_value(value).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

fn exactly() -> Value {
    json!({"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gadgets"}}]}})
}

/// A cluster with a class, a template, and no driver yet.
async fn cluster() -> NodeCluster {
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let class = json!({"metadata": {"name": "gadgets"}, "spec": {
        "extendedResourceName": EXTENDED,
        "selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
    create::<DeviceClass>(Api::all(node.client.clone()), class).await;
    let template = json!({"metadata": {"name": "gadget"}, "spec": {"spec": exactly()}});
    create::<ResourceClaimTemplate>(Api::default_namespaced(node.client.clone()), template).await;
    node
}

async fn slices(node: &NodeCluster) -> Vec<ResourceSlice> {
    let api: Api<ResourceSlice> = Api::all(node.client.clone());
    api.list(&ListParams::default()).await.unwrap().items
}

async fn wait_for_slices(node: &NodeCluster) {
    within(SOON, "the driver's slices", async || {
        (!slices(node).await.is_empty()).then_some(())
    })
    .await;
}

fn claims(node: &NodeCluster) -> Api<ResourceClaim> {
    Api::default_namespaced(node.client.clone())
}

/// A pod with one claim, from the template or by name.
fn pod(name: &str, source: Value) -> Pod {
    let mut pod = node_harness::pod(name, NEEDS_DEVICE, 0);
    let spec = pod.spec.as_mut().unwrap();
    spec.restart_policy = Some("Never".to_owned());
    let mut entry = source;
    entry["name"] = json!("gadget");
    spec.resource_claims = Some(vec![serde_json::from_value(entry).unwrap()]);
    let resources = json!({"claims": [{"name": "gadget"}]});
    spec.containers[0].resources = Some(serde_json::from_value(resources).unwrap());
    pod
}

fn from_template(name: &str) -> Pod {
    pod(name, json!({"resourceClaimTemplateName": "gadget"}))
}

/// The name of the claim that was made for a pod.
fn claim_of(pod: &Pod) -> String {
    let statuses = pod.status.as_ref().unwrap().resource_claim_statuses.clone();
    statuses.unwrap()[0].resource_claim_name.clone().unwrap()
}

async fn podresources(node: &NodeCluster, pod: &str) -> PodResources {
    let mut client = node.podresources().await;
    let list = client.list(ListPodResourcesRequest {}).await.unwrap();
    let mut pods = list.into_inner().pod_resources.into_iter();
    pods.find(|p| p.name == pod).unwrap()
}

async fn delete(node: &NodeCluster, name: &str) {
    let params = DeleteParams::default();
    node.pods().delete(name, &params).await.unwrap();
    within(SOON, &format!("pod {name} gone"), async || {
        node.pods()
            .get_opt(name)
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_101_105_110_112_116_a_claim_from_prepare_to_unprepare() {
    let (Some(()), Some(program)) = (root(), parts::go_peer("dradriver")) else {
        return;
    };
    let node = cluster().await;
    let driver = Driver::start(&program, &node, "");
    wait_for_slices(&node).await;

    // Prepared with an error once, told by an event, and tried again.
    driver.signal(nix::sys::signal::Signal::SIGUSR1);
    driver.says("will fail once").await;
    node.create(&from_template("first")).await;
    let first = node.wait_for_phase("first", "Running").await;
    let claim = claim_of(&first);
    assert_eq!(driver.count(&format!("failed {claim}")), 1);
    assert_eq!(driver.count(&format!("prepared {claim}")), 1);
    let events: Api<Event> = Api::default_namespaced(node.client.clone());
    let about = ListParams::default().fields("involvedObject.name=first");
    // Another failure may come first: the API server lets the node read the claim once it has seen that the pod is there.
    let expected = format!(
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for ResourceClaim {claim}: "
    );
    within(SOON, "an event about the failure", async || {
        let list = events.list(&about).await.unwrap().items;
        let reason = Some("FailedPrepareDynamicResources");
        let mut failures = list.into_iter().filter(|e| e.reason.as_deref() == reason);
        failures.find(|e| {
            e.message
                .as_deref()
                .is_some_and(|m| m.starts_with(&expected))
        })
    })
    .await;

    let told = podresources(&node, "first").await;
    let resources = &told.containers[0].dynamic_resources;
    assert_eq!(resources.len(), 1, "{told:?}");
    assert_eq!(resources[0].claim_name, claim);
    let device = &resources[0].claim_resources[0];
    assert_eq!(
        (device.driver_name.as_str(), device.pool_name.as_str()),
        (DRIVER, "node-1")
    );
    assert_eq!(device.cdi_devices.len(), 1);

    // Two pods share a claim: prepared once, undone after the last.
    create(
        claims(&node),
        json!({"metadata": {"name": "shared"}, "spec": exactly()}),
    )
    .await;
    for name in ["left", "right"] {
        node.create(&pod(name, json!({"resourceClaimName": "shared"})))
            .await;
    }
    node.wait_for_phase("left", "Running").await;
    node.wait_for_phase("right", "Running").await;
    assert_eq!(driver.count("prepared shared"), 1);
    delete(&node, "left").await;
    assert_eq!(driver.count("unprepared shared"), 0);

    // Killed and started again, davit knows the claims; nothing that runs is touched.
    let before = claims(&node).get(&claim).await.unwrap().status;
    let mut node = node;
    node.cluster.kill();
    let node = node.start_again().await;
    let again = node.wait_for_phase("first", "Running").await;
    let id = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap();
        status.container_statuses.as_ref().unwrap()[0]
            .container_id
            .clone()
    };
    assert_eq!(id(&first), id(&again));
    assert_eq!(claims(&node).get(&claim).await.unwrap().status, before);
    within(SOON, "podresources after the restart", async || {
        let told = podresources(&node, "first").await;
        (told.containers[0].dynamic_resources == *resources).then_some(())
    })
    .await;

    delete(&node, "right").await;
    driver.says("unprepared shared").await;
    drop(driver);

    // The driver is killed as well: the next one undoes what it has not done itself.
    let driver = Driver::start(&program, &node, "");
    delete(&node, "first").await;
    driver.says(&format!("unprepared {claim}")).await;
    assert_eq!(driver.count("unprepared"), 1);

    // A limit of an extended resource becomes a claim.
    wait_for_slices(&node).await;
    let mut extended = node_harness::pod("extended", NEEDS_DEVICE, 0);
    let spec = extended.spec.as_mut().unwrap();
    spec.restart_policy = Some("Never".to_owned());
    let limits = json!({"limits": {EXTENDED: "1"}});
    spec.containers[0].resources = Some(serde_json::from_value(limits).unwrap());
    node.create(&extended).await;
    node.wait_for_phase("extended", "Running").await;
    driver.says("prepared extended-extended-resources-").await;
    let told = podresources(&node, "extended").await;
    let claims = &told.containers[0].dynamic_resources;
    assert!(
        claims[0]
            .claim_name
            .starts_with("extended-extended-resources-")
    );
    delete(&node, "extended").await;
    driver.says("unprepared extended-extended-resources-").await;
    node.clean_up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn item_114_a_driver_is_replaced_without_a_gap() {
    let (Some(()), Some(program)) = (root(), parts::go_peer("dradriver")) else {
        return;
    };
    let node = cluster().await;
    let mut old = Driver::start(&program, &node, "old");
    wait_for_slices(&node).await;
    node.create(&from_template("before")).await;
    let before = node.wait_for_phase("before", "Running").await;
    let published = slices(&node).await;

    let new = Driver::start(&program, &node, "new");
    new.says("published").await;
    let registry = node.kubelet_dir().join("plugins_registry");
    let registered = |name: &str| {
        let log = node.cluster.log();
        log.contains(&format!("{}", registry.join(name).display()))
    };
    let socket = format!("{DRIVER}-new-reg.sock");
    within(SOON, "the new instance registers", async || {
        registered(&socket).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.create(&from_template("during")).await;
    let during = node.wait_for_phase("during", "Running").await;
    new.says(&format!("prepared {}", claim_of(&during))).await;
    assert_eq!(old.count("prepared"), 1);

    old.stop();
    node.create(&from_template("after")).await;
    let after = node.wait_for_phase("after", "Running").await;
    new.says(&format!("prepared {}", claim_of(&after))).await;
    delete(&node, "before").await;
    new.says(&format!("unprepared {}", claim_of(&before))).await;
    assert_eq!(slices(&node).await, published);
    node.clean_up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn item_149_cdi_devices_of_a_device_plugin_are_injected() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let dir = node.cluster.dir.path();
    let (cdi, shared) = (dir.join("root/etc/cdi"), dir.join("shared"));
    std::fs::create_dir_all(&cdi).unwrap();
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("marker"), "").unwrap();
    let hooked = dir.join("hooked");
    let spec = json!({"cdiVersion": "0.7.0", "kind": "vendor.example/thing", "devices": [
        {"name": "d0", "containerEdits": {
            "env": ["THING=d0"],
            "deviceNodes": [{"path": "/dev/thing-zero", "hostPath": "/dev/zero", "permissions": "rw"}],
            "mounts": [{"hostPath": shared, "containerPath": "/mnt/thing", "options": ["ro", "bind"]}],
            "hooks": [{"hookName": "createRuntime", "path": "/bin/touch", "args": ["touch", hooked]}],
            "additionalGids": [4711]}}]});
    std::fs::write(cdi.join("thing.json"), spec.to_string()).unwrap();
    let plugin = NamesCdi(watch::Sender::new(vec![Device::healthy("d0")]));
    let route = Route::Register(node.kubelet_dir().join("device-plugins"));
    let _running = PluginServer::new(node_harness::RESOURCE, plugin)
        .route(route)
        .start()
        .unwrap();
    node.wait_for_devices(1).await;
    let command = "test \"$THING\" = d0 && head -c 1 /dev/thing-zero > /dev/null && test -f /mnt/thing/marker \
        && ! touch /mnt/thing/x 2> /dev/null && id -G | grep -qw 4711 && while :; do sleep 1000; done";
    let mut pod = node_harness::pod("thing", command, 1);
    pod.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    node.create(&pod).await;
    node.wait_for_phase("thing", "Running").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.wait_for_phase("thing", "Running").await;
    assert!(hooked.exists());
    node.clean_up().await;
}

/// 91: a claim that was made, but is not in the pod's status yet, is found again. 92: what the status says needs no claim
/// runs without one.
#[tokio::test(flavor = "multi_thread")]
async fn items_91_92_claims_from_templates_are_made_once_or_not_at_all() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let pod = |name: &str| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "e", "resourceClaimTemplateName": "late"}],
            "containers": [{"name": "main", "image": "davit.local/host", "command": ["sleep", "1000"],
                "resources": {"claims": [{"name": "e"}]}}]}}))
        .unwrap()
    };
    // There is no template: the controller can only try.
    node.create(&pod("without")).await;
    node.create(&pod("found")).await;
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "e"}]}});
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Strategic(&status);
    let patched = node.pods().patch_status("without", &params, &patch).await;
    patched.unwrap();
    node.wait_for_phase("without", "Running").await;

    let claims: Api<ResourceClaim> = Api::default_namespaced(node.client.clone());
    let uid = node
        .pods()
        .get("found")
        .await
        .unwrap()
        .metadata
        .uid
        .unwrap();
    let by_hand = serde_json::from_value(json!({
        "metadata": {"name": "by-hand", "annotations": {"resource.kubernetes.io/pod-claim-name": "e"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "found", "uid": uid,
                "controller": true, "blockOwnerDeletion": true}]},
        "spec": {}}));
    claims
        .create(&PostParams::default(), &by_hand.unwrap())
        .await
        .unwrap();
    let templates: Api<ResourceClaimTemplate> = Api::default_namespaced(node.client.clone());
    let late = serde_json::from_value(json!({"metadata": {"name": "late"}, "spec": {"spec": {}}}));
    templates
        .create(&PostParams::default(), &late.unwrap())
        .await
        .unwrap();
    within(SOON, "the pod's status names the claim", async || {
        let pod = node.pods().get("found").await.ok()?;
        let statuses = pod.status?.resource_claim_statuses?;
        (statuses[0].resource_claim_name.as_deref() == Some("by-hand")).then_some(())
    })
    .await;
    // A claim without requests is allocated like any other.
    node.wait_for_phase("found", "Running").await;
    let all = claims.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<&str> = all
        .iter()
        .filter_map(|c| c.metadata.name.as_deref())
        .collect();
    assert_eq!(names, ["by-hand"]);
    node.clean_up().await;
}
