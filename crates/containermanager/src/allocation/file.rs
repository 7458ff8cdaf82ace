//! The append-only file under the ledger.
//!
//! A header of eight bytes, then records: length (u32, little endian), CRC-32 of the payload
//! (u32), payload. A payload is the JSON of a list of changes: those of all commits that were
//! synced together. So only the last record can be cut short by a crash; it was never
//! acknowledged, and is kept aside under another name. A broken record with a whole one after
//! it is damage, and the log is refused: what follows was acknowledged.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::record::Change;
use super::table::Table;
use crate::checksum::crc32;

const HEADER: &[u8; 8] = b"davital1";
/// Larger than any commit is allowed to be; a length above it is damage.
const MAX_RECORD: usize = 256 * 1024 * 1024;
/// Below this size the log is never rewritten.
const COMPACT_FLOOR: u64 = 1024 * 1024;

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing failed.
    #[error("allocation log {path}: {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The file is something else, or of a version this program does not know.
    #[error("allocation log {0} has an unknown format")]
    Format(PathBuf),
    /// A record is whole but says something unknown: a newer program has written it.
    #[error("allocation log {path}: record at byte {at} is not understood: {cause}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        at: u64,
        /// What the decoder said.
        cause: String,
    },
    /// A record is broken and whole ones follow it.
    #[error(
        "allocation log {path} is damaged at byte {at}, and acknowledged allocations follow; move the file away: the next \
         start begins a new one with what the kubelet's checkpoint and state files beside it say"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the broken record begins.
        at: u64,
    },
    /// Another process works with this log.
    #[error("allocation log {0} is in use by another process")]
    Busy(PathBuf),
    /// The log gives one device to two owners.
    #[error("allocation log {path} contradicts itself: {conflict}")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// The device and its first owner.
        conflict: super::Conflict,
    },
}

/// The open file, positioned at its end.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// Size right after the last rewrite.
    base: u64,
    /// A write failed half way: the end of the file is not known to be whole.
    torn: bool,
    /// Held as long as the log is open; the log itself is replaced by rewriting.
    _lock: File,
}

impl LogFile {
    /// Opens or creates the log and returns its commits.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Vec<Change>>), Error> {
        let io = |what| {
            let path = path.to_owned();
            move |source| Error::Io { path, what, source }
        };
        let lock = lock(path)?;
        let mut file = open_own(path).map_err(io("open"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io("read"))?;
        check_header(path, &bytes)?;
        let (commits, good) = parse(path, &bytes)?;
        if good < bytes.len() {
            keep_aside(path, &bytes, good);
        }
        let mut log = Self {
            path: path.to_owned(),
            file,
            len: good as u64,
            base: good as u64,
            torn: false,
            _lock: lock,
        };
        if bytes.len() < HEADER.len() || is_unfinished(&bytes) {
            log.truncate_to(0).map_err(io("write header"))?;
            log.file.write_all(HEADER).map_err(io("write header"))?;
            log.len = HEADER.len() as u64;
            log.file.sync_all().map_err(io("sync"))?;
        } else if good < bytes.len() {
            log.truncate_to(good as u64).map_err(io("truncate"))?;
            log.file.sync_all().map_err(io("sync"))?;
        } else {
            log.file.seek(SeekFrom::End(0)).map_err(io("seek"))?;
        }
        // Whoever made it may have died before this.
        sync_folder(path).map_err(io("sync folder"))?;
        Ok((log, commits))
    }

    fn truncate_to(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.file.seek(SeekFrom::Start(len))?;
        Ok(())
    }

    /// Appends commits as one record and syncs it. After an error none of them counts and the log
    /// must be rewritten before the next append.
    pub(super) fn append(&mut self, commits: &[&[Change]]) -> Result<(), Error> {
        let changes: Vec<&Change> = commits.iter().copied().flatten().collect();
        let mut bytes = Vec::new();
        put_record(&mut bytes, &changes).map_err(|e| self.error("encode", e))?;
        let written = self
            .file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.len += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                self.torn = true;
                Err(self.error("append", source))
            }
        }
    }

    /// Whether the next append needs, or is better preceded by, a rewrite.
    pub(super) fn wants_rewrite(&self) -> bool {
        self.torn || self.len > COMPACT_FLOOR.max(self.base * 4)
    }

    /// Replaces the log by a short one that says the same; atomic as a whole.
    pub(super) fn rewrite(&mut self, changes: &[Change]) -> Result<(), Error> {
        let temporary = self.path.with_extension("new");
        let mut bytes = HEADER.to_vec();
        for change in changes {
            put_record(&mut bytes, &[change]).map_err(|e| self.error("encode", e))?;
        }
        let written = (|| {
            let mut file = open_own(&temporary)?;
            file.set_len(0)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &self.path)?;
            sync_folder(&self.path)?;
            Ok(file)
        })();
        match written {
            Ok(file) => {
                self.file = file;
                self.len = bytes.len() as u64;
                self.base = self.len;
                self.torn = false;
                Ok(())
            }
            Err(source) => Err(self.error("rewrite", source)),
        }
    }

    fn error(&self, what: &'static str, source: io::Error) -> Error {
        Error::Io {
            path: self.path.clone(),
            what,
            source,
        }
    }
}

