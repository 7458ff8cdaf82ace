//! What davit and a monitor say to each other: frames of JSON over a unix stream socket, a length of four bytes before
//! each, descriptors attached to the first byte.

use super::{ExitRecord, RunState};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A request to the monitor. One connection carries one request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Answer with the state now and with [`Response::Exited`] when the container has ended.
    Watch,
    /// Send a signal to the first process, or with `all` to every process of the container.
    Kill {
        /// Signal number.
        signal: i32,
        /// The whole container.
        all: bool,
    },
    /// Run one more process. Without a terminal the request carries three descriptors: stdin, stdout, stderr. With
    /// one, the answer carries the terminal's master side. Closing the connection kills the process.
    Exec {
        /// Command and arguments.
        args: Vec<String>,
        /// Give it a terminal.
        tty: bool,
        /// Columns and rows of the terminal.
        size: Option<(u16, u16)>,
    },
    /// Copy input and output of the first process. The descriptors are, in this order, those that are asked for.
    /// Closing the connection detaches.
    Attach {
        /// A descriptor to read the container's input from.
        stdin: bool,
        /// A descriptor to write its output to.
        stdout: bool,
        /// A descriptor to write its standard error to.
        stderr: bool,
    },
    /// Set the size of the container's terminal.
    Resize {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
    /// Open the log file anew, after it was renamed.
    ReopenLog,
}

/// What the monitor answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    /// Done.
    Ok,
    /// The container runs.
    Running(RunState),
    /// An exec'd process runs; its ID in davit's pid namespace.
    Started {
        /// Process ID.
        pid: i32,
    },
    /// An exec'd process has ended with this code.
    Ended {
        /// Exit code; 128 + n for signal n.
        code: i32,
    },
    /// The container has ended.
    Exited(ExitRecord),
    /// The request failed.
    Failed {
        /// The process could not be started because of what the container or the caller asked for.
        start: bool,
        /// Why.
        message: String,
    },
}

/// A frame's content may not be longer; generous for command lines.
pub(crate) const MAX_FRAME: usize = 4 << 20;
/// Descriptors in one frame.
const MAX_FDS: usize = 3;

/// The bytes of a frame.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(io::Error::other)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// One `sendmsg` of as much as the socket takes; descriptors go along when there are any.
pub(crate) fn send_some(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    Ok(sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?)
}

/// One `recvmsg`; zero bytes is the end of the stream.
pub(crate) fn receive_some(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received.bytes)
}

/// Sends a whole frame on a blocking socket.
pub(crate) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = encode(message)?;
    let mut sent = 0;
    while sent < frame.len() {
        let with = if sent == 0 { fds } else { &[] };
        match send_some(&socket, &frame[sent..], with) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The length that a frame's first four bytes give.
pub(crate) fn frame_length(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > MAX_FRAME {
        Err(io::Error::other("frame too long"))
    } else {
        Ok(length)
    }
}

/// Receives a whole frame from a blocking socket. `None` at a clean end of the stream.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut fds = Vec::new();
    let mut head = [0; 4];
    if !fill(&socket, &mut head, &mut fds)? {
        return Ok(None);
    }
    let mut body = vec![0; frame_length(head)?];
    if !fill(&socket, &mut body, &mut fds)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((
        serde_json::from_slice(&body).map_err(io::Error::other)?,
        fds,
    )))
}

/// Fills the buffer; false when the stream ended before its first byte.
fn fill(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut got = 0;
    while got < buffer.len() {
        match receive_some(&socket, &mut buffer[got..], fds) {
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn frames_carry_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let (pipe_read, pipe_write) = rustix::pipe::pipe().unwrap();
        let request = Request::Exec {
            args: vec!["x".repeat(100_000)],
            tty: false,
            size: Some((80, 24)),
        };
        let sender = std::thread::spawn(move || {
            send(&a, &request, &[pipe_write.as_fd()]).unwrap();
        });
        let (request, fds) = receive::<Request>(&b).unwrap().unwrap();
        sender.join().unwrap();
        assert!(matches!(request, Request::Exec { ref args, .. } if args[0].len() == 100_000));
        rustix::io::write(&fds[0], b"hi").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(rustix::io::read(&pipe_read, &mut buffer).unwrap(), 2);
        assert!(receive::<Request>(&b).unwrap().is_none());
    }
}
