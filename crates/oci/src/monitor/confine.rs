//! What davit's own processes give up before anything of a pod can look at them.
//!
//! A process in a pid namespace that containers see is reached by them: `/proc/<pid>/root`, `/proc/<pid>/fd`, `ptrace`.
//! Whoever holds CAP_SYS_PTRACE may do that whatever the process's own protection says, so such a process must have
//! nothing worth taking: no host directory as root, no descriptors, no capabilities.

use crate::caps::CapSet;
use crate::sys;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

type Result<T, E = String> = std::result::Result<T, E>;

/// Nobody's user and group, as the pause images of others have it.
const NOBODY: u32 = 65535;

fn failed<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("{what}: {}", error.into())
}

/// Moves into a mount namespace of its own whose root is empty and read-only; the host's files are gone.
pub(super) fn empty_root() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("make a mount namespace"))?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .map_err(failed("cut propagation"))?;
    // Any directory would do: what is below is let go of at once.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount(
        "empty",
        "/proc",
        "tmpfs",
        flags,
        c"size=4k,nr_inodes=2,mode=0555",
    )
    .map_err(failed("mount an empty root"))?;
    rustix::process::chdir("/proc").map_err(failed("enter the empty root"))?;
    rustix::process::pivot_root(".", ".").map_err(failed("pivot_root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("unmount the old root"))?;
    rustix::process::chdir("/").map_err(failed("enter /"))
}

/// Keeps no capabilities but these, for good, and what others may look at nothing.
pub(super) fn keep_only(caps: CapSet) -> Result<()> {
    sys::limit_bounding_set(caps).map_err(failed("bounding capabilities"))?;
    sys::set_caps(caps, caps, CapSet::default()).map_err(failed("set capabilities"))?;
    sys::set_ambient(CapSet::default()).map_err(failed("ambient capabilities"))?;
    prctl::set_no_new_privs().map_err(failed("no_new_privs"))?;
    // A change of credentials may have set it again.
    prctl::set_dumpable(false).map_err(failed("dumpable"))
}

/// Becomes nobody, without capabilities.
pub(super) fn become_nobody() -> Result<()> {
    sys::limit_bounding_set(CapSet::default()).map_err(failed("bounding capabilities"))?;
    setgroups(&[]).map_err(failed("set groups"))?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setresgid(gid, gid, gid).map_err(failed("set group"))?;
    setresuid(uid, uid, uid).map_err(failed("set user"))?;
    keep_only(CapSet::default())
}
