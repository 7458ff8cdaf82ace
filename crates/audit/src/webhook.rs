//! Events sent to a server in batches. The buffer is bounded, in events and in bytes: what does not fit is counted and lost,
//! so that a slow receiver never slows requests, nor takes more memory than there is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_webhook::{Call, Client, Kubeconfig, Tasks};
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use super::AuditError;

const BUFFER: usize = 10_000;
/// Bytes of all events that wait or are under way: where bodies are recorded, one event may have megabytes.
const BUFFER_BYTES: usize = 64 << 20;
const BATCH: usize = 400;
/// Bytes of a batch, unless one event alone has more; what receivers of kube-apiserver's take.
const BATCH_BYTES: usize = 10 << 20;
const WAIT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// An event as it is sent, with its part of the buffer.
struct Waiting {
    json: String,
    _room: OwnedSemaphorePermit,
}

enum Message {
    Event(Waiting),
    /// Send what waits and answer.
    Flush(oneshot::Sender<()>),
}

/// The sender of events.
#[derive(Debug)]
pub(super) struct Webhook {
    queue: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
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
            room: Arc::new(Semaphore::new(BUFFER_BYTES)),
            errors,
            task: AbortOnDropHandle::new(task),
            _connections: connections.drop_guard(),
        })
    }

    pub(super) fn send(&self, event: &Value) {
        if self.keep(event).is_none() {
            self.errors.inc();
        }
    }

    /// Puts an event with those that wait, if there is room.
    fn keep(&self, event: &Value) -> Option<()> {
        let place = self.queue.try_reserve().ok()?;
        let json = event.to_string();
        let bytes = u32::try_from(json.len()).ok()?;
        let _room = self.room.clone().try_acquire_many_owned(bytes).ok()?;
        place.send(Message::Event(Waiting { json, _room }));
        Some(())
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
        let mut batch = Batch::default();
        let mut flushed = None;
        match first {
            Message::Event(event) => batch.add(event),
            Message::Flush(done) => flushed = Some(done),
        }
        let full = async {
            while !batch.is_full() && flushed.is_none() {
                match queue.recv().await {
                    Some(Message::Event(event)) => batch.add(event),
                    Some(Message::Flush(done)) => flushed = Some(done),
                    None => break,
                }
            }
        };
        // a batch that does not fill goes after a while
        let _ = tokio::time::timeout(WAIT, full).await;
        if !batch.events.is_empty() {
            deliver(&client, batch, &errors).await;
        }
        if let Some(done) = flushed {
            let _ = done.send(());
        }
    }
}

/// Events that are sent together.
#[derive(Default)]
struct Batch {
    events: Vec<Waiting>,
    bytes: usize,
}

impl Batch {
    fn add(&mut self, event: Waiting) {
        self.bytes += event.json.len();
        self.events.push(event);
    }

    fn is_full(&self) -> bool {
        self.events.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    fn body(&self) -> Bytes {
        let head = r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;
        let mut body = String::with_capacity(head.len() + self.bytes + self.events.len() + 2);
        body.push_str(head);
        for (n, event) in self.events.iter().enumerate() {
            if n > 0 {
                body.push(',');
            }
            body.push_str(&event.json);
        }
        body.push_str("]}");
        Bytes::from(body)
    }
}

async fn deliver(client: &Client, batch: Batch, errors: &Counter) {
    let count = batch.events.len() as u64;
    let body = batch.body();
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
