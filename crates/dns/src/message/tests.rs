//! Bytes in, bytes out (spec network.md 6.3).

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::{Outcome, Reply, Response, Transport, respond};
use crate::zone::Zone;
use crate::zone::objects::{alias, service, slice};

const WEB: &str = "web.ns.svc.cluster.local.";
const MANY: &str = "many.ns.svc.cluster.local.";

/// A zone with a headless Service of that many endpoints, a hundred in a slice.
fn zone(endpoints: usize) -> Zone {
    let mut zone = Zone::new("cluster.local", 5).unwrap();
    zone.apply_service(&service("web", &["10.96.0.1"], &["http/TCP/80"]));
    zone.apply_service(&alias("out", "www.example.com"));
    zone.apply_service(&service("many", &["None"], &["http/TCP/80"]));
    let addresses: Vec<String> = (0..endpoints)
        .map(|number| format!("10.1.{}.{}", number / 250, number % 250 + 1))
        .collect();
    for (number, part) in addresses.chunks(100).enumerate() {
        let part: Vec<&str> = part.iter().map(String::as_str).collect();
        zone.apply_slice(&slice(
            "many",
            &format!("many-{number}"),
            &part,
            &["http/TCP/8080"],
        ));
    }
    zone.set_synced(true);
    zone
}

fn question(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn with_edns(mut message: Message, payload: u16, version: u8) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(payload).set_version(version);
    message.set_edns(edns);
    message
}

fn outcome(zone: &Zone, message: &Message, transport: Transport, recursion: bool) -> Outcome {
    let bytes = message.to_vec().unwrap();
    respond(&bytes, transport, recursion, |query| zone.answer(query))
}

