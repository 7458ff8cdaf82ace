//! The working directory of a container's process: found inside the root, by descriptor.
//!
//! Its path comes from the pod or the image, and what it leads through is the container's. A magic link (`/proc/1/root`,
//! `/proc/self/fd/7`) would lead outside of what the container is given, so none is followed, and after the change the
//! kernel is asked whether the directory is below the root.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

fn open_root() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, "/", flags, Mode::empty())
}

fn open_dir(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Makes the directory this process's own.
pub(super) fn enter(path: &Path) -> io::Result<()> {
    let dir = open_dir(&open_root()?, path)?;
    rustix::process::fchdir(&dir)?;
    drop(dir);
    verify()
}

/// What getcwd(2) says of a directory outside of the root does not begin with a slash.
fn verify() -> io::Result<()> {
    let now = rustix::process::getcwd(Vec::new())?;
    if now.to_bytes().first() == Some(&b'/') {
        return Ok(());
    }
    let _ = rustix::process::chdir("/");
    Err(io::Error::other(
        "current working directory is outside of the container's root",
    ))
}

/// Makes the directories of a path that are not there.
pub(super) fn make(path: &Path) -> io::Result<()> {
    let root = open_root()?;
    let mut parent = open_root()?;
    let mut so_far = PathBuf::from("/");
    for part in path.components().skip(1) {
        so_far.push(part);
        parent = match open_dir(&root, &so_far) {
            Err(Errno::NOENT) => {
                mkdirat(&parent, part.as_os_str(), Mode::from_raw_mode(0o755))?;
                open_dir(&root, &so_far)?
            }
            other => other?,
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_links_are_not_followed() {
        let before = std::env::current_dir().unwrap();
        let held = std::fs::File::open("/").unwrap();
        let leaked = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
        for path in [
            "/proc/1/root",
            "/proc/self/cwd",
            "/proc/self/root/etc",
            &leaked,
        ] {
            let error = enter(Path::new(path)).unwrap_err();
            // What belongs to others may not even be looked at.
            let refused = [nix::libc::ELOOP, nix::libc::EACCES].map(Some);
            assert!(refused.contains(&error.raw_os_error()), "{path}: {error}");
            assert!(make(&Path::new(path).join("davit-made")).is_err(), "{path}");
        }
        assert_eq!(std::env::current_dir().unwrap(), before);
    }

    #[test]
    fn missing_directories_are_made_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        make(&base.join("link/a/b")).unwrap();
        assert!(base.join("real/a/b").is_dir());
        std::fs::write(base.join("file"), "").unwrap();
        assert!(make(&base.join("file/a")).is_err());
    }
}
