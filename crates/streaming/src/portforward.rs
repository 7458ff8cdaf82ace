//! Port-forward: connections of the client joined with ports inside a pod.

use crate::upgrade::{Agreed, Framing, negotiate, switching_protocols};
use crate::websocket::{Channels, Encoding, Tunnel};
use crate::{Body, Error, UpgradeError, spdy};
use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

const SPDY_PROTOCOLS: [&str; 1] = ["portforward.k8s.io"];
/// SPDY frames in binary messages (kubectl from 1.31), and pairs of channels (other clients).
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const WEBSOCKET_PROTOCOLS: [&str; 3] = [TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
/// How long the second stream of a pair may take to follow the first, as upstream.
const PAIRING: Duration = Duration::from_secs(30);
/// How long a pod that has closed its side is still sent what the client has to say.
const LISTENING: Duration = Duration::from_secs(1);
/// Connections forwarded at once in one session.
const MAX_CONNECTIONS: usize = 512;

/// A negotiated session whose connection is not upgraded yet.
#[derive(Debug)]
pub struct Pending {
    agreed: Agreed,
    ports: Vec<u16>,
    upgrade: OnUpgrade,
}

/// Negotiates a session for a request. `ports` are those named in the query; only clients of the channel protocol need
/// them there.
///
/// # Errors
/// [`UpgradeError`] when the request is no upgrade or offers no protocol that is served.
pub fn negotiate_session<B>(
    request: &mut Request<B>,
    ports: Vec<u16>,
) -> Result<(Response<Body>, Pending), UpgradeError> {
    let agreed = negotiate(request.headers(), &SPDY_PROTOCOLS, &WEBSOCKET_PROTOCOLS)?;
    let response = switching_protocols(request.headers(), &agreed)?;
    let upgrade = hyper::upgrade::on(request);
    Ok((
        response,
        Pending {
            agreed,
            ports,
            upgrade,
        },
    ))
}

impl Pending {
    /// Serves the session to its end: each connection of the client is joined with what `dial` opens for its port. A
    /// port that cannot be dialled is an error of that connection only.
    ///
    /// # Errors
    /// [`Error::NotUpgraded`] when the connection never came to be.
    pub async fn serve<D, F, C, E>(self, dial: D) -> Result<(), Error>
    where
        D: Fn(u16) -> F + Send + Sync + 'static,
        F: Future<Output = Result<C, E>> + Send + 'static,
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let io = TokioIo::new(self.upgrade.await.map_err(Error::NotUpgraded)?);
        let dial = Arc::new(dial);
        match self.agreed.framing {
            Framing::Spdy => serve_spdy(spdy::Session::serve(io), dial).await,
            Framing::WebSocket if self.agreed.protocol == TUNNEL => {
                serve_spdy(spdy::Session::serve(Tunnel::new(io).await), dial).await;
            }
            Framing::WebSocket => {
                let encoding = if self.agreed.protocol.contains("base64") {
                    Encoding::Base64
                } else {
                    Encoding::Binary
                };
                serve_channels(io, encoding, &self.ports, dial).await?;
            }
        }
        Ok(())
    }
}

/// A data stream or an error stream that waits for its partner.
struct Half {
    stream: spdy::Stream,
    is_data: bool,
    since: Instant,
}

pub(crate) async fn serve_spdy<D, F, C, E>(mut session: spdy::Session, dial: Arc<D>)
where
    D: Fn(u16) -> F + Send + Sync + 'static,
    F: Future<Output = Result<C, E>> + Send + 'static,
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let mut waiting: HashMap<String, Half> = HashMap::new();
    let mut connections = JoinSet::new();
    loop {
        let first = waiting.values().map(|half| half.since + PAIRING).min();
        let stream = tokio::select! {
            stream = session.accept() => stream,
            Some(_) = connections.join_next() => continue,
            // What the client has sent on it is in the way of the others.
            () = at(first) => {
                waiting.retain(|_, half| half.since.elapsed() < PAIRING);
                continue;
            }
        };
        let Some(stream) = stream else { break };
        if connections.len() >= MAX_CONNECTIONS || waiting.len() >= MAX_CONNECTIONS {
            continue;
        }
        let is_data = stream.header("streamType") == Some("data");
        // Clients without request ids open one pair at a time.
        let request = stream.header("requestID").unwrap_or_default().to_owned();
        let half = Half {
            stream,
            is_data,
            since: Instant::now(),
        };
        match waiting.remove(&request) {
            Some(other) if other.is_data != half.is_data => {
                let (data, error) = if is_data {
                    (half.stream, other.stream)
                } else {
                    (other.stream, half.stream)
                };
                connections.spawn(forward(data, error, dial.clone()));
            }
            _ => {
                waiting.insert(request, half);
            }
        }
    }
    // The client is gone; connections into the pod end with their streams.
    connections.shutdown().await;
}

/// Waits for a moment; for ever where there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

