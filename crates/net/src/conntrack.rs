//! The connections that the kernel knows (ctnetlink): UDP's live on after their endpoint has gone, unless they are ended.

use crate::message::{Message, attribute};
use crate::nft::IpVersion;
use crate::route::octets;
use crate::socket::{DUMP, REQUEST, Socket};
use nix::libc;
use nix::sys::socket::SockProtocol;
use std::io;
use std::net::IpAddr;

const SUBSYSTEM: u16 = 1;
const CHANGE: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 2;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const MARK: u16 = 8;
const MARK_MASK: u16 = 21;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
/// Source and destination, by version.
const ADDRESSES: [(IpVersion, [u16; 2]); 2] = [(IpVersion::Four, [1, 2]), (IpVersion::Six, [3, 4])];
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

const UDP: u8 = 17;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Who sends.
    pub from: (IpAddr, u16),
    /// Who receives.
    pub to: (IpAddr, u16),
}

/// A connection of a protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The number of the protocol.
    pub protocol: u8,
    /// What somebody has marked it with.
    pub mark: u32,
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
    let address = |which: usize| {
        let octets = ADDRESSES
            .iter()
            .find_map(|(_, kinds)| attribute(addresses, kinds[which]))?;
        match *octets {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d])),
            _ => Some(IpAddr::from(<[u8; 16]>::try_from(octets).ok()?)),
        }
    };
    let port = |kind| {
        let bytes: [u8; 2] = attribute(protocol, kind)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    };
    let number = *attribute(protocol, PROTOCOL_NUMBER)?.first()?;
    let direction = Direction {
        from: (address(0)?, port(SOURCE_PORT)?),
        to: (address(1)?, port(DESTINATION_PORT)?),
    };
    Some((direction, number))
}

fn message(version: IpVersion, kind: u16, flags: u16) -> Message {
    let family = match version {
        IpVersion::Four => libc::AF_INET,
        IpVersion::Six => libc::AF_INET6,
    };
    // the version of the protocol and the resource are 0
    let header = [u8::try_from(family).unwrap_or_default(), 0, 0, 0];
    Message::new((SUBSYSTEM << 8) | kind, flags, &header)
}

fn version(address: IpAddr) -> IpVersion {
    match address {
        IpAddr::V4(_) => IpVersion::Four,
        IpAddr::V6(_) => IpVersion::Six,
    }
}

/// What the kernel is told by to find a connection again.
fn put_original(message: &mut Message, connection: &Connection) {
    let way = connection.original;
    let version = version(way.from.0);
    let kinds = ADDRESSES.iter().find(|(of, _)| *of == version);
    let [source, destination] = kinds.map_or([1, 2], |(_, kinds)| *kinds);
    message.nest(TUPLE_ORIGINAL, |to| {
        to.nest(TUPLE_ADDRESSES, |to| {
            to.put(source, &octets(way.from.0))
                .put(destination, &octets(way.to.0));
        })
        .nest(TUPLE_PROTOCOL, |to| {
            to.put(PROTOCOL_NUMBER, &[connection.protocol])
                .put(SOURCE_PORT, &way.from.1.to_be_bytes())
                .put(DESTINATION_PORT, &way.to.1.to_be_bytes());
        });
    });
}

/// The UDP connections of a version. Blocks.
///
/// # Errors
/// What the kernel says.
pub fn datagrams(version: IpVersion) -> io::Result<Vec<Connection>> {
    let mut all = connections(version)?;
    all.retain(|connection| connection.protocol == UDP);
    Ok(all)
}

/// The connections of a version that have ports. Blocks.
///
/// # Errors
/// What the kernel says.
pub fn connections(version: IpVersion) -> io::Result<Vec<Connection>> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    let found = socket.ask(&message(version, GET, DUMP))?;
    let read = |body: &Vec<u8>| {
        let rest = body.get(4..)?;
        let (original, protocol) = read(attribute(rest, TUPLE_ORIGINAL)?)?;
        let (reply, _) = read(attribute(rest, TUPLE_REPLY)?)?;
        let mark: Option<[u8; 4]> = attribute(rest, MARK).and_then(|mark| mark.try_into().ok());
        Some(Connection {
            protocol,
            mark: mark.map(u32::from_be_bytes).unwrap_or_default(),
            original,
            reply,
        })
    };
    Ok(found.iter().filter_map(read).collect())
}

/// Forgets connections, so that their next packet finds its way anew. Blocks.
///
/// # Errors
/// What the kernel says; that one has ended meanwhile is none.
pub fn forget(connections: &[Connection]) -> io::Result<()> {
    each(connections, |version| message(version, DELETE, REQUEST))
}

/// Sets bits of the marks of connections, or clears them. Blocks.
///
/// # Errors
/// What the kernel says; that one has ended meanwhile is none.
pub fn mark(connections: &[Connection], bits: u32, set: bool) -> io::Result<()> {
    each(connections, |version| {
        let mut message = message(version, CHANGE, REQUEST);
        message
            .put_be32(MARK, if set { bits } else { 0 })
            .put_be32(MARK_MASK, bits);
        message
    })
}

fn each(connections: &[Connection], message: impl Fn(IpVersion) -> Message) -> io::Result<()> {
    let mut socket = Socket::open(SockProtocol::NetlinkNetFilter)?;
    for connection in connections {
        let mut message = message(version(connection.original.from.0));
        put_original(&mut message, connection);
        match socket.ask(&message) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
