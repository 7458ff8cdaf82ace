//! Writing answers.
//!
//! The owner of nearly every record is the name in the question: it is written as a pointer here, since the
//! general compression of names gives up after some hundred, and then an answer is three times as long.

use hickory_proto::ProtoError;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordData, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use super::MAX_UDP;
use crate::zone::Answer;

/// The bytes of a header (RFC 1035, 4.1.1).
const HEADER: usize = 12;

/// The bytes of an OPT record without options (RFC 6891, 6.1.2).
const OPT: u16 = 11;

/// A pointer to the name of the question, right behind the header (RFC 1035, 4.1.4).
const QUESTION_NAME: u16 = 0xC00C;

const ANSWER: u16 = 1 << 15;
const OPERATION: u16 = 0b1111 << 11;
const AUTHORITATIVE: u16 = 1 << 10;
const TRUNCATED: u16 = 1 << 9;
const RECURSION_DESIRED: u16 = 1 << 8;
const RECURSION_AVAILABLE: u16 = 1 << 7;
const CHECKING_DISABLED: u16 = 1 << 4;

/// The part of a header that an answer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    id: u16,
    flags: u16,
    questions: u16,
}

impl Header {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let [id0, id1, flags0, flags1, count0, count1, ..] = *header;
        Some(Self {
            id: u16::from_be_bytes([id0, id1]),
            flags: u16::from_be_bytes([flags0, flags1]),
            questions: u16::from_be_bytes([count0, count1]),
        })
    }

    pub(super) fn is_answer(self) -> bool {
        self.flags & ANSWER != 0
    }

    pub(super) fn operation(self) -> u16 {
        self.flags & OPERATION
    }

    pub(super) fn questions(self) -> u16 {
        self.questions
    }

    /// The flags of the answer: what the client said comes back, the rest is ours.
    fn answer_flags(self, code: ResponseCode) -> u16 {
        let kept = self.flags & (OPERATION | RECURSION_DESIRED | CHECKING_DISABLED);
        ANSWER | kept | u16::from(code.low())
    }
}

/// The contents of an answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The code.
    pub code: ResponseCode,
    /// Whether it is from the zone.
    pub authoritative: bool,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additional: Vec<Record>,
}

impl Response {
    /// Nothing but a code.
    #[must_use]
    pub fn of_code(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additional: Vec::new(),
        }
    }

    /// What the zone says (spec network.md 6.2).
    #[must_use]
    pub fn of_zone(answer: Answer) -> Self {
        let mut response = Self::of_code(ResponseCode::NoError);
        response.authoritative = true;
        match answer {
            Answer::Records {
                answers,
                additional,
            } => {
                response.answers = answers;
                response.additional = additional;
            }
            Answer::Alias { answers, .. } => response.answers = answers,
            Answer::NoData { aliases, soa } => {
                response.answers = aliases;
                response.authorities = vec![*soa];
            }
            Answer::NxDomain { aliases, soa } => {
                response.code = ResponseCode::NXDomain;
                response.answers = aliases;
                response.authorities = vec![*soa];
            }
            Answer::ServFail => return Self::of_code(ResponseCode::ServFail),
            Answer::Refused | Answer::NotInZone => return Self::of_code(ResponseCode::Refused),
        }
        response
    }

    /// Turns the order of the addresses, so that clients spread over them (spec network.md 6.2 rule 4).
    pub fn rotate(&mut self, turn: u32) {
        let is_address =
            |record: &Record| matches!(record.record_type(), RecordType::A | RecordType::AAAA);
        let start = self
            .answers
            .iter()
            .position(is_address)
            .unwrap_or(self.answers.len());
        if let Some(addresses) = self.answers.get_mut(start..)
            && addresses.iter().all(is_address)
            && !addresses.is_empty()
        {
            let middle = turn as usize % addresses.len();
            addresses.rotate_left(middle);
        }
    }
}

/// An answer to what could not be read.
pub(super) fn without_question(header: Header, code: ResponseCode) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend(header.id.to_be_bytes());
    bytes.extend(header.answer_flags(code).to_be_bytes());
    bytes.resize(HEADER, 0);
    bytes
}

