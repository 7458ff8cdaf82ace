//! Processes beside the first one, and clients attached to it: descriptors travel, davit reads and writes them itself.

use super::Embedded;
use super::connection::Connection;
use super::container::Container;
use crate::monitor::protocol::{Request, Response};
use crate::runtime::{Error, ExecSession, Reader, Result, TerminalSize, Writer};
use davit_proto::cri::v1 as cri;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// How long output is waited for after the process itself has ended (children may hold the pipe).
const DRAIN: Duration = Duration::from_secs(2);
/// Without a limit of its own a synchronous command may run this long.
const SYNC_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// davit's side of a terminal.
struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Terminal(crate::sys::async_fd(fd)?))
    }
}

impl AsyncRead for Terminal {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            match guard.try_io(|fd| Ok(rustix::io::read(fd, buffer.initialize_unfilled())?)) {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // The last process that had the terminal open is gone: the end.
                Ok(Err(error)) if error.raw_os_error() == Some(nix::libc::EIO) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for Terminal {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| Ok(rustix::io::write(fd, bytes)?)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn pipe_error(error: impl Into<io::Error>) -> Error {
    Error::Internal(format!("pipe: {}", error.into()))
}

/// A pipe that the other side writes to.
fn output_pipe() -> Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(pipe_error)?;
    Ok((
        pipe::Receiver::from_owned_fd(read).map_err(pipe_error)?,
        write,
    ))
}

/// A pipe that the other side reads from.
fn input_pipe() -> Result<(pipe::Sender, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(pipe_error)?;
    Ok((
        pipe::Sender::from_owned_fd(write).map_err(pipe_error)?,
        read,
    ))
}

fn null() -> Result<OwnedFd> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(pipe_error)?;
    Ok(null.into())
}

/// Waits for the end that the connection announces.
async fn ended(connection: &mut Connection) -> Result<i32> {
    loop {
        match connection.receive().await {
            Ok(Some((Response::Ended { code }, _))) => return Ok(code),
            Ok(Some((Response::Exited(record), _))) => return Ok(record.code),
            Ok(Some(_)) => {}
            Ok(None) => return Err(Error::Internal("the container's monitor ended".to_owned())),
            Err(error) => return Err(Error::Internal(format!("the container's monitor: {error}"))),
        }
    }
}

/// Reads to the end and keeps so many bytes; more is dropped, so that the writer goes on.
async fn collect(mut source: pipe::Receiver, into: &mut Vec<u8>, kept: usize) -> io::Result<()> {
    let mut buffer = vec![0; 8 * 1024];
    loop {
        let count = source.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let room = kept - into.len();
        into.extend_from_slice(&buffer[..count.min(room)]);
    }
}

impl Embedded {
    pub(super) async fn run_sync(
        &self,
        container: &Container,
        command: Vec<String>,
        limit: Duration,
        kept: usize,
    ) -> Result<cri::ExecSyncResponse> {
        let after = if limit.is_zero() { SYNC_LIMIT } else { limit };
        let deadline = Instant::now() + after;
        let (stdout, their_stdout) = output_pipe()?;
        let (stderr, their_stderr) = output_pipe()?;
        let their_stdin = null()?;
        let request = Request::Exec {
            args: command,
            tty: false,
            size: None,
        };
        let fds = [
            their_stdin.as_fd(),
            their_stdout.as_fd(),
            their_stderr.as_fd(),
        ];
        let (_, _, mut connection) = container.request(&request, &fds).await?;
        drop((their_stdin, their_stdout, their_stderr));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = {
            let reading = async {
                tokio::join!(
                    collect(stdout, &mut out, kept),
                    collect(stderr, &mut err, kept)
                )
            };
            tokio::pin!(reading);
            let mut read = false;
            let ended = ended(&mut connection);
            tokio::pin!(ended);
            let code = loop {
                tokio::select! {
                    code = timeout_at(deadline, &mut ended) => break code,
                    _ = &mut reading, if !read => read = true,
                }
            };
            // Dropping the connection on a timeout kills the process.
            let code = code.map_err(|_| Error::DeadlineExceeded {
                call: "ExecSync",
                after,
            })??;
            if !read {
                let _ = timeout(DRAIN, &mut reading).await;
            }
            code
        };
        Ok(cri::ExecSyncResponse {
            stdout: out,
            stderr: err,
            exit_code: code,
        })
    }

