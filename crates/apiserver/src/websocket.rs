//! Answers over WebSocket that only tell: watches, one text message an event, and logs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use davit_api::status::Status;
use davit_listen::websocket::{CLOSE, ClientFrames, message};
use futures::{Stream, StreamExt};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::body::{RequestBody, ResponseBody};

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const NORMAL: u16 = 1000;
const READ_BYTES: usize = 1024;

/// What messages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Text as it is.
    Text,
    /// Bytes as they are.
    Binary,
    /// Bytes in base64, in messages of text.
    Base64,
}

/// Whether the client asks for an upgrade to WebSocket.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// A request for WebSocket that is taken.
pub(crate) struct Session {
    /// Answers the request.
    pub(crate) response: Response<ResponseBody>,
    upgrade: hyper::upgrade::OnUpgrade,
    encoding: Encoding,
}

/// Takes a request, in the first of the client's protocols that is spoken here; `plain` is what one gets
/// who names none of them.
///
/// # Errors
/// When the request is no handshake.
pub(crate) fn accept(
    request: &mut Request<RequestBody>,
    protocols: &[(&'static str, Encoding)],
    plain: Encoding,
) -> Result<Session, Status> {
    let headers = request.headers();
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Status::bad_request("missing Sec-WebSocket-Key"));
    };
    let mut input = key.as_bytes().to_vec();
    input.extend_from_slice(GUID.as_bytes());
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &input));
    let chosen = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|offered| protocols.iter().find(|(name, _)| *name == offered.trim()));
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answered = response.headers_mut();
    answered.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    answered.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(value) = HeaderValue::from_str(&accept) {
        answered.insert(SEC_WEBSOCKET_ACCEPT, value);
    }
    if let Some((name, _)) = chosen {
        answered.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
    }
    let encoding = chosen.map_or(plain, |(_, encoding)| *encoding);
    Ok(Session {
        response,
        upgrade: hyper::upgrade::on(request),
        encoding,
    })
}

impl Session {
    /// The answer to the request, and the work that sends a message for each piece once the connection is
    /// upgraded. A client that takes longer than `patience` for one is left.
    pub(crate) fn start(
        self,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
        patience: Duration,
    ) -> (Response<ResponseBody>, impl Future<Output = ()> + Send) {
        let (upgrade, encoding) = (self.upgrade, self.encoding);
        let work = async move {
            match upgrade.await {
                Ok(upgraded) => send(TokioIo::new(upgraded), encoding, pieces, patience).await,
                Err(error) => tracing::debug!(%error, "upgrading to WebSocket"),
            }
        };
        (self.response, work)
    }
}

async fn send<T>(io: T, encoding: Encoding, pieces: impl Stream<Item = Bytes>, patience: Duration)
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut pieces = std::pin::pin!(pieces);
    let (mut read_bytes, mut heard) = ([0_u8; READ_BYTES], ClientFrames::default());
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            // whatever the client says, only its going away matters
            read = reader.read(&mut read_bytes) => match read {
                Ok(count) if count > 0 && !heard.closes(&read_bytes[..count]) => continue,
                _ => return,
            },
        };
        let Some(piece) = piece else { break };
        let message = match encoding {
            Encoding::Text => message(0x81, &piece),
            Encoding::Binary => message(0x82, &piece),
            Encoding::Base64 => message(0x81, STANDARD.encode(&piece).as_bytes()),
        };
        let sent = tokio::time::timeout(patience, writer.write_all(&message)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
    let close = message(CLOSE, &NORMAL.to_be_bytes());
    let closed = async {
        writer.write_all(&close).await?;
        writer.shutdown().await
    };
    let _gone_already = tokio::time::timeout(patience, closed).await;
}
