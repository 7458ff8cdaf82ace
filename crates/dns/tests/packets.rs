//! Packets that nobody should send.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::str::FromStr;

use davit_dns::{Outcome, Transport, Zone, message};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const PACKETS: usize = 100_000;

/// Questions to mutate: the more of a packet is right, the deeper it gets.
fn seeds() -> Vec<Vec<u8>> {
    let names = [
        "web.ns.svc.cluster.local.",
        "1.0.96.10.in-addr.arpa.",
        "example.com.",
        "cluster.local.",
        ".",
    ];
    let kinds = [
        RecordType::A,
        RecordType::SRV,
        RecordType::PTR,
        RecordType::ANY,
        RecordType::AXFR,
    ];
    let mut seeds = Vec::new();
    for (name, kind) in names.iter().zip(kinds) {
        let mut message = Message::new(1, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(Name::from_str(name).unwrap(), kind));
        seeds.push(message.to_vec().unwrap());
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        message.set_edns(edns);
        seeds.push(message.to_vec().unwrap());
    }
    seeds
}

fn packet(random: &mut StdRng, seeds: &[Vec<u8>]) -> Vec<u8> {
    if random.random_ratio(1, 4) {
        let length = random.random_range(0..600);
        return (0..length).map(|_| random.random()).collect();
    }
    let mut bytes = seeds[random.random_range(0..seeds.len())].clone();
    for _ in 0..random.random_range(1..6) {
        let place = random.random_range(0..bytes.len());
        match random.random_range(0..4) {
            0 => bytes[place] = random.random(),
            1 => bytes[place] ^= 1 << random.random_range(0..8),
            2 => bytes.insert(place, random.random()),
            _ if bytes.len() > 1 => drop(bytes.remove(place)),
            _ => {}
        }
    }
    if random.random_ratio(1, 8) {
        bytes.truncate(random.random_range(0..=bytes.len()));
    }
    bytes
}

#[test]
fn no_packet_is_too_strange() {
    let mut zone = Zone::new("cluster.local", 5).unwrap();
    zone.set_synced(true);
    zone.apply_namespace("ns");
    let mut random = StdRng::seed_from_u64(53);
    let seeds = seeds();
    let mut answered = 0;
    for number in 0..PACKETS {
        let bytes = packet(&mut random, &seeds);
        let transport = if number % 2 == 0 {
            Transport::Udp
        } else {
            Transport::Tcp
        };
        let outcome = message::respond(&bytes, transport, number % 3 == 0, |query| {
            zone.answer(query)
        });
        let reply = match outcome {
            Outcome::Nothing => continue,
            Outcome::Reply(reply) => reply,
            Outcome::Forward(forward) => forward.fail(),
        };
        answered += 1;
        assert!(
            reply.bytes.len() <= usize::from(message::MAX_UDP),
            "{bytes:02x?}"
        );
        assert_eq!(reply.bytes[..2], bytes[..2], "{bytes:02x?}");
        assert_eq!(reply.bytes[2] & 0x80, 0x80, "{bytes:02x?}");
        assert!(Message::from_vec(&reply.bytes).is_ok(), "{bytes:02x?}");
    }
    assert!(
        answered > PACKETS / 4,
        "{answered} of {PACKETS} packets were worth an answer"
    );
}
