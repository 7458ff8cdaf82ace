//! Exec and attach: standard streams, terminal size and the exit status over one connection.

mod exit;

pub use exit::ExitStatus;

use crate::inbound::Inbound;
use crate::upgrade::{Agreed, Framing, negotiate, switching_protocols};
use crate::websocket::{Channels, Encoding};
use crate::{Body, Error, Reader, UpgradeError, Writer, spdy};
use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::future::Future;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

const SPDY_PROTOCOLS: [&str; 4] = [
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];
const WEBSOCKET_PROTOCOLS: [&str; 10] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "v5.base64.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "v3.base64.channel.k8s.io",
    "v2.base64.channel.k8s.io",
    "base64.channel.k8s.io",
];
/// How long a client may take to open its streams, as upstream.
const STREAM_CREATION: Duration = Duration::from_secs(30);
/// How long a client may take to close the connection once everything is said.
const CLOSING: Duration = Duration::from_secs(10);
/// How long output may take to end after the process has: a child that inherited it could hold it open for ever.
const DRAIN: Duration = Duration::from_secs(5);
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Which streams a request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streams {
    /// The client sends standard input.
    pub stdin: bool,
    /// The client wants standard output.
    pub stdout: bool,
    /// The client wants standard error (never with a terminal).
    pub stderr: bool,
    /// The process has a terminal.
    pub tty: bool,
}

/// Terminal size in character cells, as clients send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The ends of the process that a session is joined with; `None` for what was not asked for.
pub struct Process<F> {
    /// Takes standard input; dropped when the client has sent all.
    pub stdin: Option<Writer>,
    /// Standard output, or the terminal's output.
    pub stdout: Option<Reader>,
    /// Standard error.
    pub stderr: Option<Reader>,
    /// Takes terminal sizes.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Whether the process goes on without its client, and is waited for. What was there before him is left alone.
    pub outlives_client: bool,
    /// Resolves when the process has ended.
    pub exit: F,
}

/// A negotiated session whose connection is not upgraded yet.
#[derive(Debug)]
pub struct Pending {
    agreed: Agreed,
    streams: Streams,
    upgrade: OnUpgrade,
}

/// Negotiates a session for a request. The response is to be sent at once; the session begins when the server has
/// upgraded the connection.
///
/// # Errors
/// [`UpgradeError`] when the request is no upgrade or offers no protocol that is served.
pub fn negotiate_session<B>(
    request: &mut Request<B>,
    streams: Streams,
) -> Result<(Response<Body>, Pending), UpgradeError> {
    let agreed = negotiate(request.headers(), &SPDY_PROTOCOLS, &WEBSOCKET_PROTOCOLS)?;
    let response = switching_protocols(request.headers(), &agreed)?;
    let upgrade = hyper::upgrade::on(request);
    Ok((
        response,
        Pending {
            agreed,
            streams,
            upgrade,
        },
    ))
}

impl Pending {
    /// Gives the connection back to the request, for a server that passes it on instead.
    pub fn release<B>(self, request: &mut Request<B>) {
        request.extensions_mut().insert(self.upgrade);
    }

    /// Waits for the upgrade and for the client's streams.
    ///
    /// # Errors
    /// [`Error::NotUpgraded`] and [`Error::MissingStreams`].
    pub async fn accept(self) -> Result<Session, Error> {
        let io = TokioIo::new(self.upgrade.await.map_err(Error::NotUpgraded)?);
        let protocol = self.agreed.protocol.as_str();
        let structured = matches!(protocol.split('.').next(), Some("v4" | "v5"));
        match self.agreed.framing {
            Framing::WebSocket => {
                let encoding = if protocol.contains("base64") {
                    Encoding::Base64
                } else {
                    Encoding::Binary
                };
                Ok(Session::over_channels(
                    Channels::serve(io, 5, encoding),
                    self.streams,
                    structured,
                ))
            }
            Framing::Spdy => {
                let resizes = matches!(protocol.split('.').next(), Some("v3" | "v4"));
                Session::over_spdy(spdy::Session::serve(io), self.streams, structured, resizes)
                    .await
            }
        }
    }
}

