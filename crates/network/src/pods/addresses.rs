//! Which address the next pod gets.

use davit_netplan::Network;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// An address that was freed is not given to another pod for this long, while there are others.
const REST: Duration = Duration::from_secs(30);

/// The addresses of one range. The first is the network's own, the second the gateway's, the last the broadcast's.
#[derive(Debug)]
pub(crate) struct Addresses {
    range: Network,
    taken: BTreeSet<Ipv4Addr>,
    resting: BTreeMap<Ipv4Addr, Instant>,
    last: Ipv4Addr,
}

impl Addresses {
    /// Those of `range`, without those that pods have.
    pub(crate) fn new(range: Network, taken: BTreeSet<Ipv4Addr>) -> Self {
        Self {
            range,
            taken,
            resting: BTreeMap::new(),
            last: range.gateway(),
        }
    }

    pub(crate) fn range(&self) -> Network {
        self.range
    }

    /// The next free one after the last one given, wrapping; of those that rest the one that rests longest when there is no
    /// other. None when all are taken.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Ipv4Addr> {
        self.resting
            .retain(|_, since| now.duration_since(*since) < REST);
        let (first, last) = (
            u32::from(self.range.gateway()).saturating_add(1),
            u32::from(self.range.last()).saturating_sub(1),
        );
        if last < first {
            return None;
        }
        let after = u32::from(self.last) + 1;
        let order = (after.max(first)..=last).chain(first..after.clamp(first, last + 1));
        let mut free = order
            .map(Ipv4Addr::from)
            .filter(|address| !self.taken.contains(address));
        let fresh = free.find(|address| !self.resting.contains_key(address));
        let rested = || self.resting.iter().min_by_key(|(_, since)| **since);
        let address = fresh.or_else(|| rested().map(|(address, _)| *address))?;
        self.resting.remove(&address);
        self.taken.insert(address);
        self.last = address;
        Some(address)
    }

    /// Gives one back.
    pub(crate) fn free(&mut self, address: Ipv4Addr, now: Instant) {
        if self.taken.remove(&address) && self.range.contains(address) {
            self.resting.insert(address, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_round_and_rest() {
        let now = Instant::now();
        let range = "10.244.0.0/29".parse().unwrap();
        let taken = [Ipv4Addr::new(10, 244, 0, 3)].into();
        let mut addresses = Addresses::new(range, taken);
        let mut take = |at| addresses.take(at).map(|address| address.octets()[3]);
        assert_eq!(
            [take(now), take(now), take(now)],
            [Some(2), Some(4), Some(5)]
        );
        addresses.free(Ipv4Addr::new(10, 244, 0, 4), now);
        addresses.free(Ipv4Addr::new(10, 244, 0, 4), now);
        let later = now + Duration::from_secs(1);
        addresses.free(Ipv4Addr::new(10, 244, 0, 2), later);
        let mut take = |at| addresses.take(at).map(|address| address.octets()[3]);
        assert_eq!(take(later), Some(6), "others rest");
        assert_eq!(take(later), Some(4), "it rests longest");
        assert_eq!(take(later + REST), Some(2));
        assert_eq!(take(later + REST), None);
    }

    #[test]
    fn a_range_too_small_has_none() {
        for text in ["10.0.0.0/31", "10.0.0.0/32", "255.255.255.255/32"] {
            let mut addresses = Addresses::new(text.parse().unwrap(), BTreeSet::new());
            assert_eq!(addresses.take(Instant::now()), None);
        }
    }
}
