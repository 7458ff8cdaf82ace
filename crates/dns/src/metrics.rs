//! Counters under the names CoreDNS gives them (spec network.md 6.7 rule 8).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::message::{Reply, Transport};

/// What CoreDNS calls a server on port 53 of all addresses.
const SERVER: &str = "dns://:53";

/// The zone of its one server block, as deployed: every name.
const ZONE: &str = ".";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    server: &'static str,
    zone: &'static str,
    proto: &'static str,
    family: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    server: &'static str,
    zone: &'static str,
    rcode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServerLabels {
    server: &'static str,
    zone: &'static str,
}

/// Services whose names lead to their pods; of others the address stays.
const HEADLESS: ServiceLabels = ServiceLabels {
    service_kind: "headless_with_selector",
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabels {
    service_kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabels {
    to: String,
}

/// What the server and the forwarder count. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Family<RequestLabels, Counter>,
    responses: Family<ResponseLabels, Counter>,
    durations: Family<ServerLabels, Histogram, fn() -> Histogram>,
    forwarded: Family<UpstreamLabels, Counter>,
    programming: Family<ServiceLabels, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            responses: Family::default(),
            // CoreDNS, plugin.TimeBuckets: 0.25 ms to 8 s.
            durations: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
            }),
            forwarded: Family::default(),
            // 1 ms to 9 minutes
            programming: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 20))
            }),
        }
    }
}

impl Metrics {
    /// Publishes the counters; the registry adds `_total` to their names.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "coredns_dns_requests",
            "Counter of DNS requests made per zone, protocol and family",
            self.requests.clone(),
        );
        registry.register(
            "coredns_dns_responses",
            "Counter of response status codes",
            self.responses.clone(),
        );
        registry.register(
            "coredns_dns_request_duration_seconds",
            "Histogram of the time (in seconds) each request took per zone",
            self.durations.clone(),
        );
        registry.register(
            "coredns_forward_requests",
            "Counter of requests made per upstream",
            self.forwarded.clone(),
        );
        registry.register(
            "coredns_kubernetes_dns_programming_duration_seconds",
            "Histogram of the time (in seconds) it took to program a dns instance",
            self.programming.clone(),
        );
    }

    /// So long after a headless Service's pods have changed, its names lead to them.
    pub fn programmed(&self, took: Duration) {
        let durations = self.programming.get_or_create(&HEADLESS);
        durations.observe(took.as_secs_f64());
    }

    /// A question was answered.
    pub(crate) fn answered(
        &self,
        client: IpAddr,
        transport: Transport,
        reply: &Reply,
        took: Duration,
    ) {
        let requests = self.requests.get_or_create(&RequestLabels {
            server: SERVER,
            zone: ZONE,
            proto: if transport == Transport::Udp {
                "udp"
            } else {
                "tcp"
            },
            family: if client.to_canonical().is_ipv4() {
                "1"
            } else {
                "2"
            },
            r#type: type_label(reply.kind),
        });
        requests.inc();
        let rcode = code_label(reply.code);
        self.responses
            .get_or_create(&ResponseLabels {
                server: SERVER,
                zone: ZONE,
                rcode,
            })
            .inc();
        let durations = self.durations.get_or_create(&ServerLabels {
            server: SERVER,
            zone: ZONE,
        });
        durations.observe(took.as_secs_f64());
    }

    /// A question was passed on.
    pub(crate) fn forwarded(&self, to: SocketAddr) {
        self.forwarded
            .get_or_create(&UpstreamLabels { to: to.to_string() })
            .inc();
    }
}

/// Types by name, the rare ones together: a client shall not be able to make up series.
fn type_label(kind: Option<RecordType>) -> &'static str {
    match kind {
        Some(RecordType::A) => "A",
        Some(RecordType::AAAA) => "AAAA",
        Some(RecordType::ANY) => "ANY",
        Some(RecordType::CNAME) => "CNAME",
        Some(RecordType::HTTPS) => "HTTPS",
        Some(RecordType::MX) => "MX",
        Some(RecordType::NAPTR) => "NAPTR",
        Some(RecordType::NS) => "NS",
        Some(RecordType::PTR) => "PTR",
        Some(RecordType::SOA) => "SOA",
        Some(RecordType::SRV) => "SRV",
        Some(RecordType::SVCB) => "SVCB",
        Some(RecordType::TXT) => "TXT",
        _ => "other",
    }
}

fn code_label(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        ResponseCode::BADVERS => "BADVERS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn names_are_those_of_coredns() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let reply = Reply {
            bytes: Vec::new(),
            code: ResponseCode::NXDomain,
            kind: Some(RecordType::A),
            inside: false,
        };
        metrics.answered(
            "10.1.0.1".parse().unwrap(),
            Transport::Udp,
            &reply,
            Duration::from_millis(1),
        );
        metrics.forwarded("10.0.0.2:53".parse().unwrap());
        metrics.programmed(Duration::from_millis(20));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"coredns_dns_requests_total{server="dns://:53",zone=".",proto="udp",family="1",type="A"} 1"#,
            r#"coredns_dns_responses_total{server="dns://:53",zone=".",rcode="NXDOMAIN"} 1"#,
            r#"coredns_dns_request_duration_seconds_count{server="dns://:53",zone="."} 1"#,
            r#"coredns_forward_requests_total{to="10.0.0.2:53"} 1"#,
            r#"coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
