//! The wire format: the bytes of a question in, the bytes of its answer out (spec network.md 6.3).

mod encode;
mod request;
#[cfg(test)]
mod tests;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Record, RecordType};

use crate::zone::Answer;
pub(crate) use encode::question;
pub use encode::{Header, Response};
pub use request::{Malformed, Request};

/// The most bytes of an answer by UDP to a client that says nothing of its own limit (RFC 1035, 4.2.1).
pub const PLAIN_UDP: u16 = 512;

/// The most bytes of an answer by UDP to any client: no link fragments it (spec network.md 6.3 rule 2).
pub const MAX_UDP: u16 = 1232;

/// The most bytes of a question that is read; a name, an OPT record and a margin for its options.
pub const MAX_REQUEST: usize = 4096;

/// How a question came, which bounds its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// By datagram.
    Udp,
    /// By connection.
    Tcp,
}

/// An answer, ready to be sent.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The message.
    pub bytes: Vec<u8>,
    /// Its code.
    pub code: ResponseCode,
    /// The type that was asked for, when the question could be read.
    pub kind: Option<RecordType>,
    /// Whether it comes from the zone of the cluster.
    pub inside: bool,
}

/// A question that others are to answer, wholly or from an alias on.
#[derive(Debug, Clone)]
pub struct Forward {
    request: Request,
    /// What to ask them.
    pub query: Query,
    aliases: Vec<Record>,
}

/// What follows from a message.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing is sent: it is too short to have an id, or an answer itself.
    Nothing,
    /// The answer is known.
    Reply(Reply),
    /// Others know the answer.
    Forward(Box<Forward>),
}

/// Answers a message out of the zone, as far as it can be; `recursion` says whether others can be asked.
pub fn respond(
    bytes: &[u8],
    transport: Transport,
    recursion: bool,
    answer: impl FnOnce(&Query) -> Answer,
) -> Outcome {
    let request = match Request::parse(bytes, transport) {
        Ok(request) => request,
        Err(malformed) => return malformed.reply().map_or(Outcome::Nothing, Outcome::Reply),
    };
    if request.edns_version().is_some_and(|version| version != 0) {
        let response = Response::of_code(ResponseCode::BADVERS);
        return Outcome::Reply(request.reply(response, recursion, false));
    }
    let (query, aliases) = match answer(request.query()) {
        Answer::NotInZone => (request.query().clone(), Vec::new()),
        Answer::Alias { answers, target } if recursion => {
            let kind = request.query().query_type;
            (Query::query(target, kind), answers)
        }
        inside => {
            let response = Response::of_zone(inside);
            return Outcome::Reply(request.reply(response, recursion, true));
        }
    };
    if recursion {
        Outcome::Forward(Box::new(Forward {
            request,
            query,
            aliases,
        }))
    } else {
        let response = Response::of_code(ResponseCode::Refused);
        Outcome::Reply(request.reply(response, false, false))
    }
}

impl Forward {
    /// The answer, with what others said.
    #[must_use]
    pub fn reply(self, mut response: Response) -> Reply {
        let inside = !self.aliases.is_empty();
        if inside {
            response.authoritative = true;
            // The alias is true whatever happens to its target (spec network.md 6.2 rule 5).
            if matches!(
                response.code,
                ResponseCode::ServFail | ResponseCode::Refused
            ) {
                response.code = ResponseCode::NoError;
            }
            let mut answers = self.aliases;
            answers.append(&mut response.answers);
            response.answers = answers;
        }
        self.request.reply(response, true, inside)
    }

    /// The answer when others cannot be asked.
    #[must_use]
    pub fn fail(self) -> Reply {
        self.reply(Response::of_code(ResponseCode::ServFail))
    }
}
