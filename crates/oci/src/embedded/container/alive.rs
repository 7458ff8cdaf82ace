//! Who may still be starting a container, or running it.

use crate::monitor::files;
use rustix::fs::FlockOperation;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;

/// The mark that a container was to be started: locked until both the davit that starts it and its monitor have ended.
/// The monitor has it as its standard output, so that there is no moment at which neither holds it.
pub(super) struct Alive(fs::File);

impl Alive {
    /// Takes it, for a container that is about to be started.
    pub(super) fn mark(dir: &Path) -> io::Result<Self> {
        let file = fs::File::create(dir.join(files::STARTED))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    /// Whether one of the two lives, as far as that can be told.
    pub(super) fn is_held(dir: &Path) -> bool {
        fs::File::open(dir.join(files::STARTED)).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
        })
    }
}

impl From<Alive> for Stdio {
    fn from(alive: Alive) -> Self {
        alive.0.into()
    }
}
