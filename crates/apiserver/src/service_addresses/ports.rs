//! Node ports are claimed in one bitmap that all API servers share, kube-apiserver's RangeAllocation `servicenodeports`: a bit
//! for each port of the range, changed by compare-and-swap.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use davit_api::status::Status;
use davit_store::{Error as StoreError, Store, Write};
use parking_lot::Mutex;
use rand::Rng;
use serde_json::{Value, json};

use davit_netplan::NodePorts;

/// The bitmap's key.
const KEY: &str = "/registry/ranges/servicenodeports";
/// How often a change is tried again that others were faster than.
const TRIES: usize = 64;

/// Why a Service does not get a port.
#[derive(Debug)]
pub(super) enum NoPort {
    /// The text for the field.
    Refused(String),
    /// The claim could not be written.
    Failed(Status),
}

impl From<StoreError> for NoPort {
    fn from(error: StoreError) -> Self {
        Self::Failed(Status::internal(format!(
            "failed to allocate a nodePort: {error}"
        )))
    }
}

fn refused<T>(why: &str) -> Result<T, NoPort> {
    Err(NoPort::Refused(why.to_owned()))
}

/// The ports that are taken, as of a revision; none before the first claim.
#[derive(Debug, Default)]
pub(super) struct TakenPorts {
    ports: BTreeSet<u16>,
    revision: Option<u64>,
}

/// The ports that there are.
#[derive(Debug)]
pub(super) struct PortPool {
    ports: NodePorts,
    /// Of this server's changes one at a time is made: they would only hinder one another.
    changing: tokio::sync::Mutex<()>,
    /// Claims of nobody that were seen at the last look.
    orphans: Mutex<BTreeSet<u16>>,
}

impl PortPool {
    pub(super) fn new(ports: NodePorts) -> Self {
        Self {
            ports,
            changing: tokio::sync::Mutex::default(),
            orphans: Mutex::default(),
        }
    }

    /// The ports that are taken.
    pub(super) async fn taken(&self, store: &dyn Store) -> Result<TakenPorts, StoreError> {
        let Some(pair) = store.get(KEY).await? else {
            return Ok(TakenPorts::default());
        };
        let ports = read(&pair.value).ok_or_else(|| StoreError::Io {
            action: "read the node ports that are taken",
            detail: format!("{KEY} is no RangeAllocation of ports"),
        })?;
        Ok(TakenPorts {
            ports,
            revision: Some(pair.mod_revision),
        })
    }

