//! The engines, and what the images do with them: set up, serve, migrate, dump, load.
//!
//! The programs are those of the engines themselves (`sqlite3`, `redis-server`, `postgres` and theirs), as packages have
//! them. A database is a table of rows, a number and a text each; *version* is the layout of that table:
//!
//! | Version | Rows |
//! |---|---|
//! | 1 | number, text |
//! | 2 | number, text that is not empty, a note |

mod postgres;
mod redis;
mod sqlite;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the claim with the data is mounted; what is in it is below `db`.
pub(crate) const DATA: &str = "/data";
/// The latest layout.
pub(crate) const LATEST: u32 = 2;
/// How long an engine may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// A single answer of an engine that is kept in memory.
const ANSWER_LIMIT: u64 = 64 << 20;

/// What keeps the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    Sqlite,
    Redis,
    Postgres,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        })
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: u64,
    pub(crate) value: String,
}

/// Where a database is spoken to.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In this container, by its files or a socket that only this container sees.
    Local(PathBuf),
    /// At a port, by password.
    Remote {
        host: String,
        port: u16,
        password: String,
    },
}

/// A database that can be asked.
pub(crate) trait Database {
    fn version(&self) -> Result<u32>;
    /// Changes the layout by one version, in one transaction.
    fn migrate(&self, to: u32) -> Result<()>;
    /// How many rows have no text; version 2 has none of these.
    fn empty_rows(&self) -> Result<u64>;
    fn add(&self, rows: &[Row]) -> Result<()>;
    /// All rows by their numbers.
    fn rows(&self) -> Result<Vec<Row>>;
    /// Writes everything into a file and checks that file.
    fn dump(&self, file: &Path) -> Result<()>;
    /// Fails unless the database answers and its data are whole.
    fn check(&self) -> Result<()>;
}

impl Engine {
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Sqlite => 8080,
            Self::Redis => 6379,
            Self::Postgres => 5432,
        }
    }

    /// Makes an empty database of version 1, or one of a dump.
    pub(crate) fn create(self, data: &Path, password: &str, dump: Option<&Path>) -> Result<()> {
        match self {
            Self::Sqlite => sqlite::create(data, dump),
            Self::Redis => redis::create(data, dump),
            Self::Postgres => postgres::create(data, password, dump),
        }
    }

    /// The database at a place. One that is local is started for as long as what is returned lives.
    pub(crate) fn open(self, place: Place) -> Result<Box<dyn Database>> {
        Ok(match self {
            Self::Sqlite => Box::new(sqlite::Sqlite::open(place)),
            Self::Redis => Box::new(redis::Redis::open(place)?),
            Self::Postgres => Box::new(postgres::Postgres::open(place)?),
        })
    }

    /// Serves at the port until the container is told to end, data of one version only.
    pub(crate) fn serve(self, data: &Path, password: &str, version: u32) -> Result<()> {
        match self {
            Self::Sqlite => sqlite::serve(data, password, version),
            Self::Redis => redis::serve(data, password, version),
            Self::Postgres => postgres::serve(data, password, version),
        }
    }
}

/// Programs of one version do not touch data of another.
fn same_version(database: &dyn Database, version: u32) -> Result<()> {
    let found = database.version()?;
    ensure!(
        found == version,
        "the data are of version {found}, the program is of version {version}"
    );
    Ok(())
}

/// Brings the layout to a version; what was done before a kill is not done again.
pub(crate) fn migrate(database: &dyn Database, to: u32) -> Result<()> {
    let from = database.version()?;
    ensure!(
        from <= to,
        "the data are of version {from}, and a version does not go back"
    );
    for step in from + 1..=to {
        let empty = database.empty_rows()?;
        ensure!(
            step != 2 || empty == 0,
            "{empty} row(s) have no text, which version 2 does not allow: fill or remove them"
        );
        database.migrate(step)?;
        tracing::info!(version = step, "migrated");
    }
    Ok(())
}

/// Runs a program with a text on its standard input; what it wrote.
fn run(command: &mut Command, input: &[u8]) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {name}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // All three at once: a program that is not read while it is written to stands still.
    let (written, out, told) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| stdin.map_or(Ok(()), |mut pipe| pipe.write_all(input)));
        let errors = scope.spawn(|| read(stderr));
        let out = read(stdout);
        (writer.join(), out, errors.join())
    });
    let status = child.wait().with_context(|| format!("wait for {name}"))?;
    let told = told.ok().and_then(Result::ok).unwrap_or_default();
    ensure!(status.success(), "{name}: {status}: {}", told.trim());
    written
        .ok()
        .context("writer")?
        .with_context(|| format!("write to {name}"))?;
    out.with_context(|| format!("read from {name}"))
}

fn read(pipe: Option<impl Read>) -> std::io::Result<String> {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(ANSWER_LIMIT).read_to_end(&mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// An engine that was started for work in this container; ended with `end`, or killed when the work has failed.
struct Started {
    child: Child,
    name: &'static str,
}

impl Started {
    fn new(
        name: &'static str,
        command: &mut Command,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let mut started = Self { child, name };
        let end = Instant::now() + PATIENCE;
        while !ready() {
            if let Some(status) = started.child.try_wait()? {
                bail!("{name} ended: {status}");
            }
            ensure!(
                Instant::now() < end,
                "{name} did not answer within {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(started)
    }

    /// Waits for the end that was asked for.
    fn ended(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{} ended: {status}", self.name);
                return Ok(());
            }
            ensure!(
                Instant::now() < end,
                "{} did not end within {PATIENCE:?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // What it has acknowledged is on the disk: a killed engine recovers at its next start.
            let _gone = self.child.kill();
            let _status = self.child.wait();
        }
    }
}

/// Replaces this process by an engine.
fn become_program(command: &mut Command) -> anyhow::Error {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    anyhow::Error::new(error).context(format!("start {}", command.get_program().to_string_lossy()))
}

/// Syncs a file and its directory.
pub(crate) fn sync(path: &Path) -> Result<()> {
    for path in [Some(path), path.parent()].into_iter().flatten() {
        let file = std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.sync_all()
            .with_context(|| format!("sync {}", path.display()))?;
    }
    Ok(())
}
