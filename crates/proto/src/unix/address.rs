//! Where a socket is.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use tokio::net::UnixStream;

/// The path of a socket, and how far those who may write on the way are believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    path: PathBuf,
    root: Option<PathBuf>,
}

impl Address {
    /// A path whose part below `root` others may write: no link in it is followed, and what it leads to is a socket. A path
    /// that is not below `root` is taken as it is.
    pub fn below(root: &Path, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let root = path.starts_with(root).then(|| root.to_owned());
        Self { path, root }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        match self.open()? {
            None => UnixStream::connect(&self.path).await,
            Some(socket) => {
                let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
                UnixStream::connect(path).await
            }
        }
    }

    /// The socket below the root.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let below = self.path.strip_prefix(root).map_err(io::Error::other)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let socket = openat2(root, below, flags, Mode::empty(), resolve)?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("not a socket"));
        }
        Ok(Some(socket))
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Self {
        Self { path, root: None }
    }
}

impl From<&PathBuf> for Address {
    fn from(path: &PathBuf) -> Self {
        path.clone().into()
    }
}

impl From<&Path> for Address {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl From<&Address> for Address {
    fn from(address: &Address) -> Self {
        address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[tokio::test]
    async fn links_below_the_root_lead_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (root, other) = (at("root"), at("other"));
        for folder in [&root, &other] {
            std::fs::create_dir(folder).unwrap();
        }
        let _listening =
            [&root, &other].map(|d| tokio::net::UnixListener::bind(d.join("s")).unwrap());
        symlink(&other, root.join("folder")).unwrap();
        symlink(other.join("s"), root.join("link")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        let reach = async |path: PathBuf| Address::below(&root, path).connect().await.is_ok();
        assert!(reach(root.join("s")).await);
        for hostile in ["link", "folder/s", "../other/s", "file", "none"] {
            assert!(!reach(root.join(hostile)).await, "{hostile}");
        }
        assert!(reach(other.join("s")).await, "not below the root");
        symlink(&root, at("moved")).unwrap();
        let moved = Address::below(&at("moved"), at("moved").join("s"));
        assert!(
            moved.connect().await.is_ok(),
            "the root itself may be a link"
        );
    }
}
