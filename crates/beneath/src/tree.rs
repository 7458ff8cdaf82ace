//! Whole trees.

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::resolve;
use crate::root::Root;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directories that are open at the same time. A tree may be deeper than there are descriptors.
const OPEN_LEVELS: usize = 64;

/// Levels below the root of a walk, each of which holds a descriptor.
const MAX_DEPTH: usize = 256;

/// Times that a directory is read anew because deep parts of it were moved up, or something new has appeared.
const MAX_PASSES: usize = 4096;

impl Root {
    /// Removes whatever is at the path, with all that is below it. Links are removed, not followed, and nothing
    /// behind a mount is removed. Success when nothing is there.
    ///
    /// # Errors
    /// A mount is in the tree, or what the kernel says.
    pub fn remove_tree(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = match self.parent(path) {
            Err(error) if error.is_not_found() => return Ok(()),
            other => other?,
        };
        match remove(&parent, name) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::XDEV) => Err(Error::Io {
                path: path.to_owned(),
                source: Errno::BUSY.into(),
            }),
            Err(error) => Err(Error::at(path)(error)),
        }
    }

    /// Removes all that is below the root itself, which stays.
    ///
    /// # Errors
    /// As [`remove_tree`](Self::remove_tree).
    pub fn clear(&self) -> Result<()> {
        let dir = self.look(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
        clear(&dir).map_err(Error::at(""))
    }

    /// Shows `visit` the directory itself and everything below it, each open and with its path below this root. A
    /// directory comes before what it holds. Links are shown, not followed; mounts are left out. What disappears
    /// meanwhile is left out too.
    ///
    /// # Errors
    /// The first error of `visit`, or a tree of more than 256 levels.
    pub fn walk(&self, mut visit: impl FnMut(&Path, &Inode) -> Result<()>) -> Result<()> {
        match self.walk_upper(&mut visit)? {
            None => Ok(()),
            Some(path) => Err(Error::TooLarge {
                path,
                limit: MAX_DEPTH as u64,
            }),
        }
    }

    /// As [`walk`](Self::walk), but of a tree of more than 256 levels what is below them is left out; answers with the first
    /// such directory.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub fn walk_upper(
        &self,
        mut visit: impl FnMut(&Path, &Inode) -> Result<()>,
    ) -> Result<Option<PathBuf>> {
        let top = self.entry("")?;
        visit(Path::new(""), &top)?;
        let fd = self.look(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
        let dir = Dir::new(fd).map_err(Error::at(""))?;
        let mut left_out = None;
        walk(dir, &mut PathBuf::new(), 0, &mut left_out, &mut visit)?;
        Ok(left_out)
    }
}

fn names(dir: impl AsFd) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<OsString>>> {
    let listed = Dir::read_from(dir)?;
    Ok(listed.filter_map(|entry| match entry {
        Ok(entry) => {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            (name != "." && name != "..").then(|| Ok(name.to_owned()))
        }
        Err(error) => Some(Err(error)),
    }))
}

/// Opens a directory for reading: no link, nothing that is mounted there.
pub(crate) fn same_mount(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(dir, name, flags, Mode::empty(), rules)
}

