//! Which address the next pod gets.

use davit_netplan::{Family, Network, number};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// An address that was freed is not given to another pod for this long, while there are others.
const REST: Duration = Duration::from_secs(30);

/// The addresses of one range. The first is the network's own, the second the gateway's, the last of IPv4 the broadcast's.
#[derive(Debug)]
pub(crate) struct Addresses {
    range: Network,
    taken: BTreeSet<IpAddr>,
    resting: BTreeMap<IpAddr, Instant>,
    last: IpAddr,
}

impl Addresses {
    /// Those of `range`, without those that pods have.
    pub(crate) fn new(range: Network, taken: BTreeSet<IpAddr>) -> Self {
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
    pub(crate) fn take(&mut self, now: Instant) -> Option<IpAddr> {
        self.resting
            .retain(|_, since| now.duration_since(*since) < REST);
        let family = self.range.family();
        let first = number(self.range.gateway()).saturating_add(1);
        let last = match family {
            Family::V4 => number(self.range.last()).saturating_sub(1),
            Family::V6 => number(self.range.last()),
        };
        if last < first {
            return None;
        }
        let after = number(self.last).saturating_add(1);
        let order =
            (after.max(first)..=last).chain(first..after.clamp(first, last.saturating_add(1)));
        // No more are looked at than can be taken or rest: ranges of IPv6 have no end.
        let most = self.taken.len() + self.resting.len() + 1;
        let mut free = order
            .take(most)
            .map(|number| family.address(number))
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
    pub(crate) fn free(&mut self, address: IpAddr, now: Instant) {
        if self.taken.remove(&address) && self.range.contains(address) {
            self.resting.insert(address, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_netplan::octets;

    #[test]
    fn addresses_go_round_and_rest() {
        let now = Instant::now();
        let range = "10.244.0.0/29".parse().unwrap();
        let of = |last: u8| IpAddr::from([10, 244, 0, last]);
        let taken = [of(3)].into();
        let mut addresses = Addresses::new(range, taken);
        let mut take = |at| {
            addresses
                .take(at)
                .and_then(|address| octets(address).last().copied())
        };
        assert_eq!(
            [take(now), take(now), take(now)],
            [Some(2), Some(4), Some(5)]
        );
        addresses.free(of(4), now);
        addresses.free(of(4), now);
        let later = now + Duration::from_secs(1);
        addresses.free(of(2), later);
        let mut take = |at| {
            addresses
                .take(at)
                .and_then(|address| octets(address).last().copied())
        };
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

    #[test]
    fn ranges_of_ipv6_have_no_end() {
        let now = Instant::now();
        let range: Network = "fd00:10:244:3::/64".parse().unwrap();
        let mut addresses = Addresses::new(range, ["fd00:10:244:3::2".parse().unwrap()].into());
        let mut take = || addresses.take(now).map(|address| address.to_string());
        assert_eq!(take().as_deref(), Some("fd00:10:244:3::3"));
        assert_eq!(take().as_deref(), Some("fd00:10:244:3::4"));
        // the last one is an address like any other
        let mut small = Addresses::new("fd00::/126".parse().unwrap(), BTreeSet::new());
        assert!(small.take(now).is_some() && small.take(now).is_some());
        assert_eq!(small.take(now), None);
    }
}
