//! The podresources services on `<root>/pod-resources/kubelet.sock`: which pod holds which
//! devices, CPUs and memory. KEP-606 (List), KEP-2043 (GetAllocatableResources), KEP-3695 (Get).
//!
//! An answer to List is encoded once and sent to every caller until something changes. Beside the
//! API's services stands one of davit's own, which sends List's answer after each change.

mod answers;
mod service;
mod watch;

pub use answers::list;

use std::sync::Arc;

use davit_proto::davit::podresources::v1::pod_resources_watcher_server::PodResourcesWatcherServer;
use davit_proto::podresources::v1alpha1::pod_resources_lister_server as v1alpha1;
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use tokio::task::JoinSet;

use crate::devices::Manager;
use service::Service;

/// The folder of the socket below the agent's root.
const POD_RESOURCES_DIR: &str = "pod-resources";

/// Serves podresources. The socket is renamed into place, so a client that reconnects never
/// finds it absent.
///
/// # Errors
/// The folder or the socket cannot be made.
pub(crate) fn serve(manager: &Arc<Manager>, tasks: &mut JoinSet<()>) -> Result<(), unix::Error> {
    let dir = manager.config.root_dir.join(POD_RESOURCES_DIR);
    unix::create_dir(&dir)?;
    let listener = Listener::bind_by_rename(dir.join("kubelet.sock"))?;
    let service = Service::new(manager.clone());
    let old = v1alpha1::PodResourcesListerServer::new(service.clone())
        .max_encoding_message_size(MAX_MESSAGE);
    let push =
        PodResourcesWatcherServer::new(service.clone()).max_encoding_message_size(MAX_MESSAGE);
    let router = unix::server()
        .add_service(service)
        .add_service(old)
        .add_service(push);
    let stop = manager.cancel.clone();
    tasks.spawn(async move {
        if let Err(e) = unix::serve(listener, router, stop.cancelled()).await {
            tracing::error!(error = %e, "podresources ended");
        }
    });
    Ok(())
}
