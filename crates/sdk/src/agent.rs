//! Being found by the node agent: sockets that stay served, and the registration on them
//! (<https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/>,
//! KEP-595 for the plugin registry).

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use davit_proto::pluginregistration::v1 as reg;
#[cfg(feature = "dra")]
use davit_proto::pluginregistration::v1::registration_server::RegistrationServer;
use davit_proto::unix::{self, Layers, Listener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

/// Linux limits socket paths to 108 bytes with the final zero.
pub(crate) const MAX_PATH: usize = 107;
/// How often sockets are looked at.
pub(crate) const POLL: Duration = Duration::from_millis(250);
/// Limit of a dial that only asks whether somebody is there.
const DIAL: Duration = Duration::from_millis(500);

/// Whether the agent has taken the plugin into service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not yet, or the agent is away, or another instance has taken the place of this one.
    Waiting,
    /// It has.
    Registered,
    /// It refused, with this text. Tried again.
    Refused(String),
}

impl State {
    /// Back to [`State::Waiting`], told once.
    pub(crate) fn reset(state: &watch::Sender<Self>) {
        state.send_if_modified(|s| std::mem::replace(s, Self::Waiting) != Self::Waiting);
    }
}

/// Tells a file from another one that came into its place.
pub(crate) type Identity = (u64, i64, i64);

/// Which file is there.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
}

/// Whether a process accepts connections there; a killed one leaves its socket's file behind.
async fn somebody_listens(socket: &Path) -> bool {
    let dialled = timeout(DIAL, tokio::net::UnixStream::connect(socket)).await;
    dialled.is_ok_and(|connected| connected.is_ok())
}

/// One life of a socket: the server on it.
pub(crate) struct Served {
    path: PathBuf,
    identity: Option<Identity>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    /// Serves on a new socket at `path`, and makes its folder. The services' streams end with the
    /// token that `router` gets.
    ///
    /// # Errors
    /// Folder or socket cannot be made.
    pub(crate) fn start(
        path: &Path,
        router: impl FnOnce(&CancellationToken) -> Router<Layers>,
    ) -> Result<Self, unix::Error> {
        if let Some(dir) = path.parent() {
            unix::create_dir(dir)?;
        }
        let listener = Listener::bind(path)?;
        let (stop, at) = (CancellationToken::new(), path.to_owned());
        let (router, token) = (router(&stop), stop.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = unix::serve(listener, router, token.cancelled()).await {
                tracing::warn!(socket = %at.display(), %error, "server ended");
            }
        });
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path),
            stop,
            task,
        })
    }

    /// Whether the file at the path is this server's: no other instance has taken the name.
    pub(crate) fn is_ours(&self) -> bool {
        !self.task.is_finished() && self.identity.is_some() && identity(&self.path) == self.identity
    }

    /// Whether the socket has to be made anew: its file was removed, as an agent that starts does,
    /// or somebody has put another one there and does not listen on it any more. An instance that
    /// took the name and listens has it; this one goes on with the connections that it has.
    pub(crate) async fn is_lost(&self) -> bool {
        !self.is_ours() && (self.task.is_finished() || !somebody_listens(&self.path).await)
    }

    /// Ends the server, after its open calls have had a moment.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(socket = %self.path.display(), %error, "server failed");
        }
    }

    /// Ends the server as a kill does: connections break in the middle of calls, and the socket's
    /// file stays behind with nobody listening.
    pub(crate) async fn break_off(self) {
        let ours = self.is_ours();
        self.task.abort();
        if let Err(error) = self.task.await
            && !error.is_cancelled()
        {
            tracing::error!(socket = %self.path.display(), %error, "server failed");
        }
        if ours {
            // The standard library's listener leaves its file, as a killed process does.
            drop(std::os::unix::net::UnixListener::bind(&self.path));
        }
    }
}

/// The Registration service of the plugin registry.
pub(crate) struct Registration {
    pub(crate) info: reg::PluginInfo,
    pub(crate) state: watch::Sender<State>,
}

