//! Entering namespaces, and the pid namespace last.
//!
//! A process that enters a pid namespace in which a container runs can be reached by that container. So whatever still
//! holds the host's mounts or more capabilities than the container stays outside: the other namespaces, the file
//! systems, the user and the capabilities come first, and only then a fork inside goes on to the program.

use super::init::FromChild;
use super::{Bundle, ProcessMark, protocol, start_ticks};
use crate::sys;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

type Result<T, E = String> = std::result::Result<T, E>;

/// Where a container's processes are counted.
pub(super) enum Pids {
    /// With the host's.
    Host,
    /// In a namespace of their own, which is still to be made.
    New,
    /// In one that others are in already.
    Shared(File),
}

/// The namespaces of a container: files of those that exist, flags of those to be made.
pub(super) struct Namespaces {
    /// The pod's user namespace, when its users are not the host's.
    pub(super) users: Option<File>,
    joined: Vec<(PathBuf, File, CloneFlags)>,
    new: CloneFlags,
    pids: Pids,
}

impl Namespaces {
    /// Opens the files while the host's are in sight.
    pub(super) fn open(spec: &Spec, bundle: &Bundle) -> Result<Self> {
        let mut all = Namespaces {
            users: None,
            joined: Vec::new(),
            new: CloneFlags::empty(),
            pids: Pids::Host,
        };
        for namespace in spec
            .linux()
            .iter()
            .flat_map(|linux| linux.namespaces().iter().flatten())
        {
            let file = namespace
                .path()
                .as_ref()
                .map(|path| {
                    File::open(path).map_err(|e| format!("namespace {}: {e}", path.display()))
                })
                .transpose()?;
            let flag = match namespace.typ() {
                LinuxNamespaceType::Mount => CloneFlags::CLONE_NEWNS,
                LinuxNamespaceType::Cgroup => CloneFlags::CLONE_NEWCGROUP,
                LinuxNamespaceType::Network => CloneFlags::CLONE_NEWNET,
                LinuxNamespaceType::Ipc => CloneFlags::CLONE_NEWIPC,
                LinuxNamespaceType::Uts => CloneFlags::CLONE_NEWUTS,
                LinuxNamespaceType::Pid => {
                    all.pids = file.map_or(Pids::New, Pids::Shared);
                    continue;
                }
                LinuxNamespaceType::User => {
                    all.users = Some(file.ok_or("a user namespace without a file")?);
                    continue;
                }
                other => return Err(format!("{other} namespaces are not supported")),
            };
            match (file, namespace.path()) {
                (Some(file), Some(path)) => all.joined.push((path.clone(), file, flag)),
                _ => all.new |= flag,
            }
        }
        // The file of another container's namespace goes by a number that may have been given anew.
        if let Some(ProcessMark {
            pid,
            start_ticks: then,
        }) = bundle.target
            && start_ticks(pid) != Some(then)
        {
            return Err("the target container has ended".to_owned());
        }
        Ok(all)
    }

    /// Enters or makes all of them but the pid namespace, which it hands back. The user namespace comes first, so that
    /// those that are made belong to it.
    pub(super) fn enter(self) -> Result<Pids> {
        if let Some(users) = &self.users {
            super::userns::enter(users)?;
        }
        for (path, file, flag) in self.joined {
            setns(file, flag)
                .map_err(|e| format!("join namespace {}: {}", path.display(), e.desc()))?;
        }
        unshare(self.new).map_err(|e| format!("make namespaces: {}", e.desc()))?;
        Ok(self.pids)
    }
}

/// Goes on as the first process of a new pid namespace. Nobody else is in it, so the rest may be done inside.
pub(super) fn into_new_pids(socket: &UnixStream) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWPID).map_err(|e| format!("make a pid namespace: {}", e.desc()))?;
    go_on_as_sibling(socket, true)?;
    super::init::wait_for_parent(socket)
}

/// Goes on as another child of the monitor, in the pid namespace that was chosen for children; this process ends. With
/// `waits` the new one is going to wait for the monitor to have heard of it.
pub(super) fn go_on_as_sibling(socket: &UnixStream, waits: bool) -> Result<()> {
    if let Some(pid) = sys::fork_sibling().map_err(|e| format!("fork: {e}"))? {
        // By write(2), which no profile that lets a program run refuses.
        let moved = FromChild::Moved {
            pid: pid.as_raw(),
            waits,
        };
        let sent = protocol::encode(&moved).and_then(|frame| (&mut &*socket).write_all(&frame));
        sys::exit_now(i32::from(sent.is_err()))
    }
    // Cleared by the change of user: a container does not outlive its monitor.
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    let mut ours = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // The socket's other end hangs up when the monitor was gone before it could be asked for.
    match poll(&mut ours, Some(&now)) {
        Ok(count) if count > 0 && ours[0].revents().contains(PollFlags::HUP) => {
            Err("the monitor went away".to_owned())
        }
        _ => Ok(()),
    }
}
