//! External container runtimes over CRI: containerd, CRI-O.

mod traffic;

use crate::runtime::{Error, ExecSession, PodDialer, Result, Runtime, SandboxTraffic, Streaming};
use async_trait::async_trait;
use davit_proto::cri::v1 as cri;
use davit_proto::cri::v1::image_service_client::ImageServiceClient;
use davit_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use std::path::Path;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Messages may have this size, both ways.
const MAX_MESSAGE: usize = 16 << 20;
/// Most calls.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// `RunPodSandbox`, which waits for the network.
const SANDBOX_LIMIT: Duration = Duration::from_secs(240);
/// `PullImage` has no limit in Kubernetes; this one only keeps a dead connection from waiting for ever.
const PULL_LIMIT: Duration = Duration::from_secs(6 * 3600);
/// Finding the runtime's socket.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A client of a CRI runtime. The connection is made anew when it is lost.
#[derive(Debug, Clone)]
pub struct Remote {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

/// gRPC codes as the errors that callers tell apart.
fn error(call: &'static str, after: Duration) -> impl FnOnce(Status) -> Error {
    move |status| {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Error::NotFound(
                message
                    .strip_suffix(": not found")
                    .map_or(message.clone(), str::to_owned),
            ),
            Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => {
                Error::FailedPrecondition(message)
            }
            Code::InvalidArgument | Code::OutOfRange => Error::InvalidArgument(message),
            Code::Unimplemented => Error::Unimplemented(message),
            Code::DeadlineExceeded | Code::Cancelled => Error::DeadlineExceeded { call, after },
            Code::Unavailable => Error::Unavailable(message),
            _ => Error::Internal(message),
        }
    }
}

/// Makes a call with a deadline that the other side is told of.
async fn call<T, U, F>(
    name: &'static str,
    limit: Duration,
    message: T,
    send: impl FnOnce(Request<T>) -> F,
) -> Result<U>
where
    F: Future<Output = std::result::Result<Response<U>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(limit);
    // The margin lets the other side's own answer to the deadline arrive.
    match tokio::time::timeout(limit + Duration::from_secs(1), send(request)).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(error(name, limit)),
        Err(_) => Err(Error::DeadlineExceeded {
            call: name,
            after: limit,
        }),
    }
}

fn required<T>(value: Option<T>, call: &str) -> Result<T> {
    value.ok_or_else(|| Error::Internal(format!("{call}: the runtime's answer is empty")))
}

impl Remote {
    /// Connects to the runtime's socket.
    pub async fn connect(socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref();
        let channel = davit_proto::unix::connect(socket, CONNECT_LIMIT)
            .await
            .map_err(|e| {
                Error::Unavailable(format!("container runtime {}: {e}", socket.display()))
            })?;
        Ok(Remote {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        })
    }

    /// The same runtime, with its images behind another socket.
    ///
    /// # Errors
    /// Nobody answers there.
    pub async fn with_images(mut self, socket: impl AsRef<Path>) -> Result<Self> {
        let socket = socket.as_ref();
        let channel = davit_proto::unix::connect(socket, CONNECT_LIMIT).await;
        let channel = channel
            .map_err(|e| Error::Unavailable(format!("image service {}: {e}", socket.display())))?;
        self.images = ImageServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok(self)
    }

    fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }
}

