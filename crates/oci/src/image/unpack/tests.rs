//! Layers and archives with names, links and devices that honest tools do not write.

use super::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

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

/// It stands for no owner, and not every layer below ours takes it for one.
#[test]
fn the_owner_that_nobody_can_be_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o600);
    header.set_uid(u64::from(u32::MAX));
    header.set_gid(u64::from(u32::MAX));
    builder.append_data(&mut header, "file", &b"x"[..]).unwrap();
    layer(&builder.into_inner().unwrap()[..], dir.path()).unwrap();
    let found = dir.path().join("file").metadata().unwrap();
    let own = rustix::process::getuid().as_raw();
    assert_eq!(found.uid(), own);
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
}

/// An entry of another kind than a file.
fn special(kind: EntryType, path: &str, says: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    special_in(&mut builder, kind, path, says);
    builder.into_inner().unwrap()
}

fn special_in(builder: &mut tar::Builder<Vec<u8>>, kind: EntryType, path: &str, says: &str) {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_old_mut().linkname[..says.len()].copy_from_slice(says.as_bytes());
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(0o4777);
    header.set_uid(u64::from(rustix::process::getuid().as_raw()));
    header.set_gid(u64::from(rustix::process::getgid().as_raw()));
    header.set_device_major(1).unwrap();
    header.set_device_minor(3).unwrap();
    header.set_cksum();
    builder.append(&header, io::empty()).unwrap();
}

/// The archives one after the other as one.
fn joined(parts: &[Vec<u8>]) -> Vec<u8> {
    const END: usize = 1024;
    let mut all: Vec<u8> = Vec::new();
    for part in parts {
        all.extend(&part[..part.len() - END]);
    }
    all.extend([0; END]);
    all
}

#[test]
fn links_of_a_layer_are_followed_inside_only() {
    let dir = tempfile::tempdir().unwrap();
    let (target, outside) = (dir.path().join("layer"), dir.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "s").unwrap();
    let before = outside.join("secret").metadata().unwrap();
    let out = outside.to_str().unwrap();
    let link = |path: &str, says: &str| special(EntryType::Symlink, path, says);
    let archive = joined(&[
        link("abs", out),
        link("up", "../outside"),
        link("secret", &format!("{out}/secret")),
        tarball(&[
            ("abs/evil", b"x"),
            ("up/evil", b"x"),
            ("abs/.wh.secret", b""),
        ]),
        tarball(&[("up/new/.wh..wh..opq", b"")]),
        special(EntryType::Directory, "abs/dir", ""),
        special(EntryType::Fifo, "up/fifo", ""),
        special(EntryType::Link, "hard", "secret"),
        // In the place of the link, not through it.
        tarball(&[("secret", b"mine")]),
        special(EntryType::Directory, "up", ""),
    ]);
    match layer(&archive[..], &target) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return, // whiteouts need root
        other => other.unwrap(),
    };
    let names: Vec<_> = fs::read_dir(&outside).unwrap().collect();
    assert_eq!(names.len(), 1);
    let after = outside.join("secret").metadata().unwrap();
    assert_eq!(
        (after.mode(), after.nlink(), after.len()),
        (before.mode(), 1, 1)
    );
    let inside = target.join(outside.strip_prefix("/").unwrap());
    assert_eq!(fs::read(inside.join("evil")).unwrap(), b"x");
    assert_eq!(fs::read(target.join("secret")).unwrap(), b"mine");
    assert!(target.join("up").symlink_metadata().unwrap().is_dir());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn odd_names() {
    for path in [".wh..", ".wh...", "a/.wh..", ".wh.", "a/.wh..."] {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            layer(&tarball(&[(path, b"")])[..], dir.path()).is_err(),
            "{path}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    layer(&tarball(&[("/abs//./f", b"x")])[..], dir.path()).unwrap();
    assert_eq!(fs::read(dir.path().join("abs/f")).unwrap(), b"x");
    let hard = special(EntryType::Link, "x", "../../../etc/passwd");
    assert!(layer(&hard[..], dir.path()).is_err());
    let hard = special(EntryType::Link, "x", "/etc/passwd");
    assert!(layer(&hard[..], dir.path()).is_err());
    // The root itself is never replaced.
    layer(&special(EntryType::Directory, "./", "")[..], dir.path()).unwrap();
    layer(&special(EntryType::Symlink, "./", "/etc")[..], dir.path()).unwrap();
    assert!(dir.path().symlink_metadata().unwrap().is_dir());
}

/// Whoever made the layer had a directory of his own there, whose owner and mode say nothing about a container's root.
#[test]
fn what_is_said_of_the_root_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let owner = dir.path().metadata().unwrap().uid();
    let mut builder = tar::Builder::new(Vec::new());
    builder
        .append_pax_extensions([("SCHILY.xattr.user.note", b"x".as_slice())])
        .unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(EntryType::Directory);
    header.set_size(0);
    header.set_mode(0o3777);
    header.set_uid(4711);
    header.set_gid(4711);
    builder.append_data(&mut header, "./", io::empty()).unwrap();
    layer(&builder.into_inner().unwrap()[..], dir.path()).unwrap();
    let found = dir.path().metadata().unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o755, owner));
}

