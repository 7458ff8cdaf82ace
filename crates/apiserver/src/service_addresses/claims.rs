//! Cluster IPs are claimed by objects: who creates the IPAddress with the name of an address has it, whichever of several
//! API servers they asked (KEP-1880). What this server remembers of claims and ranges only spares it asking for what is
//! taken; it decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use davit_api::status::{Reason, Status};
use davit_registry::storage::Storage;
use davit_registry::{Registry, object};
use davit_watchcache::{Index, Mirror};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use rand::Rng;
use serde_json::{Value, json};

use super::Parent;
use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Author, DeleteOptions, Preconditions};
use davit_netplan::{Family, ServiceRange, ServiceRanges};

const GROUP: &str = "networking.k8s.io";
const CLAIMS: &str = "ipaddresses";
const RANGES: &str = "servicecidrs";
/// Who made a claim, and who may take it back (a label).
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// The manager of the fields of claims.
const MANAGER: &str = "kube-apiserver";

/// Why a Service does not get an address.
#[derive(Debug)]
pub(super) enum NoAddress {
    /// There is none left.
    Full,
    /// It is in no range that gives addresses at the moment; those that do.
    OutOfRange(String),
    /// It is another's.
    Taken,
    /// The claim could not be written.
    Failed(Status),
}

impl From<Status> for NoAddress {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

/// The addresses of all claims, whoever manages them.
#[derive(Debug, Default)]
struct ClaimedAddresses(RwLock<BTreeSet<IpAddr>>);

impl Index for ClaimedAddresses {
    fn replace(&self, objects: &[Value]) {
        let all = objects.iter().map(object::name).filter_map(address);
        *self.0.write() = all.collect();
    }

    fn put(&self, object: &Value) {
        self.0.write().extend(address(object::name(object)));
    }

    fn remove(&self, _: &str, name: &str) {
        if let Some(address) = address(name) {
            self.0.write().remove(&address);
        }
    }
}

fn address(name: &str) -> Option<IpAddr> {
    name.parse().ok()
}

/// The ranges of ServiceCIDRs by their names, and whether they give addresses.
#[derive(Debug, Default)]
struct OfferedRanges(RwLock<BTreeMap<String, (bool, Vec<ServiceRange>)>>);

impl Index for OfferedRanges {
    fn replace(&self, objects: &[Value]) {
        *self.0.write() = objects.iter().map(offer).collect();
    }

    fn put(&self, object: &Value) {
        self.0.write().extend([offer(object)]);
    }

    fn remove(&self, _: &str, name: &str) {
        self.0.write().remove(name);
    }
}

fn offer(object: &Value) -> (String, (bool, Vec<ServiceRange>)) {
    let list = |path: &str| object.pointer(path).and_then(Value::as_array);
    let cidrs = list("/spec/cidrs").into_iter().flatten();
    let ranges = cidrs.filter_map(|cidr| ServiceRange::of_cidr(cidr.as_str()?));
    let is_ready = list("/status/conditions")
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let gives = is_ready && !object::is_deleting(object);
    (object::name(object).to_owned(), (gives, ranges.collect()))
}

impl OfferedRanges {
    /// The ranges that give addresses of the family of the cluster's own range, each once; that one first.
    fn giving(&self, first: ServiceRange) -> Vec<ServiceRange> {
        let mut all = Vec::new();
        for (gives, ranges) in self.0.read().values() {
            for range in ranges.iter().filter(|_| *gives) {
                if range.family() == first.family() && !all.contains(range) {
                    all.push(*range);
                }
            }
        }
        all.sort_by_key(|range| *range != first);
        all
    }
}

/// Which addresses there are, and the claims on them.
pub(super) struct ClusterIps {
    /// The cluster's own ranges.
    ranges: ServiceRanges,
    claimed: Arc<ClaimedAddresses>,
    offered: Arc<OfferedRanges>,
    storages: Option<[Arc<Storage>; 2]>,
    /// None before the first use.
    mirrors: OnceLock<Option<[Mirror; 2]>>,
}

impl std::fmt::Debug for ClusterIps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterIps({})", self.ranges)
    }
}

impl ClusterIps {
    pub(super) fn new(ranges: ServiceRanges, registry: &Registry) -> Self {
        let snapshot = registry.snapshot();
        let storage = |plural| {
            let resource = snapshot.by_group_resource(GROUP, plural);
            resource.map(|resource| Arc::clone(&resource.storage))
        };
        Self {
            ranges,
            claimed: Arc::default(),
            offered: Arc::default(),
            storages: storage(CLAIMS)
                .zip(storage(RANGES))
                .map(|(claims, ranges)| [claims, ranges]),
            mirrors: OnceLock::new(),
        }
    }

