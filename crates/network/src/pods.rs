//! The links of pods: a pair of devices for each, routed, no bridge (spec network.md 5.2).
//!
//! Inside the pod `eth0` has its address alone, and everything goes by the node's gateway address, the first of the node's
//! range, which every outer end has. So each packet of a pod passes the node's hooks, those to itself and to its
//! neighbours, too.

mod addresses;
mod record;

use crate::maps::Map;
use crate::ruleset::{Ruleset, Update, Wanted};
use addresses::Addresses;
use async_trait::async_trait;
use davit_net::nft::{Data, Verdict};
use davit_net::route::{Netlink, Pair, Route};
use davit_netplan::{Network as Range, Value};
use davit_oci::network::{Error, Network, PodNetwork};
use davit_proto::cri::v1::{PortMapping, Protocol};
use parking_lot::Mutex;
use record::{HostPort, Record, Records};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// The pod's device.
const INSIDE: &str = "eth0";
/// Who made a route (`RTPROT_…`): our own number.
pub(crate) const PROTOCOL: u8 = 0xda;
/// The largest packet when no interface says.
const MTU: u32 = 1500;
/// How long a new pod waits for its policies. After that it starts all the same, and is cut off until they are there.
const JUDGED: Duration = Duration::from_secs(5);

/// Connects pods with links of their own.
#[derive(Debug, Clone)]
pub struct PodLinks {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    records: Records,
    ruleset: Arc<Ruleset>,
    links: String,
    state: Mutex<State>,
    /// Pods have come or gone.
    changed: Notify,
    /// Up to which of these changes policies stand in the table.
    judged: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    addresses: Option<Addresses>,
    mtu: u32,
    /// Why the range that the node was given cannot be used.
    fault: Option<String>,
}

impl PodLinks {
    /// With the records of an earlier run in `dir`. Blocks.
    pub(crate) fn open(dir: PathBuf, ruleset: Arc<Ruleset>, links: &str) -> io::Result<Self> {
        let inner = Inner {
            records: Records::open(dir)?,
            ruleset,
            links: links.to_owned(),
            state: Mutex::new(State {
                addresses: None,
                mtu: MTU,
                fault: None,
            }),
            changed: Notify::new(),
            judged: watch::channel(0).0,
        };
        inner.enter_all()?;
        let inner = Arc::new(inner);
        Ok(Self { inner })
    }

    /// The range that pods get addresses of, and their largest packet. Pods that have others keep them. Blocks.
    pub(crate) fn set_range(&self, range: Range, mtu: u32) -> io::Result<()> {
        let inner = &self.inner;
        let taken = inner.records.all()?.into_iter().map(|r| r.address);
        let taken: BTreeSet<Ipv4Addr> = taken.collect();
        let mut state = inner.state.lock();
        state.mtu = mtu;
        let known = state.addresses.as_ref().map(Addresses::range);
        if known != Some(range) {
            state.addresses = Some(Addresses::new(range, taken));
        }
        Ok(())
    }

    /// Pods cannot be connected for this reason, or can again.
    pub(crate) fn set_fault(&self, fault: Option<String>) {
        self.inner.state.lock().fault = fault;
    }

    /// Whether the pod of this sandbox has a link of ours.
    pub(crate) fn has(&self, sandbox: &str) -> bool {
        self.inner.records.read(sandbox).is_ok_and(|r| r.is_some())
    }

    /// Connects a pod on this very thread, whose network namespace is the machine's.
    #[cfg(test)]
    pub(crate) fn attach_here(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        self.inner.attach(pod).map(|(addresses, _)| addresses)
    }

    /// Disconnects a pod on this very thread.
    #[cfg(test)]
    pub(crate) fn detach_here(&self, pod: &PodNetwork) -> Result<(), Error> {
        self.inner.detach(&pod.sandbox_id)
    }

    /// Collects on this very thread.
    #[cfg(test)]
    pub(crate) fn collect_here(&self, living: &BTreeSet<String>) -> Result<(), Error> {
        self.inner.collect(living)
    }

