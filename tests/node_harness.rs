//! A cluster with a node that runs containers, a device plugin process, and a podresources client.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of the harness"
)]

use crate::harness::{Cluster, DAVIT};
use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use davit_proto::podresources::v1::{ListPodResourcesRequest, ListPodResourcesResponse};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The resource of the tests.
pub const RESOURCE: &str = "hardware-vendor.example/foo";

/// A cluster whose node runs containers, with clients for it.
pub struct NodeCluster {
    pub cluster: Cluster,
    pub client: kube::Client,
}

impl NodeCluster {
    /// Starts `davit up` with a node and the host's root as an image.
    pub async fn up(extra: &[&str]) -> Self {
        let mut args = vec!["--node-name", "node-1", "--allow-host-image"];
        args.extend_from_slice(extra);
        let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        let cluster = tokio::task::spawn_blocking(move || {
            Cluster::up(&args.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let cluster = cluster.await.unwrap();
        let client = connect(&cluster.kubeconfig).await;
        Self { cluster, client }
    }

    /// Starts davit again after [`Cluster::kill`].
    pub async fn start_again(mut self) -> Self {
        let cluster = tokio::task::spawn_blocking(move || {
            self.cluster.start_again();
            self.cluster
        });
        let cluster = cluster.await.unwrap();
        let client = connect(&cluster.kubeconfig).await;
        Self { cluster, client }
    }

    /// The node agent's folder.
    pub fn kubelet_dir(&self) -> PathBuf {
        self.cluster.dir.path().join("root/var/lib/kubelet")
    }

    /// Starts the example device plugin as a process of its own.
    pub fn plugin(&self, count: usize) -> Plugin {
        Plugin::start(
            &self.kubelet_dir(),
            &self.cluster.dir.path().join("plugin"),
            count,
        )
    }

    pub fn pods(&self) -> kube::Api<Pod> {
        kube::Api::namespaced(self.client.clone(), "default")
    }

    /// Waits until the node offers as many devices.
    pub async fn wait_for_devices(&self, count: usize) {
        let nodes: kube::Api<Node> = kube::Api::all(self.client.clone());
        within(
            Duration::from_secs(60),
            "devices in the node's status",
            async || {
                let node = nodes.get("node-1").await.ok()?;
                let offered = node.status?.allocatable?.get(RESOURCE)?.0.clone();
                (offered == count.to_string()).then_some(())
            },
        )
        .await;
    }

    /// Waits until the default service account is there, without which no pod can be made.
    pub async fn wait_for_service_account(&self) {
        let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
            kube::Api::namespaced(self.client.clone(), "default");
        within(
            Duration::from_secs(20),
            "the default service account",
            async || accounts.get("default").await.ok(),
        )
        .await;
    }

    pub async fn create(&self, pod: &Pod) {
        self.pods()
            .create(&PostParams::default(), pod)
            .await
            .unwrap();
    }

    /// Waits until a pod has a phase; returns it. Fails at once when the pod failed instead.
    pub async fn wait_for_phase(&self, name: &str, phase: &str) -> Pod {
        let (pods, wanted) = (self.pods(), phase);
        within(
            Duration::from_secs(90),
            &format!("pod {name} in phase {phase}"),
            async || {
                let pod = pods.get(name).await.ok()?;
                let phase = pod.status.as_ref()?.phase.clone()?;
                assert!(
                    phase != "Failed" || wanted == "Failed",
                    "pod {name} failed: {:?}",
                    pod.status
                );
                (phase == wanted).then_some(pod)
            },
        )
        .await
    }

    pub async fn delete_now(&self, name: &str) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        match self.pods().delete(name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("delete {name}: {error}"),
        }
    }

    pub async fn list(&self) -> Vec<Pod> {
        self.pods()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    /// A podresources client of this node.
    pub async fn podresources(&self) -> PodResourcesListerClient<tonic::transport::Channel> {
        podresources(&self.kubelet_dir()).await
    }

    /// Deletes all pods and waits until they are gone, so that no container outlives the test.
    pub async fn clean_up(&self) {
        for pod in self.list().await {
            // With a grace period the pod stays in the API until its containers have ended.
            let name = pod.metadata.name.unwrap();
            match self.pods().delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => panic!("delete {name}: {error}"),
            }
        }
        within(Duration::from_secs(60), "all pods gone", async || {
            self.list().await.is_empty().then_some(())
        })
        .await;
    }
}

async fn connect(kubeconfig: &Path) -> kube::Client {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    davit_client::from_kubeconfig(kubeconfig).await.unwrap()
}

/// Connects to podresources below a node agent's folder.
pub async fn podresources(kubelet: &Path) -> PodResourcesListerClient<tonic::transport::Channel> {
    let socket = kubelet.join("pod-resources/kubelet.sock");
    let channel = davit_proto::unix::connect(&socket, Duration::from_secs(10))
        .await
        .unwrap();
    PodResourcesListerClient::new(channel)
}

/// Who holds which device of [`RESOURCE`], by device; panics when a device has two owners.
pub async fn owners(
    client: &mut PodResourcesListerClient<tonic::transport::Channel>,
) -> BTreeMap<String, String> {
    loop {
        match client.list(ListPodResourcesRequest {}).await {
            Ok(answer) => return single_owners(&answer.into_inner()),
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(status) => panic!("podresources List: {status}"),
        }
    }
}

fn single_owners(list: &ListPodResourcesResponse) -> BTreeMap<String, String> {
    let mut owners = BTreeMap::new();
    for pod in &list.pod_resources {
        for container in &pod.containers {
            for device in container
                .devices
                .iter()
                .filter(|d| d.resource_name == RESOURCE)
            {
                for id in &device.device_ids {
                    let owner = format!("{}/{}", pod.name, container.name);
                    if let Some(other) = owners.insert(id.clone(), owner.clone()) {
                        panic!("device {id} belongs to {other} and to {owner}");
                    }
                }
            }
        }
    }
    owners
}

/// A pod whose container runs a shell command on the host's root and holds devices.
pub fn pod(name: &str, command: &str, devices: usize) -> Pod {
    let mut container = serde_json::json!({
        "name": "main",
        "image": "davit.local/host",
        "command": ["/bin/sh", "-c", command],
    });
    if devices > 0 {
        container["resources"] = serde_json::json!({ "limits": { RESOURCE: devices.to_string() } });
    }
    serde_json::from_value(serde_json::json!({
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [container],
        },
    }))
    .unwrap()
}

/// Tries until there is a value.
pub async fn within<T>(
    deadline: Duration,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The example device plugin as a process.
pub struct Plugin {
    child: Child,
}

impl Plugin {
    pub fn start(kubelet: &Path, dir: &Path, count: usize) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let child = Command::new(DAVIT)
            .args([
                "example-device",
                "--resource",
                RESOURCE,
                "--count",
                &count.to_string(),
            ])
            .arg("--socket-dir")
            .arg(kubelet.join("device-plugins"))
            .arg("--dev-dir")
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}
