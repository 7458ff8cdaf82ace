//! The parent's side of starting a process: fork into the right pid namespace, cgroup, and wait for `execve`.

use super::init::{self, FromChild, Process, Stdio};
use super::protocol;
use crate::cgroup::Cgroup;
use crate::sys;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where the new process's pid namespace comes from.
pub(super) enum PidNamespace<'a> {
    /// The host's.
    Host,
    /// A new one, in which the process is the first.
    New,
    /// One that a file stands for.
    Path(PathBuf),
    /// The one of a process, given by its pidfd.
    Of(BorrowedFd<'a>),
}

/// A process that has been started.
pub(super) struct Spawned {
    pub pid: Pid,
    /// Master side of its terminal.
    pub terminal: Option<OwnedFd>,
}

/// Forks a child into the namespace. `None` in the child.
fn fork_into(namespace: &PidNamespace<'_>) -> io::Result<Option<Pid>> {
    if matches!(namespace, PidNamespace::Host) {
        return sys::fork();
    }
    let own = File::open("/proc/self/ns/pid")?;
    match namespace {
        PidNamespace::Host => {}
        PidNamespace::New => unshare(CloneFlags::CLONE_NEWPID)?,
        PidNamespace::Path(path) => setns(File::open(path)?, CloneFlags::CLONE_NEWPID)?,
        PidNamespace::Of(process) => setns(process, CloneFlags::CLONE_NEWPID)?,
    }
    let forked = sys::fork();
    if !matches!(forked, Ok(None)) {
        setns(own, CloneFlags::CLONE_NEWPID)?;
    }
    forked
}

/// Starts a child that runs `child`, puts it into the cgroup and waits until its program runs. `namespaces` is called
/// when the child reports that its namespaces exist.
pub(super) fn spawn(
    namespace: &PidNamespace<'_>,
    cgroup: Option<&Cgroup>,
    oom_score_adj: Option<i32>,
    patience: Duration,
    namespaces: impl FnOnce(Pid) -> Result<(), String>,
    child: impl FnOnce(&UnixStream),
) -> Result<Spawned, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
    let Some(pid) = fork_into(namespace).map_err(|e| format!("fork: {e}"))? else {
        drop(ours);
        child(&theirs);
        sys::exit_now(1)
    };
    drop(theirs);
    let outcome = (|| {
        if let Some(cgroup) = cgroup {
            cgroup.add(pid).map_err(|e| e.to_string())?;
        }
        if let Some(score) = oom_score_adj {
            // Lowering needs CAP_SYS_RESOURCE; without it the container keeps the score it inherited.
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string());
        }
        ours.set_read_timeout(Some(patience))
            .map_err(|e| e.to_string())?;
        (&ours).write_all(&[0]).map_err(|e| e.to_string())?;
        follow(&ours, pid, namespaces)
    })();
    match outcome {
        Ok(terminal) => Ok(Spawned { pid, terminal }),
        Err(message) => {
            let _ = kill(pid, Signal::SIGKILL);
            Err(message)
        }
    }
}

/// Listens to the child until its program runs; answers with the terminal, if it made one.
fn follow(
    mut socket: &UnixStream,
    pid: Pid,
    namespaces: impl FnOnce(Pid) -> Result<(), String>,
) -> Result<Option<OwnedFd>, String> {
    let mut terminal = None;
    let mut namespaces = Some(namespaces);
    loop {
        match protocol::receive::<FromChild>(socket) {
            Ok(None) => return Ok(terminal),
            Ok(Some((FromChild::Namespaces, _))) => {
                if let Some(run) = namespaces.take() {
                    run(pid)?;
                }
                socket.write_all(&[0]).map_err(|e| e.to_string())?;
            }
            Ok(Some((FromChild::Terminal, fds))) => terminal = fds.into_iter().next(),
            Ok(Some((FromChild::Failed(message), _))) => return Err(message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err("the process did not start in time".to_owned());
            }
            Err(error) => return Err(format!("lost the new process: {error}")),
        }
    }
}

/// Starts one more process in a running container.
pub(super) fn exec(
    container: BorrowedFd<'_>,
    cgroup: Option<&Cgroup>,
    process: Process,
    stdio: Option<&[OwnedFd; 3]>,
    seccomp: &[Vec<u64>],
) -> Result<Spawned, String> {
    /// Time for an exec'd process to reach its program.
    const PATIENCE: Duration = Duration::from_secs(10);
    spawn(
        &PidNamespace::Of(container),
        cgroup,
        None,
        PATIENCE,
        |_| Ok(()),
        |socket| {
            let stdio = stdio.map(|[i, o, e]| Stdio([i.as_fd(), o.as_fd(), e.as_fd()]));
            init::exec(socket, container, process, stdio.as_ref(), seccomp)
        },
    )
}