    /// The pods with links of ours: address, and namespace and name. Blocks.
    pub(crate) fn pods(&self) -> io::Result<Vec<(Ipv4Addr, String)>> {
        let records = self.inner.records.all()?.into_iter();
        Ok(records.map(|record| (record.address, record.pod)).collect())
    }

    /// Waits until pods have come or gone.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// Policies stand in the table for the pods as they were after so many changes.
    pub(crate) fn judged(&self, changes: u64) {
        self.inner.judged.send_replace(changes);
    }

    /// Tells the kernel of all pods again, after its table was lost. Blocks.
    pub(crate) fn enter_all(&self) -> io::Result<()> {
        self.inner.enter_all()
    }
}

/// What of a pod stands in the table.
fn elements(record: &Record, there: bool) -> Update {
    let mut update = Update::default();
    let wanted = |wanted: Wanted| if there { wanted } else { Wanted::Nothing };
    let address = record.address.octets();
    update.set(
        Map::Pods,
        [address, address].concat(),
        wanted(Wanted::Member),
    );
    // Until its policies are known nobody reaches the pod but this machine, and it reaches nobody.
    for map in [Map::Ingress, Map::Egress] {
        let closed = Wanted::Data(Data::Verdict(Verdict::Drop));
        update.set(map, address.to_vec(), wanted(closed));
    }
    for port in &record.ports {
        let (map, key) = place(port);
        let fields = Value::endpoint_fields(record.address, port.to);
        update.set(map, key, wanted(Wanted::Data(Data::Value(fields))));
    }
    update
}

fn place(port: &HostPort) -> (Map, Vec<u8>) {
    let [high, low] = port.port.to_be_bytes();
    let key = [port.protocol, 0, 0, 0, high, low, 0, 0];
    match port.at {
        None => (Map::HostPorts, key.to_vec()),
        Some(address) => (Map::HostPortsAt, [&address.octets()[..], &key].concat()),
    }
}

/// What the runtime was asked for, as far as it concerns the node.
fn host_ports(ports: &[PortMapping]) -> Result<Vec<HostPort>, Error> {
    let mut all = Vec::new();
    for mapping in ports.iter().filter(|mapping| mapping.host_port > 0) {
        let number = |port: i32| {
            u16::try_from(port).map_err(|_| Error(format!("hostPort: {port} is not a port")))
        };
        let at = match mapping.host_ip.as_str() {
            "" => None,
            text => match text.parse::<IpAddr>() {
                Ok(IpAddr::V4(address)) if address.is_unspecified() => None,
                Ok(IpAddr::V4(address)) => Some(address),
                Ok(IpAddr::V6(address)) if address.is_unspecified() => None,
                _ => return Err(Error(format!("hostIP: {text:?} is no IPv4 address"))),
            },
        };
        let protocol = match mapping.protocol() {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        };
        all.push(HostPort {
            protocol,
            port: number(mapping.host_port)?,
            to: number(mapping.container_port)?,
            at,
        });
    }
    Ok(all)
}

/// Adds what was attempted.
fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error(format!("{what}: {error}"))
}

impl Inner {
    fn enter_all(&self) -> io::Result<()> {
        let mut all = Update::default();
        for record in self.records.all()? {
            all.elements.extend(elements(&record, true).elements);
            // What was found out about a pod before stays until it is found out anew.
            for map in [Map::Ingress, Map::Egress] {
                let key = record.address.octets();
                if let Some(known) = self.ruleset.data(map, &key) {
                    all.set(map, key.to_vec(), Wanted::Data(known));
                }
            }
        }
        let own = [
            Map::Pods,
            Map::HostPorts,
            Map::HostPortsAt,
            Map::Ingress,
            Map::Egress,
        ];
        self.enter(&self.ruleset.only(&own, all)).map(drop)
    }

    /// Enters what has changed of pods, and tells those who judge. Answers with the number of the change.
    fn enter(&self, update: &Update) -> io::Result<u64> {
        let change = self.ruleset.apply_pods(update)?;
        self.changed.notify_one();
        Ok(change)
    }

