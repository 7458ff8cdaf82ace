//! Cluster IPs and node ports of Services.
//!
//! What is taken is read from the Services once, on first use, and kept in memory after that.
//! That is exact for one API server over a store; several will need the `IPAddress` objects of
//! Kubernetes, which the ServiceCIDR work brings.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use parking_lot::Mutex;
use rand::Rng;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::storage::Storage;
use crate::writes::Writer;

/// The address range of Services, 10.96.0.0/16.
const FIRST: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const PREFIX: u32 = 16;
const SIZE: u32 = 1 << (32 - PREFIX);
/// The address of the `kubernetes` Service.
pub const KUBERNETES_SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Low addresses are left to those who ask for a particular one.
const RANDOM_FROM: u32 = 256;
const PORTS: std::ops::RangeInclusive<u16> = 30000..=32767;

/// The address range of Services, as people write it.
pub(crate) fn service_cidr() -> String {
    format!("{}/{PREFIX}", Ipv4Addr::from(FIRST))
}

#[derive(Debug, Default)]
struct Taken {
    addresses: BTreeSet<u32>,
    ports: BTreeSet<(u16, bool)>,
}

/// What is taken.
#[derive(Debug, Default)]
pub(crate) struct ServiceAddresses {
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
        self.address(spec, &held, &mut reservation, &mut faults);
        self.node_ports(spec, &held, &mut reservation, &mut faults);
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

    fn any_address(&self, reservation: &mut Reservation) -> Result<String, String> {
        let mut taken = self.taken.lock();
        let start = rand::rng().random_range(RANDOM_FROM..SIZE - 1);
        let low = 2..RANDOM_FROM;
        let free = (start..SIZE - 1)
            .chain(RANDOM_FROM..start)
            .chain(low)
            .map(|offset| FIRST + offset)
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
        if !(FIRST + 1..FIRST + SIZE - 1).contains(&address) {
            return Err(format!(
                "failed to allocate IP {text}: the provided IP ({text}) is not in the valid range. \
                 The range of valid IPs is {}",
                service_cidr()
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
        for (index, port) in ports.iter_mut().enumerate() {
            let udp = port["protocol"] == "UDP";
            let asked = port["nodePort"]
                .as_u64()
                .and_then(|p| u16::try_from(p).ok())
                .unwrap_or(0);
            if asked != 0 && held.ports.contains(&(asked, udp)) {
                continue;
            }
            match self.node_port(asked, udp, reservation) {
                Ok(given) => port["nodePort"] = json!(given),
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

    fn node_port(
        &self,
        asked: u16,
        udp: bool,
        reservation: &mut Reservation,
    ) -> Result<u16, String> {
        let mut taken = self.taken.lock();
        let port = if asked == 0 {
            let start = rand::rng().random_range(PORTS);
            (start..=*PORTS.end())
                .chain(*PORTS.start()..start)
                .find(|port| !taken.ports.contains(&(*port, udp)))
                .ok_or_else(|| "failed to allocate a nodePort: range is full".to_owned())?
        } else if PORTS.contains(&asked) {
            asked
        } else {
            return Err(
                "provided port is not in the valid range. The range of valid ports is 30000-32767"
                    .to_owned(),
            );
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
        })
        .unwrap_or_default())
}

fn address_of(service: &Value) -> Option<u32> {
    service
        .pointer("/spec/clusterIP")?
        .as_str()?
        .parse::<Ipv4Addr>()
        .ok()
        .map(u32::from)
}

fn ports_of(service: &Value) -> Vec<(u16, bool)> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    ports
        .into_iter()
        .flatten()
        .filter_map(|port| {
            let number = u16::try_from(port["nodePort"].as_u64()?).ok()?;
            (number != 0).then(|| (number, port["protocol"] == "UDP"))
        })
        .collect()
}
