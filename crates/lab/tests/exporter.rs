//! The exporter in front of a real device manager.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use davit_containermanager::{ActivePods, Config, ContainerManager};
use davit_lab::Say;
use davit_lab::devices::{Inventory, serve};
use davit_lab::exporter::{self, Exporter};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

struct OnePod(Arc<Pod>);

impl ActivePods for OnePod {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        vec![self.0.clone()]
    }

    fn ending_pods(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn all_pods(&self) -> Vec<Arc<Pod>> {
        self.active_pods()
    }
}

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some("uid-p".to_owned());
    pod.metadata.name = Some("p".to_owned());
    pod.metadata.namespace = Some("team".to_owned());
    let limits = BTreeMap::from([("a.example/foo".to_owned(), Quantity("1".to_owned()))]);
    let resources = ResourceRequirements {
        limits: Some(limits),
        ..Default::default()
    };
    let main = Container {
        name: "main".to_owned(),
        resources: Some(resources),
        ..Default::default()
    };
    pod.spec = Some(PodSpec {
        containers: vec![main],
        ..Default::default()
    });
    pod
}

async fn scrape(address: SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn until(address: SocketAddr, line: &str) -> String {
    let mut last = String::new();
    for _ in 0..100 {
        last = scrape(address, "/metrics").await;
        if last.contains(line) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("never {line}; {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_device_is_shown_with_its_owner_or_the_reason_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let pod = Arc::new(pod());
    let manager = ContainerManager::start(Config::new(dir.path()), Arc::new(OnePod(pod.clone())))
        .await
        .unwrap();
    let inventory = Inventory::parse(
        "resources: [{name: a.example/foo, count: 3, numaNodes: [1], script: [{at: 3s, unhealthy: [foo-2]}]}]",
    )
    .unwrap();
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    let say: Say = Arc::new(|_: &str| {});
    let (kubelet, stop) = (dir.path().to_owned(), cancel.clone());
    tokio::spawn(async move { serve(&inventory, &kubelet, &say, stop).await.unwrap() });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while manager
        .node_resources()
        .get("a.example/foo")
        .is_none_or(|c| c.allocatable < 3)
    {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the devices are not there"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    manager.admit(&pod, deadline, &|_: &str| {}).await.unwrap();

    let exporter = Arc::new(Exporter::new(
        dir.path().join("pod-resources/kubelet.sock"),
        "n1",
    ));
    let (tell, told) = tokio::sync::oneshot::channel();
    let (stop, any) = (cancel.clone(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = move |address| tell.send(address).unwrap();
    tokio::spawn(async move { exporter::serve(exporter, any, bound, stop).await.unwrap() });
    let address = told.await.unwrap();

    let text = until(address, "davit_podresources_up{node=\"n1\"} 1").await;
    assert!(
        text.contains("HTTP/1.1 200 OK") && text.contains("text/plain; version=0.0.4"),
        "{text}"
    );
    let owner = "davit_device_owner{node=\"n1\",resource=\"a.example/foo\",device=\"foo-0\",namespace=\"team\",pod=\"p\",container=\"main\"} 1";
    assert!(text.contains(owner), "{text}");
    assert!(
        text.contains("device=\"foo-0\",numa_nodes=\"1\",state=\"allocated\"} 1"),
        "{text}"
    );
    let free = "davit_device_without_owner{node=\"n1\",resource=\"a.example/foo\",device=\"foo-1\",reason=\"free\"} 1";
    assert!(text.contains(free), "{text}");
    until(address, "device=\"foo-2\",reason=\"unhealthy\"} 1").await;

    manager.shutdown().await;
    drop(manager);
    let text = until(address, "davit_podresources_up{node=\"n1\"} 0").await;
    assert!(
        text.contains("device=\"foo-1\",reason=\"unknown\"} 1"),
        "{text}"
    );
    assert!(!text.contains("state=\"allocated\"} 1"), "{text}");
    assert!(
        text.contains("davit_podresources_errors_total{node=\"n1\"} 1"),
        "{text}"
    );
    assert!(scrape(address, "/").await.starts_with("HTTP/1.1 404"));
    assert!(
        scrape(address, "/healthz")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn silent_clients_keep_no_scraper_out() {
    let dir = tempfile::tempdir().unwrap();
    let exporter = Arc::new(Exporter::new(dir.path().join("nobody.sock"), "n1"));
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    let (tell, told) = tokio::sync::oneshot::channel();
    let (stop, any) = (cancel.clone(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let bound = move |address| tell.send(address).unwrap();
    tokio::spawn(async move { exporter::serve(exporter, any, bound, stop).await.unwrap() });
    let address = told.await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let asked = tokio::time::timeout(Duration::from_secs(5), scrape(address, "/healthz")).await;
    assert!(asked.unwrap().starts_with("HTTP/1.1 200"));
}
