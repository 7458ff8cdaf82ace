//! The server side of a SPDY/3.1 session: streams that the client opens, as readers and writers.
//!
//! Only what remotecommand and port-forward use: no server push, no flow-control windows (Kubernetes' clients neither
//! send nor honour them; TCP does the work), no priorities.

mod frame;
mod stream;

pub use stream::{Stream, StreamReader, StreamWriter};

use crate::inbound::{self, Feed, QUEUE, Room};
use bytes::BytesMut;
use frame::{Codec, FLAG_FIN, Frame, Head, Kind};
use std::collections::HashMap;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Streams that may be open at once in one session.
const MAX_STREAMS: usize = 1024;
/// Largest piece of a DATA frame handed on at once.
const CHUNK: usize = 32 * 1024;
const RESET_REFUSED: u32 = 3;

/// A session over an upgraded connection. Dropping it closes the connection.
#[derive(Debug)]
pub struct Session {
    incoming: mpsc::Receiver<Stream>,
    driver: AbortOnDropHandle<io::Result<()>>,
    to_peer: mpsc::Sender<Frame>,
}

impl Session {
    /// Serves the session on `io`.
    pub fn serve<T>(io: T) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (opened, incoming) = mpsc::channel(QUEUE);
        let (to_peer, frames) = mpsc::channel(QUEUE);
        let (reader, writer) = tokio::io::split(io);
        let receiver = Receiver {
            opened,
            to_peer: to_peer.clone(),
            room: Room::new(),
            streams: HashMap::new(),
        };
        let driver = tokio::spawn(async move {
            // Whichever side ends first ends the connection.
            tokio::select! {
                result = receiver.run(reader) => result,
                result = send(writer, frames) => result,
            }
        });
        Self {
            incoming,
            driver: AbortOnDropHandle::new(driver),
            to_peer,
        }
    }

    /// The next stream the client opens; `None` when the connection has ended.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Waits until the connection has ended.
    pub async fn lost(&self) {
        self.to_peer.closed().await;
    }

    /// Says good-bye and waits until what was written is on its way or `deadline` has passed.
    pub async fn close(self, deadline: std::time::Duration) {
        let Self {
            incoming,
            mut driver,
            to_peer,
        } = self;
        let farewell = async {
            // The peer closes the connection when it has read this; an error means that it has gone already.
            if to_peer
                .send(Frame::GoAway {
                    last_good: 0,
                    status: 0,
                })
                .await
                .is_ok()
            {
                drop(to_peer);
                let _ended = (&mut driver).await;
            }
        };
        if tokio::time::timeout(deadline, farewell).await.is_err() {
            tracing::debug!("client did not close its stream connection in time");
        }
        drop(incoming);
    }
}

async fn send(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::Receiver<Frame>,
) -> io::Result<()> {
    let mut codec = Codec::new();
    let mut out = BytesMut::with_capacity(CHUNK);
    while let Some(frame) = frames.recv().await {
        codec.encode(&frame, &mut out)?;
        while let Ok(more) = frames.try_recv() {
            codec.encode(&more, &mut out)?;
            if out.len() > CHUNK {
                break;
            }
        }
        writer.write_all(&out).await?;
        writer.flush().await?;
        out.clear();
    }
    writer.shutdown().await
}

struct Receiver {
    opened: mpsc::Sender<Stream>,
    to_peer: mpsc::Sender<Frame>,
    room: Room,
    streams: HashMap<u32, Feed>,
}

