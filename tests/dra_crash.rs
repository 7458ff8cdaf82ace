//! kill -9 of davit, of a driver, and of both, at every moment of a claim's life: nothing is allocated twice, nothing is
//! left behind, and each pod runs or says what it waits for.

use crate::{gpu_harness, harness, node_harness};
use davit_proto::podresources::v1::ListPodResourcesRequest;
use gpu_harness::{Gpus, Site, class};
use harness::root;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use node_harness::{NodeCluster, within};
use rand::Rng;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often something is killed; `DAVIT_CRASHES` overrides it.
const CRASHES: usize = 6;
const GPUS: usize = 6;
const SOON: Duration = Duration::from_secs(90);
/// The driver takes its time, so that it is often killed in the middle of something.
const INVENTORY: &[&str] = &["--gpus", "6", "--slow", "150"];

fn pod(name: &str) -> Pod {
    let command = "env | grep -q ^GPU_DEVICE_ && while :; do sleep 1000; done";
    let mut pod = node_harness::pod(name, command, 0);
    let spec = pod.spec.as_mut().unwrap();
    spec.restart_policy = Some("Never".to_owned());
    let entry = json!({"name": "gpu", "resourceClaimTemplateName": "gpu"});
    spec.resource_claims = Some(vec![serde_json::from_value(entry).unwrap()]);
    let resources = json!({"claims": [{"name": "gpu"}]});
    spec.containers[0].resources = Some(serde_json::from_value(resources).unwrap());
    pod
}

fn claims(node: &NodeCluster) -> Api<ResourceClaim> {
    Api::default_namespaced(node.client.clone())
}

/// Which claim has which device, by the API; panics when a device is given twice.
async fn allocated(node: &NodeCluster) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    for claim in claims(node).list(&ListParams::default()).await.unwrap() {
        let name = claim.metadata.name.unwrap();
        let allocation = claim.status.and_then(|s| s.allocation);
        let devices = allocation.and_then(|a| a.devices);
        for result in devices
            .into_iter()
            .flat_map(|d| d.results.into_iter().flatten())
        {
            if let Some(other) = owners.insert(result.device.clone(), name.clone()) {
                panic!(
                    "device {} is allocated to {other} and {name}",
                    result.device
                );
            }
        }
    }
    owners
}

/// The same by the node; panics likewise.
async fn held(node: &NodeCluster) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    let list = node
        .podresources()
        .await
        .list(ListPodResourcesRequest {})
        .await;
    for pod in list.unwrap().into_inner().pod_resources {
        for container in &pod.containers {
            let claims = container.dynamic_resources.iter();
            for device in claims.flat_map(|c| &c.claim_resources) {
                let name = device.device_name.clone();
                if let Some(other) = owners.insert(name.clone(), pod.name.clone()) {
                    panic!("device {name} is held by {other} and {}", pod.name);
                }
            }
        }
    }
    owners
}

async fn set_up(node: &NodeCluster) {
    node.wait_for_service_account().await;
    let class: DeviceClass =
        serde_saphyr::from_str(class("gpu", "'gpu'").trim_end_matches("---\n")).unwrap();
    let classes: Api<DeviceClass> = Api::all(node.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .unwrap();
    let spec =
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}});
    let template = json!({"metadata": {"name": "gpu"}, "spec": {"spec": spec}});
    let template: ResourceClaimTemplate = serde_json::from_value(template).unwrap();
    let templates: Api<ResourceClaimTemplate> = Api::default_namespaced(node.client.clone());
    templates
        .create(&PostParams::default(), &template)
        .await
        .unwrap();
}

async fn wait_for_slices(node: &NodeCluster) {
    let slices: Api<ResourceSlice> = Api::all(node.client.clone());
    within(SOON, "slices", async || {
        let list = slices.list(&ListParams::default()).await.ok()?;
        (!list.items.is_empty()).then_some(())
    })
    .await;
}

