//! The first process of a pid namespace that the containers of a pod share: it reaps orphans and does nothing else.

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use rustix::stdio;
use std::io::Write;

/// Makes the namespace, prints the first process's ID and leaves it running.
pub(super) fn main() -> i32 {
    // The new process must not hold davit's terminal or its process group.
    let _ = nix::unistd::setsid();
    if unshare(CloneFlags::CLONE_NEWPID).is_err() {
        return 1;
    }
    match crate::sys::fork() {
        Ok(Some(pid)) => {
            let mut out = std::io::stdout();
            i32::from(writeln!(out, "{pid}").and_then(|()| out.flush()).is_err())
        }
        Ok(None) => reap_forever(),
        Err(_) => 1,
    }
}

fn reap_forever() -> i32 {
    let _ = nix::sys::prctl::set_name(c"pause");
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(signal);
    }
    let _ = signals.thread_block();
    if let Ok(null) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = stdio::dup2_stdin(&null);
        let _ = stdio::dup2_stdout(&null);
        let _ = stdio::dup2_stderr(&null);
    }
    loop {
        while crate::sys::reap().is_some() {}
        match signals.wait() {
            Ok(Signal::SIGCHLD) => {}
            Ok(_) => return 0,
            Err(_) => std::thread::sleep(std::time::Duration::from_secs(1)),
        }
    }
}