    /// Writes the ports that are taken, if nobody has done so since they were read; whether that was so.
    async fn write(&self, store: &dyn Store, taken: TakenPorts) -> Result<bool, StoreError> {
        let value = self.value(&taken.ports);
        let write = match taken.revision {
            None => Write::create(KEY, value),
            Some(revision) => Write::update(KEY, revision, value),
        };
        match store.commit(write).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The stored form of these ports, as far as they are of the range.
    fn value(&self, taken: &BTreeSet<u16>) -> Bytes {
        let first = *self.ports.all().start();
        let offsets = taken
            .iter()
            .filter(|port| self.ports.all().contains(port))
            .map(|port| usize::from(port - first));
        let allocation = json!({
            "kind": "RangeAllocation", "apiVersion": "v1", "metadata": {},
            "range": self.ports.to_string(), "data": STANDARD.encode(number(offsets)),
        });
        Bytes::from(allocation.to_string())
    }

    /// Changes what is taken until nobody was faster. `change` says what came of it, and whether anything is to be written.
    async fn change<T>(
        &self,
        store: &dyn Store,
        mut change: impl FnMut(&mut BTreeSet<u16>) -> (T, bool),
    ) -> Result<T, StoreError> {
        let _alone = self.changing.lock().await;
        for _ in 0..TRIES {
            let mut taken = self.taken(store).await?;
            let (result, is_changed) = change(&mut taken.ports);
            if !is_changed || self.write(store, taken).await? {
                return Ok(result);
            }
        }
        Err(StoreError::Io {
            action: "claim a node port",
            detail: format!("others changed {KEY} each time"),
        })
    }

    /// Takes the port `asked`, or any for 0; with `dry_run` it is only looked for.
    pub(super) async fn port(
        &self,
        store: &dyn Store,
        asked: u16,
        dry_run: bool,
    ) -> Result<u16, NoPort> {
        if asked != 0 && !self.ports.all().contains(&asked) {
            return Err(NoPort::Refused(format!(
                "provided port is not in the valid range. The range of valid ports is {}",
                self.ports
            )));
        }
        let given = self.change(store, |taken| {
            let free = match asked {
                0 => self.free(taken),
                asked => (!taken.contains(&asked)).then_some(asked),
            };
            let is_claimed = !dry_run && free.is_some_and(|port| taken.insert(port));
            (free, is_claimed)
        });
        match given.await? {
            Some(port) => Ok(port),
            None if asked == 0 => refused("failed to allocate a nodePort: range is full"),
            None => refused("provided port is already allocated"),
        }
    }

    fn free(&self, taken: &BTreeSet<u16>) -> Option<u16> {
        let ports = self.ports.all();
        let (first, last) = (*ports.start(), *ports.end());
        let from = self.ports.random_from();
        let start = rand::rng().random_range(from..=last);
        (start..=last)
            .chain(from..start)
            .chain(first..from)
            .find(|port| !taken.contains(port))
    }

    /// Takes claims back. What fails is left to [`PortPool::repair`].
    pub(super) async fn release(&self, store: &dyn Store, ports: &[u16]) {
        if ports.is_empty() {
            return;
        }
        let released = self.change(store, |taken| {
            let before = taken.len();
            taken.retain(|port| !ports.contains(port));
            ((), taken.len() != before)
        });
        if let Err(error) = released.await {
            tracing::warn!(?ports, %error, "the claims on node ports stay for now");
        }
    }

    /// Makes the claims that Services lack, and takes back those of nobody that were there at the last call already: a
    /// Service that is being written has its claims first. `taken` was read before `services`.
    ///
    /// # Errors
    /// The store does not answer.
    pub(super) async fn repair(
        &self,
        store: &dyn Store,
        mut taken: TakenPorts,
        services: &[Value],
    ) -> Result<(), StoreError> {
        let wanted: BTreeSet<u16> = services
            .iter()
            .flat_map(ports_of)
            .filter(|port| self.ports.all().contains(port))
            .collect();
        let lacking = wanted.difference(&taken.ports).count();
        let orphans: BTreeSet<u16> = taken.ports.difference(&wanted).copied().collect();
        let over: Vec<u16> = orphans
            .intersection(&self.orphans.lock())
            .copied()
            .collect();
        *self.orphans.lock() = orphans;
        if lacking == 0 && over.is_empty() && taken.revision.is_some() {
            return Ok(());
        }
        if !over.is_empty() {
            tracing::info!(ports = ?over, "node ports of no Service are free again");
        }
        taken.ports.extend(wanted);
        taken.ports.retain(|port| !over.contains(port));
        // Whoever was faster may have taken one of them: they are looked at again.
        self.write(store, taken).await.map(drop)
    }
}

/// The bits at these places as a big-endian number, as Go's `big.Int` writes it.
fn number(offsets: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut little: Vec<u8> = Vec::new();
    for offset in offsets {
        let byte = offset / 8;
        if little.len() <= byte {
            little.resize(byte + 1, 0);
        }
        little[byte] |= 1 << (offset % 8);
    }
    little.reverse();
    little
}

/// The ports of a stored bitmap, whatever its range.
fn read(value: &[u8]) -> Option<BTreeSet<u16>> {
    let allocation: Value = serde_json::from_slice(value).ok()?;
    let range: NodePorts = allocation["range"].as_str()?.parse().ok()?;
    let bits = STANDARD
        .decode(allocation["data"].as_str().unwrap_or_default())
        .ok()?;
    let (first, bits) = (*range.all().start(), bits.iter().rev());
    let offsets = bits.enumerate().flat_map(|(byte, bits)| {
        let set = (0..8).filter(move |bit| bits >> bit & 1 == 1);
        set.map(move |bit| byte * 8 + bit)
    });
    let ports = offsets.filter_map(|offset| first.checked_add(u16::try_from(offset).ok()?));
    Some(ports.filter(|port| range.all().contains(port)).collect())
}

/// A port that is one.
pub(super) fn port_number(value: &Value) -> Option<u16> {
    let number = u16::try_from(value.as_u64()?).ok()?;
    (number != 0).then_some(number)
}

/// The ports of nodes that a Service holds.
pub(super) fn ports_of(service: &Value) -> Vec<u16> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let ports = ports.into_iter().flatten();
    let ports = ports.filter_map(|port| port_number(&port["nodePort"]));
    let health = service.pointer("/spec/healthCheckNodePort");
    ports.chain(health.and_then(port_number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
    use proptest::prelude::*;

    #[tokio::test]
    async fn claims_of_nobody_go_at_the_second_look() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default());
        let store = store.await.unwrap();
        let pool = PortPool::new("100-103".parse().unwrap());
        let given = pool.port(&store, 0, false).await.unwrap();
        let refused = pool.port(&store, given, false).await;
        assert!(matches!(refused, Err(NoPort::Refused(_))), "{refused:?}");
        // A dry run takes nothing.
        let other = pool.port(&store, 0, true).await.unwrap();
        pool.port(&store, other, false).await.unwrap();
        let lacking = (100..=103).find(|port| ![given, other].contains(port));
        let service = json!({ "spec": { "ports": [
            { "nodePort": given, "protocol": "TCP" }, { "nodePort": lacking, "protocol": "TCP" },
            { "nodePort": 900 },
        ] } });
        let look = async || {
            let taken = pool.taken(&store).await.unwrap();
            pool.repair(&store, taken, std::slice::from_ref(&service))
                .await
                .unwrap();
            pool.taken(&store).await.unwrap().ports
        };
        let held = BTreeSet::from([given, lacking.unwrap()]);
        assert_eq!(
            look().await,
            held.union(&BTreeSet::from([other])).copied().collect()
        );
        assert_eq!(look().await, held);
        pool.release(&store, &[given]).await;
        assert_eq!(
            pool.taken(&store).await.unwrap().ports,
            BTreeSet::from([lacking.unwrap()])
        );
    }

