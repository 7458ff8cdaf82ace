//! Making connections: which address, with or without TLS, and Go's words when it fails.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use davit_api::host_port::{host_port, without_brackets};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::Uri;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ServiceEndpoints;
use crate::reach::is_refusal;

/// One address is given up after this long; the call's own time may end sooner.
const CONNECT: Duration = Duration::from_secs(30);
/// A server that takes nothing for this long is given up: whoever waited for it has gone, and nothing else ends a connection
/// with something left to be written.
const UNTAKEN: Duration = Duration::from_secs(60);
const HTTPS: u16 = 443;
const HTTP: u16 = 80;

/// Which address a client dials.
#[derive(Debug, Clone)]
pub enum Dial {
    /// The one in the URL.
    Direct,
    /// A ready endpoint of a service.
    Service {
        /// Where services are looked up.
        services: Arc<dyn ServiceEndpoints>,
        /// The service's namespace.
        namespace: String,
        /// The service.
        name: String,
        /// The service's port.
        port: u16,
    },
}

/// A [`Connector`] whose connections end when their server takes nothing for a minute.
pub type WithinLimits = TimeoutConnector<Connector>;

/// Connects for the HTTP client.
#[derive(Clone)]
pub struct Connector {
    dial: Dial,
    tls: Option<Arc<ClientConfig>>,
    server_name: Option<String>,
}

impl Connector {
    /// Dials `dial`, with TLS if there is a configuration of it; `server_name` is the name the certificate must have,
    /// if it is not the host of the URL.
    pub fn new(dial: Dial, tls: Option<Arc<ClientConfig>>, server_name: Option<String>) -> Self {
        Self {
            dial,
            tls,
            server_name,
        }
    }

    /// With the limit that connections have.
    pub fn within_limits(self) -> WithinLimits {
        let mut limited = TimeoutConnector::new(self);
        limited.set_write_timeout(Some(UNTAKEN));
        limited
    }

    async fn connect(self, uri: Uri) -> io::Result<TokioIo<Stream>> {
        let host = uri.host().unwrap_or_default();
        let host = without_brackets(host).to_owned();
        let default = if self.tls.is_some() { HTTPS } else { HTTP };
        let port = uri.port_u16().unwrap_or(default);
        let (address, port, reach) = match &self.dial {
            Dial::Direct => (host.clone(), port, None),
            Dial::Service {
                services,
                namespace,
                name,
                port,
            } => {
                let found = services.endpoint(namespace, name, *port).await;
                let (address, port) = found.map_err(io::Error::other)?;
                (address, port, Some(services.reach()))
            }
        };
        let dialled = async {
            match reach {
                Some(reach) => reach.connect(&address, port).await,
                None => TcpStream::connect((address.as_str(), port)).await,
            }
        };
        let stream = match tokio::time::timeout(CONNECT, dialled).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(dial_error(&address, port, &error)),
            Err(_) => {
                let text = format!("dial tcp {}: i/o timeout", host_port(&address, port));
                return Err(io::Error::other(text));
            }
        };
        stream.set_nodelay(true)?;
        let Some(tls) = self.tls else {
            return Ok(TokioIo::new(Stream::Plain(stream)));
        };
        let name = self.server_name.unwrap_or(host);
        let name = ServerName::try_from(name)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await?;
        Ok(TokioIo::new(Stream::Tls(Box::new(stream))))
    }
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<TokioIo<Stream>>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        self.clone().connect(uri).boxed()
    }
}

fn dial_error(host: &str, port: u16, error: &io::Error) -> io::Error {
    let target = host_port(host, port);
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {target}: connect: connection refused")
        }
        io::ErrorKind::HostUnreachable => format!("dial tcp {target}: connect: no route to host"),
        io::ErrorKind::NetworkUnreachable => {
            format!("dial tcp {target}: connect: network is unreachable")
        }
        io::ErrorKind::TimedOut => format!("dial tcp {target}: i/o timeout"),
        _ if is_refusal(error) => format!("dial tcp {target}: {error}"),
        _ if error.raw_os_error().is_none() => {
            format!("dial tcp: lookup {host}: no such host")
        }
        _ => format!("dial tcp {target}: {error}"),
    };
    io::Error::other(text)
}

/// A failure of a connection in the words people know from Go.
pub(super) fn go_text(error: &io::Error) -> String {
    if let Some(inner) = error.get_ref() {
        if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
            return match tls {
                rustls::Error::General(text) => text.clone(),
                rustls::Error::InvalidMessage(_) => {
                    "http: server gave HTTP response to HTTPS client".to_owned()
                }
                other => format!("remote error: tls: {other}"),
            };
        }
        return inner.to_string();
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        io::ErrorKind::ConnectionReset => "read: connection reset by peer".to_owned(),
        io::ErrorKind::BrokenPipe => "write: broken pipe".to_owned(),
        _ => error.to_string(),
    }
}

/// A connection, with or without TLS.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
