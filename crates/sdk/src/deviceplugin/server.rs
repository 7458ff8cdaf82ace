//! Keeping a plugin served and registered.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_server::DevicePluginServer;
use davit_proto::deviceplugin::v1beta1::registration_client::RegistrationClient;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::RegistrationServer;
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Request;

use super::service::{Registration, Service};
use super::{DEVICE_PLUGINS_DIR, DevicePlugin, PLUGINS_REGISTRY_DIR, Tamper};

/// How often sockets are looked at.
const POLL: Duration = Duration::from_millis(250);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Limit of a Register call; the agent dials back while it is open.
const REGISTER: Duration = Duration::from_secs(20);
/// Linux limits socket paths to 108 bytes with the final zero.
const MAX_PATH: usize = 107;

/// Why a plugin does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path of its socket is longer than the system allows.
    #[error("socket path {0} is longer than {MAX_PATH} bytes")]
    PathTooLong(PathBuf),
    /// It was started outside of a tokio runtime.
    #[error("no async runtime: {0}")]
    Runtime(#[from] tokio::runtime::TryCurrentError),
}

/// How the agent gets to know the plugin. Both ways lead to the same result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The plugin calls the agent on `kubelet.sock` in this folder; its own socket is there too.
    Register(PathBuf),
    /// The agent finds the plugin's socket in this folder, or below it.
    Registry(PathBuf),
}

impl Default for Route {
    fn default() -> Self {
        Self::Register(DEVICE_PLUGINS_DIR.into())
    }
}

impl Route {
    /// The registry route with its usual folder.
    pub fn registry() -> Self {
        Self::Registry(PLUGINS_REGISTRY_DIR.into())
    }

    fn dir(&self) -> &Path {
        match self {
            Self::Register(dir) | Self::Registry(dir) => dir,
        }
    }
}

/// Whether the agent has taken the plugin into service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not yet, or the agent is away.
    Waiting,
    /// It has.
    Registered,
    /// It refused, with this text. Tried again.
    Refused(String),
}

/// Serves a [`DevicePlugin`] and keeps it registered. See the [module](super)'s example.
#[derive(Debug)]
#[must_use]
pub struct PluginServer<P> {
    plugin: Arc<P>,
    resource: String,
    route: Route,
    socket: Option<String>,
    tamper: Option<Arc<dyn Tamper>>,
}

impl<P: DevicePlugin> PluginServer<P> {
    /// A server for devices of an extended resource such as `hardware-vendor.example/foo`.
    pub fn new(resource: impl Into<String>, plugin: P) -> Self {
        Self {
            plugin: Arc::new(plugin),
            resource: resource.into(),
            route: Route::default(),
            socket: None,
            tamper: None,
        }
    }

    /// Lets `tamper` change messages on their way out: for plugins that are to misbehave, which
    /// is what tests of node agents need.
    pub fn tampered(mut self, tamper: Arc<dyn Tamper>) -> Self {
        self.tamper = Some(tamper);
        self
    }

