//! What `cargo xtask dist` makes of a binary can be unpacked, verified and installed, and is the same each time.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The binary that `cargo test --workspace` builds beside this one.
fn davit() -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("davit");
    if !binary.is_file() {
        println!("skipped: davit is not built");
    }
    binary.is_file().then_some(binary)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A binary as large as the debug build's takes long to pack: this one hands its questions on.
fn small(davit: &Path, dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let program = dir.join("davit");
    let script = format!("#!/bin/sh\nexec {} \"$@\"\n", davit.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn archive_and_package_are_whole_and_the_same_each_time() {
    let Some(davit) = davit() else { return };
    let dir = tempfile::tempdir().unwrap();
    let small = small(&davit, dir.path());
    let made = |to: &str| {
        let to = dir.path().join(to);
        let mut dist = Command::new(env!("CARGO_BIN_EXE_xtask"));
        dist.args(["dist", "--binary"])
            .arg(&small)
            .arg("--to")
            .arg(&to);
        run(&mut dist);
        to
    };
    let (first, second) = (made("first"), made("second"));
    let sums = |dir: &Path| std::fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&first), sums(&second));
    assert_eq!(sums(&first).lines().count(), 2);
    run(Command::new("sha256sum")
        .args(["-c", "SHA256SUMS"])
        .current_dir(&first));
    let file = |ending: &str| {
        let all = std::fs::read_dir(&first)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        all.into_iter()
            .find(|path| path.to_string_lossy().ends_with(ending))
            .unwrap()
    };
    let listed = run(Command::new("tar").arg("-tzf").arg(file(".tar.gz")));
    for name in [
        "/davit\n",
        "/completions/_davit\n",
        "/man/davit-up.1\n",
        "/LICENSE\n",
    ] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("skipped: dpkg-deb is not on this machine");
        return;
    }
    let package = file(".deb");
    let fields = run(Command::new("dpkg-deb").args(["--field"]).arg(&package));
    assert!(
        fields.contains("Package: davit\n") && fields.contains("Architecture: "),
        "{fields}"
    );
    let root = dir.path().join("root");
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&package)
        .arg(&root));
    let unit = std::fs::read_to_string(root.join("usr/lib/systemd/system/davit.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/davit up"), "{unit}");
    assert!(root.join("etc/davit/davit.yaml").is_file());
    assert!(
        root.join("usr/share/man/man1/davit-explain-pod.1.gz")
            .is_file()
    );
    let version = run(Command::new(root.join("usr/bin/kubectl-davit")).arg("--version"));
    assert!(
        version.starts_with("davit ") || version.starts_with("kubectl-davit "),
        "{version}"
    );
    assert!(!first.join(".making").exists());
}
