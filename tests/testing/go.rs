//! The Go modules in `go/davittest`: their own suites, and a suite for envtest that is moved to them by its import.

use crate::harness::{DAVIT, run};
use crate::parts;
use std::path::Path;
use std::process::Command;

/// Nothing of a suite is left where it may put temporary files.
fn leaves_nothing(program: &Path, dir: &Path, words: &[&str]) -> String {
    // Short: paths of unix sockets have little room.
    let temporary = tempfile::Builder::new().prefix("g").rand_bytes(2).tempdir();
    let temporary = temporary.unwrap();
    let told = run(Command::new(program)
        .args(words)
        .current_dir(dir)
        .env("DAVIT_BINARY", DAVIT)
        .env_remove("DAVIT_TEST_LOGS")
        .env_remove("KUBEBUILDER_ASSETS")
        .env("TMPDIR", temporary.path()));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    told
}

#[test]
fn the_go_module_starts_clusters() {
    let Some(suite) = parts::go_suite("davittest", "") else {
        return;
    };
    let dir = crate::harness::tests_dir().join("../go/davittest");
    println!("{}", leaves_nothing(&suite, &dir, &["-test.v"]));
}

#[test]
fn a_suite_as_kubebuilder_makes_it_runs_on_the_go_module() {
    let Some(suite) = parts::go_suite("davittest-envtest", "envtest") else {
        return;
    };
    let dir = crate::harness::tests_dir().join("../go/davittest/envtest");
    println!("{}", leaves_nothing(&suite, &dir, &["-test.v"]));
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
