//! From addresses back to names.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hickory_proto::rr::Name;

/// Which endpoint of a Service has an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub(super) slice: Arc<str>,
    pub(super) host: Arc<str>,
}

/// One reason why an address has a name. Sorted so that cluster IPs, which have no endpoint, come first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) namespace: Arc<str>,
    pub(super) service: Arc<str>,
}

/// Nearly every address has one owner, which a set would make ten times as large.
#[derive(Debug, PartialEq, Eq)]
enum Owners {
    One(Owner),
    Many(BTreeSet<Owner>),
}

/// The owners of each address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pointers {
    addresses: HashMap<IpAddr, Owners>,
}

impl Pointers {
    pub(super) fn insert(&mut self, address: IpAddr, owner: Owner) {
        match self.addresses.entry(address) {
            Entry::Vacant(vacant) => {
                vacant.insert(Owners::One(owner));
            }
            Entry::Occupied(mut occupied) => match occupied.get_mut() {
                Owners::Many(set) => {
                    set.insert(owner);
                }
                Owners::One(first) if *first == owner => {}
                Owners::One(first) => {
                    let set = BTreeSet::from([first.clone(), owner]);
                    occupied.insert(Owners::Many(set));
                }
            },
        }
    }

    pub(super) fn remove(&mut self, address: IpAddr, owner: &Owner) {
        let Entry::Occupied(mut occupied) = self.addresses.entry(address) else {
            return;
        };
        match occupied.get_mut() {
            Owners::One(only) => {
                if only == owner {
                    occupied.remove();
                }
            }
            Owners::Many(set) => {
                set.remove(owner);
                if set.len() == 1
                    && let Some(last) = set.pop_first()
                {
                    occupied.insert(Owners::One(last));
                }
            }
        }
    }

    /// The owners of an address, cluster IPs first.
    pub(super) fn owners(&self, address: IpAddr) -> impl Iterator<Item = &Owner> {
        let (one, many) = match self.addresses.get(&address) {
            Some(Owners::One(owner)) => (Some(owner), None),
            Some(Owners::Many(set)) => (None, Some(set)),
            None => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// The address a reverse name stands for (RFC 1035, 3.5; RFC 3596, 2.5); none for parts of addresses.
pub(super) fn address_of(name: &Name) -> Option<IpAddr> {
    let mut labels = name.iter().rev();
    let top = labels.next()?;
    let family = labels.next()?;
    if !top.eq_ignore_ascii_case(b"arpa") {
        return None;
    }
    if family.eq_ignore_ascii_case(b"in-addr") && labels.len() == 4 {
        let mut octets = [0; 4];
        for octet in &mut octets {
            *octet = decimal(labels.next()?)?;
        }
        Some(Ipv4Addr::from(octets).into())
    } else if family.eq_ignore_ascii_case(b"ip6") && labels.len() == 32 {
        let mut bits: u128 = 0;
        for label in labels {
            bits = bits << 4 | u128::from(nibble(label)?);
        }
        Some(Ipv6Addr::from(bits).into())
    } else {
        None
    }
}

/// Leading zeros are refused: an address shall have one name.
fn decimal(label: &[u8]) -> Option<u8> {
    if label.len() > 1 && label.first() == Some(&b'0') {
        return None;
    }
    if !label.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(label).ok()?.parse().ok()
}

fn nibble(label: &[u8]) -> Option<u32> {
    match label {
        [digit] => char::from(*digit).to_digit(16),
        _ => None,
    }
}
