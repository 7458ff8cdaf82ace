//! CRI log files: `<RFC 3339 time with nanoseconds> <stream> <F|P> <text>`.

use davit_beneath::{Links, Root};
use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longer lines are cut into partial ones, as containerd does.
const MAX_LINE: usize = 16 * 1024;

/// Which stream a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Writes a container's log file. Failures to write (a full disk) lose lines, they never stop the container; the first
/// line that can be written again is one that says how many were lost, and why.
pub(super) struct LogFile {
    path: Option<PathBuf>,
    file: Option<File>,
    /// Text of lines whose end has not come yet.
    pending: [Vec<u8>; 2],
    out: Vec<u8>,
    loss: Option<Loss>,
}

/// What could not be written.
#[derive(Debug)]
struct Loss {
    lines: u64,
    cause: String,
    /// The file ends in the middle of a line.
    torn: bool,
}

impl LogFile {
    /// Opens the file; a missing path discards everything.
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(open).transpose()?;
        Ok(LogFile {
            path: path.map(Path::to_owned),
            file,
            pending: [Vec::new(), Vec::new()],
            out: Vec::new(),
            loss: None,
        })
    }

    /// Opens the path again, after the file was renamed away.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = self.path.as_deref().map(open).transpose()?;
        if let Some(loss) = &mut self.loss {
            loss.torn = false;
        }
        Ok(())
    }

    /// Takes output of the container.
    pub(super) fn write(&mut self, stream: Stream, mut bytes: &[u8]) {
        if self.file.is_none() {
            return;
        }
        let now = timestamp(SystemTime::now());
        while !bytes.is_empty() {
            let pending = &mut self.pending[stream as usize];
            let room = MAX_LINE - pending.len();
            match bytes.iter().take(room + 1).position(|b| *b == b'\n') {
                Some(end) => {
                    line(&mut self.out, &now, stream, 'F', &[pending, &bytes[..end]]);
                    pending.clear();
                    bytes = &bytes[end + 1..];
                }
                None if bytes.len() > room => {
                    line(&mut self.out, &now, stream, 'P', &[pending, &bytes[..room]]);
                    pending.clear();
                    bytes = &bytes[room..];
                }
                None => {
                    pending.extend_from_slice(bytes);
                    bytes = &[];
                }
            }
        }
        self.flush();
    }

    /// Ends a stream: text without a line end becomes a partial line.
    pub(super) fn finish(&mut self, stream: Stream) {
        let pending = std::mem::take(&mut self.pending[stream as usize]);
        if !pending.is_empty() && self.file.is_some() {
            line(
                &mut self.out,
                &timestamp(SystemTime::now()),
                stream,
                'P',
                &[&pending],
            );
            self.flush();
        }
    }

    fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            let begin = self.loss.as_ref().map(Loss::line).unwrap_or_default();
            let bytes = [begin.as_slice(), &self.out].concat();
            self.loss = match put(file, &bytes) {
                Ok(()) => None,
                Err((written, error)) => {
                    let unwritten = &bytes[written.max(begin.len())..];
                    let ends = unwritten.iter().filter(|byte| **byte == b'\n');
                    let before = self.loss.take().filter(|_| written < begin.len());
                    let lines = before.as_ref().map_or(0, |loss| loss.lines);
                    let torn = match written.checked_sub(1).and_then(|at| bytes.get(at)) {
                        Some(last) => *last != b'\n',
                        None => before.is_some_and(|loss| loss.torn),
                    };
                    Some(Loss {
                        lines: lines.saturating_add(ends.count() as u64),
                        cause: error.to_string(),
                        torn,
                    })
                }
            };
        }
        self.out.clear();
        // One burst must not keep its memory for the life of the container.
        self.out.shrink_to(4096);
    }
}

impl Loss {
    /// What is written before anything else, once that is possible.
    fn line(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.torn {
            out.push(b'\n');
        }
        let text = format!("davit: {} lines are lost here: {}", self.lines, self.cause);
        let now = timestamp(SystemTime::now());
        line(&mut out, &now, Stream::Stderr, 'F', &[text.as_bytes()]);
        out
    }
}

/// Writes it all, or says how much was written.
fn put(file: &mut impl Write, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((written, error)),
        }
    }
    Ok(())
}

/// Parts at the end of a log's path (pod, container, file) that are not the host's alone: log collectors, and whoever
/// else mounts the directory of all logs, may write there.
const SHARED_PARTS: usize = 3;

/// The directory `parts` above a path, made if it is missing, and what of the path is below it. It may itself be in one
/// that others write (`/var/log`), so that it is no link.
fn top_of(path: &Path, parts: usize) -> io::Result<(Root, &Path)> {
    let top = path.ancestors().take(parts + 1).last();
    let top = top.unwrap_or(Path::new("/"));
    let below = path.strip_prefix(top).unwrap_or(path);
    if let Some(above) = top.parent() {
        std::fs::create_dir_all(above)?;
    }
    let opened = match Root::open_itself(top, Links::Refused) {
        Err(error) if error.is_not_found() => {
            std::fs::create_dir(top)?;
            Root::open_itself(top, Links::Refused)
        }
        opened => opened,
    };
    Ok((opened?, below))
}

