//! Connections: TLS, HTTP/1.1 or HTTP/2, drained on shutdown. How many there may be and how long is decided in
//! `davit_listen`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use davit_access::authn::ConnectionIdentity;
use davit_listen::{Connections, Exchange, Lease, Socket, TrackedBody, UnreadBody, handshake};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::body::{ResponseBody, request_body};
use crate::server::ApiServer;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const DRAIN: Duration = Duration::from_secs(5);
/// How long requests that are no streams may still take: their own time limit.
const DRAIN_REQUESTS: Duration = Duration::from_secs(60);
const DRAIN_LOOK: Duration = Duration::from_millis(50);

pub(super) async fn serve(
    server: Arc<ApiServer>,
    listener: TcpListener,
    tls: TlsAcceptor,
    cancel: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    let connections = Connections::new(server.limits().connections);
    let connected = |socket, lease| {
        let (server, tls) = (Arc::clone(&server), tls.clone());
        connection(server, socket, lease, tls, cancel.child_token())
    };
    davit_listen::accept(&listener, &connections, &mut tasks, &cancel, connected).await;
    drop(listener);
    let started = Instant::now();
    let drained = async { while tasks.join_next().await.is_some() {} };
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
    socket: Socket,
    lease: Lease,
    tls: TlsAcceptor,
    cancel: CancellationToken,
) {
    let peer = lease.peer();
    let stream = tokio::select! {
        () = cancel.cancelled() => return,
        accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(tls.config().clone(), socket, &lease)) => match accepted {
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
    let builder = davit_listen::http(server.limits().http);
    // Cancelled: the client shall find itself another server.
    let away = cancel.child_token();
    let (of_requests, sent_away) = (lease.clone(), away.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, identity) = (Arc::clone(&server), Arc::clone(&identity));
        let (exchange, away) = (of_requests.begin(), away.clone());
        async move {
            let chance = server.limits().goaway_chance;
            let is_chosen = request.version() == Version::HTTP_2 && rand::random::<f64>() < chance;
            let response = answer(&server, request, identity, &exchange).await;
            if is_chosen {
                away.cancel();
            }
            Ok::<_, std::convert::Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(http);
    let result = tokio::select! {
        result = http.as_mut() => result,
        () = async { tokio::select! { () = sent_away.cancelled() => {}, () = lease.draining() => {} } } => {
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
    exchange: &Arc<Exchange>,
) -> Response<ResponseBody> {
    let head = request.method() == Method::HEAD;
    let (request, unread) = UnreadBody::watch(request);
    let mut request = request.map(request_body);
    request.extensions_mut().insert(Arc::clone(exchange));
    let caller = crate::pipeline::Caller::Connection(identity);
    let mut response = server.answer(request, caller).await;
    unread.settle(&mut response).await;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        exchange.upgraded();
    }
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
