//! How many connections a server holds, and how long.

use std::time::Duration;

/// Files that must remain for what is no connection of the server, in parts of all.
const OF_FILES: usize = 2;

/// How long a connection on which nothing is asked for stays open. Longer than the 90 seconds for which clients keep one (Go's
/// `DefaultTransport`, hyper's pool): who closes it must be the one who asks, or a question can meet the close and is lost.
pub const IDLE: Duration = Duration::from_secs(120);

/// How many connections there may be and how long they may do nothing.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Of strangers on other machines.
    pub strangers: usize,
    /// Of strangers on this machine.
    pub loopback: usize,
    /// Of clients that have shown who they are.
    pub known: usize,
    /// Until the first request has come whole, TLS included.
    pub first_request: Duration,
    /// Without a request under way.
    pub idle: Duration,
    /// Long-running requests (watches, logs) at once, those that are passed on among them.
    pub long_running: usize,
    /// Upgraded connections (exec, attach, port-forward) at once, and long-running requests that are passed on.
    pub sessions: usize,
    /// Until an upgraded connection on which nothing comes or goes is closed, and one whose client takes nothing of a
    /// stream that is no watch.
    pub session_idle: Duration,
    /// Bytes of answers that nobody has taken yet.
    pub unsent: usize,
}

impl ConnectionLimits {
    /// Scales the numbers of connections to what the process may open: all servers of a process together get half of
    /// that, this one `part` of `parts`.
    #[must_use]
    pub fn within_files(mut self, part: usize, parts: usize) -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.and_then(|n| usize::try_from(n).ok());
        let wanted = self.strangers + self.loopback + self.known;
        let have = files.map_or(wanted, |files| {
            (files / OF_FILES).saturating_mul(part) / parts.max(1)
        });
        if have < wanted {
            for count in [&mut self.strangers, &mut self.loopback, &mut self.known] {
                *count = (*count * have / wanted).max(1);
            }
        }
        // each holds a second one, to where it leads
        self.sessions = self.sessions.min(self.known);
        self
    }
}
