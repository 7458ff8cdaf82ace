//! HTTP with limits.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;

const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(32);
/// The head of a request; also what is written before a client has read.
const MAX_HEAD: usize = 256 * 1024;
const MAX_HEADERS: usize = 256;
const WINDOW: u32 = 256 * 1024;
const PING: Duration = Duration::from_secs(30);
/// Streams that a client has opened and reset before they were looked at (CVE-2023-44487).
const RESET_STREAMS: usize = 20;
/// Streams that we had to reset because of what came on them (CVE-2025-8671).
const ERROR_STREAMS: usize = 128;

/// What one connection may ask for.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// HTTP/2 streams at once.
    pub streams: u32,
}

/// HTTP/1.1 and HTTP/2 within limits.
pub fn http(limits: HttpLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(ERROR_STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4)
        .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_HEAD)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}
