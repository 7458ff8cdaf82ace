//! SQLite: a file, and a small HTTP server before it. The program is `sqlite3`.

mod server;

use super::{Database, Place, Row};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) use server::serve;

/// The database's file below the directory of the data.
const FILE: &str = "rows.sqlite";

/// One database, by its file or through its server.
pub(super) struct Sqlite {
    place: Place,
}

pub(super) fn create(data: &Path, dump: Option<&Path>) -> Result<()> {
    let file = data.join(FILE);
    match dump {
        Some(dump) => {
            std::fs::copy(dump, &file).with_context(|| format!("copy {}", dump.display()))?;
            super::sync(&file)
        }
        None => {
            let table = "BEGIN; CREATE TABLE rows (id INTEGER PRIMARY KEY, value TEXT NOT NULL); PRAGMA user_version = 1; COMMIT;";
            query(&file, table).map(drop)
        }
    }
}

/// Runs statements on a file; the first error ends them, and what was not committed is not there.
fn query(file: &Path, statements: &str) -> Result<String> {
    let mut command = Command::new("sqlite3");
    // no file of the user's is read; texts are kept apart by a byte that hexadecimal digits have not
    command
        .args([
            "-batch",
            "-bail",
            "-init",
            "/dev/null",
            "-cmd",
            ".timeout 10000",
        ])
        .arg(file);
    let all = format!("PRAGMA synchronous = FULL;\n{statements}\n");
    super::run(&mut command, all.as_bytes())
}

/// Texts travel as hexadecimal digits, in which no statement can be hidden.
fn quoted(text: &str) -> String {
    let mut hex = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        let _infallible = write!(hex, "{byte:02x}");
    }
    format!("CAST(X'{hex}' AS TEXT)")
}

fn unquoted(hex: &str) -> Option<String> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    String::from_utf8(digits.map(byte).collect::<Option<Vec<u8>>>()?).ok()
}

fn insert(file: &Path, rows: &[Row]) -> Result<()> {
    let mut statements = String::from("BEGIN IMMEDIATE;\n");
    for Row { id, value } in rows {
        let _infallible = writeln!(
            statements,
            "INSERT OR REPLACE INTO rows (id, value) VALUES ({id}, {});",
            quoted(value)
        );
    }
    statements.push_str("COMMIT;");
    query(file, &statements).map(drop)
}

fn select(file: &Path) -> Result<Vec<Row>> {
    let text = query(file, "SELECT id, hex(value) FROM rows ORDER BY id;")?;
    let row = |line: &str| {
        let (id, hex) = line.split_once('|')?;
        Some(Row {
            id: id.parse().ok()?,
            value: unquoted(hex)?,
        })
    };
    text.lines()
        .map(|line| row(line).with_context(|| format!("not a row: {line}")))
        .collect()
}

fn whole(file: &Path) -> Result<()> {
    ensure!(file.is_file(), "there is no {}", file.display());
    let said = query(file, "PRAGMA integrity_check;")?;
    ensure!(said.trim() == "ok", "{}: {}", file.display(), said.trim());
    Ok(())
}

fn copy(file: &Path, to: &Path) -> Result<()> {
    let to = to.to_str().context("the file's name is no text")?;
    query(file, &format!("VACUUM INTO {};", quoted(to))).map(drop)
}

impl Sqlite {
    pub(super) fn open(place: Place) -> Self {
        Self { place }
    }

    fn file(&self) -> Result<PathBuf> {
        match &self.place {
            Place::Local(data) => Ok(data.join(FILE)),
            Place::Remote { .. } => bail!("this is done with the database down"),
        }
    }
}

impl Database for Sqlite {
    fn version(&self) -> Result<u32> {
        let said = match &self.place {
            Place::Local(_) => query(&self.file()?, "PRAGMA user_version;")?,
            Place::Remote { .. } => server::call(&self.place, "GET", "/version", Vec::new())?,
        };
        said.trim()
            .parse()
            .with_context(|| format!("version {said:?}"))
    }

    fn migrate(&self, to: u32) -> Result<()> {
        ensure!(to == 2, "there is no version {to}");
        let table = "BEGIN IMMEDIATE;
            CREATE TABLE new_rows (id INTEGER PRIMARY KEY, value TEXT NOT NULL CHECK (value <> ''), note TEXT NOT NULL DEFAULT '');
            INSERT INTO new_rows (id, value) SELECT id, value FROM rows;
            DROP TABLE rows; ALTER TABLE new_rows RENAME TO rows;
            PRAGMA user_version = 2; COMMIT;";
        query(&self.file()?, table).map(drop)
    }

    fn empty_rows(&self) -> Result<u64> {
        let said = query(&self.file()?, "SELECT count(*) FROM rows WHERE value = '';")?;
        said.trim()
            .parse()
            .with_context(|| format!("count {said:?}"))
    }

    fn add(&self, rows: &[Row]) -> Result<()> {
        match &self.place {
            Place::Local(_) => insert(&self.file()?, rows),
            Place::Remote { .. } => {
                server::call(&self.place, "POST", "/rows", serde_json::to_vec(rows)?).map(drop)
            }
        }
    }

    fn rows(&self) -> Result<Vec<Row>> {
        match &self.place {
            Place::Local(_) => select(&self.file()?),
            Place::Remote { .. } => {
                let text = server::call(&self.place, "GET", "/rows", Vec::new())?;
                serde_json::from_str(&text).context("the answer to GET /rows")
            }
        }
    }

    fn dump(&self, to: &Path) -> Result<()> {
        match &self.place {
            Place::Local(_) => copy(&self.file()?, to)?,
            Place::Remote { .. } => server::fetch(&self.place, "/dump", to)?,
        }
        whole(to)
    }

    fn check(&self) -> Result<()> {
        match &self.place {
            Place::Local(_) => whole(&self.file()?),
            Place::Remote { .. } => {
                server::call(&self.place, "GET", "/check", Vec::new()).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_end_a_statement() {
        assert_eq!(quoted("a'"), "CAST(X'6127' AS TEXT)");
        assert_eq!(unquoted("6127").as_deref(), Some("a'"));
        assert_eq!(unquoted("").as_deref(), Some(""));
        assert_eq!(unquoted("6"), Some("\u{6}".to_owned()));
        assert_eq!(unquoted("zz"), None);
    }
}
