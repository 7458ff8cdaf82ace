//! At which addresses of a node the ports of Services are (`nodePortAddresses` of kube-proxy; spec network.md 3.3, 3.7).

use davit_net::route::Netlink;
use davit_netplan::{Network, NetworkError};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// The word that stands for the addresses by which a node is known.
const PRIMARY: &str = "primary";

/// Which addresses of a node have the ports of Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Those by which it is known in the cluster (`InternalIP`).
    #[default]
    Primary,
    /// All its addresses in these ranges, but those of the loopback network.
    Within(Vec<Network>),
}

/// Words that name no addresses of nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodePortAddressesError {
    /// The word allows for no other beside it.
    #[error("`primary` stands alone")]
    NotAlone,
    /// It is neither the word nor a range.
    #[error("{word:?}: expected `primary` or ranges ({error})")]
    NoRange {
        /// What was given.
        word: String,
        /// Why it is no range.
        error: NetworkError,
    },
}

impl NodePortAddresses {
    /// As kube-proxy takes it: `primary`, or ranges. Nothing is `primary`, as in its mode `nftables`.
    ///
    /// # Errors
    /// What is neither.
    pub fn parse(words: &[String]) -> Result<Self, NodePortAddressesError> {
        match words {
            [] => return Ok(Self::Primary),
            [word] if word == PRIMARY => return Ok(Self::Primary),
            words if words.iter().any(|word| word == PRIMARY) => {
                return Err(NodePortAddressesError::NotAlone);
            }
            _ => {}
        }
        let ranges = words.iter().map(|word| {
            let no_range = |error| NodePortAddressesError::NoRange {
                word: word.clone(),
                error,
            };
            word.parse().map_err(no_range)
        });
        ranges.collect::<Result<_, _>>().map(Self::Within)
    }

    /// The addresses of a node that is known by these. Blocks.
    pub(crate) fn of(&self, known: BTreeSet<IpAddr>) -> io::Result<BTreeSet<IpAddr>> {
        match self {
            Self::Primary => Ok(known),
            Self::Within(ranges) => {
                let all = Netlink::open()?.all_addresses()?;
                Ok(within(ranges, all.into_iter().map(|(address, _)| address)))
            }
        }
    }
}

fn within(ranges: &[Network], all: impl Iterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
    // an address of IPv6 that is good on one link only is nobody's port
    let is_on_link =
        |address: &IpAddr| matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.filter(|address| !address.is_loopback() && !is_on_link(address))
        .filter(|address| ranges.iter().any(|range| range.contains(*address)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_ranges() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            NodePortAddresses::parse(&words)
        };
        assert_eq!(parse(&[]), Ok(NodePortAddresses::Primary));
        assert_eq!(parse(&["primary"]), Ok(NodePortAddresses::Primary));
        let both = parse(&["primary", "10.0.0.0/8"]);
        assert_eq!(both, Err(NodePortAddressesError::NotAlone));
        for wrong in ["10.0.0.1", "fd00::/129", "localhost"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        let Ok(NodePortAddresses::Within(ranges)) = parse(&["0.0.0.0/0"]) else {
            panic!("a range expected")
        };
        let all = ["127.0.0.1", "192.0.2.1", "::1", "10.244.0.1"];
        let all = || all.iter().map(|text| text.parse().unwrap());
        let of = |text: &str| text.parse::<IpAddr>().unwrap();
        let expected = [of("10.244.0.1"), of("192.0.2.1")].into();
        assert_eq!(within(&ranges, all()), expected);
        let one = within(&["192.0.2.0/24".parse().unwrap()], all());
        assert_eq!(one, [of("192.0.2.1")].into());
        let six = ["fe80::1", "::1", "2001:db8::7"].map(of);
        let found = within(&["::/0".parse().unwrap()], six.into_iter());
        assert_eq!(found, [of("2001:db8::7")].into());
    }
}
