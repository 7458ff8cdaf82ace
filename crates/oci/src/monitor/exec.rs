//! The parent's side of starting a process: fork, cgroup, and wait for `execve`.

use super::init::{self, FromChild, Process, Stdio};
use super::{Bundle, protocol};
use crate::cgroup::Cgroup;
use crate::sys;
use davit_beneath::Procfs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A process that has been started.
pub(super) struct Spawned {
    pub pid: Pid,
    /// Master side of its terminal.
    pub terminal: Option<OwnedFd>,
}

/// Starts a child that runs `child`, puts it into the cgroup and waits until its program runs. `namespaces` is called
/// when the child reports that its namespaces exist; with `moves` another process goes on in the child's place.
pub(super) fn spawn(
    cgroup: Option<&Cgroup>,
    oom_score_adj: Option<i32>,
    patience: Duration,
    moves: bool,
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
            // Lowering needs CAP_SYS_RESOURCE; without it the container keeps the score it inherited.
            let _ = host.write(format!("{first}/oom_score_adj"), score.to_string());
        }
        ours.set_read_timeout(Some(patience))
            .map_err(|e| e.to_string())?;
        (&ours).write_all(&[0]).map_err(|e| e.to_string())?;
        follow(&ours, &mut pid, namespaces).and_then(|terminal| {
            if moves && pid == first {
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

/// Listens to the child until its program runs; answers with the terminal, if it made one. `pid` becomes the process
/// that runs the program.
///
/// A container with SYS_PTRACE can speak in the place of a process that has joined it, so not everything is believed.
fn follow(
    mut socket: &UnixStream,
    pid: &mut Pid,
    namespaces: impl FnOnce(Pid) -> Result<(), String>,
) -> Result<Option<OwnedFd>, String> {
    /// More than a child has to say.
    const MESSAGES: usize = 8;
    let (mut terminal, mut moved) = (None, false);
    let mut namespaces = Some(namespaces);
    for _ in 0..MESSAGES {
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
            Ok(Some((FromChild::Terminal, fds))) => terminal = fds.into_iter().next(),
            Ok(Some((FromChild::Failed(message), _))) => return Err(message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err("the process did not start in time".to_owned());
            }
            Err(error) => return Err(format!("lost the new process: {error}")),
        }
    }
    Err("another process speaks for the new one".to_owned())
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
        None,
        PATIENCE,
        true,
        |_| Ok(()),
        |socket| {
            let stdio = stdio.map(|[i, o, e]| Stdio([i.as_fd(), o.as_fd(), e.as_fd()]));
            init::exec(socket, container, process, stdio.as_ref(), bundle)
        },
    )
}
