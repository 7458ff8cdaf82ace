//! What a cluster writes: kept where its test has failed.

use crate::{Error, files};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// As much of a log is shown.
const SHOWN: usize = 40;

/// The log of one cluster.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
}

impl Log {
    /// A new file below `DAVIT_TEST_LOGS`, or where temporary files are.
    pub(crate) fn create() -> Result<(Self, File), Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::var_os("DAVIT_TEST_LOGS");
        let dir = dir.map_or_else(std::env::temp_dir, PathBuf::from);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("davit-testing-{}-{number}.log", std::process::id());
        let path = dir.join(name);
        let file = File::create(&path).map_err(files("make the cluster's log"))?;
        Ok((Self { path }, file))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The last lines.
    pub(crate) fn end(&self) -> String {
        let text = std::fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the cluster's log is kept: {}", self.path.display());
        } else {
            // It may be gone already.
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}
