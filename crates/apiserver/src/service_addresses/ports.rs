//! Node ports are claimed as cluster IPs are: by a key of the store for each, which can be made once. There is no kind of object
//! for them. What this server remembers only spares it asking for what is taken.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use davit_api::status::Status;
use davit_store::{Error as StoreError, ListOptions, Store, Write};
use parking_lot::Mutex;
use rand::Rng;
use serde_json::Value;

use super::Parent;
use davit_netplan::NodePorts;

/// Below this there is a key for each port that is taken; its value is the Service, `namespace/name`.
const CLAIMS: &str = "/registry/ranges/nodeports/";

/// A port, and whether it is one of UDP.
pub(super) type NodePort = (u16, bool);

/// A port, whose it is, and the revision of the claim's key.
pub(super) type PortClaim = (NodePort, Bytes, u64);

fn key((port, udp): NodePort) -> String {
    format!("{CLAIMS}{}/{port}", if udp { "udp" } else { "tcp" })
}

fn port_of(key: &str) -> Option<NodePort> {
    let (protocol, port) = key.strip_prefix(CLAIMS)?.split_once('/')?;
    Some((port.parse().ok()?, protocol == "udp"))
}

fn owner(parent: Parent<'_>) -> String {
    format!("{}/{}", parent.namespace, parent.name)
}

fn failed(error: &StoreError) -> Status {
    Status::internal(format!("failed to allocate a nodePort: {error}"))
}

/// Why a Service does not get a port.
#[derive(Debug)]
pub(super) enum NoPort {
    /// The text for the field.
    Refused(String),
    /// The claim could not be written.
    Failed(Status),
}

/// The ports that there are, and those that are taken.
#[derive(Debug)]
pub(super) struct PortPool {
    ports: NodePorts,
    /// What is known to be taken.
    known: Mutex<BTreeSet<NodePort>>,
    /// Claims of nobody, by the revision of their keys: those that were seen at the last look.
    orphans: Mutex<BTreeMap<NodePort, u64>>,
}

impl PortPool {
    pub(super) fn new(ports: NodePorts) -> Self {
        Self {
            ports,
            known: Mutex::default(),
            orphans: Mutex::default(),
        }
    }

    pub(super) async fn claims(store: &dyn Store) -> Result<Vec<PortClaim>, StoreError> {
        let listed = store.list(CLAIMS, ListOptions::default()).await?;
        let claims = listed.items.into_iter();
        let claims =
            claims.filter_map(|pair| Some((port_of(&pair.key)?, pair.value, pair.mod_revision)));
        Ok(claims.collect())
    }

    /// Takes the port `asked`, or any for 0; with `dry_run` it is only looked for.
    pub(super) async fn port(
        &self,
        store: &dyn Store,
        asked: u16,
        udp: bool,
        parent: Parent<'_>,
        dry_run: bool,
    ) -> Result<u16, NoPort> {
        let refused = |why: &str| Err(NoPort::Refused(why.to_owned()));
        if asked != 0 {
            if !self.ports.all().contains(&asked) {
                return Err(NoPort::Refused(format!(
                    "provided port is not in the valid range. The range of valid ports is {}",
                    self.ports
                )));
            }
            if dry_run {
                let held = store.get(&key((asked, udp))).await;
                return match held.map_err(|error| NoPort::Failed(failed(&error)))? {
                    Some(_) => refused("provided port is already allocated"),
                    None => Ok(asked),
                };
            }
            return match self.claim(store, (asked, udp), parent).await? {
                true => Ok(asked),
                false => refused("provided port is already allocated"),
            };
        }
        for again in [false, true] {
            if again {
                let claims = Self::claims(store).await;
                let claims = claims.map_err(|error| NoPort::Failed(failed(&error)))?;
                *self.known.lock() = claims.into_iter().map(|(port, ..)| port).collect();
            }
            while let Some(port) = self.free(udp) {
                if dry_run || self.claim(store, (port, udp), parent).await? {
                    return Ok(port);
                }
            }
        }
        refused("failed to allocate a nodePort: range is full")
    }

    /// A port that is not known to be taken.
    fn free(&self, udp: bool) -> Option<u16> {
        let (ports, known) = (self.ports.all(), self.known.lock());
        let (first, last) = (*ports.start(), *ports.end());
        let from = self.ports.random_from();
        let start = rand::rng().random_range(from..=last);
        (start..=last)
            .chain(from..start)
            .chain(first..from)
            .find(|port| !known.contains(&(*port, udp)))
    }

