//! A server of others, as good or bad as a test wants it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Answers 192.0.2.1 and the given last octet.
    Honest,
    /// Answers nothing.
    Silent,
    /// Answers with another id, once.
    WrongId,
    /// Answers with many ids, as a forger does.
    Guessing,
    /// Answers another question.
    WrongQuestion,
    /// Answers datagrams with nothing but TC.
    Truncating,
    /// Answers datagrams with TC and refuses connections' questions.
    TruncatingOnly,
    /// Denies every name.
    Denying,
    /// Has a fault of its own.
    Failing,
    /// Does not know EDNS.
    Old,
    /// Answers with a record that is cut.
    Broken,
}

pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Questions by datagram, probes left out.
    pub(crate) datagrams: Arc<AtomicUsize>,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) probes: Arc<AtomicUsize>,
    /// A permit for each answer; honest servers have plenty unless they are held.
    pub(crate) gate: Arc<Semaphore>,
}

/// Sockets of one port for datagrams and connections.
pub(crate) async fn sockets(address: &str) -> (UdpSocket, TcpListener) {
    loop {
        let datagrams = UdpSocket::bind((address, 0)).await.unwrap();
        let port = datagrams.local_addr().unwrap().port();
        // Another test may have the port for connections.
        if let Ok(connections) = TcpListener::bind((address, port)).await {
            return (datagrams, connections);
        }
    }
}

/// An address where nobody listens, whatever ports other tests are given meanwhile.
pub(crate) async fn nobody() -> SocketAddr {
    let (datagrams, _connections) = sockets("127.0.0.5").await;
    datagrams.local_addr().unwrap()
}

impl Upstream {
    pub(crate) async fn start(manner: Manner) -> Self {
        let upstream = Self::held(manner).await;
        upstream.gate.add_permits(100_000);
        upstream
    }

    /// One that answers only as often as the gate says.
    pub(crate) async fn held(manner: Manner) -> Self {
        let (datagrams, connections) = sockets("127.0.0.1").await;
        let upstream = Self {
            address: datagrams.local_addr().unwrap(),
            datagrams: Arc::default(),
            connections: Arc::default(),
            probes: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        };
        let (asked, probes) = (upstream.datagrams.clone(), upstream.probes.clone());
        tokio::spawn(serve_datagrams(
            datagrams,
            manner,
            asked,
            probes,
            upstream.gate.clone(),
        ));
        tokio::spawn(serve_connections(
            connections,
            manner,
            upstream.connections.clone(),
        ));
        upstream
    }

    pub(crate) fn asked(&self) -> usize {
        self.datagrams.load(Ordering::SeqCst)
    }
}

async fn serve_datagrams(
    socket: UdpSocket,
    manner: Manner,
    asked: Arc<AtomicUsize>,
    probes: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; 4096];
    while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
        let question = Message::from_vec(&buffer[..length]).unwrap();
        let probe = question.queries[0].name.is_root();
        if probe { &probes } else { &asked }.fetch_add(1, Ordering::SeqCst);
        let (socket, gate) = (socket.clone(), gate.clone());
        tokio::spawn(async move {
            gate.acquire().await.unwrap().forget();
            for answer in answers(manner, &question) {
                socket.send_to(&answer, client).await.unwrap();
            }
        });
    }
}

async fn serve_connections(listener: TcpListener, manner: Manner, asked: Arc<AtomicUsize>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let length = stream.read_u16().await.unwrap();
        let mut bytes = vec![0; length.into()];
        stream.read_exact(&mut bytes).await.unwrap();
        asked.fetch_add(1, Ordering::SeqCst);
        if manner == Manner::TruncatingOnly {
            continue;
        }
        let question = Message::from_vec(&bytes).unwrap();
        let answer = positive(&question, 200).to_vec().unwrap();
        stream
            .write_u16(u16::try_from(answer.len()).unwrap())
            .await
            .unwrap();
        stream.write_all(&answer).await.unwrap();
    }
}

fn answers(manner: Manner, question: &Message) -> Vec<Vec<u8>> {
    let mut answer = empty(question);
    match manner {
        Manner::Honest => answer = positive(question, 1),
        Manner::Silent => return Vec::new(),
        Manner::WrongId => {
            answer = positive(question, 1);
            answer.metadata.id ^= 1;
        }
        Manner::Guessing => {
            let guess = |offset| {
                let mut guess = positive(question, 1);
                guess.metadata.id = question.metadata.id.wrapping_add(offset);
                guess.to_vec().unwrap()
            };
            return (1..40).map(guess).collect();
        }
        Manner::WrongQuestion => {
            answer = positive(question, 1);
            let name = Name::from_ascii("other.example.").unwrap();
            answer.queries = vec![Query::query(name, question.queries[0].query_type)];
        }
        Manner::Truncating | Manner::TruncatingOnly => answer.metadata.truncation = true,
        Manner::Denying => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            let soa = RData::SOA(SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, 20));
            answer.add_authority(Record::from_rdata(Name::root(), 20, soa));
        }
        Manner::Failing => answer.metadata.response_code = ResponseCode::ServFail,
        Manner::Old if question.edns.is_some() => {
            answer.metadata.response_code = ResponseCode::FormErr;
            answer.queries.clear();
        }
        Manner::Old => answer = positive(question, 1),
        Manner::Broken => {
            let mut bytes = positive(question, 1).to_vec().unwrap();
            bytes.truncate(bytes.len() - 2);
            return vec![bytes];
        }
    }
    vec![answer.to_vec().unwrap()]
}

fn empty(question: &Message) -> Message {
    let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
    answer.add_queries(question.queries.clone());
    answer
}

/// So many addresses, for 20 seconds.
fn positive(question: &Message, count: u8) -> Message {
    let mut answer = empty(question);
    for last in 1..=count {
        let data = RData::A(A::new(192, 0, 2, last));
        answer.add_answer(Record::from_rdata(
            question.queries[0].name.clone(),
            20,
            data,
        ));
    }
    answer
}
