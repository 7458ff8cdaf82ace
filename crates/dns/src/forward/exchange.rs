//! One question to one server.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout_at};

use crate::message::question;

/// The room for a datagram: more than we say we take.
const DATAGRAM: usize = 4096;

/// How many answers to other questions are passed over before the server counts as lying. Each is a
/// guess at our id when it is forged, so there must not be many.
const MAX_STRANGERS: usize = 16;

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// A want of descriptors or ports: no fault of the server.
    #[error("no socket: {0}")]
    Local(io::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no answer in time")]
    Timeout,
    #[error("answers to other questions")]
    Strangers,
    #[error("malformed answer")]
    Malformed,
    #[error("truncated answer")]
    Truncated,
    #[error("the server does not know EDNS")]
    NoEdns,
    #[error("the question cannot be written: {0}")]
    Question(#[from] ProtoError),
}

/// An answer, and its bytes to keep.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) bytes: Vec<u8>,
    pub(super) message: Message,
}

/// Asks a server, by connection when its datagram was cut and without EDNS when it does not know that.
pub(super) async fn ask(
    server: SocketAddr,
    query: &Query,
    patience: Duration,
    end: Instant,
) -> Result<Heard, ExchangeError> {
    let mut edns = true;
    loop {
        let deadline = end.min(Instant::now() + patience);
        let asked = match within(deadline, by_datagram(server, query, edns)).await {
            Err(ExchangeError::Truncated) => {
                let deadline = end.min(Instant::now() + patience);
                within(deadline, by_connection(server, query, edns)).await
            }
            other => other,
        };
        match asked {
            Err(ExchangeError::NoEdns) if edns => edns = false,
            other => return other,
        }
    }
}

async fn within(
    deadline: Instant,
    exchange: impl Future<Output = Result<Heard, ExchangeError>>,
) -> Result<Heard, ExchangeError> {
    timeout_at(deadline, exchange)
        .await
        .unwrap_or(Err(ExchangeError::Timeout))
}

/// A socket for each question: the kernel takes a random port and lets only this server's datagrams in.
async fn by_datagram(
    server: SocketAddr,
    query: &Query,
    edns: bool,
) -> Result<Heard, ExchangeError> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.map_err(ExchangeError::Local)?;
    socket.connect(server).await?;
    let id = rand::random();
    socket.send(&question(id, query, edns)?).await?;
    let mut buffer = vec![0; DATAGRAM];
    for _ in 0..MAX_STRANGERS {
        let length = socket.recv(&mut buffer).await?;
        let bytes = buffer.get(..length).unwrap_or_default();
        match read(bytes, id, query) {
            Err(ExchangeError::Strangers) => {}
            other => return other,
        }
    }
    Err(ExchangeError::Strangers)
}

async fn by_connection(
    server: SocketAddr,
    query: &Query,
    edns: bool,
) -> Result<Heard, ExchangeError> {
    let mut stream = TcpStream::connect(server).await?;
    let id = rand::random();
    let message = question(id, query, edns)?;
    let length = u16::try_from(message.len()).map_err(|_| ExchangeError::Malformed)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend(message);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    match read(&bytes, id, query) {
        // There is nothing larger to ask for.
        Err(ExchangeError::Truncated) => Err(ExchangeError::Malformed),
        other => other,
    }
}

/// Reads an answer if it is one to our question (spec network.md 10.10).
pub(super) fn read(bytes: &[u8], id: u16, query: &Query) -> Result<Heard, ExchangeError> {
    let header: &[u8; 12] = bytes.first_chunk().ok_or(ExchangeError::Strangers)?;
    let [id0, id1, flags0, flags1, count0, count1, ..] = *header;
    let is_answer = flags0 & 0b1111_1000 == 0b1000_0000;
    if u16::from_be_bytes([id0, id1]) != id || !is_answer {
        return Err(ExchangeError::Strangers);
    }
    let code = ResponseCode::from(0, flags1 & 0x0F);
    let refuses_edns = matches!(code, ResponseCode::FormErr | ResponseCode::NotImp);
    match u16::from_be_bytes([count0, count1]) {
        // Servers that cannot read a question do not repeat it.
        0 if refuses_edns => return Err(ExchangeError::NoEdns),
        1 if question_of(bytes).as_ref() == Some(query) => {}
        _ => return Err(ExchangeError::Strangers),
    }
    if refuses_edns {
        return Err(ExchangeError::NoEdns);
    }
    if flags0 & 0b10 != 0 {
        return Err(ExchangeError::Truncated);
    }
    let message = Message::from_vec(bytes).map_err(|_| ExchangeError::Malformed)?;
    Ok(Heard {
        bytes: bytes.to_vec(),
        message,
    })
}

fn question_of(bytes: &[u8]) -> Option<Query> {
    let mut decoder = BinDecoder::new(bytes);
    decoder.read_slice(12).ok()?;
    Query::read(&mut decoder).ok()
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::rr::{Name, RecordType};

    use super::*;

    #[test]
    fn only_answers_to_the_question_count() {
        let query = Query::query(Name::from_str("a.example.").unwrap(), RecordType::A);
        let mut answer = question(7, &query, false).unwrap();
        assert!(
            matches!(read(&answer, 7, &query), Err(ExchangeError::Strangers)),
            "a question"
        );
        answer[2] |= 0x80;
        assert!(read(&answer, 7, &query).is_ok());
        assert!(
            matches!(read(&answer, 8, &query), Err(ExchangeError::Strangers)),
            "another id"
        );
        let other = Query::query(Name::from_str("b.example.").unwrap(), RecordType::A);
        assert!(
            matches!(read(&answer, 7, &other), Err(ExchangeError::Strangers)),
            "another name"
        );
        let other = Query::query(query.name.clone(), RecordType::AAAA);
        assert!(
            matches!(read(&answer, 7, &other), Err(ExchangeError::Strangers)),
            "another type"
        );
        let upper = Query::query(Name::from_str("A.Example.").unwrap(), RecordType::A);
        assert!(read(&answer, 7, &upper).is_ok(), "case does not count");
        answer[2] |= 0x02;
        assert!(matches!(
            read(&answer, 7, &query),
            Err(ExchangeError::Truncated)
        ));
        answer[2] &= !0x02;
        answer[7] = 1;
        assert!(
            matches!(read(&answer, 7, &query), Err(ExchangeError::Malformed)),
            "a record that is not there"
        );
        assert!(matches!(
            read(&answer[..5], 7, &query),
            Err(ExchangeError::Strangers)
        ));
        answer.truncate(12);
        answer[3] |= 1;
        answer[5] = 0;
        assert!(matches!(
            read(&answer, 7, &query),
            Err(ExchangeError::NoEdns)
        ));
    }
}
