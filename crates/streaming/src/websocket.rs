//! WebSocket connections as numbered channels (the `*.channel.k8s.io` protocols), and as one byte stream (tunnelled SPDY).

use crate::inbound::{self, Feed, Inbound, QUEUE, Room};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Sink, SinkExt, Stream, StreamExt};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::sync::PollSender;
use tokio_util::task::AbortOnDropHandle;

const MAX_MESSAGE: usize = 4 << 20;
/// Largest piece written as one message.
const MAX_WRITE: usize = 32 * 1024;
/// How long nothing is sent after the connection was upgraded. client-go before 0.34 (kubectl 1.30 to 1.33) throws away what arrives
/// before it has made its streams, which it does then, and a command here may have said all by that time.
const HEAD_START: Duration = Duration::from_millis(25);
/// Channel number by which v5 clients say that they will send nothing more on the channel in the payload.
const CLOSE_CHANNEL: u8 = 255;

async fn accept<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// How a channel protocol puts channel numbers and payloads into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// Binary messages, first byte the channel.
    Binary,
    /// Text messages, first character the channel's digit, the rest base64.
    Base64,
}

/// A connection cut into channels.
pub(crate) struct Channels {
    readers: Vec<Option<Inbound>>,
    outgoing: mpsc::Sender<(u8, Bytes)>,
    driver: AbortOnDropHandle<()>,
}

impl Channels {
    /// Serves `count` channels on an upgraded connection.
    pub(crate) fn serve<T>(io: T, count: u8, encoding: Encoding) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut feeds, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (feed, reader) = inbound::stream();
            feeds.push(Some(feed));
            readers.push(Some(reader));
        }
        let (outgoing, messages) = mpsc::channel(QUEUE);
        let driver = tokio::spawn(async move {
            let said_good_bye = Arc::new(AtomicBool::new(false));
            let io = Ending {
                io,
                ended: Arc::clone(&said_good_bye),
            };
            let (sink, stream) = accept(io).await.split();
            let receive = receive(stream, feeds, encoding);
            let send = send(sink, messages, encoding, &said_good_bye);
            let mut receive = std::pin::pin!(receive);
            let mut send = std::pin::pin!(send);
            // When all writers are done the peer may still have to read and close; when the peer is gone all is over.
            let ended = tokio::select! {
                result = &mut receive => result,
                result = &mut send => match result { Ok(()) => receive.await, Err(error) => Err(error) },
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "stream connection ended");
            }
        });
        Self {
            readers,
            outgoing,
            driver: AbortOnDropHandle::new(driver),
        }
    }

    /// What the peer sends on a channel; can be taken once.
    pub(crate) fn reader(&mut self, channel: u8) -> Option<Inbound> {
        self.readers.get_mut(usize::from(channel))?.take()
    }

    /// What comes on channels whose reader was not taken is dropped from now on.
    pub(crate) fn ignore_others(&mut self) {
        self.readers.clear();
    }

    /// Sends on a channel.
    pub(crate) fn writer(&self, channel: u8) -> ChannelWriter {
        ChannelWriter {
            channel,
            outgoing: PollSender::new(self.outgoing.clone()),
        }
    }

    /// Waits until the connection has ended.
    pub(crate) async fn lost(&self) {
        self.outgoing.closed().await;
    }

    /// Lets what was written go out and the peer close, at most until `deadline` has passed.
    pub(crate) async fn close(self, deadline: Duration) {
        let Self {
            readers,
            outgoing,
            mut driver,
        } = self;
        drop((readers, outgoing));
        if tokio::time::timeout(deadline, &mut driver).await.is_err() {
            tracing::debug!("client did not close its stream connection in time");
        }
    }
}

async fn receive(
    mut messages: impl Stream<Item = Result<Message, WsError>> + Unpin,
    mut feeds: Vec<Option<Feed>>,
    encoding: Encoding,
) -> Result<(), WsError> {
    let room = Room::new();
    while let Some(message) = messages.next().await {
        let mut payload: Bytes = match message? {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => text.into(),
            Message::Close(_) => {
                // Reading on to the end sends the answer to it: clients take an end without one for a broken connection.
                feeds.clear();
                continue;
            }
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
        };
        if payload.is_empty() {
            continue;
        }
        let mut channel = payload.get_u8();
        if encoding == Encoding::Base64 {
            channel = channel.wrapping_sub(b'0');
            let Some(decoded) = decode_base64(&payload) else {
                continue;
            };
            payload = decoded.into();
        }
        if channel == CLOSE_CHANNEL {
            if let Some(feed) = payload
                .first()
                .and_then(|closed| feeds.get_mut(usize::from(*closed)))
            {
                *feed = None;
            }
            continue;
        }
        let Some(feed) = feeds.get_mut(usize::from(channel)) else {
            continue;
        };
        let Some(sender) = feed.as_ref().filter(|_| !payload.is_empty()) else {
            continue;
        };
        if !room.hand_on(payload, sender).await {
            *feed = None;
        }
    }
    Ok(())
}

async fn send(
    mut sink: impl Sink<Message, Error = WsError> + Unpin,
    mut messages: mpsc::Receiver<(u8, Bytes)>,
    encoding: Encoding,
    ended: &AtomicBool,
) -> Result<(), WsError> {
    tokio::time::sleep(HEAD_START).await;
    while let Some((channel, payload)) = messages.recv().await {
        let message = match encoding {
            Encoding::Binary => {
                let mut framed = BytesMut::with_capacity(payload.len() + 1);
                framed.extend_from_slice(&[channel]);
                framed.extend_from_slice(&payload);
                Message::Binary(framed.freeze())
            }
            Encoding::Base64 => Message::text(format!("{channel}{}", encode_base64(&payload))),
        };
        sink.send(message).await?;
    }
    sink.feed(good_bye()).await?;
    ended.store(true, Ordering::Release);
    sink.flush().await
}

