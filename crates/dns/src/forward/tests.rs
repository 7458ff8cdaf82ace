//! What only the inside of the forwarder can be made to do.

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::rdata::svcb::{Alpn, SvcParamKey, SvcParamValue};
use hickory_proto::rr::rdata::{A, CNAME, HTTPS, MX, NAPTR, NULL, SOA, SRV, SVCB, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::message::{MAX_UDP, Request, Transport};

const ANSWERS: usize = 30_000;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// An answer with one record of each kind that has a form of its own.
fn answer(query: &Query) -> Vec<u8> {
    let alpn = (
        SvcParamKey::Alpn,
        SvcParamValue::Alpn(Alpn(vec!["h2".to_owned()])),
    );
    let service = SVCB::new(1, name("svc.example."), vec![alpn]);
    let soa = SOA::new(name("ns.example."), name("admin.example."), 1, 2, 3, 4, 5);
    let naptr = NAPTR::new(
        1,
        2,
        b"u".to_vec().into(),
        b"s".to_vec().into(),
        b"!a!b!".to_vec().into(),
        name("n.example."),
    );
    let unknown = RData::Unknown {
        code: RecordType::Unknown(65_280),
        rdata: NULL::with(vec![1, 2, 3]),
    };
    let records = [
        RData::CNAME(CNAME(name("b.example."))),
        RData::A(A::new(192, 0, 2, 1)),
        RData::MX(MX::new(10, name("mail.example."))),
        RData::TXT(TXT::new(vec!["text".to_owned()])),
        RData::SRV(SRV::new(1, 2, 3, name("srv.example."))),
        RData::HTTPS(HTTPS(service)),
        RData::NAPTR(naptr),
        unknown,
    ];
    let mut message = Message::new(7, MessageType::Response, OpCode::Query);
    message.add_query(query.clone());
    for data in records {
        message.add_answer(Record::from_rdata(query.name.clone(), 60, data));
    }
    message.add_authority(Record::from_rdata(name("example."), 60, RData::SOA(soa)));
    message.to_vec().unwrap()
}

#[test]
fn no_answer_is_too_strange() {
    let query = Query::query(name("a.example."), RecordType::ANY);
    let request = Request::parse(
        &crate::message::question(9, &query, true).unwrap(),
        Transport::Udp,
    )
    .unwrap();
    let whole = answer(&query);
    let (mut random, mut passed_on) = (StdRng::seed_from_u64(53), 0);
    for _ in 0..ANSWERS {
        let mut bytes = whole.clone();
        for _ in 0..random.random_range(1..4) {
            let place = random.random_range(0..bytes.len());
            bytes[place] = random.random();
        }
        if random.random_ratio(1, 8) {
            bytes.truncate(random.random_range(0..bytes.len()));
        }
        if let Ok(heard) = exchange::read(&bytes, 7, &query) {
            passed_on += 1;
            let mut cache = Cache::default();
            let now = Instant::now();
            cache.insert(query.clone(), heard.bytes, &heard.message, now);
            let _ = cache.get(&query, now);
            let reply = request.reply(cache::response_of(heard.message), true, false);
            assert!(reply.bytes.len() <= usize::from(MAX_UDP));
        }
    }
    assert!(
        passed_on > ANSWERS / 20,
        "{passed_on} answers could be read"
    );
}

#[tokio::test]
async fn too_many_questions_fail_at_once() {
    let upstreams = Upstreams {
        default: vec!["127.0.0.5:53".parse().unwrap()],
        stubs: HashMap::new(),
    };
    let forwarder = Forwarder::new(&upstreams, Vec::new(), Metrics::default()).unwrap();
    let all = u32::try_from(MAX_IN_FLIGHT).unwrap();
    let _permits = forwarder
        .in_flight
        .clone()
        .try_acquire_many_owned(all)
        .unwrap();
    let query = Query::query(name("a.example."), RecordType::A);
    assert_eq!(forwarder.resolve(&query).await.code, ResponseCode::ServFail);
    assert!(forwarder.pending.lock().is_empty());
}
