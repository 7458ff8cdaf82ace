//! The entries of an archive within limits: how many there are, how deep, how large what they describe is, and how much
//! stands before each of them.

use super::room::{full, inodes, room};
use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use tar::Entry;

/// Bytes before an entry: long names, attributes, maps of holes. Readers of archives keep them in memory.
const HEAD: u64 = 1 << 20;
/// Files, directories and the like of one archive.
const INODES: u64 = 4 << 20;
/// Directories in directories.
const DEPTH: usize = 256;
/// Bytes of a path: as many as the kernel takes.
const PATH: usize = 4095;

/// Gives the entries of an archive that is unpacked into `target` to `put`, with their paths below it.
///
/// # Errors
/// Of the source, of `put`, and when a limit is passed.
pub(super) fn each<R: Read>(
    source: R,
    target: &Path,
    mut put: impl FnMut(&Path, &mut Entry<'_, Heads<R>>) -> io::Result<()>,
) -> io::Result<()> {
    let left = Rc::new(Cell::new(None));
    let mut archive = tar::Archive::new(Heads {
        inner: source,
        left: Rc::clone(&left),
    });
    let mut entries = archive.entries()?;
    let mut limits = Limits::of(target)?;
    loop {
        left.set(Some(HEAD));
        let Some(entry) = entries.next() else {
            left.set(None);
            return Ok(());
        };
        let mut entry = entry?;
        left.set(None);
        let path = below(&entry.path_bytes())?;
        limits.take(&path, entry.size())?;
        put(&path, &mut entry)?;
        // what the entry holds beyond what it stands for is no part of the next one's head
        io::copy(&mut entry, &mut io::sink())?;
    }
}

/// What an archive may still take.
struct Limits {
    bytes: u64,
    inodes: u64,
    /// The last entry's path: what it has in common with the next is there already.
    last: PathBuf,
}

impl Limits {
    fn of(target: &Path) -> io::Result<Self> {
        Ok(Self {
            bytes: room(target)?,
            inodes: inodes(target)?.min(INODES),
            last: PathBuf::new(),
        })
    }

    /// Takes what an entry needs. Its size is what it says: holes are no part of the archive.
    fn take(&mut self, path: &Path, size: u64) -> io::Result<()> {
        let depth = path.components().count();
        if depth > DEPTH {
            return Err(io::Error::other(format!(
                "entry {depth} directories deep, at most {DEPTH} are unpacked"
            )));
        }
        let shared = path.components().zip(self.last.components());
        let shared = shared.take_while(|(a, b)| a == b).count();
        let new = depth.saturating_sub(shared).max(1) as u64;
        self.inodes = self.inodes.checked_sub(new).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::StorageFull,
                "it has more files than can be unpacked",
            )
        })?;
        self.bytes = self.bytes.checked_sub(size).ok_or_else(full)?;
        path.clone_into(&mut self.last);
        Ok(())
    }
}

/// Passes bytes on; as long as the next entry is looked for, so many only.
pub(super) struct Heads<R> {
    inner: R,
    left: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Heads<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(left) = self.left.get() {
            let left = left.checked_sub(count as u64).ok_or_else(|| {
                io::Error::other(format!("more than {HEAD} bytes stand before an entry"))
            })?;
            self.left.set(Some(left));
        }
        Ok(count)
    }
}

/// The path of an entry below the root. `..` in a name is never honest.
pub(super) fn below(name: &[u8]) -> io::Result<PathBuf> {
    if name.len() > PATH {
        return Err(io::Error::other(format!(
            "an entry's path has {} bytes, at most {PATH} are possible",
            name.len()
        )));
    }
    let path = Path::new(OsStr::from_bytes(name));
    let mut below = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::ParentDir => {
                return Err(io::Error::other(format!(
                    "entry {} leaves the layer",
                    path.display()
                )));
            }
            _ => {}
        }
    }
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(bytes: u64, inodes: u64) -> Limits {
        Limits {
            bytes,
            inodes,
            last: PathBuf::new(),
        }
    }

    #[test]
    fn directories_that_are_there_count_once() {
        let mut limits = limits(10, 5);
        for path in ["a/b/c", "a/b/d", "a/b/e"] {
            limits.take(Path::new(path), 1).unwrap();
        }
        assert_eq!((limits.bytes, limits.inodes), (7, 0));
        assert!(limits.take(Path::new("a/b/f"), 1).is_err());
    }

    #[test]
    fn holes_take_room() {
        let error = limits(1 << 20, 5).take(Path::new("sparse"), 1 << 40);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn depth_has_a_limit() {
        let deep = |n: usize| PathBuf::from("d/".repeat(n));
        let mut limits = limits(10, 10_000);
        limits.take(&deep(DEPTH), 0).unwrap();
        assert!(limits.take(&deep(DEPTH + 1), 0).is_err());
        assert!(below(&b"d/".repeat(PATH)).is_err());
    }
}
