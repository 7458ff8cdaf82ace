//! Container logs in the CRI format: reading for `kubectl logs`, and rotation.
//!
//! A line is `<RFC 3339 time with nanoseconds> <stdout|stderr> <F|P> <text>`; `P` marks a part of a longer line.

mod rotate;

pub use rotate::{LogRotation, remove_log, rotate_if_large};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use davit_beneath::{Links, Root};
use davit_pods::paths::{PRIVATE_DIR, Paths};
use jiff::Timestamp;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

const CHUNK: usize = 64 * 1024;
/// A line longer than this is passed on in pieces.
const MAX_LINE: usize = 1024 * 1024;
const POLL: Duration = Duration::from_millis(100);
/// Polls between questions whether the container still runs.
const ALIVE_EVERY: u32 = 10;

/// How long opening a log may take.
const OPENING: Duration = Duration::from_secs(10);

/// Where a container's log is. Log collectors and others may write below the directory of all logs, so links there are
/// not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    root: PathBuf,
    /// Below the root.
    path: PathBuf,
}

impl LogFile {
    /// The log at a path. Below the node's directory of logs no part of it may be a link; elsewhere, where only a
    /// runtime may have put it, the file may not.
    #[must_use]
    pub fn new(paths: &Paths, path: &Path) -> Self {
        match path.strip_prefix(paths.log_root()) {
            Ok(below) => Self {
                root: paths.log_root().to_owned(),
                path: below.to_owned(),
            },
            Err(_) => Self::at(path),
        }
    }

