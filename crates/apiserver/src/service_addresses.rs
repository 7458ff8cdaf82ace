//! Cluster IPs and node ports of Services.
//!
//! What is taken is read from the Services once, on first use, and kept in memory after that.
//! That is exact for one API server over a store; several will need the `IPAddress` objects of
//! Kubernetes, which the ServiceCIDR work brings.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use parking_lot::Mutex;
use rand::Rng;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::storage::Storage;
use crate::writes::Writer;

/// The addresses of Services (`--service-cluster-ip-range` of kube-apiserver), an IPv4 range of 8 to 2²⁰ addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange {
    first: u32,
    bits: u8,
}

impl Default for ServiceRange {
    /// 10.96.0.0/16
    fn default() -> Self {
        Self {
            first: u32::from_be_bytes([10, 96, 0, 0]),
            bits: 16,
        }
    }
}

impl ServiceRange {
    /// The address of the Service `kubernetes`.
    pub fn kubernetes(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    /// The address that the Service `kube-dns` has by convention: the tenth, or the last one of a small range.
    pub fn dns(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 10.min(self.size() - 2))
    }

    fn size(self) -> u32 {
        1 << (32 - self.bits)
    }

    /// Lower addresses are left to those who ask for a particular one (KEP-3070).
    fn random_from(self) -> u32 {
        match self.size() / 16 {
            0..16 => 2,
            part => part.min(256),
        }
    }

    fn contains(self, address: u32) -> bool {
        (self.first + 1..self.first + self.size() - 1).contains(&address)
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.bits)
    }
}

/// The text is no range of Services' addresses or ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// Addresses.
    #[error("expected an IPv4 range such as 10.96.0.0/16 (davit gives Services no IPv6 addresses)")]
    Addresses,
    /// The range has too many addresses or too few.
    #[error("a range of Services has 12 to 29 bits, this one has {0}")]
    Size(u8),
    /// Ports.
    #[error("expected a range of ports such as 30000-32767 or 30000+2767")]
    Ports,
}

impl FromStr for ServiceRange {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, bits) = text.split_once('/').ok_or(ServiceRangeError::Addresses)?;
        let address: Ipv4Addr = address.parse().map_err(|_| ServiceRangeError::Addresses)?;
        let bits: u8 = bits.parse().map_err(|_| ServiceRangeError::Addresses)?;
        if !(12..=29).contains(&bits) {
            return Err(ServiceRangeError::Size(bits));
        }
        let first = u32::from(address) & (u32::MAX << (32 - bits));
        Ok(Self { first, bits })
    }
}

/// The ports of Services on nodes (`--service-node-port-range`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePorts(RangeInclusive<u16>);

impl Default for NodePorts {
    /// 30000-32767
    fn default() -> Self {
        Self(30000..=32767)
    }
}

impl NodePorts {
    /// Lower ports are left to those who ask for a particular one (KEP-3668).
    fn random_from(&self) -> u16 {
        let size = self.0.end() - self.0.start();
        let lower = match size.saturating_add(1) {
            0..=16 => 0,
            size => (size / 32).clamp(16, 128),
        };
        self.0.start() + lower.min(size)
    }
}

impl fmt::Display for NodePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl FromStr for NodePorts {
    type Err = ServiceRangeError;

    /// `FIRST-LAST`, `FIRST+MORE` or one port.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => (port(first), port(last)),
            (None, Some((first, more))) => {
                let first = port(first);
                let last = first.zip(more.parse().ok());
                (
                    first,
                    last.and_then(|(first, more)| first.checked_add(more)),
                )
            }
            (None, None) => (port(text), port(text)),
        };
        match first.zip(last) {
            Some((first, last)) if first <= last => Ok(Self(first..=last)),
            _ => Err(ServiceRangeError::Ports),
        }
    }
}

#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<u32>,
    ports: BTreeSet<(u16, bool)>,
}

/// What there is, and what of it is taken.
#[derive(Debug)]
pub(crate) struct ServiceAddresses {
    range: ServiceRange,
    ports: NodePorts,
    taken: Arc<Mutex<Taken>>,
    loaded: OnceCell<()>,
}

/// Addresses taken for a write that may still fail; given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    taken: Option<Arc<Mutex<Taken>>>,
    addresses: Vec<u32>,
    ports: Vec<(u16, bool)>,
}

impl Reservation {
    /// The write succeeded.
    pub(crate) fn keep(mut self) {
        self.taken = None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            let mut taken = taken.lock();
            for address in &self.addresses {
                taken.addresses.remove(address);
            }
            for port in &self.ports {
                taken.ports.remove(port);
            }
        }
    }
}

