//! One member's client address, and the connections to it.

use std::io;
use std::str::FromStr;
use std::time::Duration;

use davit_api::host_port::{host_port, without_brackets};
use davit_proto::etcd::etcdserverpb::kv_client::KvClient;
use davit_proto::etcd::etcdserverpb::lease_client::LeaseClient;
use davit_proto::etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use davit_proto::etcd::etcdserverpb::watch_client::WatchClient;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::tls::TlsFiles;

/// How long the first bytes of a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// A connection that is silent is asked for a sign of life this often …
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// … and given up without one.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);
/// How much may be on its way: lists are large.
const WINDOW: u32 = 4 << 20;

/// A client URL of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    host: String,
    port: u16,
    is_tls: bool,
}

/// The text is no client URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no URL of etcd: expected http://HOST[:PORT] or https://HOST[:PORT]")]
pub struct EndpointError {
    text: String,
}

impl FromStr for EndpointUrl {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        // No error shows a password, and nobody is to believe that one counts.
        let shown = match text.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => text.to_owned(),
        };
        let wrong = || EndpointError {
            text: shown.clone(),
        };
        if text.contains('@') {
            return Err(wrong());
        }
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(wrong)?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong());
        }
        Ok(Self {
            host: without_brackets(host).to_owned(),
            port: uri.port_u16().unwrap_or(2379),
            is_tls,
        })
    }
}

impl std::fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", host_port(&self.host, self.port))
    }
}

/// The connections to one member: one for calls, another for streams, which large answers would hold up.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) url: EndpointUrl,
    calls: Channel,
    streams: Channel,
}

/// What a connection is, encrypted or not.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

async fn connect(url: EndpointUrl, tls: TlsFiles) -> io::Result<TokioIo<Box<dyn Socket>>> {
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await?;
    stream.set_nodelay(true)?;
    if !url.is_tls {
        return Ok(TokioIo::new(Box::new(stream)));
    }
    let config = tls.read().map_err(io::Error::other)?;
    let name = ServerName::try_from(url.host).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(TokioIo::new(Box::new(stream)))
}

impl Member {
    /// Connections are made when they are used.
    pub(crate) fn new(url: EndpointUrl, tls: &TlsFiles) -> Result<Self, tonic::transport::Error> {
        let channel = || {
            // The connector does TLS itself.
            let address = url.to_string().replacen("https://", "http://", 1);
            let endpoint = Endpoint::from_shared(address)?
                .connect_timeout(CONNECT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE_ANSWER)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW);
            let (url, tls) = (url.clone(), tls.clone());
            let connector = tower::service_fn(move |_: Uri| connect(url.clone(), tls.clone()));
            Ok::<_, tonic::transport::Error>(endpoint.connect_with_connector_lazy(connector))
        };
        Ok(Self {
            calls: channel()?,
            streams: channel()?,
            url,
        })
    }

    // The size of an answer is bounded by what is asked for.
    pub(crate) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.calls.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.calls.clone())
    }

    pub(crate) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.streams.clone())
    }

    pub(crate) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.streams.clone()).max_decoding_message_size(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let shown = |text: &str| text.parse::<EndpointUrl>().map(|u| u.to_string());
        assert_eq!(shown("http://a").unwrap(), "http://a:2379");
        assert_eq!(shown(" https://10.0.0.1:1/").unwrap(), "https://10.0.0.1:1");
        assert_eq!(shown("https://[::1]:2").unwrap(), "https://[::1]:2");
        for wrong in ["", "a:1", "unix:///a", "http://", "http://a/b", "ftp://a"] {
            assert!(shown(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn users_and_passwords_are_refused_and_not_shown() {
        for url in [
            "https://root:s3cret@etcd:2379",
            "https://root@etcd",
            "s3cret@",
        ] {
            let error = url.parse::<EndpointUrl>().unwrap_err().to_string();
            assert!(
                !error.contains("s3cret") && !error.contains("root"),
                "{error}"
            );
        }
        let url: EndpointUrl = "https://[fd00::1]".parse().unwrap();
        assert_eq!(url.to_string(), "https://[fd00::1]:2379");
    }
}
