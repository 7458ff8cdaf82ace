//! List as a push: davit's own service beside podresources, on the same socket.

use std::pin::Pin;

use davit_proto::davit::podresources::v1::pod_resources_watcher_server::PodResourcesWatcher;
use davit_proto::davit::podresources::v1::{WatchPodResourcesRequest, WatchPodResourcesResponse};
use davit_proto::podresources::v1;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};

use super::service::Service;

type Answers = Pin<Box<dyn Stream<Item = Result<WatchPodResourcesResponse, Status>> + Send>>;

#[tonic::async_trait]
impl PodResourcesWatcher for Service {
    type WatchStream = Answers;

    async fn watch(
        &self,
        _: Request<WatchPodResourcesRequest>,
    ) -> Result<Response<Answers>, Status> {
        self.take()?;
        // One answer may wait for a slow client; what comes meanwhile is told as one.
        let (answers, queue) = mpsc::channel(1);
        let task = tokio::spawn(push(self.clone(), answers));
        let guard = AbortOnDropHandle::new(task);
        let stream = futures::StreamExt::map(ReceiverStream::new(queue), move |answer| {
            // The task lives as long as the stream.
            let _ = &guard;
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
