//! The node agent's side of registration, as strict and as slow as a check wants it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::device_plugin_client::DevicePluginClient;
use davit_proto::deviceplugin::v1beta1::registration_server::{Registration, RegistrationServer};
use davit_proto::pluginregistration::v1 as reg;
use davit_proto::pluginregistration::v1::registration_client::RegistrationClient;
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::subject::KubeletDirectory;

/// The agent's limit of dialling a plugin.
const DIAL: Duration = Duration::from_secs(10);
const ABSENT: Duration = Duration::from_secs(1);
const OPTIONS: Duration = Duration::from_secs(10);
/// The agent's limit of telling the result of a registration.
const NOTIFIED: Duration = Duration::from_secs(5);
const SCAN: Duration = Duration::from_millis(200);
/// Registrations that may wait to be looked at.
const WAITING: usize = 64;
/// How deep the registry's folders are followed.
const DEPTH: usize = 8;

pub(super) type Client = DevicePluginClient<Channel>;

/// By which way a plugin came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Register,
    Registry,
}

/// A plugin that wants to be known.
pub(super) struct Registered {
    pub(super) way: Way,
    pub(super) version: Vec<String>,
    pub(super) resource: String,
    /// As the plugin wrote it.
    pub(super) endpoint: String,
    pub(super) socket: PathBuf,
    /// The connection, made while the plugin waited.
    pub(super) dialled: Result<Client, String>,
    /// The answer to GetDevicePluginOptions.
    pub(super) options: Result<pb::DevicePluginOptions, String>,
    /// Whether NotifyRegistrationStatus was taken, by the registry's way.
    pub(super) notified: Option<Result<(), String>>,
    /// The text it was refused with.
    pub(super) refused: bool,
}

/// How an agent behaves.
#[derive(Debug, Clone, Default)]
pub(super) struct Manner {
    /// How long it waits before it dials back.
    pub(super) slow: Duration,
    /// How many registrations it refuses first.
    pub(super) refuse: usize,
}