async fn forward<D, F, C, E>(mut data: spdy::Stream, error: spdy::Stream, dial: Arc<D>)
where
    D: Fn(u16) -> F,
    F: Future<Output = Result<C, E>>,
    C: AsyncRead + AsyncWrite + Unpin,
    E: std::fmt::Display,
{
    let (_, mut error) = error.split();
    let port = data
        .header("port")
        .and_then(|p| p.parse::<u16>().ok())
        .filter(|p| *p != 0);
    let failure = match port {
        None => Some("missing or invalid port header".to_owned()),
        Some(port) => match dial(port).await {
            Err(why) => Some(format!("error forwarding port {port} to pod: {why}")),
            Ok(target) => {
                exchange(data, target).await;
                let _closed = error.shutdown().await;
                return;
            }
        },
    };
    if let Some(text) = failure
        && let Err(undelivered) = error.write_all(text.as_bytes()).await
    {
        tracing::debug!(%undelivered, "port-forward error not delivered");
    }
    // Both ends may be closed already by the client.
    let _closed = (data.shutdown().await, error.shutdown().await);
}

/// Copies both ways. A client that has sent everything still gets the whole answer; a pod that has said everything gets
/// only a moment more to listen: clients close their side when both our streams are closed, not before.
async fn exchange(data: spdy::Stream, target: impl AsyncRead + AsyncWrite + Unpin) {
    let (mut from_client, mut to_client) = data.split();
    let (mut from_pod, mut to_pod) = tokio::io::split(target);
    let upward = async {
        let copied = tokio::io::copy(&mut from_client, &mut to_pod).await;
        let _closed = to_pod.shutdown().await;
        copied
    };
    let downward = async {
        let copied = tokio::io::copy(&mut from_pod, &mut to_client).await;
        let _closed = to_client.shutdown().await;
        copied
    };
    let (mut upward, mut downward) = (std::pin::pin!(upward), std::pin::pin!(downward));
    // Connections that one side drops are everyday life, not an error to report.
    let ended = tokio::select! {
        sent = &mut upward => (Some(sent), Some(downward.await)),
        received = &mut downward => (tokio::time::timeout(LISTENING, upward).await.ok(), Some(received)),
    };
    tracing::debug!(?ended, "forwarded connection ended");
}

async fn serve_channels<T, D, F, C, E>(
    io: T,
    encoding: Encoding,
    ports: &[u16],
    dial: Arc<D>,
) -> Result<(), Error>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    D: Fn(u16) -> F + Send + Sync + 'static,
    F: Future<Output = Result<C, E>> + Send + 'static,
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let count = u8::try_from(ports.len())
        .ok()
        .and_then(|n| n.checked_mul(2))
        .filter(|n| *n > 0);
    let count =
        count.ok_or_else(|| Error::Protocol("the query must name 1 to 127 ports".to_owned()))?;
    let mut channels = Channels::serve(io, count, encoding);
    let mut connections = JoinSet::new();
    let mut readers = Vec::new();
    for index in 0..count / 2 {
        readers.push(channels.reader(index * 2));
    }
    channels.ignore_others();
    for ((index, port), reader) in (0u8..).zip(ports.iter().copied()).zip(readers) {
        let (data, error) = (index * 2, index * 2 + 1);
        let mut error_writer = channels.writer(error);
        let mut data_writer = channels.writer(data);
        let Some(mut data_reader) = reader else {
            continue;
        };
        let dial = dial.clone();
        connections.spawn(async move {
            // Each channel begins with its port, little endian.
            let greeted = data_writer.write_all(&port.to_le_bytes()).await.is_ok()
                && error_writer.write_all(&port.to_le_bytes()).await.is_ok();
            if !greeted {
                return;
            }
            match dial(port).await {
                Ok(target) => {
                    let (mut from, mut to) = tokio::io::split(target);
                    let upward = async {
                        let copied = tokio::io::copy(&mut data_reader, &mut to).await;
                        let _closed = to.shutdown().await;
                        copied
                    };
                    let downward = tokio::io::copy(&mut from, &mut data_writer);
                    let ended = tokio::join!(upward, downward);
                    tracing::debug!(port, ?ended, "forwarded connection ended");
                }
                Err(why) => {
                    let text = format!("error forwarding port {port} to pod: {why}");
                    let _client_gone = error_writer.write_all(text.as_bytes()).await;
                }
            }
        });
    }
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all => {}
        // A pod that does not end what is not asked for any more holds nothing.
        () = channels.lost() => {}
    }
    connections.shutdown().await;
    channels.close(Duration::from_secs(10)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    #[tokio::test]
    async fn a_client_that_has_gone_holds_no_connection_into_the_pod() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (pod, dialled) = tokio::io::duplex(64);
        let dialled = std::sync::Mutex::new(Some(dialled));
        let dial = move |_| {
            let found = dialled.lock().unwrap().take();
            std::future::ready(found.ok_or("dialled before"))
        };
        let serves = serve_channels::<_, _, _, DuplexStream, _>(
            theirs,
            Encoding::Binary,
            &[80],
            Arc::new(dial),
        );
        let goes = async {
            let mut client = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
            let _greeting = client.next().await.unwrap().unwrap();
            drop(client);
            // the pod goes on, and hears nothing but the end of what is sent
            let (mut from, to) = tokio::io::split(pod);
            assert_eq!(from.read(&mut [0]).await.unwrap(), 0);
            (from, to)
        };
        let both = async { tokio::join!(serves, goes) };
        let ended = tokio::time::timeout(Duration::from_secs(5), both).await;
        ended.expect("it is still forwarded").0.unwrap();
    }
}
