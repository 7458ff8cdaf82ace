//! From a layer's tar stream to a directory that overlayfs takes as a lower layer.
//!
//! Names, links and devices in the stream are the image's choice: each entry is put below the root by descriptor, with
//! the links that earlier entries made followed inside the root only.

use super::entries::{below, each};
use super::room::{Bounded, room};
use davit_beneath::{Inode, Links, Permissions, Root};
use rustix::fs::{FileType, makedev};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{Entry, EntryType};

/// Hex of a sha256 state.
pub(super) fn hex(digest: Sha256) -> String {
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Passes bytes on and hashes them.
pub(super) struct Hashing<R> {
    inner: R,
    pub(super) digest: Sha256,
}

impl<R: Read> Hashing<R> {
    pub(super) fn new(inner: R) -> Self {
        Hashing {
            inner,
            digest: Sha256::new(),
        }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(&buffer[..count]);
        Ok(count)
    }
}

/// A reader of the uncompressed content, whether gzip, zstd or nothing was used.
pub(super) fn decompress<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(64 * 1024, source);
    let head = io::BufRead::fill_buf(&mut source)?;
    if head.starts_with(&[0x1f, 0x8b]) {
        Ok(Box::new(flate2::bufread::MultiGzDecoder::new(source)))
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Ok(Box::new(zstd::stream::read::Decoder::with_buffer(source)?))
    } else {
        Ok(Box::new(source))
    }
}

/// Unpacks a layer into an empty directory; answers with the digest of the uncompressed stream.
pub(super) fn layer(source: impl Read, target: &Path) -> io::Result<String> {
    let content = Bounded::new(decompress(source)?, room(target)?);
    let mut stream = Hashing::new(content);
    let root = Root::open(target, Links::Confined)?;
    root.entry("")?.set(&Permissions::mode(0o755))?;
    each(&mut stream, target, |path, entry| {
        put(&root, path, entry)
            .map_err(|e| io::Error::new(e.kind(), format!("entry {}: {e}", path.display())))
    })?;
    // The digest covers what follows the last entry too.
    io::copy(&mut stream, &mut io::sink())?;
    Ok(format!("sha256:{}", hex(stream.digest)))
}

/// Unpacks an archive of files for davit's own use: no owners, no devices, nothing that runs as somebody else.
pub(super) fn plain(source: impl Read, target: &Path) -> io::Result<()> {
    let root = Root::open(target, Links::Inside)?;
    each(source, target, |path, entry| {
        let kind = entry.header().entry_type();
        if is_root(path) || is_note(kind) {
            return Ok(());
        }
        make_parent(&root, path)?;
        if kind == EntryType::Directory {
            root.mkdir_all(path, 0o700)?;
            return Ok(());
        }
        make_room(&root, path)?;
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                io::copy(entry, &mut root.create_new(path, 0o600)?)?;
            }
            EntryType::Symlink => root.symlink(link(entry)?, path)?,
            EntryType::Link => root.hard_link(below(as_bytes(&link(entry)?))?, path)?,
            _ => {
                return Err(io::Error::other(format!(
                    "entry {} is neither a file nor a directory",
                    path.display()
                )));
            }
        }
        Ok(())
    })
}

fn as_bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Entries that say something about others.
fn is_note(kind: EntryType) -> bool {
    kind.is_pax_global_extensions() || kind.is_pax_local_extensions()
}

fn link<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let name = entry.link_name()?;
    Ok(name
        .ok_or_else(|| io::Error::other("a link without an end"))?
        .into_owned())
}

fn make_parent(root: &Root, path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !is_root(parent) => Ok(root.mkdir_all(parent, 0o755).map(drop)?),
        _ => Ok(()),
    }
}

/// A later entry of the same name wins.
fn make_room(root: &Root, path: &Path) -> io::Result<()> {
    match root.remove_file(path) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(_) => Ok(root.remove_tree(path)?),
        Ok(()) => Ok(()),
    }
}

/// Puts one entry of a layer into the root.
fn put<R: Read>(root: &Root, path: &Path, entry: &mut Entry<'_, R>) -> io::Result<()> {
    let kind = entry.header().entry_type();
    if is_note(kind) {
        return Ok(());
    }
    if let Some(hidden) = path.file_name().and_then(hidden_by) {
        return white_out(root, path, hidden);
    }
    // What a layer says of the root itself is not taken, as by containerd.
    if is_root(path) {
        return Ok(());
    }
    make_parent(root, path)?;
    if kind.is_hard_link() {
        make_room(root, path)?;
        return Ok(root.hard_link(below(as_bytes(&link(entry)?))?, path)?);
    }
    let made = make(root, path, entry)?;
    let header = entry.header();
    let fields = header.as_old();
    made.set(&Permissions {
        uid: owner(field(&fields.uid, header.uid())?)?,
        gid: owner(field(&fields.gid, header.gid())?)?,
        mode: Some(field(&fields.mode, header.mode())? & 0o7777),
    })?;
    // After the owner, whose change takes capabilities away.
    attributes(&made, entry)?;
    let header = entry.header();
    let modified = field(&header.as_old().mtime, header.mtime())?;
    let modified = i64::try_from(modified).unwrap_or(i64::MAX);
    Ok(made.set_modified(modified)?)
}

