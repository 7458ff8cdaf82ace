//! The creation of a store, which counts when it is on the disk as a whole, and its end.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use davit_beneath::{Links, Root};
use rustix::fs::FileType;

use super::disk::io as failed;
use crate::Result;

const MARKER: &str = "complete";
/// Holds the revision with which the store was closed. A store that is open, or was when it died, has none.
const CLOSED: &str = "closed";
pub(super) const DATABASE: &str = "db";

/// Whether there is a store. Until then nothing in it was acknowledged.
pub(super) fn is_complete(dir: &Path) -> bool {
    dir.join(MARKER).exists()
}

/// Notes that the store has been created.
///
/// A file system need not keep a name because what it names was synced. The database syncs some of its directories before
/// it makes others in them; from now on what it makes has its names synced.
pub(super) fn finish(dir: &Path) -> io::Result<()> {
    sync_dirs(&dir.join(DATABASE))?;
    File::create(dir.join(MARKER))?.sync_all()?;
    File::open(dir)?.sync_all()?;
    for parent in dir.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        match File::open(parent) {
            Ok(parent) => parent.sync_all()?,
            // Then it was not made for this store either.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn sync_dirs(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_dirs(&entry.path())?;
        }
    }
    File::open(dir)?.sync_all()
}

/// Removes what a creation that was cut short has left.
pub(super) fn clear(database: &Path) -> Result<()> {
    match std::fs::remove_dir_all(database) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("clear an unfinished store", &error)),
    }
}

/// Refuses a directory with anything in it that no store makes. It may be a copy that somebody else has shaped: whoever
/// opens a pipe waits for ever, and what is behind a link is no part of the store.
pub(super) fn look(dir: &Path) -> io::Result<()> {
    let dir = Root::open(dir, Links::Refused)?;
    let looked = dir.walk(|path, inode| match inode.kind()? {
        FileType::RegularFile | FileType::Directory => Ok(()),
        _ => Err(davit_beneath::Error::NotRegular(path.to_owned())),
    });
    Ok(looked?)
}

/// With which revision the store was closed, if it was.
pub(super) fn closed_at(dir: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(dir.join(CLOSED)).ok()?;
    text.trim().parse().ok()
}

/// Notes with which revision it is closed: a store that lacks something of it is damaged, not cut short.
pub(super) fn close(dir: &Path, revision: u64) -> io::Result<()> {
    let mut file = File::create(dir.join(CLOSED))?;
    writeln!(file, "{revision}")?;
    file.sync_all()?;
    File::open(dir)?.sync_all()
}

/// From now on it may die.
pub(super) fn reopen(dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(dir.join(CLOSED)) {
        Ok(()) => File::open(dir)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
