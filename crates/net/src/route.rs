//! Links, addresses and routes: the messages of rtnetlink(7) that pods' networks take.

use crate::message::{Message, attribute, attributes, name, number32};
use crate::socket::{CREATE, DUMP, NEW, REPLACE, REQUEST, Socket};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

const ADDRESS_HEADER: usize = 8;
pub(crate) const LINK_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;

// linux/if_link.h and linux/veth.h
pub(crate) const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
/// `RTNH_F_ONLINK`
const ON_LINK: u32 = 4;

/// Flags of an address that whoever set it chose; the kernel sets the others.
const CHOSEN: u32 = libc::IFA_F_NODAD
    | libc::IFA_F_HOMEADDRESS
    | libc::IFA_F_MANAGETEMPADDR
    | libc::IFA_F_NOPREFIXROUTE
    | libc::IFA_F_MCAUTOJOIN;

/// A device of the namespace a [`Netlink`] was opened in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    pub(crate) index: u32,
}

/// An address that stays when its device moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    family: u8,
    prefix: u8,
    flags: u32,
    /// Type and value of those that say what the address is.
    attributes: Vec<(u16, Vec<u8>)>,
}

/// A pair of virtual devices, one end of which is a pod's.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The name here, at most 15 characters.
    pub name: &'a str,
    /// What people read of it in `ip link`.
    pub alias: &'a str,
    /// The name over there.
    pub peer: &'a str,
    /// Where the other end is.
    pub namespace: BorrowedFd<'a>,
    /// Largest packet, in bytes.
    pub mtu: u32,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub to: IpAddr,
    /// How many bits of `to` count.
    pub bits: u8,
    /// Through which device; with neither device nor router it leads nowhere.
    pub link: Option<Link>,
    /// By which router; without, the destination is at the other end of the link.
    pub via: Option<IpAddr>,
    /// What packets of this machine say where they come from.
    pub source: Option<IpAddr>,
    /// Who made it (`RTPROT_…`), so that one finds one's own again.
    pub protocol: u8,
    /// Of several to the same destination the one with the least is taken; 0 unless several make some.
    pub metric: u32,
    /// The router is at the other end of the link, whatever the addresses of the link say.
    pub on_link: bool,
}

/// What a device is called and how large its packets may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFacts {
    /// The device.
    pub link: Link,
    /// Its name.
    pub name: String,
    /// Its largest packet, in bytes.
    pub mtu: u32,
}

/// A connection to the kernel, for the namespace the thread is in when it is opened.
#[derive(Debug)]
pub struct Netlink {
    pub(crate) socket: Socket,
}

/// An `ifinfomsg`.
pub(crate) fn link_header(index: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for number in [index, flags, flags] {
        body.extend(number.to_ne_bytes());
    }
    body
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(crate) fn address_of(octets: &[u8]) -> Option<IpAddr> {
    match *octets {
        [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).into()),
        _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?).into()),
    }
}