/// A numeric field of a header. Those who write archives leave fields empty that an entry has no use for (the permissions
/// of a link); empty is 0, as in other readers.
fn field<T: Default>(raw: &[u8], parsed: io::Result<T>) -> io::Result<T> {
    if raw.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(T::default());
    }
    parsed
}

/// An owner; none for the number that is nobody's, by which the kernel is told to leave what there is.
fn owner(value: u64) -> io::Result<Option<u32>> {
    let number = u32::try_from(value).map_err(io::Error::other)?;
    Ok(Some(number).filter(|number| *number != u32::MAX))
}

/// Makes what an entry describes, without its owner and permissions.
fn make<R: Read>(root: &Root, path: &Path, entry: &mut Entry<'_, R>) -> io::Result<Inode> {
    let kind = entry.header().entry_type();
    let is_directory = |inode: &Inode| matches!(inode.kind(), Ok(FileType::Directory));
    if kind == EntryType::Directory {
        // One that is there stays, with what it holds; a link to one does not.
        return match root.entry_itself(path) {
            Ok(inode) if is_directory(&inode) => Ok(inode),
            _ => {
                make_room(root, path)?;
                root.mkdir_all(path, 0o700)?;
                Ok(root.entry_itself(path)?)
            }
        };
    }
    make_room(root, path)?;
    let device = |header: &tar::Header| -> io::Result<u64> {
        let major = header.device_major()?.unwrap_or(0);
        Ok(makedev(major, header.device_minor()?.unwrap_or(0)))
    };
    let special = |kind, number| root.mknod(path, kind, number, &Permissions::mode(0o600));
    Ok(match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let mut file = root.create_new(path, 0o600)?;
            io::copy(entry, &mut file)?;
            Inode::from(OwnedFd::from(file))
        }
        EntryType::Symlink => {
            root.symlink(link(entry)?, path)?;
            root.entry_itself(path)?
        }
        EntryType::Char => special(FileType::CharacterDevice, device(entry.header())?)?,
        EntryType::Block => special(FileType::BlockDevice, device(entry.header())?)?,
        EntryType::Fifo => special(FileType::Fifo, 0)?,
        other => return Err(io::Error::other(format!("kind {other:?} is not known"))),
    })
}

/// Extended attributes: capabilities of programs and what users set. Those with which overlayfs keeps its books would
/// make it look for a file's content at a place of the image's choice; labels of security modules belong to the
/// machine that the image was made on.
fn attributes<R: Read>(made: &Inode, entry: &mut Entry<'_, R>) -> io::Result<()> {
    const PREFIX: &str = "SCHILY.xattr.";
    let Some(extensions) = entry.pax_extensions()? else {
        return Ok(());
    };
    for extension in extensions {
        let extension = extension?;
        let Some(name) = extension
            .key()
            .ok()
            .and_then(|key| key.strip_prefix(PREFIX))
        else {
            continue;
        };
        if name == "security.capability" || name.starts_with("user.") {
            made.set_attribute(name, extension.value_bytes())?;
        } else if name.starts_with("trusted.") {
            return Err(io::Error::other(format!(
                "extended attribute {name} is not for images to set"
            )));
        }
    }
    Ok(())
}

/// What a whiteout hides: `.wh.NAME` hides NAME of the layers below; `.wh..wh..opq` all that the directory holds there.
fn hidden_by(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_prefix(b".wh.").map(OsStr::from_bytes)
}

fn white_out(root: &Root, path: &Path, hidden: &OsStr) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    let dir = root.mkdir_all(parent, 0o755)?;
    if hidden == ".wh..opq" {
        return Ok(dir.entry("")?.set_opaque()?);
    }
    if hidden.as_bytes().starts_with(b".wh.") {
        return Ok(()); // other markers belong to aufs
    }
    if hidden.is_empty() || hidden == "." || hidden == ".." {
        return Err(io::Error::other("whiteout leaves the layer"));
    }
    if dir.entry_itself(hidden).is_ok() {
        return Ok(());
    }
    let mode = Permissions::mode(0);
    dir.mknod(hidden, FileType::CharacterDevice, makedev(0, 0), &mode)?;
    Ok(())
}

#[cfg(test)]
mod tests;