    /// Sets the way to the agent.
    pub fn route(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Sets the file name of the plugin's socket. Give each running instance of a plugin a
    /// name of its own to upgrade without a gap. By default the name follows the resource.
    pub fn socket_name(mut self, name: impl Into<String>) -> Self {
        self.socket = Some(name.into());
        self
    }

    /// Starts serving in the background; registration follows as soon as the agent is there.
    ///
    /// # Errors
    /// The socket's path is too long, or there is no tokio runtime.
    pub fn start(self) -> Result<Running, Error> {
        let name = self
            .socket
            .clone()
            .unwrap_or_else(|| socket_name(&self.resource));
        let socket = self.route.dir().join(name);
        if socket.as_os_str().len() > MAX_PATH {
            return Err(Error::PathTooLong(socket));
        }
        let state = watch::Sender::new(State::Waiting);
        let cancel = CancellationToken::new();
        let crash = CancellationToken::new();
        let keeper = Keeper {
            plugin: self.plugin,
            resource: self.resource,
            route: self.route,
            socket,
            state: state.clone(),
            tamper: self.tamper,
            crash: crash.clone(),
        };
        let task = tokio::runtime::Handle::try_current()?.spawn(keeper.keep(cancel.clone()));
        Ok(Running {
            state,
            task: Some(task),
            cancel: Some(cancel.drop_guard()),
            crash,
        })
    }
}

/// The default file name: the resource's name, short enough for any usual folder.
fn socket_name(resource: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let name: String = resource.chars().map(plain).collect();
    if name.len() <= 40 {
        return format!("{name}.sock");
    }
    // FNV-1a tells long names apart that begin alike.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{}-{:08x}.sock", &name[..31], hash >> 32)
}

/// A plugin in service. Dropping it stops the plugin without waiting.
pub struct Running {
    state: watch::Sender<State>,
    task: Option<JoinHandle<()>>,
    cancel: Option<DropGuard>,
    crash: CancellationToken,
}

impl Running {
    /// Watches whether the agent has the plugin in service.
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Stops the plugin: its socket goes first, then its streams end, then open calls have a
    /// moment to finish. Containers keep their devices.
    pub async fn stop(mut self) {
        self.end().await;
    }

    /// Ends the plugin as a kill would: connections break in the middle of calls, and its socket
    /// stays behind with nobody listening. For tests of node agents.
    pub async fn crash(mut self) {
        self.crash.cancel();
        self.end().await;
    }

