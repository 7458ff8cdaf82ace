//! Ranges of addresses.

use crate::Family;
use crate::family::number;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses of one family, as `10.244.0.0/16` and `fd00:10:244::/56` write them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// The address that a text of an object means. Old objects have leading zeros, which say nothing (they are not octal), and
/// addresses of IPv4 as those of IPv6; new ones may not (KEP-4858).
pub(crate) fn address_of(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let dotted = match text.rsplit_once(':') {
        Some((before, address)) if before.eq_ignore_ascii_case("::ffff") => address,
        Some(_) => {
            return text
                .parse::<Ipv6Addr>()
                .ok()
                .map(|address| address.to_canonical());
        }
        None => text,
    };
    let mut octets = [0_u8; 4];
    let mut parts = dotted.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = part.bytes().all(|digit| digit.is_ascii_digit());
        *octet = part.parse().ok().filter(|_| digits)?;
    }
    parts
        .next()
        .is_none()
        .then(|| Ipv4Addr::from(octets).into())
}

/// A text that is no range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkError;

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a range of the form ADDRESS/BITS")
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// The range of `bits` bits that `address` is in; `None` for more bits than an address has.
    #[must_use]
    pub fn around(address: impl Into<IpAddr>, bits: u8) -> Option<Self> {
        let address = address.into();
        let family = Family::of(address);
        if bits > family.bits() {
            return None;
        }
        let first = family.address(number(address) & mask_of(family, bits));
        Some(Self { first, bits })
    }

    /// All addresses of a family.
    pub(crate) fn all_of(family: Family) -> Self {
        Self {
            first: family.unspecified(),
            bits: 0,
        }
    }

    /// Of which family its addresses are.
    #[must_use]
    pub fn family(self) -> Family {
        Family::of(self.first)
    }

    /// The first address: the network's own.
    #[must_use]
    pub fn first(self) -> IpAddr {
        self.first
    }

    /// The second address: what a node's pods have as their next hop.
    #[must_use]
    pub fn gateway(self) -> IpAddr {
        self.family().address(number(self.first).saturating_add(1))
    }

    /// The last address: in IPv4 the broadcast.
    #[must_use]
    pub fn last(self) -> IpAddr {
        let family = self.family();
        let free = number(family.highest()) & !mask_of(family, self.bits);
        family.address(number(self.first) | free)
    }

    /// The bits that all addresses share.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The mask of these bits.
    #[must_use]
    pub fn mask(self) -> IpAddr {
        let family = self.family();
        family.address(mask_of(family, self.bits))
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(self, address: impl Into<IpAddr>) -> bool {
        Self::around(address, self.bits) == Some(self)
    }

    /// Whether some address is in both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }

    /// The ranges that are left of it without others.
    #[must_use]
    pub fn without(self, others: &[Self]) -> Vec<Self> {
        let others: Vec<Self> = others
            .iter()
            .copied()
            .filter(|other| self.overlaps(*other))
            .collect();
        if others.is_empty() {
            return vec![self];
        }
        if others.iter().any(|other| other.bits <= self.bits) {
            return Vec::new();
        }
        let halves = [0, 1]
            .into_iter()
            .filter_map(|half| self.part(self.bits + 1, half));
        halves.flat_map(|half| half.without(&others)).collect()
    }

    /// The `index`-th of its parts of so many bits; `None` when it has no such part.
    #[must_use]
    pub fn part(self, bits: u8, index: u32) -> Option<Self> {
        let family = self.family();
        let more = u32::from(bits.checked_sub(self.bits)?);
        // with more bits than an index has every index is a part
        let is_part = 1_u64
            .checked_shl(more)
            .is_none_or(|parts| u64::from(index) < parts);
        if bits > family.bits() || !is_part {
            return None;
        }
        let offset = u128::from(index).checked_shl(u32::from(family.bits() - bits));
        let first = number(self.first) + offset.unwrap_or(0);
        Some(Self {
            first: family.address(first),
            bits,
        })
    }
}

