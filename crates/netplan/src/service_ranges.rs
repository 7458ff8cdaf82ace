//! The ranges from which Services get addresses and ports.

use crate::family::number;
use crate::{Family, Network};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

/// Fewer bits are more addresses than all that are private (IPv4), or than Kubernetes takes (IPv6).
const LEAST_BITS: [(Family, u8); 2] = [(Family::V4, 8), (Family::V6, 64)];

/// A range of addresses of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange(Network);

impl Default for ServiceRange {
    /// 10.96.0.0/16
    fn default() -> Self {
        let first = Ipv4Addr::new(10, 96, 0, 0);
        Self(Network::around(first, 16).unwrap_or(Family::V4.everything()))
    }
}

impl ServiceRange {
    /// The address of the Service `kubernetes`.
    pub fn kubernetes(self) -> IpAddr {
        self.0.gateway()
    }

    /// The address that the Service `kube-dns` has by convention: the tenth, or the last one of a small range.
    pub fn dns(self) -> IpAddr {
        let all = self.addresses();
        let tenth = number(self.0.first()).saturating_add(10);
        self.family().address(tenth.min(all.end.saturating_sub(1)))
    }

    /// The range of a ServiceCIDR; none where it has more addresses than Services get.
    pub fn of_cidr(text: &str) -> Option<Self> {
        let range: Network = text.parse().ok()?;
        let fits = |(family, least)| family == range.family() && range.bits() >= least;
        LEAST_BITS.into_iter().any(fits).then_some(Self(range))
    }

    /// Of which family its addresses are.
    pub fn family(self) -> Family {
        self.0.family()
    }

    /// The range as a network.
    pub fn network(self) -> Network {
        self.0
    }

    /// The addresses that Services may have, as numbers: without that of the network and, in IPv4, that of all its hosts.
    pub fn addresses(self) -> Range<u128> {
        let (first, last) = (number(self.0.first()), number(self.0.last()));
        let end = match self.family() {
            Family::V4 => last,
            Family::V6 => last.saturating_add(1),
        };
        first.saturating_add(1).min(end)..end
    }

    /// Where those begin that are given to whoever does not ask for a particular one; the lower ones only when these are
    /// used up (KEP-3070).
    pub fn dynamic(self) -> u128 {
        let all = self.addresses();
        match all.end - all.start {
            0..16 => all.start,
            hosts => all.start + (hosts / 16).clamp(16, 256).min(hosts),
        }
    }

    /// Whether a Service may have this address.
    pub fn contains(self, address: IpAddr) -> bool {
        Family::of(address) == self.family() && self.addresses().contains(&number(address))
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is no range of Services' addresses or ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// Addresses.
    #[error("expected one range such as 10.96.0.0/16 or fd00:10:96::/112, or one of each family")]
    Addresses,
    /// More ranges than there are families.
    #[error("--service-cluster-ip-range must not contain more than two entries")]
    Many,
    /// Two ranges of one family.
    #[error(
        "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family"
    )]
    OneFamily,
    /// The range has too many addresses or too few.
    #[error("a range of Services has {} bits, this one has {bits}", match .family { Family::V4 => "12 to 29", Family::V6 => "64 to 125" })]
    Size {
        /// Of which family it is.
        family: Family,
        /// Its bits.
        bits: u8,
    },
    /// Ports.
    #[error("expected a range of ports such as 30000-32767 or 30000+2767")]
    Ports,
}

impl FromStr for ServiceRange {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range: Network = text.parse().map_err(|_| ServiceRangeError::Addresses)?;
        let (family, bits) = (range.family(), range.bits());
        let sizes = match family {
            Family::V4 => 12..=29,
            Family::V6 => 64..=125,
        };
        if !sizes.contains(&bits) {
            return Err(ServiceRangeError::Size { family, bits });
        }
        Ok(Self(range))
    }
}

/// The addresses of Services (`--service-cluster-ip-range` of kube-apiserver): one range, or one of each family, of which
/// the first is that of Services that do not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: ServiceRange,
    secondary: Option<ServiceRange>,
}

impl ServiceRanges {
    /// The first one.
    pub fn primary(&self) -> ServiceRange {
        self.primary
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = ServiceRange> + Clone + use<> {
        std::iter::once(self.primary).chain(self.secondary)
    }

    /// The families of Services, the first one first.
    pub fn families(&self) -> impl Iterator<Item = Family> + Clone + use<> {
        self.all().map(ServiceRange::family)
    }
}

impl fmt::Display for ServiceRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primary.fmt(f)?;
        match self.secondary {
            Some(secondary) => write!(f, ",{secondary}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ServiceRanges {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut ranges = text.split(',').map(|range| range.trim().parse());
        let primary: ServiceRange = ranges.next().ok_or(ServiceRangeError::Addresses)??;
        let secondary: Option<ServiceRange> = ranges.next().transpose()?;
        if ranges.next().is_some() {
            return Err(ServiceRangeError::Many);
        }
        if secondary.is_some_and(|other| other.family() == primary.family()) {
            return Err(ServiceRangeError::OneFamily);
        }
        Ok(Self { primary, secondary })
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
        assert_eq!(ServiceRange::of_cidr("fd00::/48"), None);
        assert_eq!(ServiceRange::of_cidr("10.0.0.0/7"), None);
        let (family, bits) = (Family::V4, 30);
        assert_eq!(
            range("10.0.0.0/30"),
            Err(ServiceRangeError::Size { family, bits })
        );
        for wrong in [
            "",
            "10.0.0.0",
            "10.0.0.0/24,fd00::/112",
            "x/16",
            "1.2.3.4/-1",
        ] {
            assert_eq!(range(wrong), Err(ServiceRangeError::Addresses), "{wrong}");
        }
    }

    #[test]
    fn ranges_of_both_families() {
        let ranges = |text: &str| text.parse::<ServiceRanges>();
        let both = ranges("fd00:10:96::/112, 10.96.0.0/16").unwrap();
        assert_eq!(both.to_string(), "fd00:10:96::/112,10.96.0.0/16");
        assert!(both.families().eq([Family::V6, Family::V4]));
        let six = both.primary();
        assert_eq!(six.kubernetes().to_string(), "fd00:10:96::1");
        assert_eq!(six.dns().to_string(), "fd00:10:96::a");
        assert!(
            six.contains("fd00:10:96::ffff".parse().unwrap()),
            "there is no broadcast"
        );
        assert!(!six.contains("fd00:10:96::".parse().unwrap()));
        assert!(!six.contains("10.96.0.1".parse().unwrap()));
        assert_eq!(six.dynamic() - six.addresses().start, 256);
        assert_eq!(ServiceRanges::default().to_string(), "10.96.0.0/16");
        for (text, error) in [
            ("10.0.0.0/16,10.1.0.0/16", ServiceRangeError::OneFamily),
            ("10.0.0.0/16,fd00::/112,fd01::/112", ServiceRangeError::Many),
            ("10.0.0.0/16,", ServiceRangeError::Addresses),
            ("", ServiceRangeError::Addresses),
        ] {
            assert_eq!(ranges(text), Err(error), "{text}");
        }
        for bits in [63, 126] {
            let family = Family::V6;
            let wrong = ranges(&format!("fd00::/{bits}"));
            assert_eq!(wrong, Err(ServiceRangeError::Size { family, bits }));
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
