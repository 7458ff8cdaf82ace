//! Files that have no name any more and are still open or mapped: they take room on the disk, and no directory shows them.
//!
//! Found by the descriptors and mappings of processes. What is on its way through a socket, and nowhere else, is not. Which
//! files are the pod's is told by their mounts, as the kernel names them: a file that was deleted from a claim or from a
//! directory of the host is on the same disk often, and is not part of what the pod has of the node's storage.

use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, openat, statx};
use std::collections::HashSet;
use std::ffi::CStr;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Descriptors and mappings that are looked at, of all processes together.
const MAX: usize = 200_000;
/// Bytes of a list of mounts that are read.
const MOUNTS: u64 = 4 << 20;

/// Bytes of files without a name that processes in the cgroup `of` hold on their own roots, or on mounts of directories that the
/// node keeps for the pod of this UID. What is not looked at when it is `until` does not count, and nothing does on kernels before
/// 5.8, which do not say on which mount a file is. Blocks.
#[must_use]
pub fn deleted_files(pids: &[Pid], of: &str, pod: &str, until: Instant) -> u64 {
    let mut found = Found {
        mounts: HashSet::new(),
        namespaces: HashSet::new(),
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
        let root = statx(&process, "root", AS_KNOWN, StatxFlags::MNT_ID);
        found
            .mounts
            .extend(root.ok().and_then(|stat| mount_of(&stat)));
        found.add_mounts(&process, pod);
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

/// The mounts of a list (`/proc/PID/mountinfo`) that show a directory which the node keeps for the pod of this UID.
fn mounts_of_pod<'a>(list: &'a str, pod: &'a str) -> impl Iterator<Item = u64> + 'a {
    list.lines().filter_map(move |line| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        // parent and device stand between
        let shown: Vec<&str> = fields.nth(2)?.split('/').collect();
        let is_pods = shown.windows(2).any(|pair| pair == ["pods", pod]);
        is_pods.then_some(id)
    })
}

fn mount_of(stat: &Statx) -> Option<u64> {
    let known = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    known.then_some(stat.stx_mnt_id)
}

struct Found {
    /// What is on these counts. Mounts, and not devices: files of an overlay are on devices of their own.
    mounts: HashSet<u64>,
    /// Namespaces whose mounts have been looked at.
    namespaces: HashSet<u64>,
    seen: HashSet<(Device, u64)>,
    bytes: u64,
    left: usize,
    until: Instant,
}

impl Found {
    fn is_done(&self) -> bool {
        self.left == 0 || Instant::now() >= self.until
    }

    /// Adds the pod's mounts among those that a process sees.
    fn add_mounts(&mut self, process: &OwnedFd, pod: &str) {
        let namespace = statx(process, "ns/mnt", AS_KNOWN, StatxFlags::INO);
        let is_new = namespace.is_ok_and(|stat| self.namespaces.insert(stat.stx_ino));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = is_new.then(|| openat(process, "mountinfo", flags, Mode::empty()));
        let Some(Ok(file)) = opened else { return };
        let mut list = String::new();
        // What is cut off, or no text, is the mount of somebody who makes too many.
        let _ = std::fs::File::from(file)
            .take(MOUNTS)
            .read_to_string(&mut list);
        self.mounts.extend(mounts_of_pod(&list, pod));
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
        let is_pods = mount_of(&stat).is_some_and(|mount| self.mounts.contains(&mount));
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
        if is_file && stat.stx_nlink == 0 && is_pods && self.seen.insert((device, stat.stx_ino)) {
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

    /// What a process holds.
    fn held(child: &Child) -> u64 {
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let path = cgroups.lines().next().unwrap().splitn(3, ':').nth(2);
        let until = Instant::now() + Duration::from_secs(30);
        assert_eq!(deleted_files(&[pid], "/not/ours", "uid", until), 0);
        deleted_files(&[pid], path.unwrap(), "uid", until)
    }

    fn ended(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_has_no_name_any_more_counts_while_somebody_has_it_open() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let mount = |path: &Path| {
            let stat = statx(CWD, path, AS_KNOWN, StatxFlags::MNT_ID);
            stat.ok().and_then(|stat| mount_of(&stat))
        };
        let root = mount(Path::new("/"));
        if root.is_none() || root != mount(dir.path()) {
            println!("skipped: this directory is not on the root");
            return;
        }
        let child = holder(dir.path());
        let bytes = held(&child);
        assert!((SIZE..2 * SIZE).contains(&bytes), "{bytes}");
        ended(child);
    }

    #[test]
    fn mounts_are_told_apart_by_what_they_show() {
        let list = "\
36 1 8:1 / / rw - ext4 /dev/a rw
40 36 8:1 /var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/x /x rw - ext4 /dev/a rw
41 36 8:1 /var/lib/kubelet/pods/u-2/volumes/kubernetes.io~empty-dir/x /y rw - ext4 /dev/a rw
42 36 8:2 /kubelet/pods/u-1/etc-hosts /etc/hosts rw,relatime - ext4 /dev/b rw
43 36 8:1 /srv/claims/pvc-1 /data rw - ext4 /dev/a rw
44 36 0:50 / /dev/shm rw - tmpfs tmpfs rw
45 36 8:1 /pods /pods/u-1 rw - ext4 /dev/a rw
nonsense
46";
        let found: Vec<u64> = mounts_of_pod(list, "u-1").collect();
        assert_eq!(found, [40, 42]);
    }
}
