//! The proc file system of a pid namespace, mounted by a process outside of it.

use super::confine;
use super::protocol;
use crate::caps::{CapSet, Capability};
use crate::sys;
use nix::sched::{CloneFlags, setns};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_string, fsmount, fsopen,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

type Result<T, E = String> = std::result::Result<T, E>;

fn mounted(of: Option<&impl AsFd>) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "proc")?;
    if let Some(namespace) = of {
        fsconfig_set_fd(context.as_fd(), "pidns", namespace.as_fd())?;
    }
    fsconfig_create(context.as_fd())?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

/// The proc file system of the namespace, not yet attached anywhere.
pub(super) fn mount_of(namespace: &impl AsFd) -> Result<OwnedFd> {
    match mounted(Some(namespace)) {
        // Kernels before 6.17 show the namespace of who mounts, and nothing else.
        Err(Errno::INVAL) => {
            by_helper(namespace).map_err(|e| format!("mount proc of another pid namespace: {e}"))
        }
        other => other.map_err(|e| {
            format!(
                "mount proc of another pid namespace: {}",
                io::Error::from(e)
            )
        }),
    }
}

/// Has it mounted by a process inside, which holds nothing but the right to mount.
fn by_helper(namespace: &impl AsFd) -> io::Result<OwnedFd> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (ours, theirs) = UnixStream::pair()?;
    if sys::fork()?.is_none() {
        drop(ours);
        sys::exit_now(i32::from(help(namespace, &theirs).is_err()))
    }
    drop(theirs);
    ours.set_read_timeout(Some(PATIENCE))?;
    let answer = protocol::receive::<()>(&ours)?;
    answer
        .and_then(|((), fds)| fds.into_iter().next())
        .ok_or_else(|| io::Error::other("no answer"))
}

fn help(namespace: &impl AsFd, socket: &UnixStream) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWPID).map_err(|e| e.desc().to_owned())?;
    confine::empty_root()?;
    confine::keep_only(CapSet::of(&[Capability::SysAdmin]))?;
    sys::close_all_but(socket).map_err(|e| e.to_string())?;
    if sys::fork().map_err(|e| e.to_string())?.is_none() {
        let mount = mounted(None::<&OwnedFd>).map_err(|e| e.to_string())?;
        protocol::send(socket, &(), &[mount.as_fd()]).map_err(|e| e.to_string())?;
    }
    // Both end here.
    sys::exit_now(0)
}
