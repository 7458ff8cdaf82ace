//! The keys of maps as rules load them.

use davit_net::nft::{Expression as Do, Slot};
use davit_netplan::{Family, octets};

/// A field of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Source,
    Destination,
    /// The source of the connection's first packet, and of what answers it.
    Client,
    Server,
    /// The address that stands for all.
    Anywhere,
    Protocol,
    Port,
    /// A random number below the first from the second on.
    Random(u32, u32),
}

/// Loads the fields of a key in a row, from `A` on.
pub(super) fn key(family: Family, parts: &[Part]) -> Vec<Do> {
    let mut at = 0;
    let mut loads = Vec::new();
    for part in parts {
        let slot = Slot(at);
        at += match part {
            Part::Source | Part::Destination | Part::Client | Part::Server | Part::Anywhere => {
                width(family)
            }
            Part::Protocol | Part::Port | Part::Random(..) => 1,
        };
        loads.push(match *part {
            Part::Source => Do::SourceAddress(slot),
            Part::Destination => Do::DestinationAddress(slot),
            Part::Client => Do::OriginalSource(slot),
            Part::Server => Do::ReplySource(slot),
            Part::Anywhere => Do::Load(slot, octets(family.unspecified())),
            Part::Protocol => Do::Protocol(slot),
            Part::Port => Do::DestinationPort(slot),
            Part::Random(modulus, offset) => Do::Random {
                to: slot,
                modulus,
                offset,
            },
        });
    }
    loads
}

/// How many slots an address takes.
fn width(family: Family) -> u8 {
    match family {
        Family::V4 => 1,
        Family::V6 => 4,
    }
}
