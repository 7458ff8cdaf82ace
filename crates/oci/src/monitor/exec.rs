//! The parent's side of starting a process: fork, cgroup, and wait for `execve`.

use super::init::{self, FromChild, Process, Stdio};
use super::{Bundle, protocol};
use crate::cgroup::Cgroup;
use crate::sys;
use davit_beneath::Procfs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How often is looked whether a process that says nothing is still there.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// A process that has been started.
pub(super) struct Spawned {
    pub pid: Pid,
    /// Master side of its terminal.
    pub terminal: Option<OwnedFd>,
}

/// Starts a child that runs `child`, puts it into the cgroup and waits until its program runs. `namespaces` is called
/// when the child reports that its namespaces exist. Nobody is believed to do what is not `expected`.
pub(super) fn spawn(
    cgroup: Option<&Cgroup>,
    oom_score_adj: Option<i32>,
    patience: Duration,
    expected: Expected,
    namespaces: impl FnOnce(Pid) -> Result<(), String>,
    child: impl FnOnce(&UnixStream),
) -> Result<Spawned, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
    // Opened before the fork: the child's view of /proc becomes the container's.
    let host = Procfs::of_host().map_err(|e| e.to_string())?;
    let Some(first) = sys::fork().map_err(|e| format!("fork: {e}"))? else {
        drop(ours);
        child(&theirs);
        sys::exit_now(1)
    };
    drop(theirs);
    let mut pid = first;
    let outcome = (|| {
        if let Some(cgroup) = cgroup {
            cgroup.add(first).map_err(|e| e.to_string())?;
        }
        if let Some(score) = oom_score_adj {
            set_oom_score(host, first, score)?;
        }
        ours.set_read_timeout(Some(patience))
            .map_err(|e| e.to_string())?;
        (&ours).write_all(&[0]).map_err(|e| e.to_string())?;
        let until = Instant::now() + patience;
        follow(&ours, &mut pid, expected.terminal, until, namespaces).and_then(|terminal| {
            if expected.moves && pid == first {
                return Err("the new process ended".to_owned());
            }
            Ok(terminal)
        })
    })();
    match outcome {
        Ok(terminal) => Ok(Spawned { pid, terminal }),
        Err(message) => {
            // Both are our children and not yet waited for, so the numbers are still theirs.
            let _ = kill(first, Signal::SIGKILL);
            let _ = kill(pid, Signal::SIGKILL);
            Err(message)
        }
    }
}

/// What a child does on its way to its program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Another process goes on in its place.
    pub moves: bool,
    /// It makes a terminal.
    pub terminal: bool,
}

/// Says how readily the kernel ends a process for want of memory. It has davit's score so far, which may be one that is
/// hardly ever ended.
fn set_oom_score(host: &Procfs, pid: Pid, score: i32) -> Result<(), String> {
    let path = format!("{pid}/oom_score_adj");
    match host.write(&path, score.to_string()) {
        Ok(()) => Ok(()),
        // Lowering needs CAP_SYS_RESOURCE; without it the process keeps a score that makes it go first.
        Err(error) => {
            let now = host.read(&path, 16).map_err(|e| e.to_string())?;
            let now = String::from_utf8_lossy(&now);
            match now.trim().parse::<i32>() {
                Ok(now) if now >= score => Ok(()),
                _ => Err(format!("oom_score_adj: {error}")),
            }
        }
    }
}

/// Listens to the child until its program runs; answers with the terminal, if it made one. `pid` becomes the process
/// that runs the program.
///
/// A container with SYS_PTRACE can speak in the place of a process that has joined it, so not everything is believed: a
/// terminal comes once, where one is made, which is before the child joins anybody.
fn follow(
    mut socket: &UnixStream,
    pid: &mut Pid,
    makes_terminal: bool,
    until: Instant,
    namespaces: impl FnOnce(Pid) -> Result<(), String>,
) -> Result<Option<OwnedFd>, String> {
    /// More than a child has to say.
    const MESSAGES: usize = 8;
    let (mut terminal, mut moved, mut ended) = (None, false, false);
    let mut namespaces = Some(namespaces);
    let mut messages = 0;
    while messages < MESSAGES {
        if !says_something(socket).map_err(|e| format!("listen to the new process: {e}"))? {
            if Instant::now() >= until {
                return Err("the process did not start in time".to_owned());
            }
            // The kernel may have ended it for want of memory, with another that was to go on in its place still waiting to be
            // heard of. What it had said was there before it ended.
            if ended {
                return Err("the new process ended".to_owned());
            }
            ended = sys::has_ended(*pid);
            continue;
        }
        messages += 1;
        match protocol::receive::<FromChild>(socket) {
            Ok(None) => return Ok(terminal),
            Ok(Some((FromChild::Namespaces, _))) => {
                if let Some(run) = namespaces.take() {
                    run(*pid)?;
                }
                socket.write_all(&[0]).map_err(|e| e.to_string())?;
            }
            Ok(Some((FromChild::Moved { pid: now, waits }, _))) => {
                if moved || !sys::is_child(Pid::from_raw(now)) {
                    return Err("another process speaks for the new one".to_owned());
                }
                (*pid, moved) = (Pid::from_raw(now), true);
                if waits {
                    socket.write_all(&[0]).map_err(|e| e.to_string())?;
                }
            }
            Ok(Some((FromChild::Terminal, fds))) => {
                if !makes_terminal || terminal.is_some() {
                    return Err("another process speaks for the new one".to_owned());
                }
                terminal = fds.into_iter().next();
            }
            Ok(Some((FromChild::Failed(message), _))) => return Err(message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err("the process did not start in time".to_owned());
            }
            Err(error) => return Err(format!("lost the new process: {error}")),
        }
    }
    Err("another process speaks for the new one".to_owned())
}

/// Whether there is something to be read, or its end, within [`LOOK`].
fn says_something(socket: &UnixStream) -> rustix::io::Result<bool> {
    let mut one = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut one, Some(&LOOK)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Starts one more process in a running container.
pub(super) fn exec(
    container: BorrowedFd<'_>,
    cgroup: Option<&Cgroup>,
    process: Process,
    stdio: Option<&[OwnedFd; 3]>,
    bundle: &Bundle,
) -> Result<Spawned, String> {
    /// Time for an exec'd process to reach its program.
    const PATIENCE: Duration = Duration::from_secs(10);
    spawn(
        cgroup,
        process.oom_score_adj,
        PATIENCE,
        Expected {
            moves: true,
            terminal: stdio.is_none(),
        },
        |_| Ok(()),
        |socket| {
            let stdio = stdio.map(|[i, o, e]| Stdio([i.as_fd(), o.as_fd(), e.as_fd()]));
            init::exec(socket, container, process, stdio.as_ref(), bundle)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_without_a_word_is_not_waited_for() {
        let begun = Instant::now();
        let expected = Expected {
            moves: true,
            terminal: false,
        };
        let ends = |socket: &UnixStream| {
            let _ = init::wait_for_parent(socket);
            // The other one waits to be heard of, and is not: its socket keeps the end of this one from being seen.
            if let Ok(None) = sys::fork_sibling() {
                let _ = init::wait_for_parent(socket);
            }
            sys::exit_now(9)
        };
        let patience = Duration::from_secs(60);
        let outcome = spawn(None, None, patience, expected, |_| Ok(()), ends);
        let told = outcome.err();
        assert_eq!(told.as_deref(), Some("the new process ended"));
        assert!(begun.elapsed() < patience / 4, "{:?}", begun.elapsed());
    }
}
