//! The monitor: one small single-threaded process per container, re-executed from davit's own binary.
//!
//! It makes the container, owns its `waitpid`, its output and its log file, and answers on a unix socket. It outlives
//! davit: a davit that comes back finds the socket, and a container that ended meanwhile has left an [`ExitRecord`].
//! The process makes no thread and uses no async runtime, so that forking stays sound and its memory stays small.

mod attach;
mod confine;
mod directory;
mod exec;
mod hooks;
mod init;
mod logs;
mod mounts;
mod namespaces;
mod pause;
mod procfs;
pub(crate) mod protocol;
mod serve;
mod start;
mod terminal;
mod userns;

use crate::cgroup::Limits;
use oci_spec::runtime::Spec;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use logs::make_log_dir;
pub(crate) use mounts::clean_path;
pub use mounts::{ImageMount, RootFs};

/// The first argument that makes the binary a monitor.
pub(crate) const MONITOR_ARG: &str = "davit-monitor";
/// The first argument that makes the binary the first process of a shared pid namespace.
pub(crate) const PAUSE_ARG: &str = "davit-pause";

/// The first argument that makes the binary the maker of a pod's user namespace.
pub(crate) const NAMESPACES_ARG: &str = "davit-namespaces";

pub(crate) use pause::Surroundings;
pub(crate) use userns::become_root as become_namespace_root;

/// File names in a container's directory.
pub(crate) mod files {
    /// The OCI runtime configuration.
    pub(crate) const CONFIG: &str = "config.json";
    /// What the monitor needs beside it.
    pub(crate) const BUNDLE: &str = "monitor.json";
    /// davit's own record of the container.
    pub(crate) const RECORD: &str = "record.json";
    /// Exists from the moment on that a monitor may exist, and is locked while one does: its standard output is this file.
    pub(crate) const STARTED: &str = "started";
    /// Written by the monitor once the container runs.
    pub(crate) const STATE: &str = "state.json";
    /// Written by the monitor when the container has ended.
    pub(crate) const EXIT: &str = "exit.json";
}

/// What the monitor needs to know that the OCI configuration cannot say.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bundle {
    /// Container ID.
    pub id: String,
    /// Where the control socket goes.
    pub socket: PathBuf,
    /// The container's root file system.
    pub rootfs: RootFs,
    /// Images that are mounted as volumes: the sources of the configuration's mounts of type `image`.
    #[serde(default)]
    pub images: Vec<ImageMount>,
    /// CRI log file; `None` discards the output.
    pub log_path: Option<PathBuf>,
    /// Keep a pipe (or the terminal) open for attached clients to write to.
    pub stdin: bool,
    /// Close it when the first client that attached is gone.
    pub stdin_once: bool,
    /// Give the process a terminal.
    pub tty: bool,
    /// Seccomp programs, compiled.
    pub seccomp: crate::seccomp::Programs,
    /// With which flags of `seccomp(2)` they are installed.
    #[serde(default)]
    pub seccomp_flags: u32,
    /// cgroup limits.
    pub limits: Limits,
    /// The complete list of device rules, `None` to leave devices alone.
    pub devices: Option<Vec<crate::cgroup::DeviceRule>>,
    /// The process whose pid namespace the container joins, when it joins another container's.
    #[serde(default)]
    pub target: Option<ProcessMark>,
}

impl Bundle {
    /// Whether the input of the container is that of one client, and ends with it. A terminal's stays.
    fn input_is_one_clients(&self) -> bool {
        self.stdin_once && !self.tty
    }
}

/// A process, by its number and by what tells it from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMark {
    /// Process ID in davit's pid namespace.
    pub pid: i32,
    /// Start time as `/proc/<pid>/stat` tells it.
    pub start_ticks: u64,
}

/// How a container ended. Written durably before anyone is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Exit code; 128 + n for signal n.
    pub code: i32,
    /// Start and end in nanoseconds since the epoch.
    pub started_at: i64,
    /// End.
    pub finished_at: i64,
    /// `OOMKilled`, `Completed`, `Error`, `StartError` or `Unknown`.
    pub reason: String,
    /// For people; empty when there is nothing to say.
    pub message: String,
}

/// What the monitor wrote when the container began to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Process ID of the container's first process, in davit's pid namespace.
    pub pid: i32,
    /// Start time of that process as `/proc/<pid>/stat` tells it, so that a reused number is noticed.
    pub start_ticks: u64,
    /// Process ID of the monitor.
    pub monitor: i32,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
}

