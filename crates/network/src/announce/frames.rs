//! What neighbours are told of an address that has moved: gratuitous ARP (RFC 5227 3), unsolicited neighbour advertisement
//! (RFC 4861 7.2.6).

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, bind, send, socket,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ICMPV6: u8 = 58;

/// Tells all neighbours of a device that an address is there.
pub(super) fn tell(device: &str, address: IpAddr) -> io::Result<()> {
    let link = link_address(device)?;
    let Some(own) = link.addr() else {
        return Ok(());
    };
    let frame = match address {
        IpAddr::V4(address) => arp(own, address),
        IpAddr::V6(address) => advertisement(own, address),
    };
    // of no protocol: it receives nothing
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    bind(socket.as_raw_fd(), &link)?;
    send(socket.as_raw_fd(), &frame, MsgFlags::empty())?;
    Ok(())
}

/// What a device is called on its link, and where to bind to it.
fn link_address(device: &str) -> io::Result<LinkAddr> {
    let found = getifaddrs()?
        .filter(|found| found.interface_name == device)
        .filter_map(|found| found.address)
        .filter(|address| address.family() == Some(AddressFamily::Packet))
        .find_map(|address| address.as_link_addr().copied());
    found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame
}

fn arp(own: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet([0xff; 6], own, 0x0806);
    // Ethernet, IPv4, lengths of their addresses, a request
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(own);
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

fn advertisement(own: [u8; 6], address: Ipv6Addr) -> Vec<u8> {
    // a router's, unsolicited, instead of what is known
    let mut message = vec![136, 0, 0, 0, 0xa0, 0, 0, 0];
    message.extend(address.octets());
    // the address of the device on its link
    message.extend([2, 1]);
    message.extend(own);
    let length = u16::try_from(message.len()).unwrap_or_default();
    let mut sum = u32::from(length) + u32::from(ICMPV6);
    let words = [&address.octets()[..], &ALL_NODES.octets(), &message].concat();
    for two in words.chunks(2) {
        sum += u32::from(two[0]) << 8 | u32::from(two[1]);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // it fits now
    let checksum = !u16::try_from(sum).unwrap_or_default();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = ethernet([0x33, 0x33, 0, 0, 0, 1], own, 0x86dd);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neighbours_read() {
        let own = [2, 0, 0, 0, 0, 7];
        let arp = arp(own, Ipv4Addr::new(192, 0, 2, 200));
        assert_eq!(arp.len(), 42);
        assert_eq!(
            arp[28..32],
            arp[38..42],
            "of whom it tells, and whom it asks for"
        );
        let six: Ipv6Addr = "2001:db8::c8".parse().unwrap();
        let frame = advertisement(own, six);
        assert_eq!(frame.len(), 14 + 40 + 32);
        // The sum of what it covers, itself included, is all ones.
        let message = &frame[54..];
        let covered = [&six.octets()[..], &ALL_NODES.octets(), message].concat();
        let mut sum: u32 = 32 + u32::from(ICMPV6);
        for two in covered.chunks(2) {
            sum += u32::from(two[0]) << 8 | u32::from(two[1]);
        }
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
