//! `davit new`: the projects are whole, and the programs in them pass the checks. They are examples of the SDK under other
//! names (`crates/davit/src/new/project.rs`), so what is checked here is built with the workspace.

use crate::harness::{DAVIT, output, part, run, temp_dir, tests_dir};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An example of the SDK, which `cargo test --workspace` builds. Building it from here would have cargo build everything anew
/// whose build scripts look at the variables that it sets for tests.
fn example(name: &str) -> Option<String> {
    let built = Path::new(DAVIT).with_file_name("examples").join(name);
    part(
        "sdk-examples",
        built.is_file().then(|| built.display().to_string()),
    )
}

/// A new project, resolved by cargo against the crates of the workspace.
fn project(dir: &Path, kind: &str) -> PathBuf {
    let new = dir.join(kind);
    let sdk = tests_dir().join("..").canonicalize().unwrap();
    let told = run(Command::new(DAVIT)
        .args(["new", kind, "ip-camera", "--sdk-path"])
        .arg(&sdk)
        .arg("--dir")
        .arg(&new));
    assert!(told.contains("davit lab check"), "{told}");
    std::fs::copy(sdk.join("Cargo.lock"), new.join("Cargo.lock")).unwrap();
    let tree = run(Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--depth", "1", "--prefix", "none"])
        .current_dir(&new));
    assert!(
        tree.starts_with("ip-camera v0.1.0") && tree.contains("davit-sdk v"),
        "{tree}"
    );
    new
}

#[test]
fn a_new_device_plugin_passes_every_check() {
    let dir = temp_dir();
    let new = project(dir.path(), "device-plugin");
    let program = std::fs::read_to_string(new.join("src/main.rs")).unwrap();
    assert!(program.contains("\"vendor.example/ip-camera\""));
    let again = output(
        Command::new(DAVIT)
            .args([
                "new",
                "plugin",
                "ip-camera",
                "--sdk-git",
                "https://x.example",
            ])
            .arg("--dir")
            .arg(&new),
    );
    assert!(!again.status.success(), "what is there is written over");
    let Some(plugin) = example("new_device_plugin") else {
        return;
    };
    let (fine, report) = crate::lab::check(
        "device-plugin",
        &[],
        &[&plugin, "--socket-dir", "{device-plugins}"],
    );
    assert!(fine, "{report:#}");
}

#[test]
fn a_new_dra_driver_passes_every_check() {
    let dir = temp_dir();
    project(dir.path(), "dra-driver");
    let Some(driver) = example("new_dra_driver") else {
        return;
    };
    let command = [
        &[driver.as_str(), "--node-name", "{node}"],
        &crate::lab::PLACES[..],
    ]
    .concat();
    let (fine, report) = crate::lab::check("dra-driver", &["--most-devices", "4"], &command);
    assert!(fine, "{report:#}");
}
