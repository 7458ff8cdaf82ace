//! davit's end of a monitor's control socket.

use crate::monitor::protocol::{self, Request, Response};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// One connection; it carries one request and its answers.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Connects through the directory's descriptor: a socket's path may be longer than the 108 bytes an address has.
    pub(super) async fn connect(path: &Path) -> io::Result<Self> {
        let dir = File::open(path.parent().unwrap_or_else(|| Path::new("/")))?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let short = Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name);
        let stream = UnixStream::connect(short).await?;
        Ok(Connection { stream })
    }

    /// Takes over our end of a socket pair.
    pub(super) fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: UnixStream::from_std(stream)?,
        })
    }

    /// Sends the request with its descriptors.
    pub(super) async fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let frame = protocol::encode(request)?;
        let mut sent = 0;
        while sent < frame.len() {
            let with = if sent == 0 { fds } else { &[] };
            let send = || protocol::send_some(&self.stream, &frame[sent..], with);
            sent += self.stream.async_io(Interest::WRITABLE, send).await?;
        }
        Ok(())
    }

    /// The next answer; `None` when the monitor closed the connection.
    pub(super) async fn receive(&mut self) -> io::Result<Option<(Response, Vec<OwnedFd>)>> {
        let mut fds = Vec::new();
        let mut head = [0; 4];
        if !self.fill(&mut head, &mut fds).await? {
            return Ok(None);
        }
        let mut body = vec![0; protocol::frame_length(head)?];
        if !self.fill(&mut body, &mut fds).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some((
            serde_json::from_slice(&body).map_err(io::Error::other)?,
            fds,
        )))
    }

    async fn fill(&mut self, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
        let mut got = 0;
        while got < buffer.len() {
            let stream = &self.stream;
            let rest = &mut buffer[got..];
            let count = stream
                .async_io(Interest::READABLE, || {
                    protocol::receive_some(stream, rest, fds)
                })
                .await;
            match count {
                Ok(0) if got == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset && got == 0 => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