    /// Has everything known that this server has written: of ranges, and where `claims_too` of claims, which are written all
    /// the time.
    async fn fresh(&self, claims_too: bool) {
        let follow = || {
            let [claims, ranges] = self.storages.as_ref()?;
            let claimed = Arc::clone(&self.claimed) as Arc<dyn Index>;
            let offered = Arc::clone(&self.offered) as Arc<dyn Index>;
            Some([
                Mirror::spawn(Arc::<Storage>::clone(claims), claimed),
                Mirror::spawn(Arc::<Storage>::clone(ranges), offered),
            ])
        };
        // before the first use everything is waited for
        let claims_too = claims_too || self.mirrors.get().is_none();
        let Some([claims, ranges]) = self.mirrors.get_or_init(follow) else {
            return;
        };
        if !ranges.fresh().await || (claims_too && !claims.fresh().await) {
            tracing::warn!("what is known of the addresses of Services may be old");
        }
    }

    /// Whether an address is one that Services may have, of all ranges there are now.
    pub(super) async fn offers(&self, address: IpAddr) -> bool {
        self.fresh(false).await;
        self.contains(address)
    }

    /// Whether an address is one that Services may have.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let offered = self.offered.0.read();
        let ranges = offered.values().flat_map(|(_, ranges)| ranges).copied();
        let mut ranges = self.ranges.all().chain(ranges);
        ranges.any(|range| range.contains(address))
    }

    /// The ranges that give addresses of a family.
    fn giving(&self, family: Family) -> Vec<ServiceRange> {
        let own = self.ranges.all().find(|range| range.family() == family);
        own.map(|own| self.offered.giving(own)).unwrap_or_default()
    }

    /// Claims any address of a family; with `dry_run` it is only looked for.
    pub(super) async fn claim_any(
        &self,
        server: &ApiServer,
        family: Family,
        parent: Parent<'_>,
        dry_run: bool,
    ) -> Result<IpAddr, NoAddress> {
        // Only where there seems to be none it matters whether that is still so.
        for again in [false, true] {
            self.fresh(again).await;
            for range in self.giving(family) {
                let mut lost = BTreeSet::new();
                while let Some(ip) = self.free(range, &lost) {
                    if dry_run || claim(server, ip, parent).await? {
                        return Ok(ip);
                    }
                    lost.insert(ip);
                }
            }
        }
        Err(NoAddress::Full)
    }

    /// An address of which no claim is known.
    fn free(&self, range: ServiceRange, lost: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let (all, from) = (range.addresses(), range.dynamic());
        if all.is_empty() {
            return None;
        }
        let start = match from < all.end {
            true => rand::rng().random_range(from..all.end),
            false => from,
        };
        let claimed = self.claimed.0.read();
        let own = self.ranges.primary().kubernetes();
        (start..all.end)
            .chain(from..start)
            .chain(all.start..from)
            .map(|number| range.family().address(number))
            .find(|at| *at != own && !claimed.contains(at) && !lost.contains(at))
    }

    /// The API server's own address, which is nobody else's even while its Service is not there.
    fn is_of_kubernetes(&self, ip: IpAddr, parent: Parent<'_>) -> bool {
        ip == self.ranges.primary().kubernetes()
            && (parent.namespace, parent.name) != ("default", "kubernetes")
    }

    /// Claims this address; with `dry_run` it is only looked for.
    pub(super) async fn claim_this(
        &self,
        server: &ApiServer,
        ip: IpAddr,
        parent: Parent<'_>,
        dry_run: bool,
    ) -> Result<(), NoAddress> {
        self.fresh(dry_run).await;
        if self.is_of_kubernetes(ip, parent) {
            return Err(NoAddress::Taken);
        }
        let ranges = self.giving(Family::of(ip));
        if !ranges.iter().any(|range| range.contains(ip)) {
            let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
            return Err(NoAddress::OutOfRange(ranges.join(", ")));
        }
        if dry_run {
            return match self.claimed.0.read().contains(&ip) {
                true => Err(NoAddress::Taken),
                false => Ok(()),
            };
        }
        match claim(server, ip, parent).await? {
            true => Ok(()),
            false => Err(NoAddress::Taken),
        }
    }
}

/// All addresses that are claimed.
pub(super) async fn all(server: &ApiServer) -> Result<BTreeSet<IpAddr>, Status> {
    let claims = server.objects(GROUP, CLAIMS, None).await?;
    let addresses = claims.iter().map(object::name);
    Ok(addresses.filter_map(|name| name.parse().ok()).collect())
}