#[tonic::async_trait]
impl reg::registration_server::Registration for Registration {
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
        let name = &self.info.name;
        self.state.send_replace(if status.plugin_registered {
            tracing::info!(name, "registered with the node agent");
            State::Registered
        } else {
            tracing::warn!(name, error = status.error, "refused by the node agent");
            State::Refused(status.error)
        });
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

/// The two sockets of a plugin that has its service in a folder of its own, and a second socket in
/// the registry's by which the agent finds it.
#[cfg(feature = "dra")]
pub(crate) struct Pair<F> {
    /// Where the service is.
    pub(crate) service: PathBuf,
    /// What is served there.
    pub(crate) router: F,
    /// Where the agent finds the plugin.
    pub(crate) registration: PathBuf,
    /// What the agent learns there.
    pub(crate) info: reg::PluginInfo,
    /// What it answers.
    pub(crate) state: watch::Sender<State>,
}

/// Both servers of a [`Pair`].
#[cfg(feature = "dra")]
pub(crate) struct ServedPair {
    service: Served,
    registration: Option<Served>,
}

#[cfg(feature = "dra")]
impl<F: Fn(&CancellationToken) -> Router<Layers>> Pair<F> {
    /// Serves both, the service first.
    ///
    /// # Errors
    /// A folder or socket cannot be made.
    pub(crate) fn serve(&self) -> Result<ServedPair, unix::Error> {
        Ok(ServedPair {
            service: Served::start(&self.service, &self.router)?,
            registration: Some(self.register()?),
        })
    }

    fn register(&self) -> Result<Served, unix::Error> {
        let service = RegistrationServer::new(Registration {
            info: self.info.clone(),
            state: self.state.clone(),
        });
        Served::start(&self.registration, |_| unix::server().add_service(service))
    }

    /// Keeps both served until `stop`; after `withdraw` the registration is gone.
    pub(crate) async fn keep(
        self,
        mut served: ServedPair,
        withdraw: CancellationToken,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = withdraw.cancelled(), if served.registration.is_some() => {
                    if let Some(registration) = served.registration.take() {
                        registration.end().await;
                    }
                    continue;
                }
                () = tokio::time::sleep(POLL) => {}
            }
            if let Err(error) = self.mend(&mut served).await {
                tracing::warn!(name = self.info.name, %error, "plugin cannot listen");
            }
        }
        if let Some(registration) = served.registration {
            registration.end().await;
        }
        served.service.end().await;
    }

    /// Makes lost sockets anew.
    async fn mend(&self, served: &mut ServedPair) -> Result<(), unix::Error> {
        if served.service.is_lost().await {
            let new = Served::start(&self.service, &self.router)?;
            std::mem::replace(&mut served.service, new).end().await;
        }
        if let Some(registration) = &served.registration {
            if !registration.is_ours() {
                State::reset(&self.state);
            }
            if registration.is_lost().await
                && let Some(old) = served.registration.replace(self.register()?)
            {
                old.end().await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_proto::pluginregistration::v1::registration_server::RegistrationServer;

    fn start(path: &Path) -> Served {
        let registration = RegistrationServer::new(Registration {
            info: reg::PluginInfo::default(),
            state: watch::Sender::new(State::Waiting),
        });
        Served::start(path, |_| unix::server().add_service(registration)).unwrap()
    }

    #[tokio::test]
    async fn whoever_took_the_name_has_it_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder/a.sock");
        let first = start(&path);
        assert!(first.is_ours() && !first.is_lost().await);
        let second = start(&path);
        assert!(second.is_ours());
        assert!(!first.is_ours() && !first.is_lost().await);
        second.break_off().await;
        assert!(path.exists(), "a killed process leaves its socket");
        assert!(first.is_lost().await, "nobody listens any more");
        let third = start(&path);
        assert!(!first.is_lost().await);
        third.end().await;
        assert!(!path.exists());
        assert!(first.is_lost().await, "the name is free again");
        first.end().await;
    }
}
