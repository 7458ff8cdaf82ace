//! Events sent to a server in batches. The buffer is bounded: what does not fit is counted and lost,
//! so that a slow receiver never slows requests.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use davit_webhook::{Call, Client, Kubeconfig, Tasks};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::AuditError;

const BUFFER: usize = 10_000;
const BATCH: usize = 400;
const WAIT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

enum Message {
    Event(Value),
    /// Send what waits and answer.
    Flush(oneshot::Sender<()>),
}

/// The sender of events.
#[derive(Debug)]
pub(super) struct Webhook {
    queue: mpsc::Sender<Message>,
    errors: Counter,
    task: AbortOnDropHandle<()>,
    _connections: DropGuard,
}

impl Webhook {
    pub(super) fn start(path: &Path, errors: Counter) -> Result<Self, AuditError> {
        let unusable = |detail: String| AuditError::Webhook {
            path: path.to_owned(),
            detail,
        };
        let settings = Kubeconfig::read(path)
            .and_then(|config| config.settings())
            .map_err(|error| unusable(error.to_string()))?;
        // Its connections outlive the server's other tasks: what waits is sent when they have ended.
        let connections = CancellationToken::new();
        let client = Client::new(settings, Tasks::new(connections.clone()));
        let client = client.map_err(|error| unusable(error.to_string()))?;
        let (queue, received) = mpsc::channel(BUFFER);
        let task = tokio::spawn(run(client, received, errors.clone()));
        Ok(Self {
            queue,
            errors,
            task: AbortOnDropHandle::new(task),
            _connections: connections.drop_guard(),
        })
    }

    pub(super) fn send(&self, event: Value) {
        if self.queue.try_send(Message::Event(event)).is_err() {
            self.errors.inc();
        }
    }

    pub(super) async fn close(&self, limit: Duration) {
        let (done, flushed) = oneshot::channel();
        let flush = async {
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        if tokio::time::timeout(limit, flush).await.is_err() {
            tracing::warn!("audit events were not sent in time");
        }
        self.task.abort();
    }
}

async fn run(client: Client, mut queue: mpsc::Receiver<Message>, errors: Counter) {
    while let Some(first) = queue.recv().await {
        let mut batch = Vec::new();
        let mut flushed = None;
        match first {
            Message::Event(event) => batch.push(event),
            Message::Flush(done) => flushed = Some(done),
        }
        let full = async {
            while batch.len() < BATCH && flushed.is_none() {
                match queue.recv().await {
                    Some(Message::Event(event)) => batch.push(event),
                    Some(Message::Flush(done)) => flushed = Some(done),
                    None => break,
                }
            }
        };
        // a batch that does not fill goes after a while
        let _ = tokio::time::timeout(WAIT, full).await;
        if !batch.is_empty() {
            deliver(&client, batch, &errors).await;
        }
        if let Some(done) = flushed {
            let _ = done.send(());
        }
    }
}

async fn deliver(client: &Client, batch: Vec<Value>, errors: &Counter) {
    let count = batch.len() as u64;
    let list = json!({
        "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": batch,
    });
    let body = Bytes::from(list.to_string());
    let mut pause = FIRST_PAUSE;
    for attempt in 1..=ATTEMPTS {
        let failure = match client.send(Call::post(body.clone(), CALL_TIMEOUT)).await {
            Ok(answer) if answer.status.is_success() => return,
            Ok(answer) => format!("the receiver answered {}", answer.status),
            Err(error) => error.to_string(),
        };
        if attempt == ATTEMPTS {
            tracing::error!(failure, count, "audit events are lost");
            errors.inc_by(count);
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}