fn is_service(storage: &Storage) -> bool {
    storage.group().is_empty() && storage.plural() == "services"
}

impl ServiceAddresses {
    pub(crate) fn new(range: ServiceRange, ports: NodePorts) -> Self {
        Self {
            range,
            ports,
            taken: Arc::default(),
            loaded: OnceCell::new(),
        }
    }

    /// Where cluster IPs are from.
    pub(crate) fn range(&self) -> ServiceRange {
        self.range
    }

    /// Fills in what a Service leaves to the cluster: its IP and node ports.
    pub(crate) async fn reserve(
        &self,
        writer: &Writer<'_>,
        service: &mut Value,
    ) -> Result<Reservation, Status> {
        if !is_service(&writer.resource.storage) {
            return Ok(Reservation::default());
        }
        self.load(writer).await?;
        let mut reservation = Reservation::default();
        reservation.taken = Some(Arc::clone(&self.taken));
        let name = crate::object::name(service).to_owned();
        let uid = crate::object::uid(service).to_owned();
        let held = held_by(writer, &name, &uid).await?;
        let mut faults = Vec::new();
        let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(reservation);
        };
        self.external(spec, &held, &mut faults);
        self.address(spec, &held, &mut reservation, &mut faults);
        self.node_ports(spec, &held, &mut reservation, &mut faults);
        self.health_check(spec, &held, &mut reservation, &mut faults);
        if faults.is_empty() {
            Ok(reservation)
        } else {
            Err(Status::invalid(
                writer.resource.qualified_kind(),
                &name,
                &faults,
            ))
        }
    }

    async fn load(&self, writer: &Writer<'_>) -> Result<(), Status> {
        self.loaded
            .get_or_try_init(|| async {
                let services = writer.server.objects("", "services", None).await?;
                let mut taken = self.taken.lock();
                for service in &services {
                    taken.addresses.extend(address_of(service));
                    taken.ports.extend(ports_of(service));
                }
                Ok(())
            })
            .await
            .map(|_| ())
    }

    fn address(
        &self,
        spec: &mut serde_json::Map<String, Value>,
        held: &Held,
        reservation: &mut Reservation,
        faults: &mut Vec<FieldError>,
    ) {
        if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
            return;
        }
        let asked = spec
            .get("clusterIP")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let address = match asked.as_str() {
            "" => self.any_address(reservation),
            "None" => Ok("None".to_owned()),
            text => self.this_address(text, held, reservation),
        };
        match address {
            Ok(address) => {
                spec.insert("clusterIPs".to_owned(), json!([address]));
                spec.insert("clusterIP".to_owned(), json!(address));
                if address != "None" || spec.contains_key("selector") {
                    spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
                    spec.entry("ipFamilyPolicy")
                        .or_insert_with(|| json!("SingleStack"));
                }
            }
            Err(why) => {
                let path = Path::new("spec").child("clusterIPs");
                faults.push(FieldError::invalid(&path, json!([asked]), why));
            }
        }
    }

    /// An address that is, or will be, a Service's own is nobody's external one.
    fn external(
        &self,
        spec: &serde_json::Map<String, Value>,
        held: &Held,
        faults: &mut Vec<FieldError>,
    ) {
        let asked = spec.get("externalIPs").and_then(Value::as_array);
        for (index, asked) in asked.into_iter().flatten().enumerate() {
            let text = asked.as_str().unwrap_or_default();
            let address = text.parse::<Ipv4Addr>().map(u32::from);
            if address.is_ok_and(|address| self.range.contains(address))
                && !held.external.contains(asked)
            {
                let path = Path::new("spec").child("externalIPs").index(index);
                let why = format!("may not be in the range of cluster IPs, {}", self.range);
                faults.push(FieldError::invalid(&path, asked.clone(), why));
            }
        }
    }

    fn any_address(&self, reservation: &mut Reservation) -> Result<String, String> {
        let mut taken = self.taken.lock();
        let (from, end) = (self.range.random_from(), self.range.size() - 1);
        let start = rand::rng().random_range(from..end);
        let low = 2..from;
        let free = (start..end)
            .chain(from..start)
            .chain(low)
            .map(|offset| self.range.first + offset)
            .find(|address| !taken.addresses.contains(address));
        let Some(address) = free else {
            return Err("failed to allocate a serviceIP: range is full".to_owned());
        };
        taken.addresses.insert(address);
        reservation.addresses.push(address);
        Ok(Ipv4Addr::from(address).to_string())
    }

    fn this_address(
        &self,
        text: &str,
        held: &Held,
        reservation: &mut Reservation,
    ) -> Result<String, String> {
        let Ok(ip) = text.parse::<Ipv4Addr>() else {
            return Err("must be a valid IPv4 address".to_owned());
        };
        let address = u32::from(ip);
        if held.addresses.contains(&address) {
            return Ok(text.to_owned());
        }
        if !self.range.contains(address) {
            return Err(format!(
                "failed to allocate IP {text}: the provided IP ({text}) is not in the valid range. \
                 The range of valid IPs is {}",
                self.range
            ));
        }
        let mut taken = self.taken.lock();
        if !taken.addresses.insert(address) {
            return Err(format!(
                "failed to allocate IP {text}: provided IP is already allocated"
            ));
        }
        reservation.addresses.push(address);
        Ok(text.to_owned())
    }

    fn node_ports(
        &self,
        spec: &mut serde_json::Map<String, Value>,
        held: &Held,
        reservation: &mut Reservation,
        faults: &mut Vec<FieldError>,
    ) {
        let wants = match spec.get("type").and_then(Value::as_str) {
            Some("NodePort") => true,
            Some("LoadBalancer") => {
                spec.get("allocateLoadBalancerNodePorts")
                    .and_then(Value::as_bool)
                    != Some(false)
            }
            _ => false,
        };
        let Some(ports) = spec
            .get_mut("ports")
            .and_then(Value::as_array_mut)
            .filter(|_| wants)
        else {
            return;
        };
        // Ports of one number that differ by protocol have one node port together.
        let mut shared: Vec<(u64, u16)> = ports.iter().filter_map(numbers).collect();
        for (index, port) in ports.iter_mut().enumerate() {
            let udp = port["protocol"] == "UDP";
            let asked = numbers(port).map_or(0, |(_, asked)| asked);
            if asked != 0 && held.ports.contains(&(asked, udp)) {
                continue;
            }
            let number = port["port"].as_u64().unwrap_or(0);
            let twin = shared.iter().find(|(port, _)| *port == number);
            let twin = twin
                .filter(|_| asked == 0)
                .and_then(|(_, node_port)| self.node_port(*node_port, udp, reservation).ok());
            let given = match twin {
                Some(given) => Ok(given),
                None => self.node_port(asked, udp, reservation),
            };
            match given {
                Ok(given) => {
                    shared.push((number, given));
                    port["nodePort"] = json!(given);
                }
                Err(why) => {
                    let path = Path::new("spec")
                        .child("ports")
                        .index(index)
                        .child("nodePort");
                    faults.push(FieldError::invalid(&path, asked, why));
                }
            }
        }
    }

    /// Where load balancers ask each node whether it has endpoints, under external policy Local.
    fn health_check(
        &self,
        spec: &mut serde_json::Map<String, Value>,
        held: &Held,
        reservation: &mut Reservation,
        faults: &mut Vec<FieldError>,
    ) {
        let is = |key: &str, text: &str| spec.get(key).and_then(Value::as_str) == Some(text);
        if !is("type", "LoadBalancer") || !is("externalTrafficPolicy", "Local") {
            return;
        }
        let asked = spec.get("healthCheckNodePort").and_then(port_number);
        let asked = asked.unwrap_or(0);
        if asked != 0 && held.ports.contains(&(asked, false)) {
            return;
        }
        match self.node_port(asked, false, reservation) {
            Ok(given) => drop(spec.insert("healthCheckNodePort".to_owned(), json!(given))),
            Err(why) => {
                let path = Path::new("spec").child("healthCheckNodePort");
                let why =
                    format!("failed to allocate requested HealthCheck NodePort {asked}: {why}");
                faults.push(FieldError::invalid(&path, asked, why));
            }
        }
    }

    fn node_port(
        &self,
        asked: u16,
        udp: bool,
        reservation: &mut Reservation,
    ) -> Result<u16, String> {
        let mut taken = self.taken.lock();
        let port = if asked == 0 {
            let (first, last) = (*self.ports.0.start(), *self.ports.0.end());
            let from = self.ports.random_from();
            let start = rand::rng().random_range(from..=last);
            (start..=last)
                .chain(from..start)
                .chain(first..from)
                .find(|port| !taken.ports.contains(&(*port, udp)))
                .ok_or_else(|| "failed to allocate a nodePort: range is full".to_owned())?
        } else if self.ports.0.contains(&asked) {
            asked
        } else {
            return Err(format!(
                "provided port is not in the valid range. The range of valid ports is {}",
                self.ports
            ));
        };
        if !taken.ports.insert((port, udp)) {
            return Err("provided port is already allocated".to_owned());
        }
        reservation.ports.push((port, udp));
        Ok(port)
    }

    /// A stored Service changed: what it no longer holds is free.
    pub(crate) fn changed(&self, storage: &Storage, old: &Value, new: &Value) {
        if !is_service(storage) || !self.loaded.initialized() {
            return;
        }
        let mut taken = self.taken.lock();
        let (address, ports) = (address_of(new), ports_of(new));
        if let Some(held) = address_of(old)
            && address != Some(held)
        {
            taken.addresses.remove(&held);
        }
        for port in ports_of(old) {
            if !ports.contains(&port) {
                taken.ports.remove(&port);
            }
        }
    }

    /// A Service was deleted.
    pub(crate) fn released(&self, storage: &Storage, old: &Value) {
        self.changed(storage, old, &Value::Null);
    }
}