enum Connection {
    Spdy(spdy::Session),
    Channels(Channels),
}

impl Connection {
    /// Waits until the client has gone.
    async fn lost(&self) {
        match self {
            Self::Spdy(session) => session.lost().await,
            Self::Channels(channels) => channels.lost().await,
        }
    }
}

/// An established session.
pub struct Session {
    stdin: Option<Reader>,
    /// Our side of the client's stdin stream. A client that sees it closed sends nothing more, so it stays open to the end.
    stdin_reply: Option<spdy::StreamWriter>,
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    resize: Option<Resizes>,
    error: Writer,
    /// Whether the client understands a Status on the error stream (protocol v4 and later).
    structured: bool,
    connection: Connection,
}

enum Resizes {
    Messages(Inbound),
    Stream(spdy::Stream),
}

impl Session {
    fn over_channels(mut channels: Channels, streams: Streams, structured: bool) -> Self {
        let reader = |wanted: bool, channel, channels: &mut Channels| {
            channels.reader(channel).filter(|_| wanted)
        };
        let stdin = reader(streams.stdin, STDIN, &mut channels);
        let resize = reader(streams.tty, RESIZE, &mut channels);
        channels.ignore_others();
        let writer =
            |wanted: bool, channel| wanted.then(|| Box::new(channels.writer(channel)) as Writer);
        Self {
            stdin: stdin.map(|r| Box::new(r) as Reader),
            stdin_reply: None,
            stdout: writer(streams.stdout, STDOUT),
            stderr: writer(streams.stderr && !streams.tty, STDERR),
            resize: resize.map(Resizes::Messages),
            error: Box::new(channels.writer(ERROR)),
            structured,
            connection: Connection::Channels(channels),
        }
    }

    async fn over_spdy(
        mut session: spdy::Session,
        wanted: Streams,
        structured: bool,
        resizes: bool,
    ) -> Result<Self, Error> {
        let stderr = wanted.stderr && !wanted.tty;
        let resizes = resizes && wanted.tty;
        let expected = 1
            + usize::from(wanted.stdin)
            + usize::from(wanted.stdout)
            + usize::from(stderr)
            + usize::from(resizes);
        let (mut stdin, mut stdout, mut err, mut resize, mut error) =
            (None, None, None, None, None);
        let mut got = 0;
        let collect = async {
            while got < expected {
                let Some(stream) = session.accept().await else {
                    break;
                };
                let slot = match stream.header("streamType") {
                    Some("stdin") => &mut stdin,
                    Some("stdout") => &mut stdout,
                    Some("stderr") => &mut err,
                    Some("resize") => &mut resize,
                    Some("error") => &mut error,
                    other => {
                        tracing::debug!(stream_type = other, "stream of an unknown type ignored");
                        continue;
                    }
                };
                *slot = Some(stream);
                got += 1;
            }
        };
        // Running into the deadline leaves `got` below `expected`, which is reported below.
        let _in_time = tokio::time::timeout(STREAM_CREATION, collect).await;
        let Some(error) = error.filter(|_| got == expected) else {
            return Err(Error::MissingStreams {
                got,
                expected,
                after: STREAM_CREATION,
            });
        };
        let (stdin, stdin_reply) = stdin.map(spdy::Stream::split).unzip();
        Ok(Self {
            stdin: stdin.map(|s| Box::new(s) as Reader),
            stdin_reply,
            stdout: stdout.map(|s| Box::new(s.split().1) as Writer),
            stderr: err.map(|s| Box::new(s.split().1) as Writer),
            resize: resize.map(Resizes::Stream),
            error: Box::new(error.split().1),
            structured,
            connection: Connection::Spdy(session),
        })
    }

