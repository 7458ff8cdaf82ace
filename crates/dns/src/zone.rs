//! The zone of the cluster: what Services, slices and namespaces say, indexed by the names people ask for.
//!
//! The index is changed object by object, and an answer looks up, it never walks over all objects
//! (spec network.md 6.7 rule 3). Nothing here does I/O or waits.

mod answer;
mod index;
mod lookup;
#[cfg(test)]
pub(crate) mod objects;
#[cfg(test)]
mod properties;
mod relist;
mod reverse;
mod service;
mod slice;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::rr::Name;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

pub use answer::{Answer, MAX_RECORDS};
use index::Namespace;
use reverse::{Endpoint, Owner, Pointers};
use service::ServiceRecord;
use slice::SliceRecord;

/// The longest time to live that may be configured (spec network.md 6.2 rule 3).
pub const MAX_TTL: u32 = 3600;

/// Why there can be no zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// The cluster domain is no domain name, or the root.
    #[error("cluster domain {0:?} is not a domain name")]
    Domain(String),
    /// The cluster domain leaves no room for `_port._proto.svc.ns.svc` below it.
    #[error("cluster domain {0:?} is longer than {MAX_DOMAIN} bytes")]
    DomainTooLong(String),
}

/// Room for a Service's own name in 255 bytes: two labels of 63 and `svc`, with their lengths.
const MAX_DOMAIN: usize = 120;

/// The records of a cluster domain, kept up object by object (DNS specification 1.1.0).
#[derive(Debug)]
pub struct Zone {
    origin: Name,
    ttl: u32,
    synced: bool,
    serial: u32,
    clock: fn() -> u32,
    servers: Vec<IpAddr>,
    namespaces: HashMap<Arc<str>, Namespace>,
    pointers: Pointers,
}

impl Zone {
    /// An empty zone for a cluster domain, which answers SERVFAIL for unknown names until it is synced.
    ///
    /// # Errors
    /// When the domain is no domain name or too long to have Services below it.
    pub fn new(domain: &str, ttl: u32) -> Result<Self, ZoneError> {
        Self::with_clock(domain, ttl, seconds)
    }

    /// As [`Zone::new`], with the clock that gives the SOA's serial.
    ///
    /// # Errors
    /// As [`Zone::new`].
    pub fn with_clock(domain: &str, ttl: u32, clock: fn() -> u32) -> Result<Self, ZoneError> {
        let name = Name::from_ascii(domain).map_err(|_| ZoneError::Domain(domain.to_owned()))?;
        if name.is_root() {
            return Err(ZoneError::Domain(domain.to_owned()));
        }
        if name.len() > MAX_DOMAIN {
            return Err(ZoneError::DomainTooLong(domain.to_owned()));
        }
        let mut origin = name.to_lowercase();
        origin.set_fqdn(true);
        Ok(Self {
            origin,
            ttl: ttl.min(MAX_TTL),
            synced: false,
            serial: clock(),
            clock,
            servers: Vec::new(),
            namespaces: HashMap::new(),
            pointers: Pointers::default(),
        })
    }

    /// The cluster domain, in lower case.
    #[must_use]
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// The addresses of `ns.dns.Z`: those the server can be asked at (spec network.md 6.2).
    pub fn set_servers(&mut self, addresses: Vec<IpAddr>) {
        self.servers = addresses;
        self.touch();
    }

    /// Whether all informers have had their first full list; before, no name is denied (spec network.md 6.2).
    pub fn set_synced(&mut self, synced: bool) {
        self.synced = synced;
    }

    /// Whether names that are not found do not exist.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// A Namespace was added.
    pub fn apply_namespace(&mut self, name: &str) {
        self.namespace(name).1.declared = true;
        self.touch();
    }

    /// A Namespace is gone; its Services go by their own removals.
    pub fn remove_namespace(&mut self, name: &str) {
        if let Some(namespace) = self.namespaces.get_mut(name) {
            namespace.declared = false;
        }
        self.prune(name);
        self.touch();
    }

