//! Directories and files of our own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use davit_beneath::{private_dir, read_given, read_own, write_private};
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_open_is_closed_and_never_opened() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("a/b");
    private_dir(&dir, 0o700).unwrap();
    assert_eq!((mode(&dir), mode(dir.parent().unwrap())), (0o700, 0o700));
    for (before, wanted, after) in [
        (0o755, 0o700, 0o700),
        (0o777, 0o750, 0o750),
        (0o700, 0o750, 0o700),
        (0o2755, 0o750, 0o2750),
    ] {
        chmod(&dir, before);
        private_dir(&dir, wanted).unwrap();
        assert_eq!(mode(&dir), after, "{before:o}");
    }
    chmod(&dir, 0o1777);
    assert!(private_dir(&dir, 0o700).is_err());
    assert_eq!(mode(&dir), 0o1777);
}

#[test]
fn links_in_the_place_of_our_files_are_replaced_not_followed() {
    let tmp = tempfile::tempdir().unwrap();
    let victim = tmp.path().join("victim");
    std::fs::write(&victim, "of the host").unwrap();
    let dir = tmp.path().join("shared");
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("state");
    for name in ["state", ".state"] {
        symlink(&victim, dir.join(name)).unwrap();
    }
    let error = read_own(&file, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(read_given(&file, 100).unwrap(), b"of the host");
    write_private(&file, b"ours").unwrap();
    assert_eq!(read_own(&file, 4).unwrap(), b"ours");
    assert_eq!(mode(&file), 0o600);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of the host");
    assert_eq!(
        read_own(&file, 3).unwrap_err().kind(),
        ErrorKind::FileTooLarge
    );
}

#[test]
fn nobody_waits_at_a_fifo() {
    let tmp = tempfile::tempdir().unwrap();
    let fifo = tmp.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(
        read_own(&fifo, 100).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        read_given(&fifo, 100).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        read_own(tmp.path().join("none"), 100).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    write_private(&fifo, b"ours").unwrap();
    assert_eq!(read_own(&fifo, 100).unwrap(), b"ours");
}
