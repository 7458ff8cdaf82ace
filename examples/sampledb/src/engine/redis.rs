//! redis, with its append-only file synced before each answer. Version 1 keeps rows as strings `row:N`, version 2 as hashes.

use super::{Database, Place, Row, Started};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SOCKET: &str = "/tmp/redis.sock";
const VERSION: &str = "sampledb:version";

/// One database; a local one is a server of its own.
pub(super) struct Redis {
    place: Place,
    started: Option<Started>,
}

fn server(data: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command
        .args(["--dir"])
        .arg(data)
        .args(["--appendfsync", "always", "--save", ""]);
    command
}

pub(super) fn create(data: &Path, dump: Option<&Path>) -> Result<()> {
    let mut command = server(data);
    command.args(["--port", "0", "--unixsocket", SOCKET, "--appendonly", "no"]);
    if let Some(dump) = dump {
        let file = data.join("dump.rdb");
        std::fs::copy(dump, &file).with_context(|| format!("copy {}", dump.display()))?;
    }
    let place = Place::Local(data.to_owned());
    let started = Started::new("redis-server", &mut command, || answers(&place))?;
    let database = Redis {
        place,
        started: Some(started),
    };
    if dump.is_none() {
        database.cli(&["set", VERSION, "1"], b"")?;
    }
    // what was loaded is in the append-only file once it has been rewritten
    database.cli(&["config", "set", "appendonly", "yes"], b"")?;
    let end = Instant::now() + super::PATIENCE;
    loop {
        let info = database.cli(&["info", "persistence"], b"")?;
        let says = |line: &str| info.lines().any(|l| l.trim() == line);
        if says("aof_rewrite_in_progress:0")
            && says("aof_rewrite_scheduled:0")
            && says("aof_enabled:1")
        {
            ensure!(
                says("aof_last_bgrewrite_status:ok"),
                "the append-only file was not written"
            );
            break;
        }
        ensure!(
            Instant::now() < end,
            "the append-only file was not written in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    if dump.is_some() {
        std::fs::remove_file(data.join("dump.rdb")).context("remove what was loaded")?;
    }
    database.end()
}

pub(super) fn serve(data: &Path, password: &str, version: u32) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let local = Redis::open(Place::Local(data.to_owned()))?;
    super::same_version(&local, version)?;
    local.end()?;
    // Arguments of a process are seen by others, a file of this container's is not.
    let file = Path::new("/tmp/redis.conf");
    let settings = format!("requirepass {password}\nprotected-mode no\nbind 0.0.0.0\n");
    let mut options = std::fs::OpenOptions::new();
    let opened = options
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(file);
    opened
        .and_then(|mut f| std::io::Write::write_all(&mut f, settings.as_bytes()))
        .context("write redis.conf")?;
    let mut command = Command::new("redis-server");
    command.arg(file).arg("--dir").arg(data);
    command.args([
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
    ]);
    Err(super::become_program(&mut command))
}

fn answers(place: &Place) -> bool {
    let probe = Redis {
        place: place.clone(),
        started: None,
    };
    probe
        .cli(&["ping"], b"")
        .is_ok_and(|said| said.trim() == "PONG")
}

impl Redis {
    pub(super) fn open(place: Place) -> Result<Self> {
        let started = match &place {
            Place::Local(data) => {
                let mut command = server(data);
                command.args(["--port", "0", "--unixsocket", SOCKET, "--appendonly", "yes"]);
                Some(Started::new("redis-server", &mut command, || {
                    answers(&place)
                })?)
            }
            Place::Remote { .. } => None,
        };
        Ok(Self { place, started })
    }

    fn end(mut self) -> Result<()> {
        if let Some(mut started) = self.started.take() {
            // it ends before it answers
            let _gone = self.cli(&["shutdown", "nosave"], b"");
            started.ended()?;
        }
        Ok(())
    }

    fn cli(&self, args: &[&str], input: &[u8]) -> Result<String> {
        let mut command = Command::new("redis-cli");
        match &self.place {
            Place::Local(_) => command.args(["-s", SOCKET]),
            Place::Remote {
                host,
                port,
                password,
            } => command
                .args(["-h", host, "-p", &port.to_string()])
                .env("REDISCLI_AUTH", password),
        };
        // -e: an answer that is an error is one of the program, too
        command.arg("-e").args(args);
        super::run(&mut command, input)
    }
}

