//! What is asked of the container runtime, counted and timed under the kubelet's names.

use crate::runtime::{ExecSession, PodDialer, Result, Runtime, SandboxTraffic, Streaming};
use async_trait::async_trait;
use davit_beneath::DiskUse;
use davit_proto::cri::v1 as cri;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeOperation {
    operation_type: &'static str,
}

/// 5 ms to some twelve minutes, as the kubelet's.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.5, 14))
}

/// `kubelet_runtime_operations_…`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RuntimeOperations {
    begun: Family<RuntimeOperation, Counter>,
    failed: Family<RuntimeOperation, Counter>,
    took: Family<RuntimeOperation, Histogram, fn() -> Histogram>,
}

impl Default for RuntimeOperations {
    fn default() -> Self {
        Self {
            begun: Family::default(),
            failed: Family::default(),
            took: Family::new_with_constructor(seconds as fn() -> Histogram),
        }
    }
}

impl RuntimeOperations {
    /// Adds them to a registry that gives them their prefix.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "runtime_operations",
            "Cumulative number of runtime operations by operation type",
            self.begun.clone(),
        );
        registry.register(
            "runtime_operations_errors",
            "Cumulative number of runtime operation errors by operation type",
            self.failed.clone(),
        );
        registry.register(
            "runtime_operations_duration_seconds",
            "Duration in seconds of runtime operations, by operation type",
            self.took.clone(),
        );
    }

    async fn measure<T>(
        &self,
        operation_type: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let labels = RuntimeOperation { operation_type };
        self.begun.get_or_create(&labels).inc();
        let began = Instant::now();
        let answer = call.await;
        let took = began.elapsed().as_secs_f64();
        self.took.get_or_create(&labels).observe(took);
        if answer.is_err() {
            self.failed.get_or_create(&labels).inc();
        }
        answer
    }
}

/// A runtime whose calls are counted.
pub struct MeasuredRuntime {
    inner: Arc<dyn Runtime>,
    operations: RuntimeOperations,
}

impl MeasuredRuntime {
    /// Counts what is asked of `inner`.
    pub fn new(inner: Arc<dyn Runtime>, operations: RuntimeOperations) -> Self {
        Self { inner, operations }
    }
}

#[async_trait]
impl Runtime for MeasuredRuntime {
    async fn version(&self) -> Result<cri::VersionResponse> {
        self.operations
            .measure("version", self.inner.version())
            .await
    }

    async fn status(&self) -> Result<cri::StatusResponse> {
        self.operations.measure("status", self.inner.status()).await
    }

    async fn cgroup_driver(&self) -> Result<Option<cri::CgroupDriver>> {
        self.operations
            .measure("runtime_config", self.inner.cgroup_driver())
            .await
    }

    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        self.inner.changes()
    }

    async fn run_pod_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        let call = self.inner.run_pod_sandbox(config, runtime_handler);
        self.operations.measure("run_podsandbox", call).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.inner.stop_pod_sandbox(id);
        self.operations.measure("stop_podsandbox", call).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let call = self.inner.remove_pod_sandbox(id);
        self.operations.measure("remove_podsandbox", call).await
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        let call = self.inner.pod_sandbox_status(id);
        self.operations.measure("podsandbox_status", call).await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let call = self.inner.list_pod_sandboxes(filter);
        self.operations.measure("list_podsandbox", call).await
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let call = self
            .inner
            .create_container(sandbox_id, config, sandbox_config);
        self.operations.measure("create_container", call).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let call = self.inner.start_container(id);
        self.operations.measure("start_container", call).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let call = self.inner.stop_container(id, grace);
        self.operations.measure("stop_container", call).await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let call = self.inner.remove_container(id);
        self.operations.measure("remove_container", call).await
    }

    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>> {
        let call = self.inner.list_containers(filter);
        self.operations.measure("list_containers", call).await
    }

    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let call = self.inner.container_status(id);
        self.operations.measure("container_status", call).await
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: cri::LinuxContainerResources,
    ) -> Result<()> {
        let call = self.inner.update_container_resources(id, resources);
        self.operations.measure("update_container", call).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let call = self.inner.reopen_container_log(id);
        self.operations.measure("reopen_container_log", call).await
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
        kept: usize,
    ) -> Result<cri::ExecSyncResponse> {
        let call = self.inner.exec_sync(id, command, timeout, kept);
        self.operations.measure("exec_sync", call).await
    }

    async fn exec(&self, request: cri::ExecRequest) -> Result<Streaming<ExecSession>> {
        let call = self.inner.exec(request);
        self.operations.measure("exec", call).await
    }

    async fn attach(&self, request: cri::AttachRequest) -> Result<Streaming<ExecSession>> {
        let call = self.inner.attach(request);
        self.operations.measure("attach", call).await
    }

    async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>> {
        let call = self.inner.port_forward(request);
        self.operations.measure("portforward", call).await
    }

    async fn container_stats(&self, id: &str) -> Result<cri::ContainerStats> {
        let call = self.inner.container_stats(id);
        self.operations.measure("container_stats", call).await
    }

    async fn list_container_stats(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        let call = self.inner.list_container_stats(filter);
        self.operations.measure("list_container_stats", call).await
    }

    async fn pod_traffic(&self) -> Result<Vec<SandboxTraffic>> {
        let call = self.inner.pod_traffic();
        self.operations.measure("list_podsandbox_stats", call).await
    }

    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String> {
        let call = self.inner.pull_image(image, auth, sandbox_config);
        self.operations.measure("pull_image", call).await
    }

    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        let call = self.inner.image_status(image);
        self.operations.measure("image_status", call).await
    }

    async fn list_images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        let call = self.inner.list_images(filter);
        self.operations.measure("list_images", call).await
    }

    async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        let call = self.inner.remove_image(image);
        self.operations.measure("remove_image", call).await
    }

    async fn layers_in_use(&self, until: Instant) -> Result<BTreeMap<String, DiskUse>> {
        self.inner.layers_in_use(until).await
    }

    async fn image_directory(&self) -> Result<Option<PathBuf>> {
        self.inner.image_directory().await
    }

    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse> {
        let call = self.inner.image_fs_info();
        self.operations.measure("image_fs_info", call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_are_counted_and_their_errors() {
        let operations = RuntimeOperations::default();
        let runtime = MeasuredRuntime::new(Arc::new(crate::Hollow::default()), operations.clone());
        runtime.list_containers(None).await.unwrap();
        runtime.container_status("nobody").await.unwrap_err();
        let mut registry = Registry::default();
        operations.register(registry.sub_registry_with_prefix("kubelet"));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            r#"kubelet_runtime_operations_total{operation_type="list_containers"} 1"#,
            r#"kubelet_runtime_operations_errors_total{operation_type="container_status"} 1"#,
            r#"kubelet_runtime_operations_duration_seconds_count{operation_type="container_status"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains(r#"errors_total{operation_type="list_containers""#));
    }
}