    /// The name of the pod's outer device: at most 15 characters, the same for the same sandbox.
    fn link(&self, pod: &PodNetwork) -> String {
        let text = format!("{}/{}/{}", pod.namespace, pod.name, pod.sandbox_id);
        let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        format!("{}{:08x}", self.links, hash >> 32)
    }

    /// Answers with the pod's addresses, and with the number of the change that it is among pods.
    fn attach(&self, pod: &PodNetwork) -> Result<(Vec<String>, u64), Error> {
        let ports = host_ports(&pod.ports)?;
        let (address, range, mtu) = {
            let mut state = self.state.lock();
            let mtu = state.mtu;
            let addresses = state.addresses.as_mut().ok_or_else(no_range)?;
            let range = addresses.range();
            let taken = addresses.take(Instant::now());
            let full = || Error(format!("no addresses available in range {range}"));
            (taken.ok_or_else(full)?, range, mtu)
        };
        let record = Record {
            sandbox: pod.sandbox_id.clone(),
            pod: format!("{}/{}", pod.namespace, pod.name),
            address,
            link: self.link(pod),
            ports,
        };
        let written = self.records.write(&record);
        if let Err(error) = written {
            self.free(address);
            return Err(failed("record of the pod's network")(error));
        }
        // What fails from here on is undone by the record.
        let change = self.open_ports(&record)?;
        self.connect(pod, &record, range.gateway(), mtu)?;
        Ok((vec![address.to_string()], change))
    }

    /// Before the link is there, so that no packet of the pod goes unseen.
    fn open_ports(&self, record: &Record) -> Result<u64, Error> {
        for port in &record.ports {
            let (map, key) = place(port);
            if self.ruleset.data(map, &key).is_some() {
                let number = port.port;
                return Err(Error(format!("hostPort {number} is taken by another pod")));
            }
        }
        let entered = self.enter(&elements(record, true));
        entered.map_err(failed("the pod's place in the table"))
    }

    fn connect(
        &self,
        pod: &PodNetwork,
        record: &Record,
        gateway: Ipv4Addr,
        mtu: u32,
    ) -> Result<(), Error> {
        let namespace = File::open(&pod.netns).map_err(failed("network namespace"))?;
        let mut here = Netlink::open().map_err(failed("netlink"))?;
        let pair = Pair {
            name: &record.link,
            alias: &format!("davit pod {}", record.pod),
            peer: INSIDE,
            namespace: namespace.as_fd(),
            mtu,
        };
        here.add_pair(&pair).map_err(failed("pair of devices"))?;
        let link = here.link(&record.link).map_err(failed("device"))?;
        let link = link.ok_or_else(|| Error("the device has gone again".to_owned()))?;
        quiet(&record.link).map_err(failed("IPv6 on the pod's link"))?;
        let address = here.add_host_address(&link, gateway.into());
        address.map_err(failed("address of the gateway"))?;
        let route = Route {
            to: record.address.into(),
            bits: 32,
            link: Some(link),
            via: None,
            source: Some(gateway.into()),
            protocol: PROTOCOL,
            metric: 0,
        };
        here.set_route(&route).map_err(failed("route to the pod"))?;
        let inside = davit_net::within(&namespace, || furnish(record.address, gateway));
        inside
            .and_then(|done| done)
            .map_err(failed("the pod's end"))
    }

    fn detach(&self, sandbox: &str) -> Result<(), Error> {
        let record = self.records.read(sandbox).map_err(failed("record"))?;
        let Some(record) = record else { return Ok(()) };
        self.undo(&record)
    }

    fn undo(&self, record: &Record) -> Result<(), Error> {
        let mut update = elements(record, false);
        // A port that another pod holds stays: this one was refused.
        update.elements.retain(|(map, (key, _)), _| {
            let port = record
                .ports
                .iter()
                .find(|port| place(port) == (*map, key.clone()));
            let own = |port: &HostPort| {
                let fields = Value::endpoint_fields(record.address, port.to);
                self.ruleset.data(*map, key) == Some(Data::Value(fields))
            };
            port.is_none_or(own)
        });
        // The device first: as long as the pod can send, it is judged.
        let mut here = Netlink::open().map_err(failed("netlink"))?;
        let removed = here.remove_link(&record.link);
        removed.map_err(failed("removing the device"))?;
        let entered = self.enter(&update);
        entered.map_err(failed("the pod's place in the table"))?;
        let forgotten = self.records.remove(&record.sandbox);
        forgotten.map_err(failed("record of the pod's network"))?;
        self.free(record.address);
        Ok(())
    }

