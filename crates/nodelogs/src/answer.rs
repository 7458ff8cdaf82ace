//! The journal or the files that answer a request.

use crate::query::{Options, ServiceQuery};
use bytes::{Bytes, BytesMut};
use davit_beneath::{Links, Root};
use davit_task::ProcessGroup;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::unix::pipe;
use tokio::process::Command;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the journal may take to say which units it knows, and how much.
const UNITS_LIMIT: Duration = Duration::from_secs(10);
const UNITS_SIZE: u64 = 4 << 20;
const CHUNK: usize = 64 * 1024;

type Pieces = BoxStream<'static, io::Result<Bytes>>;

/// The logs of services: of those that the journal knows from there, of the others the first of `NAME`, `NAME.log` and
/// `NAME/NAME.log` below `logs`. What goes wrong stands in the text, as with the kubelet. It ends after 30 s.
pub async fn answer(query: ServiceQuery, logs: PathBuf) -> Pieces {
    let units = units().await;
    let (journal, files): (Vec<_>, Vec<_>) = query
        .services
        .into_iter()
        .partition(|name| units.contains(name) || units.contains(&format!("{name}.service")));
    let mut parts = Vec::new();
    if !journal.is_empty() {
        parts.push(of_journal(&journal, &query.options).await);
    }
    if !files.is_empty() && query.options != Options::default() {
        parts.push(text(format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            files.join(" ")
        )));
    } else {
        for name in files {
            parts.push(of_files(&logs, name).await);
        }
    }
    let all = stream::iter(parts).flatten();
    all.take_until(tokio::time::sleep(LIMIT)).boxed()
}

fn text(text: String) -> Pieces {
    stream::once(async { Ok(Bytes::from(text)) }).boxed()
}

/// What a source has, piece by piece; `holds` lives as long.
fn pieces<R, H>(source: R, holds: H) -> Pieces
where
    R: AsyncRead + Send + Unpin + 'static,
    H: Send + 'static,
{
    let read = |(mut source, holds): (R, H)| async move {
        let mut piece = BytesMut::with_capacity(CHUNK);
        let count = source.read_buf(&mut piece).await?;
        Ok::<_, io::Error>((count > 0).then(|| (piece.freeze(), (source, holds))))
    };
    stream::try_unfold((source, holds), read)
        .into_stream()
        .boxed()
}