/// A node agent, as far as plugins see it.
pub(super) struct Agent {
    registrations: mpsc::Receiver<Registered>,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Desk {
    place: KubeletDirectory,
    slow: Duration,
    refuse: Arc<Mutex<usize>>,
    seen: mpsc::Sender<Registered>,
}

impl Agent {
    /// Starts as the kubelet does: sockets in the plugins' folder go, then its own is made.
    pub(super) fn start(place: &KubeletDirectory, manner: &Manner) -> Result<Self, unix::Error> {
        unix::remove_stale_sockets(&place.device_plugins())?;
        let listener = Listener::bind(place.device_plugins().join(pb::REGISTRATION_SOCKET))?;
        let (seen, registrations) = mpsc::channel(WAITING);
        let desk = Desk {
            place: place.clone(),
            slow: manner.slow,
            refuse: Arc::new(Mutex::new(manner.refuse)),
            seen,
        };
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let router = unix::server().add_service(RegistrationServer::new(desk.clone()));
        let stop = cancel.clone();
        tasks.spawn(async move {
            if let Err(e) = unix::serve(listener, router, stop.cancelled()).await {
                tracing::warn!(error = %e, "registration server ended");
            }
        });
        let stop = cancel.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = desk.watch() => {}
            }
        });
        Ok(Self {
            registrations,
            cancel,
            tasks,
        })
    }

    /// The next registration.
    pub(super) async fn next(&mut self, limit: Duration) -> Option<Registered> {
        timeout(limit, self.registrations.recv())
            .await
            .ok()
            .flatten()
    }

    /// Ends at once, as a killed agent does.
    pub(super) async fn stop(mut self) {
        self.cancel.cancel();
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn dial(socket: &Path, limit: Duration) -> Result<Client, String> {
    let channel = unix::connect_once(socket, limit)
        .await
        .map_err(|e| e.to_string())?;
    Ok(DevicePluginClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

/// Connects to a plugin and asks for its options.
pub(super) async fn meet(
    socket: &Path,
) -> (
    Result<Client, String>,
    Result<pb::DevicePluginOptions, String>,
) {
    // A plugin does not wait for ever for the answer to Register: what is not there is told soon.
    let limit = if socket.exists() { DIAL } else { ABSENT };
    let dialled = dial(socket, limit).await;
    let options = match &dialled {
        Ok(client) => options(client.clone()).await,
        Err(e) => Err(e.clone()),
    };
    (dialled, options)
}

async fn options(mut client: Client) -> Result<pb::DevicePluginOptions, String> {
    match timeout(OPTIONS, client.get_device_plugin_options(pb::Empty {})).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(said(&status)),
        Err(_) => Err(format!(
            "no answer to GetDevicePluginOptions in {} s",
            OPTIONS.as_secs()
        )),
    }
}

/// An error as it is shown in reports.
pub(super) fn said(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

impl Desk {
    fn refuses(&self) -> bool {
        let mut left = self.refuse.lock();
        let refuses = *left > 0;
        *left = left.saturating_sub(1);
        refuses
    }

    /// Looks for sockets in the registry until dropped.
    async fn watch(self) {
        let mut known: BTreeMap<PathBuf, Identity> = BTreeMap::new();
        loop {
            let mut now = BTreeMap::new();
            sockets(&self.place.registry(), DEPTH, &mut now);
            for (socket, identity) in &now {
                if known.get(socket) != Some(identity) {
                    self.found(socket).await;
                }
            }
            known = now;
            sleep(SCAN).await;
        }
    }

    /// Registers the plugin behind a socket of the registry.
    async fn found(&self, socket: &Path) {
        let refused = self.refuses();
        let mut registered = Registered {
            way: Way::Registry,
            version: Vec::new(),
            resource: String::new(),
            endpoint: String::new(),
            socket: socket.to_owned(),
            dialled: Err("not dialled".to_owned()),
            options: Err("not asked".to_owned()),
            notified: None,
            refused,
        };
        if let Err(why) = self.ask(socket, &mut registered).await {
            registered.dialled = Err(why);
        }
        // Nobody listens any more when the check is over.
        let _over = self.seen.send(registered).await;
    }

    async fn ask(&self, socket: &Path, to: &mut Registered) -> Result<(), String> {
        let (mut client, info) = get_info(socket).await?;
        if info.r#type != reg::DEVICE_PLUGIN {
            return Err(format!("GetInfo names the type {:?}", info.r#type));
        }
        to.version = info.supported_versions;
        to.resource = info.name;
        if !info.endpoint.is_empty() {
            to.socket = PathBuf::from(&info.endpoint);
        }
        to.endpoint = info.endpoint;
        sleep(self.slow).await;
        (to.dialled, to.options) = meet(&to.socket).await;
        let registered = !to.refused && to.options.is_ok();
        let refusal = (!registered).then(|| REFUSAL.to_owned());
        to.notified = Some(notify(&mut client, refusal).await);
        Ok(())
    }
}

/// Asks what is behind a socket of the registry.
pub(super) async fn get_info(
    socket: &Path,
) -> Result<(RegistrationClient<Channel>, reg::PluginInfo), String> {
    let channel = unix::connect_once(socket, DIAL)
        .await
        .map_err(|e| e.to_string())?;
    let mut client = RegistrationClient::new(channel);
    let info = timeout(Duration::from_secs(1), client.get_info(reg::InfoRequest {}))
        .await
        .map_err(|_| "no answer to GetInfo in 1 s".to_owned())?
        .map_err(|status| format!("GetInfo: {}", said(&status)))?
        .into_inner();
    Ok((client, info))
}

/// Tells a plugin of the registry whether it was taken.
pub(super) async fn notify(
    client: &mut RegistrationClient<Channel>,
    refusal: Option<String>,
) -> Result<(), String> {
    let status = reg::RegistrationStatus {
        plugin_registered: refusal.is_none(),
        error: refusal.unwrap_or_default(),
    };
    let told = timeout(NOTIFIED, client.notify_registration_status(status)).await;
    match told {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(said(&status)),
        Err(_) => Err(format!("no answer in {} s", NOTIFIED.as_secs())),
    }
}

const REFUSAL: &str = "refused by davit lab, to see what happens";

/// Which file it is under a name: the number of one that was removed may be given to the next, its time is not.
pub(super) type Identity = (u64, i64, i64);

/// The sockets below a directory.
pub(super) fn sockets(dir: &Path, depth: usize, into: &mut BTreeMap<PathBuf, Identity>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let Ok(meta) = entry.metadata() else { continue };
        if meta.file_type().is_socket() && !hidden {
            into.insert(entry.path(), (meta.ino(), meta.mtime(), meta.mtime_nsec()));
        } else if meta.is_dir() && depth > 0 {
            sockets(&entry.path(), depth - 1, into);
        }
    }
}

#[tonic::async_trait]
impl Registration for Desk {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::Empty>, Status> {
        let request = request.into_inner();
        let refused = self.refuses();
        let socket = self.place.device_plugins().join(&request.endpoint);
        sleep(self.slow).await;
        let (dialled, options) = meet(&socket).await;
        let answer = match (&options, refused) {
            (_, true) => Err(Status::unknown(REFUSAL)),
            (Ok(_), false) => Ok(Response::new(pb::Empty {})),
            (Err(e), false) => Err(Status::unknown(format!(
                "failed to dial device plugin: {e}"
            ))),
        };
        let registered = Registered {
            way: Way::Register,
            version: vec![request.version],
            resource: request.resource_name,
            endpoint: request.endpoint,
            socket,
            dialled,
            options,
            notified: None,
            refused,
        };
        let _over = self.seen.send(registered).await;
        answer
    }
}
