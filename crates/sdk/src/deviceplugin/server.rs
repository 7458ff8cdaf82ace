//! Keeping a plugin served and registered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_server::DevicePluginServer;
use davit_proto::deviceplugin::v1beta1::registration_client::RegistrationClient;
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_server::RegistrationServer;
use davit_proto::unix::{self, Layers, MAX_MESSAGE};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Request;
use tonic::transport::server::Router;

use super::service::Service;
use super::{DEVICE_PLUGINS_DIR, DevicePlugin, PLUGINS_REGISTRY_DIR, State, Tamper};
use crate::agent::{Identity, MAX_PATH, POLL, Registration, Served, identity};

const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Limit of a Register call; the agent dials back while it is open.
const REGISTER: Duration = Duration::from_secs(20);

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

    /// Serves until SIGTERM or SIGINT, then stops the plugin as [`stop`](Self::stop) does: the last line of a program.
    ///
    /// # Errors
    /// The system does not let signals be waited for; the plugin is stopped then.
    pub async fn run_until_signal(self) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        self.stop().await;
        Ok(())
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

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Socket(#[from] unix::Error),
    #[error("not registered: {0}")]
    Refused(String),
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

impl<P: DevicePlugin> Keeper<P> {
    async fn keep(self, cancel: CancellationToken) {
        let mut served: Option<Served> = None;
        // The agent's socket that this socket was registered on.
        let mut registered: Option<Identity> = None;
        let (mut due, mut pause) = (Instant::now(), RETRY_FIRST);
        while !cancel.is_cancelled() {
            let lost = match &served {
                Some(served) => served.is_lost().await,
                None => true,
            };
            if !served.as_ref().is_some_and(Served::is_ours) {
                registered = None;
                State::reset(&self.state);
            }
            if Instant::now() >= due {
                let result = tokio::select! {
                    () = cancel.cancelled() => break,
                    result = self.step(lost, &mut served, &mut registered) => result,
                };
                match result {
                    Ok(()) => pause = RETRY_FIRST,
                    Err(error) => {
                        tracing::warn!(resource = self.resource, %error, "device plugin not in service");
                        (due, pause) = (Instant::now() + pause, (pause * 2).min(RETRY_MAX));
                    }
                }
            }
            tokio::select! {
                () = cancel.cancelled() => {}
                () = sleep(POLL) => {}
            }
        }
        match served {
            Some(served) if self.crash.is_cancelled() => served.break_off().await,
            Some(served) => served.end().await,
            None => {}
        }
    }

    /// Serves if that was lost, and registers if the agent is there and does not know it.
    async fn step(
        &self,
        lost: bool,
        served: &mut Option<Served>,
        registered: &mut Option<Identity>,
    ) -> Result<(), Failure> {
        if lost {
            let new = Served::start(&self.socket, |stop| self.router(stop))?;
            if let Some(old) = served.replace(new) {
                old.end().await;
            }
        }
        let Route::Register(dir) = &self.route else {
            return Ok(());
        };
        let kubelet = dir.join(pb::REGISTRATION_SOCKET);
        let agent = identity(&kubelet);
        if agent.is_none() || agent == *registered || !served.as_ref().is_some_and(Served::is_ours)
        {
            return Ok(());
        }
        if let Err(text) = self.register(&kubelet).await {
            self.state.send_replace(State::Refused(text.clone()));
            return Err(Failure::Refused(text));
        }
        tracing::info!(resource = self.resource, "device plugin registered");
        *registered = agent;
        self.state.send_replace(State::Registered);
        Ok(())
    }

    fn router(&self, stop: &CancellationToken) -> Router<Layers> {
        let service = Service {
            plugin: self.plugin.clone(),
            stop: stop.clone(),
            tamper: self.tamper.clone(),
        };
        let service = DevicePluginServer::new(service)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        let router = unix::server().add_service(service);
        if matches!(self.route, Route::Register(_)) {
            return router;
        }
        router.add_service(RegistrationServer::new(Registration {
            info: reg::PluginInfo {
                r#type: reg::DEVICE_PLUGIN.to_owned(),
                name: self.resource.clone(),
                endpoint: self.socket.display().to_string(),
                supported_versions: vec![pb::VERSION.to_owned()],
            },
            state: self.state.clone(),
        }))
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