/// How long a lock is waited for. A process that starts a program while its agent is killed leaves the lock to that
/// program's first moment, in which it has not let go of inherited files yet.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Keeps other processes, such as an agent started twice, away from the log.
fn lock(path: &Path) -> Result<File, Error> {
    let name = path.with_extension("lock");
    let error = |source| Error::Io {
        path: name.clone(),
        what: "lock",
        source,
    };
    let file = open_own(&name).map_err(error)?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => return Err(Error::Busy(path.to_owned())),
            Err(TryLockError::Error(e)) => return Err(error(e)),
        }
    }
}

/// In a directory that whoever has it as a volume may write, too.
fn open_own(path: &Path) -> io::Result<File> {
    Ok(davit_beneath::open_own(path)?)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn put_record(out: &mut Vec<u8>, changes: &[&Change]) -> io::Result<()> {
    let payload = serde_json::to_vec(changes)?;
    if payload.len() > MAX_RECORD {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "commit is too large",
        ));
    }
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32(&payload).to_le_bytes());
    out.extend_from_slice(&payload);
    Ok(())
}

/// The whole records of the file and the length they take.
fn parse(path: &Path, bytes: &[u8]) -> Result<(Vec<Vec<Change>>, usize), Error> {
    let mut commits = Vec::new();
    let mut at = HEADER.len().min(bytes.len());
    while let Some(payload) = record_at(bytes, at) {
        let commit = serde_json::from_slice(payload).map_err(|e| Error::Record {
            path: path.to_owned(),
            at: at as u64,
            cause: e.to_string(),
        })?;
        commits.push(commit);
        at += 8 + payload.len();
    }
    if (at + 1..bytes.len()).any(|later| is_record(bytes, later)) {
        return Err(Error::Damaged {
            path: path.to_owned(),
            at: at as u64,
        });
    }
    Ok((commits, at))
}

/// Whether a record begins at `at`, which may be anywhere.
fn is_record(bytes: &[u8], at: usize) -> bool {
    bytes.get(at + 8) == Some(&b'[') && record_at(bytes, at).is_some()
}

/// What is in a log that nobody uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSummary {
    /// Records: commits, or several that were synced together.
    pub records: usize,
    /// Pods that hold something.
    pub pods: usize,
    /// Bytes at the end that are no whole commit: the next start keeps a copy of them aside.
    pub torn: usize,
}

/// Reads a log without changing it, or any file beside it; `None` when there is none.
///
/// # Errors
/// The file cannot be read, or is no allocation log; a torn end is no error.
pub fn summarize(path: &Path) -> Result<Option<LogSummary>, Error> {
    let failed = |source| Error::Io {
        path: path.to_owned(),
        what: "read",
        source,
    };
    const LARGEST: u64 = 1 << 30;
    let bytes = match davit_beneath::read_own(path, LARGEST).map_err(io::Error::from) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(failed)?,
    };
    check_header(path, &bytes)?;
    let (commits, good) = parse(path, &bytes)?;
    Ok(Some(LogSummary {
        pods: table(path, &commits)?.pods().len(),
        records: commits.len(),
        torn: bytes.len() - good,
    }))
}

/// What the commits of a log say.
pub(super) fn table(path: &Path, commits: &[Vec<Change>]) -> Result<Table, Error> {
    let mut table = Table::default();
    for change in commits.iter().flatten() {
        table
            .apply(change)
            .map_err(|conflict| Error::Contradiction {
                path: path.to_owned(),
                conflict,
            })?;
    }
    Ok(table)
}

/// A log that was being made may have a part of the header only, or its length without its bytes.
fn check_header(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if is_unfinished(bytes) {
        return Ok(());
    }
    let known = bytes.len().min(HEADER.len());
    if bytes[..known] != HEADER[..known] {
        return Err(Error::Format(path.to_owned()));
    }
    Ok(())
}

/// The header is on the disk before anything follows it.
fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.len() <= HEADER.len() && bytes.iter().all(|byte| *byte == 0)
}

fn record_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let head = bytes.get(at..at + 8)?;
    let len = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let sum = u32::from_le_bytes(head[4..].try_into().ok()?);
    // A record is never empty; a tail of zeros, which some file systems leave, is no record.
    if len == 0 || len > MAX_RECORD {
        return None;
    }
    let payload = bytes.get(at + 8..at + 8 + len)?;
    (crc32(payload) == sum).then_some(payload)
}

