//! The first process of a pid namespace that the containers of a pod share: it reaps orphans and does nothing else.
//!
//! Containers see it, as process 1, so it keeps nothing that is worth reaching: its root is empty, it is nobody, holds no
//! capabilities and no descriptors, and may make only the system calls that reaping takes.

use super::{confine, userns};
use crate::{seccomp, sys};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

type Result<T, E = String> = std::result::Result<T, E>;

/// All that the process does after it is confined.
const CALLS: [&str; 7] = [
    "wait4",
    "rt_sigtimedwait",
    "rt_sigreturn",
    "restart_syscall",
    "nanosleep",
    "clock_nanosleep",
    "exit_group",
];

/// Files of the pod's other namespaces, in which the process lives; its input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    /// The user namespace, when it is not the host's.
    pub(crate) user: Option<PathBuf>,
    /// The others, which belong to it.
    pub(crate) others: Vec<PathBuf>,
}

/// Makes the namespace, prints the first process's ID and leaves it running.
pub(super) fn main() -> i32 {
    match begin() {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("{message}");
            1
        }
    }
}

fn begin() -> Result<()> {
    let text = |e: std::io::Error| e.to_string();
    // Inherited by the process below, which can be seen from its first instant.
    prctl::set_dumpable(false).map_err(|e| e.desc().to_owned())?;
    // The new process must not hold davit's terminal or its process group.
    let _ = nix::unistd::setsid();
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).map_err(text)?;
    let around: Surroundings = serde_json::from_slice(&input).map_err(|e| e.to_string())?;
    let opened = around
        .others
        .iter()
        .map(File::open)
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(text)?;
    if let Some(user) = &around.user {
        userns::enter(&File::open(user).map_err(text)?)?;
    }
    for (namespace, file) in opened.into_iter().zip(&around.others) {
        setns(namespace, CloneFlags::empty())
            .map_err(|e| format!("join {}: {}", file.display(), e.desc()))?;
    }
    let filter = seccomp::only(&CALLS).map_err(|e| e.to_string())?;
    let (ready, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| std::io::Error::from(e).to_string())?;
    confine::empty_root()?;
    unshare(CloneFlags::CLONE_NEWCGROUP | CloneFlags::CLONE_NEWPID)
        .map_err(|e| format!("make namespaces: {}", e.desc()))?;
    let Some(pid) = sys::fork().map_err(text)? else {
        drop(ready);
        sys::exit_now(i32::from(first_process(tell, &filter).is_err()))
    };
    drop(tell);
    // davit starts no container before the process is confined.
    let mut byte = [0];
    File::from(ready)
        .read_exact(&mut byte)
        .map_err(|_| "the first process ended".to_owned())?;
    let mut out = std::io::stdout();
    writeln!(out, "{pid}")
        .and_then(|()| out.flush())
        .map_err(text)
}

fn first_process(tell: OwnedFd, filter: &[Vec<u64>]) -> Result<()> {
    let _ = prctl::set_name(c"pause");
    confine::become_nobody()?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.thread_block().map_err(|e| e.desc().to_owned())?;
    rustix::io::write(&tell, &[1]).map_err(|e| std::io::Error::from(e).to_string())?;
    drop(tell);
    sys::close_from(0).map_err(|e| e.to_string())?;
    for program in filter {
        sys::install_seccomp(program, 0).map_err(|e| e.to_string())?;
    }
    loop {
        while sys::reap().is_some() {}
        if signals.wait().is_err() {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
}