    /// Makes the claim; false when there is one.
    async fn claim(
        &self,
        store: &dyn Store,
        port: NodePort,
        parent: Parent<'_>,
    ) -> Result<bool, NoPort> {
        let made = store.commit(Write::create(key(port), owner(parent))).await;
        self.known.lock().insert(port);
        match made {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(NoPort::Failed(failed(&error))),
        }
    }

    /// Takes claims back that are still this parent's. What fails is left to [`PortPool::repair`].
    pub(super) async fn release(&self, store: &dyn Store, ports: &[NodePort], parent: Parent<'_>) {
        for port in ports {
            let released = async {
                let held = store.get(&key(*port)).await?;
                if let Some(held) = held.filter(|held| held.value == owner(parent)) {
                    store
                        .commit(Write::delete(key(*port), held.mod_revision))
                        .await?;
                }
                Ok(())
            };
            match released.await {
                Ok(()) | Err(StoreError::Conflict { .. }) => {
                    self.known.lock().remove(port);
                }
                Err(error) => {
                    tracing::warn!(?port, ?parent, %error, "the claim on a node port stays for now");
                }
            }
        }
    }

    /// Makes the claims that Services lack, and takes back those of nobody that were there at the last call already: a
    /// Service that is being written has its claims first.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn repair(
        &self,
        store: &dyn Store,
        claims: Vec<PortClaim>,
        services: &[Value],
    ) -> Result<(), StoreError> {
        let mut wanted = BTreeMap::new();
        for service in services {
            let parent = Parent::of(service);
            wanted.extend(
                ports_of(service)
                    .into_iter()
                    .map(|port| (port, owner(parent))),
            );
        }
        *self.known.lock() = claims.iter().map(|(port, ..)| *port).collect();
        let mut orphans = BTreeMap::new();
        for (port, holder, revision) in claims {
            match wanted.remove(&port) {
                Some(_) => {}
                None if self.orphans.lock().get(&port) == Some(&revision) => {
                    tracing::info!(?port, ?holder, "a node port of no Service is free again");
                    match store.commit(Write::delete(key(port), revision)).await {
                        Ok(_) | Err(StoreError::Conflict { .. }) => {}
                        Err(error) => return Err(error),
                    }
                    self.known.lock().remove(&port);
                }
                None => {
                    orphans.insert(port, revision);
                }
            }
        }
        *self.orphans.lock() = orphans;
        for (port, holder) in wanted {
            match store.commit(Write::create(key(port), holder)).await {
                Ok(_) | Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A port that is one.
pub(super) fn port_number(value: &Value) -> Option<u16> {
    let number = u16::try_from(value.as_u64()?).ok()?;
    (number != 0).then_some(number)
}

/// The ports of nodes that a Service holds.
pub(super) fn ports_of(service: &Value) -> Vec<NodePort> {
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
    use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
    use serde_json::json;

    const PARENT: Parent<'static> = Parent {
        namespace: "a",
        name: "s",
    };

    #[tokio::test]
    async fn claims_of_nobody_go_at_the_second_look() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default());
        let store = store.await.unwrap();
        let pool = PortPool::new("100-102".parse().unwrap());
        let given = pool.port(&store, 0, false, PARENT, false).await.unwrap();
        // of UDP it is another one
        pool.port(&store, given, true, PARENT, false).await.unwrap();
        let refused = pool.port(&store, given, false, PARENT, false).await;
        assert!(matches!(refused, Err(NoPort::Refused(_))), "{refused:?}");
        let service = json!({
            "metadata": { "namespace": "a", "name": "s" },
            "spec": { "ports": [
                { "nodePort": given, "protocol": "TCP" }, { "nodePort": 900, "protocol": "TCP" },
            ] },
        });
        let look = async || {
            let claims = PortPool::claims(&store).await.unwrap();
            pool.repair(&store, claims, std::slice::from_ref(&service))
                .await
                .unwrap();
            let left = PortPool::claims(&store).await.unwrap();
            left.into_iter()
                .map(|(port, ..)| port)
                .collect::<BTreeSet<_>>()
        };
        let held = [(given, false), (900, false)];
        assert_eq!(
            look().await,
            BTreeSet::from([held[0], held[1], (given, true)])
        );
        assert_eq!(look().await, BTreeSet::from(held));
        pool.release(
            &store,
            &held[..1],
            Parent {
                namespace: "b",
                ..PARENT
            },
        )
        .await;
        assert_eq!(look().await, BTreeSet::from(held), "another's");
        pool.release(&store, &held[1..], PARENT).await;
        assert_eq!(PortPool::claims(&store).await.unwrap().len(), 1);
    }
}
