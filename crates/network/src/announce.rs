//! Addresses of load balancers that this node answers for on its link (spec network.md 2.5).
//!
//! The kernel answers: an address is put on the device whose network it is in, for itself alone. So neighbours are answered
//! while davit is restarted, in both families alike, and nobody has to read what comes by the link. The machine itself
//! uses none of them as its own, and what listens on it is not reached there. Which nodes answer the controllers decide.

mod frames;

use crate::maps::Map;
use crate::ruleset::{Update, Wanted};
use crate::tables::Tables;
use crate::{Error, failed};
use davit_net::route::{Link, LinkFacts, Netlink};
use davit_netplan::{Family, Network, octets};
use frames::tell;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Below the data directory: the addresses that may be on devices.
const RECORD: &str = "network/announced";
/// More than all addresses that a node answers for.
const LARGEST: u64 = 1 << 20;
/// How often neighbours are told of a new one: what is told may be lost.
const TIMES: u8 = 3;

/// Why addresses are not answered for.
pub(crate) type Unannounced = BTreeMap<IpAddr, String>;

/// Answers for addresses. Calls block.
#[derive(Debug)]
pub(crate) struct Announcer {
    record: PathBuf,
    tables: Arc<Tables>,
    /// What neighbours are still to be told of, and how often.
    fresh: Mutex<BTreeMap<IpAddr, u8>>,
}

/// What is on the devices of this machine.
struct PlacedAddresses {
    addresses: Vec<(Link, IpAddr, u8)>,
    links: Vec<LinkFacts>,
}

impl PlacedAddresses {
    fn look(netlink: &mut Netlink) -> io::Result<Self> {
        Ok(Self {
            addresses: netlink.placed_addresses()?,
            links: netlink.links()?,
        })
    }

    /// The device in whose network an address is.
    fn of(&self, address: IpAddr) -> Option<&LinkFacts> {
        let around = |(_, own, bits): &&(Link, IpAddr, u8)| {
            let family = Family::of(*own);
            *bits < family.bits()
                && Network::around(*own, *bits).is_some_and(|network| network.contains(address))
        };
        let mut found = self.addresses.iter().filter(around);
        let at = found.find_map(|(link, ..)| self.links.iter().find(|found| found.link == *link));
        at.filter(|found| found.name != "lo")
    }

    /// Whether the machine itself has an address: in a network, or for itself alone though it was not `announced` here.
    fn is_own(&self, address: IpAddr, announced: &BTreeSet<IpAddr>) -> bool {
        let mut own = self.addresses.iter().filter(|(_, own, _)| *own == address);
        own.any(|(_, own, bits)| *bits < Family::of(*own).bits() || !announced.contains(own))
    }

    /// The devices that have exactly this address, for itself alone.
    fn alone(&self, address: IpAddr) -> Vec<Link> {
        let alone = self.addresses.iter();
        let alone =
            alone.filter(|(_, own, bits)| *own == address && *bits == Family::of(address).bits());
        alone.map(|(link, ..)| *link).collect()
    }
}

