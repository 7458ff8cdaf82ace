//! The package in `javascript/`: its own suite, and its types as users write them.

use crate::harness::{DAVIT, part, program, run, tests_dir};
use std::process::Command;

#[test]
fn the_javascript_package_starts_clusters_and_leaves_nothing() {
    let Some(node) = program("node") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let mut suite = Command::new(node);
    suite
        .args(["--test", "test/cluster.test.js"])
        .current_dir(tests_dir().join("../javascript"))
        .env_remove("DAVIT_TEST_LOGS")
        .env("DAVIT_BINARY", DAVIT);
    let told = run(suite.env("TMPDIR", temporary.path()));
    println!("{told}");
    assert!(told.contains("# pass 7\n") && told.contains("# skipped 0\n"));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_types_of_the_javascript_package_are_what_users_write() {
    let (Some(node), tools) = (program("node"), tests_dir().join("../console/node_modules")) else {
        return;
    };
    let compiler = tools.join("typescript/bin/tsc");
    let Some(compiler) = part("console-packages", compiler.is_file().then_some(compiler)) else {
        return;
    };
    run(Command::new(node)
        .arg(compiler)
        .args([
            "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext",
        ])
        .arg(tests_dir().join("../javascript/test/types.ts")));
}