/// What a container was started as: it may not be another one after a crash.
fn identity(pod: &Pod) -> (String, i32) {
    let statuses = pod.status.as_ref().unwrap().container_statuses.as_ref();
    let status = &statuses.unwrap()[0];
    (status.container_id.clone().unwrap(), status.restart_count)
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_outlive_crashes_of_davit_and_of_their_driver() {
    let Some(()) = root() else { return };
    let crashes = std::env::var("DAVIT_CRASHES").ok();
    let crashes = crashes.and_then(|n| n.parse().ok()).unwrap_or(CRASHES);
    let mut node = NodeCluster::up(&[]).await;
    node.cluster.keep_port();
    set_up(&node).await;
    let mut site = Site::of(&node.cluster);
    let mut driver = Gpus::start(&site, "a", INVENTORY);
    wait_for_slices(&node).await;
    node.create(&pod("lasting")).await;
    let lasting = identity(&node.wait_for_phase("lasting", "Running").await);
    let owner = |map: &BTreeMap<String, String>, name: &str| {
        map.iter()
            .find(|(_, o)| o.starts_with(name))
            .map(|(d, _)| d.clone())
    };
    let device = owner(&held(&node).await, "lasting");
    assert!(device.is_some());
    for round in 0..crashes {
        // Some pods begin and some end when it happens, at another moment each time.
        let fresh = [format!("p-{round}-0"), format!("p-{round}-1")];
        for name in &fresh {
            node.create(&pod(name)).await;
        }
        for old in node.list().await {
            let name = old.metadata.name.unwrap();
            if name.starts_with("p-") && !fresh.contains(&name) {
                let result = node.pods().delete(&name, &DeleteParams::default()).await;
                assert!(
                    matches!(&result, Ok(_) | Err(kube::Error::Api(_))),
                    "{result:?}"
                );
            }
        }
        let pause = rand::rng().random_range(0..2500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if round % 3 != 0 {
            driver.kill();
        }
        if round % 3 != 1 {
            node.cluster.kill();
            node = node.start_again().await;
            site = Site::of(&node.cluster);
        }
        if round % 3 != 0 {
            driver = Gpus::start(&site, "a", INVENTORY);
        }
        allocated(&node).await;
        for name in &fresh {
            node.wait_for_phase(name, "Running").await;
        }
        let (by_api, by_node) = (allocated(&node).await, held(&node).await);
        assert!(by_node.len() <= GPUS);
        assert_eq!(owner(&by_node, "lasting"), device, "round {round}");
        assert_eq!(owner(&by_api, "lasting"), device, "round {round}");
        let again = node.wait_for_phase("lasting", "Running").await;
        assert_eq!(identity(&again), lasting, "round {round}");
        println!("round {round}: after {pause} ms");
    }
    node.clean_up().await;
    within(SOON, "nothing is left", async || {
        let (by_api, by_node) = (allocated(&node).await, held(&node).await);
        (by_api.is_empty() && by_node.is_empty() && site.cdi_files().is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_says_that_its_driver_is_away() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    set_up(&node).await;
    let site = Site::of(&node.cluster);
    let mut driver = Gpus::start(&site, "a", &["--gpus", "2"]);
    wait_for_slices(&node).await;
    driver.kill();
    node.create(&pod("waiting")).await;
    let events: Api<k8s_openapi::api::core::v1::Event> =
        Api::default_namespaced(node.client.clone());
    let about = ListParams::default().fields("involvedObject.name=waiting");
    within(SOON, "an event names the driver", async || {
        let list = events.list(&about).await.ok()?.items;
        let mut texts = list.into_iter().filter_map(|e| e.message);
        texts.any(|t| t.contains(gpu_harness::DRIVER)).then_some(())
    })
    .await;
    let _driver = Gpus::start(&site, "a", &["--gpus", "2"]);
    node.wait_for_phase("waiting", "Running").await;
    node.clean_up().await;
}
