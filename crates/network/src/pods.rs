//! The links of pods: a pair of devices for each, routed, no bridge (spec network.md 5.2).
//!
//! Inside the pod `eth0` has its address alone, and everything goes by the node's gateway address, the first of the node's
//! range, which every outer end has. So each packet of a pod passes the node's hooks, those to itself and to its
//! neighbours, too.

mod addresses;
mod bandwidth;
mod elements;
mod ends;
mod record;

use crate::maps::Map;
use crate::ruleset::{Update, Wanted};
use crate::tables::Tables;
use addresses::Addresses;
use async_trait::async_trait;
use davit_net::nft::Data;
use davit_net::route::{Netlink, Pair, Route};
use davit_netplan::{Family, Network as Range, Value, octets};
use davit_oci::network::{Bandwidth, Error, Network, PodNetwork};
use elements::{elements, host_ports, place};
use ends::furnish;
pub(crate) use ends::{quiet, write_setting};
use parking_lot::Mutex;
use record::{HostPort, Record, Records};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
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
    tables: Arc<Tables>,
    state: Mutex<State>,
    /// Pods have come or gone.
    changed: Notify,
    /// Up to which of these changes policies stand in the tables.
    judged: watch::Sender<Changes>,
}

/// How often pods have come and gone, in the table of each family.
type Changes = BTreeMap<Family, u64>;

#[derive(Debug)]
struct State {
    /// Those of each of the node's ranges, the first one first.
    addresses: Vec<Addresses>,
    mtu: u32,
    /// CNI connects pods, too: they reach this machine's servers at the gateway by links that nobody knows.
    beside_cni: bool,
    /// Why the range that the node was given cannot be used.
    fault: Option<String>,
}

impl PodLinks {
    /// With the records of an earlier run in `dir`. Blocks.
    pub(crate) fn open(dir: PathBuf, tables: Arc<Tables>) -> io::Result<Self> {
        let inner = Inner {
            records: Records::open(dir)?,
            tables,
            state: Mutex::new(State {
                addresses: Vec::new(),
                mtu: MTU,
                beside_cni: false,
                fault: None,
            }),
            changed: Notify::new(),
            judged: watch::channel(Changes::new()).0,
        };
        inner.enter_all()?;
        let inner = Arc::new(inner);
        Ok(Self { inner })
    }

    /// The largest packet of pods that are connected from now on.
    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.inner.state.lock().mtu = mtu;
    }

    /// The ranges that pods get addresses of, one of each. Pods that have others keep them. Blocks.
    pub(crate) fn set_ranges(&self, ranges: &[Range]) -> io::Result<()> {
        let inner = &self.inner;
        let records = inner.records.all()?.into_iter();
        let taken: BTreeSet<IpAddr> = records.flat_map(|record| record.addresses()).collect();
        let mut state = inner.state.lock();
        let known: Vec<Range> = state.addresses.iter().map(Addresses::range).collect();
        if known != ranges {
            let addresses = |range: &Range| Addresses::new(*range, taken.clone());
            state.addresses = ranges.iter().map(addresses).collect();
        }
        drop(state);
        inner.guard_gateways()
    }

    /// Whether pods are connected by CNI, too.
    pub(crate) async fn set_beside_cni(&self, beside: bool) -> Result<(), Error> {
        if std::mem::replace(&mut self.inner.state.lock().beside_cni, beside) == beside {
            return Ok(());
        }
        let guard = |inner: &Inner| inner.guard_gateways().map_err(failed("gateways of pods"));
        self.blocking(guard).await
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

    /// As when CNI's configuration comes, on this very thread.
    #[cfg(test)]
    pub(crate) fn set_beside_cni_here(&self, beside: bool) {
        self.inner.state.lock().beside_cni = beside;
        self.inner.guard_gateways().unwrap();
    }

    /// The pods with links of ours that have an address of this family: that, and namespace and name. Blocks.
    pub(crate) fn pods(&self, family: Family) -> io::Result<Vec<(IpAddr, String)>> {
        let records = self.inner.records.all()?.into_iter();
        let pods = records.filter_map(|record| Some((record.address_of(family)?, record.pod)));
        Ok(pods.collect())
    }

    /// Waits until pods have come or gone.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// Policies stand in the table of a family for the pods as they were after so many changes.
    pub(crate) fn judged(&self, family: Family, changes: u64) {
        self.inner.judged.send_modify(|judged| {
            judged.insert(family, changes);
        });
    }

    /// Tells the kernel of all pods again, after its table was lost. Blocks.
    pub(crate) fn enter_all(&self) -> io::Result<()> {
        self.inner.enter_all()
    }
}

