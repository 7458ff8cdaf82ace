//! Exec, attach and port-forward streams as kubectl and client libraries speak them.
//!
//! A node serves three kinds of streams over one upgraded HTTP connection, in two framings each: SPDY/3.1 (kubectl up to
//! 1.29 and every fallback) and WebSocket (kubectl from 1.30, browsers, the Python client). This crate turns either into
//! plain byte streams: [`remotecommand`] for exec and attach, [`portforward`] for port-forward; [`proxy`] passes an
//! upgraded connection through to another server unchanged.
//! Specified by the API machinery notes on streaming, KEP-4006 (WebSockets) and SPDY/3.1.
#![forbid(unsafe_code)]

mod inbound;
pub mod portforward;
pub mod proxy;
pub mod remotecommand;
pub mod spdy;
mod upgrade;
mod websocket;

pub use upgrade::UpgradeError;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Body of the answers this crate makes: empty for an accepted upgrade, a short text for a refused one.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) fn body(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A byte source.
pub type Reader = Box<dyn tokio::io::AsyncRead + Send + Unpin>;
/// A byte sink.
pub type Writer = Box<dyn tokio::io::AsyncWrite + Send + Unpin>;

/// Why an established stream connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client did not complete the upgrade.
    #[error("connection was not upgraded")]
    NotUpgraded(#[source] hyper::Error),
    /// The client did not open the streams it announced in time.
    #[error("client opened {got} of {expected} streams within {after:?}")]
    MissingStreams {
        /// Streams opened.
        got: usize,
        /// Streams the request asks for.
        expected: usize,
        /// How long was waited.
        after: std::time::Duration,
    },
    /// The peer broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The connection failed.
    #[error("connection failed")]
    Io(#[from] std::io::Error),
}