    async fn end(&mut self) {
        self.cancel = None;
        if let Some(task) = self.task.take()
            && let Err(e) = task.await
        {
            tracing::error!(error = %e, "device plugin task failed");
        }
    }
}

struct Keeper<P> {
    plugin: Arc<P>,
    resource: String,
    route: Route,
    socket: PathBuf,
    state: watch::Sender<State>,
    tamper: Option<Arc<dyn Tamper>>,
    crash: CancellationToken,
}

/// Tells a file from another one that came into its place.
type Identity = (u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

/// Whether a process accepts connections there; a killed one leaves its socket's file behind.
async fn somebody_listens(socket: &Path) -> bool {
    let dialled = timeout(RETRY_FIRST, tokio::net::UnixStream::connect(socket));
    dialled.await.is_ok_and(|connected| connected.is_ok())
}

/// One life of the plugin's socket.
struct Served {
    identity: Option<Identity>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl<P: DevicePlugin> Keeper<P> {
    async fn keep(self, cancel: CancellationToken) {
        let kubelet = self.route.dir().join(pb::REGISTRATION_SOCKET);
        let by_call = matches!(self.route, Route::Register(_));
        let mut served: Option<Served> = None;
        // The agent's socket that this socket was registered on.
        let mut registered: Option<Identity> = None;
        let (mut due, mut pause) = (Instant::now(), RETRY_FIRST);
        while !cancel.is_cancelled() {
            // An agent that starts removes the sockets of its folder: that is the sign to begin anew.
            let here = identity(&self.socket);
            let alive = |s: &Served| !s.task.is_finished() && here == s.identity;
            // A newer instance that took the socket's name has it; this one only ends its streams.
            let succeeded = served.as_ref().is_some_and(|s| !alive(s))
                && here.is_some()
                && somebody_listens(&self.socket).await;
            let gone = !served.as_ref().is_some_and(alive);
            if succeeded {
                self.state.send_replace(State::Waiting);
            } else if gone && Instant::now() >= due {
                if let Some(old) = served.take() {
                    old.end().await;
                }
                registered = None;
                self.state.send_replace(State::Waiting);
                match self.serve() {
                    Ok(new) => (served, pause) = (Some(new), RETRY_FIRST),
                    Err(e) => {
                        tracing::warn!(resource = self.resource, error = %e, "device plugin cannot listen");
                        (due, pause) = (Instant::now() + pause, (pause * 2).min(RETRY_MAX));
                    }
                }
            }
            let agent = identity(&kubelet);
            if by_call
                && served.is_some()
                && !succeeded
                && agent.is_some()
                && agent != registered
                && Instant::now() >= due
            {
                let result = tokio::select! {
                    () = cancel.cancelled() => break,
                    result = self.register(&kubelet) => result,
                };
                match result {
                    Ok(()) => {
                        tracing::info!(resource = self.resource, "device plugin registered");
                        (registered, pause) = (agent, RETRY_FIRST);
                        self.state.send_replace(State::Registered);
                    }
                    Err(text) => {
                        tracing::warn!(
                            resource = self.resource,
                            error = text,
                            "device plugin not registered"
                        );
                        (due, pause) = (Instant::now() + pause, (pause * 2).min(RETRY_MAX));
                        self.state.send_replace(State::Refused(text));
                    }
                }
            }
            tokio::select! {
                () = cancel.cancelled() => {}
                () = sleep(POLL) => {}
            }
        }
        if let Some(served) = served {
            served.end().await;
        }
    }

    fn serve(&self) -> Result<Served, unix::Error> {
        let listener = Listener::bind(&self.socket)?;
        let identity = identity(&self.socket);
        let stop = CancellationToken::new();
        let service = Service {
            plugin: self.plugin.clone(),
            stop: stop.clone(),
            tamper: self.tamper.clone(),
        };
        let service = DevicePluginServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let mut router = unix::server().add_service(service);
        if matches!(self.route, Route::Registry(_)) {
            router = router.add_service(RegistrationServer::new(Registration {
                info: reg::PluginInfo {
                    r#type: reg::DEVICE_PLUGIN.to_owned(),
                    name: self.resource.clone(),
                    endpoint: self.socket.display().to_string(),
                    supported_versions: vec![pb::VERSION.to_owned()],
                },
                state: self.state.clone(),
            }));
        }
        let (resource, token) = (self.resource.clone(), stop.clone());
        let (crash, socket) = (self.crash.clone(), self.socket.clone());
        let task = tokio::spawn(async move {
            let ended = tokio::select! {
                biased;
                () = crash.cancelled() => None,
                ended = unix::serve(listener, router, token.cancelled()) => Some(ended),
            };
            match ended {
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    tracing::warn!(resource, error = %e, "device plugin server ended");
                }
                // The standard library's listener leaves its file, as a killed process does.
                None => drop(std::os::unix::net::UnixListener::bind(socket)),
            }
        });
        Ok(Served {
            identity,
            stop,
            task,
        })
    }

    async fn register(&self, kubelet: &Path) -> Result<(), String> {
        let channel = unix::connect_once(kubelet, Duration::from_secs(5))
            .await
            .map_err(|e| e.to_string())?;
        let endpoint = self.socket.file_name().unwrap_or_default();
        let request = pb::RegisterRequest {
            version: pb::VERSION.to_owned(),
            endpoint: endpoint.to_string_lossy().into_owned(),
            resource_name: self.resource.clone(),
            options: Some(pb::DevicePluginOptions {
                pre_start_required: self.plugin.wants_pre_start(),
                get_preferred_allocation_available: self.plugin.has_preference(),
            }),
        };
        let mut client = RegistrationClient::new(channel);
        match timeout(REGISTER, client.register(Request::new(request))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err(format!(
                "the agent did not answer Register within {} s",
                REGISTER.as_secs()
            )),
        }
    }
}

impl Served {
    async fn end(self) {
        self.stop.cancel();
        if let Err(e) = self.task.await {
            tracing::error!(error = %e, "device plugin server failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_are_short_and_differ() {
        assert_eq!(socket_name("vendor.example/foo"), "vendor.example-foo.sock");
        let long = |end: &str| socket_name(&format!("{}.example/{end}", "a".repeat(60)));
        assert_ne!(long("x"), long("y"));
        assert!(long("x").len() <= 45);
    }
}
