//! The Registration service on `device-plugins/kubelet.sock` and the manager's own loops.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::deviceplugin::v1beta1::registration_server::{Registration, RegistrationServer};
use davit_proto::unix::{self, Listener};
use davit_task::Task;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until};
use tonic::{Request, Response, Status};

use super::checkpoint;
use super::manager::Manager;
use super::names::shortened;

/// Longest pause between looks at plugins that have gone.
const EXPIRY_PAUSE: Duration = Duration::from_secs(60);

/// Bytes of a registration: it has a name, a file name and a version.
const MAX_REQUEST: usize = 64 << 10;

struct Service(Arc<Manager>);

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<pb::RegisterRequest>,
    ) -> Result<Response<pb::Empty>, Status> {
        let request = request.into_inner();
        let manager = &self.0;
        // First of all: what is no name may be of any length, and would be kept.
        super::names::check(&request.resource_name).map_err(|e| refuse(&e))?;
        tracing::info!(
            resource = request.resource_name,
            endpoint = ?shortened(&request.endpoint),
            "device plugin registers"
        );
        manager.metrics.registered(&request.resource_name);
        if request.version != pb::VERSION {
            return Err(refuse(&format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [{:?}]",
                shortened(&request.version),
                pb::VERSION
            )));
        }
        // The endpoint is a file name by contract; a path could lead anywhere.
        if request.endpoint.is_empty() || request.endpoint.contains('/') || request.endpoint == ".."
        {
            let endpoint = shortened(&request.endpoint);
            return Err(refuse(&format!(
                "failed to dial device plugin: endpoint {endpoint:?} is not a file name"
            )));
        }
        let socket = manager.plugins_dir().join(&request.endpoint);
        let connected = Manager::connect(manager, &request.resource_name, &socket, None);
        connected.await.map_err(|e| refuse(&e))?;
        Ok(Response::new(pb::Empty {}))
    }
}

/// Plugins are used to code Unknown with these texts.
fn refuse(error: &impl ToString) -> Status {
    let text = error.to_string();
    tracing::warn!(error = text, "device plugin refused");
    Status::unknown(text)
}

/// Starts the registration server, the watch over lost plugins and the checkpoint's writer.
///
/// # Errors
/// The folder or the socket cannot be made.
pub(crate) fn serve(manager: &Arc<Manager>, tasks: &mut JoinSet<()>) -> Result<(), unix::Error> {
    let dir = manager.plugins_dir();
    unix::create_dir(&dir)?;
    unix::remove_stale_sockets(&dir)?;
    // Plugins write here, too: what one of them leaves in the socket's place keeps no agent from starting.
    let listener = Listener::bind_by_rename(dir.join(pb::REGISTRATION_SOCKET))?;
    let service = RegistrationServer::new(Service(manager.clone()));
    let service = service.max_decoding_message_size(MAX_REQUEST);
    let router = unix::server().add_service(service);
    let server = manager.clone();
    tasks.spawn(async move {
        server.registering.store(true, Ordering::Release);
        let stop = server.cancel.clone();
        if let Err(e) = unix::serve(listener, router, stop.cancelled()).await {
            tracing::error!(error = %e, "device plugin registration ended");
        }
        server.registering.store(false, Ordering::Release);
    });
    manager.registering.store(true, Ordering::Release);
    let keeper = manager.clone();
    let expiry = Task::new("node", "plugin-expiry", manager.cancel.clone());
    tasks.spawn(expiry.retry(move || expire(keeper.clone())));
    let keeper = manager.clone();
    let checkpoint = Task::new("node", "device-checkpoint", manager.cancel.clone());
    tasks.spawn(checkpoint.retry(move || checkpoint::keep(keeper.clone())));
    Ok(())
}

/// Declares plugins gone once their grace period is over.
async fn expire(manager: Arc<Manager>) {
    let mut changes = manager.subscribe();
    loop {
        let now = Instant::now();
        let next = manager.expire(now).await.unwrap_or(now + EXPIRY_PAUSE);
        tokio::select! {
            () = manager.cancel.cancelled() => return,
            () = sleep_until(next.min(now + EXPIRY_PAUSE).max(now + Duration::from_millis(10))) => {}
            // A plugin may have left; a burst of changes costs one look each pause.
            _ = changes.changed() => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
