//! Developer tasks: `cargo xtask TASK`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

mod console;
mod kinds;
mod layers;
mod modules;
mod paths;
mod proto;
mod source;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let root = workspace_root()?;
    match args
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["kinds", "--from", file] => {
            kinds::run(Path::new(file), &root.join("crates/api/src/kinds.json"))
        }
        ["console"] => console::write(&root),
        ["console", "--check"] => console::check(&root),
        ["proto"] => proto::run(),
        ["layers"] => layers::run()
            .and_then(|()| modules::run(&root))
            .and_then(|()| paths::run(&root)),
        _ => bail!("usage: cargo xtask kinds --from FILE | proto | layers | console [--check]"),
    }
}

fn workspace_root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest
        .parent()
        .context("xtask has no parent directory")?
        .to_owned())
}