    /// Joins the session with a process until the process has ended and its output is delivered, then reports how it
    /// ended and closes the connection; or until the client has gone, who is not missed by a process that says nothing.
    pub async fn join<F>(self, process: Process<F>)
    where
        F: Future<Output = ExitStatus>,
    {
        let Self {
            stdin,
            stdin_reply,
            stdout,
            stderr,
            resize,
            mut error,
            structured,
            connection,
        } = self;
        let input = spawn_copy(stdin, process.stdin);
        let sizes = resize
            .zip(process.resize)
            .map(|(from, to)| AbortOnDropHandle::new(tokio::spawn(forward_sizes(from, to))));
        let outputs =
            async { tokio::join!(copy(process.stdout, stdout), copy(process.stderr, stderr)) };
        let mut outputs = Box::pin(outputs);
        let mut exit = std::pin::pin!(process.exit);
        let mut delivered = false;
        let status = loop {
            tokio::select! {
                status = &mut exit => {
                    if !delivered && tokio::time::timeout(DRAIN, &mut outputs).await.is_err() {
                        tracing::debug!("output stayed open after the process ended");
                    }
                    break Some(status);
                }
                _ = &mut outputs, if !delivered => delivered = true,
                () = connection.lost() => break None,
            }
        };
        // With the last writer gone the connection can be closed, whoever still holds the output of the process.
        drop((input, stdin_reply, sizes, outputs));
        let Some(status) = status else {
            drop((error, connection));
            if process.outlives_client {
                let _nobody_asks = exit.await;
            }
            return;
        };
        let text = status.message(structured);
        if !text.is_empty()
            && let Err(failure) = error.write_all(text.as_bytes()).await
        {
            tracing::debug!(%failure, "exit status not delivered");
        }
        // Ending the error stream tells the client that nothing more comes.
        let _closed = error.shutdown().await;
        drop(error);
        match connection {
            Connection::Spdy(session) => session.close(CLOSING).await,
            Connection::Channels(channels) => channels.close(CLOSING).await,
        }
    }

    /// Reports that the process could not be started, and closes the connection.
    pub async fn fail(self, status: ExitStatus) {
        let nothing = Process {
            stdin: None,
            stdout: None,
            stderr: None,
            resize: None,
            outlives_client: false,
            exit: async { status },
        };
        self.join(nothing).await;
    }
}

fn spawn_copy(from: Option<Reader>, to: Option<Writer>) -> Option<AbortOnDropHandle<()>> {
    from.zip(to)
        .map(|(from, to)| AbortOnDropHandle::new(tokio::spawn(copy(Some(from), Some(to)))))
}

/// Copies until either side ends, then closes the sink.
async fn copy(from: Option<Reader>, to: Option<Writer>) {
    let (Some(mut from), Some(mut to)) = (from, to) else {
        return;
    };
    if let Err(error) = tokio::io::copy(&mut from, &mut to).await {
        tracing::debug!(%error, "stream ended early");
    }
    // The sink may be gone already, which is what closing it is for.
    let _closed = to.shutdown().await;
}

async fn forward_sizes(from: Resizes, to: mpsc::Sender<TerminalSize>) {
    match from {
        Resizes::Messages(mut messages) => {
            while let Some(message) = messages.chunk().await {
                if !send_sizes(&message, &to).await {
                    return;
                }
            }
        }
        Resizes::Stream(mut stream) => {
            let mut text = Vec::new();
            // Sizes come as JSON documents one after another; each fits one small frame.
            while let Ok(read) = stream.read_buf(&mut text).await {
                if read == 0 || text.len() > 4096 || !send_sizes(&text, &to).await {
                    return;
                }
                if text.trim_ascii_end().ends_with(b"}") {
                    text.clear();
                }
            }
        }
    }
}

/// Whether the receiver still listens.
async fn send_sizes(text: &[u8], to: &mpsc::Sender<TerminalSize>) -> bool {
    for size in serde_json::Deserializer::from_slice(text)
        .into_iter::<TerminalSize>()
        .map_while(Result::ok)
    {
        if to.send(size).await.is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