    fn free(&self, address: Ipv4Addr) {
        if let Some(addresses) = &mut self.state.lock().addresses {
            addresses.free(address, Instant::now());
        }
    }

    /// Undoes what no sandbox stands for: records, and links of which there is no record.
    fn collect(&self, living: &BTreeSet<String>) -> Result<(), Error> {
        let records = self.records.all().map_err(failed("records"))?;
        let (kept, left): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|r| living.contains(&r.sandbox));
        for record in left {
            self.undo(&record)?;
        }
        let known: HashMap<&str, ()> = kept.iter().map(|r| (r.link.as_str(), ())).collect();
        let mut here = Netlink::open().map_err(failed("netlink"))?;
        for found in here.links().map_err(failed("devices"))? {
            if found.name.starts_with(&self.links) && !known.contains_key(found.name.as_str()) {
                let removed = here.remove_link(&found.name);
                removed.map_err(failed("removing a device that was left"))?;
            }
        }
        Ok(())
    }
}

fn no_range() -> Error {
    Error("the node has no range of addresses for pods yet (spec.podCIDR)".to_owned())
}

/// The outer end speaks IPv4 with one neighbour only: no policy looks at other packets, and this machine's servers may listen for
/// them. Where there is no IPv6 there is nothing to switch off.
fn quiet(link: &str) -> io::Result<()> {
    let setting = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
    match std::fs::read_to_string(&setting) {
        Ok(is) if is.trim() == "1" => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => std::fs::write(&setting, "1"),
        Err(error) => Err(error),
    }
}

/// Inside the pod: its address, and everything by the gateway.
fn furnish(address: Ipv4Addr, gateway: Ipv4Addr) -> io::Result<()> {
    let mut inside = Netlink::open()?;
    let link = inside.link(INSIDE)?;
    let link = link.ok_or_else(|| io::Error::other("the device has gone again"))?;
    inside.set_up(&link)?;
    inside.add_host_address(&link, address.into())?;
    let route = |to: Ipv4Addr, bits, via: Option<Ipv4Addr>| Route {
        to: to.into(),
        bits,
        link: Some(link),
        via: via.map(IpAddr::from),
        source: None,
        protocol: PROTOCOL,
        metric: 0,
    };
    inside.set_route(&route(gateway, 32, None))?;
    inside.set_route(&route(Ipv4Addr::UNSPECIFIED, 0, Some(gateway)))
}

impl PodLinks {
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|error| Err(Error(error.to_string())))
    }
}

#[async_trait]
impl Network for PodLinks {
    async fn ready(&self) -> Result<(), Error> {
        let state = self.inner.state.lock();
        match (&state.fault, &state.addresses) {
            (Some(fault), _) => Err(Error(fault.clone())),
            (None, Some(_)) => Ok(()),
            (None, None) => Err(no_range()),
        }
    }

    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        let pod = pod.clone();
        let name = format!("{}/{}", pod.namespace, pod.name);
        let (addresses, change) = self.blocking(move |inner| inner.attach(&pod)).await?;
        let mut judged = self.inner.judged.subscribe();
        let judged = judged.wait_for(|judged| *judged >= change);
        if tokio::time::timeout(JUDGED, judged).await.is_err() {
            tracing::warn!(pod = %name, "the pod's network policies are not known yet: it is cut off until they are");
        }
        Ok(addresses)
    }

    async fn detach(&self, pod: &PodNetwork) -> Result<(), Error> {
        let sandbox = pod.sandbox_id.clone();
        self.blocking(move |inner| inner.detach(&sandbox)).await
    }

    async fn collect(&self, living: &BTreeSet<String>) -> Result<(), Error> {
        let living = living.clone();
        self.blocking(move |inner| inner.collect(&living)).await
    }
}
