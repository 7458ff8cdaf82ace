//! The few system calls that no safe wrapper of ours covers. Every `unsafe` of the crate is in this file.
#![allow(unsafe_code)]

use crate::caps::CapSet;
use nix::libc;
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Forks. `None` in the child. Only for the monitor, which has a single thread: the child may then allocate and lock.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the monitor process never starts a second thread, so no lock can be held by a thread that the child lacks.
    match unsafe { nix::unistd::fork() } {
        Ok(nix::unistd::ForkResult::Parent { child }) => Ok(Some(child)),
        Ok(nix::unistd::ForkResult::Child) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Forks a process whose parent is this one's parent, in the pid namespace that was chosen for children. `None` in the
/// new process. As [`fork`], only for the monitor.
pub(crate) fn fork_sibling() -> io::Result<Option<Pid>> {
    let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as libc::c_ulong;
    // SAFETY: as in `fork`; without a stack of its own and without shared memory clone is fork.
    match check(unsafe { libc::syscall(libc::SYS_clone, flags, 0usize, 0usize, 0usize, 0usize) })? {
        0 => Ok(None),
        pid => Ok(Some(Pid::from_raw(pid as libc::pid_t))),
    }
}

/// Ends the process at once, without running destructors or flushing buffers that belong to the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Takes a descriptor that was inherited under a known number.
pub(crate) fn inherited_fd(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller is the start of the monitor, which got this number from its parent and takes it once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Gives every signal its default action again and unblocks all: what a fresh program expects.
pub(crate) fn reset_signals() {
    use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
    for signal in Signal::iterator() {
        if signal != Signal::SIGKILL && signal != Signal::SIGSTOP {
            // SAFETY: installing the default action runs no code of ours.
            let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
        }
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

/// Closes every descriptor from `first` on, whoever has it. For a process that is about to end or to run a program.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    close_range(first, libc::c_uint::MAX)
}

/// The same for all descriptors above the standard ones, without the given one.
pub(crate) fn close_all_but(kept: impl AsFd) -> io::Result<()> {
    let kept = u32::try_from(kept.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    if kept > 3 {
        close_range(3, kept - 1)?;
    }
    close_from(kept.max(2) + 1)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the callers make no more use of the descriptors, and drop none of their owners: they end by `_exit` or
    // `execve`.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Attributes for [`mount_setattr`], as in mount_setattr(2).
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct MountAttr {
    /// `MOUNT_ATTR_*` flags to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` flags to clear.
    pub clear: u64,
    /// `MS_SHARED`, `MS_SLAVE`, `MS_PRIVATE` or 0.
    pub propagation: u64,
    /// User namespace for idmapped mounts; unused.
    pub userns_fd: u64,
}

/// Changes the attributes of a mount (or, with `recursive`, of the whole tree below it).
pub(crate) fn mount_setattr(mount: impl AsFd, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, `attr` is a valid mount_attr of the size given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// The capabilities this process may use at most (its permitted set).
pub(crate) fn permitted_caps() -> io::Result<CapSet> {
    let mut header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    // SAFETY: version 3 writes two data elements, which is what the array holds.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(CapSet(
        u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32,
    ))
}

/// Sets the effective, permitted and inheritable sets of this process.
pub(crate) fn set_caps(
    effective: CapSet,
    permitted: CapSet,
    inheritable: CapSet,
) -> io::Result<()> {
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let half = |shift: u32| CapData {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: (inheritable.0 >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 reads two data elements.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

fn prctl(option: libc::c_int, a: libc::c_ulong, b: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: only used for options whose arguments are plain numbers.
    let result = unsafe { libc::prctl(option, a, b, 0, 0) };
    check(libc::c_long::from(result)).map(|_| result)
}

/// Removes every capability that is not in `keep` from the bounding set.
pub(crate) fn limit_bounding_set(keep: CapSet) -> io::Result<()> {
    for cap in 0..64 {
        match prctl(libc::PR_CAPBSET_READ, cap, 0) {
            Ok(1) if keep.0 & (1 << cap) == 0 => {
                prctl(libc::PR_CAPBSET_DROP, cap, 0)?;
            }
            Ok(_) => {}
            Err(_) => break, // past the kernel's last capability
        }
    }
    Ok(())
}

/// Raises ambient capabilities; each must be permitted and inheritable.
pub(crate) fn set_ambient(set: CapSet) -> io::Result<()> {
    prctl(
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
        0,
    )?;
    for cap in (0..64).filter(|cap| set.0 & (1 << cap) != 0) {
        prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
            cap,
        )?;
    }
    Ok(())
}

/// Lets go of the session keyring that this process has, and makes one for it and those that it starts. Others do not reach it,
/// whoever their user is. A kernel without keyrings is no error.
pub(crate) fn own_session_keyring() -> io::Result<()> {
    const JOIN: libc::c_int = 1;
    const SET_PERMISSIONS: libc::c_int = 5;
    /// Everything for who has it, nothing for its user.
    const PERMISSIONS: libc::c_ulong = 0x3f00_0000;
    let nameless = std::ptr::null::<libc::c_char>();
    // SAFETY: no name is given.
    let keyring = match check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN, nameless) }) {
        Ok(keyring) => keyring,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
        Err(error) => return Err(error),
    };
    // SAFETY: all arguments are numbers.
    check(unsafe { libc::syscall(libc::SYS_keyctl, SET_PERMISSIONS, keyring, PERMISSIONS) })
        .map(drop)
}

/// Installs one seccomp filter program (each `u64` is one `sock_filter`, in memory order) on this thread, with flags of
/// `seccomp(2)` that return nothing.
pub(crate) fn install_seccomp(program: &[u64], flags: u32) -> io::Result<()> {
    let len =
        u16::try_from(program.len()).map_err(|_| io::Error::other("seccomp program too long"))?;
    let prog = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: `sock_filter` is 8 bytes with alignment 4, so a u64 slice of `len` elements is a valid program of `len`
    // instructions; the kernel copies it.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const prog,
        )
    })
    .map(drop)
}