/// Writes an answer of at most `limit` bytes; what does not fit is left out, by whole records.
pub(super) fn message(
    header: Header,
    query: &Query,
    response: &Response,
    recursion: bool,
    edns: bool,
    limit: u16,
) -> Result<Vec<u8>, ProtoError> {
    let mut bytes = Vec::with_capacity(usize::from(limit).min(1024));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(if edns {
        limit.saturating_sub(OPT)
    } else {
        limit
    });
    encoder.emit_vec(&[0; HEADER])?;
    query.emit(&mut encoder)?;
    let answers = section(&mut encoder, &query.name, &response.answers)?;
    let mut cut = usize::from(answers) < response.answers.len();
    let mut authorities = 0;
    if !cut {
        authorities = section(&mut encoder, &query.name, &response.authorities)?;
        // The SOA of a denial is needed, the servers behind an answer are not (RFC 2181, 9).
        cut = answers == 0 && usize::from(authorities) < response.authorities.len();
    }
    let mut additional = 0;
    if !cut {
        // Additional records that are missing are not worth a second question (RFC 2181, 9).
        additional = section(&mut encoder, &query.name, &response.additional)?;
    }
    if edns {
        encoder.set_max_size(limit);
        opt(&mut encoder, response.code)?;
        additional += 1;
    }
    let mut flags = header.answer_flags(response.code);
    flags |= if response.authoritative {
        AUTHORITATIVE
    } else {
        0
    };
    flags |= if recursion { RECURSION_AVAILABLE } else { 0 };
    flags |= if cut { TRUNCATED } else { 0 };
    let fields = [header.id, flags, 1, answers, authorities, additional];
    for (place, field) in bytes.chunks_exact_mut(2).zip(fields) {
        place.copy_from_slice(&field.to_be_bytes());
    }
    Ok(bytes)
}

/// Writes records as long as there is room, and gives their number.
fn section(
    encoder: &mut BinEncoder<'_>,
    question: &Name,
    records: &[Record],
) -> Result<u16, ProtoError> {
    let mut written = 0;
    for each in records {
        let start = encoder.offset();
        match record(encoder, question, each) {
            Ok(()) => written += 1,
            Err(ProtoError::MaxBufferSizeExceeded(_)) => {
                encoder.set_offset(start);
                encoder.trim();
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

fn record(
    encoder: &mut BinEncoder<'_>,
    question: &Name,
    record: &Record,
) -> Result<(), ProtoError> {
    if !question.is_root() && record.name == *question {
        encoder.emit_u16(QUESTION_NAME)?;
    } else {
        record.name.emit(encoder)?;
    }
    record.record_type().emit(encoder)?;
    record.dns_class.emit(encoder)?;
    encoder.emit_u32(record.ttl)?;
    let length = encoder.place::<u16>()?;
    if !record.data.is_update() {
        record.data.emit(encoder)?;
    }
    let bytes = u16::try_from(encoder.len_since_place(&length))
        .map_err(|_| ProtoError::from("record too long"))?;
    length.replace(encoder, bytes)
}

/// Our own limits (RFC 6891, 6.1.2 and 6.1.3): version 0, no options, no signatures.
fn opt(encoder: &mut BinEncoder<'_>, code: ResponseCode) -> Result<(), ProtoError> {
    encoder.emit_u8(0)?;
    RecordType::OPT.emit(encoder)?;
    DNSClass::OPT(MAX_UDP).emit(encoder)?;
    encoder.emit_u8(code.high())?;
    encoder.emit_u8(0)?;
    encoder.emit_u32(0)
}

/// A question to others: recursion desired, EDNS with our own limit unless they do not know it.
pub(crate) fn question(id: u16, query: &Query, edns: bool) -> Result<Vec<u8>, ProtoError> {
    let mut bytes = Vec::new();
    let mut encoder = BinEncoder::new(&mut bytes);
    for field in [id, RECURSION_DESIRED, 1, 0, 0, u16::from(edns)] {
        encoder.emit_u16(field)?;
    }
    query.emit(&mut encoder)?;
    if edns {
        opt(&mut encoder, ResponseCode::NoError)?;
    }
    Ok(bytes)
}
