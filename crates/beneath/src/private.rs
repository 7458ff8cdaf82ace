//! Directories and files of our own that other accounts of the machine have no business in.

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::root::{Links, Root};
use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fstat, openat};
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Set where everybody may write, as in `/tmp`.
const STICKY: u32 = 0o1000;

/// Makes a directory, with its parents, that grants at most what `mode` does. From one that exists already all other
/// permissions are taken away; it must not be a directory that is shared by all, such as `/tmp`. The path is one that
/// only the host can shape: links on it are followed.
///
/// # Errors
/// It cannot be made or changed, is no directory, is everybody's, or another account's: whose it is could open it again.
pub fn private_dir(path: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = path.as_ref();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(Error::io(path))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty()).map_err(Error::at(path))?;
    close_to_others(path, &dir, mode)
}

/// As [`private_dir`], in a directory that others than the host may write, too: a link that somebody has put in its place is
/// not followed. The path of its parent is the host's.
///
/// # Errors
/// As [`private_dir`], or it is a link.
pub fn private_dir_itself(path: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = path.as_ref();
    let above = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(above).map_err(Error::io(above))?;
    let (above, name) = parent(path)?;
    let made = above
        .mkdir_all(name, mode)
        .map_err(|error| error.of(path))?;
    let dir = made.look(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
    close_to_others(path, &dir, mode)
}

/// As [`private_dir`], below a directory in which others than the host may write, too: no link below it is followed. Answers
/// with the directory, in which nothing follows a link either.
///
/// # Errors
/// As [`private_dir`], a link on the way, or a path that is not below `root`.
pub fn private_dir_below(
    root: impl AsRef<Path>,
    path: impl AsRef<Path>,
    mode: u32,
) -> Result<Root> {
    let (root, path) = (root.as_ref(), path.as_ref());
    let outside = |_| Error::Escapes(path.to_owned());
    let way = path.strip_prefix(root).map_err(outside)?;
    let top = match Root::open(root, Links::Refused) {
        Err(error) if error.is_not_found() => {
            private_dir(root, mode)?;
            Root::open(root, Links::Refused)?
        }
        opened => opened?,
    };
    let made = top.mkdir_all(way, mode).map_err(|error| error.of(path))?;
    let dir = made.look(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
    close_to_others(path, &dir, mode)?;
    Ok(made)
}

fn close_to_others(path: &Path, dir: &OwnedFd, mode: u32) -> Result<()> {
    let stat = fstat(dir).map_err(Error::at(path))?;
    ours(path, stat.st_uid)?;
    let bits = stat.st_mode & 0o7777;
    if bits & 0o777 & !mode == 0 {
        return Ok(());
    }
    if bits & STICKY != 0 {
        return Err(Error::Unexpected {
            what: "directory",
            expected: "davit's own, but shared by all",
        });
    }
    let kept = Mode::from_raw_mode(bits & (mode | 0o7000));
    fchmod(dir, kept).map_err(Error::at(path))
}

/// Refuses what is neither this account's nor root's. `path` is for the error.
///
/// # Errors
/// [`Error::Foreign`].
pub fn ours(path: impl AsRef<Path>, uid: u32) -> Result<()> {
    if uid == 0 || uid == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::Foreign {
        path: path.as_ref().to_owned(),
        uid,
    })
}

/// Opens a file of our own for writing, in a directory that others may have shaped: a link is not followed, a FIFO not
/// waited for, and what is another account's is refused.
///
/// # Errors
/// Nothing is there, or something else.
pub fn open_own_for_writing(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    let (dir, name) = parent(path)?;
    let inode = dir.entry_itself(name)?;
    if inode.kind()? != FileType::RegularFile {
        return Err(Error::NotRegular(path.to_owned()));
    }
    ours(path, inode.stat()?.st_uid)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    inode.reopen(flags).map(File::from)
}

/// Opens a file of our own for reading and writing, and makes it with mode 0600 where nothing is: a link is not followed, a
/// FIFO not waited for, and what is another account's is refused.
///
/// # Errors
/// Something else is there, or what the kernel says.
pub fn open_own(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    let (dir, name) = parent(path)?;
    let inode = match dir.entry_itself(name) {
        Err(error) if error.is_not_found() => {
            dir.create_new(name, 0o600)?;
            dir.entry_itself(name)?
        }
        found => found?,
    };
    if inode.kind()? != FileType::RegularFile {
        return Err(Error::NotRegular(path.to_owned()));
    }
    ours(path, inode.stat()?.st_uid)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
    inode.reopen(flags).map(File::from)
}

/// Puts a file with this content and mode 0600 in the place of whatever is there, at once and durably. The directory
/// may be one that others write, too: nothing in it is followed or opened.
///
/// # Errors
/// What the kernel says; a directory that is there stays.
pub fn write_private(path: impl AsRef<Path>, data: &[u8]) -> Result<()> {
    write_durably(path, data, 0o600)
}

/// As [`write_private`], with another mode: after a crash or a power loss there is the old content or the new, and the
/// new once this has returned.
///
/// # Errors
/// What the kernel says; a directory that is there stays.
pub fn write_durably(path: impl AsRef<Path>, data: &[u8], mode: u32) -> Result<()> {
    let (dir, name) = parent(path.as_ref())?;
    write_durably_in(&dir, name, data, mode)
}

/// The same of a file in this directory.
///
/// # Errors
/// As [`write_durably`].
pub fn write_durably_in(dir: &Root, name: impl AsRef<Path>, data: &[u8], mode: u32) -> Result<()> {
    let name = name.as_ref();
    let mut staged = std::ffi::OsString::from(".");
    staged.push(name);
    match dir.remove_file(&staged) {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    let mut file = dir.create_new(&staged, mode)?;
    file.write_all(data).map_err(Error::io(name))?;
    file.sync_all().map_err(Error::io(name))?;
    dir.rename(&staged, name)?;
    let dir = dir.look(Path::new(""), OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::fsync(&dir).map_err(Error::at(name))
}

/// Reads a regular file of at most `limit` bytes, in a directory that others may write, too: a link in its place is not
/// followed, a FIFO not waited for.
///
/// # Errors
/// Nothing is there, something else is, or more.
pub fn read_own(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
    let (dir, name) = parent(path.as_ref())?;
    dir.read_limited(name, limit)
}

/// Reads a regular file of at most `limit` bytes that an administrator named: links are followed, but a FIFO or a
/// device is not opened.
///
/// # Errors
/// Nothing is there, something else is, or more.
pub fn read_given(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let inode = Inode::from(openat(CWD, path, flags, Mode::empty()).map_err(Error::at(path))?);
    crate::inode::read_limited(inode.open_regular(path)?, path, limit)
}

/// Removes a tree whose content somebody else has made, at a path that only the host can shape: as
/// [`Root::remove_tree`].
///
/// # Errors
/// A mount is in the tree, or what the kernel says.
pub fn remove_tree(path: impl AsRef<Path>) -> Result<()> {
    let (dir, name) = parent(path.as_ref())?;
    dir.remove_tree(name)
}

fn parent(path: &Path) -> Result<(Root, &Path)> {
    let no_name = || Error::io(path)(ErrorKind::InvalidInput.into());
    let name = Path::new(path.file_name().ok_or_else(no_name)?);
    let dir = path.parent().filter(|dir| *dir != Path::new(""));
    Ok((
        Root::open(dir.unwrap_or(Path::new(".")), Links::Refused)?,
        name,
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    #[test]
    fn what_belongs_to_another_account_is_not_taken() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: giving files away needs root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let (dir, file) = (tmp.path().join("dir"), tmp.path().join("file"));
        private_dir(&dir, 0o700).unwrap();
        std::fs::write(&file, "").unwrap();
        open_own_for_writing(&file).unwrap();
        for path in [&dir, &file] {
            chown(path, Some(1234), None).unwrap();
        }
        let error = private_dir(&dir, 0o700).unwrap_err();
        assert!(matches!(error, Error::Foreign { uid: 1234, .. }), "{error}");
        let error = open_own_for_writing(&file).unwrap_err();
        assert!(matches!(error, Error::Foreign { uid: 1234, .. }), "{error}");
    }

    #[test]
    fn a_directory_of_our_own_is_made_where_it_is() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        private_dir_itself(at("own"), 0o750).unwrap();
        std::fs::set_permissions(at("own"), std::fs::Permissions::from_mode(0o755)).unwrap();
        private_dir_itself(at("own"), 0o750).unwrap();
        assert_eq!(mode("own"), 0o750);
        std::fs::create_dir(at("host")).unwrap();
        std::fs::set_permissions(at("host"), std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(at("host"), at("link")).unwrap();
        let error = private_dir_itself(at("link"), 0o700).unwrap_err();
        assert!(
            matches!(&error, Error::Escapes(path) if *path == at("link")),
            "{error}"
        );
        assert_eq!(mode("host"), 0o755);
        let error = Root::open_itself(at("link"), Links::Refused).unwrap_err();
        assert!(
            matches!(&error, Error::Escapes(path) if *path == at("link")),
            "{error}"
        );
        Root::open_itself(at("own"), Links::Refused).unwrap();
        private_dir_below(tmp.path(), at("own/a/b"), 0o750).unwrap();
        assert_eq!(mode("own/a/b"), 0o750);
        symlink(at("host"), at("own/a/link")).unwrap();
        for hostile in ["own/a/link", "own/a/link/c", "link/c"] {
            let error = private_dir_below(tmp.path(), at(hostile), 0o700).unwrap_err();
            assert!(
                matches!(&error, Error::Escapes(path) if *path == at(hostile)),
                "{error}"
            );
        }
        assert!(private_dir_below(at("own"), at("host/c"), 0o700).is_err());
        assert_eq!(std::fs::read_dir(at("host")).unwrap().count(), 0);
    }

    #[test]
    fn only_a_file_is_opened_for_writing() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::write(at("file"), "kept").unwrap();
        std::fs::set_permissions(at("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(at("file"), at("link")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(CWD, at("fifo"), mode).unwrap();
        // Would wait for a reader for ever.
        for name in ["link", "fifo", "none", "."] {
            open_own_for_writing(at(name)).unwrap_err();
        }
        open_own_for_writing(at("file")).unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"kept");
    }

    #[test]
    fn a_file_of_our_own_is_opened_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let root = Root::open(dir.path(), Links::Refused).unwrap();
        std::fs::write(at("victim"), "untouched").unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(dir.path(), at("way")).unwrap();
        let (mode, fifo) = (Mode::RUSR, FileType::Fifo);
        rustix::fs::mknodat(CWD, at("fifo"), fifo, mode, 0).unwrap();
        for hostile in ["link", "folder", "fifo"] {
            assert!(open_own(at(hostile)).is_err(), "{hostile}");
            assert!(
                root.write_in_place(hostile, b"x", 0o666).is_err(),
                "{hostile}"
            );
        }
        assert!(root.write_in_place("way/victim", b"x", 0o666).is_err());
        assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "untouched");
        for content in ["first", "2nd"] {
            root.write_in_place("own", content.as_bytes(), 0o644)
                .unwrap();
            assert_eq!(std::fs::read_to_string(at("own")).unwrap(), content);
        }
        let kept = open_own(at("own")).unwrap().metadata().unwrap();
        assert_eq!((kept.len(), kept.permissions().mode() & 0o777), (3, 0o644));
        let new = open_own(at("new")).unwrap().metadata().unwrap();
        assert_eq!(new.permissions().mode() & 0o777, 0o600);
    }
}