#[test]
fn attributes_of_overlayfs_are_refused() {
    for (name, fine) in [
        ("user.note", true),
        ("security.selinux", true),
        ("trusted.overlay.redirect", false),
        ("trusted.overlay.metacopy", false),
    ] {
        let mut builder = tar::Builder::new(Vec::new());
        let key = format!("SCHILY.xattr.{name}");
        builder
            .append_pax_extensions([(key.as_str(), b"/etc".as_slice())])
            .unwrap();
        special_in(&mut builder, EntryType::Directory, "d", "");
        let dir = tempfile::tempdir().unwrap();
        let unpacked = layer(&builder.into_inner().unwrap()[..], dir.path());
        assert_eq!(unpacked.is_ok(), fine, "{name}: {unpacked:?}");
    }
}

#[test]
fn plain_archives_hold_files_only_and_make_nothing_outside() {
    let dir = tempfile::tempdir().unwrap();
    let (target, outside) = (dir.path().join("t"), dir.path().join("outside"));
    fs::create_dir(&target).unwrap();
    fs::create_dir(&outside).unwrap();
    let link = special(EntryType::Symlink, "out", outside.to_str().unwrap());
    for archive in [
        joined(&[link.clone(), tarball(&[("out/a/b/c", b"x")])]),
        joined(&[link.clone(), special(EntryType::Directory, "out/d", "")]),
        joined(&[link, special(EntryType::Link, "x", "out/none")]),
        special(EntryType::Char, "null", ""),
        special(EntryType::Fifo, "fifo", ""),
        tarball(&[("../evil", b"x")]),
    ] {
        assert!(plain(&archive[..], &target).is_err());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
    let fine = joined(&[
        tarball(&[("a/layer.tar", b"l")]),
        special(EntryType::Symlink, "b", "a/layer.tar"),
    ]);
    plain(&fine[..], &target).unwrap();
    assert_eq!(fs::read(target.join("b")).unwrap(), b"l");
    assert_eq!(
        target.join("a/layer.tar").metadata().unwrap().mode() & 0o7777,
        0o600
    );
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
        rustix::fs::getxattr(dir.path().join("e"), "trusted.overlay.opaque", &mut value).unwrap();
    assert_eq!(&value[..count], b"y");
}

#[test]
fn empty_numeric_fields_are_zero() {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..4].copy_from_slice(b"link");
    header.as_old_mut().linkname[..6].copy_from_slice(b"target");
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    // Permissions and time are left out; the owner is one that also others than root may set.
    header.set_uid(u64::from(rustix::process::getuid().as_raw()));
    header.set_gid(u64::from(rustix::process::getgid().as_raw()));
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, io::empty()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    layer(&builder.into_inner().unwrap()[..], dir.path()).unwrap();
    let says = fs::read_link(dir.path().join("link")).unwrap();
    assert_eq!(says, Path::new("target"));
}

#[test]
fn what_stands_before_an_entry_is_not_kept_without_a_limit() {
    let mut note = tar::Header::new_ustar();
    note.set_entry_type(EntryType::XHeader);
    note.set_size(2 << 20);
    note.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    let says = format!("{} comment={}\n", 2 << 20, "x".repeat((2 << 20) - 17));
    builder.append(&note, says.as_bytes()).unwrap();
    let bomb = joined(&[
        builder.into_inner().unwrap(),
        tarball(&[("file", b"content")]),
    ]);
    for unpack in [
        |from: &[u8], to: &Path| layer(from, to).map(drop),
        |from: &[u8], to: &Path| plain(from, to),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let error = unpack(&bomb, dir.path()).unwrap_err();
        assert!(error.to_string().contains("before an entry"), "{error}");
    }
}

#[test]
fn a_large_file_is_no_head() {
    let dir = tempfile::tempdir().unwrap();
    let large = vec![7; 3 << 20];
    layer(
        &tarball(&[("large", &large), ("small", b"x")])[..],
        dir.path(),
    )
    .unwrap();
    assert_eq!(fs::read(dir.path().join("large")).unwrap(), large);
    assert_eq!(fs::read(dir.path().join("small")).unwrap(), b"x");
}
