//! What a client has sent and nobody has read yet.

use bytes::{Buf, Bytes};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Chunks that wait on one stream.
pub(crate) const QUEUE: usize = 32;
/// Bytes that wait on all streams of a session; a single chunk may have more.
pub(crate) const ROOM: u32 = 1 << 20;

/// The room of a session. Whoever opens very many streams has no more of it than with one.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

/// A chunk with its part of the room, until it has been read.
#[derive(Debug)]
pub(crate) struct Chunk {
    bytes: Bytes,
    _held: OwnedSemaphorePermit,
}

/// Puts chunks where the reader of a stream finds them.
pub(crate) type Feed = mpsc::Sender<Chunk>;

impl Room {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM as usize)))
    }

    /// Hands a chunk to a reader, when there is room for it; false when nobody reads there any more.
    pub(crate) async fn hand_on(&self, bytes: Bytes, feed: &Feed) -> bool {
        let wanted = u32::try_from(bytes.len()).map_or(ROOM, |len| len.min(ROOM));
        // A reader that goes frees what it held, but one that has gone needs no room at all.
        let held = tokio::select! {
            biased;
            () = feed.closed() => return false,
            held = self.0.clone().acquire_many_owned(wanted) => held,
        };
        let Ok(_held) = held else { return false };
        feed.send(Chunk { bytes, _held }).await.is_ok()
    }
}

/// A feed and its reader.
pub(crate) fn stream() -> (Feed, Inbound) {
    let (feed, chunks) = mpsc::channel(QUEUE);
    (
        feed,
        Inbound {
            chunks,
            current: None,
        },
    )
}

/// What the client sends on one stream.
#[derive(Debug)]
pub(crate) struct Inbound {
    chunks: mpsc::Receiver<Chunk>,
    current: Option<Chunk>,
}

impl Inbound {
    /// The next whole chunk; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Option<Bytes> {
        self.chunks.recv().await.map(|chunk| chunk.bytes)
    }
}

impl AsyncRead for Inbound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let chunk = match &mut this.current {
            Some(chunk) => chunk,
            none => match ready!(this.chunks.poll_recv(cx)) {
                Some(chunk) => none.insert(chunk),
                None => return Poll::Ready(Ok(())),
            },
        };
        let length = chunk.bytes.len().min(buf.remaining());
        buf.put_slice(&chunk.bytes[..length]);
        chunk.bytes.advance(length);
        if chunk.bytes.is_empty() {
            this.current = None;
        }
        Poll::Ready(Ok(()))
    }
}