impl Receiver {
    async fn run(mut self, mut reader: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut codec = Codec::new();
        loop {
            let mut head = [0; 8];
            match reader.read_exact(&mut head).await {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
            let head = Head::parse(head)?;
            match head.kind {
                Kind::Data(id) => self.data(&mut reader, id, head).await?,
                Kind::Control(kind) => {
                    let mut payload = vec![0; head.length];
                    reader.read_exact(&mut payload).await?;
                    let frame = codec.decode_control(kind, head.flags, &payload)?;
                    self.control(frame).await?;
                }
            }
        }
    }

    async fn data(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        id: u32,
        head: Head,
    ) -> io::Result<()> {
        let mut left = head.length;
        while left > 0 {
            let mut chunk = BytesMut::zeroed(left.min(CHUNK));
            reader.read_exact(&mut chunk).await?;
            left -= chunk.len();
            // A reader that is gone only means that nobody wants the rest.
            if let Some(stream) = self.streams.get(&id)
                && !self.room.hand_on(chunk.freeze(), stream).await
            {
                self.streams.remove(&id);
            }
        }
        if head.flags & FLAG_FIN != 0 {
            self.streams.remove(&id);
        }
        Ok(())
    }

    async fn control(&mut self, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::SynStream { id, headers, fin } => self.open(id, headers, fin).await,
            Frame::Reset { id, .. } => {
                self.streams.remove(&id);
                Ok(())
            }
            Frame::Headers { id, fin } => {
                if fin {
                    self.streams.remove(&id);
                }
                Ok(())
            }
            Frame::Ping { id } => self.answer(Frame::Ping { id }).await,
            Frame::SynReply { .. } | Frame::GoAway { .. } | Frame::Data { .. } | Frame::Other => {
                Ok(())
            }
        }
    }

    async fn open(&mut self, id: u32, headers: frame::Headers, fin: bool) -> io::Result<()> {
        self.streams.retain(|_, stream| !stream.is_closed());
        if id.is_multiple_of(2)
            || self.streams.contains_key(&id)
            || self.streams.len() >= MAX_STREAMS
        {
            return self
                .answer(Frame::Reset {
                    id,
                    status: RESET_REFUSED,
                })
                .await;
        }
        self.answer(Frame::SynReply {
            id,
            headers: Vec::new(),
            fin: false,
        })
        .await?;
        let (feed, chunks) = inbound::stream();
        if !fin {
            self.streams.insert(id, feed);
        }
        let stream = Stream::new(id, headers, chunks, self.to_peer.clone());
        self.opened
            .send(stream)
            .await
            .map_err(|_| io::ErrorKind::ConnectionAborted.into())
    }

    async fn answer(&self, frame: Frame) -> io::Result<()> {
        self.to_peer
            .send(frame)
            .await
            .map_err(|_| io::ErrorKind::ConnectionAborted.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::time::Duration;

    /// A hand-made client: writes frames, reads frames.
    struct Client {
        io: tokio::io::DuplexStream,
        codec: Codec,
    }

    impl Client {
        async fn send(&mut self, frame: Frame) {
            let mut out = BytesMut::new();
            self.codec.encode(&frame, &mut out).unwrap();
            self.io.write_all(&out).await.unwrap();
        }

        async fn receive(&mut self) -> Frame {
            let mut head = [0; 8];
            self.io.read_exact(&mut head).await.unwrap();
            let head = Head::parse(head).unwrap();
            let mut payload = vec![0; head.length];
            self.io.read_exact(&mut payload).await.unwrap();
            match head.kind {
                Kind::Data(id) => Frame::Data {
                    id,
                    payload: payload.into(),
                    fin: head.flags & FLAG_FIN != 0,
                },
                Kind::Control(kind) => self
                    .codec
                    .decode_control(kind, head.flags, &payload)
                    .unwrap(),
            }
        }
    }

    fn pair() -> (Client, Session) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        (
            Client {
                io: ours,
                codec: Codec::new(),
            },
            Session::serve(theirs),
        )
    }

    #[tokio::test]
    async fn stream_carries_bytes_both_ways_and_half_closes() {
        let (mut client, mut session) = pair();
        let headers = vec![("streamtype".to_owned(), "data".to_owned())];
        client
            .send(Frame::SynStream {
                id: 1,
                headers,
                fin: false,
            })
            .await;
        let mut stream = session.accept().await.unwrap();
        assert_eq!(stream.header("streamType"), Some("data"));
        assert!(matches!(
            client.receive().await,
            Frame::SynReply { id: 1, .. }
        ));

        let big = vec![7u8; 100_000];
        client
            .send(Frame::Data {
                id: 1,
                payload: big.clone().into(),
                fin: true,
            })
            .await;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, big);

        stream.write_all(b"answer").await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(
            client.receive().await,
            Frame::Data {
                id: 1,
                payload: Bytes::from_static(b"answer"),
                fin: false
            }
        );
        assert_eq!(
            client.receive().await,
            Frame::Data {
                id: 1,
                payload: Bytes::new(),
                fin: true
            }
        );
    }

