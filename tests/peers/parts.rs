//! Building the peers with their own package managers, into `tests/.cache`.
use crate::harness::{part, tests_dir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A program below `tests/peers/go`, built when its sources are newer than it.
pub(crate) fn go_peer(name: &str) -> Option<PathBuf> {
    go_program(name, &tests_dir().join("peers/go"), name)
}

/// The driver of classic resource allocation in `tests/peers/go-classic`.
pub(crate) fn classic_driver() -> Option<PathBuf> {
    go_program("classicdriver", &tests_dir().join("peers/go-classic"), ".")
}

/// The suite of the Go module in `go/davittest` or, with a folder, of the one below it.
pub(crate) fn go_suite(name: &str, folder: &str) -> Option<PathBuf> {
    let root = tests_dir().join("../go/davittest");
    let module = root.join(folder);
    let sources = newest(&root).max(newest(&module));
    go_build(name, &module, &["test", "-c"], ".", sources)
}

/// The program that `tests/peers/go/envtest` is with one import exchanged, for the Go module in its place.
pub(crate) fn moved_envtest() -> Option<PathBuf> {
    let root = tests_dir().join("../go/davittest");
    let source = tests_dir().join("peers/go/envtest/main.go");
    let text = std::fs::read_to_string(&source).unwrap();
    let (before, now) = (
        "\"sigs.k8s.io/controller-runtime/pkg/envtest\"",
        "\"davit.dev/davittest/envtest\"",
    );
    assert_eq!(text.matches(before).count(), 1);
    let dir = tempfile::tempdir().unwrap();
    let moved = dir.path().join("main.go");
    std::fs::write(&moved, text.replace(before, now)).unwrap();
    // A package of the module, as far as the compiler can see: the tree stays as it is.
    let module = root.join("envtest").canonicalize().unwrap();
    let overlay = serde_json::json!({ "Replace": { module.join("moved/main.go").display().to_string(): moved } });
    let overlay_file = dir.path().join("overlay.json");
    std::fs::write(&overlay_file, overlay.to_string()).unwrap();
    let sources = newest(&root).max(newest(&module)).max(modified(&source));
    let overlay_flag = format!("-overlay={}", overlay_file.display());
    let words = ["build", &overlay_flag];
    go_build("envtest-moved", &module, &words, "./moved", sources)
}

fn go_program(name: &str, module: &Path, package: &str) -> Option<PathBuf> {
    // What they share is in a package beside them.
    let shared = newest(&module.join("dial")).max(modified(&module.join("go.mod")));
    let sources = newest(&module.join(package)).max(shared);
    go_build(name, module, &["build"], &format!("./{package}"), sources)
}

/// What Go makes of a package with these words, unless that is newer than its sources.
fn go_build(
    name: &str,
    module: &Path,
    words: &[&str],
    package: &str,
    sources: SystemTime,
) -> Option<PathBuf> {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let target = tests_dir().join(format!(".cache/peer-{name}"));
    if modified(&target) < sources {
        let mut command = Command::new("go");
        command
            .args(words)
            .args(["-trimpath", "-ldflags", "-s -w", "-o"]);
        command.arg(&target).arg(package).current_dir(module);
        attempt(&mut command);
    }
    part(&format!("peer-{name}"), target.is_file().then_some(target))
}

/// A Python interpreter with what `tests/peers/python/requirements.txt` names.
pub(crate) fn python() -> Option<PathBuf> {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let environment = tests_dir().join(".cache/python");
    let wanted = tests_dir().join("peers/python/requirements.txt");
    let mark = environment.join("requirements.txt");
    if std::fs::read(&wanted).ok() != std::fs::read(&mark).ok()
        && attempt(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )
        && attempt(
            Command::new(environment.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check", "-r"])
                .arg(&wanted),
        )
    {
        std::fs::copy(&wanted, &mark).unwrap();
    }
    part(
        "python",
        mark.is_file().then(|| environment.join("bin/python")),
    )
}

/// Python code of our own .proto file, generated into a folder.
pub(crate) fn python_proto(python: &Path, proto: &str, into: &Path) {
    let protos = tests_dir().join("../crates/proto/protos");
    let file = protos.join(proto);
    let folder = file.parent().unwrap();
    let made = Command::new(python)
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", folder.display()))
        .arg(format!("--python_out={}", into.display()))
        .arg(format!("--grpc_python_out={}", into.display()))
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// Runs a step of a build; what went wrong is printed, the missing part is reported by the caller.
fn attempt(command: &mut Command) -> bool {
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            println!("{command:?}: {error}");
            false
        }
    }
}

fn modified(path: &Path) -> SystemTime {
    std::fs::metadata(path)
        .and_then(|m| m.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

fn newest(folder: &Path) -> SystemTime {
    std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| modified(&entry.path()))
        .max()
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
