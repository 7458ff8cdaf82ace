//! Serving a [`Driver`] to the node agent.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use davit_proto::dra::{v1, v1beta1};
use davit_proto::drahealth;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::unix::{self, Layers, MAX_MESSAGE};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Router;

use super::metadata::MetadataFiles;
use super::service::{Core, Health, Service};
use super::turns::Turns;
use super::{Driver, PLUGINS_DIR, State};
use crate::agent::{MAX_PATH, Pair};
use crate::deviceplugin::PLUGINS_REGISTRY_DIR;

/// How long calls that go on are waited for at the end.
const GRACE: Duration = Duration::from_secs(30);
const MAX_NAME: usize = 63;

/// Why a node plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Driver names are DNS subdomains of at most 63 characters.
    #[error("driver name {0:?} is not a DNS subdomain of at most {MAX_NAME} characters")]
    Name(String),
    /// The path of a socket is longer than the system allows, also with a short file name.
    #[error("socket path {0} is longer than {MAX_PATH} bytes")]
    PathTooLong(PathBuf),
    /// A socket cannot be made.
    #[error(transparent)]
    Socket(#[from] unix::Error),
    /// It was started outside of a tokio runtime.
    #[error("no async runtime: {0}")]
    Runtime(#[from] tokio::runtime::TryCurrentError),
    /// Neither version of the service was left.
    #[error("no version of the service is served")]
    NoVersion,
}

/// Serves a [`Driver`] and keeps it registered. See the [module](super)'s example.
#[must_use]
pub struct NodePlugin<D> {
    driver: Arc<D>,
    name: String,
    client: kube::Client,
    registry_dir: PathBuf,
    data_dir: Option<PathBuf>,
    instance: Option<String>,
    one_at_a_time: bool,
    metadata: Option<PathBuf>,
    v1: bool,
    v1beta1: bool,
}

impl<D: Driver> NodePlugin<D> {
    /// A plugin for a driver of this name; the client reads claims.
    pub fn new(name: impl Into<String>, client: kube::Client, driver: D) -> Self {
        Self {
            driver: Arc::new(driver),
            name: name.into(),
            client,
            registry_dir: PLUGINS_REGISTRY_DIR.into(),
            data_dir: None,
            instance: None,
            one_at_a_time: true,
            metadata: None,
            v1: true,
            v1beta1: true,
        }
    }

    /// The folder in which the agent looks for registration sockets.
    pub fn registry_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.registry_dir = dir.into();
        self
    }

    /// The driver's own folder, by default [`PLUGINS_DIR`] and its name. It holds the service's
    /// socket.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Makes this one of several instances that run at the same time, told apart by this text,
    /// commonly the UID of the driver's pod. A new version of the driver can then take over
    /// before the old one ends: the agent turns to the instance that came last. Calls of all
    /// instances exclude each other by the file `serialize.lock` in the data folder, which the
    /// helper of Go drivers uses in the same way.
    pub fn instance(mut self, uid: impl Into<String>) -> Self {
        self.instance = Some(uid.into());
        self
    }

    /// Whether the driver is called for one claim at a time, as by default. Otherwise only calls
    /// for the same claim exclude each other.
    pub fn one_at_a_time(mut self, yes: bool) -> Self {
        self.one_at_a_time = yes;
        self
    }

    /// Has containers find files that say which devices they have (KEP-5304, alpha in Kubernetes
    /// 1.36), below `/var/run/kubernetes.io/dra-device-attributes`: for each request what
    /// [`super::PreparedDevice`] says, attributes included. The folder is that of CDI files,
    /// commonly [`super::cdi::CDI_DIR`].
    pub fn device_metadata(mut self, cdi_dir: impl Into<PathBuf>) -> Self {
        self.metadata = Some(cdi_dir.into());
        self
    }

    /// Which versions of the service are offered; both by default. Agents before 1.34 need
    /// `v1beta1`.
    pub fn versions(mut self, v1: bool, v1beta1: bool) -> Self {
        (self.v1, self.v1beta1) = (v1, v1beta1);
        self
    }

    /// Starts serving in the background: first the service, then the registration. The agent
    /// comes when it finds the socket.
    ///
    /// # Errors
    /// The name is not one, or a socket cannot be made.
    pub fn start(self) -> Result<Running, Error> {
        if !is_driver_name(&self.name) {
            return Err(Error::Name(self.name));
        }
        if !self.v1 && !self.v1beta1 {
            return Err(Error::NoVersion);
        }
        let runtime = tokio::runtime::Handle::try_current()?;
        let data_dir = self.data_dir.clone();
        let data_dir = data_dir.unwrap_or_else(|| Path::new(PLUGINS_DIR).join(&self.name));
        let (service, registration) = self.socket_names();
        let service = socket_path(&data_dir, &service)?;
        let registration = socket_path(&self.registry_dir, &registration)?;
        remove_dead(&self.registry_dir, &self.name);

        let (stopping, cut_off, stop) = (
            CancellationToken::new(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let calls = TaskTracker::new();
        let shared = self
            .instance
            .as_ref()
            .map(|_| data_dir.join("serialize.lock"));
        let state = watch::Sender::new(State::Waiting);
        let core = Arc::new(Core {
            health: self.driver.health(),
            metadata: self.metadata.map(|cdi_dir| MetadataFiles {
                driver: self.name.clone(),
                data_dir,
                cdi_dir,
            }),
            driver: self.driver,
            name: self.name,
            client: self.client,
            turns: Turns::new(self.one_at_a_time, shared),
            calls: calls.clone(),
            stopping: stopping.clone(),
            cut_off: cut_off.clone(),
        });
        let offer = Offer {
            v1: self.v1,
            v1beta1: self.v1beta1,
        };
        let pair = Pair {
            info: offer.info(&core, &service),
            router: move |stop: &CancellationToken| offer.router(&core, stop),
            service,
            registration,
            state: state.clone(),
        };
        let served = pair.serve()?;
        let task = runtime.spawn(pair.keep(served, stopping.clone(), stop.clone()));
        Ok(Running {
            state,
            calls,
            stopping,
            task: Some(task),
            _cut_off: cut_off.drop_guard(),
            stop: Some(stop.drop_guard()),
        })
    }

    /// Names of the service's and the registration's socket.
    fn socket_names(&self) -> (String, String) {
        match &self.instance {
            None => ("dra.sock".to_owned(), format!("{}-reg.sock", self.name)),
            Some(uid) => (
                format!("dra-{uid}.sock"),
                format!("{}-{uid}-reg.sock", self.name),
            ),
        }
    }
}

/// The path of a socket, with a hash for a name where the name would be too long.
fn socket_path(dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = dir.join(name);
    if path.as_os_str().len() <= MAX_PATH {
        return Ok(path);
    }
    let hash = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(name));
    // The agent ignores names that begin with a dot; a hash has none.
    let room = MAX_PATH.saturating_sub(dir.as_os_str().len() + "/.sock".len());
    match hash.get(..room.min(hash.len())) {
        Some(hash) if hash.len() >= 8 => Ok(dir.join(format!("{hash}.sock"))),
        _ => Err(Error::PathTooLong(path)),
    }
}

fn is_driver_name(name: &str) -> bool {
    name.len() <= MAX_NAME && davit_api::names::check_dns1123_subdomain(name).is_empty()
}

/// Removes registration sockets of this driver that nobody listens on: instances that were
/// killed leave them, and the agent would go on to dial them.
fn remove_dead(registry: &Path, driver: &str) {
    let Ok(entries) = std::fs::read_dir(registry) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|n| {
            let rest = n.strip_prefix(driver);
            rest.is_some_and(|r| r.starts_with('-') && r.ends_with("-reg.sock"))
        });
        let is_socket = entry.file_type().is_ok_and(|t| t.is_socket());
        if !ours || !is_socket {
            continue;
        }
        let dialed = std::os::unix::net::UnixStream::connect(entry.path());
        if dialed.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
            tracing::info!(socket = %entry.path().display(), "removing the socket of an instance that is gone");
            if let Err(e) = std::fs::remove_file(entry.path()) {
                tracing::debug!(error = %e, "socket not removed");
            }
        }
    }
}

