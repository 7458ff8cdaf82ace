//! How much of a disk a tree takes.

use crate::tree::same_mount;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Bytes and inodes below a directory; files with several names count once. What vanishes meanwhile counts nothing,
/// nor do other mounts. Containers write what is measured, so no link is followed and there is no end to what they can
/// make: after ten million entries what was seen
/// so far is the answer.
#[must_use]
pub fn disk_use(dir: impl AsRef<Path>) -> (u64, u64) {
    let mut measured = Measured::default();
    // What is missing, or was moved about meanwhile, is measured in part.
    let _ = measured.tree(dir.as_ref());
    (measured.bytes, measured.inodes)
}

/// Entries that are looked at in one tree, some ten seconds' worth.
const MAX_ENTRIES: u64 = 10_000_000;
/// Names of one file that are known to be the same file.
const MAX_SHARED: usize = 100_000;

#[derive(Default)]
struct Measured {
    bytes: u64,
    inodes: u64,
    seen: HashSet<(u64, u64)>,
}

/// Directories that stay open on the way down.
const OPEN_LEVELS: usize = 64;

/// A directory on the way down.
struct Level {
    /// Open in the lowest and in the topmost ones.
    dir: Option<OwnedFd>,
    device: u64,
    inode: u64,
    /// What in it is still to be visited.
    left: Vec<OsString>,
}

impl Level {
    /// Opens this directory again from one below it, if that is still there.
    fn above(&self, below: &OwnedFd) -> Option<OwnedFd> {
        let dir = open_dir(below, c"..").ok()?;
        let stat = fstat(&dir).ok()?;
        ((stat.st_dev, stat.st_ino) == (self.device, self.inode)).then_some(dir)
    }
}

impl Measured {
    /// Few directories are open at a time, however deep they are: from far down the way up is by `..`. Where that leads
    /// elsewhere by now, it goes on from the next directory that is open.
    fn tree(&mut self, top: &Path) -> rustix::io::Result<()> {
        let mut levels = vec![self.level(open_dir(CWD, top)?)?];
        while let Some(level) = levels.last_mut() {
            if let (Some(dir), Some(name)) = (&level.dir, level.left.pop()) {
                let Ok(child) = same_mount(dir, &name) else {
                    continue;
                };
                match self.level(child) {
                    Ok(below) => {
                        if levels.len() > OPEN_LEVELS {
                            levels.last_mut().map(|level| level.dir.take());
                        }
                        levels.push(below);
                    }
                    Err(Errno::TOOBIG) => return Err(Errno::TOOBIG),
                    Err(_) => {}
                }
                continue;
            }
            let done = levels.pop().and_then(|level| level.dir);
            while let Some(above) = levels.last_mut().filter(|level| level.dir.is_none()) {
                above.dir = done.as_ref().and_then(|done| above.above(done));
                if above.dir.is_none() {
                    levels.pop();
                }
            }
        }
        Ok(())
    }

    /// Whether a file was counted under another name.
    fn is_known(&mut self, file: (u64, u64)) -> bool {
        if self.seen.len() < MAX_SHARED {
            !self.seen.insert(file)
        } else {
            self.seen.contains(&file)
        }
    }

    /// Counts what a directory holds.
    fn level(&mut self, dir: OwnedFd) -> rustix::io::Result<Level> {
        let own = fstat(&dir)?;
        let mut left = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if stat.st_nlink > 1 && !is_dir && self.is_known((stat.st_dev, stat.st_ino)) {
                continue;
            }
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
            self.bytes = self.bytes.saturating_add(blocks.saturating_mul(512));
            self.inodes += 1;
            if self.inodes > MAX_ENTRIES {
                return Err(Errno::TOOBIG);
            }
            if is_dir {
                left.push(OsStr::from_bytes(name.to_bytes()).to_owned());
            }
        }
        Ok(Level {
            dir: Some(dir),
            device: own.st_dev,
            inode: own.st_ino,
            left,
        })
    }
}

fn open_dir(dir: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::{Links, Root};

    #[test]
    fn links_are_not_followed_and_depth_hides_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let (host, volume) = (tmp.path().join("host"), tmp.path().join("volume"));
        for dir in [&host, &volume] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(host.join("f"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&host, volume.join("link")).unwrap();
        assert!(disk_use(&volume).0 < 1 << 20);
        assert_eq!(disk_use(&volume).1, 1);
        // Deeper than the longest path and than there are descriptors.
        let depth = 3000;
        let mut at = open_dir(CWD, &volume).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_dir(&at, "d").unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&at, "f", flags, Mode::RWXU).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 16]).unwrap();
        let (bytes, inodes) = disk_use(&volume);
        assert_eq!(inodes, depth + 2);
        assert!(bytes >= 1 << 16, "{bytes}");
        let root = Root::open(tmp.path(), Links::Refused).unwrap();
        root.remove_tree("volume").unwrap();
    }
}
