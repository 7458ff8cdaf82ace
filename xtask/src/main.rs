//! Developer tasks: `cargo xtask TASK`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

mod console;
mod dist;
mod docs;
mod kinds;
mod layers;
mod modules;
mod names;
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
        ["docs"] => docs::run(&root),
        ["reference"] => docs::reference(&root, &built(&root), false),
        ["reference", "--check"] => docs::reference(&root, &built(&root), true),
        ["dist", flags @ ..] => dist::run(&root, flags),
        ["proto"] => proto::run(),
        ["layers"] => layers::run()
            .and_then(|()| modules::run(&root))
            .and_then(|()| names::run(&root))
            .and_then(|()| paths::run(&root)),
        _ => bail!(
            "usage: cargo xtask kinds --from FILE | proto | layers | console [--check] | docs | reference [--check] | \
             dist [--binary FILE | --target TARGET] [--to DIR]"
        ),
    }
}

/// The binary that `cargo build` and `cargo test` make.
fn built(root: &Path) -> PathBuf {
    root.join("target/debug/davit")
}

fn workspace_root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest
        .parent()
        .context("xtask has no parent directory")?
        .to_owned())
}
