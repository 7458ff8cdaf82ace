//! A CSI driver on a socket that keeps what it is asked and answers what a test says.

use davit_csi::{DriverClient, Drivers};
use davit_proto::csi::v1::node_server::{Node, NodeServer};
use davit_proto::csi::v1::node_service_capability::{self, rpc};
use davit_proto::csi::v1::*;
use davit_proto::unix::Listener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What the driver was asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asked {
    Capabilities,
    Info,
    Stage(NodeStageVolumeRequest),
    Unstage(NodeUnstageVolumeRequest),
    Publish(NodePublishVolumeRequest),
    Unpublish(NodeUnpublishVolumeRequest),
    Expand(NodeExpandVolumeRequest),
    Stats(NodeGetVolumeStatsRequest),
}

/// What the driver does.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    pub(crate) capabilities: Vec<rpc::Type>,
    pub(crate) node_id: String,
    /// Answer of the calls about volumes, if not well.
    pub(crate) failure: Option<(tonic::Code, String)>,
    /// These volumes are never answered for.
    pub(crate) hangs: Vec<String>,
    pub(crate) stats: NodeGetVolumeStatsResponse,
}

#[derive(Debug, Default)]
struct Inner {
    script: Mutex<Script>,
    asked: Mutex<Vec<(Asked, Option<String>)>>,
    /// Told of each call.
    called: Notify,
    /// Cancelled when a call that hangs was given up.
    given_up: CancellationToken,
}

#[derive(Debug, Clone, Default)]
struct Service(Arc<Inner>);

impl Service {
    async fn ask<Q: Clone>(
        &self,
        request: Request<Q>,
        volume: &str,
        asked: impl FnOnce(Q) -> Asked,
    ) -> Result<(), Status> {
        let limit = request.metadata().get("grpc-timeout");
        let limit = limit.map(|v| v.to_str().unwrap().to_owned());
        let asked = asked(request.into_inner());
        self.0.asked.lock().unwrap().push((asked, limit));
        self.0.called.notify_one();
        let script = self.0.script.lock().unwrap().clone();
        if script.hangs.iter().any(|v| v == volume) {
            let _given_up = self.0.given_up.clone().drop_guard();
            std::future::pending::<()>().await;
        }
        match script.failure {
            Some((code, message)) => Err(Status::new(code, message)),
            None => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        self.ask(request, &volume, Asked::Stage).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        self.ask(request, &volume, Asked::Unstage).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        self.ask(request, &volume, Asked::Publish).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        self.ask(request, &volume, Asked::Unpublish).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        self.ask(request, &volume, Asked::Stats).await?;
        let stats = self.0.script.lock().unwrap().stats.clone();
        Ok(Response::new(stats))
    }

    async fn node_get_volume_health(
        &self,
        _: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        Err(Status::unimplemented("health"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(Status::unimplemented("health"))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let volume = request.get_ref().volume_id.clone();
        let range = request.get_ref().capacity_range.unwrap_or_default();
        self.ask(request, &volume, Asked::Expand).await?;
        Ok(Response::new(NodeExpandVolumeResponse {
            capacity_bytes: range.required_bytes,
        }))
    }

    async fn node_get_capabilities(
        &self,
        request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        self.ask(request, "", |_| Asked::Capabilities).await?;
        let script = self.0.script.lock().unwrap().clone();
        let capability = |kind: &rpc::Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(
                node_service_capability::Rpc {
                    r#type: (*kind).into(),
                },
            )),
        };
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: script.capabilities.iter().map(capability).collect(),
        }))
    }

    async fn node_get_info(
        &self,
        request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.ask(request, "", |_| Asked::Info).await?;
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.0.script.lock().unwrap().node_id.clone(),
            ..NodeGetInfoResponse::default()
        }))
    }
}

/// One run of the driver; ends with the value, its connections with it.
pub(crate) struct MockDriver {
    service: Service,
    /// A runtime of its own, so that dropping it breaks connections as the death of a process does.
    runtime: Option<tokio::runtime::Runtime>,
}

impl MockDriver {
    /// Serves at a socket, in the place of an earlier run.
    pub(crate) fn serve(socket: &Path, script: Script) -> Self {
        let service = Service::default();
        *service.0.script.lock().unwrap() = script;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let _there_may_be_none = std::fs::remove_file(socket);
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).unwrap()
        };
        let node = NodeServer::new(service.clone());
        let incoming = UnixListenerStream::new(listener);
        runtime.spawn(
            Server::builder()
                .add_service(node)
                .serve_with_incoming(incoming),
        );
        Self {
            service,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.service.0.script.lock().unwrap());
    }

    /// All that it was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        let mut asked = self.service.0.asked.lock().unwrap();
        std::mem::take(&mut *asked)
            .into_iter()
            .map(|(a, _)| a)
            .collect()
    }

    /// The time-outs it was given with its calls.
    pub(crate) fn limits(&self) -> Vec<Option<String>> {
        let asked = self.service.0.asked.lock().unwrap();
        asked.iter().map(|(_, limit)| limit.clone()).collect()
    }

    /// Until there was a call.
    pub(crate) async fn called(&self) {
        let called = self.service.0.called.notified();
        tokio::time::timeout(Duration::from_secs(10), called)
            .await
            .unwrap();
    }

    /// Until a call that hangs was given up by its caller.
    pub(crate) async fn given_up(&self) {
        let given_up = self.service.0.given_up.cancelled();
        tokio::time::timeout(Duration::from_secs(10), given_up)
            .await
            .unwrap();
    }
}

impl Drop for MockDriver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A driver `d` that is registered, in a folder of its own.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) drivers: Drivers,
}

impl Bench {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            drivers: Drivers::with_call_limit(limit),
        }
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn start(&self, script: Script) -> (MockDriver, Arc<DriverClient>) {
        let mock = MockDriver::serve(&self.socket("csi.sock"), script);
        (mock, self.register("d-reg.sock", "csi.sock", "1.0.0"))
    }

    pub(crate) fn register(
        &self,
        socket: &str,
        endpoint: &str,
        version: &str,
    ) -> Arc<DriverClient> {
        let versions = [version.to_owned()];
        let (socket, endpoint) = (self.socket(socket), self.socket(endpoint));
        self.drivers
            .register("d", endpoint, socket, &versions)
            .unwrap()
    }
}

/// Nobody but a test binds here.
pub(crate) fn silent(socket: &Path) -> Listener {
    Listener::bind(socket).unwrap()
}
