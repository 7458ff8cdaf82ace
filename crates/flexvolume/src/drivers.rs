//! The directory of drivers.

use crate::{CallLimits, DriverName, Error, FlexDriver};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What of a file changes when it is replaced or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// One driver that is installed: held while it is asked what it can do, so that one that hangs holds up nobody else.
type Slot = Arc<tokio::sync::Mutex<Option<Initialized>>>;

#[derive(Debug)]
struct Initialized {
    fingerprint: Fingerprint,
    driver: Arc<FlexDriver>,
}

/// The drivers that are installed in a directory. It is looked at each time one is asked for: what was installed, replaced or
/// removed a moment ago is so.
#[derive(Debug)]
pub struct FlexDrivers {
    dir: PathBuf,
    limits: CallLimits,
    /// By name; only such as are installed.
    slots: Mutex<HashMap<DriverName, Slot>>,
}

impl FlexDrivers {
    /// The drivers in `dir`, which need not be there yet.
    pub fn new(dir: PathBuf) -> Self {
        Self::with_limits(dir, CallLimits::default())
    }

    /// The drivers in `dir`, with other limits of calls.
    pub fn with_limits(dir: PathBuf, limits: CallLimits) -> Self {
        Self {
            dir,
            limits,
            slots: Mutex::default(),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes the directory if it is missing. Blocks.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn make_dir(&self) -> Result<(), Error> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        builder.create(&self.dir).map_err(|source| Error::Look {
            path: self.dir.clone(),
            source,
        })
    }

    /// The driver that volumes call `name`, `vendor/driver`. One that is new or was replaced is asked what it can do; one
    /// whose answer was no good is asked again.
    ///
    /// # Errors
    /// It is not installed, or fails to say what it can do.
    pub async fn get(&self, name: &str) -> Result<Arc<FlexDriver>, Error> {
        let name = DriverName::new(name)?;
        let executable = self.dir.join(name.executable());
        let looked_at = executable.clone();
        let found = tokio::task::spawn_blocking(move || look(&looked_at)).await;
        let found = found.map_err(io::Error::other).flatten();
        let found = found.map_err(|source| Error::Look {
            path: executable.clone(),
            source,
        })?;
        let Some(fingerprint) = found else {
            self.slots.lock().remove(&name);
            return Err(Error::NotInstalled {
                driver: name.to_string(),
                dir: self.dir.clone(),
            });
        };
        let slot = self.slots.lock().entry(name.clone()).or_default().clone();
        let mut held = slot.lock().await;
        if let Some(known) = held.as_ref().filter(|k| k.fingerprint == fingerprint) {
            return Ok(known.driver.clone());
        }
        *held = None;
        let directory = name.directory();
        let driver = FlexDriver::init(name, executable, self.limits).await;
        let driver = driver.map_err(|cause| Error::Init {
            directory,
            cause: Box::new(cause),
        })?;
        let driver = Arc::new(driver);
        *held = Some(Initialized {
            fingerprint,
            driver: driver.clone(),
        });
        Ok(driver)
    }
}

/// `None` where no executable is.
fn look(path: &Path) -> io::Result<Option<Fingerprint>> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Ok(None);
    }
    Ok(Some(Fingerprint {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
    }))
}
