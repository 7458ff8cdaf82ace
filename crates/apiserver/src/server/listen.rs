//! Connections: accepted in bounded number, TLS, HTTP/1.1 or HTTP/2, drained on shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::ApiServer;
use crate::authn::ConnectionIdentity;
use crate::body::{ResponseBody, request_body};

const MAX_CONNECTIONS: usize = 4096;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(32);
const MAX_HEADER_BYTES: usize = 1 << 20;
const MAX_HEADERS: usize = 256;
const HTTP2_STREAMS: u32 = 250;
const HTTP2_WINDOW: u32 = 256 * 1024;
const HTTP2_PING: Duration = Duration::from_secs(30);
const DRAIN: Duration = Duration::from_secs(5);
/// How long requests that are no streams may still take: their own time limit.
const DRAIN_REQUESTS: Duration = Duration::from_secs(60);
const DRAIN_LOOK: Duration = Duration::from_millis(50);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: TlsAcceptor,
    cancel: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let permit = tokio::select! {
            () = cancel.cancelled() => break,
            permit = Arc::clone(&slots).acquire_owned() => permit,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (server, tls) = (Arc::clone(&server), tls.clone());
                let cancel = cancel.child_token();
                connections.spawn(connection(server, stream, peer, tls, permit, cancel));
            }
            Err(error) => {
                // out of descriptors, typically: give the others time to close theirs
                tracing::warn!(%error, "accepting a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let started = Instant::now();
    let drained = async { while connections.join_next().await.is_some() {} };
    let patience = async {
        // requests under way are finished; streams of others end soon or are cut
        while started.elapsed() < DRAIN
            || (server.in_flight().active() > 0 && started.elapsed() < DRAIN_REQUESTS)
        {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    };
    tokio::select! {
        () = drained => {}
        () = patience => {
            tracing::debug!("connections still open after the drain time are closed");
        }
    }
}

async fn connection(
    server: Arc<ApiServer>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    permit: OwnedSemaphorePermit,
    cancel: CancellationToken,
) {
    let _permit = permit;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%peer, %error, "setting TCP_NODELAY");
    }
    let stream = tokio::select! {
        () = cancel.cancelled() => return,
        accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                server.metrics().tls_handshake_errors.inc();
                tracing::debug!(%peer, %error, "TLS handshake");
                return;
            }
            Err(_) => {
                server.metrics().tls_handshake_errors.inc();
                return;
            }
        },
    };
    let shown = stream.get_ref().1.peer_certificates();
    let identity = Arc::new(ConnectionIdentity::new(shown, peer));
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, identity) = (Arc::clone(&server), Arc::clone(&identity));
        async move { Ok::<_, std::convert::Infallible>(answer(&server, request, identity).await) }
    });
    let builder = builder();
    let http = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(http);
    let result = tokio::select! {
        result = http.as_mut() => result,
        () = cancel.cancelled() => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, error, "connection ended");
    }
}

async fn answer(
    server: &Arc<ApiServer>,
    request: Request<Incoming>,
    identity: Arc<ConnectionIdentity>,
) -> Response<ResponseBody> {
    let head = request.method() == Method::HEAD;
    let request = request.map(request_body);
    let caller = crate::pipeline::Caller::Connection(identity);
    let response = server.answer(request, caller).await;
    if head {
        return without_body(response);
    }
    response
}

/// The answer to HEAD: all headers, the length among them, and no body. HTTP/2 would send one, which clients take for a
/// broken connection.
fn without_body(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    let length = body.size_hint().exact().filter(|length| *length > 0);
    if let Some(length) = length {
        parts
            .headers
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    Response::from_parts(parts, ResponseBody::empty())
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .initial_stream_window_size(HTTP2_WINDOW)
        .initial_connection_window_size(HTTP2_WINDOW * 4)
        .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(HTTP2_PING);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_head_keeps_its_length_and_loses_its_body() {
        let mut full = Response::new(ResponseBody::from("ok"));
        full.headers_mut()
            .insert("x-other", http::HeaderValue::from_static("a"));
        let answer = without_body(full);
        assert_eq!(answer.headers()[CONTENT_LENGTH], "2");
        assert_eq!(answer.headers()["x-other"], "a");
        assert!(answer.body().is_end_stream());
        let stream = ResponseBody::stream(futures::stream::empty());
        let answer = without_body(Response::new(stream));
        assert!(!answer.headers().contains_key(CONTENT_LENGTH));
    }
}