    pub(super) async fn run_exec(
        &self,
        container: &Container,
        request: cri::ExecRequest,
    ) -> Result<ExecSession> {
        if request.cmd.is_empty() {
            return Err(Error::InvalidArgument("exec without a command".to_owned()));
        }
        let message = Request::Exec {
            args: request.cmd,
            tty: request.tty,
            size: None,
        };
        if request.tty {
            let (_, fds, connection) = container.request(&message, &[]).await?;
            let master = fds
                .into_iter()
                .next()
                .ok_or_else(|| Error::Internal("exec without a terminal".to_owned()))?;
            return terminal_session(master, request.stdin, connection);
        }
        let (stdin, their_stdin) = if request.stdin {
            let (ours, theirs) = input_pipe()?;
            (Some(Box::new(ours) as Writer), theirs)
        } else {
            (None, null()?)
        };
        let output = |wanted: bool| -> Result<(Option<Reader>, OwnedFd)> {
            if !wanted {
                return Ok((None, null()?));
            }
            let (ours, theirs) = output_pipe()?;
            Ok((Some(Box::new(ours) as Reader), theirs))
        };
        let (stdout, their_stdout) = output(request.stdout)?;
        let (stderr, their_stderr) = output(request.stderr)?;
        let fds = [
            their_stdin.as_fd(),
            their_stdout.as_fd(),
            their_stderr.as_fd(),
        ];
        let (_, _, mut connection) = container.request(&message, &fds).await?;
        let exit = Box::pin(async move { ended(&mut connection).await });
        Ok(ExecSession {
            stdin,
            stdout,
            stderr,
            resize: None,
            exit,
        })
    }

    pub(super) async fn run_attach(
        &self,
        container: &Arc<Container>,
        request: cri::AttachRequest,
    ) -> Result<ExecSession> {
        let config = container.record().config.0;
        let stderr_wanted = request.stderr && !config.tty;
        let mut theirs = Vec::new();
        let stdin = if request.stdin && (config.stdin || config.tty) {
            let (ours, fd) = input_pipe()?;
            theirs.push(fd);
            Some(Box::new(ours) as Writer)
        } else {
            None
        };
        let mut output = |wanted: bool| -> Result<Option<Reader>> {
            if !wanted {
                return Ok(None);
            }
            let (ours, fd) = output_pipe()?;
            theirs.push(fd);
            Ok(Some(Box::new(ours) as Reader))
        };
        let stdout = output(request.stdout)?;
        let stderr = output(stderr_wanted)?;
        let message = Request::Attach {
            stdin: stdin.is_some(),
            stdout: stdout.is_some(),
            stderr: stderr.is_some(),
        };
        let fds: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
        let (_, _, mut connection) = container.request(&message, &fds).await?;
        let (resize, mut sizes) = mpsc::channel::<TerminalSize>(4);
        let container = container.clone();
        let exit = Box::pin(async move {
            let ended = ended(&mut connection);
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    code = &mut ended => return code,
                    Some(TerminalSize { width, height }) = sizes.recv() => {
                        // A container that has just ended has no size any more.
                        let _ = container.request(&Request::Resize { width, height }, &[]).await;
                    }
                }
            }
        });
        Ok(ExecSession {
            stdin,
            stdout,
            stderr,
            resize: config.tty.then_some(resize),
            exit,
        })
    }
}

fn terminal_session(
    master: OwnedFd,
    stdin: bool,
    mut connection: Connection,
) -> Result<ExecSession> {
    let copy = || master.try_clone().map_err(pipe_error);
    let stdout = Terminal::new(copy()?).map_err(pipe_error)?;
    let stdin = if stdin {
        Some(Box::new(Terminal::new(copy()?).map_err(pipe_error)?) as Writer)
    } else {
        None
    };
    let (resize, mut sizes) = mpsc::channel::<TerminalSize>(4);
    let exit = Box::pin(async move {
        let ended = ended(&mut connection);
        tokio::pin!(ended);
        loop {
            tokio::select! {
                code = &mut ended => return code,
                Some(TerminalSize { width, height }) = sizes.recv() => {
                    let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
                    let _ = tcsetwinsize(&master, size);
                }
            }
        }
    });
    Ok(ExecSession {
        stdin,
        stdout: Some(Box::new(stdout)),
        stderr: None,
        resize: Some(resize),
        exit,
    })
}
