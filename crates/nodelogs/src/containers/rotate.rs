//! Log rotation: 10 MiB a file, five files, older ones compressed, as the original does by default.

use davit_beneath::Root;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::LogFile;

/// Files in one container's directory that are looked at.
const MAX_ENTRIES: usize = 10_000;

/// When logs are rotated.
#[derive(Debug, Clone, Copy)]
pub struct LogRotation {
    /// Bytes after which a new file is begun.
    pub max_bytes: u64,
    /// Files kept of one container, the current one included.
    pub max_files: usize,
    /// How many logs are looked at and compressed at once.
    pub workers: usize,
    /// How often they are looked at.
    pub interval: Duration,
}

impl Default for LogRotation {
    fn default() -> Self {
        Self {
            max_bytes: 10 * 1024 * 1024,
            max_files: 5,
            workers: 1,
            interval: Duration::from_secs(10),
        }
    }
}

/// Moves a log aside when it is too large. Returns whether the runtime has to reopen it. Blocking.
///
/// # Errors
/// I/O errors.
pub fn rotate_if_large(log: &LogFile, rotation: LogRotation) -> io::Result<bool> {
    let size = match log.open() {
        Ok(file) => file.metadata()?.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    if size < rotation.max_bytes {
        return Ok(false);
    }
    let (dir, name) = split(log)?;
    let mut old = rotated_files(&dir, &name)?;
    // Room for the file that is moved now and the fresh one.
    let keep = rotation.max_files.saturating_sub(2);
    while old.len() > keep {
        dir.remove_file(old.remove(0))?;
    }
    for file in old.iter().filter(|f| !f.ends_with(".gz")) {
        compress(&dir, file)?;
    }
    let stamp = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    dir.rename(&name, format!("{name}.{stamp}"))?;
    Ok(true)
}

/// Removes a log with all that was moved aside of it. Blocking.
///
/// # Errors
/// I/O errors; what is not there is removed.
pub fn remove_log(log: &LogFile) -> io::Result<()> {
    let (dir, name) = match split(log) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for file in rotated_files(&dir, &name)?.iter().chain([&name]) {
        match dir.remove_file(file) {
            Err(e) if !e.is_not_found() => return Err(e.into()),
            _ => {}
        }
    }
    Ok(())
}

/// The log's own directory, held open so that all files of the rotation are in the same one, and its name there.
fn split(log: &LogFile) -> io::Result<(Root, String)> {
    let name = log.path.file_name().unwrap_or_default();
    let dir = log.path.parent().unwrap_or(Path::new(""));
    Ok((log.root()?.dir(dir)?, name.to_string_lossy().into_owned()))
}

/// Files that were moved aside, the oldest first.
fn rotated_files(dir: &Root, name: &str) -> io::Result<Vec<String>> {
    let prefix = format!("{name}.");
    let mut out = Vec::new();
    for entry in dir.list("", MAX_ENTRIES)? {
        let file = entry.name.to_string_lossy().into_owned();
        if file.ends_with(".tmp") && file.starts_with(&prefix) {
            dir.remove_file(&file)?;
        } else if file.starts_with(&prefix) {
            out.push(file);
        }
    }
    out.sort();
    Ok(out)
}

fn compress(dir: &Root, file: &str) -> io::Result<()> {
    let staged = format!("{file}.tmp");
    let mut source = dir.open_file(file)?;
    let target = dir.create_new(&staged, 0o640)?;
    let mut encoder = GzEncoder::new(target, Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    dir.rename(&staged, format!("{file}.gz"))?;
    Ok(dir.remove_file(file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_with_what_was_moved_aside_and_no_link_is_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let (logs, host) = (tmp.path().join("pods/p/c"), tmp.path().join("host"));
        for dir in [&logs, &host] {
            std::fs::create_dir_all(dir).unwrap();
        }
        for name in [
            "1.log",
            "1.log.20260101-000000",
            "1.log.20260101-000000.gz",
            "11.log",
        ] {
            std::fs::write(logs.join(name), "x").unwrap();
            std::fs::write(host.join(name), "x").unwrap();
        }
        let paths =
            davit_pods::paths::Paths::new(tmp.path().join("kubelet"), tmp.path().join("pods"));
        let log = LogFile::new(&paths, &logs.join("1.log"));
        remove_log(&log).unwrap();
        let left = std::fs::read_dir(&logs)
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["11.log"]);
        remove_log(&log).unwrap();
        std::fs::remove_dir_all(&logs).unwrap();
        remove_log(&log).unwrap();
        std::os::unix::fs::symlink(&host, &logs).unwrap();
        remove_log(&log).unwrap_err();
        assert_eq!(std::fs::read_dir(&host).unwrap().count(), 4);
    }

    #[test]
    fn rotates_compresses_and_forgets() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("0.log");
        let log = LogFile::at(&path);
        let rotated = || {
            let (dir, name) = split(&log).unwrap();
            rotated_files(&dir, &name).unwrap()
        };
        let rotation = LogRotation {
            max_bytes: 10,
            max_files: 3,
            ..LogRotation::default()
        };
        assert!(!rotate_if_large(&log, rotation).unwrap());
        for i in 0..4 {
            for (n, old) in rotated().into_iter().enumerate() {
                // Stamps have seconds; make them differ without waiting.
                let suffix = if old.ends_with(".gz") { ".gz" } else { "" };
                let name = format!("0.log.2020010{}-00000{n}{suffix}", i + 1);
                std::fs::rename(tmp.path().join(old), tmp.path().join(name)).unwrap();
            }
            std::fs::write(&path, "x".repeat(20)).unwrap();
            assert!(rotate_if_large(&log, rotation).unwrap());
            assert!(!path.exists());
        }
        let left = rotated();
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left[0].ends_with(".gz"));
    }

    #[test]
    fn a_link_is_neither_rotated_nor_written_through() {
        use std::os::unix::fs::symlink;
        let tmp = tempfile::tempdir().unwrap();
        let (dir, victim) = (tmp.path().join("logs"), tmp.path().join("victim"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&victim, "x".repeat(20)).unwrap();
        let rotation = LogRotation {
            max_bytes: 10,
            max_files: 5,
            ..LogRotation::default()
        };
        let log = LogFile::at(&dir.join("0.log"));
        symlink(&victim, dir.join("0.log")).unwrap();
        assert!(rotate_if_large(&log, rotation).is_err());
        std::fs::remove_file(dir.join("0.log")).unwrap();
        std::fs::write(dir.join("0.log"), "x".repeat(20)).unwrap();
        std::fs::write(dir.join("0.log.20200101-000000"), "y").unwrap();
        symlink(&victim, dir.join("0.log.20200101-000000.tmp")).unwrap();
        assert!(rotate_if_large(&log, rotation).unwrap());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "x".repeat(20));
    }
}
