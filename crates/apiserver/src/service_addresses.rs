//! Cluster IPs and node ports of Services.

mod claims;
mod families;
mod ports;

use std::net::IpAddr;

use davit_api::field::{FieldError, Path};
use davit_api::status::Status;
use serde_json::{Value, json};

use davit_netplan::{Family, NodePorts, ServiceRanges};
use davit_registry::storage::Storage;
use davit_registry::{Registry, object};

use crate::server::ApiServer;
use crate::writes::Writer;
use claims::{ClusterIps, NoAddress};
use ports::{NoPort, PortPool, port_number, ports_of};

/// What there is, and what of it is taken.
#[derive(Debug)]
pub(crate) struct ServiceAddresses {
    ranges: ServiceRanges,
    ips: ClusterIps,
    ports: PortPool,
}

/// What was claimed for a write that may still fail. What nobody gives back is found by what repairs.
#[derive(Debug, Default)]
#[must_use = "what was claimed is kept or given back"]
pub(crate) struct Reservation {
    ips: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl Reservation {
    /// The write succeeded.
    pub(crate) fn keep(self) {}

    /// It did not.
    pub(crate) async fn give_back(self, writer: &Writer<'_>, service: &Value) {
        let parent = Parent {
            namespace: writer.namespace,
            name: object::name(service),
        };
        release(writer.server, &self.ips, &self.ports, parent).await;
    }
}

/// For which Service something is claimed.
#[derive(Debug, Clone, Copy)]
struct Parent<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Parent<'a> {
    fn of(service: &'a Value) -> Self {
        Self {
            namespace: object::namespace(service),
            name: object::name(service),
        }
    }
}

/// Takes back claims for what a Service does not hold. What fails is left to what repairs: the Service itself has been written.
async fn release(server: &ApiServer, ips: &[IpAddr], ports: &[u16], parent: Parent<'_>) {
    for ip in ips {
        if let Err(status) = claims::release(server, *ip, parent).await {
            tracing::warn!(%ip, ?parent, error = status.message, "the claim on an address stays for now");
        }
    }
    let pool = &server.service_addresses().ports;
    pool.release(&**server.store(), ports).await;
}

fn is_service(storage: &Storage) -> bool {
    storage.group().is_empty() && storage.plural() == "services"
}

impl ServiceAddresses {
    pub(crate) fn new(ranges: ServiceRanges, ports: NodePorts, registry: &Registry) -> Self {
        Self {
            ranges,
            ips: ClusterIps::new(ranges, registry),
            ports: PortPool::new(ports),
        }
    }

    /// Whether an address is one that Services may have.
    pub(crate) async fn may_hold(&self, address: IpAddr) -> bool {
        self.ips.offers(address).await
    }

