//! What the zone keeps of one EndpointSlice.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::service::NamedPort;

/// The label that says whose endpoints a slice lists.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The longest label of a name (RFC 1035, 2.3.4).
const MAX_LABEL: usize = 63;

/// One address of a ready endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    /// The label below the Service's name.
    pub(super) host: Arc<str>,
    pub(super) address: IpAddr,
}

/// A slice, reduced to what questions ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SliceRecord {
    /// Sorted by host, so that one is found without a walk.
    addresses: Box<[Address]>,
    pub(super) ports: Box<[NamedPort]>,
}

impl SliceRecord {
    pub(super) fn new(slice: &EndpointSlice) -> Self {
        let endpoints = slice.endpoints.iter().flatten();
        let mut addresses: Vec<Address> = endpoints
            .filter(|endpoint| is_ready(endpoint))
            .flat_map(addresses_of)
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let ports = slice.ports.iter().flatten().filter_map(|port| {
            NamedPort::new(port.name.as_deref(), port.protocol.as_deref(), port.port?)
        });
        Self {
            addresses: addresses.into(),
            ports: ports.collect(),
        }
    }

    /// Every address, in the order of the hosts.
    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The addresses of one host.
    pub(super) fn of_host(&self, host: &str) -> &[Address] {
        let start = self.addresses.partition_point(|entry| &*entry.host < host);
        let rest = self.addresses.get(start..).unwrap_or_default();
        let length = rest.partition_point(|entry| &*entry.host == host);
        rest.get(..length).unwrap_or_default()
    }
}

/// The Service a slice belongs to; slices without one, or of names instead of addresses, are not ours.
pub(super) fn service_of(slice: &EndpointSlice) -> Option<&str> {
    if !matches!(slice.address_type.as_str(), "IPv4" | "IPv6") {
        return None;
    }
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
    (!name.is_empty()).then_some(name)
}

/// Ready is true or not said (spec network.md 6.1 rule 3); publishNotReadyAddresses is already in the slice.
fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    conditions
        .and_then(|conditions| conditions.ready)
        .unwrap_or(true)
}

fn addresses_of(endpoint: &Endpoint) -> impl Iterator<Item = Address> {
    let hostname: Option<Arc<str>> = endpoint
        .hostname
        .as_deref()
        .filter(|name| !name.is_empty() && name.len() <= MAX_LABEL && !name.contains('.'))
        .map(|name| name.to_ascii_lowercase().into());
    let addresses = endpoint
        .addresses
        .iter()
        .filter_map(|text| text.parse::<IpAddr>().ok());
    addresses
        .filter(|address| is_publishable(*address))
        .map(move |address| Address {
            host: hostname.clone().unwrap_or_else(|| dashed(address).into()),
            address,
        })
}

/// The API forbids these; whoever writes slices past it shall not turn a name into the asker's own machine.
fn is_publishable(address: IpAddr) -> bool {
    let local = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let canonical = address.to_canonical();
    !(local || canonical.is_loopback() || canonical.is_unspecified() || canonical.is_multicast())
}

/// The label of an endpoint without a hostname (spec network.md 6.1 rule 2): no label may end with a dash.
pub(super) fn dashed(address: IpAddr) -> String {
    let mut label = address.to_string().replace(['.', ':'], "-");
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

/// The address a pod's label stands for (spec network.md 6.1, mode `insecure`).
pub(super) fn undashed(label: &str) -> Option<IpAddr> {
    let dashes = label.bytes().filter(|byte| *byte == b'-').count();
    let separator = if dashes == 3 && !label.contains("--") {
        "."
    } else {
        ":"
    };
    label.replace('-', separator).parse().ok()
}
