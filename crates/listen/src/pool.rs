//! One pool of connections, and which of them gives way.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use crate::entry::Entry;

/// Those who share what one of them may hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// An address; of IPv6 the network of 64 bits, which one host has whole.
    Address(IpAddr),
    /// Somebody who has shown who they are.
    User(String),
}

impl Holder {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Self::Address(Ipv6Addr::from(network).into())
            }
            other => Self::Address(other),
        }
    }
}

/// Connections by who holds them.
#[derive(Debug)]
pub(crate) struct Pool {
    capacity: usize,
    total: usize,
    held: HashMap<Holder, BTreeMap<u64, Arc<Entry>>>,
}

impl Pool {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            total: 0,
            held: HashMap::new(),
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.held.values().flat_map(BTreeMap::values)
    }

    /// Enters a connection. The one that gives way for it is taken out and returned.
    pub(crate) fn insert(&mut self, holder: Holder, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let own = self.held.get(&holder).map_or(0, BTreeMap::len);
        let free = self.capacity.saturating_sub(self.total);
        let gives_way = if own > 0 && own >= free {
            self.take_least(&holder.clone())
        } else if free == 0 {
            self.take_from_largest()
        } else {
            None
        };
        self.total += 1;
        self.held.entry(holder).or_default().insert(entry.id, entry);
        gives_way
    }

    pub(crate) fn remove(&mut self, holder: &Holder, id: u64) -> Option<Arc<Entry>> {
        let group = self.held.get_mut(holder)?;
        let removed = group.remove(&id)?;
        if group.is_empty() {
            self.held.remove(holder);
        }
        self.total -= 1;
        Some(removed)
    }

    /// Takes out the connection worth least of whoever holds most.
    pub(crate) fn take_from_largest(&mut self) -> Option<Arc<Entry>> {
        let largest = self.held.iter().max_by_key(|(_, group)| group.len());
        let holder = largest.map(|(holder, _)| holder.clone())?;
        self.take_least(&holder)
    }

    /// Of connections on which as much has happened, the oldest.
    fn take_least(&mut self, holder: &Holder) -> Option<Arc<Entry>> {
        let group = self.held.get(holder)?;
        let least = group.iter().min_by_key(|(id, entry)| (entry.worth(), **id));
        let id = *least?.0;
        self.remove(holder, id)
    }
}
