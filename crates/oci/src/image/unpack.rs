//! From a layer's tar stream to a directory that overlayfs takes as a lower layer.

use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path};

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
    let mut stream = Hashing::new(decompress(source)?);
    let canonical = target.canonicalize()?;
    {
        let mut archive = tar::Archive::new(&mut stream);
        archive.set_preserve_permissions(true);
        archive.set_preserve_ownerships(true);
        archive.set_unpack_xattrs(true);
        archive.set_overwrite(true);
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            let whiteout = path
                .file_name()
                .and_then(|name| name.to_str())
                .and_then(|name| name.strip_prefix(".wh."));
            match whiteout {
                Some(hidden) => {
                    let hidden = hidden.to_owned();
                    white_out(&canonical, &path, &hidden)?;
                }
                None if is_root(&path) => {
                    let mode = entry.header().mode().unwrap_or(0o755);
                    fs::set_permissions(
                        target,
                        std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777),
                    )?;
                }
                None => {
                    if !entry.unpack_in(&canonical)? {
                        return Err(io::Error::other(format!(
                            "entry {} leaves the layer",
                            path.display()
                        )));
                    }
                }
            }
        }
    }
    // The digest covers what follows the last entry too.
    io::copy(&mut stream, &mut io::sink())?;
    Ok(format!("sha256:{}", hex(stream.digest)))
}

fn is_root(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::CurDir | Component::RootDir))
}

/// `.wh.NAME` hides NAME of the layers below; `.wh..wh..opq` hides all that the directory holds there.
fn white_out(root: &Path, path: &Path, hidden: &str) -> io::Result<()> {
    let outside = || io::Error::other(format!("whiteout {} leaves the layer", path.display()));
    if path.components().any(|part| part == Component::ParentDir) || hidden.is_empty() {
        return Err(outside());
    }
    let relative = path.strip_prefix("/").unwrap_or(path);
    let parent = root.join(relative.parent().unwrap_or_else(|| Path::new("")));
    fs::create_dir_all(&parent)?;
    // The layer itself may have made the parent a link to somewhere else.
    let parent = parent.canonicalize()?;
    if !parent.starts_with(root) {
        return Err(outside());
    }
    if hidden == ".wh..opq" {
        rustix::fs::setxattr(
            &parent,
            "trusted.overlay.opaque",
            b"y",
            rustix::fs::XattrFlags::empty(),
        )?;
        return Ok(());
    }
    if hidden.starts_with(".wh.") {
        return Ok(()); // other markers belong to aufs
    }
    let target = parent.join(hidden);
    if target.symlink_metadata().is_ok() {
        return Ok(());
    }
    let kind = rustix::fs::FileType::CharacterDevice;
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        &target,
        kind,
        rustix::fs::Mode::empty(),
        rustix::fs::makedev(0, 0),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    fn tarball(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            header.set_uid(u64::from(rustix::process::getuid().as_raw()));
            header.set_gid(u64::from(rustix::process::getgid().as_raw()));
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn any_compression_gives_the_same_digest() {
        let plain = tarball(&[("a/b", b"text")]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        let digests: Vec<String> = [plain, gzip.finish().unwrap(), zstd]
            .iter()
            .map(|bytes| {
                let dir = tempfile::tempdir().unwrap();
                let digest = layer(&bytes[..], dir.path()).unwrap();
                let file = dir.path().join("a/b");
                assert_eq!(fs::read(&file).unwrap(), b"text");
                assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
                digest
            })
            .collect();
        assert!(
            digests.windows(2).all(|pair| pair[0] == pair[1]),
            "{digests:?}"
        );
    }

    #[test]
    fn entries_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["../evil", "a/../../evil", "../.wh.evil"] {
            assert!(
                layer(&tarball(&[(path, b"x")])[..], dir.path()).is_err(),
                "{path}"
            );
        }
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        assert!(layer(&tarball(&[("out/tmp/davit-evil", b"x")])[..], dir.path()).is_err());
        assert!(layer(&tarball(&[("out/tmp/.wh.x", b"")])[..], dir.path()).is_err());
    }

    #[test]
    fn whiteouts() {
        let dir = tempfile::tempdir().unwrap();
        match layer(
            &tarball(&[("d/.wh.gone", b""), ("e/.wh..wh..opq", b"")])[..],
            dir.path(),
        ) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("skipped: whiteouts need root");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let gone = dir.path().join("d/gone").metadata().unwrap();
        assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
        let mut value = [0; 4];
        let count =
            rustix::fs::getxattr(dir.path().join("e"), "trusted.overlay.opaque", &mut value)
                .unwrap();
        assert_eq!(&value[..count], b"y");
    }
}
