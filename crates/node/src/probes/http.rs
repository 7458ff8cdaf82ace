//! A GET over a connection into a pod. Certificates are not verified, as in the original: the pod is known by where it
//! is, not by its name.

use bytes::{Bytes, BytesMut};
use davit_api::host_port::without_brackets;
use davit_oci::runtime::PodConnection;
use davit_webhook::tls::{Trust, client_config};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::{Arc, LazyLock};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

/// As much of a body is kept as the kubelet keeps.
pub(crate) const BODY: usize = 10 * 1024;

/// As much as a pod sends for one answer: heads, and what stands before them, have no other end.
const SENT: u64 = 1 << 20;

/// A connection that ends when the pod has sent more than any answer to a probe has.
pub(super) fn within_limit(
    stream: Box<dyn PodConnection>,
) -> impl AsyncRead + AsyncWrite + Send + Unpin + use<> {
    let (reader, writer) = tokio::io::split(stream);
    tokio::io::join(reader.take(SENT), writer)
}

/// What to ask for.
pub(crate) struct HttpRequest {
    /// `host:port` for the Host header.
    pub authority: String,
    /// Path with query.
    pub path: String,
    /// Speak TLS first.
    pub https: bool,
    /// More headers; Host, User-Agent and Accept may be among them.
    pub headers: Vec<(String, String)>,
    /// Bytes of the answer's body that are read ([`BODY`]).
    pub body_limit: usize,
}

/// What came back.
pub(crate) struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Where else it is, by the `Location` header.
    pub location: Option<String>,
    /// The beginning of the body.
    pub body: Bytes,
}

/// Sends a GET and reads the answer; the caller sets the deadline.
///
/// # Errors
/// I/O, TLS and protocol errors.
pub(crate) async fn http_get(
    stream: Box<dyn PodConnection>,
    request: HttpRequest,
) -> io::Result<HttpResponse> {
    let stream = within_limit(stream);
    if !request.https {
        return exchange(stream, request).await;
    }
    let host = request
        .authority
        .rsplit_once(':')
        .map_or(request.authority.as_str(), |(h, _)| h);
    let name = ServerName::try_from(without_brackets(host).to_owned()).map_err(io::Error::other)?;
    let connector = tokio_rustls::TlsConnector::from(
        TLS.clone()
            .ok_or_else(|| io::Error::other("TLS cannot be set up"))?,
    );
    let stream = connector.connect(name, stream).await?;
    exchange(stream, request).await
}

async fn exchange<S: AsyncRead + AsyncWrite + Send + Unpin>(
    stream: S,
    request: HttpRequest,
) -> io::Result<HttpResponse> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let mut builder = http::Request::get(&request.path);
    let mut given = http::HeaderMap::new();
    for (name, value) in &request.headers {
        let name: http::HeaderName = name.parse().map_err(io::Error::other)?;
        given.append(name, value.parse().map_err(io::Error::other)?);
    }
    let defaults = [
        ("host", request.authority.as_str()),
        ("user-agent", "kube-probe/1.36"),
        ("accept", "*/*"),
    ];
    for (name, value) in defaults {
        if !given.contains_key(name) {
            builder = builder.header(name, value);
        }
    }
    builder = builder.header("connection", "close");
    let mut message = builder
        .body(Empty::<Bytes>::new())
        .map_err(io::Error::other)?;
    message.headers_mut().extend(given);
    let answer = async {
        let response = sender
            .send_request(message)
            .await
            .map_err(io::Error::other)?;
        let status = response.status().as_u16();
        let location = response.headers().get(http::header::LOCATION);
        let location = location.and_then(|to| Some(to.to_str().ok()?.to_owned()));
        let body = beginning(response.into_body(), request.body_limit).await;
        Ok(HttpResponse {
            status,
            location,
            body,
        })
    };
    tokio::pin!(answer, connection);
    let mut broken = None;
    let mut open = true;
    loop {
        tokio::select! {
            // A server that has answered may leave as it likes, without TLS's good-bye for one.
            result = &mut answer => return result.map_err(|error| broken.map_or(error, io::Error::other)),
            ended = &mut connection, if open => {
                open = false;
                broken = ended.err();
            }
        }
    }
}

/// The first bytes of a body. That it is longer, or cut off, does not change what the status says.
async fn beginning(mut body: Incoming, most: usize) -> Bytes {
    let mut read = BytesMut::new();
    while read.len() < most
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Ok(data) = frame.into_data() {
            let left = most - read.len();
            read.extend_from_slice(&data[..data.len().min(left)]);
        }
    }
    read.freeze()
}

static TLS: LazyLock<Option<Arc<rustls::ClientConfig>>> =
    LazyLock::new(|| Some(Arc::new(client_config(&Trust::Any, None).ok()?)));

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn asks_and_reads_the_status() {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let server = async move {
            let mut buffer = vec![0; 1024];
            let n = theirs.read(&mut buffer).await.unwrap();
            let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
            theirs
                .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno")
                .await
                .unwrap();
            text
        };
        let request = HttpRequest {
            authority: "10.0.0.1:80".into(),
            path: "/healthz".into(),
            https: false,
            headers: vec![("User-Agent".into(), "mine".into())],
            body_limit: 1,
        };
        let (answer, sent) = tokio::join!(http_get(Box::new(ours), request), server);
        let answer = answer.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (503, b"n".as_slice()));
        assert!(sent.starts_with("GET /healthz HTTP/1.1\r\n"));
        assert!(
            sent.contains("host: 10.0.0.1:80")
                && sent.contains("user-agent: mine")
                && !sent.contains("kube-probe")
        );
    }

    /// As the kubelet, which probes with whatever certificate a pod shows.
    #[tokio::test]
    async fn any_certificate_will_do() {
        let identity = rcgen::generate_simple_self_signed(["somebody.else".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(identity.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key.unwrap())
            .unwrap();
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let server = async move {
            let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
            let mut stream = acceptor.accept(theirs).await.unwrap();
            let mut buffer = vec![0; 1024];
            let _ = stream.read(&mut buffer).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            stream.flush().await.unwrap();
        };
        let request = HttpRequest {
            authority: "10.0.0.1:443".into(),
            path: "/healthz".into(),
            https: true,
            headers: Vec::new(),
            body_limit: 1,
        };
        let (answer, ()) = tokio::join!(http_get(Box::new(ours), request), server);
        assert_eq!(answer.unwrap().status, 200);
    }

    fn plain() -> HttpRequest {
        HttpRequest {
            authority: "10.0.0.1:80".into(),
            path: "/".into(),
            https: false,
            headers: Vec::new(),
            body_limit: 1,
        }
    }

    /// Hyper reads on, and a probe may last for days.
    #[tokio::test]
    async fn interim_answers_without_end_are_no_answer() {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let server = async move {
            let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
            let mut sent = 0;
            while theirs.write_all(&interim).await.is_ok() {
                sent += interim.len() as u64;
            }
            sent
        };
        let (answer, sent) = tokio::join!(http_get(Box::new(ours), plain()), server);
        assert!(answer.is_err());
        assert!(sent <= SENT + (128 << 10), "{sent}");
    }
}
