//! The terminal of a container's process, made from the container's own devpts.
//!
//! `/dev` may be what an image or a volume made it, so what is opened there is looked at before it is believed, and the
//! other side is had from the kernel by descriptor instead of by its name.

use super::init::{FromChild, Process, Stdio, use_stdio};
use super::protocol;
use nix::unistd::Uid;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

type Result<T, E = String> = std::result::Result<T, E>;

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> String {
    move |error| format!("terminal: {what}: {}", error.into())
}

/// Opens a file of the container without following links.
fn open(path: &str, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
    openat2(
        rustix::fs::CWD,
        path,
        flags | OFlags::CLOEXEC,
        Mode::from_raw_mode(mode),
        ResolveFlags::NO_SYMLINKS,
    )
}

/// The multiplexer of terminals: the device 5:2 and nothing else.
fn open_multiplexer() -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let master = open("/dev/pts/ptmx", flags, 0)
        .or_else(|_| open("/dev/ptmx", flags, 0))
        .map_err(failed("open ptmx"))?;
    let stat = fstat(&master).map_err(failed("look at ptmx"))?;
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if device && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2) {
        Ok(master)
    } else {
        Err("terminal: ptmx is not the device that it should be".to_owned())
    }
}

/// Makes a terminal, uses it as standard descriptors and sends its other side away. It becomes the controlling terminal
/// by [`control`], in the process that leads the session.
pub(super) fn make(socket: &UnixStream, process: &Process, console: bool) -> Result<()> {
    let master = open_multiplexer()?;
    rustix::pty::unlockpt(&master).map_err(failed("unlock"))?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).map_err(failed("open"))?;
    // The user of the process must be able to open its terminal by name.
    let _ = nix::unistd::fchown(&slave, Some(Uid::from_raw(process.uid())), None);
    if let Some((width, height)) = process.size {
        let size = Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let _ = tcsetwinsize(&slave, size);
    }
    if console {
        mount_console(&slave)?;
    }
    use_stdio(&Stdio([slave.as_fd(), slave.as_fd(), slave.as_fd()]))?;
    protocol::send(socket, &FromChild::Terminal, &[master.as_fd()])
        .map_err(|e| format!("terminal: {e}"))
}

/// Takes the terminal that standard input is as the controlling one.
pub(super) fn control() -> Result<()> {
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(failed("make controlling"))
}

/// Puts the terminal at `/dev/console`.
fn mount_console(slave: &OwnedFd) -> Result<()> {
    let target = || open("/dev/console", OFlags::PATH, 0);
    let target = match target() {
        Err(rustix::io::Errno::NOENT) => open(
            "/dev/console",
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOCTTY,
            0o600,
        )
        .and_then(|_| target()),
        other => other,
    };
    let target = target.map_err(failed("open /dev/console"))?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(slave, "", flags).map_err(failed("take for /dev/console"))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags).map_err(failed("mount /dev/console"))
}
