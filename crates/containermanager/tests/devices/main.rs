//! The container manager against plugins over real unix sockets. Test names carry the numbers
//! of the acceptance checklist they cover.

#![allow(clippy::unwrap_used)]

mod allocation;
mod compute;
mod health;
mod lists;
mod model;
mod options;
mod plugin;
mod podresources;
mod registration;
mod registry;
mod restarts;
mod upgrades;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use davit_containermanager::Rejection;
use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use davit_proto::podresources::v1::{ListPodResourcesRequest, PodResources};
use davit_proto::unix;
use plugin::Node;

/// Devices each container of a pod shows in podresources.
fn held(pod: &PodResources) -> BTreeMap<String, BTreeSet<String>> {
    let ids = |c: &davit_proto::podresources::v1::ContainerResources| {
        c.devices
            .iter()
            .flat_map(|d| d.device_ids.clone())
            .collect()
    };
    pod.containers
        .iter()
        .map(|c| (c.name.clone(), ids(c)))
        .collect()
}

async fn lister(node: &Node) -> PodResourcesListerClient<tonic::transport::Channel> {
    let path = node.root().join("pod-resources/kubelet.sock");
    PodResourcesListerClient::new(unix::connect(path, Duration::from_secs(5)).await.unwrap())
        .max_decoding_message_size(unix::MAX_MESSAGE)
}

async fn list(node: &Node) -> Vec<PodResources> {
    let mut client = lister(node).await;
    loop {
        match client.list(ListPodResourcesRequest {}).await {
            Ok(answer) => return answer.into_inner().pod_resources,
            Err(e) => assert_eq!(e.message(), "rejected by rate limit"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn message(rejection: &Rejection) -> String {
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    let text = rejection
        .message
        .strip_prefix("Allocate failed due to ")
        .unwrap();
    text.strip_suffix(", which is unexpected")
        .unwrap()
        .to_owned()
}
