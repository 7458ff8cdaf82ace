//! Watches over WebSocket: one text message an event.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use davit_api::status::Status;
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Source;
use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult};

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const NORMAL: u16 = 1000;
const IGNORED_INPUT: usize = 1024;

/// Whether the client asks for an upgrade to WebSocket.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// Answers 101 and sends the events once the connection is upgraded.
pub(super) fn answer(
    context: &Context,
    request: &mut Request<RequestBody>,
    source: Source,
) -> HandlerResult {
    let Some(key) = context.headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Status::bad_request("missing Sec-WebSocket-Key"));
    };
    let mut input = key.as_bytes().to_vec();
    input.extend_from_slice(GUID.as_bytes());
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &input));
    let upgrade = hyper::upgrade::on(request);
    let server = std::sync::Arc::clone(&source.server);
    server.nodes().track(async move {
        match upgrade.await {
            Ok(upgraded) => send(TokioIo::new(upgraded), source).await,
            Err(error) => tracing::debug!(%error, "upgrading a watch to WebSocket"),
        }
    });
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(value) = HeaderValue::from_str(&accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, value);
    }
    // of the protocols offered, the watch speaks only plain text
    let plain = context
        .headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|protocol| protocol.trim() == "text.kubernetes.io");
    if plain {
        headers.insert(
            SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_static("text.kubernetes.io"),
        );
    }
    Ok(response)
}

async fn send<T>(io: T, mut source: Source)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut ignored = [0_u8; IGNORED_INPUT];
    loop {
        let event = tokio::select! {
            event = source.next() => event,
            // whatever a watcher says, only its going away matters
            read = reader.read(&mut ignored) => match read {
                Ok(count) if count > 0 && ignored[0] & 0x0f != 0x08 => continue,
                _ => return,
            },
        };
        let Some(event) = event else { break };
        let trimmed = event.strip_suffix(b"\n").unwrap_or(&event);
        if writer.write_all(&message(TEXT, trimmed)).await.is_err() {
            return;
        }
    }
    let close = message(CLOSE, &NORMAL.to_be_bytes());
    if writer.write_all(&close).await.is_ok() {
        let _ = writer.shutdown().await;
    }
}

/// An unmasked, unfragmented message, as servers send them.
fn message(kind: u8, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(payload.len() + 10);
    frame.put_u8(kind);
    match payload.len() {
        // the branches bound the length
        length @ 0..126 => frame.put_u8(length as u8),
        length @ 126..0x1_0000 => {
            frame.put_u8(126);
            frame.put_u16(length as u16);
        }
        length => {
            frame.put_u8(127);
            frame.put_u64(length as u64);
        }
    }
    frame.extend_from_slice(payload);
    frame.freeze()
}
