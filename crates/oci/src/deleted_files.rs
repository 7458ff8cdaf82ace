//! Files that have no name any more and are still open or mapped: they take room on the disk, and no directory shows them.
//!
//! Found by the descriptors and mappings of processes. What is on its way through a socket, and nowhere else, is not.

use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, openat, statx};
use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

/// Descriptors and mappings that are looked at, of all processes together.
const MAX: usize = 200_000;

/// Bytes of files without a name that processes in the cgroup `of` hold, on their own roots or on the disk that `disk` is on.
/// What is not looked at when it is `until` does not count. Blocks.
#[must_use]
pub fn deleted_files(pids: &[Pid], of: &str, disk: &Path, until: Instant) -> u64 {
    let mut found = Found {
        disk: place(CWD, disk, StatxFlags::TYPE).map(|(device, _)| device),
        roots: HashSet::new(),
        seen: HashSet::new(),
        bytes: 0,
        left: MAX,
        until,
    };
    for pid in pids {
        // Held open, it is this process or nothing; and it is looked up again whether it is the pod's: numbers come back.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let process = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty());
        let Ok(process) = process else { continue };
        if !is_in(&process, of) {
            continue;
        }
        let root = place(&process, "root", StatxFlags::MNT_ID);
        found.roots.extend(root.and_then(|(_, mount)| mount));
        for list in [c"fd", c"map_files"] {
            found.look(&process, list);
        }
        if found.is_done() {
            break;
        }
    }
    found.bytes
}

/// Whether a process is in this cgroup or below it.
fn is_in(process: &OwnedFd, of: &str) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = openat(process, "cgroup", flags, Mode::empty()) else {
        return false;
    };
    let text = std::io::read_to_string(std::fs::File::from(file)).unwrap_or_default();
    let of = Path::new(of.trim_matches('/'));
    text.lines().any(|line| {
        let path = line.splitn(3, ':').nth(2).unwrap_or_default();
        Path::new(path.trim_start_matches('/')).starts_with(of)
    })
}

type Device = (u32, u32);

/// What the kernel knows without asking a server or a program, which may not answer.
const AS_KNOWN: AtFlags = AtFlags::STATX_DONT_SYNC;

/// On which device a path is, and on which mount if the kernel says that (5.8).
fn place(
    dir: impl AsFd,
    path: impl rustix::path::Arg,
    wanted: StatxFlags,
) -> Option<(Device, Option<u64>)> {
    let stat = statx(dir, path, AS_KNOWN, wanted).ok()?;
    Some(((stat.stx_dev_major, stat.stx_dev_minor), mount_of(&stat)))
}

fn mount_of(stat: &Statx) -> Option<u64> {
    let known = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    known.then_some(stat.stx_mnt_id)
}

struct Found {
    /// What counts is on the node's disk or on a root: what is in memory, or on volumes of others, does not.
    disk: Option<Device>,
    /// Mounts, and not devices: files of an overlay are on devices of their own.
    roots: HashSet<u64>,
    seen: HashSet<(Device, u64)>,
    bytes: u64,
    left: usize,
    until: Instant,
}

impl Found {
    fn is_done(&self) -> bool {
        self.left == 0 || Instant::now() >= self.until
    }

    fn look(&mut self, process: &OwnedFd, list: &CStr) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(process, list, flags, Mode::empty());
        // A process that has ended, or is not ours to look at.
        let Ok(dir) = opened else { return };
        let Ok(entries) = Dir::read_from(&dir) else {
            return;
        };
        for entry in entries.flatten() {
            if self.is_done() {
                return;
            }
            self.left -= 1;
            self.count(&dir, entry.file_name());
        }
    }

    fn count(&mut self, dir: &OwnedFd, name: &CStr) {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let Ok(stat) = statx(dir, name, AS_KNOWN, wanted) else {
            return;
        };
        let on_root = mount_of(&stat).is_some_and(|mount| self.roots.contains(&mount));
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        if is_file
            && stat.stx_nlink == 0
            && (on_root || self.disk == Some(device))
            && self.seen.insert((device, stat.stx_ino))
        {
            let bytes = stat.stx_blocks.saturating_mul(512);
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    const SIZE: u64 = 1 << 20;

    /// A process that has written a file, which is deleted and open twice.
    fn holder(dir: &Path) -> Child {
        let script = "exec 3>file; rm file; head -c 1048576 /dev/zero >&3; sync; exec 4>&3; echo ready; read _";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let mut said = BufReader::new(child.stdout.as_mut().unwrap());
        said.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        child
    }

    /// What a process holds; `disk` is where the node has its own files.
    fn held(child: &Child, disk: &Path) -> u64 {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let path = cgroups.lines().next().unwrap().splitn(3, ':').nth(2);
        let until = Instant::now() + Duration::from_secs(30);
        assert_eq!(deleted_files(&[pid], "/not/ours", disk, until), 0);
        deleted_files(&[pid], path.unwrap(), disk, until)
    }

    fn ended(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_has_no_name_any_more_counts_while_somebody_has_it_open() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let child = holder(dir.path());
        let bytes = held(&child, dir.path());
        assert!((SIZE..2 * SIZE).contains(&bytes), "{bytes}");
        ended(child);
    }

    #[test]
    fn what_is_on_the_root_counts_wherever_the_nodes_disk_is() {
        let dir = tempfile::tempdir().unwrap();
        let mount = |path: &Path| place(CWD, path, StatxFlags::MNT_ID).and_then(|(_, mount)| mount);
        let root = mount(Path::new("/"));
        if root.is_none() || root != mount(dir.path()) {
            println!("skipped: temporary files are not on the root");
            return;
        }
        let child = holder(dir.path());
        let bytes = held(&child, Path::new("/proc"));
        assert!((SIZE..2 * SIZE).contains(&bytes), "{bytes}");
        ended(child);
    }
}
