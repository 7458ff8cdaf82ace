//! Addresses of this machine, for what listens without having been told where.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The address of this machine that packets to other networks leave from; the loopback address when there is no way out.
pub fn default_address() -> IpAddr {
    outgoing_address(Ipv4Addr::UNSPECIFIED.into()).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Such an address of IPv6; none when there is no way out.
pub fn default_ipv6_address() -> Option<IpAddr> {
    outgoing_address(Ipv6Addr::UNSPECIFIED.into())
}

/// Whether a device of this machine has the address, as far as it can be listened at.
pub fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The address that packets leave from, of the family of the one that stands for all; none when there is no way out.
pub fn outgoing_address(any: IpAddr) -> Option<IpAddr> {
    // Connecting a datagram socket sends nothing, it only chooses the route. The addresses are those for documentation.
    let there: IpAddr = match any {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket
            .connect((there, 9))
            .and_then(|()| socket.local_addr())
    });
    let address = routed.ok()?.ip();
    let is_on_link = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    (!address.is_loopback() && !is_on_link).then_some(address)
}
