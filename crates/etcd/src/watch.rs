//! Watches. A task reads what etcd sends, and opens the watch again where it was when the stream breaks.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use davit_proto::etcd::etcdserverpb::watch_client::WatchClient;
use davit_proto::etcd::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, watch_request,
};
use davit_proto::etcd::mvccpb::{Event, event};
use davit_store::{Change, Error, Result, WatchEvent, WatchSource, WatchStream};
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use crate::parts::EtcdParts;

/// A member that says nothing of how far a watch is is asked again after this time: it is silent while history is read.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Between attempts to open a watch.
const RETRY: Duration = Duration::from_millis(100);
/// How long opening a stream may take.
const OPEN: Duration = Duration::from_secs(5);
/// Requests that may wait on a stream.
const REQUESTS: usize = 8;

/// What a watch and its task share.
#[derive(Default)]
struct Link {
    /// The revision that progress was asked for; zero when it is not.
    wanted: AtomicU64,
    asked: Notify,
    /// Why the watch ended, for its consumer to read last.
    last_word: Mutex<Option<Error>>,
}

struct Source {
    changes: mpsc::Receiver<WatchEvent>,
    link: Arc<Link>,
    parts: Arc<EtcdParts>,
    /// Reads the stream; ends with the watch.
    _reader: AbortOnDropHandle<()>,
}

impl Source {
    /// What comes when nobody reads the stream any more: why, once. A closed store needs no reason.
    fn last_word(&self) -> Option<Error> {
        let word = self.link.last_word.lock().replace(Error::Closed);
        match word {
            Some(Error::Closed) => None,
            None if self.parts.closed.is_cancelled() => None,
            None => Some(Error::Unavailable("a watch of etcd ended".to_owned())),
            word => word,
        }
    }
}