    #[tokio::test]
    async fn one_port_is_given_once_by_several_servers() {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default());
        let store = store.await.unwrap();
        let pools: Vec<PortPool> = (0..4)
            .map(|_| PortPool::new("1000-1031".parse().unwrap()))
            .collect();
        let claims = (0..32).map(|at| pools[at % 4].port(&store, 0, false));
        let given = futures::future::join_all(claims).await;
        let given: BTreeSet<u16> = given.into_iter().map(Result::unwrap).collect();
        assert_eq!(given.len(), 32);
        assert!(pools[0].port(&store, 0, false).await.is_err());
    }

    #[test]
    fn bits_are_those_of_kube_apiserver() {
        // Bit 80 of 30000-32767, as kube-apiserver wrote it.
        let pool = PortPool::new("30000-32767".parse().unwrap());
        let value = pool.value(&BTreeSet::from([30_080]));
        let value: Value = serde_json::from_slice(&value).unwrap();
        assert_eq!(
            value["data"],
            STANDARD.encode([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!(value["range"], "30000-32767");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(ports in prop::collection::btree_set(1000_u16..2000, 0..50)) {
            let pool = PortPool::new("1000-1999".parse().unwrap());
            prop_assert_eq!(read(&pool.value(&ports)), Some(ports));
        }

        #[test]
        fn anything_is_read_or_refused(value in prop::collection::vec(any::<u8>(), 0..60)) {
            let _read = read(&value);
            let allocation = json!({ "range": "1-65535", "data": STANDARD.encode(&value) });
            let _read = read(allocation.to_string().as_bytes());
        }
    }
}
