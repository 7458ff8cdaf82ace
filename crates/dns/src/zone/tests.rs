//! Answers and changes that are no rows of a table.

use hickory_proto::op::Query;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::objects::{alias, service, slice};
use super::{Answer, Zone, ZoneError};

pub(super) fn zone() -> Zone {
    let mut zone = Zone::with_clock("cluster.local", 5, || 1234).unwrap();
    zone.set_servers(vec![
        "10.96.0.10".parse().unwrap(),
        "fd00:96::a".parse().unwrap(),
    ]);
    zone.apply_namespace("ns");
    zone.apply_namespace("empty");
    zone.apply_service(&service(
        "web",
        &["10.96.0.1", "fd00:96::1"],
        &["http/TCP/80", "dns/UDP/53", "/TCP/99"],
    ));
    zone.apply_slice(&slice(
        "web",
        "web-1",
        &["10.1.0.1=first", "10.1.0.7"],
        &["http/TCP/8080"],
    ));
    zone.apply_service(&service("bare", &["10.96.0.2"], &["http/TCP/80"]));
    zone.apply_service(&service("heads", &["None"], &["http/TCP/80"]));
    let heads = ["10.1.0.1=a", "10.1.0.2", "!10.1.0.3=late", "10.1.0.2"];
    zone.apply_slice(&slice("heads", "heads-1", &heads, &["http/TCP/8080"]));
    zone.apply_slice(&slice(
        "heads",
        "heads-2",
        &["fd00::1=a", "fd00::"],
        &["http/TCP/8080"],
    ));
    zone.apply_service(&service("unready", &["None"], &[]));
    zone.apply_slice(&slice("unready", "unready-1", &["!10.1.0.9"], &[]));
    zone.apply_service(&alias("out", "www.Example.com"));
    zone.apply_service(&alias("in", "web.ns.svc.cluster.local"));
    zone.apply_service(&alias("dangling", "gone.ns.svc.cluster.local"));
    zone.apply_service(&alias("literal", "192.0.2.1"));
    zone.apply_service(&alias("ring", "round.ns.svc.cluster.local"));
    zone.apply_service(&alias("round", "ring.ns.svc.cluster.local"));
    zone.set_synced(true);
    zone
}

pub(super) fn ask(zone: &Zone, name: &str, kind: RecordType) -> Answer {
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    zone.answer(&Query::query(name, kind))
}

fn text(record: &Record) -> String {
    format!(
        "{} {} {} {}",
        record.name,
        record.ttl,
        record.record_type(),
        record.data
    )
}

/// An answer in lines that tests can read.
pub(super) fn shown(answer: &Answer) -> Vec<String> {
    let lines = |records: &[Record]| records.iter().map(text).collect::<Vec<_>>();
    let with = |mut lines: Vec<String>, last: &str| {
        lines.push(last.to_owned());
        lines
    };
    match answer {
        Answer::Records {
            answers,
            additional,
        } => {
            let mut all = lines(answers);
            all.extend(
                lines(additional)
                    .into_iter()
                    .map(|line| format!("+ {line}")),
            );
            all
        }
        Answer::NoData { aliases, .. } => with(lines(aliases), "NODATA"),
        Answer::NxDomain { aliases, .. } => with(lines(aliases), "NXDOMAIN"),
        Answer::ServFail => vec!["SERVFAIL".to_owned()],
        Answer::Refused => vec!["REFUSED".to_owned()],
        Answer::Alias { answers, target } => with(lines(answers), &format!("ask {target}")),
        Answer::NotInZone => vec!["NOT IN ZONE".to_owned()],
    }
}

#[test]
fn the_apex_names_its_server() {
    let zone = zone();
    let soa = "ns.dns.cluster.local. hostmaster.cluster.local. 1234 7200 1800 86400 5";
    let answer = shown(&ask(&zone, "cluster.local", RecordType::SOA));
    assert_eq!(answer, [format!("cluster.local. 5 SOA {soa}")]);
    let expected = [
        "cluster.local. 5 NS ns.dns.cluster.local.",
        "+ ns.dns.cluster.local. 5 A 10.96.0.10",
        "+ ns.dns.cluster.local. 5 AAAA fd00:96::a",
    ];
    assert_eq!(
        shown(&ask(&zone, "cluster.local", RecordType::NS)),
        expected
    );
    let server = shown(&ask(&zone, "ns.dns.cluster.local", RecordType::A));
    assert_eq!(server, ["ns.dns.cluster.local. 5 A 10.96.0.10"]);
}

#[test]
fn negative_answers_carry_the_soa() {
    let mut zone = Zone::with_clock("cluster.local", 600, || 7).unwrap();
    zone.set_synced(true);
    let Answer::NxDomain { soa, .. } = ask(&zone, "x.cluster.local", RecordType::A) else {
        panic!("a name that does not exist");
    };
    assert_eq!(soa.name.to_string(), "cluster.local.");
    assert_eq!(soa.ttl, 300);
    let RData::SOA(data) = soa.data else {
        panic!("no SOA")
    };
    assert_eq!((data.minimum, data.serial), (600, 7));
}

