//! Ranges of IPv4 addresses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A range of IPv4 addresses, as `10.244.0.0/16` writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    first: u32,
    bits: u8,
}

/// The IPv4 address that a text of an object means. Old objects have leading zeros, which say nothing (they are not octal), and
/// addresses of IPv4 as those of IPv6; new ones may not (KEP-4858).
pub(crate) fn address_of(text: &str) -> Option<Ipv4Addr> {
    let text = text.trim();
    let text = match text.rsplit_once(':') {
        Some((before, address)) if before.eq_ignore_ascii_case("::ffff") => address,
        _ => text,
    };
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = part.bytes().all(|digit| digit.is_ascii_digit());
        *octet = part.parse().ok().filter(|_| digits)?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// A text that is no range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkError;

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an IPv4 range of the form ADDRESS/BITS")
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// The range of `bits` bits that `address` is in; `None` above 32 bits.
    #[must_use]
    pub fn around(address: Ipv4Addr, bits: u8) -> Option<Self> {
        if bits > 32 {
            return None;
        }
        let first = u32::from(address) & mask_of(bits);
        Some(Self { first, bits })
    }

    /// The first address: the network's own.
    #[must_use]
    pub fn first(self) -> Ipv4Addr {
        self.first.into()
    }

    /// The second address: what a node's pods have as their next hop.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        self.first.saturating_add(1).into()
    }

    /// The last address: the broadcast.
    #[must_use]
    pub fn last(self) -> Ipv4Addr {
        (self.first | !mask_of(self.bits)).into()
    }

    /// The bits that all addresses share.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.bits
    }

    /// The mask of these bits.
    #[must_use]
    pub fn mask(self) -> Ipv4Addr {
        mask_of(self.bits).into()
    }

    /// Whether an address is in it.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask_of(self.bits) == self.first
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
        let parts = 1_u64 << bits.checked_sub(self.bits)?;
        if bits > 32 || u64::from(index) >= parts {
            return None;
        }
        let size = 1_u64 << (32 - bits);
        let first = u64::from(self.first) + u64::from(index) * size;
        Some(Self {
            first: u32::try_from(first).ok()?,
            bits,
        })
    }
}

fn mask_of(bits: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(bits.min(32)))
        .unwrap_or(0)
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
        let ten = Some(Ipv4Addr::new(10, 0, 0, 1));
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
            "::1",
            "1::ffff:10.0.0.1",
        ] {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
        assert_eq!(net("010.1.0.0/016").to_string(), "10.1.0.0/16");
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
        assert_eq!(pods.gateway(), Ipv4Addr::new(10, 244, 0, 1));
        assert_eq!(pods.last(), Ipv4Addr::new(10, 244, 255, 255));
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
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "fd00::/64", "a/8"] {
            assert_eq!(wrong.parse::<Network>(), Err(NetworkError));
        }
    }
}