/// Whether the kernel has seccomp filters.
pub(crate) fn seccomp_available() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: SECCOMP_GET_ACTION_AVAIL reads one u32.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    result == 0
}

/// Brings the loopback device of the current network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: an all-zero ifreq is valid; the name is shorter than the field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    check(libc::c_long::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    }))
    .map(drop)
}

/// Loads a cgroup device program and attaches it to the cgroup (v2).
pub(crate) fn attach_device_program(cgroup: impl AsFd, program: &[u64]) -> io::Result<()> {
    #[repr(C)]
    struct LoadAttr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
    }
    #[repr(C)]
    struct AttachAttr {
        target_fd: u32,
        attach_bpf_fd: u32,
        attach_type: u32,
        attach_flags: u32,
    }
    const PROG_LOAD: libc::c_int = 5;
    const PROG_ATTACH: libc::c_int = 8;
    const TYPE_CGROUP_DEVICE: u32 = 15;
    const ATTACH_CGROUP_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    let load = LoadAttr {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(program.len()).map_err(io::Error::other)?,
        insns: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: `load` describes `program`, which lives until the call returns; the kernel copies and verifies it.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const load,
            size_of::<LoadAttr>(),
        )
    })?;
    // SAFETY: the kernel just returned this descriptor to us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let attach = AttachAttr {
        target_fd: cgroup.as_fd().as_raw_fd() as u32,
        attach_bpf_fd: fd.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI,
    };
    // SAFETY: both descriptors are open for the length of the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_ATTACH,
            &raw const attach,
            size_of::<AttachAttr>(),
        )
    })
    .map(drop)
}

/// How one child ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// The child.
    pub pid: Pid,
    /// Its exit code; 128 + n for signal n.
    pub code: i32,
}

/// Reaps one ended child, if there is one.
pub(crate) fn reap() -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: waitpid writes one int. The raw call, because the safe wrapper loses children that a real-time
        // signal killed.
        match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
            0 => return None,
            pid if pid > 0 => {
                let code = if libc::WIFEXITED(status) {
                    libc::WEXITSTATUS(status)
                } else if libc::WIFSIGNALED(status) {
                    128 + libc::WTERMSIG(status)
                } else {
                    continue;
                };
                return Some(Ended {
                    pid: Pid::from_raw(pid),
                    code,
                });
            }
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

/// Whether a child of this process, which has not been waited for, has ended.
pub(crate) fn has_ended(pid: Pid) -> bool {
    use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    RawPid::from_raw(pid.as_raw())
        .is_some_and(|pid| matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_))))
}

/// Whether the process is a child of this one that has not been waited for, so that its number is its own.
pub(crate) fn is_child(pid: Pid) -> bool {
    use rustix::process::{Pid as RawPid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    RawPid::from_raw(pid.as_raw())
        .filter(|_| pid.as_raw() > 0)
        .is_some_and(|pid| waitid(WaitId::Pid(pid), options).is_ok())
}

/// Sets the action of a signal; only for [`SigHandler::SigIgn`] and [`SigHandler::SigDfl`], which run no code.
pub(crate) fn set_handler(
    signal: nix::sys::signal::Signal,
    handler: nix::sys::signal::SigHandler,
) -> nix::Result<()> {
    // SAFETY: neither of the two actions runs code of ours.
    unsafe { nix::sys::signal::signal(signal, handler) }.map(drop)
}

/// Sends a signal by number, real-time signals included.
pub(crate) fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill has no memory effects.
    match unsafe { libc::kill(pid.as_raw(), signal) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Registers a descriptor with the async runtime.
pub(crate) fn async_fd(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always answers with the same descriptor and keeps it open for as long as it lives, which is
    // what the registration relies on.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(Into::into)
}
