//! Which commit the binary is built from, for `/version`: what the environment says (packages that are built without a
//! repository), else what git does.

use std::path::Path;
use std::process::Command;

fn main() {
    let told = |name: &str| {
        println!("cargo:rerun-if-env-changed={name}");
        std::env::var(name).ok().filter(|value| !value.is_empty())
    };
    let commit = told("DAVIT_GIT_COMMIT").or_else(|| git(&["rev-parse", "HEAD"]));
    let when = [
        "show",
        "-s",
        "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
        "--format=%cd",
    ];
    let date = told("DAVIT_BUILD_DATE").or_else(|| git(&when));
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let date = date.unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned());
    println!("cargo:rustc-env=DAVIT_GIT_COMMIT={commit}");
    println!("cargo:rustc-env=DAVIT_BUILD_DATE={date}");
    println!("cargo:rerun-if-changed=build.rs");
    // this file grows with every commit and checkout
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
}

/// What git answers, if it is there and this is a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .env("TZ", "UTC")
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
