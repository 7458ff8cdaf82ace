//! The [`Runtime`] trait for the embedded runtime.

use super::{Embedded, blocking, lock};
use crate::cgroup::Breakdown;
use crate::monitor::now_nanos;
use crate::network;
use crate::runtime::{
    Error, ExecSession, PodConnection, PodDialer, Result, Runtime, SandboxTraffic, Streaming,
};
use async_trait::async_trait;
use davit_beneath::DiskUse;
use davit_proto::cri::v1 as cri;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long who asks for figures waits for what has to be measured.
const MEASURE_LIMIT: Duration = Duration::from_secs(2);
/// How long connecting to a port of a pod may take at each of its two addresses.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

fn labels_match(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Removing and stopping what is not there is success.
fn absent_is_done<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn to_cri(image: &crate::image::Image) -> cri::Image {
    let (uid, username) = super::user::image_user(&image.config.user);
    cri::Image {
        id: image.id.clone(),
        repo_tags: image.tags.iter().cloned().collect(),
        repo_digests: image.digests.iter().cloned().collect(),
        size: image.size,
        uid: uid.map(|value| cri::Int64Value { value }),
        username,
        spec: Some(cri::ImageSpec {
            image: image.id.clone(),
            ..cri::ImageSpec::default()
        }),
        pinned: image.is_host(),
    }
}

struct Dialer {
    netns: Option<PathBuf>,
}

#[async_trait]
impl PodDialer for Dialer {
    async fn dial(&self, port: u16) -> Result<Box<dyn PodConnection>> {
        let netns = self.netns.clone();
        let refused = move |e: std::io::Error| {
            Error::Unavailable(format!("connect to port {port} of the pod: {e}"))
        };
        let sockets = blocking(move || {
            network::sockets(netns.as_deref())
                .map_err(|e| Error::Internal(format!("pod connection: {e}")))
        });
        let stream = network::dial(sockets.await?, port, DIAL_LIMIT)
            .await
            .map_err(refused)?;
        Ok(Box::new(stream))
    }
}

impl Embedded {
    fn handlers(&self) -> Vec<cri::RuntimeHandler> {
        let named = self.inner.options.handlers.iter().cloned();
        let handler = |name| cri::RuntimeHandler {
            name,
            features: Some(cri::RuntimeHandlerFeatures {
                recursive_read_only_mounts: true,
                user_namespaces: super::users::supported(),
            }),
        };
        std::iter::once(String::new())
            .chain(named)
            .map(handler)
            .collect()
    }

    /// `until` is when the size of its layer has to be known; containers make it as large as they like.
    async fn stats_of(
        &self,
        container: Arc<super::container::Container>,
        until: Instant,
    ) -> Result<cri::ContainerStats> {
        let this = self.clone();
        blocking(move || {
            let record = container.record();
            let group = this.inner.hierarchies.cgroup(&record.cgroup);
            let usage = group.usage();
            let timestamp = now_nanos();
            let value = |value: u64| Some(cri::UInt64Value { value });
            let layer = this.layer(&container, until);
            let available = usage
                .memory_limit
                .map(|limit| limit.saturating_sub(usage.memory_working_set));
            Ok(cri::ContainerStats {
                attributes: Some(cri::ContainerAttributes {
                    id: record.id,
                    metadata: record.config.0.metadata,
                    labels: record.config.0.labels,
                    annotations: record.config.0.annotations,
                }),
                cpu: Some(cri::CpuUsage {
                    timestamp,
                    usage_core_nano_seconds: value(usage.cpu_nanos),
                    ..cri::CpuUsage::default()
                }),
                memory: Some(cri::MemoryUsage {
                    timestamp,
                    working_set_bytes: value(usage.memory_working_set),
                    available_bytes: available.and_then(value),
                    usage_bytes: value(usage.memory_usage),
                    rss_bytes: value(usage.memory_rss),
                    page_faults: value(usage.page_faults),
                    major_page_faults: value(usage.major_page_faults),
                    ..cri::MemoryUsage::default()
                }),
                writable_layer: Some(cri::FilesystemUsage {
                    timestamp,
                    fs_id: Some(cri::FilesystemIdentifier {
                        mountpoint: this.inner.options.root.to_string_lossy().into_owned(),
                    }),
                    used_bytes: layer.and_then(|seen| value(seen.bytes)),
                    inodes_used: layer.and_then(|seen| value(seen.inodes)),
                }),
                swap: swap(&group.breakdown(), timestamp),
                ..cri::ContainerStats::default()
            })
        })
        .await
    }
}

/// Swap in use, as the kernel accounts it; on a machine without any there is none in use, whether it does or not.
fn swap(parts: &Breakdown, timestamp: i64) -> Option<cri::SwapUsage> {
    let (used, limit) = match parts.swap {
        Some(used) => (used, parts.swap_limit.filter(|limit| *limit < u64::MAX)),
        None if crate::kernel::has_swap() => return None,
        None => (0, Some(0)),
    };
    let value = |value: u64| cri::UInt64Value { value };
    Some(cri::SwapUsage {
        timestamp,
        swap_usage_bytes: Some(value(used)),
        swap_available_bytes: limit.map(|limit| value(limit.saturating_sub(used))),
    })
}

#[async_trait]
impl Runtime for Embedded {
    async fn version(&self) -> Result<cri::VersionResponse> {
        Ok(cri::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "davit".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn cgroup_driver(&self) -> Result<Option<cri::CgroupDriver>> {
        Ok(Some(cri::CgroupDriver::Cgroupfs))
    }

    async fn status(&self) -> Result<cri::StatusResponse> {
        let network = self.inner.options.network.ready().await;
        let condition = |kind: &str, problem: Option<(&str, String)>| cri::RuntimeCondition {
            r#type: kind.to_owned(),
            status: problem.is_none(),
            reason: problem
                .as_ref()
                .map(|(reason, _)| (*reason).to_owned())
                .unwrap_or_default(),
            message: problem.map(|(_, message)| message).unwrap_or_default(),
        };
        Ok(cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", None),
                    condition(
                        "NetworkReady",
                        network
                            .err()
                            .map(|e| ("NetworkPluginNotReady", e.to_string())),
                    ),
                ],
            }),
            runtime_handlers: self.handlers(),
            features: Some(cri::RuntimeFeatures {
                supplemental_groups_policy: true,
                ..cri::RuntimeFeatures::default()
            }),
            ..cri::StatusResponse::default()
        })
    }

    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        Some(self.inner.changes.subscribe())
    }

    async fn run_pod_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        self.run_sandbox(config, runtime_handler).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        match absent_is_done(self.sandbox(id))? {
            Some(sandbox) => self.stop_sandbox(&sandbox).await,
            None => Ok(()),
        }
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        match absent_is_done(self.sandbox(id))? {
            Some(sandbox) => self.remove_sandbox(&sandbox).await,
            None => Ok(()),
        }
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        Ok(self.sandbox(id)?.status(&self.inner.options.host_ip))
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let filter = filter.unwrap_or_default();
        let mut all: Vec<_> = lock(&self.inner.sandboxes)
            .values()
            .map(|sandbox| sandbox.summary())
            .collect();
        all.retain(|sandbox| {
            sandbox.id.starts_with(&filter.id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|state| state.state == sandbox.state)
                && labels_match(&filter.label_selector, &sandbox.labels)
        });
        Ok(all)
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        self.create(sandbox_id, config, sandbox_config).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.start(&self.container(id)?).await
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        match absent_is_done(self.container(id))? {
            Some(container) => self.stop(&container, grace).await,
            None => Ok(()),
        }
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        match absent_is_done(self.container(id))? {
            Some(container) => self.remove(&container).await,
            None => Ok(()),
        }
    }

    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>> {
        let filter = filter.unwrap_or_default();
        let mut all: Vec<_> = lock(&self.inner.containers)
            .values()
            .map(|container| container.summary())
            .collect();
        all.retain(|container| {
            container.id.starts_with(&filter.id)
                && container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|state| state.state == container.state)
                && labels_match(&filter.label_selector, &container.labels)
        });
        Ok(all)
    }

    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        Ok(self.container(id)?.status())
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: cri::LinuxContainerResources,
    ) -> Result<()> {
        self.update(&self.container(id)?, resources).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let container = self.container(id)?;
        container
            .request(&crate::monitor::protocol::Request::ReopenLog, &[])
            .await
            .map(drop)
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
        kept: usize,
    ) -> Result<cri::ExecSyncResponse> {
        self.run_sync(&*self.container(id)?, command, timeout, kept)
            .await
    }

    async fn exec(&self, request: cri::ExecRequest) -> Result<Streaming<ExecSession>> {
        let container = self.container(&request.container_id)?;
        self.run_exec(&container, request)
            .await
            .map(Streaming::Direct)
    }

    async fn attach(&self, request: cri::AttachRequest) -> Result<Streaming<ExecSession>> {
        let container = self.container(&request.container_id)?;
        self.run_attach(&container, request)
            .await
            .map(Streaming::Direct)
    }

    async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::FailedPrecondition(format!(
                "sandbox {} is not ready",
                request.pod_sandbox_id
            )));
        }
        Ok(Streaming::Direct(Box::new(Dialer {
            netns: sandbox.record().namespaces.net,
        })))
    }

    async fn container_stats(&self, id: &str) -> Result<cri::ContainerStats> {
        let until = Instant::now() + MEASURE_LIMIT;
        self.stats_of(self.container(id)?, until).await
    }

    async fn list_container_stats(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        let filter = filter.unwrap_or_default();
        let all: Vec<_> = lock(&self.inner.containers).values().cloned().collect();
        let mut stats = Vec::new();
        // For all together: those that are slow to measure have been known for a while, or are left out.
        let until = Instant::now() + MEASURE_LIMIT;
        for container in all {
            let record = container.record();
            if container.is_running()
                && record.id.starts_with(&filter.id)
                && record.sandbox_id.starts_with(&filter.pod_sandbox_id)
                && labels_match(&filter.label_selector, &record.config.0.labels)
            {
                stats.push(self.stats_of(container, until).await?);
            }
        }
        Ok(stats)
    }

    async fn layers_in_use(&self, until: Instant) -> Result<BTreeMap<String, DiskUse>> {
        let this = self.clone();
        blocking(move || Ok(this.layers(until))).await
    }

    async fn pod_traffic(&self) -> Result<Vec<SandboxTraffic>> {
        let this = self.clone();
        blocking(move || Ok(this.traffic())).await
    }

    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        _sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String> {
        Ok(self
            .inner
            .images
            .pull(&image.image, auth.as_ref())
            .await?
            .id)
    }

    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        Ok(self.inner.images.find(&image.image)?.as_ref().map(to_cri))
    }

    async fn list_images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        match filter
            .and_then(|filter| filter.image)
            .filter(|image| !image.image.is_empty())
        {
            Some(image) => Ok(self
                .inner
                .images
                .find(&image.image)?
                .as_ref()
                .map(to_cri)
                .into_iter()
                .collect()),
            None => Ok(self.inner.images.list()?.iter().map(to_cri).collect()),
        }
    }

    async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        let this = self.clone();
        blocking(move || {
            if this.inner.images.remove(&image.image)? {
                this.collect_layers()?;
            }
            Ok(())
        })
        .await
    }

    async fn image_directory(&self) -> Result<Option<PathBuf>> {
        Ok(Some(self.inner.images.layers_dir().to_owned()))
    }

    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse> {
        let this = self.clone();
        blocking(move || {
            let value = |value: u64| cri::UInt64Value { value };
            let usage = |dir: PathBuf, known: Option<DiskUse>| cri::FilesystemUsage {
                timestamp: now_nanos(),
                fs_id: Some(cri::FilesystemIdentifier {
                    mountpoint: dir.to_string_lossy().into_owned(),
                }),
                used_bytes: known.map(|seen| value(seen.bytes)),
                inodes_used: known.map(|seen| value(seen.inodes)),
            };
            let containers = this.inner.options.root.join("containers");
            let images = &this.inner.images;
            let until = Instant::now() + MEASURE_LIMIT;
            Ok(cri::ImageFsInfoResponse {
                image_filesystems: vec![usage(
                    images.layers_dir().to_owned(),
                    images.disk_use(until),
                )],
                container_filesystems: vec![usage(
                    containers.clone(),
                    davit_beneath::disk_use(&containers, until),
                )],
            })
        })
        .await
    }
}