/// Makes the directory of a pod's logs, which is one of those that others may put a link in the place of.
pub(crate) fn make_log_dir(path: &Path) -> io::Result<()> {
    let (root, below) = top_of(path, SHARED_PARTS - 2)?;
    root.mkdir_all(below, 0o755)?;
    Ok(())
}

/// Opens a log, making what is missing. The monitor is root, so no link is followed where others write.
fn open(path: &Path) -> io::Result<File> {
    let (root, below) = top_of(path, SHARED_PARTS)?;
    let (Some(parent), Some(name)) = (below.parent(), below.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = root.mkdir_all(parent, 0o755)?;
    let flags = OFlags::CREATE
        | OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = File::from(openat(&dir, name, flags, Mode::from_raw_mode(0o640))?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the log is not a regular file",
        ))
    }
}

fn line(out: &mut Vec<u8>, time: &str, stream: Stream, tag: char, parts: &[&[u8]]) {
    out.extend_from_slice(time.as_bytes());
    out.push(b' ');
    out.extend_from_slice(stream.name().as_bytes());
    out.extend_from_slice(&[b' ', tag as u8, b' ']);
    for part in parts {
        out.extend_from_slice(part);
    }
    out.push(b'\n');
}

/// UTC in RFC 3339 with nanoseconds. By hand, so that the monitor carries no time zone tables.
fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days to a date of the proleptic Gregorian calendar, in eras of 400 years that begin on 1 March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:09}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_nanos()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_directory_of_a_pod_is_made_where_it_is_and_not_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, outside) = (dir.path().join("logs"), dir.path().join("outside"));
        make_log_dir(&logs.join("ns_pod_uid")).unwrap();
        make_log_dir(&logs.join("ns_pod_uid")).unwrap();
        assert!(logs.join("ns_pod_uid").is_dir());
        std::fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, logs.join("ns_other_uid")).unwrap();
        assert!(make_log_dir(&logs.join("ns_other_uid")).is_err());
        std::fs::remove_dir_all(&logs).unwrap();
        std::os::unix::fs::symlink(&outside, &logs).unwrap();
        assert!(make_log_dir(&logs.join("ns_pod_uid")).is_err());
        assert!(LogFile::open(Some(&logs.join("ns_pod_uid/c/0.log"))).is_err());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn times() {
        let at = |s, n| timestamp(UNIX_EPOCH + Duration::new(s, n));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_827_696, 7), "2000-02-29T12:34:56.000000007Z");
        assert_eq!(
            at(1_735_689_599, 999_999_999),
            "2024-12-31T23:59:59.999999999Z"
        );
    }

    fn texts(path: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn lines_and_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c/0.log");
        let mut log = LogFile::open(Some(&path)).unwrap();
        log.write(Stream::Stdout, b"one\ntw");
        log.write(Stream::Stderr, b"\n");
        log.write(Stream::Stdout, b"o\nend");
        log.finish(Stream::Stdout);
        log.finish(Stream::Stderr);
        assert_eq!(
            texts(&path),
            ["stdout F one", "stderr F ", "stdout F two", "stdout P end"]
        );
    }

    #[test]
    fn long_lines_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(Some(&path)).unwrap();
        let text = "x".repeat(MAX_LINE);
        log.write(Stream::Stdout, format!("{text}\n{text}y\n").as_bytes());
        let lines = texts(&path);
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("stdout F x") && lines[0].len() == MAX_LINE + 9);
        assert!(lines[1].starts_with("stdout P x"));
        assert_eq!(lines[2], "stdout F y");
    }

    #[test]
    fn what_a_full_disk_loses_is_said_when_it_has_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(Some(&path)).unwrap();
        log.write(Stream::Stdout, b"before\n");
        let good = log.file.take();
        log.file = Some(File::options().write(true).open("/dev/full").unwrap());
        log.write(Stream::Stdout, b"one\ntwo\n");
        log.write(Stream::Stderr, b"three\n");
        log.file = good;
        log.write(Stream::Stdout, b"after\n");
        log.write(Stream::Stdout, b"more\n");
        let lines = texts(&path);
        assert_eq!(lines[0], "stdout F before");
        let wanted = "stderr F davit: 3 lines are lost here: No space left on device";
        assert!(lines[1].starts_with(wanted), "{lines:?}");
        assert_eq!(lines[2..], ["stdout F after", "stdout F more"]);
    }

    #[test]
    fn a_line_that_was_torn_is_ended_first() {
        /// Takes some bytes and no more.
        struct Room(Vec<u8>, usize);
        impl Write for Room {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = bytes.len().min(self.1 - self.0.len());
                if count == 0 {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut room = Room(Vec::new(), 6);
        let (written, error) = put(&mut room, b"line\ntorn\n").unwrap_err();
        assert_eq!((written, error.kind()), (6, io::ErrorKind::StorageFull));
        let loss = Loss {
            lines: 1,
            cause: String::new(),
            torn: true,
        };
        assert!(loss.line().starts_with(b"\n"));
    }

    #[test]
    fn rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = LogFile::open(Some(&path)).unwrap();
        log.write(Stream::Stdout, b"a\n");
        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        log.write(Stream::Stdout, b"b\n");
        log.reopen().unwrap();
        log.write(Stream::Stdout, b"c\n");
        assert_eq!(
            texts(&dir.path().join("0.log.1")),
            ["stdout F a", "stdout F b"]
        );
        assert_eq!(texts(&path), ["stdout F c"]);
    }
}