/// Creates the claim; false when there is one already. Boxed, because it is a write during a write.
pub(super) fn claim<'a>(
    server: &'a ApiServer,
    ip: IpAddr,
    parent: Parent<'a>,
) -> BoxFuture<'a, Result<bool, Status>> {
    Box::pin(async move {
        let wanted = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {
                "name": ip.to_string(),
                "labels": { FAMILY: Family::of(ip).name(), MANAGED_BY: ALLOCATOR },
            },
            "spec": { "parentRef": {
                "group": "", "resource": "services",
                "namespace": parent.namespace, "name": parent.name,
            } },
        });
        let snapshot = server.registry().snapshot();
        let Some(resource) = snapshot.by_group_resource(GROUP, CLAIMS) else {
            return Ok(true);
        };
        let author = Author::apiserver();
        let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
        match writer.create(wanted).await {
            Ok(_) => Ok(true),
            Err(status) if status.reason == Reason::AlreadyExists => Ok(false),
            Err(status) => Err(status),
        }
    })
}

/// Takes a claim back, if it is still this parent's.
pub(super) fn release<'a>(
    server: &'a ApiServer,
    ip: IpAddr,
    parent: Parent<'a>,
) -> BoxFuture<'a, Result<(), Status>> {
    Box::pin(async move {
        let name = ip.to_string();
        let snapshot = server.registry().snapshot();
        let Some(resource) = snapshot.by_group_resource(GROUP, CLAIMS) else {
            return Ok(());
        };
        let held = server.object(GROUP, CLAIMS, "", &name).await?;
        let Some(held) = held.filter(|held| is_claim_of(held, parent)) else {
            return Ok(());
        };
        let author = Author::apiserver();
        let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
        // not one that somebody has made meanwhile
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(object::uid(&held).to_owned()),
                resource_version: None,
            },
            ..DeleteOptions::default()
        };
        match writer.delete(&name, &options).await {
            Err(status) if !matches!(status.reason, Reason::NotFound | Reason::Conflict) => {
                Err(status)
            }
            _ => Ok(()),
        }
    })
}

/// Whether an IPAddress is the allocator's claim for this Service.
fn is_claim_of(address: &Value, parent: Parent<'_>) -> bool {
    let of = |key: &str| {
        address["spec"]["parentRef"][key]
            .as_str()
            .unwrap_or_default()
    };
    address["metadata"]["labels"][MANAGED_BY] == ALLOCATOR
        && (of("group"), of("resource")) == ("", "services")
        && (of("namespace"), of("name")) == (parent.namespace, parent.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, cidr: &str, ready: &str) -> Value {
        json!({
            "metadata": { "name": name }, "spec": { "cidrs": [cidr, "fd00::/112"] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        })
    }

    #[test]
    fn only_ready_ranges_give_addresses_the_first_one_first() {
        let (offered, first) = (OfferedRanges::default(), ServiceRange::default());
        let mut going = range("going", "10.3.0.0/24", "True");
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        offered.replace(&[
            range("a", "10.1.0.0/24", "True"),
            range("b", "10.2.0.0/24", "False"),
            going,
            range("kubernetes", "10.96.0.0/16", "True"),
            range("same", "10.96.0.0/16", "True"),
        ]);
        let giving = || -> Vec<String> {
            let all = offered.giving(first);
            all.iter().map(ToString::to_string).collect()
        };
        assert_eq!(giving(), ["10.96.0.0/16", "10.1.0.0/24"]);
        let six = ServiceRange::of_cidr("fd01::/112").unwrap();
        let six: Vec<String> = offered
            .giving(six)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(six, ["fd00::/112"], "of the other family");
        offered.put(&range("b", "10.2.0.0/24", "True"));
        offered.remove("", "a");
        assert_eq!(giving(), ["10.96.0.0/16", "10.2.0.0/24"]);
    }

    #[test]
    fn the_lower_addresses_are_given_last() {
        let ips = ClusterIps {
            ranges: ServiceRanges::default(),
            claimed: Arc::default(),
            offered: Arc::default(),
            storages: None,
            mirrors: OnceLock::new(),
        };
        let range = ServiceRange::of_cidr("10.0.0.0/27").unwrap();
        let mut given = Vec::new();
        while let Some(address) = ips.free(range, &BTreeSet::new()) {
            ips.claimed.0.write().insert(address);
            given.push(
                davit_netplan::number(address) - davit_netplan::number(range.network().first()),
            );
        }
        assert_eq!(given.len(), 30);
        let (upper, lower) = given.split_at(14);
        assert!(upper.iter().all(|offset| *offset > 16), "{given:?}");
        assert!(lower.iter().all(|offset| *offset <= 16), "{given:?}");
        let network = ServiceRange::of_cidr("10.0.0.0/32").unwrap();
        assert_eq!(ips.free(network, &BTreeSet::new()), None);
    }
}