/// What the stored Service of the same identity holds already.
#[derive(Debug, Default)]
struct Held {
    addresses: Vec<u32>,
    ports: Vec<(u16, bool)>,
    /// `externalIPs`.
    external: Vec<Value>,
}

async fn held_by(writer: &Writer<'_>, name: &str, uid: &str) -> Result<Held, Status> {
    let stored = writer
        .server
        .object("", "services", writer.namespace, name)
        .await?;
    Ok(stored
        .filter(|service| crate::object::uid(service) == uid)
        .map(|service| Held {
            addresses: address_of(&service).into_iter().collect(),
            ports: ports_of(&service),
            external: service
                .pointer("/spec/externalIPs")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
        })
        .unwrap_or_default())
}

/// The cluster IP that a Service holds. One of type ExternalName holds none, whatever is written there.
fn address_of(service: &Value) -> Option<u32> {
    if service.pointer("/spec/type").and_then(Value::as_str) == Some("ExternalName") {
        return None;
    }
    service
        .pointer("/spec/clusterIP")?
        .as_str()?
        .parse::<Ipv4Addr>()
        .ok()
        .map(u32::from)
}

/// A port that is one.
fn port_number(value: &Value) -> Option<u16> {
    let number = u16::try_from(value.as_u64()?).ok()?;
    (number != 0).then_some(number)
}