fn keep_aside(path: &Path, bytes: &[u8], good: usize) {
    let aside = path.with_extension("damaged");
    let kept = davit_beneath::write_private(&aside, bytes);
    tracing::warn!(
        log = %path.display(),
        dropped = bytes.len() - good,
        copy = %aside.display(),
        kept = kept.is_ok(),
        "the end of the allocation log is not whole; it was never acknowledged and is dropped"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(uid: &str) -> Vec<Change> {
        vec![Change::Release { uid: uid.into() }]
    }

    #[test]
    fn only_one_opens_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let first = LogFile::open(&path).unwrap();
        assert!(matches!(LogFile::open(&path), Err(Error::Busy(_))));
        // One that goes away soon is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(LOCK_WAIT / 4);
            drop(first);
        });
        LogFile::open(&path).unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn a_summary_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(summarize(&path).unwrap(), None);
        let (mut log, _) = LogFile::open(&path).unwrap();
        log.append(&[&release("a"), &release("b")]).unwrap();
        log.append(&[&release("c")]).unwrap();
        drop(log);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"torn");
        std::fs::write(&path, &bytes).unwrap();
        let summary = LogSummary {
            records: 2,
            pods: 0,
            torn: 4,
        };
        assert_eq!(summarize(&path).unwrap(), Some(summary));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        std::fs::write(&path, "something else").unwrap();
        assert!(matches!(summarize(&path), Err(Error::Format(_))));
    }

    #[test]
    fn every_torn_tail_keeps_what_was_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (mut log, commits) = LogFile::open(&path).unwrap();
        assert!(commits.is_empty());
        log.append(&[&release("a")]).unwrap();
        log.append(&[&release("b")]).unwrap();
        let whole = log.len;
        log.append(&[&release("c")]).unwrap();
        drop(log);
        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            for garbage in [&b""[..], &[0; 40], &[255; 40]] {
                let mut torn = bytes[..cut].to_vec();
                if cut < bytes.len() && cut >= 8 {
                    torn.extend_from_slice(garbage);
                }
                std::fs::write(&path, &torn).unwrap();
                let (mut log, commits) = LogFile::open(&path).unwrap();
                let expected = match cut as u64 {
                    n if n == bytes.len() as u64 => 3,
                    n if n >= whole => 2,
                    n if n >= (whole - 8) / 2 + 8 => 1,
                    _ => 0,
                };
                assert_eq!(commits.len(), expected, "cut at {cut}");
                log.append(&[&release("d")]).unwrap();
                drop(log);
                let (_, commits) = LogFile::open(&path).unwrap();
                assert_eq!(commits.last(), Some(&release("d")));
            }
        }
    }

    #[test]
    fn a_log_whose_making_was_cut_short_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for left in [&b""[..], b"dav", &[0; 3], &[0; 8], b"davital1"] {
            std::fs::write(&path, left).unwrap();
            assert_eq!(summarize(&path).unwrap().unwrap().records, 0);
            let (mut log, commits) = LogFile::open(&path).unwrap();
            assert!(commits.is_empty());
            log.append(&[&release("a")]).unwrap();
            drop(log);
            assert_eq!(LogFile::open(&path).unwrap().1, vec![release("a")]);
        }
        std::fs::write(&path, [0; 9]).unwrap();
        assert!(matches!(LogFile::open(&path), Err(Error::Format(_))));
    }

    /// Also within the last write of many commits at once, of which some blocks may be on the disk and others not.
    #[test]
    fn a_hole_in_the_last_write_is_torn_and_damage_before_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (mut log, _) = LogFile::open(&path).unwrap();
        log.append(&[&release("a")]).unwrap();
        let first = log.len as usize;
        log.append(&[&release("b"), &release("c"), &release("d")])
            .unwrap();
        drop(log);
        let bytes = std::fs::read(&path).unwrap();
        for at in HEADER.len()..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            std::fs::write(&path, &broken).unwrap();
            let summary = summarize(&path);
            let opened = LogFile::open(&path);
            if at < first {
                assert!(matches!(summary, Err(Error::Damaged { at: 8, .. })), "{at}");
                let error = opened.unwrap_err().to_string();
                assert!(
                    error.contains("damaged at byte 8") && error.contains("move the file away")
                );
                assert_eq!(std::fs::read(&path).unwrap(), broken, "it is left as it is");
            } else {
                assert_eq!(opened.unwrap().1, vec![release("a")], "{at}");
                assert_eq!(summary.unwrap().unwrap().torn, bytes.len() - first);
            }
        }
    }

    #[test]
    fn rewriting_keeps_the_meaning_and_foreign_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (mut log, _) = LogFile::open(&path).unwrap();
        log.append(&[&release("a")]).unwrap();
        log.rewrite(&release("b")).unwrap();
        log.append(&[&release("c")]).unwrap();
        drop(log);
        let (_, commits) = LogFile::open(&path).unwrap();
        assert_eq!(commits, vec![release("b"), release("c")]);
        std::fs::write(&path, b"something else").unwrap();
        assert!(matches!(LogFile::open(&path), Err(Error::Format(_))));
    }

    /// Links that somebody has put there who may write the agent's directory.
    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "untouched").unwrap();
        for name in ["log", "log.lock", "log.new"] {
            let path = dir.path().join(name).join("log");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(&victim, path.with_file_name(name)).unwrap();
            let rewritten = LogFile::open(&path).and_then(|(mut log, _)| log.rewrite(&[]));
            assert!(matches!(rewritten, Err(Error::Io { .. })), "{name}");
        }
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "untouched");
    }
}