/// The mask as a number.
fn mask_of(family: Family, bits: u8) -> u128 {
    let full = number(family.highest());
    let free = u32::from(family.bits().saturating_sub(bits));
    full & u128::MAX.checked_shl(free).unwrap_or(0)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.bits)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Bits of the address beyond the range are left out, as older objects have them.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, bits) = text.trim().split_once('/').ok_or(NetworkError)?;
        let address = address_of(address).ok_or(NetworkError)?;
        let bits = bits.parse().map_err(|_| NetworkError)?;
        Self::around(address, bits).ok_or(NetworkError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Network {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_as_old_objects_have_them() {
        let ten = Some(Ipv4Addr::new(10, 0, 0, 1).into());
        for text in ["10.0.0.1", "010.000.0.01", " 10.0.0.1\n", "::ffff:10.0.0.1"] {
            assert_eq!(address_of(text), ten, "{text}");
        }
        for wrong in [
            "",
            "10.0.0",
            "10.0.0.1.2",
            "10.0.0.256",
            "+1.0.0.0",
            "a.b.c.d",
            "fd00::g",
            "1::ffff::10.0.0.1",
        ] {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
        assert_eq!(net("010.1.0.0/016").to_string(), "10.1.0.0/16");
        assert_eq!(address_of(" FD00:0::1 "), "fd00::1".parse().ok());
        assert_eq!(address_of("::1"), "::1".parse().ok());
    }

    #[test]
    fn what_is_left_of_a_range() {
        let without = |range: &str, others: &[&str]| {
            let others: Vec<Network> = others.iter().map(|text| net(text)).collect();
            let left = net(range).without(&others);
            left.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(without("10.0.0.0/30", &[]), ["10.0.0.0/30"]);
        assert_eq!(without("10.0.0.0/30", &["10.1.0.0/30"]), ["10.0.0.0/30"]);
        assert_eq!(
            without("10.0.0.0/30", &["10.0.0.1/32"]),
            ["10.0.0.0/32", "10.0.0.2/31"]
        );
        assert_eq!(without("10.0.0.0/30", &["10.0.0.0/29"]), [""; 0]);
        assert_eq!(without("0.0.0.0/0", &["128.0.0.0/1"]), ["0.0.0.0/1"]);
    }

    #[test]
    fn ranges() {
        let pods = net("10.244.0.0/16");
        assert_eq!(pods.gateway().to_string(), "10.244.0.1");
        assert_eq!(pods.last().to_string(), "10.244.255.255");
        assert!(pods.contains(Ipv4Addr::new(10, 244, 9, 1)));
        assert!(!pods.contains(Ipv4Addr::new(10, 245, 0, 0)));
        assert!(pods.overlaps(net("10.0.0.0/8")) && net("10.0.0.0/8").overlaps(pods));
        assert!(!pods.overlaps(net("10.245.0.0/16")));
        assert_eq!(pods.part(24, 3), Some(net("10.244.3.0/24")));
        assert_eq!(pods.part(24, 256), None);
        assert_eq!(pods.part(8, 0), None);
        assert_eq!(net("0.0.0.0/0").part(32, 7), Some(net("0.0.0.7/32")));
        assert!(net("0.0.0.0/0").contains(Ipv4Addr::BROADCAST));
        assert_eq!(net(" 10.244.3.9/24 ").to_string(), "10.244.3.0/24");
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "a/8"] {
            assert_eq!(wrong.parse::<Network>(), Err(NetworkError));
        }
    }

    #[test]
    fn ranges_of_ipv6() {
        let pods = net("fd00:10:244::/56");
        assert_eq!(pods.gateway().to_string(), "fd00:10:244::1");
        assert_eq!(
            pods.last().to_string(),
            "fd00:10:244:ff:ffff:ffff:ffff:ffff"
        );
        assert_eq!(pods.mask().to_string(), "ffff:ffff:ffff:ff00::");
        assert_eq!(pods.part(64, 3), Some(net("fd00:10:244:3::/64")));
        assert_eq!(pods.part(64, 256), None);
        assert_eq!(pods.part(129, 0), None);
        assert_eq!(
            net("::/0").part(128, u32::MAX).map(Network::bits),
            Some(128)
        );
        assert!(pods.contains("fd00:10:244:9::1".parse::<IpAddr>().unwrap()));
        assert!(!pods.contains(Ipv4Addr::new(10, 244, 0, 1)));
        // no address is of both families
        assert!(!net("::/0").overlaps(net("0.0.0.0/0")));
        assert!(net("::/0").overlaps(pods) && net("fd00::1/128").overlaps(Family::V6.everything()));
    }
}
