//! `davit-fuzz [TARGET...]`: runs targets (all without a name) for `DAVIT_FUZZ_SECONDS` each, 60 without it, from
//! `DAVIT_FUZZ_SEED`. Findings are written to `fuzz/artifacts`; `davit-fuzz TARGET FILE` runs one input again.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use davit_fuzz::driver::{self, Extent};
use davit_fuzz::{TARGETS, Target};

fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

fn main() -> ExitCode {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if let [target, file] = named.as_slice()
        && let Some(target) = find(target)
        && let Ok(input) = std::fs::read(file)
    {
        (target.run)(&input);
        println!("{}: nothing found in {file}", target.name);
        return ExitCode::SUCCESS;
    }
    let unknown = named.iter().find(|name| find(name).is_none());
    if let Some(unknown) = unknown {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("there is no target {unknown}, only {}", known.join(", "));
        return ExitCode::FAILURE;
    }
    let time = Duration::from_secs(number("DAVIT_FUZZ_SECONDS", 60));
    let seed = number("DAVIT_FUZZ_SEED", 1);
    let mut found = false;
    let chosen = TARGETS
        .iter()
        .filter(|target| named.is_empty() || named.iter().any(|name| name == target.name));
    for target in chosen {
        found |= attend(*target, time, seed);
    }
    if found {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target and tells what it found; whether that is anything.
fn attend(target: Target, time: Duration, seed: u64) -> bool {
    let extent = Extent::of_time(time);
    let report = driver::run(target, extent, seed);
    println!(
        "{}: {} inputs in {} s from seed {seed}, {} findings",
        target.name,
        report.runs,
        time.as_secs(),
        report.findings.len()
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    for (index, (place, input)) in report.findings.iter().enumerate() {
        let file = folder.join(format!("{}-{seed}-{index}", target.name));
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, input));
        match written {
            Ok(()) => println!("  {place}\n    input: {}", file.display()),
            Err(error) => println!("  {place}\n    not written: {error}"),
        }
    }
    report.runs == 0 || !report.findings.is_empty()
}
