//! Clients that are attached to the container's input and output.

use rustix::io::{Errno, write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A client may fall this far behind before the container's output waits for it.
const HIGH_WATER: usize = 64 * 1024;
/// A client that takes nothing for this long is let go.
const STALLED: Duration = Duration::from_secs(10);

/// Bytes on their way to a descriptor that may not take them at once.
pub(super) struct Sink {
    fd: OwnedFd,
    pending: Vec<u8>,
    since: Instant,
}

impl Sink {
    /// The descriptor has to be non-blocking.
    pub(super) fn new(fd: OwnedFd) -> Self {
        Sink {
            fd,
            pending: Vec::new(),
            since: Instant::now(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether bytes wait for the descriptor.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the source should wait.
    pub(super) fn is_full(&self) -> bool {
        self.pending.len() >= HIGH_WATER
    }

    /// Whether the other side has not taken anything for too long.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_pending() && self.since.elapsed() > STALLED
    }

    /// Adds bytes and writes what the descriptor takes. False when its other side is gone.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        if self.pending.is_empty() {
            self.since = Instant::now();
        }
        self.pending.extend_from_slice(bytes);
        self.flush()
    }

    /// Writes what the descriptor takes. False when its other side is gone.
    pub(super) fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match write(&self.fd, &self.pending) {
                Ok(n) => {
                    self.pending.drain(..n);
                    self.since = Instant::now();
                }
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        self.pending.shrink_to(4096);
        true
    }
}

/// One attached client.
#[derive(Default)]
pub(super) struct Attached {
    pub(super) input: Option<OwnedFd>,
    pub(super) stdout: Option<Sink>,
    pub(super) stderr: Option<Sink>,
    /// Its input has ended and it gets no more output: it is let go when it has what is on its way.
    pub(super) is_leaving: bool,
}

impl Attached {
    /// The sinks it has.
    pub(super) fn sinks(&mut self) -> impl Iterator<Item = &mut Option<Sink>> {
        [&mut self.stdout, &mut self.stderr].into_iter()
    }

    /// Whether the container's output should wait for it.
    pub(super) fn is_full(&self) -> bool {
        [&self.stdout, &self.stderr]
            .into_iter()
            .flatten()
            .any(Sink::is_full)
    }

    /// Whether output is still on its way.
    pub(super) fn is_pending(&self) -> bool {
        [&self.stdout, &self.stderr]
            .into_iter()
            .flatten()
            .any(Sink::is_pending)
    }

    /// Lets go of sinks that are gone or have stalled.
    pub(super) fn sweep(&mut self) {
        for sink in self.sinks() {
            if sink.as_ref().is_some_and(Sink::is_stalled) {
                *sink = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sinks_keep_what_is_not_taken() {
        let (read, write) = std::os::unix::net::UnixStream::pair().unwrap();
        write.set_nonblocking(true).unwrap();
        let mut sink = Sink::new(write.into());
        let text = vec![b'x'; 1 << 20];
        assert!(sink.push(&text));
        assert!(sink.is_pending() && sink.is_full() && !sink.is_stalled());
        let mut buffer = vec![0; 1 << 16];
        let mut got = 0;
        while got < text.len() {
            got += rustix::io::read(&read, &mut buffer).unwrap();
            assert!(sink.flush());
        }
        assert!(!sink.is_pending());
        // Not by closing it: a process that another test forks meanwhile has it, too.
        read.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!sink.push(b"y"));
    }
}
