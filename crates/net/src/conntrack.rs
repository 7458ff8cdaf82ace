//! The connections that the kernel knows (ctnetlink): UDP's live on after their endpoint has gone, unless they are ended.

use crate::message::{Message, attribute};
use crate::socket::{DUMP, REQUEST, Socket};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::Ipv4Addr;

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const SOURCE_ADDRESS: u16 = 1;
const DESTINATION_ADDRESS: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

const UDP: u8 = 17;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Who sends.
    pub from: (Ipv4Addr, u16),
    /// Who receives.
    pub to: (Ipv4Addr, u16),
}

/// A UDP connection over IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// As the client sees it.
    pub original: Direction,
    /// As the server answers.
    pub reply: Direction,
}

fn read(tuple: &[u8]) -> Option<(Direction, u8)> {
    let (addresses, protocol) = (
        attribute(tuple, TUPLE_ADDRESSES)?,
        attribute(tuple, TUPLE_PROTOCOL)?,
    );
    let address = |kind| {
        let octets: [u8; 4] = attribute(addresses, kind)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets))
    };
    let port = |kind| {
        let bytes: [u8; 2] = attribute(protocol, kind)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    let number = *attribute(protocol, PROTOCOL_NUMBER)?.first()?;
    let direction = Direction {
        from: (address(SOURCE_ADDRESS)?, port(SOURCE_PORT)?),
        to: (address(DESTINATION_ADDRESS)?, port(DESTINATION_PORT)?),
    };
    Some((direction, number))
}

fn message(kind: u16, flags: u16) -> Message {
    // AF_INET, version and resource 0
    Message::new((SUBSYSTEM << 8) | kind, flags, &[2, 0, 0, 0])
}

/// The UDP connections over IPv4. Blocks.
///
/// # Errors
/// What the kernel says.
pub fn datagrams() -> io::Result<Vec<Connection>> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    let found = socket.ask(&message(GET, DUMP))?;
    let read = |body: &Vec<u8>| {
        let rest = body.get(4..)?;
        let (original, protocol) = read(attribute(rest, TUPLE_ORIGINAL)?)?;
        let (reply, _) = read(attribute(rest, TUPLE_REPLY)?)?;
        (protocol == UDP).then_some(Connection { original, reply })
    };
    Ok(found.iter().filter_map(read).collect())
}

/// Forgets UDP connections, so that their next packet finds its way anew. Blocks.
///
/// # Errors
/// What the kernel says; that one has ended meanwhile is none.
pub fn forget(connections: &[Connection]) -> io::Result<()> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    for connection in connections {
        let way = connection.original;
        let mut message = message(DELETE, REQUEST);
        message.nest(TUPLE_ORIGINAL, |to| {
            to.nest(TUPLE_ADDRESSES, |to| {
                to.put(SOURCE_ADDRESS, &way.from.0.octets())
                    .put(DESTINATION_ADDRESS, &way.to.0.octets());
            })
            .nest(TUPLE_PROTOCOL, |to| {
                to.put(PROTOCOL_NUMBER, &[UDP])
                    .put(SOURCE_PORT, &way.from.1.to_be_bytes())
                    .put(DESTINATION_PORT, &way.to.1.to_be_bytes());
            });
        });
        match socket.ask(&message) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
