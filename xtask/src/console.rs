//! `cargo xtask console`: builds the web page of `console/` into `crates/console/files`, from which it is embedded.
//!
//! The built files are committed, so that building davit needs no Node. With `--check` nothing is written: they are
//! compared with what the sources give.

use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where the built files are embedded from.
const EMBEDDED: &str = "crates/console/files";

/// Checks the types of the sources, runs their tests, and builds them to where they are embedded from.
pub(crate) fn write(root: &Path) -> Result<()> {
    build(root, &root.join(EMBEDDED))
}

/// Builds them elsewhere, and compares.
pub(crate) fn check(root: &Path) -> Result<()> {
    let out = root.join("target/console");
    build(root, &out)?;
    let (built, known) = (files(&out)?, files(&root.join(EMBEDDED))?);
    let names = built.keys().chain(known.keys());
    let differ: BTreeSet<&String> = names.filter(|n| built.get(*n) != known.get(*n)).collect();
    ensure!(
        differ.is_empty(),
        "{EMBEDDED} is not what console/ gives: {differ:?}; run `cargo xtask console`"
    );
    Ok(())
}

fn build(root: &Path, out: &Path) -> Result<()> {
    let sources = root.join("console");
    if !sources.join("node_modules").is_dir() {
        npm(
            &sources,
            &["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        )?;
    }
    npm(&sources, &["run", "--silent", "check"])?;
    npm(&sources, &["test", "--silent"])?;
    let out = out.to_str().context("path of the built files")?;
    npm(&sources, &["run", "--silent", "build", "--", out])
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
