//! Reading questions.

use hickory_proto::op::{Message, Query, ResponseCode};

use super::encode::{self, Header, Response};
use super::{MAX_REQUEST, MAX_UDP, PLAIN_UDP, Reply, Transport};

/// A question that can be answered.
#[derive(Debug, Clone)]
pub struct Request {
    header: Header,
    query: Query,
    edns: Option<Edns>,
    transport: Transport,
}

/// What a client says of itself (RFC 6891, 6.1.3).
#[derive(Debug, Clone, Copy)]
struct Edns {
    payload: u16,
    version: u8,
}

/// A message that is no question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Shorter than a header, or an answer: to reply could start an endless exchange.
    #[error("not a question")]
    NotAQuestion,
    /// It cannot be read, or has not exactly one question.
    #[error("malformed")]
    Unreadable(Header),
    /// It wants something else than an answer: updates, notifications.
    #[error("operation not implemented")]
    Operation(Header),
}

impl Malformed {
    /// The answer that says so, if one may be given.
    #[must_use]
    pub fn reply(self) -> Option<Reply> {
        let (header, code) = match self {
            Self::NotAQuestion => return None,
            Self::Unreadable(header) => (header, ResponseCode::FormErr),
            Self::Operation(header) => (header, ResponseCode::NotImp),
        };
        let bytes = encode::without_question(header, code);
        Some(Reply {
            bytes,
            code,
            kind: None,
            inside: false,
        })
    }
}

impl Request {
    /// Reads a question.
    ///
    /// # Errors
    /// When the message is none; [`Malformed::reply`] says what to answer then.
    pub fn parse(bytes: &[u8], transport: Transport) -> Result<Self, Malformed> {
        let header = Header::parse(bytes).ok_or(Malformed::NotAQuestion)?;
        if header.is_answer() {
            return Err(Malformed::NotAQuestion);
        }
        if header.operation() != 0 {
            return Err(Malformed::Operation(header));
        }
        // Before anything is read: the reader believes the counts and would make room for them.
        if bytes.len() > MAX_REQUEST || header.questions() != 1 {
            return Err(Malformed::Unreadable(header));
        }
        let mut message = Message::from_vec(bytes).map_err(|_| Malformed::Unreadable(header))?;
        let query = message.queries.pop().ok_or(Malformed::Unreadable(header))?;
        let edns = message.edns.map(|edns| Edns {
            payload: edns.max_payload(),
            version: edns.version(),
        });
        Ok(Self {
            header,
            query,
            edns,
            transport,
        })
    }

    /// What is asked.
    #[must_use]
    pub fn query(&self) -> &Query {
        &self.query
    }

    /// The version of EDNS the client speaks; none when it does not.
    #[must_use]
    pub fn edns_version(&self) -> Option<u8> {
        self.edns.map(|edns| edns.version)
    }

    /// The most bytes of the answer (spec network.md 6.3 rule 2).
    #[must_use]
    pub fn limit(&self) -> u16 {
        match (self.transport, self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_UDP,
            (Transport::Udp, Some(edns)) => edns.payload.clamp(PLAIN_UDP, MAX_UDP),
        }
    }

    /// The message that answers this one.
    #[must_use]
    pub fn reply(&self, mut response: Response, recursion: bool, inside: bool) -> Reply {
        response.rotate(rand::random());
        let edns = self.edns.is_some();
        let encoded = encode::message(
            self.header,
            &self.query,
            &response,
            recursion,
            edns,
            self.limit(),
        );
        // What cannot be written at all is a fault of the records, of which the client shall hear.
        let (bytes, code) = match encoded {
            Ok(bytes) => (bytes, response.code),
            Err(error) => {
                tracing::debug!(name = %self.query.name, %error, "an answer cannot be encoded");
                let code = ResponseCode::ServFail;
                (encode::without_question(self.header, code), code)
            }
        };
        Reply {
            bytes,
            code,
            kind: Some(self.query.query_type),
            inside,
        }
    }
}
