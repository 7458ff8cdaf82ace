//! How many bytes a second leave by a device (tc-tbf(8)), and what a device that stands in for another has its packets pass
//! before this machine sees them (ifb, tc-mirred(8)).

use crate::message::Message;
use crate::route::{IFLA_INFO_KIND, Link, Netlink, link_header};
use crate::socket::{NEW, REQUEST};
use nix::libc;
use std::io;

// linux/rtnetlink.h, linux/pkt_sched.h
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
/// What is at a device's ingress is called so.
const AT_INGRESS: u32 = 0xffff_0000;
/// Our queue at the root of a device.
const QUEUE: u32 = 0x0001_0000;
const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// The length of a packet on the link is that of its bytes.
const ETHERNET: u8 = 1;

// linux/pkt_cls.h, linux/tc_act/tc_mirred.h
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const U32_TERMINAL: u8 = 1;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARMS: u16 = 2;
const STOLEN: u32 = 4;
const REDIRECT: u32 = 1;
/// Packets of every protocol, by the only filter there is.
const EVERY_PROTOCOL: u16 = 3;
const PRIORITY: u32 = 1 << 16;

/// A limit of what leaves by a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteLimit {
    /// A second.
    pub rate: u64,
    /// So many at once after a pause: at least as much as a packet has.
    pub burst: u32,
    /// So many may wait; those after these are lost.
    pub queue: u32,
}

/// A `tcmsg`.
fn traffic_header(link: &Link, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let numbers = [0, link.index, handle, parent, info];
    numbers.map(u32::to_ne_bytes).concat()
}

/// A `tc_tbf_qopt`. What of a rate does not fit into it stands in an attribute of its own, and so does the burst.
fn bucket(limit: &ByteLimit) -> Vec<u8> {
    let rate = u32::try_from(limit.rate).unwrap_or(u32::MAX);
    let mut options = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    options.extend(rate.to_ne_bytes());
    // no rate of peaks
    options.extend([0; 12]);
    for number in [limit.queue, 0, 0] {
        options.extend(number.to_ne_bytes());
    }
    options
}

/// A `tc_u32_sel` that everything matches: of the first word no bit counts.
fn everything() -> Vec<u8> {
    let mut selector = vec![0; 32];
    selector[0] = U32_TERMINAL;
    selector[2] = 1;
    selector
}

/// A `tc_mirred`: the packet leaves by `to` instead.
fn redirect(to: &Link) -> Vec<u8> {
    let numbers = [0, 0, STOLEN, 0, 0, REDIRECT, to.index];
    numbers.map(u32::to_ne_bytes).concat()
}

impl Netlink {
    /// Limits what leaves by a device.
    ///
    /// # Errors
    /// What the kernel says: `NotFound` when it has no such queue (`sch_tbf`).
    pub fn limit(&mut self, link: &Link, limit: &ByteLimit) -> io::Result<()> {
        let header = traffic_header(link, QUEUE, ROOT, 0);
        let mut message = Message::new(libc::RTM_NEWQDISC, REQUEST | NEW, &header);
        message
            .put_name(TCA_KIND, "tbf")
            .nest(TCA_OPTIONS, |options| {
                options
                    .put(TBF_PARMS, &bucket(limit))
                    .put(TBF_RATE64, &limit.rate.to_ne_bytes())
                    .put(TBF_BURST, &limit.burst.to_ne_bytes());
            });
        self.socket.ask(&message).map(drop)
    }

    /// Makes a device that stands in for others; it is not up.
    ///
    /// # Errors
    /// What the kernel says: `AlreadyExists` when a device has the name; `Unsupported` when it has none of these (`ifb`).
    pub fn add_stand_in(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWLINK, REQUEST | NEW, &link_header(0, 0));
        message
            .put_name(libc::IFLA_IFNAME, name)
            .put(libc::IFLA_MTU, &mtu.to_ne_bytes())
            .nest(libc::IFLA_LINKINFO, |info| {
                info.put_name(IFLA_INFO_KIND, "ifb");
            });
        self.socket.ask(&message).map(drop)
    }

    /// Has what comes in by a device pass its stand-in first.
    ///
    /// # Errors
    /// What the kernel says: `NotFound` when it cannot (`sch_ingress`, `cls_u32`, `act_mirred`).
    pub fn pass_by(&mut self, link: &Link, stand_in: &Link) -> io::Result<()> {
        let header = traffic_header(link, AT_INGRESS, INGRESS, 0);
        let mut message = Message::new(libc::RTM_NEWQDISC, REQUEST | NEW, &header);
        message.put_name(TCA_KIND, "ingress");
        self.socket.ask(&message)?;
        let info = PRIORITY | u32::from(EVERY_PROTOCOL.to_be());
        let header = traffic_header(link, 0, AT_INGRESS, info);
        let mut message = Message::new(libc::RTM_NEWTFILTER, REQUEST | NEW, &header);
        message
            .put_name(TCA_KIND, "u32")
            .nest(TCA_OPTIONS, |options| {
                options
                    .put(U32_SELECTOR, &everything())
                    .nest(U32_ACTIONS, |actions| {
                        actions.nest(1, |action| {
                            action.put_name(ACTION_KIND, "mirred").nest(
                                ACTION_OPTIONS,
                                |options| {
                                    options.put(MIRRED_PARMS, &redirect(stand_in));
                                },
                            );
                        });
                    });
            });
        self.socket.ask(&message).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel makes of them `davit-network` tests with packets.
    #[test]
    fn messages_have_their_lengths() {
        let limit = ByteLimit {
            rate: 1 << 40,
            burst: 65536,
            queue: 7,
        };
        let bucket = bucket(&limit);
        assert_eq!(bucket.len(), 36);
        assert_eq!(bucket[8..12], u32::MAX.to_ne_bytes());
        assert_eq!(bucket[24..28], 7_u32.to_ne_bytes());
        assert_eq!(everything().len(), 16 + 16);
        let link = Link { index: 9 };
        assert_eq!(redirect(&link).len(), 28);
        assert_eq!(traffic_header(&link, 1, 2, 3)[4..8], 9_u32.to_ne_bytes());
    }
}