/// Runs as monitor (or as the first process of a shared pid namespace) and exits, when the command line says so.
/// A binary that uses [`crate::Embedded`] calls this first in `main`, before any thread exists.
pub fn main_if_invoked() {
    let mut args = std::env::args_os();
    let _program = args.next();
    let code = match args.next() {
        Some(first) if first.as_bytes() == MONITOR_ARG.as_bytes() => match args.next() {
            Some(dir) => start::main(Path::new(&dir)),
            None => 2,
        },
        Some(first) if first.as_bytes() == PAUSE_ARG.as_bytes() => pause::main(),
        Some(first) if first.as_bytes() == NAMESPACES_ARG.as_bytes() => {
            crate::embedded::namespaces_main()
        }
        _ => return,
    };
    crate::sys::exit_now(code);
}

/// Nanoseconds since the epoch.
pub(crate) fn now_nanos() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

/// Writes a file so that a process that dies leaves either the old content or the new. After a power loss the file may
/// be gone; no container survives one either.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    fs::write(&temporary, content)?;
    fs::rename(&temporary, path)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Writes a file so that after a crash it holds either the old content or the new, and the new is on disk on return.
pub(crate) fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let temporary = temporary(path);
    let mut file = fs::File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_data()?;
    fs::rename(&temporary, path)?;
    fs::File::open(dir)?.sync_all()
}

/// Writes how a container ended, durably, and with it the record that says which container that was.
pub(crate) fn write_exit(dir: &Path, record: &ExitRecord) -> io::Result<()> {
    if let Ok(file) = fs::File::open(dir.join(files::RECORD)) {
        file.sync_data()?;
    }
    write_durably(
        &dir.join(files::EXIT),
        &serde_json::to_vec(record).map_err(io::Error::other)?,
    )
}

/// Reads a JSON file; `None` when it is not there. What stands in its place and is no file is not opened.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    /// Records of all images, of which each has its variables.
    const LARGEST: u64 = 1 << 30;
    match davit_beneath::read_own(path, LARGEST).map_err(io::Error::from) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Start time of a process in clock ticks since boot, `None` when it does not exist.
pub(crate) fn start_ticks(pid: i32) -> Option<u64> {
    ticks_of(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Kills the process that has this number and began then, and no other: it is held before it is looked at.
pub(crate) fn kill_that_began(pid: i32, began: u64) {
    let pid = (pid > 0).then(|| rustix::process::Pid::from_raw(pid));
    let pid = pid.flatten();
    let handle = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    if let (Some(pid), Some(Ok(handle))) = (pid, handle)
        && start_ticks(pid.as_raw_nonzero().get()) == Some(began)
    {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

/// Field 22 of `/proc/PID/stat`. The command's name is in parentheses and may hold any bytes, parentheses too.
fn ticks_of(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|b| *b == b')')?;
    let fields = str::from_utf8(&stat[name_end + 1..]).ok()?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// Reads both files of a container's directory.
fn load(dir: &Path) -> io::Result<(Bundle, Spec)> {
    let need = |what| move || io::Error::new(io::ErrorKind::NotFound, what);
    let bundle = read_json(&dir.join(files::BUNDLE))?.ok_or_else(need("no monitor.json"))?;
    let spec = read_json(&dir.join(files::CONFIG))?.ok_or_else(need("no config.json"))?;
    Ok((bundle, spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process that a record names has ended, and its number is somebody else's.
    #[test]
    fn a_number_that_is_anothers_by_now_is_left_alone() {
        let mut innocent = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(innocent.id()).unwrap();
        let began = start_ticks(pid).unwrap();
        kill_that_began(pid, began - 1);
        kill_that_began(pid, 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(innocent.try_wait().unwrap().is_none());
        kill_that_began(pid, began);
        assert!(!innocent.wait().unwrap().success());
        kill_that_began(pid, began);
        kill_that_began(0, 0);
        kill_that_began(-1, 0);
    }

    #[test]
    fn the_name_of_a_command_hides_no_start_time() {
        let rest = "S 1 7 7 0 -1 4194560 96 0 0 0 0 0 0 0 20 0 1 0 4711 2 3";
        for name in [
            &b"sh"[..],
            b"a) S 1 (b",
            b"\xff\xfe",
            b") ) )",
            b"",
            b"x\n7 (y) S",
        ] {
            let stat = [b"42 (", name, b") ", rest.as_bytes(), b"\n"].concat();
            assert_eq!(ticks_of(&stat), Some(4711), "{name:?}");
        }
        assert_eq!(ticks_of(b"42 (sh) S 1"), None);
        assert!(start_ticks(i32::try_from(std::process::id()).unwrap()).is_some());
    }
}
