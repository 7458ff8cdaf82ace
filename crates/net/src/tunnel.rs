//! Tunnels between machines (VXLAN, RFC 7348) without learning: who is at the other ends is entered.

use crate::message::{Message, attribute, name, number16, number32};
use crate::route::{
    IFLA_INFO_DATA, IFLA_INFO_KIND, LINK_HEADER, Link, Netlink, address_of, family, link_header,
    octets, unless,
};
use crate::socket::{DUMP, NEW, REPLACE, REQUEST};
use nix::libc;
use std::io;
use std::net::IpAddr;

// linux/if_link.h
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const KIND: &str = "vxlan";

// linux/neighbour.h
const NEIGHBOUR_HEADER: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
/// The entry is of the device itself, not of a bridge that it is a port of.
const NTF_SELF: u8 = 2;

/// The address of a device on its link.
pub type LinkAddress = [u8; 6];

/// A device that packets go by to other machines, inside of packets of UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanTunnel {
    /// The number of the network (VNI), 24 bits.
    pub number: u32,
    /// Where all of its machines receive.
    pub port: u16,
    /// This machine's address.
    pub local: IpAddr,
    /// The device's own address.
    pub at: LinkAddress,
}

/// Who is at the other end: what it is called on the link, and an address.
pub type FarEnd = (LinkAddress, IpAddr);

/// Which of the kernel's two tables of neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbours {
    /// What routers are called on the link.
    Routers,
    /// Which machine has the end of that name (the forwarding database).
    Machines,
}

/// An `ndmsg`.
fn neighbour_header(family: u8, link: Link, flags: u8) -> Vec<u8> {
    let mut header = vec![family, 0, 0, 0];
    header.extend(link.index.to_ne_bytes());
    header.extend(NUD_PERMANENT.to_ne_bytes());
    header.extend([flags, 0]);
    header
}

impl Neighbours {
    fn family(self, address: IpAddr) -> u8 {
        match self {
            Self::Routers => family(address),
            // 7
            Self::Machines => u8::try_from(libc::AF_BRIDGE).unwrap_or_default(),
        }
    }

    fn message(self, kind: u16, flags: u16, link: Link, (at, address): FarEnd) -> Message {
        let own = match self {
            Self::Routers => 0,
            Self::Machines => NTF_SELF,
        };
        let header = neighbour_header(self.family(address), link, own);
        let mut message = Message::new(kind, flags, &header);
        message.put(NDA_DST, &octets(address)).put(NDA_LLADDR, &at);
        message
    }
}

fn read_neighbour(body: &[u8], link: Link) -> Option<FarEnd> {
    let rest = body.get(NEIGHBOUR_HEADER..)?;
    let permanent = number16(body, 8)? & NUD_PERMANENT != 0;
    if number32(body, 4)? != link.index || !permanent {
        return None;
    }
    let at = attribute(rest, NDA_LLADDR)?.try_into().ok()?;
    Some((at, attribute(rest, NDA_DST).and_then(address_of)?))
}

fn read_tunnel(body: &[u8]) -> Option<VxlanTunnel> {
    let rest = body.get(LINK_HEADER..)?;
    let info = attribute(rest, libc::IFLA_LINKINFO)?;
    let data = attribute(info, IFLA_INFO_DATA)?;
    let is_ours = attribute(info, IFLA_INFO_KIND).map(name)? == KIND
        && attribute(data, IFLA_VXLAN_LEARNING) == Some(&[0]);
    let local = attribute(data, IFLA_VXLAN_LOCAL).or(attribute(data, IFLA_VXLAN_LOCAL6));
    let port: [u8; 2] = attribute(data, IFLA_VXLAN_PORT)?.try_into().ok()?;
    is_ours.then_some(VxlanTunnel {
        number: number32(attribute(data, IFLA_VXLAN_ID)?, 0)?,
        port: u16::from_be_bytes(port),
        local: address_of(local?)?,
        at: attribute(rest, libc::IFLA_ADDRESS)?.try_into().ok()?,
    })
}