    /// The log at a path whose directory only the host can shape.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self {
            root: path.parent().unwrap_or(Path::new("/")).to_owned(),
            path: path.file_name().map(PathBuf::from).unwrap_or_default(),
        }
    }

    fn root(&self) -> io::Result<Root> {
        Ok(Root::open_itself(&self.root, Links::Refused)?)
    }

    /// Makes the directory that it is to be in.
    pub fn make_dir(&self) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new(""));
        davit_beneath::private_dir_itself(&self.root, PRIVATE_DIR)?;
        self.root()?.mkdir_all(dir, 0o755)?;
        Ok(())
    }

    fn open(&self) -> io::Result<std::fs::File> {
        Ok(self.root()?.open_file(&self.path)?)
    }

    async fn open_in_time(&self) -> io::Result<File> {
        let this = self.clone();
        let opening = tokio::task::spawn_blocking(move || this.open());
        match tokio::time::timeout(OPENING, opening).await {
            Ok(opened) => opened.map_err(io::Error::other)?.map(File::from_std),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Device and number of the file that has the name now.
    fn named(&self) -> io::Result<(u64, u64)> {
        let stat = self.root()?.entry_itself(&self.path)?.stat()?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

/// What of a log is wanted.
#[derive(Debug, Clone, Default)]
pub struct ShownLines {
    /// Go on as the container writes.
    pub follow: bool,
    /// Only the last lines.
    pub tail_lines: Option<u64>,
    /// Only lines from this time on.
    pub since: Option<Timestamp>,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Stop after this many bytes.
    pub limit_bytes: Option<u64>,
    /// Only this stream (`stdout` or `stderr`).
    pub stream: Option<&'static str>,
}

/// Tells whether the container that writes a log still runs.
#[async_trait]
pub trait Writing: Send + Sync {
    /// False once it has ended; what it wrote before is then in the file.
    async fn writing(&self) -> bool;
}

/// Reads one log.
pub struct LogReader {
    log: LogFile,
    file: File,
    options: ShownLines,
    writer: Box<dyn Writing>,
    pending: BytesMut,
    /// Bytes of the file that are still to be read: what has been written after it was opened is of the next reading, unless
    /// this one goes on.
    unread: u64,
    /// Bytes of output that are still allowed.
    left: u64,
    polls: u32,
    ended: bool,
}

impl LogReader {
    /// Opens a log at the place where reading is to begin.
    ///
    /// # Errors
    /// I/O errors; a missing file is one, unless it is to be followed and may still come.
    pub async fn open(
        log: LogFile,
        options: ShownLines,
        writer: Box<dyn Writing>,
    ) -> io::Result<Self> {
        let mut file = log.open_in_time().await?;
        let size = file.metadata().await?.len();
        let mut start = 0;
        if let Some(lines) = options.tail_lines {
            start = tail_offset(&mut file, size, lines).await?;
            file.seek(SeekFrom::Start(start)).await?;
        }
        let unread = if options.follow {
            u64::MAX
        } else {
            size - start
        };
        let left = options.limit_bytes.unwrap_or(u64::MAX);
        Ok(Self {
            log,
            file,
            options,
            writer,
            pending: BytesMut::new(),
            unread,
            left,
            polls: 0,
            ended: false,
        })
    }

    /// The next piece of output, `None` at the end.
    ///
    /// # Errors
    /// I/O errors.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut chunk = vec![0; CHUNK];
        while self.left > 0 {
            let most = usize::try_from(self.unread).unwrap_or(CHUNK).min(CHUNK);
            let n = self.file.read(&mut chunk[..most]).await?;
            if n == 0 {
                if !self.options.follow || !self.wait_for_more().await? {
                    return Ok(None);
                }
                continue;
            }
            self.polls = 0;
            if !self.options.follow {
                self.unread -= n as u64;
            }
            self.pending.extend_from_slice(&chunk[..n]);
            let mut out = self.take_lines();
            if !out.is_empty() {
                let allowed = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(out.len());
                out.truncate(allowed);
                self.left -= allowed as u64;
                return Ok(Some(out.freeze()));
            }
        }
        Ok(None)
    }

    /// At the end of the file: waits for more, opens the next file after a rotation. False when nothing can come.
    async fn wait_for_more(&mut self) -> io::Result<bool> {
        if self.rotated().await {
            self.file = match self.log.open_in_time().await {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(!self.ended),
                Err(e) => return Err(e),
            };
            return Ok(true);
        }
        if self.ended {
            return Ok(false);
        }
        if self.polls.is_multiple_of(ALIVE_EVERY) && !self.writer.writing().await {
            // Once more around, for what was written in the meantime.
            self.ended = true;
            return Ok(true);
        }
        self.polls += 1;
        tokio::time::sleep(POLL).await;
        Ok(true)
    }

    async fn rotated(&self) -> bool {
        let log = self.log.clone();
        let named = tokio::task::spawn_blocking(move || log.named());
        let (Ok(open), Ok(Ok(named))) = (self.file.metadata().await, named.await) else {
            return false;
        };
        (open.dev(), open.ino()) != named
    }

    fn take_lines(&mut self) -> BytesMut {
        let mut out = BytesMut::new();
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line = self.pending.split_to(end + 1);
            self.format(&line, &mut out);
        }
        if self.pending.len() > MAX_LINE {
            let line = self.pending.split();
            self.format(&line, &mut out);
        }
        out
    }

    fn format(&self, line: &[u8], out: &mut BytesMut) {
        let Some(parsed) = parse_line(line) else {
            return;
        };
        if self
            .options
            .stream
            .is_some_and(|s| s.as_bytes() != parsed.stream)
        {
            return;
        }
        let early = |since: Timestamp| {
            let time = std::str::from_utf8(parsed.time)
                .ok()
                .and_then(|t| t.parse::<Timestamp>().ok());
            time.is_some_and(|t| t < since)
        };
        if self.options.since.is_some_and(early) {
            return;
        }
        if self.options.timestamps {
            out.extend_from_slice(parsed.time);
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(parsed.text);
        if !parsed.partial {
            out.extend_from_slice(b"\n");
        }
    }
}

struct Line<'a> {
    time: &'a [u8],
    stream: &'a [u8],
    partial: bool,
    text: &'a [u8],
}

fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let mut parts = line.splitn(4, |b| *b == b' ');
    let (time, stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
    let text = parts.next().unwrap_or_default();
    let partial = tag.split(|b| *b == b':').next() == Some(b"P");
    Some(Line {
        time,
        stream,
        partial,
        text,
    })
}

/// Where the last `lines` lines of the first `size` bytes begin.
async fn tail_offset(file: &mut File, size: u64, lines: u64) -> io::Result<u64> {
    if lines == 0 {
        return Ok(size);
    }
    let mut at = size;
    let mut found = 0;
    let mut buffer = vec![0; CHUNK];
    while at > 0 {
        let step = at.min(CHUNK as u64);
        at -= step;
        let part = &mut buffer[..usize::try_from(step).unwrap_or(CHUNK)];
        file.seek(SeekFrom::Start(at)).await?;
        file.read_exact(part).await?;
        for (i, byte) in part.iter().enumerate().rev() {
            let position = at + i as u64;
            // The line feed at the very end closes the last line.
            if *byte == b'\n' && position + 1 < size {
                found += 1;
                if found == lines {
                    return Ok(position + 1);
                }
            }
        }
    }
    Ok(0)
}

/// The text of the last lines of a log, at most `max_bytes`.
///
/// # Errors
/// I/O errors.
pub fn last_lines(log: &LogFile, lines: usize, max_bytes: usize) -> io::Result<String> {
    use std::io::{Read, Seek};
    let mut file = log.open()?;
    let size = file.metadata()?.len();
    // Time, stream and tag take less than 64 bytes a line.
    let window = (max_bytes + 64 * lines) as u64;
    file.seek(SeekFrom::Start(size.saturating_sub(window)))?;
    let mut data = Vec::new();
    file.take(window).read_to_end(&mut data)?;
    let mut out = Vec::new();
    let all: Vec<&[u8]> = data.split_inclusive(|b| *b == b'\n').collect();
    for line in all.iter().skip(all.len().saturating_sub(lines)) {
        if let Some(parsed) = parse_line(line) {
            out.extend_from_slice(parsed.text);
            if !parsed.partial {
                out.push(b'\n');
            }
        }
    }
    let cut = out.len().saturating_sub(max_bytes);
    Ok(String::from_utf8_lossy(&out[cut..]).into_owned())
}

#[cfg(test)]
mod tests;
