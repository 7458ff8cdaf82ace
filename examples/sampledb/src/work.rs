//! What the containers of a database run: each command does one thing and ends, `serve` excepted.

use crate::engine::{self, DATA, Engine, Place, Row};
use crate::objects::BACKUPS;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use k8s_openapi::jiff::Timestamp;
use std::path::{Path, PathBuf};

/// Which database, from the ConfigMap, the Secret and the image.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    #[arg(long, env = "SAMPLEDB_ENGINE")]
    engine: Engine,
    /// Version of the program, which the image says.
    #[arg(long, env = "SAMPLEDB_VERSION", default_value_t = engine::LATEST)]
    version: u32,
    #[arg(long, env = "SAMPLEDB_HOST", default_value = "127.0.0.1")]
    host: String,
    #[arg(
        long,
        env = "SAMPLEDB_PASSWORD",
        hide_env_values = true,
        default_value = ""
    )]
    password: String,
    /// How many backups are kept.
    #[arg(long, env = "SAMPLEDB_KEEP", default_value_t = 7)]
    keep: usize,
}

/// What a container does.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Makes the data, or loads them from a backup; data that are there stay.
    Init {
        /// File name of the backup, or `newest`.
        #[arg(long)]
        restore: Option<String>,
    },
    /// Serves.
    Serve,
    /// Succeeds when the database in this pod answers.
    Ready,
    /// Changes the layout of the data to the image's version; the database is down.
    Upgrade,
    /// Writes a backup.
    Backup {
        /// From the files, with the database down; it is kept for good.
        #[arg(long)]
        last: bool,
    },
    /// Writes rows N to M through the Service: `add 1 1000`, or `add 7 7 --value text`.
    Add {
        first: u64,
        last: u64,
        #[arg(long)]
        value: Option<String>,
    },
    /// Prints all rows.
    Rows,
}

pub(crate) fn run(settings: &Settings, task: Task) -> Result<()> {
    let data = Path::new(DATA).join("db");
    match task {
        Task::Init { restore } => init(settings, &data, restore.as_deref()),
        Task::Serve => settings
            .engine
            .serve(&data, &settings.password, settings.version),
        Task::Ready => settings.engine.open(settings.remote("127.0.0.1"))?.check(),
        Task::Upgrade => {
            let database = settings.engine.open(Place::Local(data))?;
            engine::migrate(&*database, settings.version)
        }
        Task::Backup { last } => {
            let place = if last {
                Place::Local(data)
            } else {
                settings.remote(&settings.host)
            };
            backup(settings, place, last)
        }
        Task::Add { first, last, value } => {
            let row = |id: u64| Row {
                id,
                value: value.clone().unwrap_or_else(|| format!("row {id}")),
            };
            let rows: Vec<Row> = (first..=last).map(row).collect();
            settings
                .engine
                .open(settings.remote(&settings.host))?
                .add(&rows)
        }
        Task::Rows => {
            for row in settings
                .engine
                .open(settings.remote(&settings.host))?
                .rows()?
            {
                println!("{} {}", row.id, row.value);
            }
            Ok(())
        }
    }
}

impl Settings {
    fn remote(&self, host: &str) -> Place {
        Place::Remote {
            host: host.to_owned(),
            port: self.engine.port(),
            password: self.password.clone(),
        }
    }
}

/// The data appear by one rename when they are whole: a job that was killed begins anew.
fn init(settings: &Settings, data: &Path, restore: Option<&str>) -> Result<()> {
    if data.exists() {
        println!("there are data already");
        return engine::migrate(
            &*settings.engine.open(Place::Local(data.to_owned()))?,
            settings.version,
        );
    }
    let dump = restore.map(chosen).transpose()?;
    let new = data.with_file_name("new");
    if new.exists() {
        std::fs::remove_dir_all(&new).context("remove what was begun before")?;
    }
    std::fs::create_dir(&new).with_context(|| format!("make {}", new.display()))?;
    settings
        .engine
        .create(&new, &settings.password, dump.as_deref())?;
    engine::migrate(
        &*settings.engine.open(Place::Local(new.clone()))?,
        settings.version,
    )?;
    std::fs::rename(&new, data).context("name the data")?;
    engine::sync(data)
}

fn folder() -> PathBuf {
    Path::new(BACKUPS).join("dumps")
}

/// File names of the backups, oldest first.
fn backups() -> Result<Vec<String>> {
    let folder = folder();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".dump") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn chosen(name: &str) -> Result<PathBuf> {
    let known = backups()?;
    let name = match name {
        "newest" => known.last().cloned().context("there is no backup")?,
        name if known.iter().any(|k| k == name) => name.to_owned(),
        name => bail!("there is no backup {name}; there are: {}", known.join(", ")),
    };
    println!("from {name}");
    Ok(folder().join(name))
}

fn backup(settings: &Settings, place: Place, last: bool) -> Result<()> {
    let database = settings.engine.open(place)?;
    database.check()?;
    let folder = folder();
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let name = name(database.version()?, last);
    let partial = folder.join(format!("{name}.partial"));
    database.dump(&partial)?;
    drop(database);
    engine::sync(&partial)?;
    std::fs::rename(&partial, folder.join(&name)).context("name the backup")?;
    engine::sync(&folder.join(&name))?;
    println!("{name}");
    if !last {
        for old in expired(&backups()?, settings.keep) {
            std::fs::remove_file(folder.join(old)).with_context(|| format!("remove {old}"))?;
        }
    }
    Ok(())
}

fn name(version: u32, last: bool) -> String {
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%S%3fZ");
    format!("{now}-v{version}{}.dump", if last { "-last" } else { "" })
}

/// What is kept no longer; last backups of earlier databases of the name are.
fn expired(names: &[String], keep: usize) -> &[String] {
    let mut ordinary = names
        .iter()
        .rposition(|name| name.ends_with("-last.dump"))
        .map_or(0, |at| at + 1);
    ordinary = ordinary.min(names.len());
    let names = &names[ordinary..];
    &names[..names.len().saturating_sub(keep)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_backups_go_and_last_ones_stay() {
        let names = |list: &[&str]| list.iter().map(|n| format!("{n}.dump")).collect::<Vec<_>>();
        let all = names(&["1-v1", "2-v1", "3-v1"]);
        assert_eq!(expired(&all, 2), names(&["1-v1"]));
        assert!(expired(&all, 3).is_empty());
        let all = names(&["1-v1", "2-v1-last", "3-v1", "4-v1"]);
        assert_eq!(expired(&all, 1), names(&["3-v1"]));
        assert!(name(1, true).ends_with("-v1-last.dump"));
    }
}
