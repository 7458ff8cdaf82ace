//! Who may still be starting a container, or running it.

use crate::monitor::files;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// How often, and how far apart, is looked whether a monitor has ended that was killed.
const ENDING_LOOKS: u32 = 200;
const ENDING_PAUSE: Duration = Duration::from_millis(50);

/// The mark that a container was to be started: locked until both the davit that starts it and its monitor have ended.
/// The monitor has it as its standard output, so that there is no moment at which neither holds it.
pub(super) struct Alive(fs::File);

impl Alive {
    /// Takes it, for a container that is about to be started.
    pub(super) fn mark(dir: &Path) -> io::Result<Self> {
        let file = fs::File::create(dir.join(files::STARTED))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    /// Whether one of the two lives, as far as that can be told.
    pub(super) fn is_held(dir: &Path) -> bool {
        fs::File::open(dir.join(files::STARTED)).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
        })
    }
}

/// Ends the processes that have the mark of a container as their standard output: its monitor, which has not said anything for
/// as long as it may. Returns whether nobody holds the mark any more.
pub(super) async fn end_monitor(dir: &Path) -> bool {
    let Ok(mark) = dir.join(files::STARTED).canonicalize() else {
        return true;
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let pid = process.file_name().to_str().and_then(|n| n.parse().ok());
        // Held before it is looked at, so that nobody else is hit.
        let Some(Ok(handle)) = pid
            .and_then(Pid::from_raw)
            .map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        // What it is, not what is in it: that might be on a file system that does not answer.
        let output = fs::read_link(process.path().join("fd/1"));
        if output.is_ok_and(|output| output == mark) {
            let killed = pidfd_send_signal(handle, Signal::KILL);
            tracing::warn!(pid = ?process.file_name(), ?killed, "a container's monitor that does not answer is ended");
        }
    }
    for _ in 0..ENDING_LOOKS {
        if !Alive::is_held(dir) {
            return true;
        }
        tokio::time::sleep(ENDING_PAUSE).await;
    }
    false
}

impl From<Alive> for Stdio {
    fn from(alive: Alive) -> Self {
        alive.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn a_monitor_that_does_not_answer_is_ended() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let begin = |dir: &Path| {
            let mut command = Command::new("sleep");
            command.arg("600").stdout(Alive::mark(dir).unwrap());
            command.spawn().unwrap()
        };
        let (mut silent, mut innocent) = (begin(dir.path()), begin(other.path()));
        assert!(Alive::is_held(dir.path()));
        assert!(end_monitor(dir.path()).await);
        assert!(!silent.wait().unwrap().success());
        assert!(innocent.try_wait().unwrap().is_none(), "another's monitor");
        assert!(Alive::is_held(other.path()));
        innocent.kill().unwrap();
        innocent.wait().unwrap();
    }
}
