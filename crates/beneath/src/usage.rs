//! How much of a disk a tree takes.

use crate::tree::same_mount;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, fstat, openat, seek, statat,
};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a tree takes on its disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes, of blocks that are in use.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// There is more than was counted, nobody knows how much: the walk was cut short, or led astray.
    pub in_part: bool,
}

/// Bytes and inodes below a directory, counted on this thread; files with several names count once. What vanishes meanwhile
/// counts nothing, nor do other mounts. Containers write what is measured, so no link is followed and there is no end to
/// what they can make: after ten million entries, ten seconds, or where it is deeper than a hundred thousand levels, what
/// was seen so far is the answer, and says so. Memory does not grow with what is there.
#[must_use]
pub fn measure_tree(dir: impl AsRef<Path>) -> DiskUse {
    measure_within(dir.as_ref(), MAX_TIME)
}

/// The same with another limit of time.
pub(crate) fn measure_within(dir: &Path, time: Duration) -> DiskUse {
    let mut measured = Measured::new(Instant::now() + time);
    // What is missing takes nothing.
    let cut_short = measured.tree(dir) == Err(Errno::TOOBIG);
    DiskUse {
        bytes: measured.bytes,
        inodes: measured.inodes,
        in_part: cut_short || measured.astray,
    }
}

/// Entries that are looked at in one tree.
const MAX_ENTRIES: u64 = 10_000_000;
/// How long one tree is looked at.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(10);
/// Entries between two looks at the clock.
const CLOCK_EVERY: u64 = 256;
/// Levels that are gone down.
const MAX_LEVELS: usize = 100_000;
/// Names of one file that are known to be the same file.
const MAX_SHARED: usize = 100_000;
/// Bytes of directories that are read at once.
const READ_AT_ONCE: usize = 4096;

struct Measured {
    until: Instant,
    /// Entries so far, whether they counted or not.
    looked: u64,
    bytes: u64,
    inodes: u64,
    /// A directory was moved away while it was looked at what is below it: the rest of it is not counted.
    astray: bool,
    seen: HashSet<(u64, u64)>,
    buffer: Vec<u8>,
}

/// Directories that stay open on the way down.
const OPEN_LEVELS: usize = 64;

/// A directory on the way down.
struct Level {
    /// Open in the lowest and in the topmost ones.
    dir: Option<OwnedFd>,
    device: u64,
    inode: u64,
    /// Where reading it goes on.
    position: u64,
}

impl Level {
    fn new(dir: OwnedFd) -> rustix::io::Result<Self> {
        let stat = fstat(&dir)?;
        Ok(Self {
            dir: Some(dir),
            device: stat.st_dev,
            inode: stat.st_ino,
            position: 0,
        })
    }

    /// Opens this directory again from one below it, if that is still there.
    fn above(&self, below: &OwnedFd) -> Option<OwnedFd> {
        let dir = open_dir(below, c"..").ok()?;
        let stat = fstat(&dir).ok()?;
        ((stat.st_dev, stat.st_ino) == (self.device, self.inode)).then_some(dir)
    }
}

impl Measured {
    fn new(until: Instant) -> Self {
        Self {
            until,
            looked: 0,
            bytes: 0,
            inodes: 0,
            astray: false,
            seen: HashSet::new(),
            buffer: Vec::with_capacity(READ_AT_ONCE),
        }
    }

    /// Few directories are open at a time, however deep they are: from far down the way up is by `..`. Where that leads
    /// elsewhere by now, it goes on from the next directory that is open. Of a directory only the place is kept at which
    /// reading goes on.
    fn tree(&mut self, top: &Path) -> rustix::io::Result<()> {
        let mut levels = vec![Level::new(open_dir(CWD, top)?)?];
        while let Some(level) = levels.last_mut() {
            if let Some(child) = self.next_below(level)? {
                if levels.len() > OPEN_LEVELS {
                    levels.last_mut().map(|level| level.dir.take());
                }
                if levels.len() >= MAX_LEVELS {
                    return Err(Errno::TOOBIG);
                }
                levels.extend(Level::new(child));
                continue;
            }
            let done = levels.pop().and_then(|level| level.dir);
            while let Some(above) = levels.last_mut().filter(|level| level.dir.is_none()) {
                above.dir = done.as_ref().and_then(|done| above.above(done));
                if above.dir.is_none() {
                    self.astray = true;
                    levels.pop();
                }
            }
        }
        Ok(())
    }

