//! List as a push: davit's own service beside podresources, on the same socket.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use davit_proto::davit::podresources::v1::pod_resources_watcher_server::PodResourcesWatcher;
use davit_proto::davit::podresources::v1::{WatchPodResourcesRequest, WatchPodResourcesResponse};
use davit_proto::podresources::v1;
use davit_proto::unix::Peer;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

use super::service::Service;

type Answers = Pin<Box<dyn Stream<Item = Result<WatchPodResourcesResponse, Status>> + Send>>;

/// Streams at once: each that is not read holds an answer about all pods.
const MOST: usize = 256;
/// Streams of one process.
const MOST_OF_A_PROCESS: usize = 16;

/// Who watches, by process.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<BTreeMap<Option<i32>, usize>>);

impl Watchers {
    /// Takes one more in.
    ///
    /// # Errors
    /// There are as many as may be, of the process or of all.
    fn enter(self: &Arc<Self>, process: Option<i32>) -> Result<Watching, Status> {
        let mut counts = self.0.lock();
        let own = counts.get(&process).copied().unwrap_or(0);
        if own >= MOST_OF_A_PROCESS || counts.values().sum::<usize>() >= MOST {
            return Err(Status::resource_exhausted(format!(
                "{MOST_OF_A_PROCESS} watches of a process are served at once, and {MOST} of all"
            )));
        }
        counts.insert(process, own + 1);
        Ok(Watching {
            all: self.clone(),
            process,
        })
    }
}

/// One stream, counted as long as it is there.
#[derive(Debug)]
struct Watching {
    all: Arc<Watchers>,
    process: Option<i32>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock();
        match counts.get_mut(&self.process) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.process)),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesWatcher for Service {
    type WatchStream = Answers;

    async fn watch(
        &self,
        request: Request<WatchPodResourcesRequest>,
    ) -> Result<Response<Answers>, Status> {
        self.take()?;
        let peer = request.extensions().get::<Peer>();
        let process = peer.and_then(|peer| peer.peer_cred?.pid());
        let seat = self.watchers().enter(process)?;
        // One answer may wait for a slow client; what comes meanwhile is told as one.
        let (answers, queue) = mpsc::channel(1);
        let task = tokio::spawn(push(self.clone(), answers));
        let guard = AbortOnDropHandle::new(task);
        let stream = futures::StreamExt::map(ReceiverStream::new(queue), move |answer| {
            // The task lives as long as the stream.
            let _ = (&guard, &seat);
            answer
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

async fn push(service: Service, answers: mpsc::Sender<Result<WatchPodResourcesResponse, Status>>) {
    let mut changes = service.changes();
    let mut sent = None;
    loop {
        let generation = *changes.borrow_and_update();
        let bytes = service.list().await;
        if sent.as_ref() != Some(&bytes) {
            let pods = v1::ListPodResourcesResponse::decode(bytes.clone());
            let answer = match pods {
                Ok(pods) => Ok(WatchPodResourcesResponse {
                    generation,
                    pods: Some(pods),
                }),
                Err(e) => Err(Status::internal(e.to_string())),
            };
            if answers.send(answer).await.is_err() {
                return;
            }
            sent = Some(bytes);
        }
        tokio::select! {
            () = service.stopped() => return,
            () = answers.closed() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_watches_without_end() {
        let watchers = Arc::new(Watchers::default());
        let of = |process: i32| -> Vec<Watching> {
            std::iter::from_fn(|| watchers.enter(Some(process)).ok()).collect()
        };
        let mut held: Vec<_> = (0..20).map(of).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts[..16], [MOST_OF_A_PROCESS; 16]);
        assert_eq!(counts[16..], [0; 4]);
        // whoever goes makes room
        held.remove(0).pop();
        assert_eq!(of(17).len(), MOST_OF_A_PROCESS);
        drop(held);
        assert!(watchers.0.lock().is_empty());
    }
}
