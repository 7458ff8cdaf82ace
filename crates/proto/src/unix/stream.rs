//! A unix connection whose incoming header blocks are repaired on the way.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, UdsConnectInfo};

use super::authority::Repair;
use super::seats::Seat;

const READ_SIZE: usize = 16 * 1024;

/// An accepted connection. Reads yield the client's bytes with every unusable `:authority`
/// replaced by `localhost`; writes pass through. Reads fail once the server is told to stop
/// for good, or another client needs the place more, which ends the connection's task.
pub struct Repaired {
    inner: UnixStream,
    repair: Repair,
    buffer: Box<[u8]>,
    ready: BytesMut,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    seat: Option<Seat>,
}

impl Repaired {
    /// Wraps a connection as accepted; nothing may have been read from it yet.
    pub fn new(inner: UnixStream) -> Self {
        Self::with(inner, CancellationToken::new(), None)
    }

    pub(super) fn with_seat(inner: UnixStream, seat: Seat) -> Self {
        Self::with(inner, seat.end().clone(), Some(seat))
    }

    fn with(inner: UnixStream, stop: CancellationToken, seat: Option<Seat>) -> Self {
        Self {
            inner,
            repair: Repair::new(),
            buffer: vec![0; READ_SIZE].into_boxed_slice(),
            ready: BytesMut::new(),
            stop: Box::pin(stop.cancelled_owned()),
            seat,
        }
    }
}

impl AsyncRead for Repaired {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            if this.stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let mut chunk = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(seat) = &this.seat {
                seat.heard();
            }
            this.repair
                .push(chunk.filled(), &mut this.ready)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
        let n = buf.remaining().min(this.ready.len());
        buf.put_slice(&this.ready.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Repaired {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

impl Connected for Repaired {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.inner.connect_info()
    }
}
