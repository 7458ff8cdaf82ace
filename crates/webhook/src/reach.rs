//! To which addresses the server connects when objects name them.
//!
//! Endpoints, slices, pods and nodes say where something listens, and more people may write them
//! than may use what the API server's own machine reaches. What listens on loopback there, the
//! link's neighbours and the metadata of a cloud are for nobody else
//! (<https://github.com/kubernetes/kubernetes/issues/101493>). The very address that was judged is
//! dialled: a name is resolved once.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

/// Where clouds tell machines about themselves, besides the link-local address that most use.
const METADATA: [IpAddr; 7] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// The words with which Kubernetes refuses an address.
const REFUSED: &str = "address not allowed";

/// What of others may be on this machine's loopback addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loopback {
    /// Services and pods: for tests. Whoever may write endpoints, or their names, then reaches what
    /// listens for this machine only.
    pub endpoints: bool,
    /// The agents of nodes, as they are where the cluster is this machine. They are known by their
    /// certificates.
    pub nodes: bool,
}

impl Loopback {
    /// Where pods and services may be, and what else listens on nodes.
    pub fn of_endpoints(self) -> DialPolicy {
        DialPolicy {
            loopback: self.endpoints,
        }
    }

    /// Where the agents of nodes may be.
    pub fn of_nodes(self) -> DialPolicy {
        DialPolicy {
            loopback: self.nodes,
        }
    }
}

/// Which addresses may be connected to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DialPolicy {
    /// Loopback, too.
    pub(crate) loopback: bool,
}

impl DialPolicy {
    /// Whether the address may be connected to.
    pub fn permits(self, address: IpAddr) -> bool {
        let address = embedded(address);
        if address.is_loopback() {
            return self.loopback;
        }
        let local = match address {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
            IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified(),
        };
        !(local || address.is_multicast() || METADATA.contains(&address))
    }

    /// The addresses of a host, of which each must be permitted.
    ///
    /// # Errors
    /// When the name cannot be resolved or leads to where nobody is to be led.
    pub async fn resolve(self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        if found.iter().all(|address| self.permits(address.ip())) {
            return Ok(found);
        }
        Err(refusal())
    }

    /// Connects to the first address of a host that answers.
    ///
    /// # Errors
    /// As [`DialPolicy::resolve`], and when none answers.
    pub async fn connect(self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses = self.resolve(host, port).await?;
        TcpStream::connect(addresses.as_slice()).await
    }
}

/// The error that refuses an address.
pub fn refusal() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, REFUSED)
}

/// Whether an error is the refusal of an address.
pub fn is_refusal(error: &io::Error) -> bool {
    let text = error.get_ref().map(ToString::to_string);
    error.kind() == io::ErrorKind::PermissionDenied && text.as_deref() == Some(REFUSED)
}

/// The IPv4 address that an IPv6 address stands for: mapped, compatible (RFC 4291), translated
/// (RFC 6052, and for use within a network RFC 8215) or behind 6to4 (RFC 3056).
fn embedded(address: IpAddr) -> IpAddr {
    let IpAddr::V6(ip) = address else {
        return address;
    };
    let tail = |ip: Ipv6Addr| {
        let [.., a, b, c, d] = ip.octets();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => tail(ip),
        // whatever the length of the prefix, the operator's own: that of 96 bits is usual
        [0x64, 0xff9b, 1, ..] => tail(ip),
        [0x2002, high, low, ..] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: [&str; 29] = [
        "0.0.0.0",
        "0.1.2.3",
        "169.254.1.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.1.2.3",
        "255.255.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "::",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "ff05::2",
        "fd00:ec2::254",
        "::ffff:0.0.0.0",
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "::ffff:224.0.0.1",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "64:ff9b:1::169.254.169.254",
        "64:ff9b:1:fffe::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "2002:6464:64c8::",
        "64:ff9b::100.100.100.200",
    ];
    const LOOPBACK: [&str; 8] = [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b:1::127.0.0.1",
        "2002:7f00:1::1",
    ];

    #[test]
    fn only_what_others_reach_too_is_reached() {
        let permits = |loopback, text: &str| DialPolicy { loopback }.permits(text.parse().unwrap());
        for text in NEVER {
            assert!(!permits(false, text) && !permits(true, text), "{text}");
        }
        for text in LOOPBACK {
            assert!(!permits(false, text) && permits(true, text), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.0.2.2",
            "100.64.0.1",
            "fd00::2",
            "2001:db8::1",
        ] {
            assert!(permits(false, text), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_home_is_refused_as_a_whole() {
        for host in [
            "localhost",
            "127.1",
            "2130706433",
            "0x7f.1",
            "::ffff:127.0.0.1",
        ] {
            let error = DialPolicy::default().connect(host, 1).await.unwrap_err();
            let unknown = error.kind() != io::ErrorKind::ConnectionRefused;
            assert!(is_refusal(&error) || unknown, "{host}: {error}");
        }
        let error = DialPolicy::default()
            .connect("localhost", 1)
            .await
            .unwrap_err();
        assert!(is_refusal(&error), "{error}");
    }
}
