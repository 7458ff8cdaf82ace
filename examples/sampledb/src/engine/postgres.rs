//! PostgreSQL. The directory of the data is the program's own user's alone.

use super::{Database, Place, Row, Started};
use anyhow::{Context, Result, bail, ensure};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

const SOCKETS: &str = "/tmp";
const ROLE: &str = "sampledb";
/// The one database; initdb makes it.
const DATABASE: &str = "postgres";

/// One database; a local one is a server of its own.
pub(super) struct Postgres {
    place: Place,
    started: Option<Started>,
}

fn server(data: &Path) -> Command {
    let mut command = Command::new("postgres");
    command.arg("-D").arg(data.join("pg"));
    let socket = format!("unix_socket_directories={SOCKETS}");
    for setting in [
        socket.as_str(),
        "shared_buffers=32MB",
        "jit=off",
        "timezone=GMT",
        "log_timezone=GMT",
    ] {
        command.args(["-c", setting]);
    }
    command
}

pub(super) fn create(data: &Path, password: &str, dump: Option<&Path>) -> Result<()> {
    let secret = tempfile_with(password)?;
    let pg = data.join("pg");
    let mut command = Command::new("initdb");
    command.arg("-D").arg(&pg).args([
        "-U",
        ROLE,
        "-E",
        "UTF8",
        "--no-locale",
        "--auth-local=trust",
    ]);
    command
        .args(["--auth-host=scram-sha-256", "--pwfile"])
        .arg(&secret);
    let made = super::run(&mut command, b"");
    std::fs::remove_file(&secret).context("remove the password's file")?;
    made?;
    let mut rules = std::fs::OpenOptions::new()
        .append(true)
        .open(pg.join("pg_hba.conf"))
        .context("open pg_hba.conf")?;
    rules
        .write_all(b"host all all all scram-sha-256\n")
        .context("write pg_hba.conf")?;
    let database = Postgres::open(Place::Local(data.to_owned()))?;
    match dump {
        Some(dump) => {
            let mut command = Command::new("pg_restore");
            database.connected(&mut command);
            command
                .args(["--single-transaction", "--exit-on-error", "--no-owner"])
                .arg(dump);
            super::run(&mut command, b"")?;
        }
        None => {
            let table = "BEGIN; CREATE TABLE rows (id bigint PRIMARY KEY, value text NOT NULL);
                CREATE TABLE layout (version int NOT NULL); INSERT INTO layout VALUES (1); COMMIT;";
            database.query(table)?;
        }
    }
    database.end()
}

/// A password in a file that only this program reads.
fn tempfile_with(password: &str) -> Result<std::path::PathBuf> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = Path::new("/tmp").join(format!("password-{:016x}", rand::random::<u64>()));
    let mut file = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .context("make the password's file")?;
    writeln!(file, "{password}").context("write the password's file")?;
    Ok(path)
}

