//! One stream of a session.

use super::frame::{Frame, Headers};
use crate::inbound::Inbound;
use bytes::Bytes;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

/// Largest DATA frame written.
const MAX_WRITE: usize = 32 * 1024;

/// A stream that the client opened: its headers, what it sends and what it is sent.
#[derive(Debug)]
pub struct Stream {
    headers: Headers,
    reader: StreamReader,
    writer: StreamWriter,
}

impl Stream {
    pub(super) fn new(
        id: u32,
        headers: Headers,
        reader: Inbound,
        to_peer: mpsc::Sender<Frame>,
    ) -> Self {
        Self {
            headers,
            reader: StreamReader(reader),
            writer: StreamWriter {
                id,
                to_peer: PollSender::new(to_peer),
                finished: false,
            },
        }
    }

    /// A header of the stream, by name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    /// The two directions apart.
    pub fn split(self) -> (StreamReader, StreamWriter) {
        (self.reader, self.writer)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

/// What the client sends on a stream, until it closes its side.
#[derive(Debug)]
pub struct StreamReader(Inbound);

impl AsyncRead for StreamReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

/// What the client is sent on a stream. Shutting it down closes our side; dropping it does so too if there is room.
#[derive(Debug)]
pub struct StreamWriter {
    id: u32,
    to_peer: PollSender<Frame>,
    finished: bool,
}

impl StreamWriter {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        payload: Bytes,
        fin: bool,
    ) -> Poll<io::Result<()>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.to_peer.poll_reserve(cx)).map_err(gone)?;
        let frame = Frame::Data {
            id: self.id,
            payload,
            fin,
        };
        Poll::Ready(self.to_peer.send_item(frame).map_err(gone))
    }
}

impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let piece = &buf[..buf.len().min(MAX_WRITE)];
        if piece.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_send(cx, Bytes::copy_from_slice(piece), false))?;
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            ready!(self.poll_send(cx, Bytes::new(), true))?;
            self.finished = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        if let Some(to_peer) = self.to_peer.get_ref().filter(|_| !self.finished) {
            // With a full queue the peer learns of the end when the connection closes.
            let _full = to_peer.try_send(Frame::Data {
                id: self.id,
                payload: Bytes::new(),
                fin: true,
            });
        }
    }
}