    /// A Service was added or changed.
    pub fn apply_service(&mut self, service: &Service) {
        let metadata = &service.metadata;
        if let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) {
            self.replace_service(namespace, name, Some(ServiceRecord::new(service)));
        }
    }

    /// A Service is gone. Its slices may go later.
    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        if self.namespaces.contains_key(namespace) {
            self.replace_service(namespace, name, None);
        }
    }

    /// An EndpointSlice was added or changed.
    pub fn apply_slice(&mut self, slice: &EndpointSlice) {
        let metadata = &slice.metadata;
        let (Some(namespace), Some(name)) = (&metadata.namespace, &metadata.name) else {
            return;
        };
        let service = slice::service_of(slice);
        if self.slice_owner(namespace, name).as_deref() != service {
            self.remove_slice(namespace, name);
        }
        if let Some(service) = service {
            self.insert_slice(namespace, name, service, SliceRecord::new(slice));
        }
    }

    /// An EndpointSlice is gone.
    pub fn remove_slice(&mut self, namespace: &str, name: &str) {
        if !self.namespaces.contains_key(namespace) {
            return;
        }
        let (shared, objects) = namespace_of(&mut self.namespaces, namespace);
        let Some((slice, service)) = objects.slice_owners.remove_entry(name) else {
            return;
        };
        let (_, entry) = objects.entry(&service);
        if let Some(old) = entry.slices.remove(name) {
            for address in old.addresses() {
                let owner = endpoint_owner(&shared, &service, &slice, &address.host);
                self.pointers.remove(address.address, &owner);
            }
        }
        objects.prune(&service);
        self.prune(namespace);
        self.touch();
    }

    fn slice_owner(&self, namespace: &str, name: &str) -> Option<Arc<str>> {
        self.namespaces
            .get(namespace)?
            .slice_owners
            .get(name)
            .cloned()
    }

    fn insert_slice(&mut self, namespace: &str, name: &str, service: &str, record: SliceRecord) {
        let (shared, objects) = namespace_of(&mut self.namespaces, namespace);
        let (service, entry) = objects.entry(service);
        if entry.slices.get(name) == Some(&record) {
            return;
        }
        let name: Arc<str> = name.into();
        let owner = |host: &Arc<str>| endpoint_owner(&shared, &service, &name, host);
        let old = entry
            .slices
            .get(&name)
            .map(SliceRecord::addresses)
            .unwrap_or_default();
        // Both are sorted: one endpoint turning ready costs one pointer, not a thousand.
        for gone in old
            .iter()
            .filter(|item| record.addresses().binary_search(item).is_err())
        {
            self.pointers.remove(gone.address, &owner(&gone.host));
        }
        for new in record
            .addresses()
            .iter()
            .filter(|item| old.binary_search(item).is_err())
        {
            self.pointers.insert(new.address, owner(&new.host));
        }
        entry.slices.insert(name.clone(), record);
        objects.slice_owners.insert(name, service);
        self.touch();
    }

    fn replace_service(&mut self, namespace: &str, name: &str, record: Option<ServiceRecord>) {
        let (shared, objects) = namespace_of(&mut self.namespaces, namespace);
        let (service, entry) = objects.entry(name);
        let old = std::mem::replace(&mut entry.service, record);
        let owner = Owner {
            endpoint: None,
            namespace: shared,
            service,
        };
        let addresses = |record: &Option<ServiceRecord>| -> Vec<IpAddr> {
            record
                .iter()
                .flat_map(|record| record.cluster_ips().to_vec())
                .collect()
        };
        for address in addresses(&old) {
            self.pointers.remove(address, &owner);
        }
        for address in addresses(&entry.service) {
            self.pointers.insert(address, owner.clone());
        }
        let changed = old != entry.service;
        objects.live += usize::from(entry.service.is_some());
        objects.live -= usize::from(old.is_some());
        objects.prune(name);
        self.prune(namespace);
        if changed {
            self.touch();
        }
    }

    fn namespace(&mut self, name: &str) -> (Arc<str>, &mut Namespace) {
        namespace_of(&mut self.namespaces, name)
    }

    fn prune(&mut self, name: &str) {
        if self.namespaces.get(name).is_some_and(Namespace::is_unused) {
            self.namespaces.remove(name);
        }
    }

    /// The serial is the time of the last change (spec network.md 6.2 rule 2), and never goes back.
    fn touch(&mut self) {
        self.serial = self.serial.max((self.clock)());
    }
}

fn namespace_of<'z>(
    namespaces: &'z mut HashMap<Arc<str>, Namespace>,
    name: &str,
) -> (Arc<str>, &'z mut Namespace) {
    let shared = namespaces.get_key_value(name).map(|(key, _)| key.clone());
    let shared = shared.unwrap_or_else(|| name.into());
    let namespace = namespaces.entry(shared.clone()).or_default();
    (shared, namespace)
}

fn endpoint_owner(
    namespace: &Arc<str>,
    service: &Arc<str>,
    slice: &Arc<str>,
    host: &Arc<str>,
) -> Owner {
    Owner {
        endpoint: Some(Endpoint {
            slice: slice.clone(),
            host: host.clone(),
        }),
        namespace: namespace.clone(),
        service: service.clone(),
    }
}

fn seconds() -> u32 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // Serials are compared modulo 2^32 (RFC 1982), so the cut does no harm.
    since.as_secs() as u32
}
