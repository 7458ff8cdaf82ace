//! Passing an upgraded connection through to another HTTP/1.1 server, byte for byte.

use crate::{Body, Error, body};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::future::Future;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

/// Sends the request's head to the server behind `target` and returns its answer. When both sides agree to upgrade, the
/// returned future joins the two connections until either ends; it must be polled (spawned or awaited).
///
/// # Errors
/// [`Error::Io`] when the server cannot be spoken to; an answer other than 101 is passed on as it is.
pub async fn upgrade<B, T>(
    request: &mut Request<B>,
    uri: http::Uri,
    target: T,
) -> Result<
    (
        Response<Body>,
        impl Future<Output = ()> + Send + 'static + use<B, T>,
    ),
    Error,
>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |error: hyper::Error| Error::Io(std::io::Error::other(error));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(target))
            .await
            .map_err(failed)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
    let mut outgoing = Request::new(Empty::new());
    *outgoing.method_mut() = request.method().clone();
    *outgoing.uri_mut() = uri;
    *outgoing.headers_mut() = request.headers().clone();
    let mut answer = sender.send_request(outgoing).await.map_err(failed)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (head, content) = answer.into_parts();
        let content = content.collect().await.map_err(failed)?.to_bytes();
        return Ok((
            Response::from_parts(head, body(content)),
            join(None, connection),
        ));
    }
    let theirs = hyper::upgrade::on(&mut answer);
    let ours = hyper::upgrade::on(request);
    let (head, _) = answer.into_parts();
    Ok((
        Response::from_parts(head, body("")),
        join(Some((ours, theirs)), connection),
    ))
}

async fn join(
    ends: Option<(OnUpgrade, OnUpgrade)>,
    connection: AbortOnDropHandle<hyper::Result<()>>,
) {
    let Some((ours, theirs)) = ends else { return };
    match tokio::try_join!(ours, theirs) {
        Ok((ours, theirs)) => {
            let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
            let ended = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await;
            tracing::debug!(?ended, "proxied stream connection ended");
        }
        Err(error) => tracing::debug!(%error, "stream connection was not upgraded"),
    }
    drop(connection);
}
