//! The proc file system of a pid namespace, mounted by a process outside of it.

use super::confine;
use super::protocol;
use crate::caps::{CapSet, Capability};
use crate::{seccomp, sys};
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

/// All that the helper does in the namespace: it opens, answers and ends.
const CALLS: [&str; 12] = [
    "fsopen",
    "sendmsg",
    "close",
    "exit_group",
    // to begin there
    "clone",
    "clone3",
    "set_robust_list",
    "rt_sigprocmask",
    // the allocator's
    "brk",
    "mmap",
    "munmap",
    "futex",
];

fn opened() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", "proc")?;
    Ok(context)
}

fn mounted(context: impl AsFd) -> rustix::io::Result<OwnedFd> {
    fsconfig_create(context.as_fd())?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)
}

fn directly(namespace: &impl AsFd) -> rustix::io::Result<OwnedFd> {
    let context = opened()?;
    fsconfig_set_fd(context.as_fd(), "pidns", namespace.as_fd())?;
    mounted(context)
}

/// The proc file system of the namespace, not yet attached anywhere.
pub(super) fn mount_of(namespace: &impl AsFd) -> Result<OwnedFd> {
    match directly(namespace) {
        // Kernels before 6.17 show the namespace of who opens, and nothing else.
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

/// Has it opened by a process inside, and mounts it here.
///
/// A container that may trace sees the process, and can do by it what it can do. That is little: it keeps the right to mount,
/// without which nothing is opened, but may make no call that mounts or changes what is mounted.
fn by_helper(namespace: &impl AsFd) -> io::Result<OwnedFd> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let filter = seccomp::only(&CALLS).map_err(io::Error::other)?;
    let (ours, theirs) = UnixStream::pair()?;
    if sys::fork()?.is_none() {
        drop(ours);
        sys::exit_now(i32::from(help(namespace, &theirs, &filter).is_err()))
    }
    drop(theirs);
    ours.set_read_timeout(Some(PATIENCE))?;
    let answer = protocol::receive::<()>(&ours)?;
    let context = answer
        .and_then(|((), fds)| fds.into_iter().next())
        .ok_or_else(|| io::Error::other("no answer"))?;
    // No file system but proc takes this: whatever was sent instead is not made here, with the host's rights.
    fsconfig_set_string(context.as_fd(), "hidepid", "0")?;
    fsconfig_set_string(context.as_fd(), "source", "proc")?;
    Ok(mounted(context)?)
}

fn help(namespace: &impl AsFd, socket: &UnixStream, filter: &[Vec<u64>]) -> Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWPID).map_err(|e| e.desc().to_owned())?;
    give_up(socket, filter)?;
    if sys::fork().map_err(|e| e.to_string())?.is_none() {
        let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| e.to_string())?;
        protocol::send(socket, &(), &[context.as_fd()]).map_err(|e| e.to_string())?;
    }
    // Both end here.
    sys::exit_now(0)
}

/// Gives up what there is to take, before anybody inside can see it.
fn give_up(socket: &UnixStream, filter: &[Vec<u64>]) -> Result<()> {
    confine::empty_root()?;
    confine::keep_only(CapSet::of(&[Capability::SysAdmin]))?;
    sys::close_all_but(socket).map_err(|e| e.to_string())?;
    for program in filter {
        sys::install_seccomp(program, 0).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc;
    use nix::sched::unshare;
    use rustix::fs::{fstatfs, readlinkat};
    use std::fs::File;

    /// The process namespace of a process that waits in it, until its input is closed.
    fn inside() -> Option<(std::process::Child, File)> {
        let started = std::process::Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "cat"])
            .stdin(std::process::Stdio::piped())
            .spawn();
        let child = started.ok()?;
        let file = format!("/proc/{}/ns/pid_for_children", child.id());
        let own = std::fs::read_link("/proc/self/ns/pid").ok()?;
        for _ in 0..500 {
            if std::fs::read_link(&file).is_ok_and(|of| of != own)
                && let Ok(file) = File::open(&file)
            {
                return Some((child, file));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    #[test]
    fn a_helper_opens_the_proc_of_a_namespace() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return;
        }
        let Some((mut child, namespace)) = inside() else {
            println!("skipped: no unshare");
            return;
        };
        let direct = directly(&namespace);
        for mount in [by_helper(&namespace), direct.map_err(io::Error::from)] {
            let mount = match mount {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    println!("skipped: a kernel before 6.17");
                    continue;
                }
                other => other.unwrap(),
            };
            assert_eq!(fstatfs(&mount).unwrap().f_type, libc::PROC_SUPER_MAGIC);
            let of = readlinkat(&mount, "1/ns/pid", Vec::new()).unwrap();
            let link = std::fs::read_link(format!("/proc/{}/ns/pid_for_children", child.id()));
            assert_eq!(of.to_bytes(), link.unwrap().as_os_str().as_encoded_bytes());
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// What a container would have of it that takes it over.
    #[test]
    fn a_helper_mounts_nothing() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: namespaces need root");
            return;
        }
        let filter = seccomp::only(&CALLS).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let Some(child) = sys::fork().unwrap() else {
            let refused = |made: rustix::io::Result<()>| made == Err(Errno::PERM);
            let works = || -> Result<bool> {
                give_up(&theirs, &filter)?;
                let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
                let context = context.map_err(|e| e.to_string())?;
                let source = fsconfig_set_string(context.as_fd(), "source", "x");
                let flags = rustix::mount::MountFlags::empty();
                let mount = rustix::mount::mount("x", "/", "tmpfs", flags, None::<&std::ffi::CStr>);
                let apart = unshare(CloneFlags::CLONE_NEWNS).is_err();
                let create = fsconfig_create(context.as_fd());
                Ok(refused(source) && refused(mount) && refused(create) && apart)
            };
            sys::exit_now(i32::from(works() != Ok(true)))
        };
        drop((ours, theirs));
        let ended = nix::sys::wait::waitpid(child, None).unwrap();
        assert!(
            matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)),
            "{ended:?}"
        );
    }
}
