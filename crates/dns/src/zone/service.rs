//! What the zone keeps of one Service.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1::Service;

/// What the name of a Service stands for (DNS specification 1.1.0, 2.3 to 2.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The virtual addresses; empty until they are allocated.
    Cluster(Box<[IpAddr]>),
    /// The addresses of the endpoints.
    Headless,
    /// Another name. None when it is an address or no name at all: such a Service has no records.
    External(Option<Box<Name>>),
}

/// The protocol of a port, as a label says it behind its underscore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The protocol of a port of the API, where none means TCP.
    pub(super) fn of_port(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP" | "") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// The protocol of a label in lower case, underscore included.
    pub(super) fn of_label(label: &str) -> Option<Self> {
        match label {
            "_tcp" => Some(Self::Tcp),
            "_udp" => Some(Self::Udp),
            "_sctp" => Some(Self::Sctp),
            _ => None,
        }
    }
}

/// A port with a name; ports without one have no SRV record (DNS specification 1.1.0, 2.3.2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedPort {
    pub(super) name: Box<str>,
    pub(super) protocol: Protocol,
    pub(super) number: u16,
}

impl NamedPort {
    pub(super) fn new(name: Option<&str>, protocol: Option<&str>, number: i32) -> Option<Self> {
        let name = name.filter(|name| !name.is_empty())?;
        Some(Self {
            name: name.to_ascii_lowercase().into(),
            protocol: Protocol::of_port(protocol)?,
            number: u16::try_from(number).ok()?,
        })
    }
}

/// A Service, reduced to what questions ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceRecord {
    pub(super) kind: Kind,
    pub(super) ports: Box<[NamedPort]>,
}

impl ServiceRecord {
    pub(super) fn new(service: &Service) -> Self {
        Self {
            kind: kind_of(service),
            ports: ports_of(service),
        }
    }

    /// The cluster IPs, which have pointers of their own.
    pub(super) fn cluster_ips(&self) -> &[IpAddr] {
        match &self.kind {
            Kind::Cluster(addresses) => addresses,
            Kind::Headless | Kind::External(_) => &[],
        }
    }

    /// Whether its endpoints have names: an alias has no endpoints, whatever slices claim.
    pub(super) fn has_endpoints(&self) -> bool {
        !matches!(self.kind, Kind::External(_))
    }
}

fn kind_of(service: &Service) -> Kind {
    let Some(spec) = &service.spec else {
        return Kind::Cluster(Box::default());
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Kind::External(spec.external_name.as_deref().and_then(external_name));
    }
    let listed = spec.cluster_ips.as_deref().unwrap_or_default().iter();
    // Objects written before dual stack have the single field only.
    let mut texts: Vec<&str> = listed.map(String::as_str).collect();
    if texts.is_empty() {
        texts.extend(spec.cluster_ip.as_deref());
    }
    if texts.first() == Some(&"None") {
        return Kind::Headless;
    }
    let mut addresses: Vec<IpAddr> = Vec::with_capacity(texts.len());
    for address in texts.iter().filter_map(|text| text.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Kind::Cluster(addresses.into())
}

/// The target of an alias; an address literal is none (spec network.md 6.1 rule 4).
fn external_name(text: &str) -> Option<Box<Name>> {
    if text.parse::<IpAddr>().is_ok() {
        return None;
    }
    let mut name = Name::from_ascii(text).ok()?;
    if name.is_root() {
        return None;
    }
    name.set_fqdn(true);
    Some(Box::new(name))
}

fn ports_of(service: &Service) -> Box<[NamedPort]> {
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    ports
        .filter_map(|port| {
            NamedPort::new(port.name.as_deref(), port.protocol.as_deref(), port.port)
        })
        .collect()
}
