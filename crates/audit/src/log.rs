//! Events as lines of JSON in a file that is rotated, or on standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::Value;

use super::AuditError;

const MEGABYTE: u64 = 1024 * 1024;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Where events are written.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Days after which rotated files are deleted; 0 keeps them.
    pub max_age_days: u64,
    /// How many rotated files are kept; 0 keeps all.
    pub max_backups: usize,
    /// Megabytes after which the file is rotated; 0 never rotates.
    pub max_size_megabytes: u64,
}

impl LogOptions {
    /// A file that is rotated every 100 MB.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            max_age_days: 0,
            max_backups: 0,
            max_size_megabytes: 100,
        }
    }
}

/// An open log. An event is written before its request goes on, so that none is lost with the
/// process.
#[derive(Debug)]
pub(super) struct LogFile {
    options: LogOptions,
    output: Mutex<Output>,
}

#[derive(Debug)]
enum Output {
    Standard,
    File { file: File, size: u64 },
}

impl LogFile {
    pub(super) fn open(options: LogOptions) -> Result<Self, AuditError> {
        let output = if options.path.as_os_str() == "-" {
            Output::Standard
        } else {
            let opened = open(&options.path);
            let (file, size) = opened.map_err(|error| AuditError::Log {
                path: options.path.clone(),
                detail: error.to_string(),
            })?;
            Output::File { file, size }
        };
        Ok(Self {
            options,
            output: Mutex::new(output),
        })
    }

    pub(super) fn write(&self, event: &Value) -> io::Result<()> {
        let mut line = event.to_string();
        line.push('\n');
        let mut output = self.output.lock();
        match &mut *output {
            Output::Standard => io::stdout().lock().write_all(line.as_bytes()),
            Output::File { file, size } => {
                let length = line.len() as u64;
                let limit = self.options.max_size_megabytes * MEGABYTE;
                if limit > 0 && *size > 0 && *size + length > limit {
                    rotate(&self.options)?;
                    (*file, *size) = open(&self.options.path)?;
                }
                file.write_all(line.as_bytes())?;
                *size += length;
                Ok(())
            }
        }
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)?;
    }
    let mut options = OpenOptions::new();
    // what is in it may be secret
    options.create(true).append(true).mode(0o600);
    let file = options.open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Renames the full file to `name-{time}.ext` and deletes those that are too old or too many.
fn rotate(options: &LogOptions) -> io::Result<()> {
    let path = &options.path;
    let (stem, extension) = names(path);
    let now = jiff::Timestamp::now();
    let mut backup = path.with_file_name(format!(
        "{stem}-{}{extension}",
        now.strftime("%Y-%m-%dT%H-%M-%S%.3f")
    ));
    let mut again = 0;
    while backup.exists() {
        again += 1;
        backup = path.with_file_name(format!(
            "{stem}-{}-{again}{extension}",
            now.strftime("%Y-%m-%dT%H-%M-%S%.3f")
        ));
    }
    std::fs::rename(path, backup)?;
    let mut backups = backups(path)?;
    backups.sort();
    let excess = match options.max_backups {
        0 => 0,
        keep => backups.len().saturating_sub(keep),
    };
    for (index, old) in backups.iter().enumerate() {
        let aged = options.max_age_days > 0
            && std::fs::metadata(old)
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|at| SystemTime::now().duration_since(at).ok())
                .is_some_and(|age| {
                    age > DAY * u32::try_from(options.max_age_days).unwrap_or(u32::MAX)
                });
        if index < excess || aged {
            std::fs::remove_file(old)?;
        }
    }
    Ok(())
}

/// Rotated files, by name and so by age.
fn backups(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (stem, extension) = names(path);
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let start = format!("{stem}-");
    let found = std::fs::read_dir(parent)?.filter_map(Result::ok);
    let found = found.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.strip_prefix(&start)
            .and_then(|rest| rest.strip_suffix(&*extension))
            .is_some_and(|time| time.starts_with(|c: char| c.is_ascii_digit()))
    });
    Ok(found.map(|entry| entry.path()).collect())
}

fn names(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path
        .extension()
        .map(|extension| format!(".{}", extension.to_string_lossy()))
        .unwrap_or_default();
    (stem.into_owned(), extension)
}