fn remove(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let dir = match same_mount(parent, name) {
        // Not a directory, and yet it may not be removed.
        Err(Errno::NOTDIR) => return Err(Errno::PERM),
        other => other?,
    };
    clear(&dir)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn clear(top: &OwnedFd) -> rustix::io::Result<()> {
    let mut moved = 0;
    for _ in 0..MAX_PASSES {
        let before = moved;
        clear_level(top, top, 0, &mut moved)?;
        if moved == before && names(top)?.next().is_none() {
            return Ok(());
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Removes what a directory holds. What is too deep is moved to the top, for the next pass.
fn clear_level(
    dir: &OwnedFd,
    top: &OwnedFd,
    depth: usize,
    moved: &mut u64,
) -> rustix::io::Result<()> {
    for name in names(dir)? {
        let name = name?;
        match unlinkat(dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        if depth >= OPEN_LEVELS {
            move_up(dir, &name, top, moved)?;
            continue;
        }
        let child = match same_mount(dir, &name) {
            Err(Errno::NOENT) => continue,
            Err(Errno::NOTDIR) => return Err(Errno::PERM),
            other => other?,
        };
        clear_level(&child, top, depth + 1, moved)?;
        match unlinkat(dir, &name, AtFlags::REMOVEDIR) {
            // Not empty: somebody still writes. The next pass sees it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn move_up(dir: &OwnedFd, name: &OsStr, top: &OwnedFd, moved: &mut u64) -> rustix::io::Result<()> {
    *moved += 1;
    let free = format!(
        "..removed-{}-{moved}",
        rustix::process::getpid().as_raw_nonzero()
    );
    match renameat(dir, name, top, &free) {
        // Who made the tree has guessed the name. What he put there is removed with the rest, and the next pass takes another.
        Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR | Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn walk(
    mut dir: Dir,
    path: &mut PathBuf,
    depth: usize,
    left_out: &mut Option<PathBuf>,
    visit: &mut dyn FnMut(&Path, &Inode) -> Result<()>,
) -> Result<()> {
    if depth > MAX_DEPTH {
        left_out.get_or_insert_with(|| path.clone());
        return Ok(());
    }
    while let Some(entry) = dir.next() {
        let entry = entry.map_err(Error::at(&path))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        path.push(name);
        let below = dir
            .fd()
            .map_err(Error::at(&path))
            .and_then(|fd| show(fd, name, path, visit))?;
        if let Some(below) = below {
            walk(below, path, depth + 1, left_out, visit)?;
        }
        path.pop();
    }
    Ok(())
}

/// Shows one entry. Answers with the directory when it is one that is to be gone into.
fn show(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    visit: &mut dyn FnMut(&Path, &Inode) -> Result<()>,
) -> Result<Option<Dir>> {
    let inode = match resolve::child(dir, name, OFlags::PATH) {
        Err(Errno::NOENT) => return Ok(None),
        other => Inode::from(other.map_err(Error::at(path))?),
    };
    if inode.kind()? != FileType::Directory {
        visit(path, &inode)?;
        return Ok(None);
    }
    let child = match same_mount(dir, name) {
        // Something is mounted there, or it went away.
        Err(Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        other => other.map_err(Error::at(path))?,
    };
    // The one that is gone into is the one that is shown, should the name mean another one by now.
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let inode = resolve::child(&child, OsStr::new("."), flags).map_err(Error::at(path))?;
    visit(path, &Inode::from(inode))?;
    Dir::new(child).map(Some).map_err(Error::at(path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::root::Links;

    /// A tree of so many levels, each called `d`, with a file in the lowest.
    fn deep(top: &Path, levels: usize) {
        let path: PathBuf = std::iter::repeat_n("d", levels).collect();
        std::fs::create_dir_all(top.join(&path)).unwrap();
        std::fs::write(top.join(&path).join("f"), "").unwrap();
    }

    #[test]
    fn names_that_were_guessed_keep_nothing_from_being_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let top = tmp.path().join("top");
        deep(&top, 4 * OPEN_LEVELS);
        let process = rustix::process::getpid().as_raw_nonzero();
        for n in 1..8 {
            let name = top.join(format!("..removed-{process}-{n}"));
            if n % 2 == 0 {
                std::fs::write(name, "").unwrap();
            } else {
                deep(&name, 2);
            }
        }
        let root = Root::open(tmp.path(), Links::Refused).unwrap();
        root.remove_tree("top").unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_tree_that_is_too_deep_is_walked_in_its_upper_part() {
        let tmp = tempfile::tempdir().unwrap();
        deep(&tmp.path().join("deep"), MAX_DEPTH + 4);
        deep(&tmp.path().join("flat"), 1);
        let root = Root::open(tmp.path(), Links::Refused).unwrap();
        let (mut flat, mut all) = (false, 0);
        let left_out = root.walk_upper(|path, _| {
            flat |= path == Path::new("flat/d/f");
            all += 1;
            Ok(())
        });
        let left_out = left_out.unwrap().unwrap();
        assert!(left_out.starts_with("deep/d") && left_out.components().count() > MAX_DEPTH);
        assert!(flat && all > MAX_DEPTH);
        let error = root.walk(|_, _| Ok(())).unwrap_err();
        assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    }
}
