//! The two families of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 or IPv6. What a node does for one it does for the other apart from it: tables, routes, plans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// That of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The one that Kubernetes calls so (`IPv4`, `IPv6`).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }

    /// What Kubernetes calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// Bits of an address.
    #[must_use]
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// Bytes of an address.
    #[must_use]
    pub fn bytes(self) -> usize {
        usize::from(self.bits() / 8)
    }

    /// The address that stands for all.
    #[must_use]
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::UNSPECIFIED.into(),
            Self::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// The range of all addresses.
    #[must_use]
    pub fn everything(self) -> crate::Network {
        crate::Network::all_of(self)
    }

    /// The highest address.
    #[must_use]
    pub fn highest(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::BROADCAST.into(),
            Self::V6 => Ipv6Addr::from(u128::MAX).into(),
        }
    }

    /// The address that is this number, or the highest one.
    #[must_use]
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Self::V6 => Ipv6Addr::from(number).into(),
        }
    }

    /// The address in these bytes; none when they are too few.
    #[must_use]
    pub fn read(self, bytes: &[u8]) -> Option<IpAddr> {
        match self {
            Self::V4 => bytes.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            Self::V6 => bytes
                .first_chunk::<16>()
                .map(|octets| IpAddr::from(*octets)),
        }
    }
}

/// The bytes of an address in network order.
#[must_use]
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// An address as a number.
#[must_use]
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses() {
        for text in [
            "0.0.0.0",
            "10.244.0.1",
            "255.255.255.255",
            "::",
            "fd00::1",
            "ffff::ffff",
        ] {
            let address: IpAddr = text.parse().unwrap();
            let family = Family::of(address);
            assert_eq!(family.address(number(address)), address);
            assert_eq!(family.read(&octets(address)), Some(address));
            assert_eq!(octets(address).len(), family.bytes());
            assert_eq!(Family::named(family.name()), Some(family));
            assert_ne!(family.other(), family);
        }
        assert_eq!(Family::V6.read(&[0; 4]), None);
        assert_eq!(Family::V4.address(1 << 40), Family::V4.highest());
    }
}
