//! HTTP with limits.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;

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
        // Its clock runs while nobody asks, too: a head that does not come whole is [`crate::Connections`]' to end, which it
        // takes for a connection on which nothing is asked for.
        .header_read_timeout(None)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IDLE;
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Of Go's `DefaultTransport` and of hyper's pool: how long a client keeps a connection that it does not use.
    const KEPT_BY_CLIENTS: Duration = Duration::from_secs(90);

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_its_clients_to_close() {
        assert!(IDLE > KEPT_BY_CLIENTS);
        let (mut client, server) = tokio::io::duplex(4096);
        let answer = hyper::service::service_fn(async |_| {
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from_static(b"yes"))))
        });
        let serve = http(HttpLimits { streams: 1 });
        let serve = tokio::spawn(async move {
            let served = serve.serve_connection(TokioIo::new(server), answer);
            served.await.map_err(|error| error.to_string())
        });
        for _ in 0..3 {
            let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            client.write_all(request).await.unwrap();
            let mut answer = [0; 1024];
            let mut read = 0;
            while !answer[..read].ends_with(b"yes") {
                let more = client.read(&mut answer[read..]).await.unwrap();
                assert_ne!(more, 0, "closed");
                read += more;
            }
            tokio::time::sleep(KEPT_BY_CLIENTS).await;
        }
        drop(client);
        serve.await.unwrap().unwrap();
    }
}
