//! The Go modules in `go/davittest`: their own suites, and a suite for envtest that is moved to them by its import.

use crate::harness::{DAVIT, run};
use crate::peers::parts;
use std::path::Path;
use std::process::Command;

fn suite(program: &Path, dir: &Path, words: &[&str], temporary: &Path) -> String {
    let mut command = Command::new(program);
    command
        .args(words)
        .current_dir(dir)
        .env("DAVIT_BINARY", DAVIT);
    command
        .env_remove("DAVIT_TEST_LOGS")
        .env_remove("KUBEBUILDER_ASSETS");
    run(command.env("TMPDIR", temporary))
}

/// Nothing of a suite is left where it may put temporary files.
fn leaves_nothing(program: &Path, dir: &Path, words: &[&str]) -> String {
    let temporary = tempfile::tempdir().unwrap();
    let told = suite(program, dir, words, temporary.path());
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    told
}

/// A whole suite of a module.
fn whole(program: &Path, folder: &str) {
    let dir = crate::harness::tests_dir()
        .join("../go/davittest")
        .join(folder);
    let told = leaves_nothing(program, &dir, &["-test.v"]);
    println!("{told}");
    assert!(told.contains("--- PASS"), "{told}");
}

#[test]
fn the_go_module_starts_clusters() {
    let Some(suite) = parts::go_suite("davittest", "") else {
        return;
    };
    whole(&suite, "");
}

#[test]
fn a_suite_as_kubebuilder_makes_it_runs_on_the_go_module() {
    let Some(suite) = parts::go_suite("davittest-envtest", "envtest") else {
        return;
    };
    whole(&suite, "envtest");
}

#[test]
fn a_suite_for_envtest_is_moved_by_one_import() {
    let Some(program) = parts::moved_envtest() else {
        return;
    };
    let told = leaves_nothing(&program, Path::new("/"), &[]);
    println!("{told}");
    for name in ["objects", "webhook", "users", "tokens", "services"] {
        assert!(told.contains(&format!("ok {name}\n")), "{name}");
    }
}