/// Success for an object that is gone already.
fn done<T>(result: Result<T>) -> Result<()> {
    match result {
        Ok(_) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl Runtime for Remote {
    async fn version(&self) -> Result<cri::VersionResponse> {
        let request = cri::VersionRequest {
            version: "0.1.0".to_owned(),
        };
        call("Version", CALL_LIMIT, request, |r| async {
            self.runtime().version(r).await
        })
        .await
    }

    async fn status(&self) -> Result<cri::StatusResponse> {
        let request = cri::StatusRequest { verbose: false };
        call("Status", CALL_LIMIT, request, |r| async {
            self.runtime().status(r).await
        })
        .await
    }

    async fn cgroup_driver(&self) -> Result<Option<cri::CgroupDriver>> {
        let request = cri::RuntimeConfigRequest {};
        let answer = call("RuntimeConfig", CALL_LIMIT, request, |r| async {
            self.runtime().runtime_config(r).await
        });
        match answer.await {
            Ok(answer) => Ok(answer.linux.map(|l| l.cgroup_driver())),
            Err(Error::Unimplemented(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn run_pod_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        };
        let send = |r| async { self.runtime().run_pod_sandbox(r).await };
        Ok(call("RunPodSandbox", SANDBOX_LIMIT, request, send)
            .await?
            .pod_sandbox_id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let send = |r| async { self.runtime().stop_pod_sandbox(r).await };
        done(call("StopPodSandbox", CALL_LIMIT, request, send).await)
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let send = |r| async { self.runtime().remove_pod_sandbox(r).await };
        done(call("RemovePodSandbox", CALL_LIMIT, request, send).await)
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let send = |r| async { self.runtime().pod_sandbox_status(r).await };
        required(
            call("PodSandboxStatus", CALL_LIMIT, request, send)
                .await?
                .status,
            "PodSandboxStatus",
        )
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let request = cri::ListPodSandboxRequest { filter };
        let send = |r| async { self.runtime().list_pod_sandbox(r).await };
        Ok(call("ListPodSandbox", CALL_LIMIT, request, send)
            .await?
            .items)
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let send = |r| async { self.runtime().create_container(r).await };
        Ok(call("CreateContainer", CALL_LIMIT, request, send)
            .await?
            .container_id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let request = cri::StartContainerRequest {
            container_id: id.to_owned(),
        };
        call("StartContainer", CALL_LIMIT, request, |r| async {
            self.runtime().start_container(r).await
        })
        .await
        .map(drop)
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = cri::StopContainerRequest {
            container_id: id.to_owned(),
            timeout,
        };
        let send = |r| async { self.runtime().stop_container(r).await };
        done(call("StopContainer", CALL_LIMIT + grace, request, send).await)
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        let request = cri::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        done(
            call("RemoveContainer", CALL_LIMIT, request, |r| async {
                self.runtime().remove_container(r).await
            })
            .await,
        )
    }

    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>> {
        let request = cri::ListContainersRequest { filter };
        let send = |r| async { self.runtime().list_containers(r).await };
        Ok(call("ListContainers", CALL_LIMIT, request, send)
            .await?
            .containers)
    }

    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let send = |r| async { self.runtime().container_status(r).await };
        required(
            call("ContainerStatus", CALL_LIMIT, request, send)
                .await?
                .status,
            "ContainerStatus",
        )
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: cri::LinuxContainerResources,
    ) -> Result<()> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..cri::UpdateContainerResourcesRequest::default()
        };
        let send = |r| async { self.runtime().update_container_resources(r).await };
        call("UpdateContainerResources", CALL_LIMIT, request, send)
            .await
            .map(drop)
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = cri::ReopenContainerLogRequest {
            container_id: id.to_owned(),
        };
        let send = |r| async { self.runtime().reopen_container_log(r).await };
        call("ReopenContainerLog", CALL_LIMIT, request, send)
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
        // CRI counts in whole seconds and takes zero for "no limit".
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command,
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let limit = if seconds == 0 {
            PULL_LIMIT
        } else {
            CALL_LIMIT + timeout
        };
        let answer = call("ExecSync", limit, request, |r| async {
            self.runtime().exec_sync(r).await
        })
        .await;
        match answer {
            Err(Error::DeadlineExceeded { call, .. }) => Err(Error::DeadlineExceeded {
                call,
                after: timeout,
            }),
            Ok(mut answer) => {
                answer.stdout.truncate(kept);
                answer.stderr.truncate(kept);
                Ok(answer)
            }
            Err(error) => Err(error),
        }
    }

    async fn exec(&self, request: cri::ExecRequest) -> Result<Streaming<ExecSession>> {
        let answer = call("Exec", CALL_LIMIT, request, |r| async {
            self.runtime().exec(r).await
        })
        .await?;
        Ok(Streaming::Url(answer.url))
    }

    async fn attach(&self, request: cri::AttachRequest) -> Result<Streaming<ExecSession>> {
        let answer = call("Attach", CALL_LIMIT, request, |r| async {
            self.runtime().attach(r).await
        })
        .await?;
        Ok(Streaming::Url(answer.url))
    }

    async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>> {
        let answer = call("PortForward", CALL_LIMIT, request, |r| async {
            self.runtime().port_forward(r).await
        })
        .await?;
        Ok(Streaming::Url(answer.url))
    }

    async fn container_stats(&self, id: &str) -> Result<cri::ContainerStats> {
        let request = cri::ContainerStatsRequest {
            container_id: id.to_owned(),
        };
        let send = |r| async { self.runtime().container_stats(r).await };
        required(
            call("ContainerStats", CALL_LIMIT, request, send)
                .await?
                .stats,
            "ContainerStats",
        )
    }

    async fn list_container_stats(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        let request = cri::ListContainerStatsRequest { filter };
        let send = |r| async { self.runtime().list_container_stats(r).await };
        Ok(call("ListContainerStats", CALL_LIMIT, request, send)
            .await?
            .stats)
    }

    async fn pod_traffic(&self) -> Result<Vec<SandboxTraffic>> {
        let request = cri::ListPodSandboxStatsRequest::default();
        let send = |r| async { self.runtime().list_pod_sandbox_stats(r).await };
        let answer = call("ListPodSandboxStats", CALL_LIMIT, request, send).await;
        let stats = match answer {
            Ok(answer) => answer.stats,
            // CRI-O and containerd before 1.6
            Err(Error::Unimplemented(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(stats.into_iter().filter_map(traffic::of).collect())
    }

    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String> {
        let request = cri::PullImageRequest {
            image: Some(image),
            auth,
            sandbox_config,
        };
        Ok(call("PullImage", PULL_LIMIT, request, |r| async {
            self.images().pull_image(r).await
        })
        .await?
        .image_ref)
    }

    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        let request = cri::ImageStatusRequest {
            image: Some(image),
            verbose: false,
        };
        Ok(call("ImageStatus", CALL_LIMIT, request, |r| async {
            self.images().image_status(r).await
        })
        .await?
        .image)
    }

    async fn list_images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        let request = cri::ListImagesRequest { filter };
        Ok(call("ListImages", CALL_LIMIT, request, |r| async {
            self.images().list_images(r).await
        })
        .await?
        .images)
    }

    async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        let request = cri::RemoveImageRequest { image: Some(image) };
        done(
            call("RemoveImage", CALL_LIMIT, request, |r| async {
                self.images().remove_image(r).await
            })
            .await,
        )
    }

    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse> {
        let request = cri::ImageFsInfoRequest {};
        call("ImageFsInfo", CALL_LIMIT, request, |r| async {
            self.images().image_fs_info(r).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_errors() {
        let of = |status: Status| error("X", CALL_LIMIT)(status);
        assert!(
            matches!(of(Status::not_found("c: not found")), Error::NotFound(name) if name == "c")
        );
        assert!(matches!(
            of(Status::unimplemented("x")),
            Error::Unimplemented(_)
        ));
        assert!(matches!(
            of(Status::deadline_exceeded("x")),
            Error::DeadlineExceeded { call: "X", .. }
        ));
        assert!(matches!(of(Status::unknown("x")), Error::Internal(_)));
    }
}