/// A command as redis reads it, whatever the texts are.
fn encoded(parts: &[&str], into: &mut Vec<u8>) {
    into.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        into.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
}

/// All rows as lines `number hex`, of either layout.
const ROWS: &str = "local found = {}
for _, key in ipairs(redis.call('keys', 'row:*')) do
  local value
  if redis.call('type', key).ok == 'hash' then value = redis.call('hget', key, 'value') else value = redis.call('get', key) end
  found[#found + 1] = string.sub(key, 5) .. ' ' .. string.gsub(value, '.', function (c) return string.format('%02x', string.byte(c)) end)
end
return table.concat(found, '\\n')";

/// Strings become hashes, in one step: a script is one transaction, in the append-only file as well.
const TO_VERSION_2: &str = "for _, key in ipairs(redis.call('keys', 'row:*')) do
  local value = redis.call('get', key)
  redis.call('del', key)
  redis.call('hset', key, 'value', value, 'note', '')
end
redis.call('set', 'sampledb:version', '2')
return 'done'";

const EMPTY: &str = "local count = 0
for _, key in ipairs(redis.call('keys', 'row:*')) do
  if redis.call('type', key).ok == 'string' and redis.call('strlen', key) == 0 then count = count + 1 end
end
return count";

impl Database for Redis {
    fn version(&self) -> Result<u32> {
        let said = self.cli(&["get", VERSION], b"")?;
        said.trim()
            .parse()
            .with_context(|| format!("version {said:?}"))
    }

    fn migrate(&self, to: u32) -> Result<()> {
        ensure!(to == 2, "there is no version {to}");
        let said = self.cli(&["eval", TO_VERSION_2, "0"], b"")?;
        ensure!(said.trim() == "done", "migration: {}", said.trim());
        Ok(())
    }

    fn empty_rows(&self) -> Result<u64> {
        let said = self.cli(&["eval", EMPTY, "0"], b"")?;
        said.trim()
            .parse()
            .with_context(|| format!("count {said:?}"))
    }

    fn add(&self, rows: &[Row]) -> Result<()> {
        let hashes = self.version()? >= 2;
        let mut commands = Vec::new();
        for Row { id, value } in rows {
            let key = format!("row:{id}");
            if hashes {
                ensure!(!value.is_empty(), "row {id} has no text");
                encoded(&["hset", &key, "value", value, "note", ""], &mut commands);
            } else {
                encoded(&["set", &key, value], &mut commands);
            }
        }
        let said = self.cli(&["--pipe"], &commands)?;
        ensure!(said.contains("errors: 0,"), "redis-cli: {}", said.trim());
        Ok(())
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let said = self.cli(&["--raw", "eval", ROWS, "0"], b"")?;
        let row = |line: &str| {
            let (id, hex) = line.split_once(' ')?;
            let bytes = hex.as_bytes().chunks(2);
            let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
            let value = String::from_utf8(bytes.map(byte).collect::<Option<Vec<u8>>>()?).ok()?;
            Some(Row {
                id: id.parse().ok()?,
                value,
            })
        };
        let lines = said.lines().filter(|line| !line.is_empty());
        let mut rows = lines
            .map(|l| row(l).with_context(|| format!("not a row: {l}")))
            .collect::<Result<Vec<_>>>()?;
        rows.sort_by_key(|row| row.id);
        Ok(rows)
    }

    fn dump(&self, to: &Path) -> Result<()> {
        let file = to.to_str().context("the file's name is no text")?;
        self.cli(&["--rdb", file], b"")?;
        super::run(Command::new("redis-check-rdb").arg(to), b"").map(drop)
    }

    fn check(&self) -> Result<()> {
        let mut said = self.cli(&["ping"], b"")?;
        let _infallible = write!(said, "{}", self.version()?);
        ensure!(said.starts_with("PONG"), "{}", said.trim());
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut started) = self.started.take() {
            let _gone = self.cli(&["shutdown", "nosave"], b"");
            let _ended = started.ended();
        }
    }
}
