//! What a large cluster costs (spec network.md 6.7 rule 3). Alone in its process, whose memory is measured.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use davit_dns::{Answer, Zone};
use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 5;

fn metadata(number: u32, name: String) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(format!("namespace-{}", number % 100)),
        name: Some(name),
        ..ObjectMeta::default()
    }
}

fn service(number: u32) -> Service {
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: 80,
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(number, format!("service-{number}")),
        spec: Some(ServiceSpec {
            cluster_ips: Some(vec![format!("10.96.{}.{}", number / 250, number % 250)]),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn slice(number: u32) -> EndpointSlice {
    let label = (
        "kubernetes.io/service-name".to_owned(),
        format!("service-{number}"),
    );
    let endpoints = (0..ENDPOINTS).map(|endpoint| {
        let address = number * ENDPOINTS + endpoint;
        Endpoint {
            addresses: vec![format!(
                "10.{}.{}.{}",
                128 + address / 62_500,
                address / 250 % 250,
                address % 250
            )],
            ..Endpoint::default()
        }
    });
    EndpointSlice {
        address_type: "IPv4".to_owned(),
        endpoints: Some(endpoints.collect()),
        metadata: ObjectMeta {
            labels: Some(BTreeMap::from([label])),
            ..metadata(number, format!("service-{number}-abcde"))
        },
        ports: Some(vec![EndpointPort {
            name: Some("http".to_owned()),
            port: Some(80),
            ..EndpointPort::default()
        }]),
    }
}

/// The memory of this process that is in use, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_large_cluster_is_small() {
    let mut zone = Zone::new("cluster.local", 5).unwrap();
    zone.set_synced(true);
    let before = resident();
    for number in 0..SERVICES {
        zone.apply_service(&service(number));
        zone.apply_slice(&slice(number));
    }
    let used = resident() - before;
    let names = u64::from(SERVICES * (1 + ENDPOINTS));
    println!("{used} KiB for {names} names");
    assert!(
        used < 60 * 1024 && used < names,
        "{used} KiB for {names} names"
    );
    // Informers give all objects again after each reconnect.
    for number in 0..SERVICES {
        zone.apply_service(&service(number));
        zone.apply_slice(&slice(number));
    }
    let again = resident() - before;
    assert!(again < used + 8 * 1024, "{again} KiB after {used} KiB");
    let name = Name::from_ascii("service-77.namespace-77.svc.cluster.local.").unwrap();
    assert!(matches!(
        zone.answer(&Query::query(name, RecordType::A)),
        Answer::Records { .. }
    ));
}
