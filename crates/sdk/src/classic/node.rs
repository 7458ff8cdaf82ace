//! The driver's half on the nodes: registered with the agent, asked to prepare claims.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use davit_proto::draclassic::v1alpha1 as pb;
use davit_proto::draclassic::v1alpha1::node_server::{Node, NodeServer};
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::unix::{self, MAX_MESSAGE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status};

use super::Failure;
use crate::agent::{MAX_PATH, Pair, State};
pub use crate::deviceplugin::PLUGINS_REGISTRY_DIR as REGISTRY_DIR;
pub use crate::dra::PLUGINS_DIR;

/// A claim as the agent hands it to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedClaim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The driver's half on a node.
#[async_trait]
pub trait ClassicNode: Send + Sync + 'static {
    /// Makes a claim ready for the node's containers; `handle` is what the driver's controller has
    /// written into the allocation. The answer are names of CDI devices. Called again for the same
    /// claim after restarts, with the same answer to be given.
    async fn prepare(&self, claim: &HandedClaim, handle: &str) -> Result<Vec<String>, Failure>;

    /// Undoes that, after the last container has ended. Succeeds for claims that are not known.
    async fn unprepare(&self, claim: &HandedClaim, cdi_devices: &[String]) -> Result<(), Failure>;
}

/// Why a node plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A socket's path is longer than the system allows.
    #[error("socket path {0} is longer than {MAX_PATH} bytes")]
    PathTooLong(PathBuf),
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] unix::Error),
    /// It was started outside of a tokio runtime.
    #[error("no async runtime: {0}")]
    Runtime(#[from] tokio::runtime::TryCurrentError),
}

/// Serves a [`ClassicNode`] to the node's agent.
#[must_use]
pub struct NodePlugin<N> {
    node: Arc<N>,
    name: String,
    registry: PathBuf,
    endpoint: Option<PathBuf>,
    announced: Option<PathBuf>,
}

impl<N: ClassicNode> NodePlugin<N> {
    /// The plugin of the driver of this name.
    pub fn new(name: impl Into<String>, node: N) -> Self {
        Self {
            node: Arc::new(node),
            name: name.into(),
            registry: REGISTRY_DIR.into(),
            endpoint: None,
            announced: None,
        }
    }

    /// Sets the folder in which the agent looks for registration sockets.
    pub fn registry(mut self, dir: impl Into<PathBuf>) -> Self {
        self.registry = dir.into();
        self
    }

    /// Sets the path of the driver's own socket.
    pub fn endpoint(mut self, socket: impl Into<PathBuf>) -> Self {
        self.endpoint = Some(socket.into());
        self
    }

    /// Sets the path of that socket in the agent's file system, if it is another one.
    pub fn announced(mut self, socket: impl Into<PathBuf>) -> Self {
        self.announced = Some(socket.into());
        self
    }

    /// Starts serving in the background; the agent finds the plugin by itself.
    ///
    /// # Errors
    /// A socket cannot be made, its path is too long, or there is no tokio runtime.
    pub fn start(self) -> Result<RunningNode, NodeError> {
        let own = || Path::new(PLUGINS_DIR).join(&self.name).join("plugin.sock");
        let endpoint = self.endpoint.clone().unwrap_or_else(own);
        let registration = self.registry.join(format!("{}-reg.sock", self.name));
        for path in [&endpoint, &registration] {
            if path.as_os_str().len() > MAX_PATH {
                return Err(NodeError::PathTooLong(path.clone()));
            }
        }
        let runtime = tokio::runtime::Handle::try_current()?;
        let announced = self.announced.unwrap_or_else(|| endpoint.clone());
        let state = watch::Sender::new(State::Waiting);
        let node = self.node;
        let pair = Pair {
            service: endpoint,
            router: move |_: &CancellationToken| {
                let service = NodeServer::new(Service(node.clone()))
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE);
                unix::server().add_service(service)
            },
            registration,
            info: reg::PluginInfo {
                r#type: reg::DRA_PLUGIN.to_owned(),
                name: self.name,
                endpoint: announced.display().to_string(),
                supported_versions: vec![pb::VERSION.to_owned()],
            },
            state: state.clone(),
        };
        let served = pair.serve()?;
        let stop = CancellationToken::new();
        let task = runtime.spawn(pair.keep(served, CancellationToken::new(), stop.clone()));
        Ok(RunningNode {
            state,
            task: Some(task),
            stop: Some(stop.drop_guard()),
        })
    }
}

/// A node plugin in service. Dropping it stops it without waiting.
pub struct RunningNode {
    state: watch::Sender<State>,
    task: Option<JoinHandle<()>>,
    stop: Option<DropGuard>,
}

impl RunningNode {
    /// Watches whether the agent has the plugin in service.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Stops the plugin; its sockets go. What is prepared stays so.
    pub async fn stop(mut self) {
        self.stop = None;
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "classic node plugin failed");
        }
    }
}

struct Service<N>(Arc<N>);

fn refused(failure: &Failure) -> Status {
    Status::unknown(failure.to_string())
}

#[tonic::async_trait]
impl<N: ClassicNode> Node for Service<N> {
    async fn node_prepare_resource(
        &self,
        request: Request<pb::NodePrepareResourceRequest>,
    ) -> Result<Response<pb::NodePrepareResourceResponse>, Status> {
        let asked = request.into_inner();
        let claim = HandedClaim {
            namespace: asked.namespace,
            name: asked.claim_name,
            uid: asked.claim_uid,
        };
        let prepared = self.0.prepare(&claim, &asked.resource_handle).await;
        let cdi_devices = prepared.map_err(|e| refused(&e))?;
        Ok(Response::new(pb::NodePrepareResourceResponse {
            cdi_devices,
        }))
    }

    async fn node_unprepare_resource(
        &self,
        request: Request<pb::NodeUnprepareResourceRequest>,
    ) -> Result<Response<pb::NodeUnprepareResourceResponse>, Status> {
        let asked = request.into_inner();
        let claim = HandedClaim {
            namespace: asked.namespace,
            name: asked.claim_name,
            uid: asked.claim_uid,
        };
        let undone = self.0.unprepare(&claim, &asked.cdi_devices).await;
        undone.map_err(|e| refused(&e))?;
        Ok(Response::new(pb::NodeUnprepareResourceResponse {}))
    }
}