/// Adds what was attempted.
fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error(format!("{what}: {error}"))
}

impl Inner {
    /// Has only pods and nodes reach what listens at the gateways.
    fn guard_gateways(&self) -> io::Result<()> {
        let state = self.state.lock();
        let ranges = state.addresses.iter().map(Addresses::range);
        let guarded = ranges.filter(|_| !state.beside_cni);
        let gateways: Vec<IpAddr> = guarded.map(Range::gateway).collect();
        drop(state);
        for ruleset in self.tables.all() {
            let mut update = Update::default();
            for gateway in &gateways {
                if Family::of(*gateway) == ruleset.family() {
                    update.set(Map::Gateways, octets(*gateway), Wanted::Member);
                }
            }
            ruleset.replace(&[Map::Gateways], update)?;
        }
        Ok(())
    }

    fn enter_all(&self) -> io::Result<()> {
        let records = self.records.all()?;
        // a table that has been made for an earlier pod may be missing
        for family in records.iter().flat_map(Record::addresses).map(Family::of) {
            self.tables.of(family)?;
        }
        for ruleset in self.tables.all() {
            let mut all = Update::default();
            for record in &records {
                let family = ruleset.family();
                all.elements.extend(elements(record, family, true).elements);
                // What was found out about a pod before stays until it is found out anew.
                for map in [Map::Ingress, Map::Egress] {
                    let key = record.address_of(family).map(octets);
                    if let Some(key) = key
                        && let Some(known) = ruleset.data(map, &key)
                    {
                        all.set(map, key, Wanted::Data(known));
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
            ruleset.apply_pods(&ruleset.only(&own, all))?;
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Enters what has changed of a pod, and tells those who judge. Answers with the numbers of the changes.
    fn enter(&self, record: &Record, update: impl Fn(Family) -> Update) -> io::Result<Changes> {
        let mut changes = Changes::new();
        for family in record.addresses().map(Family::of) {
            let change = self.tables.of(family)?.apply_pods(&update(family))?;
            changes.insert(family, change);
        }
        self.changed.notify_one();
        Ok(changes)
    }

    /// The name of the pod's outer device: at most 15 characters, the same for the same sandbox.
    fn link(&self, pod: &PodNetwork) -> String {
        let text = format!("{}/{}/{}", pod.namespace, pod.name, pod.sandbox_id);
        let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        format!("{}{:08x}", self.tables.links(), hash >> 32)
    }

    /// An address of each of the node's ranges, those ranges, and the largest packet.
    fn take_addresses(&self) -> Result<(Vec<IpAddr>, Vec<Range>, u32), Error> {
        let mut state = self.state.lock();
        let (mut taken, mut full) = (Vec::new(), None);
        for addresses in &mut state.addresses {
            match addresses.take(Instant::now()) {
                Some(address) => taken.push(address),
                None => full = full.or(Some(addresses.range())),
            }
        }
        let ranges: Vec<Range> = state.addresses.iter().map(Addresses::range).collect();
        let mtu = state.mtu;
        drop(state);
        if let Some(range) = full {
            self.free(taken);
            return Err(Error(format!("no addresses available in range {range}")));
        }
        Ok((taken, ranges, mtu))
    }

    /// Answers with the pod's addresses, and with the numbers of the changes that it is among pods.
    fn attach(&self, pod: &PodNetwork) -> Result<(Vec<String>, Changes), Error> {
        pod.check_addresses()?;
        let ports = host_ports(&pod.ports)?;
        let bandwidth = pod.bandwidth().map_err(Error)?;
        let link = self.link(pod);
        let stand_in = || bandwidth::stand_in(self.tables.links(), &link);
        let stand_in = bandwidth.egress.map(|_| stand_in());
        let (addresses, ranges, mtu) = self.take_addresses()?;
        let mut taken = addresses.iter().copied();
        let record = Record {
            sandbox: pod.sandbox_id.clone(),
            pod: format!("{}/{}", pod.namespace, pod.name),
            address: taken.next().ok_or_else(no_range)?,
            second_address: taken.next(),
            link,
            ports,
            stand_in,
        };
        let written = self.records.write(&record);
        if let Err(error) = written {
            self.free(addresses);
            return Err(failed("record of the pod's network")(error));
        }
        // What fails from here on is undone by the record.
        let changes = self.open_ports(&record)?;
        self.connect(pod, &record, bandwidth, &ranges, mtu)?;
        let texts = addresses.iter().map(ToString::to_string).collect();
        Ok((texts, changes))
    }

    /// Before the link is there, so that no packet of the pod goes unseen.
    fn open_ports(&self, record: &Record) -> Result<Changes, Error> {
        for ruleset in self.tables.all() {
            for port in &record.ports {
                let place = place(port, ruleset.family());
                if place.is_some_and(|(map, key)| ruleset.data(map, &key).is_some()) {
                    let number = port.port;
                    return Err(Error(format!("hostPort {number} is taken by another pod")));
                }
            }
        }
        let entered = self.enter(record, |family| elements(record, family, true));
        entered.map_err(failed("the pod's place in the table"))
    }

    fn connect(
        &self,
        pod: &PodNetwork,
        record: &Record,
        bandwidth: Bandwidth,
        ranges: &[Range],
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
        let has_six = record.address_of(Family::V6).is_some();
        quiet(&record.link, has_six).map_err(failed("IPv6 on the pod's link"))?;
        let stand_in = record.stand_in.as_deref();
        bandwidth::keep_to(&mut here, &link, bandwidth, stand_in, mtu)?;
        let ends: Vec<(IpAddr, IpAddr)> = record
            .addresses()
            .zip(ranges.iter().map(|range| range.gateway()))
            .collect();
        for (address, gateway) in &ends {
            let added = here.add_host_address(&link, *gateway);
            added.map_err(failed("address of the gateway"))?;
            let route = Route {
                to: *address,
                bits: Family::of(*address).bits(),
                link: Some(link),
                via: None,
                source: Some(*gateway),
                protocol: PROTOCOL,
                metric: 0,
                on_link: false,
            };
            here.set_route(&route).map_err(failed("route to the pod"))?;
        }
        let inside = davit_net::within(&namespace, || furnish(&ends));
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
        // The device first: as long as the pod can send, it is judged.
        let mut here = Netlink::open().map_err(failed("netlink"))?;
        for device in record.devices() {
            let removed = here.remove_link(device);
            removed.map_err(failed("removing the device"))?;
        }
        let entered = self.enter(record, |family| self.what_goes(record, family));
        entered.map_err(failed("the pod's place in the table"))?;
        let forgotten = self.records.remove(&record.sandbox);
        forgotten.map_err(failed("record of the pod's network"))?;
        self.free(record.addresses());
        Ok(())
    }

    /// What of a pod leaves the table of a family. A port that another pod holds stays: this one was refused.
    fn what_goes(&self, record: &Record, family: Family) -> Update {
        let mut update = elements(record, family, false);
        let Some((address, ruleset)) = record.address_of(family).zip(self.tables.of(family).ok())
        else {
            return update;
        };
        update.elements.retain(|(map, (key, _)), _| {
            let port = record
                .ports
                .iter()
                .find(|port| place(port, family) == Some((*map, key.clone())));
            let own = |port: &HostPort| {
                let fields = Value::endpoint_fields(address, port.to);
                ruleset.data(*map, key) == Some(Data::Value(fields))
            };
            port.is_none_or(own)
        });
        update
    }

    fn free(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let mut state = self.state.lock();
        for address in addresses {
            for of_range in &mut state.addresses {
                of_range.free(address, Instant::now());
            }
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
        let known: HashSet<&str> = kept.iter().flat_map(Record::devices).collect();
        let mut here = Netlink::open().map_err(failed("netlink"))?;
        for found in here.links().map_err(failed("devices"))? {
            if found.name.starts_with(self.tables.links()) && !known.contains(found.name.as_str()) {
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
        match &state.fault {
            Some(fault) => Err(Error(fault.clone())),
            None if state.addresses.is_empty() => Err(no_range()),
            None => Ok(()),
        }
    }

    async fn attach(&self, pod: &PodNetwork) -> Result<Vec<String>, Error> {
        let pod = pod.clone();
        let name = format!("{}/{}", pod.namespace, pod.name);
        let (addresses, changes) = self.blocking(move |inner| inner.attach(&pod)).await?;
        let mut judged = self.inner.judged.subscribe();
        let judged = judged.wait_for(|judged| {
            let mut each = changes.iter();
            each.all(|(family, change)| judged.get(family).is_some_and(|at| at >= change))
        });
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
