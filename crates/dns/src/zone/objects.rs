//! Objects that tests are made of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(crate) fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

/// `ports` are "name/PROTOCOL/number".
pub(crate) fn service(name: &str, cluster_ips: &[&str], ports: &[&str]) -> Service {
    let ports = ports.iter().map(|port| {
        let mut parts = port.split('/');
        ServicePort {
            name: parts
                .next()
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            protocol: parts.next().map(str::to_owned),
            port: parts.next().unwrap().parse().unwrap(),
            ..ServicePort::default()
        }
    });
    Service {
        metadata: metadata("ns", name),
        spec: Some(ServiceSpec {
            cluster_ip: cluster_ips.first().map(|&ip| ip.to_owned()),
            cluster_ips: Some(cluster_ips.iter().map(|&ip| ip.to_owned()).collect()),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

pub(crate) fn alias(name: &str, target: &str) -> Service {
    Service {
        metadata: metadata("ns", name),
        spec: Some(ServiceSpec {
            type_: Some("ExternalName".to_owned()),
            external_name: Some(target.to_owned()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// `endpoints` are "address", "address=hostname", and either with "!" in front when not ready.
pub(crate) fn slice(
    service: &str,
    name: &str,
    endpoints: &[&str],
    ports: &[&str],
) -> EndpointSlice {
    let v6 = endpoints.first().is_some_and(|text| text.contains(':'));
    let endpoints = endpoints.iter().map(|text| {
        let ready = (text.starts_with('!')).then_some(false);
        let mut parts = text.trim_start_matches('!').split('=');
        Endpoint {
            addresses: vec![parts.next().unwrap().to_owned()],
            hostname: parts.next().map(str::to_owned),
            conditions: Some(EndpointConditions {
                ready,
                ..EndpointConditions::default()
            }),
            ..Endpoint::default()
        }
    });
    let ports = ports.iter().map(|port| {
        let mut parts = port.split('/');
        EndpointPort {
            name: parts.next().map(str::to_owned),
            protocol: parts.next().map(str::to_owned),
            port: Some(parts.next().unwrap().parse().unwrap()),
            ..EndpointPort::default()
        }
    });
    let mut metadata = metadata("ns", name);
    let label = ("kubernetes.io/service-name".to_owned(), service.to_owned());
    metadata.labels = Some(BTreeMap::from([label]));
    EndpointSlice {
        address_type: if v6 { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints: Some(endpoints.collect()),
        ports: Some(ports.collect()),
        metadata,
    }
}
