//! The crate, the Go modules and the JavaScript package for tests of others, against the binary.

mod go;
mod javascript;

use davit_testing::{Cluster, ClusterOptions, Error, Template};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DAVIT: &str = env!("CARGO_BIN_EXE_davit");

fn options() -> ClusterOptions {
    ClusterOptions::new().binary(DAVIT)
}

fn directory(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("davit-ephemeral-{process}"))
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).unwrap()
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < end, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_know_nothing_of_each_other_and_leave_nothing() {
    let started = Instant::now();
    let clusters = join_all((0..8).map(|_| options().start())).await;
    println!("eight clusters: {:?}", started.elapsed());
    let clusters: Vec<Cluster> = clusters.into_iter().map(Result::unwrap).collect();
    let mut left = Vec::new();
    for (number, cluster) in clusters.iter().enumerate() {
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
        maps.create(&PostParams::default(), &map(&format!("of-{number}")))
            .await
            .unwrap();
        left.extend([directory(cluster.process_id()), cluster.log().to_owned()]);
        assert!(cluster.kubeconfig().is_file() && cluster.url().starts_with("https://127.0.0.1:"));
    }
    for (number, cluster) in clusters.iter().enumerate() {
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
        let listed = maps.list(&ListParams::default()).await.unwrap();
        let own = |m: &&ConfigMap| m.metadata.name.as_deref().unwrap().starts_with("of-");
        let names: Vec<_> = listed
            .iter()
            .filter(own)
            .map(|m| m.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(names, [format!("of-{number}")]);
    }
    // half are stopped, half dropped
    let mut clusters = clusters.into_iter();
    for cluster in clusters.by_ref().take(4) {
        cluster.stop().await.unwrap();
    }
    tokio::task::spawn_blocking(move || drop(clusters.collect::<Vec<_>>()))
        .await
        .unwrap();
    for path in left {
        assert!(!path.exists(), "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_nodes_have_devices() {
    let inventory = "resources:\n- name: example.com/gpu\n  count: 3\n";
    let cluster = options()
        .simulated_nodes(2)
        .devices(inventory)
        .start()
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(cluster.client());
    eventually("two nodes with three devices each", async || {
        let listed = nodes.list(&ListParams::default()).await.unwrap();
        let has = |node: &&Node| {
            let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
            allocatable
                .and_then(|a| a.get("example.com/gpu"))
                .is_some_and(|q| q.0 == "3")
        };
        listed.iter().filter(has).count() == 2
    })
    .await;
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_begin_where_the_template_ended() {
    let prepared = Template::prepare(options(), async |cluster| {
        let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
        maps.create(&PostParams::default(), &map("prepared"))
            .await
            .unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client(), "default");
        eventually("a service account", async || {
            accounts.get_opt("default").await.unwrap().is_some()
        })
        .await;
        Ok::<(), Error>(())
    });
    let template = prepared.await.unwrap();
    let started = Instant::now();
    let copies = join_all((0..2).map(|_| options().like(&template).start())).await;
    println!("two copies: {:?}", started.elapsed());
    let copies: Vec<Cluster> = copies.into_iter().map(Result::unwrap).collect();
    let maps =
        |number: usize| -> Api<ConfigMap> { Api::namespaced(copies[number].client(), "default") };
    for (number, copy) in copies.iter().enumerate() {
        maps(number).get("prepared").await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(copy.client(), "default");
        accounts.get("default").await.unwrap();
    }
    // what one does is not seen by the other
    maps(0)
        .create(&PostParams::default(), &map("later"))
        .await
        .unwrap();
    assert!(maps(1).get_opt("later").await.unwrap().is_none());
    for cluster in copies {
        cluster.stop().await.unwrap();
    }
}

#[tokio::test]
async fn what_does_not_start_says_why() {
    let error = options().flag("--no-such-flag").start().await.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::NotReady { .. }) && text.contains("--no-such-flag"),
        "{text}"
    );
    let error = ClusterOptions::new()
        .binary("/nonexistent/davit")
        .start()
        .await;
    assert!(matches!(error.unwrap_err(), Error::Start { .. }));
    let gone = ClusterOptions::new()
        .binary(DAVIT)
        .flag("--template")
        .flag("/nonexistent");
    let text = gone.start().await.unwrap_err().to_string();
    assert!(
        text.contains("--template /nonexistent: there is no cluster"),
        "{text}"
    );
    assert!(!Path::new("/nonexistent").exists());
    let with_node = Template::prepare(options().with_node(), async |_| Ok::<(), Error>(()));
    assert!(matches!(
        with_node.await.unwrap_err(),
        Error::TemplateWithNode
    ));
    let cluster = options().start().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    namespaces.get("default").await.unwrap();
}