    /// Where cluster IPs are from, unless from ranges that were added.
    pub(crate) fn ranges(&self) -> ServiceRanges {
        self.ranges
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
        let name = object::name(service).to_owned();
        let uid = object::uid(service).to_owned();
        let held = held_by(writer, &name, &uid).await?;
        let parent = Parent {
            namespace: writer.namespace,
            name: &name,
        };
        let mut reservation = Reservation::default();
        let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) else {
            return Ok(reservation);
        };
        let filled = self.fill(writer, spec, &held, parent, &mut reservation);
        let refused = match filled.await {
            Ok(faults) if faults.is_empty() => return Ok(reservation),
            Ok(faults) => {
                let kind = writer.resource.qualified_kind();
                Status::invalid(kind, &name, &faults)
            }
            Err(status) => status,
        };
        release(writer.server, &reservation.ips, &reservation.ports, parent).await;
        Err(refused)
    }

    /// Fills in what is left to the cluster; what the writer has to mend.
    async fn fill(
        &self,
        writer: &Writer<'_>,
        spec: &mut serde_json::Map<String, Value>,
        held: &HeldAddresses,
        parent: Parent<'_>,
        reservation: &mut Reservation,
    ) -> Result<Vec<FieldError>, Status> {
        let mut faults = families::assign(spec, held.spec.as_ref(), &self.ranges);
        self.external(spec, held, &mut faults);
        let ports = &mut reservation.ports;
        self.node_ports(writer, spec, held, ports, &mut faults)
            .await?;
        self.health_check(writer, spec, held, ports, &mut faults)
            .await?;
        // Only if nothing else is wrong: it is an object that would have to go again.
        if faults.is_empty() {
            let ips = &mut reservation.ips;
            faults.extend(self.addresses(writer, spec, held, parent, ips).await?);
        }
        Ok(faults)
    }

    /// Fills in the cluster IPs, one of each of the Service's families; those that were claimed for it are in `taken`.
    async fn addresses(
        &self,
        writer: &Writer<'_>,
        spec: &mut serde_json::Map<String, Value>,
        held: &HeldAddresses,
        parent: Parent<'_>,
        taken: &mut Vec<IpAddr>,
    ) -> Result<Option<FieldError>, Status> {
        if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
            return Ok(None);
        }
        let asked: Vec<String> = families::texts(spec, "clusterIPs");
        if asked.first().is_some_and(|first| first == "None") {
            spec.insert("clusterIP".to_owned(), json!("None"));
            return Ok(None);
        }
        let mut given = Vec::new();
        for (index, family) in families::of(spec).into_iter().enumerate() {
            let text = asked.get(index).map(String::as_str).unwrap_or_default();
            let claim = self.address(writer, family, text, held, parent);
            let why = match claim.await {
                Ok((ip, is_new)) => {
                    given.push(ip.to_string());
                    // a dry run has claimed nothing
                    if is_new && !writer.dry_run {
                        taken.push(ip);
                    }
                    continue;
                }
                Err(NoAddress::Failed(status)) => return Err(status),
                Err(NoAddress::Full) => {
                    let name = parent.name;
                    let why = format!(
                        "failed to allocate a serviceIP for Service {name:?}: range is full"
                    );
                    return Err(Status::internal(why));
                }
                Err(NoAddress::Taken) => "provided IP is already allocated".to_owned(),
                Err(NoAddress::OutOfRange(ranges)) => format!(
                    "the provided IP ({text}) is not in the valid range. The range of valid IPs is {ranges}"
                ),
            };
            let path = Path::new("spec").child("clusterIPs");
            let why = format!("failed to allocate IP {text}: {why}");
            return Ok(Some(FieldError::invalid(&path, json!(asked), why)));
        }
        spec.insert("clusterIP".to_owned(), json!(given.first()));
        spec.insert("clusterIPs".to_owned(), json!(given));
        Ok(None)
    }

    /// An address of a family, the one that was asked for if one was, and whether it was claimed now.
    async fn address(
        &self,
        writer: &Writer<'_>,
        family: Family,
        asked: &str,
        held: &HeldAddresses,
        parent: Parent<'_>,
    ) -> Result<(IpAddr, bool), NoAddress> {
        let (server, dry_run) = (writer.server, writer.dry_run);
        let Ok(ip) = asked.parse::<IpAddr>() else {
            let claimed = self.ips.claim_any(server, family, parent, dry_run).await;
            return claimed.map(|ip| (ip, true));
        };
        if held.addresses.contains(&ip) {
            return Ok((ip, false));
        }
        let claimed = self.ips.claim_this(server, ip, parent, dry_run).await;
        claimed.map(|()| (ip, true))
    }

    /// An address that is, or will be, a Service's own is nobody's external one.
    fn external(
        &self,
        spec: &serde_json::Map<String, Value>,
        held: &HeldAddresses,
        faults: &mut Vec<FieldError>,
    ) {
        let asked = spec.get("externalIPs").and_then(Value::as_array);
        for (index, asked) in asked.into_iter().flatten().enumerate() {
            let text = asked.as_str().unwrap_or_default();
            let address = text.parse::<IpAddr>();
            if address.is_ok_and(|address| self.ips.contains(address))
                && !held.external.contains(asked)
            {
                let path = Path::new("spec").child("externalIPs").index(index);
                let why = format!("may not be in the range of cluster IPs, {}", self.ranges);
                faults.push(FieldError::invalid(&path, asked.clone(), why));
            }
        }
    }

    async fn node_ports(
        &self,
        writer: &Writer<'_>,
        spec: &mut serde_json::Map<String, Value>,
        held: &HeldAddresses,
        taken: &mut Vec<u16>,
        faults: &mut Vec<FieldError>,
    ) -> Result<(), Status> {
        let wants = match spec.get("type").and_then(Value::as_str) {
            Some("NodePort") => true,
            Some("LoadBalancer") => {
                spec.get("allocateLoadBalancerNodePorts")
                    .and_then(Value::as_bool)
                    != Some(false)
            }
            _ => false,
        };
        let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
        let Some(ports) = ports.filter(|_| wants) else {
            return Ok(());
        };
        let store = &**writer.server.store();
        // Ports of one number that differ by protocol have one node port together.
        let mut shared: Vec<(u64, u16)> = ports.iter().filter_map(numbers).collect();
        // A dry run claims nothing, but gives nothing twice either.
        let mut own = held.ports.clone();
        for (index, port) in ports.iter_mut().enumerate() {
            let asked = numbers(port).map_or(0, |(_, asked)| asked);
            let number = port["port"].as_u64().unwrap_or(0);
            let twin = shared.iter().find(|(port, _)| *port == number);
            let twin = twin.filter(|_| asked == 0).map(|(_, given)| *given);
            if let Some(held) = twin.or(Some(asked)).filter(|port| own.contains(port)) {
                port["nodePort"] = json!(held);
                continue;
            }
            let mut given = Err(NoPort::Refused(String::new()));
            if let Some(twin) = twin {
                given = self.ports.port(store, twin, writer.dry_run).await;
            }
            if matches!(given, Err(NoPort::Refused(_))) {
                given = self.ports.port(store, asked, writer.dry_run).await;
            }
            match given {
                Ok(given) => {
                    shared.push((number, given));
                    own.push(given);
                    port["nodePort"] = json!(given);
                    // a dry run has claimed nothing
                    if !writer.dry_run {
                        taken.push(given);
                    }
                }
                Err(NoPort::Failed(status)) => return Err(status),
                Err(NoPort::Refused(why)) => {
                    let path = Path::new("spec")
                        .child("ports")
                        .index(index)
                        .child("nodePort");
                    faults.push(FieldError::invalid(&path, asked, why));
                }
            }
        }
        Ok(())
    }

    /// Where load balancers ask each node whether it has endpoints, under external policy Local.
    async fn health_check(
        &self,
        writer: &Writer<'_>,
        spec: &mut serde_json::Map<String, Value>,
        held: &HeldAddresses,
        taken: &mut Vec<u16>,
        faults: &mut Vec<FieldError>,
    ) -> Result<(), Status> {
        let is = |key: &str, text: &str| spec.get(key).and_then(Value::as_str) == Some(text);
        if !is("type", "LoadBalancer") || !is("externalTrafficPolicy", "Local") {
            return Ok(());
        }
        let asked = spec.get("healthCheckNodePort").and_then(port_number);
        let asked = asked.unwrap_or(0);
        if asked != 0 && held.ports.contains(&asked) {
            return Ok(());
        }
        let store = &**writer.server.store();
        let given = self.ports.port(store, asked, writer.dry_run);
        match given.await {
            Ok(given) => {
                spec.insert("healthCheckNodePort".to_owned(), json!(given));
                if !writer.dry_run {
                    taken.push(given);
                }
            }
            Err(NoPort::Failed(status)) => return Err(status),
            Err(NoPort::Refused(why)) => {
                let path = Path::new("spec").child("healthCheckNodePort");
                let why =
                    format!("failed to allocate requested HealthCheck NodePort {asked}: {why}");
                faults.push(FieldError::invalid(&path, asked, why));
            }
        }
        Ok(())
    }

    /// A stored Service changed: what it no longer holds is free.
    pub(crate) async fn changed(&self, writer: &Writer<'_>, old: &Value, new: &Value) {
        if !is_service(&writer.resource.storage) {
            return;
        }
        let (mut ips, kept) = (addresses_of(old), ports_of(new));
        let mut ports = ports_of(old);
        ports.retain(|port| !kept.contains(port));
        let stay = addresses_of(new);
        ips.retain(|ip| !stay.contains(ip));
        let parent = Parent {
            namespace: writer.namespace,
            name: object::name(old),
        };
        release(writer.server, &ips, &ports, parent).await;
    }

    /// A Service was deleted.
    pub(crate) async fn released(&self, writer: &Writer<'_>, old: &Value) {
        self.changed(writer, old, &Value::Null).await;
    }

    /// Claims what Services hold that are older than claims are; another server may be doing the same.
    ///
    /// # Errors
    /// Services cannot be read, or a claim cannot be written.
    pub(crate) async fn adopt(&self, server: &ApiServer) -> Result<(), Status> {
        let services = server.objects("", "services", None).await?;
        let claimed = claims::all(server).await?;
        for service in &services {
            for ip in addresses_of(service) {
                if !claimed.contains(&ip) {
                    claims::claim(server, ip, Parent::of(service)).await?;
                }
            }
        }
        self.repair_ports(server).await
    }

    /// Compares the claims on node ports with the Services, as the controllers do with those on addresses.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn repair_ports(&self, server: &ApiServer) -> Result<(), Status> {
        // first the claims are read and then the Services: what is claimed in between is not missed
        let taken = self.ports.taken(&**server.store()).await;
        let taken = taken.map_err(|error| Status::internal(&error))?;
        let services = server.objects("", "services", None).await?;
        let repaired = self.ports.repair(&**server.store(), taken, &services);
        repaired.await.map_err(|error| Status::internal(&error))
    }
}

