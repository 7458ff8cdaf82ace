//! The Service `default/kubernetes` and the addresses behind it: this server's, and where several share a store those of all
//! that have said lately that they serve (spec network.md 1.3).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use davit_netplan::Family;
use davit_store::{Error as StoreError, ListOptions, Store, Write};
use serde_json::json;
use tokio::time::Instant;

use super::bootstrap::{self, KUBERNETES, ensure};
use crate::server::{ApiServer, Error, LEASES};

/// How long a server counts that does not renew its key.
const TTL: Duration = Duration::from_secs(15);
/// The address endpoints name when the server listens on loopback only, which endpoints may not.
fn documentation(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    }
}

/// Which servers there are.
#[derive(Debug)]
pub(super) struct Peers {
    shared: bool,
    /// The address under which this one is entered.
    own: Option<String>,
    /// How often that was done.
    renewals: u64,
    /// When each address was seen with another revision than before, on this server's clock: nobody else's matters.
    seen: BTreeMap<String, (u64, Instant)>,
}

impl Peers {
    /// Of a server that has its store for itself, or shares it.
    pub(super) fn new(shared: bool) -> Self {
        Self {
            shared,
            own: None,
            renewals: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Says that this server serves at `address`; the addresses of all that do.
    async fn renew(
        &mut self,
        store: &dyn Store,
        address: &str,
    ) -> Result<BTreeSet<String>, StoreError> {
        if !self.shared {
            return Ok(BTreeSet::from([address.to_owned()]));
        }
        if self.own.as_deref() != Some(address) {
            self.leave(store).await?;
        }
        self.renewals += 1;
        let lease = json!({
            "kind": "Endpoints", "apiVersion": "v1", "metadata": { "generation": self.renewals },
            "subsets": [{ "addresses": [{ "ip": address }] }],
        });
        let write = Write::put(key(address), lease.to_string()).lasting(Some(TTL));
        store.commit(write).await?;
        self.own = Some(address.to_owned());
        self.alive(store).await
    }

    /// The addresses of the servers that renew their keys; the keys of others go.
    async fn alive(&mut self, store: &dyn Store) -> Result<BTreeSet<String>, StoreError> {
        let listed = store.list(LEASES, ListOptions::default()).await?;
        let now = Instant::now();
        let mut seen = BTreeMap::new();
        for pair in listed.items {
            let Some(address) = pair.key.strip_prefix(LEASES) else {
                continue;
            };
            let before = self.seen.get(address);
            let at = before.filter(|(revision, _)| *revision == pair.mod_revision);
            let at = at.map_or(now, |(_, at)| *at);
            if now.duration_since(at) < TTL {
                seen.insert(address.to_owned(), (pair.mod_revision, at));
                continue;
            }
            tracing::warn!(address, "an API server does not serve any more");
            match store
                .commit(Write::delete(key(address), pair.mod_revision))
                .await
            {
                // it has come back
                Ok(_) | Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.seen = seen;
        Ok(self.seen.keys().cloned().collect())
    }

    /// This server serves no more.
    async fn leave(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        let Some(own) = self.own.take() else {
            return Ok(());
        };
        self.seen.remove(&own);
        match store.commit(Write::delete_any(key(&own))).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn key(address: &str) -> String {
    format!("{LEASES}{address}")
}

fn unreachable(source: &StoreError) -> Error {
    Error::Bootstrap {
        what: "the leases of API servers".to_owned(),
        status: Box::new(davit_api::status::Status::internal(source)),
    }
}

/// Makes the Service, says that this server serves, and writes who does; answers their addresses.
pub(super) async fn publish(
    server: &Arc<ApiServer>,
    listens: SocketAddr,
    peers: &mut Peers,
) -> Result<BTreeSet<String>, Error> {
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let range = server.service_addresses().ranges().primary();
    let ip = range.kubernetes().to_string();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": KUBERNETES, "namespace": "default", "labels": labels },
        "spec": {
            "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
            "ipFamilies": [range.family().name()], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{ "name": "https", "protocol": "TCP", "port": 443, "targetPort": listens.port() }],
        },
        "status": { "loadBalancer": {} },
    });
    bootstrap::service_range(server).await?;
    // Several servers need not agree about the port.
    ensure(server, "", "services", "default", service, !peers.shared).await?;
    let (address, port) = reachable(server, listens);
    let all = peers.renew(&**server.store(), &address).await;
    let all = all.map_err(|error| unreachable(&error))?;
    write(server, &all, port).await?;
    Ok(all)
}

/// This server ends: whoever asks for the endpoints is not sent here any more.
pub(super) async fn withdraw(
    server: &Arc<ApiServer>,
    listens: SocketAddr,
    peers: &mut Peers,
) -> Result<(), Error> {
    if !peers.shared {
        return Ok(());
    }
    let store = &**server.store();
    let left = async {
        peers.leave(store).await?;
        peers.alive(store).await
    };
    let others = left.await.map_err(|error| unreachable(&error))?;
    let (_, port) = reachable(server, listens);
    write(server, &others, port).await
}

/// Writes the endpoints. None at all changes nothing: who was the last may be back.
async fn write(
    server: &Arc<ApiServer>,
    addresses: &BTreeSet<String>,
    port: u16,
) -> Result<(), Error> {
    if addresses.is_empty() {
        tracing::info!("no API server serves: the endpoints of the kubernetes Service stay");
        return Ok(());
    }
    let subset: Vec<_> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": KUBERNETES, "namespace": "default",
            "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" },
        },
        "subsets": [{
            "addresses": subset,
            "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
        }],
    });
    ensure(server, "", "endpoints", "default", endpoints, true).await?;
    let ready = |ip: &String| json!({ "addresses": [ip], "conditions": { "ready": true } });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": KUBERNETES, "namespace": "default",
            "labels": { "kubernetes.io/service-name": KUBERNETES },
        },
        "addressType": family_of(server).name(),
        "endpoints": addresses.iter().map(ready).collect::<Vec<_>>(),
        "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
    });
    ensure(
        server,
        "discovery.k8s.io",
        "endpointslices",
        "default",
        slice,
        true,
    )
    .await
}

