//! The ranges from which Services get addresses and ports.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

/// The addresses of Services (`--service-cluster-ip-range` of kube-apiserver), an IPv4 range of 8 to 2²⁰ addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange {
    first: u32,
    bits: u8,
}

impl Default for ServiceRange {
    /// 10.96.0.0/16
    fn default() -> Self {
        Self {
            first: u32::from_be_bytes([10, 96, 0, 0]),
            bits: 16,
        }
    }
}

impl ServiceRange {
    /// The address of the Service `kubernetes`.
    pub fn kubernetes(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 1)
    }

    /// The address that the Service `kube-dns` has by convention: the tenth, or the last one of a small range.
    pub fn dns(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first + 10.min(self.size() - 2))
    }

    /// The range of a ServiceCIDR, whatever its size; none for IPv6.
    pub fn of_cidr(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let (address, bits) = (address.parse::<Ipv4Addr>().ok()?, bits.parse().ok()?);
        // what is larger is larger than all that is private
        let mask = match bits {
            8..=32 => u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0),
            _ => return None,
        };
        let first = u32::from(address) & mask;
        Some(Self { first, bits })
    }

    fn size(self) -> u32 {
        1 << (32 - self.bits)
    }

    /// The addresses that Services may have: without that of the network and that of all its hosts.
    pub fn addresses(self) -> Range<u32> {
        let last = self.first + (self.size() - 1);
        self.first.saturating_add(1).min(last)..last
    }

    /// Where those begin that are given to whoever does not ask for a particular one; the lower ones only when these are
    /// used up (KEP-3070).
    pub fn dynamic(self) -> u32 {
        let all = self.addresses();
        match all.end - all.start {
            0..16 => all.start,
            hosts => all.start + (hosts / 16).clamp(16, 256).min(hosts),
        }
    }

    /// Whether a Service may have this address.
    pub fn contains(self, address: u32) -> bool {
        self.addresses().contains(&address)
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.bits)
    }
}

/// The text is no range of Services' addresses or ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// Addresses.
    #[error("expected an IPv4 range such as 10.96.0.0/16 (davit gives Services no IPv6 addresses)")]
    Addresses,
    /// The range has too many addresses or too few.
    #[error("a range of Services has 12 to 29 bits, this one has {0}")]
    Size(u8),
    /// Ports.
    #[error("expected a range of ports such as 30000-32767 or 30000+2767")]
    Ports,
}

impl FromStr for ServiceRange {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, bits) = text.split_once('/').ok_or(ServiceRangeError::Addresses)?;
        let address: Ipv4Addr = address.parse().map_err(|_| ServiceRangeError::Addresses)?;
        let bits: u8 = bits.parse().map_err(|_| ServiceRangeError::Addresses)?;
        if !(12..=29).contains(&bits) {
            return Err(ServiceRangeError::Size(bits));
        }
        let first = u32::from(address) & (u32::MAX << (32 - bits));
        Ok(Self { first, bits })
    }
}

/// The ports of Services on nodes (`--service-node-port-range`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePorts(RangeInclusive<u16>);

impl Default for NodePorts {
    /// 30000-32767
    fn default() -> Self {
        Self(30000..=32767)
    }
}

impl NodePorts {
    /// The ports, the lowest and the highest among them.
    pub fn all(&self) -> &RangeInclusive<u16> {
        &self.0
    }

    /// Lower ports are left to those who ask for a particular one (KEP-3668).
    pub fn random_from(&self) -> u16 {
        let size = self.0.end() - self.0.start();
        let lower = match size.saturating_add(1) {
            0..=16 => 0,
            size => (size / 32).clamp(16, 128),
        };
        self.0.start() + lower.min(size)
    }
}

impl fmt::Display for NodePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

impl FromStr for NodePorts {
    type Err = ServiceRangeError;

    /// `FIRST-LAST`, `FIRST+MORE` or one port.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        let (first, last) = match (text.split_once('-'), text.split_once('+')) {
            (Some((first, last)), _) => (port(first), port(last)),
            (None, Some((first, more))) => {
                let first = port(first);
                let last = first.zip(more.parse().ok());
                (
                    first,
                    last.and_then(|(first, more)| first.checked_add(more)),
                )
            }
            (None, None) => (port(text), port(text)),
        };
        match first.zip(last) {
            Some((first, last)) if first <= last => Ok(Self(first..=last)),
            _ => Err(ServiceRangeError::Ports),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_addresses() {
        let range = |text: &str| text.parse::<ServiceRange>();
        let usual = ServiceRange::default();
        assert_eq!(range(&usual.to_string()), Ok(usual));
        assert_eq!(usual.kubernetes().to_string(), "10.96.0.1");
        assert_eq!(usual.dns().to_string(), "10.96.0.10");
        let small = range("192.168.7.9/29").unwrap();
        assert_eq!(small.to_string(), "192.168.7.8/29");
        assert_eq!(small.dns().to_string(), "192.168.7.14");
        let lower = |text: &str| {
            let range = ServiceRange::of_cidr(text).unwrap();
            range.dynamic() - range.addresses().start
        };
        let bands = [
            "10.0.0.0/29",
            "10.0.0.0/25",
            "10.0.0.0/24",
            "10.0.0.0/20",
            "10.0.0.0/16",
        ];
        assert_eq!(bands.map(lower), [0, 16, 16, 255, 256]);
        for (text, addresses) in [
            ("10.0.0.0/8", (1 << 24) - 2),
            ("10.0.0.0/30", 2),
            ("10.0.0.0/31", 0),
            ("255.255.255.255/32", 0),
        ] {
            let range = ServiceRange::of_cidr(text).unwrap().addresses();
            assert_eq!(range.end - range.start, addresses, "{text}");
        }
        assert_eq!(ServiceRange::of_cidr("fd00::/112"), None);
        assert_eq!(range("10.0.0.0/30"), Err(ServiceRangeError::Size(30)));
        for wrong in [
            "",
            "10.0.0.0",
            "fd00::/112",
            "10.0.0.0/24,fd00::/112",
            "x/16",
            "1.2.3.4/-1",
        ] {
            assert_eq!(range(wrong), Err(ServiceRangeError::Addresses), "{wrong}");
        }
    }

    #[test]
    fn ranges_of_ports() {
        let ports = |text: &str| text.parse::<NodePorts>().map(|ports| ports.to_string());
        assert_eq!(ports("80-90").as_deref(), Ok("80-90"));
        assert_eq!(ports("80+10").as_deref(), Ok("80-90"));
        assert_eq!(ports("80").as_deref(), Ok("80-80"));
        for wrong in ["", "0-3", "9-8", "65535+1", "a-b", "1-70000"] {
            assert_eq!(ports(wrong), Err(ServiceRangeError::Ports), "{wrong}");
        }
    }

    #[test]
    fn lower_ports_are_asked_for() {
        let from = |text: &str| text.parse::<NodePorts>().unwrap().random_from();
        assert_eq!(from("30000-32767"), 30086);
        assert_eq!(from("30000-30015"), 30000);
        assert_eq!(from("30000-30016"), 30016);
        assert_eq!(from("80"), 80);
        assert_eq!(from("1-65535"), 129);
    }
}
