//! Files that have no name any more and are still open or mapped: they take room on the disk, and no directory shows them.
//!
//! Found by the descriptors and mappings of processes. What is on its way through a socket, and nowhere else, is not.

use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, openat, statx};
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
        devices: device(CWD, disk).into_iter().collect(),
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
        found.devices.extend(device(&process, "root"));
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

fn device(dir: impl AsFd, path: impl rustix::path::Arg) -> Option<Device> {
    let stat = statx(dir, path, AS_KNOWN, StatxFlags::TYPE).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

struct Found {
    /// The disks that count: what is in memory, or on volumes of others, does not.
    devices: HashSet<Device>,
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
        let Ok(stat) = statx(dir, name, AS_KNOWN, StatxFlags::BASIC_STATS) else {
            return;
        };
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        if is_file
            && stat.stx_nlink == 0
            && self.devices.contains(&device)
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
    use std::io::Write as _;
    use std::time::Duration;

    const SIZE: usize = 1 << 20;

    fn own(disk: &Path) -> u64 {
        let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = cgroups.lines().next().unwrap().splitn(3, ':').nth(2);
        let until = Instant::now() + Duration::from_secs(30);
        assert_eq!(deleted_files(&[Pid::this()], "/not/ours", disk, until), 0);
        deleted_files(&[Pid::this()], path.unwrap(), disk, until)
    }

    #[test]
    fn what_has_no_name_any_more_counts_while_somebody_has_it_open() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![7; SIZE]).unwrap();
        file.sync_all().unwrap();
        let size = u64::try_from(SIZE).unwrap();
        let before = own(dir.path());
        std::fs::remove_file(&path).unwrap();
        let twice = file.try_clone().unwrap();
        let with = own(dir.path());
        assert!(
            (size..2 * size).contains(&(with - before)),
            "{before} {with}"
        );
        drop((file, twice));
        assert!(own(dir.path()) < with);
    }
}
