//! The driver's half on the nodes: registered with the agent, asked to prepare claims.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use davit_proto::draclassic::v1alpha1 as pb;
use davit_proto::draclassic::v1alpha1::node_server::{Node, NodeServer};
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::{
    Registration as RegistrationService, RegistrationServer,
};
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Request, Response, Status};

use super::Failure;

/// Where the agent looks for registration sockets by default.
pub const REGISTRY_DIR: &str = "/var/lib/kubelet/plugins_registry";
/// Below this a driver has its own socket by default, in a folder with the driver's name.
pub const PLUGINS_DIR: &str = "/var/lib/kubelet/plugins";
/// How often the sockets are looked at, and the pause when they cannot be made.
const POLL: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_secs(2);
/// Linux limits socket paths to 108 bytes with the final zero.
const MAX_PATH: usize = 107;

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
    /// A socket's path is too long, or there is no tokio runtime.
    pub fn start(self) -> Result<RunningNode, NodeError> {
        let own = || Path::new(PLUGINS_DIR).join(&self.name).join("plugin.sock");
        let endpoint = self.endpoint.clone().unwrap_or_else(own);
        let registration = self.registry.join(format!("{}-reg.sock", self.name));
        for path in [&endpoint, &registration] {
            if path.as_os_str().len() > MAX_PATH {
                return Err(NodeError::PathTooLong(path.clone()));
            }
        }
        let registered = watch::Sender::new(None);
        let cancel = CancellationToken::new();
        let keeper = Keeper {
            node: self.node,
            name: self.name,
            announced: self.announced.unwrap_or_else(|| endpoint.clone()),
            endpoint,
            registration,
            registered: registered.clone(),
        };
        let task = tokio::runtime::Handle::try_current()?.spawn(keeper.keep(cancel.clone()));
        Ok(RunningNode {
            registered,
            task: Some(task),
            cancel: Some(cancel.drop_guard()),
        })
    }
}

/// A node plugin in service. Dropping it stops it without waiting.
pub struct RunningNode {
    registered: watch::Sender<Option<Result<(), String>>>,
    task: Option<JoinHandle<()>>,
    cancel: Option<DropGuard>,
}

impl RunningNode {
    /// What the agent has said: nothing yet, that the plugin is in service, or why it is not.
    pub fn registered(&self) -> watch::Receiver<Option<Result<(), String>>> {
        self.registered.subscribe()
    }

    /// Stops the plugin; its sockets go. What is prepared stays so.
    pub async fn stop(mut self) {
        self.cancel = None;
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "classic node plugin failed");
        }
    }
}

struct Keeper<N> {
    node: Arc<N>,
    name: String,
    endpoint: PathBuf,
    announced: PathBuf,
    registration: PathBuf,
    registered: watch::Sender<Option<Result<(), String>>>,
}

/// Tells a file from another one that came into its place.
fn identity(path: &Path) -> Option<(u64, i64, i64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

impl<N: ClassicNode> Keeper<N> {
    /// Keeps the sockets served until cancelled; somebody who clears the folders (a reinstalled
    /// agent) ends one life of them and begins the next.
    async fn keep(self, cancel: CancellationToken) {
        while !cancel.is_cancelled() {
            let stop = cancel.child_token();
            match self.serve(&stop) {
                Ok((paths, tasks)) => {
                    let alive = || {
                        let same = |(path, known): &(PathBuf, _)| identity(path) == *known;
                        paths.iter().all(same) && tasks.iter().all(|t| !t.is_finished())
                    };
                    while alive() {
                        tokio::select! {
                            () = cancel.cancelled() => break,
                            () = sleep(POLL) => {}
                        }
                    }
                    stop.cancel();
                    self.registered.send_replace(None);
                    for task in tasks {
                        if let Err(error) = task.await {
                            tracing::error!(%error, driver = self.name, "server failed");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, driver = self.name, "node plugin cannot listen");
                    tokio::select! {
                        () = cancel.cancelled() => {}
                        () = sleep(RETRY) => {}
                    }
                }
            }
        }
    }

    /// The driver's socket first, then the one by which the agent finds it.
    #[allow(clippy::type_complexity, reason = "used in one place")]
    fn serve(
        &self,
        stop: &CancellationToken,
    ) -> Result<(Vec<(PathBuf, Option<(u64, i64, i64)>)>, Vec<JoinHandle<()>>), unix::Error> {
        for path in [&self.endpoint, &self.registration] {
            if let Some(dir) = path.parent() {
                unix::create_dir(dir)?;
            }
        }
        let listener = Listener::bind(&self.endpoint)?;
        let service = NodeServer::new(Service(self.node.clone()))
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let driver = unix::server().add_service(service);
        let driver = self.spawn(listener, driver, stop);
        let listener = Listener::bind(&self.registration)?;
        let service = RegistrationServer::new(Registration {
            info: reg::PluginInfo {
                r#type: reg::DRA_PLUGIN.to_owned(),
                name: self.name.clone(),
                endpoint: self.announced.display().to_string(),
                supported_versions: vec![pb::VERSION.to_owned()],
            },
            registered: self.registered.clone(),
        });
        let registrar = unix::server().add_service(service);
        let registrar = self.spawn(listener, registrar, stop);
        let paths = [&self.endpoint, &self.registration];
        let paths = paths.map(|p| (p.clone(), identity(p))).to_vec();
        Ok((paths, vec![driver, registrar]))
    }

    fn spawn(
        &self,
        listener: Listener,
        router: Router,
        stop: &CancellationToken,
    ) -> JoinHandle<()> {
        let (name, stop) = (self.name.clone(), stop.clone());
        tokio::spawn(async move {
            if let Err(error) = unix::serve(listener, router, stop.cancelled()).await {
                tracing::warn!(%error, driver = name, "node plugin server ended");
            }
        })
    }
}

/// What [`unix::serve`] takes.
type Router = tonic::transport::server::Router<unix::Layers>;

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

struct Registration {
    info: reg::PluginInfo,
    registered: watch::Sender<Option<Result<(), String>>>,
}

#[tonic::async_trait]
impl RegistrationService for Registration {
    async fn get_info(
        &self,
        _: Request<reg::InfoRequest>,
    ) -> Result<Response<reg::PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let said = if status.plugin_registered {
            tracing::info!(driver = self.info.name, "node plugin registered");
            Ok(())
        } else {
            tracing::warn!(
                driver = self.info.name,
                error = status.error,
                "node plugin refused"
            );
            Err(status.error)
        };
        self.registered.send_replace(Some(said));
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}
