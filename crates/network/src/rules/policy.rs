//! The chains of what policies allow: what no rule lets return is dropped at the end.

use super::{A, B, C, is_within, masked};
use davit_net::nft::{Expression as Do, Slot, Transaction, Verdict};
use davit_netplan::{Allowance, Family, Network, Peers, PodGroup, PortRange, octets};
use std::collections::BTreeSet;

/// On which side of a packet the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    /// The peer sends: ingress.
    Source,
    /// The peer receives: egress.
    Destination,
}

impl Side {
    fn load(self, slot: Slot) -> Do {
        match self {
            Self::Source => Do::SourceAddress(slot),
            Self::Destination => Do::DestinationAddress(slot),
        }
    }
}

/// Most exceptions of a range in one rule: the kernel takes no more than 128 expressions.
const MAX_EXCEPT: usize = 30;

/// The chains of what is allowed, beginning with the one that others lead to: those of an allowance of several peers and
/// several ports, which are asked one after the other, come after it.
pub(crate) fn chains(chain: &str, allowed: &BTreeSet<Allowance>) -> Vec<String> {
    let several = (0..)
        .zip(allowed)
        .filter(|(_, allowance)| is_product(allowance));
    let own = several.flat_map(|(number, _)| product_chains(chain, number));
    [chain.to_owned()].into_iter().chain(own).collect()
}

/// The chain of the peers of an allowance, and that of its ports.
fn product_chains(chain: &str, number: usize) -> [String; 2] {
    [
        format!("{chain}-{number}"),
        format!("{chain}-{number}-ports"),
    ]
}

fn is_product(allowance: &Allowance) -> bool {
    let ports = allowance.ports.as_ref().map_or(1, BTreeSet::len);
    allowance.peers.len() > 1 && ports > 1
}

/// Makes the chains of what is allowed. `set` knows the names of the groups' sets.
pub(crate) fn allowed(
    to: &mut Transaction,
    chain: &str,
    side: Side,
    family: Family,
    allowed: &BTreeSet<Allowance>,
    set: impl Fn(&PodGroup) -> Option<String>,
) {
    to.add_chain(chain, None);
    for (number, allowance) in allowed.iter().enumerate() {
        let peers = allowance.peers.iter();
        let peers = peers.flat_map(|one| peer(side, family, one, &set));
        let ports: Vec<Vec<Do>> = match &allowance.ports {
            None => vec![Vec::new()],
            Some(ranges) => ranges.iter().copied().map(ports).collect(),
        };
        let accept = Do::Verdict(Verdict::Accept);
        if !is_product(allowance) {
            for peer in peers {
                for ports in &ports {
                    let rule = [&peer[..], &ports[..], std::slice::from_ref(&accept)].concat();
                    to.add_rule(chain, &rule);
                }
            }
            continue;
        }
        let [of_peers, of_ports] = product_chains(chain, number);
        to.add_chain(&of_ports, None);
        for mut rule in ports {
            rule.push(accept.clone());
            to.add_rule(&of_ports, &rule);
        }
        to.add_chain(&of_peers, None);
        for mut rule in peers {
            // for good: the peers after this one have nothing to add
            rule.push(Do::Verdict(Verdict::Goto(of_ports.clone())));
            to.add_rule(&of_peers, &rule);
        }
        to.add_rule(chain, &[Do::Verdict(Verdict::Jump(of_peers))]);
    }
    to.add_rule(chain, &[Do::Counter, Do::Verdict(Verdict::Drop)]);
}

/// The matches of a peer, each of a rule of its own.
fn peer(
    side: Side,
    family: Family,
    peers: &Peers,
    set: impl Fn(&PodGroup) -> Option<String>,
) -> Vec<Vec<Do>> {
    match peers {
        Peers::Everybody => vec![Vec::new()],
        // nobody here has such an address
        Peers::Block { range, .. } if range.family() != family => Vec::new(),
        Peers::Block { range, except } if except.len() <= MAX_EXCEPT => {
            vec![block(side, *range, except)]
        }
        Peers::Block { range, except } => {
            let rest = range.without(except);
            rest.into_iter()
                .map(|range| block(side, range, &[]))
                .collect()
        }
        Peers::Group(group) => {
            // Without its set nobody is allowed.
            let Some(set) = set(group) else {
                return Vec::new();
            };
            let (key, absent) = (A, false);
            vec![vec![side.load(A), Do::In { set, key, absent }]]
        }
    }
}

fn block(side: Side, range: Network, except: &[Network]) -> Vec<Do> {
    let mut rule = is_within(side.load(A), range).to_vec();
    for range in except.iter().filter(|part| part.family() == range.family()) {
        let other = Do::NotEqual(A, octets(range.first()));
        rule.extend([side.load(A), masked(*range), other]);
    }
    rule
}

fn ports(range: PortRange) -> Vec<Do> {
    let protocol = Do::Equal(B, vec![range.protocol as u8]);
    let mut rule = vec![Do::Protocol(B), protocol];
    let port = |number: u16| number.to_be_bytes().to_vec();
    match (range.first, range.last) {
        (0, u16::MAX) => {}
        (first, last) if first == last => {
            rule.extend([Do::DestinationPort(C), Do::Equal(C, port(first))]);
        }
        (first, last) => rule.extend([
            Do::DestinationPort(C),
            Do::AtLeast(C, port(first)),
            Do::AtMost(C, port(last)),
        ]),
    }
    rule
}
