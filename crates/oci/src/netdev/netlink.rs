//! The few messages of rtnetlink(7) that moving a device takes.

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The kernel answers at once; what hangs longer is broken.
const PATIENCE: i64 = 10;
/// Larger than any message of the kernel.
const BUFFER: usize = 64 * 1024;
const HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

/// Flags of an address that whoever set it chose; the kernel sets the others.
const CHOSEN: u32 = libc::IFA_F_NODAD
    | libc::IFA_F_HOMEADDRESS
    | libc::IFA_F_MANAGETEMPADDR
    | libc::IFA_F_NOPREFIXROUTE
    | libc::IFA_F_MCAUTOJOIN;

/// A device of the namespace a [`Route`] was opened in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    index: u32,
}

/// An address that stays when its device moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    family: u8,
    prefix: u8,
    flags: u32,
    /// Type and value of those that say what the address is.
    attributes: Vec<(u16, Vec<u8>)>,
}

/// A connection to the kernel, for the namespace the thread is in when it is opened.
pub(super) struct Route {
    socket: OwnedFd,
    sequence: u32,
}

fn round(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values are names, addresses and numbers of a few bytes.
    let length = u16::try_from(4 + value.len()).expect("attributes are short");
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(round(to.len()), 0);
}

fn name_attribute(to: &mut Vec<u8>, name: &str) {
    let mut value = name.as_bytes().to_vec();
    value.push(0);
    attribute(to, libc::IFLA_IFNAME, &value);
}

/// An `ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for number in [index, flags, change] {
        body.extend(number.to_ne_bytes());
    }
    body
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes([bytes[0], bytes[1]]))
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Type and value of each attribute.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (number16(bytes, 0), number16(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else {
            break;
        };
        found.push((kind, value));
        bytes = bytes.get(round(length)..).unwrap_or_default();
    }
    found
}

/// What one datagram of the kernel says about a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    bodies: Vec<Vec<u8>>,
    done: bool,
}

fn cut(mut bytes: &[u8], sequence: u32) -> io::Result<Answer> {
    let mut answer = Answer::default();
    while let (Some(length), Some(kind), Some(of)) =
        (number32(bytes, 0), number16(bytes, 4), number32(bytes, 8))
    {
        let length = length as usize;
        let body = bytes.get(HEADER..length);
        let body = body.ok_or_else(|| io::Error::other("a netlink message is cut off"))?;
        if of == sequence {
            match kind {
                NLMSG_ERROR => match number32(body, 0).map(u32::cast_signed) {
                    Some(0) => answer.done = true,
                    Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                    None => return Err(io::Error::other("a netlink error is cut off")),
                },
                NLMSG_DONE => answer.done = true,
                _ => answer.bodies.push(body.to_vec()),
            }
        }
        bytes = bytes.get(round(length)..).unwrap_or_default();
    }
    Ok(answer)
}

impl Route {
    pub(super) fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE, 0))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request and gathers the bodies of what is answered.
    fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        let mut bodies = Vec::new();
        loop {
            let received = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let answer = cut(&buffer[..received], self.sequence)?;
            bodies.extend(answer.bodies);
            if answer.done {
                return Ok(bodies);
            }
        }
    }

    /// The device of this name; `None` when there is none.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut body = link_header(0, 0, 0);
        name_attribute(&mut body, name);
        match self.ask(libc::RTM_GETLINK, REQUEST, &body) {
            Ok(found) => Ok(found
                .first()
                .and_then(|body| number32(body, 4))
                .map(|index| Link { index })),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Addresses of global scope that do not expire.
    pub(super) fn addresses(&mut self, link: &Link) -> io::Result<Vec<Address>> {
        let mut header = vec![0; 4];
        header.extend(link.index.to_ne_bytes());
        let found = self.ask(libc::RTM_GETADDR, DUMP, &header)?;
        Ok(found
            .iter()
            .filter_map(|body| lasting(body, link))
            .collect())
    }

    /// Moves a device into another namespace, under another name.
    pub(super) fn send(
        &mut self,
        link: &Link,
        namespace: BorrowedFd<'_>,
        name: &str,
    ) -> io::Result<()> {
        let mut body = link_header(link.index, 0, 0);
        let descriptor = namespace.as_raw_fd().to_ne_bytes();
        attribute(&mut body, libc::IFLA_NET_NS_FD, &descriptor);
        name_attribute(&mut body, name);
        self.ask(libc::RTM_SETLINK, REQUEST, &body).map(drop)
    }

    pub(super) fn add_address(&mut self, link: &Link, address: &Address) -> io::Result<()> {
        // The byte has the lower flags only; the attribute has all.
        let [low, ..] = address.flags.to_le_bytes();
        let mut body = vec![address.family, address.prefix, low, libc::RT_SCOPE_UNIVERSE];
        body.extend(link.index.to_ne_bytes());
        for (kind, value) in &address.attributes {
            attribute(&mut body, *kind, value);
        }
        attribute(&mut body, libc::IFA_FLAGS, &address.flags.to_ne_bytes());
        self.ask(libc::RTM_NEWADDR, REQUEST | CREATE, &body)
            .map(drop)
    }

    pub(super) fn set_up(&mut self, link: &Link) -> io::Result<()> {
        let up = libc::IFF_UP.cast_unsigned();
        let body = link_header(link.index, up, up);
        self.ask(libc::RTM_NEWLINK, REQUEST, &body).map(drop)
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

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = u32::try_from(HEADER + body.len()).unwrap();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn answers_are_cut() {
        let two = [
            message(libc::RTM_NEWADDR, 3, &[1; 8]),
            message(libc::RTM_NEWADDR, 2, &[2; 8]),
            message(NLMSG_DONE, 3, &[0; 4]),
        ]
        .concat();
        let answer = cut(&two, 3).unwrap();
        assert_eq!(answer.bodies, [vec![1; 8]]);
        assert!(answer.done);
        let refused = message(NLMSG_ERROR, 3, &(-libc::EEXIST).to_ne_bytes());
        let error = cut(&refused, 3).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        let fine = message(NLMSG_ERROR, 3, &[0; 4]);
        assert!(cut(&fine, 3).unwrap().done);
        let mut short = message(libc::RTM_NEWADDR, 3, &[1; 8]);
        short.truncate(20);
        assert!(cut(&short, 3).is_err());
        assert_eq!(cut(&[], 3).unwrap(), Answer::default());
    }

    #[test]
    fn addresses_that_last() {
        let link = Link { index: 7 };
        let address = |index: u32, flags: u8, scope: u8| {
            let mut body = vec![2, 24, flags, scope];
            body.extend(index.to_ne_bytes());
            attribute(&mut body, libc::IFA_ADDRESS, &[192, 0, 2, 7]);
            attribute(&mut body, libc::IFA_LABEL, b"eth0\0");
            body
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
