//! The rows of the tables of spec network.md 6.1 and 6.2, each asked.

use hickory_proto::rr::RecordType;

use super::tests::{ask, shown, zone};

#[test]
fn records_of_the_specification() {
    let zone = zone();
    let heads_v6 = "fd00--0.heads.ns.svc.cluster.local";
    let rows: &[(&str, RecordType, &[&str])] = &[
        (
            "dns-version.cluster.local",
            RecordType::TXT,
            &["dns-version.cluster.local. 28800 TXT 1.1.0"],
        ),
        (
            "web.ns.svc.cluster.local",
            RecordType::A,
            &["web.ns.svc.cluster.local. 5 A 10.96.0.1"],
        ),
        (
            "web.ns.svc.cluster.local",
            RecordType::AAAA,
            &["web.ns.svc.cluster.local. 5 AAAA fd00:96::1"],
        ),
        (
            "_http._tcp.web.ns.svc.cluster.local",
            RecordType::SRV,
            &[
                "_http._tcp.web.ns.svc.cluster.local. 5 SRV 0 100 80 web.ns.svc.cluster.local.",
                "+ web.ns.svc.cluster.local. 5 A 10.96.0.1",
                "+ web.ns.svc.cluster.local. 5 AAAA fd00:96::1",
            ],
        ),
        (
            "1.0.96.10.in-addr.arpa",
            RecordType::PTR,
            &["1.0.96.10.in-addr.arpa. 5 PTR web.ns.svc.cluster.local."],
        ),
        (
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa",
            RecordType::PTR,
            &[
                "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa. 5 PTR web.ns.svc.cluster.local.",
            ],
        ),
        (
            "heads.ns.svc.cluster.local",
            RecordType::A,
            &[
                "heads.ns.svc.cluster.local. 5 A 10.1.0.1",
                "heads.ns.svc.cluster.local. 5 A 10.1.0.2",
            ],
        ),
        (
            "heads.ns.svc.cluster.local",
            RecordType::AAAA,
            &[
                "heads.ns.svc.cluster.local. 5 AAAA fd00::",
                "heads.ns.svc.cluster.local. 5 AAAA fd00::1",
            ],
        ),
        (
            "a.heads.ns.svc.cluster.local",
            RecordType::A,
            &["a.heads.ns.svc.cluster.local. 5 A 10.1.0.1"],
        ),
        (
            "a.heads.ns.svc.cluster.local",
            RecordType::AAAA,
            &["a.heads.ns.svc.cluster.local. 5 AAAA fd00::1"],
        ),
        (
            "10-1-0-2.heads.ns.svc.cluster.local",
            RecordType::A,
            &["10-1-0-2.heads.ns.svc.cluster.local. 5 A 10.1.0.2"],
        ),
        (
            heads_v6,
            RecordType::AAAA,
            &["fd00--0.heads.ns.svc.cluster.local. 5 AAAA fd00::"],
        ),
        (
            "first.web.ns.svc.cluster.local",
            RecordType::A,
            &["first.web.ns.svc.cluster.local. 5 A 10.1.0.1"],
        ),
        (
            "_http._tcp.heads.ns.svc.cluster.local",
            RecordType::SRV,
            &[
                "_http._tcp.heads.ns.svc.cluster.local. 5 SRV 0 33 8080 10-1-0-2.heads.ns.svc.cluster.local.",
                "_http._tcp.heads.ns.svc.cluster.local. 5 SRV 0 33 8080 a.heads.ns.svc.cluster.local.",
                "_http._tcp.heads.ns.svc.cluster.local. 5 SRV 0 33 8080 fd00--0.heads.ns.svc.cluster.local.",
                "+ 10-1-0-2.heads.ns.svc.cluster.local. 5 A 10.1.0.2",
                "+ a.heads.ns.svc.cluster.local. 5 A 10.1.0.1",
                "+ a.heads.ns.svc.cluster.local. 5 AAAA fd00::1",
                "+ fd00--0.heads.ns.svc.cluster.local. 5 AAAA fd00::",
            ],
        ),
        (
            "1.0.1.10.in-addr.arpa",
            RecordType::PTR,
            &[
                "1.0.1.10.in-addr.arpa. 5 PTR a.heads.ns.svc.cluster.local.",
                "1.0.1.10.in-addr.arpa. 5 PTR first.web.ns.svc.cluster.local.",
            ],
        ),
        (
            "2.0.1.10.in-addr.arpa",
            RecordType::PTR,
            &["2.0.1.10.in-addr.arpa. 5 PTR 10-1-0-2.heads.ns.svc.cluster.local."],
        ),
        (
            "out.ns.svc.cluster.local",
            RecordType::A,
            &[
                "out.ns.svc.cluster.local. 5 CNAME www.Example.com.",
                "ask www.Example.com.",
            ],
        ),
        (
            "out.ns.svc.cluster.local",
            RecordType::CNAME,
            &["out.ns.svc.cluster.local. 5 CNAME www.Example.com."],
        ),
        (
            "in.ns.svc.cluster.local",
            RecordType::A,
            &[
                "in.ns.svc.cluster.local. 5 CNAME web.ns.svc.cluster.local.",
                "web.ns.svc.cluster.local. 5 A 10.96.0.1",
            ],
        ),
        (
            "10-2-3-4.ns.pod.cluster.local",
            RecordType::A,
            &["10-2-3-4.ns.pod.cluster.local. 5 A 10.2.3.4"],
        ),
        (
            "fd00--7.ns.pod.cluster.local",
            RecordType::AAAA,
            &["fd00--7.ns.pod.cluster.local. 5 AAAA fd00::7"],
        ),
        (
            "WeB.nS.sVc.ClusTer.locAL",
            RecordType::A,
            &["WeB.nS.sVc.ClusTer.locAL. 5 A 10.96.0.1"],
        ),
    ];
    for (name, kind, expected) in rows {
        assert_eq!(shown(&ask(&zone, name, *kind)), *expected, "{name} {kind}");
    }
}

