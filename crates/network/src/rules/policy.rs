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

/// Makes the chain of what is allowed. `set` knows the names of the groups' sets.
pub(crate) fn allowed(
    to: &mut Transaction,
    chain: &str,
    side: Side,
    family: Family,
    allowed: &BTreeSet<Allowance>,
    set: impl Fn(&PodGroup) -> Option<String>,
) {
    to.add_chain(chain, None);
    for allowance in allowed {
        let mut rule = match &allowance.peers {
            Peers::Everybody => Vec::new(),
            // nobody here has such an address
            Peers::Block { range, .. } if range.family() != family => continue,
            Peers::Block { range, except } => block(side, *range, except),
            Peers::Group(group) => {
                // Without its set nobody is allowed.
                let Some(set) = set(group) else { continue };
                let key = A;
                vec![
                    side.load(A),
                    Do::In {
                        set,
                        key,
                        absent: false,
                    },
                ]
            }
        };
        rule.extend(allowance.ports.map(ports).unwrap_or_default());
        rule.push(Do::Verdict(Verdict::Return));
        to.add_rule(chain, &rule);
    }
    to.add_rule(chain, &[Do::Counter, Do::Verdict(Verdict::Drop)]);
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