pub(crate) fn family(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    // 2 or 10
    u8::try_from(family).unwrap_or_default()
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An `rtmsg` and its attributes.
fn route_message(kind: u16, flags: u16, route: &Route) -> Message {
    let at_link = route.link.is_some() && route.via.is_none();
    let scope = if at_link {
        libc::RT_SCOPE_LINK
    } else {
        libc::RT_SCOPE_UNIVERSE
    };
    let leads = if route.link.is_some() || route.via.is_some() {
        libc::RTN_UNICAST
    } else {
        libc::RTN_UNREACHABLE
    };
    let mut header = vec![
        family(route.to),
        route.bits,
        0,
        0,
        libc::RT_TABLE_MAIN,
        route.protocol,
        scope,
        leads,
    ];
    let on_link = if route.on_link { ON_LINK } else { 0 };
    header.extend(on_link.to_ne_bytes());
    let mut message = Message::new(kind, flags, &header);
    if route.bits > 0 {
        message.put(libc::RTA_DST, &octets(route.to));
    }
    if let Some(link) = route.link {
        message.put(libc::RTA_OIF, &link.index.to_ne_bytes());
    }
    if route.metric > 0 {
        message.put(libc::RTA_PRIORITY, &route.metric.to_ne_bytes());
    }
    if let Some(via) = route.via {
        message.put(libc::RTA_GATEWAY, &octets(via));
    }
    if let Some(source) = route.source {
        message.put(libc::RTA_PREFSRC, &octets(source));
    }
    message
}

/// Reads a route of the main table.
fn read_route(body: &[u8]) -> Option<Route> {
    let &[family, bits, _, _, table, protocol, _, kind, ..] = body.get(..ROUTE_HEADER)? else {
        return None;
    };
    if table != libc::RT_TABLE_MAIN {
        return None;
    }
    let rest = &body[ROUTE_HEADER..];
    let address = |kind| attribute(rest, kind).and_then(address_of);
    let unspecified = if i32::from(family) == libc::AF_INET {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    } else {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    };
    let link = attribute(rest, libc::RTA_OIF)
        .and_then(|value| number32(value, 0))
        .filter(|_| kind == libc::RTN_UNICAST);
    Some(Route {
        to: address(libc::RTA_DST).unwrap_or(unspecified),
        bits,
        link: link.map(|index| Link { index }),
        via: address(libc::RTA_GATEWAY),
        source: address(libc::RTA_PREFSRC),
        protocol,
        metric: attribute(rest, libc::RTA_PRIORITY)
            .and_then(|value| number32(value, 0))
            .unwrap_or_default(),
        on_link: number32(body, 8).is_some_and(|flags| flags & ON_LINK != 0),
    })
}

pub(crate) fn read_link(body: &[u8]) -> Option<LinkFacts> {
    let rest = body.get(LINK_HEADER..)?;
    Some(LinkFacts {
        link: Link {
            index: number32(body, 4)?,
        },
        name: attribute(rest, libc::IFLA_IFNAME).map(name)?,
        mtu: attribute(rest, libc::IFLA_MTU).and_then(|value| number32(value, 0))?,
    })
}

pub(crate) fn unless(code: i32, result: io::Result<Vec<Vec<u8>>>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(code) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Netlink {
    /// Connects to the kernel.
    ///
    /// # Errors
    /// When there is no netlink.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open(SockProtocol::NetlinkRoute)?,
        })
    }

    /// The device of this name; `None` when there is none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut message = Message::new(libc::RTM_GETLINK, REQUEST, &link_header(0, 0));
        message.put_name(libc::IFLA_IFNAME, name);
        match self.socket.ask(&message) {
            Ok(found) => Ok(found
                .first()
                .and_then(|body| read_link(body))
                .map(|f| f.link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All devices.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn links(&mut self) -> io::Result<Vec<LinkFacts>> {
        let message = Message::new(libc::RTM_GETLINK, DUMP, &link_header(0, 0));
        let found = self.socket.ask(&message)?;
        Ok(found.iter().filter_map(|body| read_link(body)).collect())
    }

    /// Makes a pair of devices, of which the one here is up.
    ///
    /// # Errors
    /// What the kernel says; `AlreadyExists` when a device has the name.
    pub fn add_pair(&mut self, pair: &Pair<'_>) -> io::Result<()> {
        let up = libc::IFF_UP.cast_unsigned();
        let mtu = pair.mtu.to_ne_bytes();
        let mut message = Message::new(libc::RTM_NEWLINK, REQUEST | NEW, &link_header(0, up));
        message
            .put_name(libc::IFLA_IFNAME, pair.name)
            .put(libc::IFLA_MTU, &mtu)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.put_name(IFLA_INFO_KIND, "veth")
                    .nest(IFLA_INFO_DATA, |data| {
                        data.nest(VETH_INFO_PEER, |peer| {
                            let descriptor = pair.namespace.as_raw_fd().to_ne_bytes();
                            // It cannot be up before it has its other end.
                            peer.raw(&link_header(0, 0))
                                .put_name(libc::IFLA_IFNAME, pair.peer)
                                .put(libc::IFLA_MTU, &mtu)
                                .put(libc::IFLA_NET_NS_FD, &descriptor);
                        });
                    });
            });
        self.socket.ask(&message)?;
        // At creation the kernel takes no alias.
        let mut named = Message::new(libc::RTM_SETLINK, REQUEST, &link_header(0, 0));
        named.put_name(libc::IFLA_IFNAME, pair.name);
        let alias: String = pair.alias.chars().take(255).collect();
        named.put_name(libc::IFLA_IFALIAS, &alias);
        self.socket.ask(&named).map(drop)
    }

    /// Removes a device by its name; whether there was one.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_link(&mut self, name: &str) -> io::Result<bool> {
        let mut message = Message::new(libc::RTM_DELLINK, REQUEST, &link_header(0, 0));
        message.put_name(libc::IFLA_IFNAME, name);
        unless(libc::ENODEV, self.socket.ask(&message))
    }

    /// Moves a device into another namespace, under another name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn send(&mut self, link: &Link, to: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_SETLINK, REQUEST, &link_header(link.index, 0));
        message
            .put(libc::IFLA_NET_NS_FD, &to.as_raw_fd().to_ne_bytes())
            .put_name(libc::IFLA_IFNAME, name);
        self.socket.ask(&message).map(drop)
    }

    /// Sets a device up.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&mut self, link: &Link) -> io::Result<()> {
        let up = libc::IFF_UP.cast_unsigned();
        let message = Message::new(libc::RTM_NEWLINK, REQUEST, &link_header(link.index, up));
        self.socket.ask(&message).map(drop)
    }

    /// Addresses of global scope that do not expire.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn addresses(&mut self, link: &Link) -> io::Result<Vec<Address>> {
        let found = self.dump_addresses()?;
        Ok(found
            .iter()
            .filter_map(|body| lasting(body, link))
            .collect())
    }

    /// All addresses of this machine, with their prefix lengths.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn all_addresses(&mut self) -> io::Result<Vec<(IpAddr, u8)>> {
        let placed = self.placed_addresses()?.into_iter();
        Ok(placed.map(|(_, address, bits)| (address, bits)).collect())
    }

    /// All addresses of this machine with their devices and prefix lengths.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn placed_addresses(&mut self) -> io::Result<Vec<(Link, IpAddr, u8)>> {
        let read = |body: &Vec<u8>| {
            let rest = body.get(ADDRESS_HEADER..)?;
            let address = attribute(rest, libc::IFA_LOCAL).or(attribute(rest, libc::IFA_ADDRESS));
            let index = number32(body, 4)?;
            Some((Link { index }, address_of(address?)?, body[1]))
        };
        Ok(self.dump_addresses()?.iter().filter_map(read).collect())
    }

    fn dump_addresses(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let header = [0; ADDRESS_HEADER];
        self.socket
            .ask(&Message::new(libc::RTM_GETADDR, DUMP, &header))
    }

    /// Gives a device an address that another had.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_address(&mut self, link: &Link, address: &Address) -> io::Result<()> {
        // The byte has the lower flags only; the attribute has all.
        let [low, ..] = address.flags.to_le_bytes();
        let mut header = vec![address.family, address.prefix, low, libc::RT_SCOPE_UNIVERSE];
        header.extend(link.index.to_ne_bytes());
        let mut message = Message::new(libc::RTM_NEWADDR, REQUEST | REPLACE, &header);
        for (kind, value) in &address.attributes {
            message.put(*kind, value);
        }
        message.put(libc::IFA_FLAGS, &address.flags.to_ne_bytes());
        self.socket.ask(&message).map(drop)
    }

    /// Gives a device an address of its own, without a network around it. It may have it already.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_host_address(&mut self, link: &Link, address: IpAddr) -> io::Result<()> {
        let octets = octets(address);
        let attributes = vec![
            (libc::IFA_LOCAL, octets.clone()),
            (libc::IFA_ADDRESS, octets),
        ];
        let address = Address {
            family: family(address),
            prefix: bits_of(address),
            // There is nobody on the link who could have the address, too.
            flags: libc::IFA_F_NODAD,
            attributes,
        };
        self.add_address(link, &address)
    }

    /// Gives a device an address that neighbours are answered for, and that this machine does not send from of itself.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_answered_address(&mut self, link: &Link, address: IpAddr) -> io::Result<()> {
        let flags = libc::IFA_F_NODAD | libc::IFA_F_NOPREFIXROUTE;
        let [low, ..] = flags.to_le_bytes();
        let scope = match address {
            // sources are chosen among those of wider scope
            IpAddr::V4(_) => libc::RT_SCOPE_LINK,
            IpAddr::V6(_) => libc::RT_SCOPE_UNIVERSE,
        };
        let mut header = vec![family(address), bits_of(address), low, scope];
        header.extend(link.index.to_ne_bytes());
        let mut message = Message::new(libc::RTM_NEWADDR, REQUEST | REPLACE, &header);
        let octets = octets(address);
        message
            .put(libc::IFA_LOCAL, &octets)
            .put(libc::IFA_ADDRESS, &octets)
            .put(libc::IFA_FLAGS, &flags.to_ne_bytes());
        if address.is_ipv6() {
            // or among those that are preferred: this one is so for no time, and valid without end
            let times = [0, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
            message.put(libc::IFA_CACHEINFO, &times);
        }
        self.socket.ask(&message).map(drop)
    }

    /// Takes such an address away; whether it was there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_host_address(&mut self, link: &Link, address: IpAddr) -> io::Result<bool> {
        let mut header = vec![family(address), bits_of(address), 0, 0];
        header.extend(link.index.to_ne_bytes());
        let mut message = Message::new(libc::RTM_DELADDR, REQUEST, &header);
        message.put(libc::IFA_LOCAL, &octets(address));
        unless(libc::EADDRNOTAVAIL, self.socket.ask(&message))
    }

    /// Makes a route, or puts it in the place of the one to the same destination.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_route(&mut self, route: &Route) -> io::Result<()> {
        let message = route_message(libc::RTM_NEWROUTE, REQUEST | REPLACE, route);
        self.socket.ask(&message).map(drop)
    }

    /// Makes a route unless there is one to the same destination; whether it was made.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_route(&mut self, route: &Route) -> io::Result<bool> {
        let message = route_message(libc::RTM_NEWROUTE, REQUEST | CREATE | NEW, route);
        unless(libc::EEXIST, self.socket.ask(&message))
    }

    /// Removes a route; whether it was there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_route(&mut self, route: &Route) -> io::Result<bool> {
        let message = route_message(libc::RTM_DELROUTE, REQUEST, route);
        unless(libc::ESRCH, self.socket.ask(&message))
    }

    /// The routes of the main table.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn routes(&mut self) -> io::Result<Vec<Route>> {
        let message = Message::new(libc::RTM_GETROUTE, DUMP, &[0; ROUTE_HEADER]);
        let found = self.socket.ask(&message)?;
        Ok(found.iter().filter_map(|body| read_route(body)).collect())
    }
}

