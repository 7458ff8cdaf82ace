//! Log rotation: 10 MiB a file, five files, older ones compressed, as the original does by default.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io;
use std::path::{Path, PathBuf};

/// When logs are rotated.
#[derive(Debug, Clone, Copy)]
pub struct LogRotation {
    /// Bytes after which a new file is begun.
    pub max_bytes: u64,
    /// Files kept of one container, the current one included.
    pub max_files: usize,
}

impl Default for LogRotation {
    fn default() -> Self {
        Self {
            max_bytes: 10 * 1024 * 1024,
            max_files: 5,
        }
    }
}

/// Moves a log aside when it is too large. Returns whether the runtime has to reopen it. Blocking.
///
/// # Errors
/// I/O errors.
pub fn rotate_if_large(log: &Path, rotation: LogRotation) -> io::Result<bool> {
    let size = match std::fs::metadata(log) {
        Ok(meta) => meta.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if size < rotation.max_bytes {
        return Ok(false);
    }
    let mut old = rotated_files(log)?;
    // Room for the file that is moved now and the fresh one.
    let keep = rotation.max_files.saturating_sub(2);
    while old.len() > keep {
        std::fs::remove_file(old.remove(0))?;
    }
    for file in &old {
        if file.extension().is_none_or(|e| e != "gz") {
            compress(file)?;
        }
    }
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{stamp}"));
    std::fs::rename(log, PathBuf::from(name))?;
    Ok(true)
}

/// Files that were moved aside, the oldest first.
fn rotated_files(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name()) else {
        return Ok(Vec::new());
    };
    let prefix = format!("{}.", name.to_string_lossy());
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.ends_with(".tmp") && file.starts_with(&prefix) {
            std::fs::remove_file(entry.path())?;
        } else if file.starts_with(&prefix) {
            out.push(entry.path());
        }
    }
    out.sort();
    Ok(out)
}

fn compress(file: &Path) -> io::Result<()> {
    let named = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let staged = named(".tmp");
    let mut encoder = GzEncoder::new(std::fs::File::create(&staged)?, Compression::default());
    io::copy(&mut std::fs::File::open(file)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    std::fs::rename(&staged, named(".gz"))?;
    std::fs::remove_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotates_compresses_and_forgets() {
        let tmp = tempfile::tempdir().unwrap();
        let log = tmp.path().join("0.log");
        let rotation = LogRotation {
            max_bytes: 10,
            max_files: 3,
        };
        assert!(!rotate_if_large(&log, rotation).unwrap());
        for i in 0..4 {
            for (n, old) in rotated_files(&log).unwrap().into_iter().enumerate() {
                // Stamps have seconds; make them differ without waiting.
                let suffix = if old.extension().is_some_and(|e| e == "gz") {
                    ".gz"
                } else {
                    ""
                };
                std::fs::rename(
                    old,
                    tmp.path()
                        .join(format!("0.log.2020010{}-00000{n}{suffix}", i + 1)),
                )
                .unwrap();
            }
            std::fs::write(&log, "x".repeat(20)).unwrap();
            assert!(rotate_if_large(&log, rotation).unwrap());
            assert!(!log.exists());
        }
        let left = rotated_files(&log).unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].to_string_lossy().ends_with(".gz"));
    }
}
