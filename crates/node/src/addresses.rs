//! The addresses of the node. A machine may start before its network is there, and move from one to another: what was found and
//! not given is looked for again and again, as the kubelet does.

use crate::options::NodeOptions;
use parking_lot::RwLock;
use std::net::IpAddr;
use std::sync::Arc;

/// Where the node is, now.
#[derive(Debug)]
pub(crate) struct HostAddresses {
    known: RwLock<Arc<[IpAddr]>>,
    /// Of which families addresses are looked for; none where they were given.
    families: Vec<IpAddr>,
}

impl HostAddresses {
    pub(crate) fn new(options: &NodeOptions) -> Self {
        Self {
            known: RwLock::new(options.addresses().into()),
            families: options.ip_families.clone(),
        }
    }

    /// The addresses, the first one first.
    pub(crate) fn get(&self) -> Arc<[IpAddr]> {
        self.known.read().clone()
    }

    /// The same as text.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.get().iter().map(ToString::to_string).collect()
    }

    /// Looks whether the machine has others by now.
    pub(crate) fn look(&self) {
        let families = self.families.iter();
        let found = families.filter_map(|any| davit_listen::addresses::outgoing_address(*any));
        let (found, known): (Vec<IpAddr>, _) = (found.collect(), self.get());
        let now = follow(&known, &found);
        if *now != *known {
            tracing::info!(before = ?known, ?now, "addresses of the node have changed");
            *self.known.write() = now.into();
        }
    }
}

/// What was known, with what the machine has of these families now. A family that it has lost stays: the cable may be out for a
/// moment, and nothing else is known.
fn follow(known: &[IpAddr], found: &[IpAddr]) -> Vec<IpAddr> {
    if found.is_empty() {
        return known.to_vec();
    }
    let of = |of: &IpAddr| found.iter().find(|ip| ip.is_ipv4() == of.is_ipv4());
    let known = known.iter().filter(|ip| !ip.is_loopback());
    let mut now: Vec<IpAddr> = known.map(|ip| *of(ip).unwrap_or(ip)).collect();
    let new = found.iter().filter(|ip| !now.contains(ip));
    let new: Vec<IpAddr> = new.copied().collect();
    now.extend(new);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_machine() {
        let ips = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        for (known, found, now) in [
            // started without a network
            (&["127.0.0.1"][..], &["192.0.2.1"][..], &["192.0.2.1"][..]),
            (
                &["127.0.0.1"],
                &["192.0.2.1", "2001:db8::1"],
                &["192.0.2.1", "2001:db8::1"],
            ),
            // moved
            (
                &["192.0.2.1", "2001:db8::1"],
                &["192.0.2.2", "2001:db8::1"],
                &["192.0.2.2", "2001:db8::1"],
            ),
            // the cable is out, or one family has no router
            (&["192.0.2.1"], &[], &["192.0.2.1"]),
            (&["127.0.0.1"], &[], &["127.0.0.1"]),
            (
                &["192.0.2.1", "2001:db8::1"],
                &["2001:db8::2"],
                &["192.0.2.1", "2001:db8::2"],
            ),
            (
                &["192.0.2.1"],
                &["192.0.2.1", "2001:db8::1"],
                &["192.0.2.1", "2001:db8::1"],
            ),
        ] {
            assert_eq!(follow(&ips(known), &ips(found)), ips(now));
        }
    }
}
