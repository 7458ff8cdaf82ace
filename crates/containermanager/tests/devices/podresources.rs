//! podresources and metrics (checklist 10.9).

use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::podresources::v1::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
};
use davit_proto::podresources::v1alpha1;
use davit_proto::unix;
use tonic::Code;

use crate::plugin::{Node, Plugin, R, device, devices, nodes, pod};
use crate::{list, lister};

/// What the agent would show under `/metrics`.
fn metrics(node: &Node) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    node.manager()
        .register_metrics(registry.sub_registry_with_prefix("kubelet"));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// Without the gate `KubeletPodResourcesListUseActivePods`.
#[tokio::test]
async fn pods_that_have_ended_are_listed_where_that_is_wanted() {
    for list_ended in [false, true] {
        let node = Node::start_with(|config| config.list_ended = list_ended).await;
        node.admit(&pod("a", &[])).await.unwrap();
        node.admit(&pod("b", &[])).await.unwrap();
        node.finish(&pod("a", &[]), true).await;
        let listed = list(&node).await;
        let names: Vec<_> = listed.iter().map(|p| &*p.name).collect();
        let wanted: &[&str] = if list_ended { &["a", "b"] } else { &["b"] };
        assert_eq!(names, wanted);
    }
}

#[tokio::test]
async fn items_126_to_132_podresources() {
    let node = Node::start().await;
    let mut all = devices(4);
    all[0].topology = Some(nodes(&[0, 1]));
    all[1].topology = Some(nodes(&[]));
    all[3].health = "Unhealthy".into();
    let plugin = Plugin::new("p.sock").with(all);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 3).await;
    node.admit(&pod("b", &[(R, 2)])).await.unwrap();
    node.admit(&pod("a", &[])).await.unwrap();
    let listed = list(&node).await;
    let names: Vec<_> = listed.iter().map(|p| &*p.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(listed[0].containers[0].devices.is_empty());
    let shape = |devices: &[davit_proto::podresources::v1::ContainerDevices]| {
        let node = |d: &davit_proto::podresources::v1::ContainerDevices| {
            let nodes = d
                .topology
                .as_ref()
                .map(|t| t.nodes.iter().map(|n| n.id).collect::<Vec<_>>());
            (d.device_ids.join(","), nodes)
        };
        devices.iter().map(node).collect::<Vec<_>>()
    };
    let d0 = [
        ("d0".to_owned(), Some(vec![0])),
        ("d0".to_owned(), Some(vec![1])),
    ];
    let d1 = ("d1".to_owned(), None);
    let two = [d0[0].clone(), d0[1].clone(), d1.clone()];
    assert_eq!(shape(&listed[1].containers[0].devices), two);
    let mut client = lister(&node).await;
    let allocatable = client
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await
        .unwrap();
    let mut three = two.to_vec();
    three.push(("d2".to_owned(), None));
    assert_eq!(shape(&allocatable.get_ref().devices), three);
    let get = |name: &str| GetPodResourcesRequest {
        pod_name: name.into(),
        pod_namespace: "default".into(),
    };
    let one = client
        .get(get("b"))
        .await
        .unwrap()
        .into_inner()
        .pod_resources
        .unwrap();
    assert_eq!(one, listed[1]);
    let status = client.get(get("nobody")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(
        status.message(),
        "pod nobody in namespace default not found"
    );
    let channel = unix::connect(
        node.root().join("pod-resources/kubelet.sock"),
        Duration::from_secs(5),
    )
    .await
    .unwrap();
    let mut old = v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let answer = old
        .list(v1alpha1::ListPodResourcesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        answer.pod_resources[1].containers[0].devices[0].device_ids,
        ["d0", "d1"]
    );
}

#[tokio::test]
async fn items_133_and_135_rate_limit_and_restart() {
    let node = Node::start().await;
    let client = lister(&node).await;
    let calls = (0..100).map(|_| {
        let mut client = client.clone();
        async move { client.list(ListPodResourcesRequest {}).await }
    });
    let answers = futures::future::join_all(calls).await;
    let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "rejected by rate limit");
    }
    let node = node.restart().await;
    assert!(list(&node).await.is_empty());
}

#[tokio::test]
async fn metrics_have_the_kubelets_names() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(vec![pb::Device {
        topology: Some(nodes(&[0])),
        ..device("d0", "Healthy")
    }]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
    let text = metrics(&node);
    // Families with labels are shown from their first sample on, as everywhere.
    for name in [
        "kubelet_device_plugin_registration_total{",
        "kubelet_device_plugin_alloc_duration_seconds_bucket{",
        "kubelet_topology_manager_admission_requests_total ",
        "kubelet_topology_manager_admission_errors_total ",
        "kubelet_topology_manager_admission_duration_ms_count 1",
        "kubelet_cpu_manager_pinning_requests_total ",
        "kubelet_cpu_manager_pinning_errors_total ",
        "kubelet_cpu_manager_shared_pool_size_millicores ",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count ",
        "kubelet_memory_manager_pinning_requests_total ",
        "kubelet_memory_manager_pinning_errors_total ",
    ] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
}

#[tokio::test]
async fn item_137_requests_are_counted_by_version_and_method() {
    let node = Node::start().await;
    let mut client = lister(&node).await;
    client.list(ListPodResourcesRequest {}).await.unwrap();
    client.list(ListPodResourcesRequest {}).await.unwrap();
    client
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await
        .unwrap();
    let unknown = client.get(GetPodResourcesRequest::default()).await;
    unknown.unwrap_err();
    let path = node.root().join("pod-resources/kubelet.sock");
    let channel = unix::connect(path, Duration::from_secs(5)).await.unwrap();
    let mut old = v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let request = v1alpha1::ListPodResourcesRequest {};
    old.list(request).await.unwrap();
    let text = metrics(&node);
    for line in [
        "requests_total{server_api_version=\"v1\"} 4",
        "requests_total{server_api_version=\"v1alpha1\"} 1",
        "requests_list{server_api_version=\"v1\"} 2",
        "requests_get_allocatable{server_api_version=\"v1\"} 1",
        "requests_get{server_api_version=\"v1\"} 1",
        "errors_get{server_api_version=\"v1\"} 1",
    ] {
        let line = format!("\nkubelet_pod_resources_endpoint_{line}\n");
        assert!(text.contains(&line), "{line} is missing:\n{text}");
    }
}