/// A node plugin in service. Dropping it ends it without waiting.
#[derive(Debug)]
pub struct Running {
    state: watch::Sender<State>,
    calls: TaskTracker,
    stopping: CancellationToken,
    task: Option<JoinHandle<()>>,
    _cut_off: DropGuard,
    stop: Option<DropGuard>,
}

impl Running {
    /// Watches whether the agent has the plugin in service.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Ends the plugin: it is taken from the registry first, then calls that go on have 30
    /// seconds to end, then the service ends. What is prepared stays prepared.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        self.calls.close();
        if timeout(GRACE, self.calls.wait()).await.is_err() {
            tracing::warn!("calls of the driver are cut off");
        }
        self.stop = None;
        if let Some(task) = self.task.take()
            && let Err(e) = task.await
        {
            tracing::error!(error = %e, "node plugin task failed");
        }
    }
}

/// The versions of the service that are offered.
#[derive(Clone, Copy)]
struct Offer {
    v1: bool,
    v1beta1: bool,
}

impl Offer {
    fn router<D: Driver>(self, core: &Arc<Core<D>>, stop: &CancellationToken) -> Router<Layers> {
        let router = unix::server()
            .add_optional_service(self.v1.then(|| {
                v1::dra_plugin_server::DraPluginServer::new(Service(core.clone()))
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE)
            }))
            .add_optional_service(self.v1beta1.then(|| {
                v1beta1::dra_plugin_server::DraPluginServer::new(Service(core.clone()))
                    .max_decoding_message_size(MAX_MESSAGE)
                    .max_encoding_message_size(MAX_MESSAGE)
            }));
        let Some(devices) = core.health.clone() else {
            return router;
        };
        let stop = stop.clone();
        let health = Health { devices, stop };
        use drahealth::{v1 as health_v1, v1alpha1 as health_v1alpha1};
        router
            .add_service(
                health_v1::dra_resource_health_server::DraResourceHealthServer::new(health.clone()),
            )
            .add_service(
                health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(health),
            )
    }

    fn info<D>(self, core: &Core<D>, service: &Path) -> reg::PluginInfo {
        let versions = [
            (self.v1, v1::SERVICE),
            (self.v1beta1, v1beta1::SERVICE),
            (core.health.is_some(), drahealth::v1::SERVICE),
            (core.health.is_some(), drahealth::v1alpha1::SERVICE),
        ];
        let offered = versions.into_iter().filter(|(offered, _)| *offered);
        reg::PluginInfo {
            r#type: reg::DRA_PLUGIN.to_owned(),
            name: core.name.clone(),
            endpoint: std::path::absolute(service)
                .unwrap_or_else(|_| service.to_owned())
                .display()
                .to_string(),
            supported_versions: offered.map(|(_, name)| name.to_owned()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_124_socket_paths_of_instances_are_short() {
        let driver = "d".repeat(MAX_NAME);
        let uid = "0dfe2b2c-3e8a-4a4e-b5a1-0d5a6e5f8f11";
        let data = Path::new(PLUGINS_DIR).join(&driver);
        let service = socket_path(&data, &format!("dra-{uid}.sock")).unwrap();
        let registry = Path::new(PLUGINS_REGISTRY_DIR);
        let registration = socket_path(registry, &format!("{driver}-{uid}-reg.sock")).unwrap();
        for path in [&service, &registration] {
            assert!(path.as_os_str().len() <= MAX_PATH, "{}", path.display());
        }
        let other = socket_path(registry, &format!("{driver}-other{uid}-reg.sock")).unwrap();
        assert_ne!(registration, other);
        let plain = socket_path(registry, "gpu.example.com-reg.sock").unwrap();
        assert_eq!(plain, registry.join("gpu.example.com-reg.sock"));
        let deep = Path::new("/").join("x".repeat(100));
        assert!(matches!(
            socket_path(&deep, &"y".repeat(40)),
            Err(Error::PathTooLong(_))
        ));
    }

    #[test]
    fn driver_names_are_subdomains() {
        assert!(is_driver_name("gpu.example.com"));
        for bad in ["", "GPU", "a_b", &"a".repeat(64)] {
            assert!(!is_driver_name(bad), "{bad}");
        }
    }

    #[test]
    fn sockets_of_the_dead_go_and_of_the_living_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let bind = |name: &str| std::os::unix::net::UnixListener::bind(at(name)).unwrap();
        let _alive = bind("a.dev-1-reg.sock");
        drop(bind("a.dev-2-reg.sock"));
        drop(bind("b.dev-2-reg.sock"));
        remove_dead(dir.path(), "a.dev");
        assert!(at("a.dev-1-reg.sock").exists());
        assert!(!at("a.dev-2-reg.sock").exists());
        assert!(at("b.dev-2-reg.sock").exists());
    }
}