/// A connection whose writing side is shut down by the flush after the last message. Clients that wait for the socket to
/// become readable see the messages that came with one before only when there is more, be it the end.
struct Ending<T> {
    io: T,
    ended: Arc<AtomicBool>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Ending<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Ending<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        if self.ended.load(Ordering::Acquire) {
            return Pin::new(&mut self.io).poll_shutdown(cx);
        }
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// The end as it should be. Clients take a close without this code for a broken connection.
fn good_bye() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }))
}

fn encode_base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

/// Sends on one channel.
pub(crate) struct ChannelWriter {
    channel: u8,
    outgoing: PollSender<(u8, Bytes)>,
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.outgoing.poll_reserve(cx)).map_err(gone)?;
        let piece = &buf[..buf.len().min(MAX_WRITE)];
        let channel = self.channel;
        self.outgoing
            .send_item((channel, Bytes::copy_from_slice(piece)))
            .map_err(gone)?;
        Poll::Ready(Ok(piece.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.close();
        Poll::Ready(Ok(()))
    }
}

/// The binary messages of a connection as one byte stream.
pub(crate) struct Tunnel<T> {
    socket: WebSocketStream<T>,
    current: Bytes,
    closing: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Tunnel<T> {
    pub(crate) async fn new(io: T) -> Self {
        Self {
            socket: accept(io).await,
            current: Bytes::new(),
            closing: false,
        }
    }
}

fn into_io(error: WsError) -> io::Error {
    match error {
        WsError::Io(error) => error,
        WsError::ConnectionClosed | WsError::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::other(other),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match ready!(self.socket.poll_next_unpin(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.current = bytes,
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(_)) => {}
                Some(Err(WsError::ConnectionClosed)) => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(into_io(error))),
            }
        }
        let length = self.current.len().min(buf.remaining());
        buf.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.socket.poll_ready_unpin(cx)).map_err(into_io)?;
        let piece = &buf[..buf.len().min(MAX_WRITE)];
        self.socket
            .start_send_unpin(Message::Binary(Bytes::copy_from_slice(piece)))
            .map_err(into_io)?;
        Poll::Ready(Ok(piece.len()))
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_flush_unpin(cx).map_err(into_io)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            ready!(self.socket.poll_ready_unpin(cx)).map_err(into_io)?;
            self.socket.start_send_unpin(good_bye()).map_err(into_io)?;
            self.closing = true;
        }
        self.socket.poll_flush_unpin(cx).map_err(into_io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn the_connection_ends_with_the_close_frame() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let channels = Channels::serve(ours, 1, Encoding::Binary);
        let mut writer = channels.writer(0);
        writer.write_all(b"last").await.unwrap();
        drop(writer);
        let closing = tokio::spawn(channels.close(Duration::from_secs(60)));
        // This client says nothing and keeps its own side open.
        let mut all = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), theirs.read_to_end(&mut all))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(all, b"\x82\x05\0last\x88\x02\x03\xe8");
        drop(theirs);
        closing.await.unwrap();
    }

    /// What comes before a client has made its streams is lost to it.
    #[tokio::test]
    async fn clients_have_time_to_make_their_streams() {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let began = std::time::Instant::now();
        let channels = Channels::serve(ours, 2, Encoding::Binary);
        channels.writer(1).write_all(b"all").await.unwrap();
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let first = client.next().await.unwrap().unwrap();
        assert_eq!(first, Message::binary(&b"\x01all"[..]));
        assert!(began.elapsed() >= HEAD_START);
    }

    /// A client sends on all channels, and nobody here reads them.
    #[tokio::test]
    async fn what_nobody_reads_costs_bounded_memory() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let _channels = Channels::serve(ours, 200, Encoding::Binary);
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let mut taken = 0;
        let mut payload = vec![0; 1 << 20];
        for n in 0..200 {
            payload[0] = n;
            let sent = client.send(Message::binary(payload.clone()));
            if tokio::time::timeout(Duration::from_secs(1), sent)
                .await
                .is_err()
            {
                break;
            }
            taken += payload.len();
        }
        assert!(taken < 8 << 20, "{taken} bytes are kept");
    }

    /// Channels on which nobody listens here hold up no other.
    #[tokio::test]
    async fn what_is_sent_where_nobody_listens_is_dropped() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let mut channels = Channels::serve(ours, 3, Encoding::Binary);
        let mut stdin = channels.reader(0).unwrap();
        channels.ignore_others();
        let mut client = WebSocketStream::from_raw_socket(theirs, Role::Client, None).await;
        let sending = async {
            for n in 0..200 {
                let mut payload = vec![1 + n % 2; 1 << 18];
                client.send(Message::binary(payload.clone())).await.unwrap();
                payload[0] = 0;
                client
                    .send(Message::binary(payload[..3].to_vec()))
                    .await
                    .unwrap();
            }
        };
        let reading = async {
            let mut all = vec![0; 400];
            stdin.read_exact(&mut all).await.unwrap();
        };
        let both = async { tokio::join!(sending, reading) };
        tokio::time::timeout(Duration::from_secs(30), both)
            .await
            .unwrap();
    }
}
