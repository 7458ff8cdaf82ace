//! The pods API on `<root>/pods-api/pods-api.sock`: the pods of this node with the status that the
//! agent knows, which may be newer than the API server's (KEP-4188, v1alpha1).

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use davit_api::kinds::{KindTable, TypeId, builtin};
use davit_containermanager::{ActivePods as _, Limit, Rate};
use davit_proto::pods::v1alpha1 as pb;
use davit_proto::pods::v1alpha1::pods_server::{Pods, PodsServer};
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use davit_schema::protobuf::encode;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

use crate::pod_table::PodTable;
use crate::status_manager::StatusManager;
use davit_pods::pod::PodExt;

/// The folder of the socket below the agent's root.
pub(crate) const PODS_API_DIR: &str = "pods-api";
/// Changes that may wait to be looked at.
const CHANGES: usize = 1000;
/// Events that may wait for one client.
const WAITING: usize = 100;

/// Tells which pods have changed, by UID; cheap when nobody listens.
#[derive(Debug, Clone)]
pub(crate) struct PodChanges(broadcast::Sender<Arc<str>>);

impl Default for PodChanges {
    fn default() -> Self {
        Self(broadcast::Sender::new(CHANGES))
    }
}

impl PodChanges {
    /// The pod, or its status, has changed, or it is gone.
    pub(crate) fn changed(&self, uid: &str) {
        if self.0.receiver_count() > 0 {
            // The last receiver may have gone meanwhile.
            let _nobody = self.0.send(uid.into());
        }
    }
}

/// What the service is made of.
pub(crate) struct Parts {
    pub(crate) pods: Arc<PodTable>,
    pub(crate) status: StatusManager,
    pub(crate) changes: PodChanges,
    pub(crate) rate: Rate,
    /// `pod_watch_events_dropped`.
    pub(crate) dropped: Counter,
}

/// Serves the API until `cancel`.
///
/// # Errors
/// The folder or the socket cannot be made.
pub(crate) fn serve(
    root: &Path,
    parts: Parts,
    tasks: &mut JoinSet<()>,
    cancel: CancellationToken,
) -> Result<(), unix::Error> {
    let dir = root.join(PODS_API_DIR);
    unix::create_dir(&dir)?;
    let listener = Listener::bind_by_rename(dir.join("pods-api.sock"))?;
    let pod_type = builtin().types.id("core/v1.Pod");
    let limit = Limit::new(parts.rate);
    let service = Service(Arc::new(Inner {
        parts,
        limit,
        kinds: builtin(),
        pod_type,
        encoded: Mutex::default(),
        cancel: cancel.clone(),
    }));
    let router =
        unix::server().add_service(PodsServer::new(service).max_encoding_message_size(MAX_MESSAGE));
    tasks.spawn(async move {
        if let Err(e) = unix::serve(listener, router, cancel.cancelled()).await {
            tracing::error!(error = %e, "pods API ended");
        }
    });
    Ok(())
}

struct Encoded {
    pod: Arc<Pod>,
    status: Option<PodStatus>,
    bytes: Bytes,
}

struct Inner {
    parts: Parts,
    limit: Limit,
    kinds: &'static KindTable,
    pod_type: Option<TypeId>,
    /// The last message of each pod, by UID.
    encoded: Mutex<BTreeMap<String, Encoded>>,
    cancel: CancellationToken,
}

#[derive(Clone)]
struct Service(Arc<Inner>);

impl Inner {
    fn message(&self, object: &serde_json::Value) -> Result<Bytes, Status> {
        let root = self
            .pod_type
            .ok_or_else(|| Status::internal("the kinds table has no pods"))?;
        let bytes = encode(&self.kinds.types, root, object);
        bytes
            .map(Bytes::from)
            .map_err(|e| Status::internal(e.to_string()))
    }

    /// A pod with the agent's own status.
    fn pod(&self, pod: &Arc<Pod>) -> Result<Bytes, Status> {
        let status = self.parts.status.get(pod.uid());
        if let Some(known) = self.encoded.lock().get(pod.uid())
            && Arc::ptr_eq(&known.pod, pod)
            && known.status == status
        {
            return Ok(known.bytes.clone());
        }
        let mut whole = (**pod).clone();
        if let Some(status) = &status {
            whole.status = Some(status.clone());
        }
        let value = serde_json::to_value(&whole).map_err(|e| Status::internal(e.to_string()))?;
        let bytes = self.message(&value)?;
        let known = Encoded {
            pod: pod.clone(),
            status,
            bytes: bytes.clone(),
        };
        self.encoded.lock().insert(pod.uid().to_owned(), known);
        Ok(bytes)
    }

    /// What is said of a pod that is gone.
    fn tombstone(&self, of: &Gone) -> Result<Bytes, Status> {
        self.message(&serde_json::json!({"metadata": {
            "name": of.name, "namespace": of.namespace, "uid": of.uid,
        }}))
    }

    fn all(&self) -> BTreeMap<String, Arc<Pod>> {
        let all: BTreeMap<String, Arc<Pod>> = self
            .parts
            .pods
            .all_pods()
            .into_iter()
            .map(|p| (p.uid().to_owned(), p))
            .collect();
        self.encoded.lock().retain(|uid, _| all.contains_key(uid));
        all
    }
}

/// A pod that was told of.
struct Gone {
    uid: String,
    namespace: String,
    name: String,
}