/// A port of a Service that has a node port, and that.
fn numbers(port: &Value) -> Option<(u64, u16)> {
    Some((port["port"].as_u64()?, port_number(&port["nodePort"])?))
}

/// The ports of nodes that a Service holds, and whether they are UDP's.
fn ports_of(service: &Value) -> Vec<(u16, bool)> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let ports = ports.into_iter().flatten().filter_map(|port| {
        let number = port_number(&port["nodePort"])?;
        Some((number, port["protocol"] == "UDP"))
    });
    let health = service.pointer("/spec/healthCheckNodePort");
    let health = health.and_then(port_number).map(|number| (number, false));
    ports.chain(health).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_addresses() {
        let range = |text: &str| text.parse::<ServiceRange>();
        let usual = ServiceRange::default();
        assert_eq!(range(&usual.to_string()), Ok(usual));
        assert_eq!(usual.kubernetes().to_string(), "10.96.0.1");
        assert_eq!(usual.dns().to_string(), "10.96.0.10");
        let small = range("192.168.7.9/29").unwrap();
        assert_eq!(small.to_string(), "192.168.7.8/29");
        assert_eq!(small.dns().to_string(), "192.168.7.14");
        assert!(small.random_from() < small.size() - 1);
        assert_eq!(range("10.0.0.0/24").unwrap().random_from(), 16);
        assert_eq!(range("10.0.0.0/30"), Err(ServiceRangeError::Size(30)));
        for wrong in [
            "",
            "10.0.0.0",
            "fd00::/112",
            "10.0.0.0/24,fd00::/112",
            "x/16",
            "1.2.3.4/-1",
        ] {
            assert_eq!(range(wrong), Err(ServiceRangeError::Addresses), "{wrong}");
        }
    }

    #[test]
    fn lower_ports_are_asked_for() {
        let from = |text: &str| text.parse::<NodePorts>().unwrap().random_from();
        assert_eq!(from("30000-32767"), 30086);
        assert_eq!(from("30000-30015"), 30000);
        assert_eq!(from("30000-30016"), 30016);
        assert_eq!(from("80"), 80);
        assert_eq!(from("1-65535"), 129);
    }

    #[test]
    fn ranges_of_ports() {
        let ports = |text: &str| text.parse::<NodePorts>().map(|ports| ports.to_string());
        assert_eq!(ports("80-90").as_deref(), Ok("80-90"));
        assert_eq!(ports("80+10").as_deref(), Ok("80-90"));
        assert_eq!(ports("80").as_deref(), Ok("80-80"));
        for wrong in ["", "0-3", "9-8", "65535+1", "a-b", "1-70000"] {
            assert_eq!(ports(wrong), Err(ServiceRangeError::Ports), "{wrong}");
        }
    }
}
