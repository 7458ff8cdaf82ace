//! What others answered, for a while (spec network.md 6.7 rule 5).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{RData, RecordType};
use tokio::time::Instant;

use crate::message::Response;

/// The longest time an answer is kept.
pub(super) const MAX_AGE: Duration = Duration::from_secs(30);

/// The most answers.
const MAX_ENTRIES: usize = 10_000;

/// The most bytes of one answer that is kept, and so 40 MB of all.
const MAX_BYTES: usize = 4096;

/// An answer as it came: a tenth of the size of its records when read.
#[derive(Debug)]
struct Entry {
    bytes: Box<[u8]>,
    heard: Instant,
    expires: (Instant, u64),
}

/// Answers by question.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<Query, Entry>,
    /// By expiry, with a number since many expire at once.
    order: BTreeMap<(Instant, u64), Query>,
    count: u64,
}

impl Cache {
    /// The answer to a question, as old as it is.
    pub(super) fn get(&mut self, query: &Query, now: Instant) -> Option<Response> {
        let entry = self.entries.get(query)?;
        if entry.expires.0 <= now {
            self.remove(query);
            return None;
        }
        let age = now.duration_since(entry.heard).as_secs();
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        let message = Message::from_vec(&entry.bytes).ok()?;
        let mut response = response_of(message);
        let records = response.answers.iter_mut();
        let records = records
            .chain(&mut response.authorities)
            .chain(&mut response.additional);
        for record in records {
            record.ttl = record.ttl.saturating_sub(age);
        }
        Some(response)
    }

    /// Keeps an answer, if it may be kept.
    pub(super) fn insert(&mut self, query: Query, bytes: Vec<u8>, message: &Message, now: Instant) {
        let lifetime = lifetime(message);
        if lifetime.is_zero() || bytes.len() > MAX_BYTES {
            return;
        }
        self.remove(&query);
        while self.entries.len() >= MAX_ENTRIES {
            let Some((_, soonest)) = self.order.pop_first() else {
                break;
            };
            self.entries.remove(&soonest);
        }
        self.count += 1;
        let expires = (now + lifetime, self.count);
        self.order.insert(expires, query.clone());
        self.entries.insert(
            query,
            Entry {
                bytes: bytes.into(),
                heard: now,
                expires,
            },
        );
    }

    /// Forgets all: other servers may say other things.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }

    fn remove(&mut self, query: &Query) {
        if let Some(entry) = self.entries.remove(query) {
            self.order.remove(&entry.expires);
        }
    }
}

/// The contents of an answer of others.
pub(super) fn response_of(message: Message) -> Response {
    Response {
        code: message.metadata.response_code,
        authoritative: false,
        answers: message.answers,
        authorities: message.authorities,
        additional: message.additionals,
    }
}

/// How long an answer may be kept; a negative one by its SOA, without which it may not (RFC 2308, 5).
fn lifetime(message: &Message) -> Duration {
    // Aliases alone, without what was asked for, are a denial too.
    let wanted = message.queries.first().map(|query| query.query_type);
    let found = message.answers.iter().any(|record| match wanted {
        Some(RecordType::ANY) | None => true,
        Some(wanted) => record.record_type() == wanted,
    });
    let negative = !found || message.metadata.response_code == ResponseCode::NXDomain;
    let seconds = match message.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain if negative => {
            let soa = message
                .authorities
                .iter()
                .find_map(|record| match &record.data {
                    RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                    _ => None,
                });
            // Aliases before a name that does not exist may live shorter than the denial.
            let aliases = message.answers.iter().map(|record| record.ttl).min();
            soa.map(|soa| soa.min(aliases.unwrap_or(soa)))
        }
        ResponseCode::NoError => message.answers.iter().map(|record| record.ttl).min(),
        _ => None,
    };
    Duration::from_secs(seconds.unwrap_or(0).into()).min(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use hickory_proto::op::{MessageType, OpCode};
    use hickory_proto::rr::rdata::{A, CNAME, SOA};
    use hickory_proto::rr::{Name, Record};

    use super::*;

    fn query(name: &str) -> Query {
        Query::query(Name::from_str(name).unwrap(), RecordType::A)
    }

    fn positive(ttl: u32) -> Message {
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        let name = Name::from_str("a.example.").unwrap();
        message.add_answer(Record::from_rdata(
            name,
            ttl,
            RData::A(A::new(192, 0, 2, 1)),
        ));
        message
    }

    fn negative(ttl: u32, minimum: u32) -> Message {
        let mut message = Message::new(1, MessageType::Response, OpCode::Query);
        message.metadata.response_code = ResponseCode::NXDomain;
        let soa = SOA::new(Name::root(), Name::root(), 1, 2, 3, 4, minimum);
        message.add_authority(Record::from_rdata(Name::root(), ttl, RData::SOA(soa)));
        message
    }

    #[test]
    fn lifetimes() {
        assert_eq!(lifetime(&positive(7)), Duration::from_secs(7));
        assert_eq!(lifetime(&positive(7000)), MAX_AGE);
        assert_eq!(lifetime(&positive(0)), Duration::ZERO);
        assert_eq!(lifetime(&negative(20, 10)), Duration::from_secs(10));
        assert_eq!(lifetime(&negative(5, 10)), Duration::from_secs(5));
        assert_eq!(lifetime(&negative(900, 900)), MAX_AGE);
        let mut without_soa = negative(9, 9);
        without_soa.authorities.clear();
        assert_eq!(lifetime(&without_soa), Duration::ZERO);
        let mut alias = negative(20, 4);
        alias.metadata.response_code = ResponseCode::NoError;
        alias.add_query(query("a.example."));
        alias.add_answer(Record::from_rdata(
            Name::root(),
            25,
            RData::CNAME(CNAME(Name::root())),
        ));
        assert_eq!(lifetime(&alias), Duration::from_secs(4));
        let mut failure = positive(9);
        failure.metadata.response_code = ResponseCode::ServFail;
        assert_eq!(lifetime(&failure), Duration::ZERO);
    }

    #[test]
    fn answers_age_and_end() {
        let mut cache = Cache::default();
        let (message, now) = (positive(10), Instant::now());
        cache.insert(
            query("a.example."),
            message.to_vec().unwrap(),
            &message,
            now,
        );
        let later = now + Duration::from_secs(4);
        assert_eq!(
            cache.get(&query("a.example."), later).unwrap().answers[0].ttl,
            6
        );
        assert!(cache.get(&query("b.example."), later).is_none());
        assert!(
            cache
                .get(&query("a.example."), now + Duration::from_secs(10))
                .is_none()
        );
        assert!(cache.entries.is_empty() && cache.order.is_empty());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::default();
        let (long, short, now) = (positive(20), positive(10), Instant::now());
        let (long_bytes, short_bytes) = (long.to_vec().unwrap(), short.to_vec().unwrap());
        cache.insert(query("first."), short_bytes, &short, now);
        for number in 0..MAX_ENTRIES {
            cache.insert(
                query(&format!("n{number}.")),
                long_bytes.clone(),
                &long,
                now,
            );
        }
        assert_eq!(
            (cache.entries.len(), cache.order.len()),
            (MAX_ENTRIES, MAX_ENTRIES)
        );
        assert!(cache.get(&query("first."), now).is_none());
        assert!(cache.get(&query("n0."), now).is_some());
        cache.insert(query("large."), vec![0; MAX_BYTES + 1], &long, now);
        assert!(cache.get(&query("large."), now).is_none());
    }
}