type Events = Pin<Box<dyn Stream<Item = Result<pb::WatchPodsEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Pods for Service {
    async fn list_pods(
        &self,
        _: Request<pb::ListPodsRequest>,
    ) -> Result<Response<pb::ListPodsResponse>, Status> {
        self.0.limit.take()?;
        let pods: Result<Vec<_>, Status> = self
            .0
            .all()
            .values()
            .map(|pod| Ok(self.0.pod(pod)?.to_vec()))
            .collect();
        Ok(Response::new(pb::ListPodsResponse { pods: pods? }))
    }

    async fn get_pod(
        &self,
        request: Request<pb::GetPodRequest>,
    ) -> Result<Response<pb::GetPodResponse>, Status> {
        self.0.limit.take()?;
        let uid = request.into_inner().pod_uid;
        let pod = self.0.parts.pods.get(&uid);
        let pod =
            pod.ok_or_else(|| Status::not_found(format!("pod with UID {uid:?} not found")))?;
        Ok(Response::new(pb::GetPodResponse {
            pod: self.0.pod(&pod)?.to_vec(),
        }))
    }

    type WatchPodsStream = Events;

    async fn watch_pods(
        &self,
        _: Request<pb::WatchPodsRequest>,
    ) -> Result<Response<Events>, Status> {
        // Changes are listened to before the pods are read, so that none falls between.
        let changes = self.0.parts.changes.0.subscribe();
        let (events, queue) = mpsc::channel(WAITING);
        let end: Arc<Mutex<Option<Status>>> = Arc::default();
        let watcher = Watcher {
            inner: self.0.clone(),
            events,
            told: BTreeMap::new(),
        };
        let outcome = end.clone();
        let task = tokio::spawn(async move {
            let ended = watcher.run(changes).await;
            *outcome.lock() = ended.err();
        });
        let state = (queue, end, AbortOnDropHandle::new(task), false);
        // What was queued goes out, then why it ends.
        let stream = futures::stream::unfold(state, |(mut queue, end, task, over)| async move {
            if over {
                return None;
            }
            if let Some(event) = queue.recv().await {
                return Some((Ok(event), (queue, end, task, false)));
            }
            let status = end.lock().take()?;
            Some((Err(status), (queue, end, task, true)))
        });
        Ok(Response::new(stream.boxed()))
    }
}

struct Watcher {
    inner: Arc<Inner>,
    events: mpsc::Sender<pb::WatchPodsEvent>,
    /// Pods that the client knows, with the message it has.
    told: BTreeMap<String, (Gone, Bytes)>,
}

impl Watcher {
    async fn run(mut self, mut changes: broadcast::Receiver<Arc<str>>) -> Result<(), Status> {
        // The first pods may be more than may wait; they are sent as fast as they are taken.
        for pod in self.inner.all().into_values() {
            let bytes = self.inner.pod(&pod)?;
            let event = self.event(&pod, &bytes);
            if self.events.send(event).await.is_err() {
                return Ok(());
            }
        }
        let complete = pb::WatchPodsEvent {
            r#type: pb::EventType::InitialSyncComplete.into(),
            pod: Vec::new(),
        };
        if self.events.send(complete).await.is_err() {
            return Ok(());
        }
        loop {
            let uid = tokio::select! {
                () = self.inner.cancel.cancelled() => return Err(Status::unavailable("the node agent stops")),
                () = self.events.closed() => return Ok(()),
                changed = changes.recv() => match changed {
                    Ok(uid) => uid,
                    Err(broadcast::error::RecvError::Closed) => return Ok(()),
                    Err(broadcast::error::RecvError::Lagged(lost)) => return Err(self.too_slow(lost)),
                },
            };
            let Some(event) = self.change(&uid)? else {
                continue;
            };
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Closed(_)) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(_)) => return Err(self.too_slow(1)),
            }
        }
    }

    /// The client has to list again.
    fn too_slow(&self, lost: u64) -> Status {
        self.inner.parts.dropped.inc_by(lost);
        Status::resource_exhausted("watch client channel closed")
    }

    /// The event about a pod that the client does not know, or knows otherwise.
    fn event(&mut self, pod: &Pod, bytes: &Bytes) -> pb::WatchPodsEvent {
        let gone = Gone {
            uid: pod.uid().to_owned(),
            namespace: pod.ns().to_owned(),
            name: pod.pod_name().to_owned(),
        };
        let known = self.told.insert(gone.uid.clone(), (gone, bytes.clone()));
        let kind = if known.is_some() {
            pb::EventType::Modified
        } else {
            pb::EventType::Added
        };
        pb::WatchPodsEvent {
            r#type: kind.into(),
            pod: bytes.to_vec(),
        }
    }

    fn change(&mut self, uid: &str) -> Result<Option<pb::WatchPodsEvent>, Status> {
        let Some(pod) = self.inner.parts.pods.get(uid) else {
            let Some((gone, _)) = self.told.remove(uid) else {
                return Ok(None);
            };
            let pod = self.inner.tombstone(&gone)?.to_vec();
            let kind = pb::EventType::Deleted.into();
            return Ok(Some(pb::WatchPodsEvent { r#type: kind, pod }));
        };
        let bytes = self.inner.pod(&pod)?;
        if self.told.get(uid).is_some_and(|(_, known)| *known == bytes) {
            return Ok(None);
        }
        Ok(Some(self.event(&pod, &bytes)))
    }
}