/// An address of the device that moves with it.
fn lasting(body: &[u8], link: &Link) -> Option<Address> {
    let &[family, prefix, flags, scope] = body.get(..4)? else {
        return None;
    };
    let attributes = attributes(body.get(ADDRESS_HEADER..)?);
    let all = attributes.iter().find(|(kind, _)| *kind == libc::IFA_FLAGS);
    let flags = all
        .and_then(|(_, value)| number32(value, 0))
        .unwrap_or(u32::from(flags));
    let lasts = number32(body, 4)? == link.index
        && scope == libc::RT_SCOPE_UNIVERSE
        && flags & libc::IFA_F_PERMANENT != 0;
    let kept = [libc::IFA_ADDRESS, libc::IFA_LOCAL, libc::IFA_BROADCAST];
    lasts.then(|| Address {
        family,
        prefix,
        flags: flags & CHOSEN,
        attributes: attributes
            .into_iter()
            .filter(|(kind, _)| kept.contains(kind))
            .map(|(kind, value)| (kind, value.to_vec()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_last() {
        let link = Link { index: 7 };
        let address = |index: u32, flags: u8, scope: u8| {
            let mut body = vec![2, 24, flags, scope];
            body.extend(index.to_ne_bytes());
            let mut message = Message::new(0, 0, &body);
            message.put(libc::IFA_ADDRESS, &[192, 0, 2, 7]);
            message.put_name(libc::IFA_LABEL, "eth0");
            let mut bytes = Vec::new();
            message.write(&mut bytes, 0).unwrap();
            bytes.split_off(crate::message::HEADER)
        };
        let permanent = u8::try_from(libc::IFA_F_PERMANENT).unwrap();
        let kept = lasting(&address(7, permanent, 0), &link).unwrap();
        assert_eq!((kept.family, kept.prefix, kept.flags), (2, 24, 0));
        let own = vec![(libc::IFA_ADDRESS, vec![192, 0, 2, 7])];
        assert_eq!(kept.attributes, own);
        assert_eq!(lasting(&address(8, permanent, 0), &link), None);
        assert_eq!(lasting(&address(7, 0, 0), &link), None, "it expires");
        assert_eq!(lasting(&address(7, permanent, 253), &link), None);
        assert_eq!(lasting(&[2, 24], &link), None);
    }
}
