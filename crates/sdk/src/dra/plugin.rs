//! Serving a [`Driver`] to the node agent.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use davit_proto::dra::{v1, v1beta1};
use davit_proto::drahealth;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::RegistrationServer;
use davit_proto::unix::{self, Layers, Listener, MAX_MESSAGE};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Router;

use super::service::{Core, Health, Registration, Service};
use super::turns::Turns;
use super::{Driver, PLUGINS_DIR, State};
use crate::deviceplugin::PLUGINS_REGISTRY_DIR;

/// How often the sockets' files are looked at.
const POLL: Duration = Duration::from_secs(1);
/// How long calls that go on are waited for at the end.
const GRACE: Duration = Duration::from_secs(30);
/// Linux limits socket paths to 108 bytes with the final zero.
const MAX_PATH: usize = 107;
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
        for dir in [&data_dir, &self.registry_dir] {
            unix::create_dir(dir)?;
        }
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
        let keeper = Keeper {
            health: self.driver.health(),
            versions: (self.v1, self.v1beta1),
            core: Arc::new(Core {
                driver: self.driver,
                name: self.name,
                client: self.client,
                turns: Turns::new(self.one_at_a_time, shared),
                calls: calls.clone(),
                stopping: stopping.clone(),
                cut_off: cut_off.clone(),
            }),
            service,
            registration,
            state: state.clone(),
        };
        let listeners = (
            Listener::bind(&keeper.service)?,
            Listener::bind(&keeper.registration)?,
        );
        let task = runtime.spawn(keeper.keep(listeners, stopping.clone(), stop.clone()));
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

struct Keeper<D> {
    core: Arc<Core<D>>,
    health: Option<watch::Receiver<Vec<super::DeviceHealth>>>,
    versions: (bool, bool),
    service: PathBuf,
    registration: PathBuf,
    state: watch::Sender<State>,
}

/// A server on one socket.
struct Served {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    fn start(listener: Listener, router: Router<Layers>) -> Self {
        let stop = CancellationToken::new();
        let token = stop.clone();
        let task = tokio::spawn(async move {
            if let Err(e) = unix::serve(listener, router, token.cancelled()).await {
                tracing::warn!(error = %e, "DRA driver's server ended");
            }
        });
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        if let Err(e) = self.task.await {
            tracing::error!(error = %e, "DRA driver's server failed");
        }
    }

    /// Whether it has to be made anew: its file was removed. A file of another process in its
    /// place is that process's right.
    fn is_lost(&self, path: &Path) -> bool {
        self.task.is_finished() || std::fs::symlink_metadata(path).is_err()
    }
}

impl<D: Driver> Keeper<D> {
    async fn keep(
        self,
        listeners: (Listener, Listener),
        stopping: CancellationToken,
        stop: CancellationToken,
    ) {
        let mut service = Served::start(listeners.0, self.service_router(&stop));
        let mut registration = Some(Served::start(listeners.1, self.registration_router()));
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = stopping.cancelled(), if registration.is_some() => {
                    if let Some(served) = registration.take() {
                        served.end().await;
                    }
                    continue;
                }
                () = sleep(POLL) => {}
            }
            if service.is_lost(&self.service)
                && let Some(new) = self.again(&self.service, || self.service_router(&stop))
            {
                std::mem::replace(&mut service, new).end().await;
            }
            if registration
                .as_ref()
                .is_some_and(|r| r.is_lost(&self.registration))
                && let Some(new) = self.again(&self.registration, || self.registration_router())
                && let Some(old) = registration.replace(new)
            {
                self.state.send_replace(State::Waiting);
                old.end().await;
            }
        }
        if let Some(registration) = registration {
            registration.end().await;
        }
        service.end().await;
    }

    /// Serves a path anew after its file was removed, with its folder.
    fn again(&self, path: &Path, router: impl FnOnce() -> Router<Layers>) -> Option<Served> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        match unix::create_dir(dir).and_then(|()| Listener::bind(path)) {
            Ok(listener) => Some(Served::start(listener, router())),
            Err(e) => {
                tracing::warn!(driver = self.core.name, error = %e, "DRA driver cannot listen");
                None
            }
        }
    }

    fn service_router(&self, stop: &CancellationToken) -> Router<Layers> {
        let mut router = unix::server().add_optional_service(self.versions.0.then(|| {
            v1::dra_plugin_server::DraPluginServer::new(Service(self.core.clone()))
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        }));
        router = router.add_optional_service(self.versions.1.then(|| {
            v1beta1::dra_plugin_server::DraPluginServer::new(Service(self.core.clone()))
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        }));
        let Some(devices) = self.health.clone() else {
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

    fn registration_router(&self) -> Router<Layers> {
        let offers = [
            (self.versions.0, v1::SERVICE),
            (self.versions.1, v1beta1::SERVICE),
            (self.health.is_some(), drahealth::v1::SERVICE),
            (self.health.is_some(), drahealth::v1alpha1::SERVICE),
        ];
        let offered = offers.into_iter().filter(|(offered, _)| *offered);
        let service = Registration {
            info: reg::PluginInfo {
                r#type: reg::DRA_PLUGIN.to_owned(),
                name: self.core.name.clone(),
                endpoint: std::path::absolute(&self.service)
                    .unwrap_or_else(|_| self.service.clone())
                    .display()
                    .to_string(),
                supported_versions: offered.map(|(_, name)| name.to_owned()).collect(),
            },
            state: self.state.clone(),
        };
        unix::server().add_service(RegistrationServer::new(service))
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
