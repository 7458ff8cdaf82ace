//! `cargo xtask console`: builds the web page of `console/` into `crates/console/files`, from which it is embedded.
//!
//! The built files are committed, so that building davit needs no Node. With `--check` nothing is written: they are
//! compared with what the sources give.

use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What to do with what is built.
pub(crate) enum Mode {
    /// Put it where it is embedded from.
    Write,
    /// Compare it with what is there.
    Check,
}

/// Checks the types of the sources, runs their tests, and builds them.
pub(crate) fn run(root: &Path, mode: &Mode) -> Result<()> {
    let sources = root.join("console");
    let embedded = root.join("crates/console/files");
    if !sources.join("node_modules").is_dir() {
        npm(
            &sources,
            &["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        )?;
    }
    npm(&sources, &["run", "--silent", "check"])?;
    npm(&sources, &["test", "--silent"])?;
    let out = match mode {
        Mode::Write => embedded.clone(),
        Mode::Check => root.join("target/console"),
    };
    let out_name = out.to_str().context("path of the built files")?;
    npm(&sources, &["run", "--silent", "build", "--", out_name])?;
    if matches!(mode, Mode::Check) {
        let (built, known) = (files(&out)?, files(&embedded)?);
        let names = built.keys().chain(known.keys());
        let differ: Vec<&String> = names.filter(|n| built.get(*n) != known.get(*n)).collect();
        ensure!(
            differ.is_empty(),
            "crates/console/files is not what console/ gives: {differ:?}; run `cargo xtask console`"
        );
    }
    Ok(())
}

fn npm(folder: &Path, args: &[&str]) -> Result<()> {
    let mut command = Command::new("npm");
    command.args(args).current_dir(folder);
    let status = command
        .status()
        .context("npm (Node 20 or newer) is needed")?;
    if !status.success() {
        bail!("npm {} failed with {status}", args.join(" "));
    }
    Ok(())
}

fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        out.insert(name, fs::read(entry.path())?);
    }
    Ok(out)
}