/// The addresses that an earlier run may have put on devices.
fn recorded(record: &Path) -> BTreeSet<IpAddr> {
    let text = davit_beneath::read_given(record, LARGEST).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn take_away(netlink: &mut Netlink, devices: &PlacedAddresses, address: IpAddr) -> io::Result<()> {
    for link in devices.alone(address) {
        netlink.remove_host_address(&link, address)?;
    }
    Ok(())
}

/// Takes all addresses away that a node with this data directory answers for. Blocks.
pub(crate) fn withdraw(data_dir: &Path) -> io::Result<()> {
    let record = data_dir.join(RECORD);
    let addresses = recorded(&record);
    if addresses.is_empty() {
        return Ok(());
    }
    let mut netlink = Netlink::open()?;
    let devices = PlacedAddresses::look(&mut netlink)?;
    for address in addresses {
        take_away(&mut netlink, &devices, address)?;
    }
    std::fs::remove_file(record)
}

impl Announcer {
    pub(crate) fn new(data_dir: &Path, tables: Arc<Tables>) -> Self {
        Self {
            record: data_dir.join(RECORD),
            tables,
            fresh: Mutex::default(),
        }
    }

    /// Answers for these addresses, and no others. Tells why it cannot for some.
    pub(crate) fn write(&self, wanted: &BTreeSet<IpAddr>) -> Result<Unannounced, Error> {
        let answered = self.answer(wanted);
        let (here, not) = answered.map_err(failed("addresses of load balancers"))?;
        self.fresh
            .lock()
            .retain(|address, _| here.contains_key(address));
        self.tell(&here);
        Ok(not)
    }

    /// The addresses that are answered for now with their devices, and those that are not.
    fn answer(
        &self,
        wanted: &BTreeSet<IpAddr>,
    ) -> io::Result<(BTreeMap<IpAddr, String>, Unannounced)> {
        let before = recorded(&self.record);
        let (mut here, mut not) = (BTreeMap::<IpAddr, LinkFacts>::new(), Unannounced::new());
        if before.is_empty() && wanted.is_empty() {
            return Ok((BTreeMap::new(), not));
        }
        let mut netlink = Netlink::open()?;
        let devices = PlacedAddresses::look(&mut netlink)?;
        for gone in before.difference(wanted) {
            take_away(&mut netlink, &devices, *gone)?;
        }
        for address in wanted {
            let at = devices.of(*address);
            let is_own = devices.is_own(*address, &before);
            match at {
                Some(at) if !is_own => drop(here.insert(*address, at.clone())),
                Some(_) => drop(not.insert(*address, "this machine has it".to_owned())),
                None => {
                    let why = "no device of this machine is in its network".to_owned();
                    drop(not.insert(*address, why));
                }
            }
        }
        self.guard(here.keys().copied())?;
        // Before they are on devices, so that they are found again.
        let all: BTreeSet<IpAddr> = here.keys().copied().collect();
        if all != before {
            let lines: Vec<String> = all.iter().map(|address| format!("{address}\n")).collect();
            let text = lines.concat();
            davit_beneath::write_durably(&self.record, text.as_bytes(), 0o600)
                .map_err(io::Error::other)?;
        }
        for (address, at) in &here {
            let places = devices.alone(*address);
            for other in places.iter().filter(|link| **link != at.link) {
                netlink.remove_host_address(other, *address)?;
            }
            if !places.contains(&at.link) {
                netlink.add_answered_address(&at.link, *address)?;
                self.fresh.lock().insert(*address, TIMES);
            }
        }
        let here = here.into_iter().map(|(address, at)| (address, at.name));
        Ok((here.collect(), not))
    }

    /// What listens on this machine is not reached at these addresses.
    fn guard(&self, addresses: impl Iterator<Item = IpAddr>) -> io::Result<()> {
        let addresses: Vec<IpAddr> = addresses.collect();
        for family in Family::ALL {
            if addresses
                .iter()
                .any(|address| Family::of(*address) == family)
            {
                self.tables.of(family)?;
            }
        }
        for ruleset in self.tables.all() {
            let mut update = Update::default();
            for address in &addresses {
                if Family::of(*address) == ruleset.family() {
                    update.set(Map::Announced, octets(*address), Wanted::Member);
                }
            }
            ruleset.replace(&[Map::Announced], update)?;
        }
        Ok(())
    }

    /// Tells neighbours where new addresses are now: those who knew them elsewhere learn it at once.
    fn tell(&self, here: &BTreeMap<IpAddr, String>) {
        let mut fresh = self.fresh.lock();
        for (address, times) in fresh.iter_mut() {
            if let Some(device) = here.get(address)
                && let Err(error) = tell(device, *address)
            {
                tracing::warn!(%address, %error, "neighbours are not told of an address");
            }
            *times -= 1;
        }
        fresh.retain(|_, times| *times > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_somebody_else_has_put_there_is_the_machines() {
        let Some(link) = Netlink::open().unwrap().link("lo").unwrap() else {
            return;
        };
        let at = |text: &str| -> IpAddr { text.parse().unwrap() };
        let placed = [
            ("192.0.2.10", 24),
            ("192.0.2.200", 32),
            ("192.0.2.201", 32),
            ("2001:db8::c8", 128),
        ];
        let addresses = placed.map(|(text, bits)| (link, at(text), bits)).to_vec();
        let devices = PlacedAddresses {
            addresses,
            links: Vec::new(),
        };
        let announced = [at("192.0.2.201")].into();
        for (text, own) in [
            ("192.0.2.10", true),
            // of keepalived, say
            ("192.0.2.200", true),
            ("2001:db8::c8", true),
            ("192.0.2.201", false),
            ("192.0.2.202", false),
        ] {
            assert_eq!(devices.is_own(at(text), &announced), own, "{text}");
        }
    }
}