impl Netlink {
    /// Makes a tunnel, which is not up.
    ///
    /// # Errors
    /// What the kernel says: `AlreadyExists` when a device has the name, or the number at this port; `Unsupported` when it
    /// has no VXLAN.
    pub fn add_tunnel(&mut self, called: &str, tunnel: &VxlanTunnel, mtu: u32) -> io::Result<()> {
        let local = match tunnel.local {
            IpAddr::V4(_) => IFLA_VXLAN_LOCAL,
            IpAddr::V6(_) => IFLA_VXLAN_LOCAL6,
        };
        let mut message = Message::new(libc::RTM_NEWLINK, REQUEST | NEW, &link_header(0, 0));
        message
            .put_name(libc::IFLA_IFNAME, called)
            .put(libc::IFLA_MTU, &mtu.to_ne_bytes())
            .put(libc::IFLA_ADDRESS, &tunnel.at)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.put_name(IFLA_INFO_KIND, KIND)
                    .nest(IFLA_INFO_DATA, |data| {
                        data.put(IFLA_VXLAN_ID, &tunnel.number.to_ne_bytes())
                            .put(local, &octets(tunnel.local))
                            .put(IFLA_VXLAN_LEARNING, &[0])
                            .put(IFLA_VXLAN_PORT, &tunnel.port.to_be_bytes());
                    });
            });
        self.socket.ask(&message).map(drop)
    }

    /// The tunnel of this name; `None` when there is no device of the name, or one of another kind.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn tunnel(&mut self, called: &str) -> io::Result<Option<VxlanTunnel>> {
        let mut message = Message::new(libc::RTM_GETLINK, REQUEST, &link_header(0, 0));
        message.put_name(libc::IFLA_IFNAME, called);
        match self.socket.ask(&message) {
            Ok(found) => Ok(found.first().and_then(|body| read_tunnel(body))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets how large a device's packets may be, in bytes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_mtu(&mut self, link: &Link, mtu: u32) -> io::Result<()> {
        let header = link_header(link.index, 0);
        let mut message = Message::new(libc::RTM_SETLINK, REQUEST, &header);
        message.put(libc::IFLA_MTU, &mtu.to_ne_bytes());
        self.socket.ask(&message).map(drop)
    }

    /// The other ends of a tunnel that were entered for good, of all families.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn far_ends(&mut self, link: &Link, of: Neighbours) -> io::Result<Vec<FarEnd>> {
        let family = match of {
            Neighbours::Routers => libc::AF_UNSPEC,
            Neighbours::Machines => libc::AF_BRIDGE,
        };
        let mut header = vec![0; NEIGHBOUR_HEADER];
        header[0] = u8::try_from(family).unwrap_or_default();
        let found = self
            .socket
            .ask(&Message::new(libc::RTM_GETNEIGH, DUMP, &header))?;
        let ends = found.iter().filter_map(|body| read_neighbour(body, *link));
        Ok(ends.collect())
    }

    /// Enters the other end of a tunnel, in the place of another of the same name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_far_end(&mut self, link: &Link, of: Neighbours, end: FarEnd) -> io::Result<()> {
        let message = of.message(libc::RTM_NEWNEIGH, REQUEST | REPLACE, *link, end);
        self.socket.ask(&message).map(drop)
    }

    /// Takes such an entry away; whether it was there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_far_end(&mut self, link: &Link, of: Neighbours, end: FarEnd) -> io::Result<bool> {
        let message = of.message(libc::RTM_DELNEIGH, REQUEST, *link, end);
        unless(libc::ENOENT, self.socket.ask(&message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    fn alone(work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                eprintln!("skipped: no network namespace of one's own: {error}");
                return;
            }
            work();
        });
        thread.join().unwrap();
    }

    #[test]
    fn tunnels_are_made_and_read_back() {
        alone(|| {
            let mut netlink = Netlink::open().unwrap();
            for (called, local, far) in [
                ("t4", "192.0.2.10", "192.0.3.11"),
                ("t6", "2001:db8::10", "2001:db8:1::11"),
            ] {
                let tunnel = VxlanTunnel {
                    number: 7,
                    port: 8472,
                    local: local.parse().unwrap(),
                    at: [0xda, 4, 192, 0, 2, 10],
                };
                let added = netlink.add_tunnel(called, &tunnel, 1400);
                if matches!(&added, Err(error) if error.kind() == io::ErrorKind::Unsupported) {
                    eprintln!("skipped: no VXLAN");
                    return;
                }
                added.unwrap();
                assert_eq!(netlink.tunnel(called).unwrap(), Some(tunnel));
                let again = netlink.add_tunnel("t7", &tunnel, 1400).unwrap_err();
                assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
                let link = netlink.link(called).unwrap().unwrap();
                netlink.set_up(&link).unwrap();
                netlink.set_mtu(&link, 1300).unwrap();
                let links = netlink.links().unwrap();
                let found = links.iter().find(|found| found.link == link).unwrap();
                assert_eq!(found.mtu, 1300);
                let end = ([0xda, 4, 192, 0, 3, 11], far.parse().unwrap());
                for of in [Neighbours::Routers, Neighbours::Machines] {
                    assert_eq!(netlink.far_ends(&link, of).unwrap(), []);
                    netlink.set_far_end(&link, of, end).unwrap();
                    netlink.set_far_end(&link, of, end).unwrap();
                    assert_eq!(netlink.far_ends(&link, of).unwrap(), [end]);
                    assert!(netlink.remove_far_end(&link, of, end).unwrap());
                    assert!(!netlink.remove_far_end(&link, of, end).unwrap());
                    assert_eq!(netlink.far_ends(&link, of).unwrap(), []);
                }
            }
            assert_eq!(netlink.tunnel("lo").unwrap(), None);
            assert_eq!(netlink.tunnel("none").unwrap(), None);
        });
    }
}