impl Stream for Source {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.changes.poll_recv(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(Some(Ok(event))),
            Poll::Ready(None) => Poll::Ready(self.last_word().map(Err)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl WatchSource for Source {
    fn request_progress(&mut self) {
        // Zero stands for none.
        let newest = self.parts.cluster.seen().max(1);
        self.link.wanted.fetch_max(newest, Ordering::AcqRel);
        self.link.asked.notify_one();
    }
}

/// Opens a watch of what begins with `prefix` and comes after a revision.
pub(crate) fn open(parts: &Arc<EtcdParts>, prefix: &str, after: u64) -> Result<WatchStream> {
    if parts.closed.is_cancelled() {
        return Err(Error::Closed);
    }
    if after < parts.oldest() {
        return Err(Error::Compacted {
            requested: after,
            oldest: parts.oldest(),
        });
    }
    let link = Arc::new(Link::default());
    let (sender, changes) = mpsc::channel(parts.watch_buffer);
    let (key, range_end) = parts.layout.range(prefix, None);
    let reader = Reader {
        parts: Arc::clone(parts),
        link: Arc::clone(&link),
        prefix: prefix.to_owned(),
        key,
        range_end,
        last: after,
        sender,
    };
    let closed = parts.closed.clone();
    let reader = tokio::spawn(async move {
        tokio::select! {
            () = closed.cancelled() => {}
            () = reader.run() => {}
        }
    });
    Ok(WatchStream::new(Source {
        changes,
        link,
        parts: Arc::clone(parts),
        _reader: AbortOnDropHandle::new(reader),
    }))
}

/// The oldest revision that is readable, asked for as only a watch is told it. `None` if no answer comes in time.
pub(crate) async fn oldest(parts: &EtcdParts) -> Option<u64> {
    let key = parts.layout.empty();
    let member = parts.cluster.member().clone();
    let asked = async {
        let (requests, outgoing) = mpsc::channel(1);
        let create = watch_request::RequestUnion::CreateRequest(WatchCreateRequest {
            key,
            start_revision: 1,
            ..WatchCreateRequest::default()
        });
        let create = WatchRequest {
            request_union: Some(create),
        };
        requests.send(create).await.ok()?;
        let mut stream = opened(member.watch(), outgoing).await.ok()?;
        while let Some(answer) = stream.message().await.ok()? {
            if answer.compact_revision != 0 {
                return u64::try_from(answer.compact_revision).ok();
            }
        }
        None
    };
    timeout(OPEN, asked).await.ok().flatten()
}

/// Why reading a stream ended.
enum End {
    /// The stream broke: once more from where it was.
    Broken(String),
    /// The watch is over, with this word to its consumer.
    Over(Error),
}

struct Reader {
    parts: Arc<EtcdParts>,
    link: Arc<Link>,
    prefix: String,
    key: Bytes,
    range_end: Bytes,
    /// All changes up to this revision were passed on.
    last: u64,
    sender: mpsc::Sender<WatchEvent>,
}

impl Reader {
    async fn run(mut self) {
        loop {
            let member = self.parts.cluster.member().clone();
            let Err(end) = self.read(member.watch()).await;
            match end {
                End::Broken(why) => {
                    tracing::debug!(prefix = self.prefix, member = %member.url, why, "a watch of etcd is opened again");
                    self.parts.cluster.pass_over(&member);
                    sleep(RETRY).await;
                }
                End::Over(error) => {
                    *self.link.last_word.lock() = Some(error);
                    return;
                }
            }
        }
    }

    /// Reads one stream until it ends.
    async fn read(&mut self, client: WatchClient<Channel>) -> std::result::Result<Infallible, End> {
        let broken = |why: &str| End::Broken(why.to_owned());
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        let create = WatchCreateRequest {
            key: self.key.clone(),
            range_end: self.range_end.clone(),
            start_revision: (self.last + 1).cast_signed(),
            progress_notify: true,
            prev_kv: true,
        };
        let create = watch_request::RequestUnion::CreateRequest(create);
        let first = requests.try_send(WatchRequest {
            request_union: Some(create),
        });
        first.map_err(|_| broken("no room for the request"))?;
        let opening = timeout(OPEN, opened(client, outgoing)).await;
        let opening = opening.map_err(|_| broken("no answer in time"))?;
        let mut stream = opening.map_err(|status| broken(status.message()))?;
        let mut is_created = false;
        loop {
            // A member answers only for watches that it has made.
            let mut asks = is_created && self.link.wanted.load(Ordering::Acquire) != 0;
            if asks {
                asks = !self.answer_here()?;
            }
            if asks {
                let ask = watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {});
                // One that waits there is as good.
                let _asked = requests.try_send(WatchRequest {
                    request_union: Some(ask),
                });
            }
            let answer = tokio::select! {
                answer = stream.message() => answer,
                () = self.link.asked.notified() => continue,
                () = sleep(ASK_AGAIN), if asks => continue,
            };
            let answer = answer.map_err(|status| broken(status.message()))?;
            let answer = answer.ok_or_else(|| broken("the stream ended"))?;
            is_created |= answer.created;
            self.take(answer)?;
        }
    }

    fn take(&mut self, answer: WatchResponse) -> std::result::Result<(), End> {
        if answer.canceled {
            if answer.compact_revision != 0 {
                let oldest = u64::try_from(answer.compact_revision)
                    .map_err(|_| End::Broken("a revision below zero".to_owned()))?;
                self.parts.forget_before(oldest);
                return Err(End::Over(Error::Compacted {
                    requested: self.last,
                    oldest,
                }));
            }
            return Err(End::Broken(answer.cancel_reason));
        }
        let noted = self.parts.cluster.note(answer.header.as_ref(), 0);
        let revision = noted.map_err(End::Broken)?;
        let floor = self.last;
        let is_progress = answer.events.is_empty() && !answer.created;
        for event in answer.events {
            // A member that is behind may repeat itself.
            if let Some(change) = self.change(event).filter(|change| change.revision > floor) {
                self.last = change.revision;
                self.pass_on(WatchEvent::Change(Arc::new(change)))?;
            }
        }
        if is_progress {
            // A stream that breaks is opened again from here, however long ago the last change was.
            self.last = self.last.max(revision);
            self.progress(revision)?;
        }
        Ok(())
    }

    /// Answers a request for progress where the watch is as far as was asked for. etcd does not: it is silent about a
    /// watch that begins behind its newest revision, which in an idle cluster is every new one.
    fn answer_here(&mut self) -> std::result::Result<bool, End> {
        let wanted = self.link.wanted.load(Ordering::Acquire);
        if wanted > self.last || self.last > self.parts.cluster.seen() {
            return Ok(false);
        }
        self.progress(self.last)?;
        Ok(true)
    }

    /// Says how far the watch is; a request that came meanwhile for more than that stays.
    fn progress(&mut self, revision: u64) -> std::result::Result<(), End> {
        self.pass_on(WatchEvent::Progress(revision))?;
        let wanted = self.link.wanted.load(Ordering::Acquire);
        if revision >= wanted {
            let _newer =
                self.link
                    .wanted
                    .compare_exchange(wanted, 0, Ordering::AcqRel, Ordering::Acquire);
        }
        Ok(())
    }

    fn pass_on(&mut self, event: WatchEvent) -> std::result::Result<(), End> {
        self.sender.try_send(event).map_err(|error| {
            End::Over(match error {
                mpsc::error::TrySendError::Closed(_) => Error::Closed,
                mpsc::error::TrySendError::Full(_) => Error::Overflow {
                    prefix: self.prefix.clone(),
                    limit: self.parts.watch_buffer,
                },
            })
        })
    }

    fn change(&self, event: Event) -> Option<Change> {
        let is_delete = event.r#type() == event::EventType::Delete;
        let layout = &self.parts.layout;
        let pair = event.kv?;
        Some(Change {
            revision: u64::try_from(pair.mod_revision).ok()?,
            key: layout.own_key(&pair.key)?,
            previous: event.prev_kv.and_then(|pair| layout.pair(pair)),
            current: if is_delete { None } else { layout.pair(pair) },
        })
    }
}

async fn opened(
    mut client: WatchClient<Channel>,
    outgoing: mpsc::Receiver<WatchRequest>,
) -> std::result::Result<Streaming<WatchResponse>, Status> {
    let mut request = Request::new(ReceiverStream::new(outgoing));
    // A member that has lost its leader ends the stream instead of being silent.
    let metadata = request.metadata_mut();
    metadata.insert("hasleader", MetadataValue::from_static("true"));
    Ok(client.watch(request).await?.into_inner())
}