/// That of the Service `kubernetes`, which is of one family always.
fn family_of(server: &ApiServer) -> Family {
    server.service_addresses().ranges().primary().family()
}

/// Where pods reach this server.
fn reachable(server: &ApiServer, listens: SocketAddr) -> (String, u16) {
    if let Some(address) = *server.for_pods().borrow() {
        return (address.ip().to_string(), address.port());
    }
    let family = family_of(server);
    let fits = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified() && Family::of(*ip) == family;
    let address = server
        .addresses()
        .advertised
        .filter(fits)
        .or_else(|| Some(listens.ip()).filter(fits))
        .or_else(|| server.addresses().outgoing(family.unspecified()))
        .unwrap_or(documentation(family));
    (address.to_string(), listens.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};

    /// Moves what was seen of an address into the past.
    fn age(peers: &mut Peers, address: &str, by: Duration) {
        let (_, at) = peers.seen.get_mut(address).unwrap();
        *at = at.checked_sub(by).unwrap();
    }

    #[tokio::test]
    async fn a_server_counts_until_it_leaves_or_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default());
        let store = store.await.unwrap();
        let all = |addresses: &[&str]| -> BTreeSet<String> {
            addresses
                .iter()
                .map(|address| (*address).to_owned())
                .collect()
        };
        let (mut one, mut other) = (Peers::new(true), Peers::new(true));
        assert_eq!(
            one.renew(&store, "10.0.0.1").await.unwrap(),
            all(&["10.0.0.1"])
        );
        let both = all(&["10.0.0.1", "10.0.0.2"]);
        assert_eq!(other.renew(&store, "10.0.0.2").await.unwrap(), both);
        assert_eq!(one.renew(&store, "10.0.0.1").await.unwrap(), both);
        // Silent for longer than is allowed; one that has renewed counts, however long ago it was looked for.
        age(&mut one, "10.0.0.2", TTL);
        other.renew(&store, "10.0.0.2").await.unwrap();
        assert_eq!(one.renew(&store, "10.0.0.1").await.unwrap(), both);
        age(&mut one, "10.0.0.2", TTL);
        assert_eq!(
            one.renew(&store, "10.0.0.1").await.unwrap(),
            all(&["10.0.0.1"])
        );
        // It is back, at another address, and ends.
        let moved = other.renew(&store, "10.0.0.3").await.unwrap();
        assert_eq!(moved, all(&["10.0.0.1", "10.0.0.3"]));
        other.leave(&store).await.unwrap();
        assert_eq!(one.alive(&store).await.unwrap(), all(&["10.0.0.1"]));
        // One that has the store for itself keeps no keys.
        let mut alone = Peers::new(false);
        assert_eq!(
            alone.renew(&store, "10.0.0.9").await.unwrap(),
            all(&["10.0.0.9"])
        );
        assert_eq!(one.alive(&store).await.unwrap(), all(&["10.0.0.1"]));
    }
}
