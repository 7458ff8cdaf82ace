//! The part of a request that nobody has read. HTTP/1.1 sends it before the next request on the connection: a server that
//! answers without it either reads it or closes the connection, and a client that is not told finds out by an error of its
//! next request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

/// How much is read, as by Go's server.
const MOST: usize = 256 * 1024;
/// How long it may take to come.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request's body that is handed back if it is dropped before its end.
#[derive(Debug)]
pub struct ReturnedBody<B: Body> {
    /// None at its end.
    inner: Option<B>,
    back: Option<oneshot::Sender<B>>,
}

/// What has been left of a request's body.
#[derive(Debug)]
pub struct UnreadBody<B> {
    body: oneshot::Receiver<B>,
    /// Whether the client sends it without being asked to, before anything else.
    comes: bool,
    is_in_the_way: bool,
}

impl<B: Body<Data = Bytes> + Unpin> UnreadBody<B> {
    /// Watches what is read of a request.
    pub fn watch(request: Request<B>) -> (Request<ReturnedBody<B>>, Self) {
        let (back, body) = oneshot::channel();
        let unread = Self {
            body,
            comes: !request.headers().contains_key(EXPECT),
            is_in_the_way: request.version() <= Version::HTTP_11,
        };
        let request = request.map(|inner| ReturnedBody {
            inner: Some(inner),
            back: Some(back),
        });
        (request, unread)
    }

    /// Reads what is left now that the request is answered, or has the answer say that the connection ends. A body that
    /// somebody still reads is left alone.
    pub async fn settle<R>(mut self, response: &mut Response<R>) {
        if !self.is_in_the_way {
            return;
        }
        let Ok(body) = self.body.try_recv() else {
            return;
        };
        let read =
            async { self.comes && tokio::time::timeout(PATIENCE, read(body)).await == Ok(true) };
        if !read.await {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
    }
}

/// Whether that was all.
async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B) -> bool {
    let mut bytes = 0;
    loop {
        match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Buf::remaining),
        }
        if bytes > MOST {
            return false;
        }
    }
}

impl<B: Body + Unpin> Body for ReturnedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Some(inner) = self.inner.as_mut() else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(inner).poll_frame(cx));
        if frame.is_none() {
            self.inner = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ended = || SizeHint::with_exact(0);
        self.inner.as_ref().map_or_else(ended, Body::size_hint)
    }
}

impl<B: Body> Drop for ReturnedBody<B> {
    fn drop(&mut self) {
        let left = self.inner.take().filter(|body| !body.is_end_stream());
        if let (Some(left), Some(back)) = (left, self.back.take()) {
            // nobody waits for it: the connection is gone
            drop(back.send(left));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HttpLimits, http};
    use ::http::Method;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A server that reads what is posted and nothing else.
    fn server() -> DuplexStream {
        let (client, server) = tokio::io::duplex(4096);
        let service = hyper::service::service_fn(async |request: Request<Incoming>| {
            let (request, unread) = UnreadBody::watch(request);
            let read = if request.method() == Method::POST {
                request.into_body().collect().await.unwrap().to_bytes()
            } else {
                drop(request);
                Bytes::from_static(b"no")
            };
            let mut response = Response::new(Full::new(read));
            unread.settle(&mut response).await;
            Ok::<_, Infallible>(response)
        });
        tokio::spawn(async move {
            let http = http(HttpLimits { streams: 1 });
            let served = http.serve_connection(TokioIo::new(server), service);
            served.await.map_err(|error| error.to_string())
        });
        client
    }

    /// Sends a request, its body apart from its head as many clients do, and reads the answer, if there is one.
    async fn ask(client: &mut DuplexStream, method: &str, body: &str) -> String {
        let length = body.len();
        let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
        client.write_all(body.as_bytes()).await.unwrap();
        let (mut answer, mut piece) = (String::new(), [0; 1024]);
        loop {
            match client.read(&mut piece).await {
                Ok(0) | Err(_) => return answer,
                Ok(read) => answer += std::str::from_utf8(&piece[..read]).unwrap(),
            }
            if answer.ends_with("no") || answer.ends_with("yes") {
                return answer;
            }
        }
    }

    #[tokio::test]
    async fn the_next_request_finds_the_connection_open() {
        let mut client = server();
        for method in ["PUT", "POST", "PATCH", "PUT"] {
            let answer = ask(&mut client, method, "yes").await;
            let expected = if method == "POST" { "yes" } else { "no" };
            assert!(answer.ends_with(expected), "{method}: {answer}");
            assert!(!answer.contains("connection: close"), "{answer}");
        }
    }

    #[tokio::test]
    async fn a_client_is_told_that_the_connection_ends() {
        for (more, length) in [("", 2 * MOST), ("Expect: 100-continue\r\n", 3)] {
            let mut client = server();
            let (mut reading, mut writing) = tokio::io::split(&mut client);
            let head =
                format!("PUT / HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {length}\r\n\r\n");
            let send = async {
                let _sent = writing.write_all(head.as_bytes()).await;
                if more.is_empty() {
                    let _cut = writing.write_all(&vec![b'x'; length]).await;
                }
            };
            let mut answer = Vec::new();
            let (_read, ()) = tokio::join!(reading.read_to_end(&mut answer), send);
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.contains("connection: close"), "{more}{answer}");
        }
    }
}