    /// One of the two streams of a connection comes alone, with more than a session may have unread.
    #[tokio::test(start_paused = true)]
    async fn a_half_that_stays_alone_does_not_hold_the_session() {
        let (mut client, session) = pair();
        let (dialled, mut ports) = mpsc::channel(1);
        let serving = tokio::spawn(crate::portforward::serve_spdy(
            session,
            std::sync::Arc::new(move |port| {
                let dialled = dialled.clone();
                async move {
                    dialled.send(port).await.unwrap();
                    Err::<tokio::io::DuplexStream, _>("nobody there")
                }
            }),
        ));
        let open = |id, kind: &str, request: &str| Frame::SynStream {
            id,
            headers: [("streamtype", kind), ("requestid", request), ("port", "80")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            fin: false,
        };
        client.send(open(1, "data", "alone")).await;
        for _ in 0..24 {
            let payload = vec![0; 64 << 10].into();
            client
                .send(Frame::Data {
                    id: 1,
                    payload,
                    fin: false,
                })
                .await;
        }
        client.send(open(3, "error", "pair")).await;
        client.send(open(5, "data", "pair")).await;
        let port = tokio::time::timeout(Duration::from_secs(60), ports.recv()).await;
        assert_eq!(port.unwrap(), Some(80));
        serving.abort();
    }

    #[tokio::test]
    async fn ping_is_answered_and_even_stream_ids_are_refused() {
        let (mut client, _session) = pair();
        client.send(Frame::Ping { id: 9 }).await;
        assert_eq!(client.receive().await, Frame::Ping { id: 9 });
        client
            .send(Frame::SynStream {
                id: 2,
                headers: Vec::new(),
                fin: false,
            })
            .await;
        assert_eq!(
            client.receive().await,
            Frame::Reset {
                id: 2,
                status: RESET_REFUSED
            }
        );
    }

    #[tokio::test]
    async fn lost_connection_ends_streams() {
        let (mut client, mut session) = pair();
        client
            .send(Frame::SynStream {
                id: 1,
                headers: Vec::new(),
                fin: false,
            })
            .await;
        let mut stream = session.accept().await.unwrap();
        drop(client);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(session.accept().await.is_none());
    }

    /// A client opens streams and sends on each a little less than blocks it; nobody here reads them.
    #[tokio::test]
    async fn what_nobody_reads_costs_bounded_memory() {
        let (mut client, mut session) = pair();
        let mut streams = Vec::new();
        let mut taken = 0;
        'attack: for n in 0..100 {
            let id = 2 * n + 1;
            let opened = client.send(Frame::SynStream {
                id,
                headers: Vec::new(),
                fin: false,
            });
            if tokio::time::timeout(Duration::from_secs(1), opened)
                .await
                .is_err()
            {
                break;
            }
            let Ok(stream) = tokio::time::timeout(Duration::from_secs(1), session.accept()).await
            else {
                break;
            };
            streams.push(stream.unwrap());
            for _ in 0..QUEUE - 1 {
                let payload = vec![0; CHUNK].into();
                let sent = client.send(Frame::Data {
                    id,
                    payload,
                    fin: false,
                });
                if tokio::time::timeout(Duration::from_secs(1), sent)
                    .await
                    .is_err()
                {
                    break 'attack;
                }
                taken += CHUNK;
            }
        }
        assert!(taken < 8 << 20, "{taken} bytes are kept");
    }

    /// A client opens streams with large headers, which cost it little, compressed.
    #[tokio::test]
    async fn headers_of_streams_have_a_length() {
        let (mut client, mut session) = pair();
        let large = ("x".to_owned(), "a".repeat(100_000));
        client
            .send(Frame::SynStream {
                id: 1,
                headers: vec![large],
                fin: false,
            })
            .await;
        assert!(session.accept().await.is_none(), "such a session ends");
    }
}