/// Takes away what a killed server has left. The number it names is of a process of another container: here a probe may have it,
/// and a server does not start beside the process that its lock names.
fn forget_the_killed(data: &Path, sockets: &Path) -> Result<()> {
    for left in [
        data.join("postmaster.pid"),
        sockets.join(".s.PGSQL.5432.lock"),
        sockets.join(".s.PGSQL.5432"),
    ] {
        match std::fs::remove_file(&left) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", left.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The password is the Secret's, whoever has made the data: a restored or changed one takes effect at the next start.
pub(super) fn serve(data: &Path, password: &str, version: u32) -> Result<()> {
    ensure!(
        password.chars().all(|c| c.is_ascii_alphanumeric()),
        "the password may have letters and digits only"
    );
    let database = Postgres::open(Place::Local(data.to_owned()))?;
    super::same_version(&database, version)?;
    database.query(&format!("ALTER ROLE {ROLE} PASSWORD '{password}';"))?;
    database.end()?;
    let mut command = server(data);
    command.args(["-c", "listen_addresses=*"]);
    Err(super::become_program(&mut command))
}

impl Postgres {
    pub(super) fn open(place: Place) -> Result<Self> {
        let mut database = Self {
            place,
            started: None,
        };
        if let Place::Local(data) = &database.place {
            forget_the_killed(&data.join("pg"), Path::new(SOCKETS))?;
            let mut command = server(data);
            command.args(["-c", "listen_addresses="]);
            let started = Started::new("postgres", &mut command, || {
                database.query("SELECT 1;").is_ok()
            })?;
            database.started = Some(started);
        }
        Ok(database)
    }

    fn end(mut self) -> Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        let (Some(mut started), Place::Local(data)) = (self.started.take(), &self.place) else {
            return Ok(());
        };
        let mut command = Command::new("pg_ctl");
        command
            .arg("-D")
            .arg(data.join("pg"))
            .args(["stop", "-m", "fast", "-W", "-s"]);
        super::run(&mut command, b"")?;
        started.ended()
    }

    fn connected(&self, command: &mut Command) {
        command.args(["-U", ROLE, "-d", DATABASE, "-w"]);
        match &self.place {
            Place::Local(_) => command.args(["-h", SOCKETS]),
            Place::Remote {
                host,
                port,
                password,
            } => command
                .args(["-h", host, "-p", &port.to_string()])
                .env("PGPASSWORD", password),
        };
        command.env("PGCONNECT_TIMEOUT", "10");
    }

    fn query(&self, statements: &str) -> Result<String> {
        let mut command = Command::new("psql");
        self.connected(&mut command);
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"]);
        super::run(&mut command, statements.as_bytes())
    }

    fn number<T: std::str::FromStr>(&self, statement: &str) -> Result<T> {
        let said = self.query(statement)?;
        let number = said.trim().parse().ok();
        number.with_context(|| format!("{statement}: {said:?} is no number"))
    }
}

/// A text as COPY reads it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out
}

impl Database for Postgres {
    fn version(&self) -> Result<u32> {
        self.number("SELECT version FROM layout;")
    }

    fn migrate(&self, to: u32) -> Result<()> {
        ensure!(to == 2, "there is no version {to}");
        self.query(
            "BEGIN; ALTER TABLE rows ADD COLUMN note text NOT NULL DEFAULT '';
            ALTER TABLE rows ADD CHECK (value <> ''); UPDATE layout SET version = 2; COMMIT;",
        )
        .map(drop)
    }

    fn empty_rows(&self) -> Result<u64> {
        self.number("SELECT count(*) FROM rows WHERE value = '';")
    }

    fn add(&self, rows: &[Row]) -> Result<()> {
        let mut text = String::from(
            "BEGIN; CREATE TEMP TABLE given (id bigint, value text);\nCOPY given FROM STDIN;\n",
        );
        for Row { id, value } in rows {
            if value.contains('\0') {
                bail!("row {id}: a text has no NUL");
            }
            text.push_str(&format!("{id}\t{}\n", escaped(value)));
        }
        text.push_str("\\.\nINSERT INTO rows (id, value) SELECT id, value FROM given ON CONFLICT (id) DO UPDATE SET value = excluded.value;\nCOMMIT;\n");
        self.query(&text).map(drop)
    }

    fn rows(&self) -> Result<Vec<Row>> {
        let said = self
            .query("SELECT json_build_object('id', id, 'value', value) FROM rows ORDER BY id;")?;
        said.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("not a row: {line}")))
            .collect()
    }

    fn dump(&self, to: &Path) -> Result<()> {
        let mut command = Command::new("pg_dump");
        self.connected(&mut command);
        super::run(command.args(["-Fc", "-f"]).arg(to), b"")?;
        super::run(Command::new("pg_restore").arg("--list").arg(to), b"").map(drop)
    }

    fn check(&self) -> Result<()> {
        self.version().map(drop)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(
                error = format!("{error:#}"),
                "postgres was not ended in order"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_server_has_left_is_taken_away() {
        let base = tempfile::tempdir().unwrap();
        let (data, sockets) = (base.path().join("pg"), base.path().join("sockets"));
        std::fs::create_dir_all(&data).unwrap();
        std::fs::create_dir_all(&sockets).unwrap();
        let left = [
            data.join("postmaster.pid"),
            sockets.join(".s.PGSQL.5432.lock"),
        ];
        for file in &left {
            std::fs::write(file, "1\n").unwrap();
        }
        std::fs::write(data.join("PG_VERSION"), "15").unwrap();
        forget_the_killed(&data, &sockets).unwrap();
        forget_the_killed(&data, &sockets).unwrap();
        assert!(left.iter().all(|file| !file.exists()));
        assert!(data.join("PG_VERSION").exists());
    }
}
