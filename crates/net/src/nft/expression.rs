//! The expressions that rules are made of.

use super::{Data, IpVersion, Verdict, milliseconds};
use crate::message::Message;
use std::time::Duration;

const NAME: u16 = 1;
const DATA: u16 = 2;

/// A register of four bytes, 0 to 15; values that are longer take the following ones, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u8);

impl Slot {
    /// `NFT_REG32_00` is the register with the number 8.
    fn number(self) -> u32 {
        u32::from(self.0) + 8
    }
}

/// What is in a key or a value, each padded to four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// An address of the table's packets.
    Address,
    /// A protocol above IP.
    Protocol,
    /// A port.
    Port,
    /// A number in this machine's byte order.
    Number,
}

impl Field {
    /// Type and length of fields in a row.
    pub(super) fn join(fields: &[Self], version: IpVersion) -> (u32, u32) {
        let kinds = fields.iter().map(|field| field.kind(version));
        let kind = kinds.fold(0, |kind, field| kind << 6 | field);
        let length = match fields {
            [Self::Protocol] => 1,
            [Self::Port] => 2,
            _ => fields.iter().map(|field| field.length(version)).sum(),
        };
        (kind, length)
    }

    /// The number by which nft prints it.
    fn kind(self, version: IpVersion) -> u32 {
        match (self, version) {
            (Self::Address, IpVersion::Four) => 7,
            (Self::Address, IpVersion::Six) => 8,
            (Self::Protocol, _) => 12,
            (Self::Port, _) => 13,
            (Self::Number, _) => 19,
        }
    }

    fn length(self, version: IpVersion) -> u32 {
        match self {
            Self::Address => version.address_length(),
            Self::Protocol | Self::Port | Self::Number => 4,
        }
    }
}

/// One step of a rule. A comparison that fails, and a lookup that finds nothing, end the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads the source address.
    SourceAddress(Slot),
    /// Loads the destination address.
    DestinationAddress(Slot),
    /// Loads the destination port.
    DestinationPort(Slot),
    /// Loads the type of an ICMP message.
    IcmpType(Slot),
    /// Loads the number of the network that a VXLAN packet is of (VNI), 3 bytes.
    TunnelNumber(Slot),
    /// Loads where the connection's first packet was sent to, before that was changed.
    OriginalDestination(Slot),
    /// Loads where the connection's first packet came from.
    OriginalSource(Slot),
    /// Loads where what answers the connection's first packet comes from.
    ReplySource(Slot),
    /// Loads the protocol above IP.
    Protocol(Slot),
    /// Loads the name of the device that the packet came by, 16 bytes; empty for packets of this machine.
    InputName(Slot),
    /// Loads the name of the device that the packet leaves by, 16 bytes.
    OutputName(Slot),
    /// Loads the packet's mark.
    Mark(Slot),
    /// Sets the packet's mark.
    SetMark(Slot),
    /// Loads the connection's state as bits (1 invalid, 2 established, 4 related, 8 new).
    State(Slot),
    /// Loads the connection's status as bits (0x20: its destination was changed).
    Status(Slot),
    /// Loads the connection's mark.
    ConnectionMark(Slot),
    /// Loads the kind of the destination address (`RTN_…`).
    DestinationKind(Slot),
    /// Loads the kind of the source address (`RTN_…`).
    SourceKind(Slot),
    /// Loads the index of the device by which an answer to the source would leave, if that is the one that the packet came
    /// by; 0 otherwise.
    WayBack(Slot),
    /// Loads a random number from `offset` on, below `offset + modulus`.
    Random {
        /// Where to.
        to: Slot,
        /// How many numbers there are.
        modulus: u32,
        /// The least.
        offset: u32,
    },
    /// Loads these bytes.
    Load(Slot, Vec<u8>),
    /// Goes on when the value is equal to these bytes; fewer than it has are its beginning.
    Equal(Slot, Vec<u8>),
    /// Goes on when it is not.
    NotEqual(Slot, Vec<u8>),
    /// Goes on when the value, its first byte the highest, is not below these bytes.
    AtLeast(Slot, Vec<u8>),
    /// Goes on when it is not above them.
    AtMost(Slot, Vec<u8>),
    /// Keeps the bits of `mask`, changes those of `change`; both are as long as the value.
    Bits {
        /// The value.
        of: Slot,
        /// The bits that stay.
        mask: Vec<u8>,
        /// The bits that are turned.
        change: Vec<u8>,
    },
    /// Goes on when the value is (or, `absent`, is not) in the set.
    In {
        /// The set.
        set: String,
        /// The first field of the key.
        key: Slot,
        /// Goes on when it is not in it.
        absent: bool,
    },
    /// Loads what the map has for the key.
    Lookup {
        /// The map.
        map: String,
        /// The first field of the key.
        key: Slot,
        /// Where to.
        to: Slot,
    },
    /// Does what the map of verdicts has for the key.
    Dispatch {
        /// The map.
        map: String,
        /// The first field of the key.
        key: Slot,
    },
    /// Enters key and value into a dynamic map, or lets them live on.
    Remember {
        /// The map.
        map: String,
        /// The first field of the key.
        key: Slot,
        /// The first field of the value.
        value: Slot,
        /// How long, from now.
        time: Duration,
    },
    /// Changes where the connection goes: address, and port after it.
    Destination(Slot),
    /// Has the connection come from this machine, from a random port.
    Masquerade,
    /// Answers by ICMP that nobody listens there.
    Reject,
    /// Answers by TCP that nobody listens there.
    Reset,
    /// Counts packets and bytes.
    Counter,
    /// The end.
    Verdict(Verdict),
}