#[test]
fn codes_of_coredns() {
    let zone = zone();
    let rows: &[(&str, RecordType, &str)] = &[
        ("cluster.local", RecordType::A, "NODATA"),
        ("svc.cluster.local", RecordType::A, "NODATA"),
        ("pod.cluster.local", RecordType::A, "NODATA"),
        ("dns.cluster.local", RecordType::A, "NODATA"),
        ("ns.svc.cluster.local", RecordType::A, "NODATA"),
        ("empty.svc.cluster.local", RecordType::A, "NODATA"),
        ("empty.pod.cluster.local", RecordType::A, "NODATA"),
        ("nowhere.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        ("nowhere.pod.cluster.local", RecordType::A, "NXDOMAIN"),
        (
            "10-2-3-4.nowhere.pod.cluster.local",
            RecordType::A,
            "NXDOMAIN",
        ),
        ("no-address.ns.pod.cluster.local", RecordType::A, "NXDOMAIN"),
        ("10-2-3-4.ns.pod.cluster.local", RecordType::AAAA, "NODATA"),
        ("web.nowhere.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        ("none.ns.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        (
            "_https._tcp.web.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        (
            "_http._udp.web.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        (
            "_http._tcp.web.ns.svc.cluster.local",
            RecordType::A,
            "NODATA",
        ),
        ("_tcp.web.ns.svc.cluster.local", RecordType::SRV, "NODATA"),
        (
            "_sctp.web.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        (
            "x._http._tcp.web.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        (
            "_http._tcp.a.heads.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        ("other.cluster.local", RecordType::A, "NXDOMAIN"),
        ("web.ns.other.cluster.local", RecordType::A, "NXDOMAIN"),
        ("bare.ns.svc.cluster.local", RecordType::AAAA, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::MX, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::TXT, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::ANY, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::HTTPS, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::SVCB, "NODATA"),
        ("web.ns.svc.cluster.local", RecordType::SRV, "NODATA"),
        ("unready.ns.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        ("late.heads.ns.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        ("literal.ns.svc.cluster.local", RecordType::A, "NXDOMAIN"),
        (
            "_http._tcp.out.ns.svc.cluster.local",
            RecordType::SRV,
            "NXDOMAIN",
        ),
        ("9.9.96.10.in-addr.arpa", RecordType::PTR, "NOT IN ZONE"),
        ("3.0.1.10.in-addr.arpa", RecordType::PTR, "NOT IN ZONE"),
        ("96.10.in-addr.arpa", RecordType::PTR, "NOT IN ZONE"),
        ("01.0.96.10.in-addr.arpa", RecordType::PTR, "NOT IN ZONE"),
        ("1.0.96.10.in-addr.arpa", RecordType::TXT, "NODATA"),
        ("cluster.local", RecordType::AXFR, "REFUSED"),
        ("web.ns.svc.cluster.local", RecordType::IXFR, "REFUSED"),
        ("example.com", RecordType::AXFR, "REFUSED"),
        ("example.com", RecordType::A, "NOT IN ZONE"),
        ("notcluster.local", RecordType::A, "NOT IN ZONE"),
        ("local", RecordType::A, "NOT IN ZONE"),
        (".", RecordType::NS, "NOT IN ZONE"),
    ];
    for (name, kind, expected) in rows {
        assert_eq!(
            shown(&ask(&zone, name, *kind)),
            [*expected],
            "{name} {kind}"
        );
    }
}
