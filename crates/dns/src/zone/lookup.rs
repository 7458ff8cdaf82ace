//! Finding what a name of the zone stands for.

use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::Zone;
use super::answer::MAX_RECORDS;
use super::index::Slices;
use super::service::{Kind, NamedPort, Protocol, ServiceRecord};
use super::slice::{self, SliceRecord};

/// What is found at a name.
pub(super) enum Node<'z> {
    Missing,
    /// A name without records of its own.
    Empty,
    Apex,
    Version,
    Addresses(Vec<IpAddr>),
    Ports(Vec<Target>),
    Alias(&'z Name),
}

/// One record of a service question, with the addresses of its name.
pub(super) struct Target {
    pub(super) name: Name,
    pub(super) port: u16,
    pub(super) addresses: Vec<IpAddr>,
}

impl Zone {
    /// Finds a name of the zone: its labels below `Z`, the last first, are the path.
    pub(super) fn locate(&self, name: &Name) -> Node<'_> {
        let name = name.to_lowercase();
        let depth = name.iter().len() - self.origin.iter().len();
        // `_port._proto.svc.ns.svc` are five labels; no name has more.
        let mut path = [""; 5];
        if depth > path.len() {
            return Node::Missing;
        }
        let labels = name.iter().rev().skip(self.origin.iter().len());
        for (slot, label) in path.iter_mut().zip(labels) {
            match std::str::from_utf8(label) {
                Ok(label) => *slot = label,
                Err(_) => return Node::Missing,
            }
        }
        match path.get(..depth).unwrap_or_default() {
            [] => Node::Apex,
            ["svc" | "pod" | "dns"] => Node::Empty,
            ["dns-version"] => Node::Version,
            ["dns", "ns"] => Node::Addresses(self.servers.clone()),
            ["svc" | "pod", namespace] => match self.namespaces.get(*namespace) {
                Some(known) if known.exists() => Node::Empty,
                _ => Node::Missing,
            },
            ["pod", namespace, label] => self.locate_pod(namespace, label),
            ["svc", namespace, service, below @ ..] => {
                let known = self.namespaces.get(*namespace);
                let known = known.and_then(|known| known.service(service));
                known.map_or(Node::Missing, |(record, slices)| {
                    self.locate_service(record, slices, &path, below)
                })
            }
            _ => Node::Missing,
        }
    }

    /// A pod's name says its address; only the namespace is checked (CoreDNS, pods insecure).
    fn locate_pod(&self, namespace: &str, label: &str) -> Node<'_> {
        match (self.namespaces.get(namespace), slice::undashed(label)) {
            (Some(known), Some(address)) if known.exists() => Node::Addresses(vec![address]),
            _ => Node::Missing,
        }
    }

    fn locate_service<'z>(
        &self,
        record: &'z ServiceRecord,
        slices: &Slices,
        path: &[&str; 5],
        below: &[&str],
    ) -> Node<'z> {
        match (&record.kind, below) {
            (Kind::External(Some(target)), []) => Node::Alias(target),
            (Kind::External(_), _) => Node::Missing,
            (Kind::Cluster(addresses), []) => Node::Addresses(addresses.to_vec()),
            (Kind::Headless, []) => {
                let all = slices.iter().flat_map(SliceRecord::addresses);
                existing(all.map(|entry| entry.address).collect())
            }
            (_, [label]) => match Protocol::of_label(label) {
                Some(protocol) => locate_protocol(record, slices, protocol),
                None => {
                    let hosts = slices.iter().flat_map(|slice| slice.of_host(label));
                    existing(hosts.map(|entry| entry.address).collect())
                }
            },
            (_, [protocol, port]) => {
                let protocol = Protocol::of_label(protocol);
                let (Some(protocol), Some(port)) = (protocol, port.strip_prefix('_')) else {
                    return Node::Missing;
                };
                let wanted =
                    |known: &&NamedPort| known.protocol == protocol && &*known.name == port;
                let targets = match &record.kind {
                    Kind::Cluster(addresses) => {
                        self.cluster_targets(path, &record.ports, addresses, wanted)
                    }
                    _ => self.endpoint_targets(path, slices, wanted),
                };
                if targets.is_empty() {
                    Node::Missing
                } else {
                    Node::Ports(targets)
                }
            }
            _ => Node::Missing,
        }
    }

    fn cluster_targets(
        &self,
        path: &[&str; 5],
        ports: &[NamedPort],
        addresses: &[IpAddr],
        wanted: impl Fn(&&NamedPort) -> bool,
    ) -> Vec<Target> {
        let [_, namespace, service, ..] = path;
        let targets = ports.iter().filter(wanted).filter_map(|port| {
            let name = self.below(&[service, namespace])?;
            Some(Target {
                name,
                port: port.number,
                addresses: addresses.to_vec(),
            })
        });
        targets.take(MAX_RECORDS).collect()
    }

    /// One for each host and port (DNS specification 1.1.0, 2.4.2); the families of a host share theirs.
    fn endpoint_targets(
        &self,
        path: &[&str; 5],
        slices: &Slices,
        wanted: impl Fn(&&NamedPort) -> bool,
    ) -> Vec<Target> {
        let [_, namespace, service, ..] = path;
        let mut found: Vec<(&str, u16, IpAddr)> = Vec::new();
        for slice in slices.iter() {
            for port in slice.ports.iter().filter(&wanted) {
                let addresses = slice.addresses().iter();
                found.extend(addresses.map(|entry| (&*entry.host, port.number, entry.address)));
            }
        }
        found.sort_unstable();
        found.dedup();
        let groups = found.chunk_by(|left, right| (left.0, left.1) == (right.0, right.1));
        let targets = groups.filter_map(|group| {
            let (host, port, _) = group.first()?;
            let name = self.below(&[host, service, namespace])?;
            let addresses = group.iter().map(|(_, _, address)| *address).collect();
            Some(Target {
                name,
                port: *port,
                addresses,
            })
        });
        targets.take(MAX_RECORDS).collect()
    }

    /// The name of these labels below `svc.Z`; none when it is too long to be one.
    pub(super) fn below(&self, labels: &[&str]) -> Option<Name> {
        let mut name = Name::new();
        for label in labels.iter().copied().chain(["svc"]) {
            name = name.append_label(label.as_bytes()).ok()?;
        }
        name.append_domain(&self.origin).ok()
    }
}

/// `_proto` below a Service exists when a named port is below it (RFC 8020).
fn locate_protocol(record: &ServiceRecord, slices: &Slices, protocol: Protocol) -> Node<'static> {
    let of_protocol = |port: &NamedPort| port.protocol == protocol;
    let exists = match record.kind {
        Kind::Cluster(_) => record.ports.iter().any(of_protocol),
        Kind::Headless => slices
            .iter()
            .any(|slice| !slice.addresses().is_empty() && slice.ports.iter().any(of_protocol)),
        Kind::External(_) => false,
    };
    if exists { Node::Empty } else { Node::Missing }
}

/// Endpoints' addresses, each once; no endpoint, no name (spec network.md 6.2).
fn existing(mut addresses: Vec<IpAddr>) -> Node<'static> {
    if addresses.is_empty() {
        return Node::Missing;
    }
    addresses.sort_unstable();
    addresses.dedup();
    Node::Addresses(addresses)
}