fn numbers(to: &mut Message, name: &str, pairs: &[(u16, u32)]) {
    expression(to, name, |to| {
        for (kind, value) in pairs {
            to.put_be32(*kind, *value);
        }
    });
}

fn expression(to: &mut Message, name: &str, fill: impl FnOnce(&mut Message)) {
    to.put_name(NAME, name).nest(DATA, fill);
}

/// Bytes of a packet's header: 1 is the network's, 2 the transport's.
fn payload(to: &mut Message, slot: Slot, base: u32, offset: u32, length: u32) {
    let pairs = [(1, slot.number()), (2, base), (3, offset), (4, length)];
    numbers(to, "payload", &pairs);
}

fn meta(to: &mut Message, slot: Slot, key: u32) {
    numbers(to, "meta", &[(1, slot.number()), (2, key)]);
}

/// The source's (0) or destination's (1) address of the connection's packets in a direction: the first one's (0) or the reply's (1).
fn end(to: &mut Message, slot: Slot, version: IpVersion, (which, direction): (u32, u8)) {
    let key = match version {
        IpVersion::Four => 19,
        IpVersion::Six => 21,
    };
    expression(to, "ct", |to| {
        to.put_be32(1, slot.number())
            .put_be32(2, key + which)
            .put(3, &[direction]);
    });
}

fn compare(to: &mut Message, slot: Slot, operation: u32, bytes: &[u8]) {
    expression(to, "cmp", |to| {
        to.put_be32(1, slot.number())
            .put_be32(2, operation)
            .nest(3, |to| Data::Value(bytes.to_vec()).write(to));
    });
}

fn lookup(to: &mut Message, set: &str, key: Slot, result: Option<u32>, absent: bool) {
    expression(to, "lookup", |to| {
        to.put_name(1, set).put_be32(2, key.number());
        if let Some(register) = result {
            to.put_be32(3, register);
        }
        if absent {
            to.put_be32(5, 1);
        }
    });
}

