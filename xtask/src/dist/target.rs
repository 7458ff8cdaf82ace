//! What a build for another target needs of the machine, asked before it takes long.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says what is missing.
pub(super) fn check(target: &str) -> Result<()> {
    let rustc = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("rustc")?;
    if !rustc.status.success() {
        bail!("rustc knows no target {target}");
    }
    let libraries = String::from_utf8(rustc.stdout)?;
    if !Path::new(libraries.trim()).is_dir() {
        bail!(
            "Rust's libraries for {target} are not here; `rustup target add {target}` brings them"
        );
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // What the crate `cc` takes; a variable names another.
    let named = std::env::var_os(format!("CC_{}", target.replace('-', "_")));
    if named.is_none() && !compilers(target).iter().any(|name| has(&places, name)) {
        bail!(
            "a part of davit is written in C, and there is no compiler for {target} ({}); Debian's package is musl-tools",
            compilers(target).join(" or ")
        );
    }
    Ok(())
}

/// The C compilers for a target, by their names; any does for a target of this machine's own C library.
fn compilers(target: &str) -> Vec<String> {
    let Some(architecture) = target.strip_suffix("-unknown-linux-musl") else {
        return vec!["cc".to_owned()];
    };
    let own = (architecture == std::env::consts::ARCH).then(|| "musl-gcc".to_owned());
    let cross = format!("{architecture}-linux-musl-gcc");
    own.into_iter().chain([cross]).collect()
}

fn has(places: &[PathBuf], program: &str) -> bool {
    places.iter().any(|place| place.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let told = check("x86_64-unknown-nothing").unwrap_err().to_string();
        assert!(told.contains("x86_64-unknown-nothing"), "{told}");
        assert_eq!(compilers("riscv64gc-unknown-linux-musl").len(), 1);
        let own = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        assert_eq!(compilers(&own)[0], "musl-gcc");
        let places = [PathBuf::from("/nonexistent")];
        assert!(!has(&places, "musl-gcc"));
    }
}
