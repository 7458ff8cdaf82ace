//! Damaged files of a data directory, and what `davit check` and `davit up` say of them.
//!
//! `DAVIT_DAMAGE_CASES` says how many cases there are, `DAVIT_DAMAGE_SEED` which is the first.

use super::{OBJECTS, cluster};
use crate::harness::{any_kubectl, kubectl_stdin, output, run, temp_dir};
use davit_faults::{Dice, asked};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than a start takes that comes to nothing.
const START: Duration = Duration::from_secs(90);

/// Files in which a damage means something: not locks, and not what is held for a full disk.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !["lock", "reserve"].contains(&name) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Damages a file, or two; says how.
fn damage(data: &Path, dice: &mut Dice) -> String {
    let mut all = files(&data.join("store"));
    all.extend(files(&data.join("pki")));
    let path = all[dice.below(all.len())].clone();
    let name = path.strip_prefix(data).unwrap().display().to_string();
    let mut bytes = std::fs::read(&path).unwrap();
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let at = dice.below(used);
    match dice.below(4) {
        0 | 1 if used > 0 => {
            bytes[at] ^= 1 << dice.below(8);
            std::fs::write(&path, bytes).unwrap();
            format!("a bit of byte {at} of {name} is flipped")
        }
        2 => {
            bytes.truncate(at);
            std::fs::write(&path, bytes).unwrap();
            format!("{name} is cut at {at}")
        }
        _ => {
            let other = all[dice.below(all.len())].clone();
            std::fs::write(&path, std::fs::read(&other).unwrap()).unwrap();
            std::fs::write(&other, bytes).unwrap();
            let other = other.strip_prefix(data).unwrap().display().to_string();
            format!("{name} and {other} have changed places")
        }
    }
}

fn davit(args: &[&str]) -> Output {
    output(Command::new(env!("CARGO_BIN_EXE_davit")).args(args))
}

/// Starts a server on the directory: `None` if it is ready, or what it says when it ends.
fn up(data: &Path) -> Option<String> {
    let said = data.with_extension("said");
    let file = std::fs::File::create(&said).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_davit"))
        .args(["up", "--no-node", "--port", "0", "--data-dir"])
        .arg(data)
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + START;
    loop {
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        if child.try_wait().unwrap().is_some() {
            return Some(text);
        }
        if text.contains("ready in ") || Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            let late = format!("neither ready nor ended in {START:?}: {text}");
            return (!text.contains("ready in ")).then_some(late);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What is damaged is told, by the check and by a start, with a way on; nothing panics.
#[test]
fn damage_of_the_data_directory_is_told() {
    let Some(binary) = any_kubectl() else { return };
    let first = asked("DAVIT_DAMAGE_SEED", 1) as u64;
    let cases = asked("DAVIT_DAMAGE_CASES", 6) as u64;
    println!("DAVIT_DAMAGE_SEED={first}");
    let mut kube = cluster(binary, &[]);
    kubectl_stdin(&kube.cluster, &kube.binary, &["apply", "-f", "-"], OBJECTS);
    assert!(kube.cluster.interrupt().success());
    let base = kube.cluster.dir.path().join("data");
    let (mut told, mut failures) = (0, Vec::new());
    for seed in first..first + cases {
        let dir = temp_dir();
        let data = dir.path().join("data");
        run(Command::new("cp")
            .args(["-r", "--sparse=always"])
            .args([&base, &data]));
        let how = damage(&data, &mut Dice::new(seed));
        let checked = davit(&[
            "check",
            data.to_str().unwrap(),
            "--root",
            dir.path().to_str().unwrap(),
        ]);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&checked.stdout),
            String::from_utf8_lossy(&checked.stderr)
        );
        let mut wrong =
            |what: &str, said: &str| failures.push(format!("seed {seed}, {how}: {what}:\n{said}"));
        if said.contains("panicked") || checked.status.code().is_none() {
            wrong("the check panics", &said);
        }
        if !checked.status.success() && !said.contains("to go on:") {
            wrong("no way on", &said);
        }
        let store_is_damaged = said.contains("\nstore: ");
        told += u64::from(!checked.status.success());
        if !store_is_damaged && seed % 4 != 0 {
            continue;
        }
        match up(&data) {
            None if store_is_damaged => wrong("it starts", &said),
            None => {}
            Some(said) if said.contains("panicked") => wrong("the server panics", &said),
            Some(said) if store_is_damaged && !said.contains("davit check") => {
                wrong("no way on", &said);
            }
            Some(said) if checked.status.success() => wrong("only the server tells", &said),
            Some(_) => {}
        }
    }
    println!("{cases} cases, {told} told by the check");
    assert!(
        failures.is_empty(),
        "{}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(told > 0);
}