    /// Counts what a directory holds, up to the next directory in it; that is opened.
    fn next_below(&mut self, level: &mut Level) -> rustix::io::Result<Option<OwnedFd>> {
        let Some(dir) = &level.dir else {
            return Ok(None);
        };
        if seek(dir, SeekFrom::Start(level.position)).is_err() {
            return Ok(None);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
        let mut below = Ok(None);
        // A directory that cannot be read further is measured in part.
        while let Some(Ok(entry)) = entries.next() {
            level.position = entry.next_entry_cookie();
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match self.count(dir, name) {
                Ok(true) => {
                    if let Ok(child) = same_mount(dir, OsStr::from_bytes(name.to_bytes())) {
                        below = Ok(Some(child));
                        break;
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    below = Err(error);
                    break;
                }
            }
        }
        self.buffer = buffer;
        below
    }

    /// Counts one entry; whether it is a directory.
    fn count(&mut self, dir: &OwnedFd, name: &CStr) -> rustix::io::Result<bool> {
        // More names of a file that is known take time as well.
        self.looked += 1;
        let is_late = self.looked.is_multiple_of(CLOCK_EVERY) && Instant::now() >= self.until;
        if is_late || self.looked > MAX_ENTRIES {
            return Err(Errno::TOOBIG);
        }
        let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(false);
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_nlink > 1 && !is_dir && self.is_known((stat.st_dev, stat.st_ino)) {
            return Ok(false);
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(512));
        self.inodes += 1;
        Ok(is_dir)
    }

    /// Whether a file was counted under another name.
    fn is_known(&mut self, file: (u64, u64)) -> bool {
        if self.seen.len() < MAX_SHARED {
            !self.seen.insert(file)
        } else {
            self.seen.contains(&file)
        }
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
        assert!(measure_tree(&volume).bytes < 1 << 20);
        assert_eq!(measure_tree(&volume).inodes, 1);
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
        let seen = measure_tree(&volume);
        assert_eq!((seen.inodes, seen.in_part), (depth + 2, false));
        assert!(seen.bytes >= 1 << 16, "{seen:?}");
        let root = Root::open(tmp.path(), Links::Refused).unwrap();
        root.remove_tree("volume").unwrap();
    }

    #[test]
    fn all_is_counted_once_wherever_reading_is_broken_off() {
        let tmp = tempfile::tempdir().unwrap();
        let mut wanted = 0;
        // More directories beside one another than are read at once, files and directories between them.
        for n in 0..500 {
            let dir = tmp
                .path()
                .join(format!("a-directory-with-a-longer-name-{n}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::create_dir(dir.join("empty")).unwrap();
            std::fs::write(dir.join("file"), "x").unwrap();
            std::fs::write(tmp.path().join(format!("file-{n}")), "x").unwrap();
            wanted += 4;
        }
        std::fs::hard_link(tmp.path().join("file-0"), tmp.path().join("again")).unwrap();
        assert_eq!(measure_tree(tmp.path()).inodes, wanted);
        assert_eq!(measure_tree(tmp.path().join("none")), DiskUse::default());
    }

    #[test]
    fn time_that_is_up_ends_the_walk() {
        let tmp = tempfile::tempdir().unwrap();
        for n in 0..2 * CLOCK_EVERY {
            std::fs::write(tmp.path().join(n.to_string()), "").unwrap();
        }
        let mut measured = Measured::new(Instant::now());
        measured.tree(tmp.path()).unwrap_err();
        assert_eq!(measured.inodes, CLOCK_EVERY - 1);
        assert!(measure_within(tmp.path(), Duration::ZERO).in_part);
        assert!(!measure_tree(tmp.path()).in_part);
    }

    /// They cost their maker a name each, and nothing was counted by which the walk would have ended.
    #[test]
    fn names_of_one_file_end_the_walk_too() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "").unwrap();
        for n in 0..2 * CLOCK_EVERY {
            std::fs::hard_link(&file, tmp.path().join(n.to_string())).unwrap();
        }
        let mut measured = Measured::new(Instant::now());
        measured.tree(tmp.path()).unwrap_err();
        assert_eq!(measured.inodes, 1);
    }
}