fn reply(zone: &Zone, message: &Message, transport: Transport) -> Reply {
    match outcome(zone, message, transport, false) {
        Outcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

fn ask(zone: &Zone, message: &Message, transport: Transport) -> Message {
    Message::from_vec(&reply(zone, message, transport).bytes).unwrap()
}

#[test]
fn an_answer_repeats_the_question() {
    let message = ask(
        &zone(0),
        &question("wEb.Ns.svC.clusteR.Local.", RecordType::A),
        Transport::Udp,
    );
    assert_eq!(message.metadata.id, 4711);
    assert_eq!(message.metadata.message_type, MessageType::Response);
    assert!(message.metadata.authoritative && message.metadata.recursion_desired);
    assert!(!message.metadata.truncation && !message.metadata.recursion_available);
    for name in [&message.queries[0].name, &message.answers[0].name] {
        assert_eq!(name.to_ascii(), "wEb.Ns.svC.clusteR.Local.");
    }
    assert!(message.edns.is_none());
}

#[test]
fn answers_fit() {
    let zone = zone(500);
    let plain = question(MANY, RecordType::A);
    let rows = [
        (plain.clone(), 512),
        (with_edns(plain.clone(), 100, 0), 512),
        (with_edns(plain.clone(), 600, 0), 600),
        (with_edns(plain.clone(), 1232, 0), 1232),
        (with_edns(plain.clone(), 4096, 0), 1232),
    ];
    for (message, limit) in rows {
        let bytes = reply(&zone, &message, Transport::Udp).bytes;
        let answer = Message::from_vec(&bytes).unwrap();
        assert!(
            bytes.len() <= limit && bytes.len() > limit - 32,
            "{} of {limit}",
            bytes.len()
        );
        assert!(answer.metadata.truncation);
        assert_eq!(answer.edns.is_some(), message.edns.is_some());
    }
    let whole = ask(&zone, &plain, Transport::Tcp);
    assert_eq!(whole.answers.len(), 500);
    assert!(!whole.metadata.truncation);
}

#[test]
fn a_connection_holds_thousands() {
    let bytes = reply(&zone(4000), &question(MANY, RecordType::A), Transport::Tcp).bytes;
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!(answer.answers.len(), 4000);
    assert!(!answer.metadata.truncation);
    let bytes = reply(&zone(6000), &question(MANY, RecordType::A), Transport::Tcp).bytes;
    assert!(bytes.len() <= usize::from(u16::MAX));
}

#[test]
fn additional_records_are_left_out_without_a_word() {
    let zone = zone(8);
    let message = question("_http._tcp.many.ns.svc.cluster.local.", RecordType::SRV);
    let answer = ask(&zone, &message, Transport::Tcp);
    assert_eq!((answer.answers.len(), answer.additionals.len()), (8, 8));
    let answer = ask(&zone, &message, Transport::Udp);
    assert_eq!(answer.answers.len(), 8);
    assert!(answer.additionals.len() < 8 && !answer.metadata.truncation);
}

#[test]
fn addresses_take_turns() {
    let zone = zone(8);
    let firsts: std::collections::HashSet<String> = (0..200)
        .map(|_| {
            ask(&zone, &question(MANY, RecordType::A), Transport::Udp).answers[0]
                .data
                .to_string()
        })
        .collect();
    assert!(firsts.len() > 1);
}

#[test]
fn unknown_versions_of_edns() {
    let message = with_edns(question(WEB, RecordType::A), 1232, 1);
    let reply = reply(&zone(0), &message, Transport::Udp);
    assert_eq!(reply.code, ResponseCode::BADVERS);
    let answer = Message::from_vec(&reply.bytes).unwrap();
    let edns = answer.edns.unwrap();
    assert_eq!(
        (edns.rcode_high(), edns.version(), reply.bytes[3] & 15),
        (1, 0, 0)
    );
    assert!(answer.answers.is_empty());
}

#[test]
fn what_is_no_question() {
    let zone = zone(0);
    let mut two = question(WEB, RecordType::A);
    two.add_query(Query::query(Name::root(), RecordType::A));
    assert_eq!(
        reply(&zone, &two, Transport::Udp).code,
        ResponseCode::FormErr
    );
    let mut none = question(WEB, RecordType::A);
    none.queries.clear();
    assert_eq!(
        reply(&zone, &none, Transport::Udp).code,
        ResponseCode::FormErr
    );
    let notify = Message::new(9, MessageType::Query, OpCode::Notify);
    let answer = reply(&zone, &notify, Transport::Udp);
    assert_eq!(
        (answer.code, answer.bytes.len(), &answer.bytes[..2]),
        (ResponseCode::NotImp, 12, &[0, 9][..])
    );
    let response = Message::new(9, MessageType::Response, OpCode::Query);
    assert!(matches!(
        outcome(&zone, &response, Transport::Udp, true),
        Outcome::Nothing
    ));
    let short = respond(&[0; 11], Transport::Udp, true, |query| zone.answer(query));
    assert!(matches!(short, Outcome::Nothing));
    let mut long = question(WEB, RecordType::A).to_vec().unwrap();
    long.resize(5000, 0);
    let long = respond(&long, Transport::Tcp, true, |query| zone.answer(query));
    assert!(matches!(
        long,
        Outcome::Reply(Reply {
            code: ResponseCode::FormErr,
            ..
        })
    ));
    let mut chaos = question(WEB, RecordType::A);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(
        reply(&zone, &chaos, Transport::Udp).code,
        ResponseCode::Refused
    );
    assert_eq!(
        reply(&zone, &question(WEB, RecordType::AXFR), Transport::Tcp).code,
        ResponseCode::Refused
    );
}

#[test]
fn negative_answers_have_a_soa_in_authority() {
    let zone = zone(0);
    for (name, code) in [
        (WEB, ResponseCode::NoError),
        ("x.ns.svc.cluster.local.", ResponseCode::NXDomain),
    ] {
        for kind in [
            RecordType::ANY,
            RecordType::HTTPS,
            RecordType::SVCB,
            RecordType::AAAA,
        ] {
            let answer = ask(&zone, &question(name, kind), Transport::Udp);
            assert_eq!(answer.metadata.response_code, code, "{name} {kind}");
            assert!(answer.answers.is_empty() && answer.metadata.authoritative);
            assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
        }
    }
}

#[test]
fn others_are_asked_for_other_names() {
    let zone = zone(0);
    let elsewhere = question("www.example.com.", RecordType::A);
    assert_eq!(
        reply(&zone, &elsewhere, Transport::Udp).code,
        ResponseCode::Refused
    );
    assert!(matches!(
        outcome(&zone, &elsewhere, Transport::Udp, true),
        Outcome::Forward(_)
    ));
    let out = question("OUT.ns.svc.cluster.local.", RecordType::A);
    let forward = || match outcome(&zone, &out, Transport::Udp, true) {
        Outcome::Forward(forward) => forward,
        other => panic!("{other:?}"),
    };
    assert_eq!(forward().query.name.to_ascii(), "www.example.com.");
    let name = Name::from_ascii("www.example.com.").unwrap();
    let mut heard = Response::of_code(ResponseCode::NoError);
    heard
        .answers
        .push(Record::from_rdata(name, 60, RData::A(A::new(192, 0, 2, 1))));
    let answer = Message::from_vec(&forward().reply(heard).bytes).unwrap();
    assert!(answer.metadata.recursion_available && answer.metadata.authoritative);
    let types: Vec<RecordType> = answer.answers.iter().map(Record::record_type).collect();
    assert_eq!(types, [RecordType::CNAME, RecordType::A]);
    assert_eq!(
        answer.answers[0].name.to_ascii(),
        "OUT.ns.svc.cluster.local."
    );
    // The alias is given even when nobody knows its target.
    let failed = Message::from_vec(&forward().fail().bytes).unwrap();
    assert_eq!(failed.metadata.response_code, ResponseCode::NoError);
    assert_eq!(failed.answers.len(), 1);
    // And by a server that asks nobody.
    assert_eq!(ask(&zone, &out, Transport::Udp).answers.len(), 1);
}