/// What the stored Service of the same identity holds already.
#[derive(Debug, Default)]
struct HeldAddresses {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    /// `externalIPs`.
    external: Vec<Value>,
    spec: Option<Value>,
}

async fn held_by(writer: &Writer<'_>, name: &str, uid: &str) -> Result<HeldAddresses, Status> {
    let stored = writer
        .server
        .object("", "services", writer.namespace, name)
        .await?;
    Ok(stored
        .filter(|service| object::uid(service) == uid)
        .map(|service| HeldAddresses {
            addresses: addresses_of(&service),
            spec: service.get("spec").cloned(),
            ports: ports_of(&service),
            external: service
                .pointer("/spec/externalIPs")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default(),
        })
        .unwrap_or_default())
}

/// The cluster IPs that a Service holds. One of type ExternalName holds none, whatever is written there.
fn addresses_of(service: &Value) -> Vec<IpAddr> {
    let spec = service.get("spec").and_then(Value::as_object);
    let Some(spec) = spec.filter(|spec| spec.get("type") != Some(&json!("ExternalName"))) else {
        return Vec::new();
    };
    let one = spec
        .get("clusterIP")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let mut all = families::texts(spec, "clusterIPs");
    if all.is_empty() {
        all.extend(one);
    }
    all.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// A port of a Service that has a node port, and that.
fn numbers(port: &Value) -> Option<(u64, u16)> {
    Some((port["port"].as_u64()?, port_number(&port["nodePort"])?))
}