#[test]
fn aliases_end() {
    let zone = zone();
    let dangling = shown(&ask(&zone, "dangling.ns.svc.cluster.local", RecordType::A));
    assert_eq!(
        dangling,
        [
            "dangling.ns.svc.cluster.local. 5 CNAME gone.ns.svc.cluster.local.",
            "NXDOMAIN"
        ]
    );
    assert_eq!(
        shown(&ask(&zone, "ring.ns.svc.cluster.local", RecordType::A)).len(),
        2
    );
    let mut long = Zone::with_clock("cluster.local", 5, || 0).unwrap();
    for step in 0..20 {
        long.apply_service(&alias(
            &format!("s{step}"),
            &format!("s{}.ns.svc.cluster.local", step + 1),
        ));
    }
    let chain = ask(&long, "s0.ns.svc.cluster.local", RecordType::A);
    assert!(matches!(chain, Answer::Records { answers, .. } if answers.len() == 10));
}

#[test]
fn nothing_is_denied_before_the_first_lists() {
    let mut zone = zone();
    zone.set_synced(false);
    let found = shown(&ask(&zone, "bare.ns.svc.cluster.local", RecordType::A));
    assert_eq!(found, ["bare.ns.svc.cluster.local. 5 A 10.96.0.2"]);
    for name in [
        "none.ns.svc.cluster.local",
        "nowhere.svc.cluster.local",
        "dangling.ns.svc.cluster.local",
        "9.9.9.10.in-addr.arpa",
    ] {
        assert_eq!(
            ask(&zone, name, RecordType::PTR),
            Answer::ServFail,
            "{name}"
        );
    }
    assert_eq!(ask(&zone, "example.com", RecordType::A), Answer::NotInZone);
}

#[test]
fn other_classes_are_refused() {
    let mut query = Query::query(
        Name::from_ascii("web.ns.svc.cluster.local.").unwrap(),
        RecordType::A,
    );
    query.set_query_class(DNSClass::CH);
    assert_eq!(zone().answer(&query), Answer::Refused);
}

#[test]
fn changes_are_seen_at_once() {
    let mut zone = zone();
    let name = "heads.ns.svc.cluster.local";
    zone.apply_slice(&slice("heads", "heads-1", &["10.1.0.3"], &[]));
    assert_eq!(
        shown(&ask(&zone, name, RecordType::A)),
        ["heads.ns.svc.cluster.local. 5 A 10.1.0.3"]
    );
    assert_eq!(
        ask(&zone, "2.0.1.10.in-addr.arpa", RecordType::PTR),
        Answer::NotInZone
    );
    zone.apply_service(&service("out", &["10.96.0.7"], &[]));
    let now = shown(&ask(&zone, "out.ns.svc.cluster.local", RecordType::A));
    assert_eq!(now, ["out.ns.svc.cluster.local. 5 A 10.96.0.7"]);
    zone.remove_service("ns", "heads");
    assert_eq!(shown(&ask(&zone, name, RecordType::A)), ["NXDOMAIN"]);
    assert_eq!(
        ask(&zone, "3.0.1.10.in-addr.arpa", RecordType::PTR),
        Answer::NotInZone
    );
    // A slice that changes hands takes its addresses along.
    zone.apply_slice(&slice("unready", "heads-1", &["10.1.0.3"], &[]));
    let moved = shown(&ask(&zone, "3.0.1.10.in-addr.arpa", RecordType::PTR));
    assert_eq!(
        moved,
        ["3.0.1.10.in-addr.arpa. 5 PTR 10-1-0-3.unready.ns.svc.cluster.local."]
    );
}

#[test]
fn hostile_endpoints_have_no_names() {
    let mut zone = zone();
    let local = [
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "not an address",
    ];
    zone.apply_slice(&slice("unready", "unready-1", &local, &[]));
    assert_eq!(
        shown(&ask(&zone, "unready.ns.svc.cluster.local", RecordType::A)),
        ["NXDOMAIN"]
    );
}

#[test]
fn domains_are_checked() {
    assert_eq!(
        Zone::new(".", 5).unwrap_err(),
        ZoneError::Domain(".".to_owned())
    );
    let long = ["a".repeat(63), "b".repeat(63)].join(".");
    assert_eq!(
        Zone::new(&long, 5).unwrap_err(),
        ZoneError::DomainTooLong(long)
    );
    assert!(Zone::new("a..b", 5).is_err());
    assert_eq!(Zone::new("Cluster.Local.", 9999).unwrap().ttl, 3600);
}

#[test]
fn a_new_list_removes_what_it_lacks() {
    let mut zone = zone();
    zone.retain_services(|namespace, name| namespace == "ns" && name == "heads");
    zone.retain_slices(|_, name| name == "heads-1");
    let heads = "heads.ns.svc.cluster.local";
    assert_eq!(shown(&ask(&zone, heads, RecordType::A)).len(), 2);
    assert_eq!(shown(&ask(&zone, heads, RecordType::AAAA)), ["NODATA"]);
    assert_eq!(
        shown(&ask(&zone, "web.ns.svc.cluster.local", RecordType::A)),
        ["NXDOMAIN"]
    );
    assert_eq!(
        ask(&zone, "1.0.96.10.in-addr.arpa", RecordType::PTR),
        Answer::NotInZone
    );
    zone.retain_namespaces(|name| name == "ns");
    assert_eq!(
        shown(&ask(&zone, "empty.svc.cluster.local", RecordType::A)),
        ["NXDOMAIN"]
    );
    zone.retain_services(|_, _| false);
    zone.retain_slices(|_, _| false);
    zone.retain_namespaces(|_| false);
    assert!(zone.namespaces.is_empty());
    assert_eq!(zone.pointers, super::reverse::Pointers::default());
}