/// The units of which the journal has something; none where there is no journal.
async fn units() -> BTreeSet<String> {
    let asked = tokio::time::timeout(UNITS_LIMIT, async {
        let mut command = Command::new("journalctl");
        command.args(["--field", "_SYSTEMD_UNIT"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut running = ProcessGroup::start(&mut command).await?;
        let mut told = String::new();
        if let Some(stdout) = running.leader().stdout.take() {
            stdout.take(UNITS_SIZE).read_to_string(&mut told).await?;
        }
        Ok::<_, io::Error>(told)
    });
    match asked.await {
        Ok(Ok(told)) => told.lines().map(str::to_owned).collect(),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the journal does not say its units");
            BTreeSet::new()
        }
        Err(_) => BTreeSet::new(),
    }
}

/// The arguments of `journalctl`.
fn arguments(services: &[String], options: &Options) -> Vec<String> {
    let at = |time: Timestamp| {
        time.to_zoned(TimeZone::UTC)
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string()
    };
    let mut arguments: Vec<String> = ["--utc", "--no-pager", "--output=short-precise"]
        .map(str::to_owned)
        .into();
    arguments.extend(options.since.map(|time| format!("--since={}", at(time))));
    arguments.extend(options.until.map(|time| format!("--until={}", at(time))));
    arguments.extend(options.tail_lines.map(|lines| format!("--lines={lines}")));
    arguments.extend(services.iter().map(|name| format!("--unit={name}")));
    arguments.extend(
        options
            .pattern
            .iter()
            .map(|pattern| format!("--grep={pattern}")),
    );
    arguments.extend(options.boot.map(|boot| format!("--boot={boot}")));
    arguments
}

async fn of_journal(services: &[String], options: &Options) -> Pieces {
    let started = async {
        // What it complains of stands among the lines.
        let (writer, reader) = pipe::pipe()?;
        let writer = writer.into_blocking_fd()?;
        let mut command = Command::new("journalctl");
        command.args(arguments(services, options));
        command
            .stdin(Stdio::null())
            .stderr(writer.try_clone()?)
            .stdout(writer);
        let running = ProcessGroup::start(&mut command).await?;
        Ok::<_, io::Error>((reader, running))
    };
    match started.await {
        Ok((reader, running)) => pieces(reader, running),
        Err(error) => {
            tracing::debug!(%error, "the journal cannot be read");
            text("\nerror: journal output not available\n".to_owned())
        }
    }
}

async fn of_files(logs: &Path, name: String) -> Pieces {
    let (logs, of) = (logs.to_owned(), name.clone());
    let opened = tokio::task::spawn_blocking(move || {
        let root = Root::open(&logs, Links::Inside)?;
        let places = [of.clone(), format!("{of}.log"), format!("{of}/{of}.log")];
        let mut refused = None;
        for place in places {
            match root.open_file(&place) {
                Ok(file) => return Ok(Some(file)),
                Err(error) if error.is_not_found() => {}
                // The directory of the last place.
                Err(_) if root.dir(&place).is_ok() => {}
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => Err(io::Error::from(error)),
            None => Ok(None),
        }
    });
    match opened
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
    {
        Ok(Some(file)) => pieces(tokio::fs::File::from_std(file), ()),
        Ok(None) => text(format!("\nlog not found for {name}\n")),
        Err(error) => text(format!("\nerror getting log for {name}: {error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Asked, LogQuery};

    fn asked(parameters: &[(&str, &str)]) -> ServiceQuery {
        let owned: Vec<_> = parameters
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        match LogQuery::parse(&owned).unwrap().unwrap().asked().unwrap() {
            Asked::Services(services) => services,
            Asked::File(file) => panic!("{file:?}"),
        }
    }

    async fn told(parameters: &[(&str, &str)], logs: &Path) -> String {
        let pieces = answer(asked(parameters), logs.to_owned()).await;
        let pieces: Vec<Bytes> = pieces.try_collect().await.unwrap();
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[tokio::test]
    async fn services_without_journal_have_files() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("davit-a"), "plain\n").unwrap();
        std::fs::write(at("davit-b.log"), "with ending\n").unwrap();
        std::fs::create_dir(at("davit-c")).unwrap();
        std::fs::write(at("davit-c/davit-c.log"), "in its directory\n").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), at("davit-d")).unwrap();
        let all = [
            ("query", "davit-a"),
            ("query", "davit-b"),
            ("query", "davit-c"),
            ("query", "davit-x"),
        ];
        assert_eq!(
            told(&all, dir.path()).await,
            "plain\nwith ending\nin its directory\n\nlog not found for davit-x\n"
        );
        let link = told(&[("query", "davit-d")], dir.path()).await;
        assert!(
            link.starts_with("\nerror getting log for davit-d: "),
            "{link}"
        );
        let up = told(&[("query", "..")], dir.path()).await;
        assert!(
            up.starts_with("\nerror getting") || up.starts_with("\nlog not found"),
            "{up}"
        );
        let lines = told(&[("query", "davit-a"), ("tailLines", "1")], dir.path()).await;
        assert!(lines.contains("try without specifying options"), "{lines}");
    }

    #[test]
    fn the_journal_is_asked_for_what_was_asked() {
        let query = asked(&[
            ("query", "a"),
            ("query", "--b"),
            ("sinceTime", "2026-01-02T03:04:05+01:00"),
            ("tailLines", "3"),
            ("pattern", "--x"),
            ("boot", "-1"),
        ]);
        assert_eq!(
            arguments(&query.services, &query.options)[3..],
            [
                "--since=2026-01-02 02:04:05",
                "--lines=3",
                "--unit=a",
                "--unit=--b",
                "--grep=--x",
                "--boot=-1"
            ]
        );
    }
}