impl Expression {
    pub(super) fn write(&self, to: &mut Message, version: IpVersion) {
        let (length, source) = match version {
            IpVersion::Four => (4, 12),
            IpVersion::Six => (16, 8),
        };
        match self {
            Self::SourceAddress(slot) => payload(to, *slot, 1, source, length),
            Self::DestinationAddress(slot) => payload(to, *slot, 1, source + length, length),
            Self::IcmpType(slot) => payload(to, *slot, 2, 0, 1),
            Self::DestinationPort(slot) => payload(to, *slot, 2, 2, 2),
            // behind the header of UDP and the flags
            Self::TunnelNumber(slot) => payload(to, *slot, 2, 12, 3),
            Self::OriginalDestination(slot) => end(to, *slot, version, (1, 0)),
            Self::OriginalSource(slot) => end(to, *slot, version, (0, 0)),
            Self::ReplySource(slot) => end(to, *slot, version, (0, 1)),
            Self::Protocol(slot) => meta(to, *slot, 16),
            Self::InputName(slot) => meta(to, *slot, 6),
            Self::OutputName(slot) => meta(to, *slot, 7),
            Self::Mark(slot) => meta(to, *slot, 3),
            Self::SetMark(slot) => numbers(to, "meta", &[(2, 3), (3, slot.number())]),
            Self::State(slot) => numbers(to, "ct", &[(1, slot.number()), (2, 0)]),
            Self::Status(slot) => numbers(to, "ct", &[(1, slot.number()), (2, 2)]),
            Self::ConnectionMark(slot) => numbers(to, "ct", &[(1, slot.number()), (2, 3)]),
            Self::DestinationKind(slot) => {
                numbers(to, "fib", &[(1, slot.number()), (2, 3), (3, 2)]);
            }
            Self::SourceKind(slot) => {
                numbers(to, "fib", &[(1, slot.number()), (2, 3), (3, 1)]);
            }
            Self::WayBack(slot) => {
                // the source's route, by the device that the packet came by: its index
                numbers(to, "fib", &[(1, slot.number()), (2, 1), (3, 1 | 1 << 3)]);
            }
            Self::Random {
                to: slot,
                modulus,
                offset,
            } => {
                let pairs = [(1, slot.number()), (2, *modulus), (3, 1), (4, *offset)];
                numbers(to, "numgen", &pairs);
            }
            Self::Load(slot, bytes) => expression(to, "immediate", |to| {
                to.put_be32(1, slot.number())
                    .nest(2, |to| Data::Value(bytes.clone()).write(to));
            }),
            Self::Equal(slot, bytes) => compare(to, *slot, 0, bytes),
            Self::NotEqual(slot, bytes) => compare(to, *slot, 1, bytes),
            Self::AtLeast(slot, bytes) => compare(to, *slot, 5, bytes),
            Self::AtMost(slot, bytes) => compare(to, *slot, 3, bytes),
            Self::Bits { of, mask, change } => expression(to, "bitwise", |to| {
                to.put_be32(1, of.number())
                    .put_be32(2, of.number())
                    .put_be32(3, u32::try_from(mask.len()).unwrap_or_default())
                    .nest(4, |to| Data::Value(mask.clone()).write(to))
                    .nest(5, |to| Data::Value(change.clone()).write(to));
            }),
            Self::In { set, key, absent } => lookup(to, set, *key, None, *absent),
            Self::Lookup { map, key, to: slot } => {
                lookup(to, map, *key, Some(slot.number()), false);
            }
            Self::Dispatch { map, key } => lookup(to, map, *key, Some(0), false),
            Self::Remember {
                map,
                key,
                value,
                time,
            } => expression(to, "dynset", |to| {
                to.put_name(1, map)
                    .put_be32(3, 1)
                    .put_be32(4, key.number())
                    .put_be32(5, value.number())
                    .put(6, &milliseconds(*time));
            }),
            Self::Destination(slot) => {
                let address = slot.number();
                let family = version.number().cast_unsigned();
                let pairs = [(1, 1), (2, family), (3, address), (5, address + length / 4)];
                numbers(to, "nat", &pairs);
            }
            // each connection another port
            Self::Masquerade => numbers(to, "masq", &[(1, 1 << 4)]),
            Self::Reject => expression(to, "reject", |to| {
                // ICMP and ICMPv6: port unreachable
                let code = match version {
                    IpVersion::Four => 3,
                    IpVersion::Six => 4,
                };
                to.put_be32(1, 0).put(2, &[code]);
            }),
            Self::Reset => numbers(to, "reject", &[(1, 1)]),
            Self::Counter => expression(to, "counter", |_| {}),
            Self::Verdict(verdict) => expression(to, "immediate", |to| {
                to.put_be32(1, 0)
                    .nest(2, |to| Data::Verdict(verdict.clone()).write(to));
            }),
        }
    }
}
