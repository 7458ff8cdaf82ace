//! What an image may take of the disk: no more than there is, whatever its descriptors say or its compression hides.

use std::io::{self, Read};
use std::path::Path;

/// A part of the free space that stays free, one in so many.
const KEPT: u64 = 20;

/// Bytes that may be written below a directory.
pub(super) fn room(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    Ok(free - free / KEPT)
}

/// Files, directories and the like that may be made below a directory, as far as the file system counts them.
pub(super) fn inodes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    if stat.f_files == 0 {
        return Ok(u64::MAX);
    }
    Ok(stat.f_favail - stat.f_favail / KEPT)
}

/// What does not fit.
pub(super) fn full() -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        "unpacked it is larger than the disk has room for",
    )
}

/// Passes on so many bytes, and fails on the next.
pub(super) struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Bounded<R> {
    pub(super) fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(full)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unpacks_to_more_than_there_is_room_for_fails() {
        let mut bomb = Bounded::new(io::repeat(0), 1 << 20);
        let error = io::copy(&mut bomb, &mut io::sink()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let mut fits = Bounded::new(io::repeat(0).take(1 << 20), 1 << 20);
        assert_eq!(io::copy(&mut fits, &mut io::sink()).unwrap(), 1 << 20);
        assert!(room(Path::new("/tmp")).unwrap() > 0);
        assert!(inodes(Path::new("/tmp")).unwrap() > 0);
    }
}
