//! A connection to the kernel.

use crate::message::{HEADER, Message, number16, number32};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel answers at once; what hangs longer is broken.
const PATIENCE: i64 = 10;
/// How often a dump is asked for before what came is taken.
const DUMPS: usize = 5;
/// Larger than any message of the kernel.
const BUFFER: usize = 64 * 1024;
/// Room for a transaction of tens of thousands of elements.
const TRANSACTION: usize = 64 << 20;

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
/// A request that is answered.
pub(crate) const REQUEST: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// A request for all there are.
pub(crate) const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// Makes what is not there, and refuses what is.
pub(crate) const NEW: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// Makes it, or puts it in the place of what is there.
pub(crate) const REPLACE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
/// Makes it where it is not there.
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
/// A message without an answer unless it fails.
pub(crate) const SILENT: u16 = libc::NLM_F_REQUEST as u16;

/// A socket of netlink(7), for the namespace the thread is in when it is opened.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: OwnedFd,
    sequence: u32,
}

/// What one datagram of the kernel says about a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    bodies: Vec<Vec<u8>>,
    done: bool,
    /// Something changed while all there are were told.
    interrupted: bool,
}

/// Cuts a datagram. Messages of other requests than `first` to `last` are left out; an answer to the last ends it.
fn cut(mut bytes: &[u8], first: u32, last: u32) -> io::Result<Answer> {
    let mut answer = Answer::default();
    while let (Some(length), Some(kind), Some(of)) =
        (number32(bytes, 0), number16(bytes, 4), number32(bytes, 8))
    {
        let length = length as usize;
        let body = bytes.get(HEADER..length);
        let body = body.ok_or_else(|| io::Error::other("a netlink message is cut off"))?;
        if (first..=last).contains(&of) {
            let flags = number16(bytes, 6).map_or(0, i32::from);
            answer.interrupted |= flags & libc::NLM_F_DUMP_INTR != 0;
            match kind {
                NLMSG_ERROR => match number32(body, 0).map(u32::cast_signed) {
                    Some(0) => answer.done |= of == last,
                    Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                    None => return Err(io::Error::other("a netlink error is cut off")),
                },
                NLMSG_DONE => answer.done = true,
                _ => answer.bodies.push(body.to_vec()),
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(answer)
}

impl Socket {
    pub(crate) fn open(protocol: SockProtocol) -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE, 0))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Lets requests be as large as transactions are; needs CAP_NET_ADMIN.
    pub(crate) fn allow_transactions(&self) -> io::Result<()> {
        setsockopt(&self.socket, sockopt::SndBufForce, &TRANSACTION)?;
        Ok(())
    }

    /// Sends a request and gathers the bodies of what is answered. A dump during which something changed is asked for
    /// again.
    pub(crate) fn ask(&mut self, message: &Message) -> io::Result<Vec<Vec<u8>>> {
        let mut tries = DUMPS;
        loop {
            let answer = self.exchange(std::slice::from_ref(message), 0)?;
            tries -= 1;
            if !answer.interrupted || tries == 0 {
                return Ok(answer.bodies);
            }
        }
    }

    /// Sends messages as one datagram and waits for the answer to the one with the index `answered`, which asks for it.
    /// The error of any is the error of all.
    pub(crate) fn ask_all(&mut self, messages: &[Message], answered: usize) -> io::Result<()> {
        self.exchange(messages, answered).map(drop)
    }

    fn exchange(&mut self, messages: &[Message], answered: usize) -> io::Result<Answer> {
        let first = self.sequence + 1;
        let last = first + u32::try_from(answered).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence += 1;
            message.write(&mut bytes, self.sequence)?;
        }
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        let mut buffer = vec![0; BUFFER];
        let mut whole = Answer::default();
        while !whole.done {
            let received = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let answer = cut(&buffer[..received], first, last)?;
            whole.bodies.extend(answer.bodies);
            whole.done = answer.done;
            whole.interrupted |= answer.interrupted;
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Message::new(kind, 0, body)
            .write(&mut bytes, sequence)
            .unwrap();
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
        let answer = cut(&two, 3, 3).unwrap();
        assert_eq!(answer.bodies, [vec![1; 8]]);
        assert!(answer.done);
        let refused = message(NLMSG_ERROR, 3, &(-libc::EEXIST).to_ne_bytes());
        for (first, last) in [(3, 3), (2, 9)] {
            let error = cut(&refused, first, last).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        }
        let fine = message(NLMSG_ERROR, 3, &[0; 4]);
        assert!(cut(&fine, 3, 3).unwrap().done);
        assert!(!cut(&fine, 3, 4).unwrap().done, "the last is not answered");
        let mut short = message(libc::RTM_NEWADDR, 3, &[1; 8]);
        short.truncate(20);
        assert!(cut(&short, 3, 3).is_err());
        assert_eq!(cut(&[], 3, 3).unwrap(), Answer::default());
    }
}
