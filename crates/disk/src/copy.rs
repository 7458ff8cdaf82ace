//! Copies of volumes, for claims with another claim as their data source.
//!
//! The source may be in use, by whoever likes to exchange what is copied for something else: everything is reached by
//! descriptor. Where the file system can, copies share their blocks with what they were copied from (reflink).

use davit_beneath::{Error, Inode, Permissions, Root};
use rustix::fs::{FileType, Mode, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are copied in one go.
const CHUNK: usize = 1 << 20;
/// Files with several names that are known at the same time. Of more, each name gets a file of its own.
const MOST_LINKED: usize = 100_000;
/// Bytes of the names of a file's extended attributes, and of the value of one: the kernel's limits.
const ATTRIBUTES: usize = 64 << 10;
/// Attributes that belong to a file wherever it is.
const KEPT_ATTRIBUTES: [&str; 3] = ["user.", "security.capability", "system.posix_acl_"];

/// Copies all that is below `from` to `to`, which is empty, and makes `to` itself whose and what `from` is. Blocks.
///
/// # Errors
/// More than 256 levels, or what the kernel says.
pub(crate) fn copy_tree(from: &Root, to: &Root) -> Result<(), Error> {
    let mut linked: HashMap<u64, PathBuf> = HashMap::new();
    from.walk(|path, inode| {
        let stat = inode.stat()?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let permissions = Permissions {
            uid: Some(stat.st_uid),
            gid: Some(stat.st_gid),
            mode: Some(stat.st_mode & 0o7777),
        };
        if kind == FileType::Directory {
            let made = to.mkdir_all(path, 0o700)?.entry("")?;
            made.set(&permissions)?;
            return copy_attributes(inode, &made, path);
        }
        if stat.st_nlink > 1 {
            if let Some(known) = linked.get(&stat.st_ino) {
                return to.hard_link(known, path);
            }
            if linked.len() < MOST_LINKED {
                linked.insert(stat.st_ino, path.to_owned());
            }
        }
        match kind {
            FileType::RegularFile => {
                let target = to.create_new(path, 0o600)?;
                let copied = copy_file(&inode.open_regular(path)?, &target);
                copied.map_err(|source| Error::Io {
                    path: path.to_owned(),
                    source,
                })?;
            }
            FileType::Symlink => to.symlink(inode.read_link()?, path)?,
            // Devices, FIFOs, sockets.
            _ => return to.mknod(path, kind, stat.st_rdev, &permissions).map(drop),
        }
        let made = to.entry_itself(path)?;
        made.set(&permissions)?;
        if kind == FileType::RegularFile {
            copy_attributes(inode, &made, path)?;
        }
        made.set_modified(stat.st_mtime)
    })
}

/// Copies what is in a file, and its length, but not its holes. Blocks.
///
/// # Errors
/// What the kernel says.
pub(crate) fn copy_file(from: &File, to: &File) -> io::Result<()> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(()),
        Err(
            Errno::OPNOTSUPP
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NOTTY
            | Errno::NOSYS
            | Errno::PERM
            | Errno::TXTBSY,
        ) => {}
        Err(error) => return Err(error.into()),
    }
    // As long as it is now: who goes on writing would keep this from ending.
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            // No such question can be asked here: all is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            other => other?,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start)).unwrap_or(length);
        at = start;
        while at < end.min(length) {
            let wanted = usize::try_from(end.min(length) - at).map_or(CHUNK, |n| n.min(CHUNK));
            let read = from.read_at(&mut buffer[..wanted], at)?;
            if read == 0 {
                return Ok(());
            }
            to.write_all_at(&buffer[..read], at)?;
            at += read as u64;
        }
    }
    Ok(())
}

/// Copies the extended attributes of a file or directory. A file system without any has none to copy.
fn copy_attributes(from: &Inode, to: &Inode, path: &Path) -> Result<(), Error> {
    let failed = |source: Errno| Error::Io {
        path: path.to_owned(),
        source: source.into(),
    };
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let (from, to) = (from.reopen(flags)?, to.reopen(flags)?);
    let mut names = vec![0; ATTRIBUTES];
    let length = match rustix::fs::flistxattr(&from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other.map_err(failed)?,
    };
    let mut value = vec![0; ATTRIBUTES];
    for name in names[..length].split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        if !KEPT_ATTRIBUTES.iter().any(|kept| name.starts_with(kept)) {
            continue;
        }
        let length = match rustix::fs::fgetxattr(&from, name, &mut value[..]) {
            Err(Errno::NODATA) => continue,
            other => other.map_err(failed)?,
        };
        rustix::fs::fsetxattr(&to, name, &value[..length], XattrFlags::empty()).map_err(failed)?;
    }
    Ok(())
}

/// Has everything that is in a directory's file system on the disk. Blocks.
///
/// # Errors
/// What the kernel says.
pub(crate) fn sync_file_system(dir: &Path) -> io::Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    Ok(rustix::fs::syncfs(&dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_beneath::Links;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_copy_is_what_the_source_was() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: giving files to others needs root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let (from, to) = (tmp.path().join("from"), tmp.path().join("to"));
        std::fs::create_dir_all(from.join("a/b")).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("a/b/rows"), "rows").unwrap();
        let mode = std::fs::Permissions::from_mode(0o4750);
        std::os::unix::fs::chown(from.join("a/b/rows"), Some(1000), Some(2000)).unwrap();
        std::fs::set_permissions(from.join("a/b/rows"), mode).unwrap();
        std::fs::hard_link(from.join("a/b/rows"), from.join("same")).unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        symlink("/etc", from.join("etc")).unwrap();
        let sparse = File::create(from.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(b"end", (32 << 20) + 5).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            from.join("fifo"),
            FileType::Fifo,
            Mode::from_raw_mode(0o640),
            0,
        )
        .unwrap();

        let open = |path: &Path| Root::open(path, Links::Refused).unwrap();
        copy_tree(&open(&from), &open(&to)).unwrap();
        assert_eq!(
            std::fs::read_to_string(to.join("a/b/rows")).unwrap(),
            "rows"
        );
        let copied = std::fs::metadata(to.join("a/b/rows")).unwrap();
        let source = std::fs::metadata(from.join("a/b/rows")).unwrap();
        let of = |m: &std::fs::Metadata| (m.uid(), m.gid(), m.mode(), m.mtime(), m.nlink());
        assert_eq!(of(&copied), of(&source));
        assert_eq!(
            copied.ino(),
            std::fs::metadata(to.join("same")).unwrap().ino()
        );
        assert_eq!(
            std::fs::read_link(to.join("link")).unwrap(),
            Path::new("/etc/passwd")
        );
        assert!(to.join("etc").symlink_metadata().unwrap().is_symlink());
        assert!(!from.join("etc/rows").exists());
        let sparse = std::fs::metadata(to.join("sparse")).unwrap();
        assert_eq!(sparse.len(), 64 << 20);
        assert!(sparse.blocks() * 512 < 8 << 20, "the holes are filled");
        let mut end = [0; 3];
        let file = File::open(to.join("sparse")).unwrap();
        file.read_exact_at(&mut end, (32 << 20) + 5).unwrap();
        assert_eq!(&end, b"end");
        let fifo = std::fs::symlink_metadata(to.join("fifo")).unwrap();
        assert_eq!(fifo.mode() & 0o7777, 0o640);
        // What is there already is not overwritten.
        copy_tree(&open(&from), &open(&to)).unwrap_err();
    }
}
