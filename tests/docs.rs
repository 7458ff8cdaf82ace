//! The commands of the docs, run as they stand there.
//!
//! A block of commands is preceded by a comment that readers do not see: `<!-- run -->`, `<!-- run: SED -->` (after a change by
//! sed, for names that readers choose), or `<!-- not run: WHY -->`. In `console` blocks commands follow `$` or `#`, in others all is
//! one. Each page has a directory of its own, and the administrator's kubeconfig of one cluster with simulated nodes.

mod prometheus;
mod series;

use crate::harness;
use harness::{
    Cluster, DAVIT, any_kubectl, eventually, kubectl_stdin, output, temp_dir, tests_dir,
};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Pages whose every block is run, or says why it is not. The others are held to what davit understands, in the crate `davit`.
const GUIDES: [&str; 17] = [
    "README.md",
    "docs/backup.md",
    "docs/configuration.md",
    "docs/console.md",
    "docs/device-plugins.md",
    "docs/dra-drivers.md",
    "docs/envtest.md",
    "docs/exporter.md",
    "docs/host-devices.md",
    "docs/install.md",
    "docs/kubectl.md",
    "docs/lab.md",
    "docs/network.md",
    "docs/node.md",
    "docs/observability.md",
    "docs/storage.md",
    "docs/testing.md",
];

const INVENTORY: &str = "
resources:
- { name: hardware-vendor.example/foo, count: 3 }
";

const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  nodeSelector: {kubernetes.io/hostname: sim-0}
  containers:
  - name: main
    image: none
    resources: {limits: {hardware-vendor.example/foo: 1}}
---
apiVersion: v1
kind: Pod
metadata: {name: train-0, namespace: lab}
spec:
  containers:
  - name: main
    image: none
    resources: {limits: {hardware-vendor.example/foo: 9}}
";

/// Commands of a page.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// Line of the page, from 1.
    line: usize,
    commands: String,
    marker: Option<Marker>,
}

#[derive(Debug, PartialEq, Eq)]
enum Marker {
    /// After this change.
    Run(String),
    NotRun,
}

fn marker(line: &str) -> Option<Marker> {
    let said = line
        .trim()
        .strip_prefix("<!--")?
        .strip_suffix("-->")?
        .trim();
    match said.split_once(':') {
        Some(("run", sed)) => Some(Marker::Run(sed.trim().to_owned())),
        Some(("not run", why)) if !why.trim().is_empty() => Some(Marker::NotRun),
        _ => (said == "run").then(|| Marker::Run(String::new())),
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut before = "";
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = match line.trim().is_empty() {
                true => before,
                false => line,
            };
            continue;
        };
        let inside: Vec<&str> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.starts_with("```"))
            .collect();
        let marker = marker(before);
        before = "";
        let commands = match language {
            "console" => typed(&inside),
            "sh" | "bash" => inside.join("\n"),
            // Output and files are no commands, unless somebody says so.
            _ if marker.is_none() => continue,
            _ => inside.join("\n"),
        };
        found.push(Block {
            line: at + 1,
            commands,
            marker,
        });
    }
    found
}

/// What follows a prompt, with the lines on which it goes on.
fn typed(lines: &[&str]) -> String {
    let mut commands = Vec::new();
    let mut goes_on = false;
    for line in lines {
        let command = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let command = command.or(goes_on.then_some(*line));
        goes_on = command.is_some_and(|command| command.ends_with('\\'));
        commands.extend(command);
    }
    commands.join("\n")
}

fn sed(script: &str, text: &str) -> String {
    let file = temp_dir();
    let file = file.path().join("commands");
    std::fs::write(&file, text).unwrap();
    harness::run(Command::new("sed").args(["-e", script]).arg(&file))
}

#[test]
fn blocks_are_found_with_what_is_said_of_them() {
    let text = "a\n<!-- run: s/x/y/ -->\n```sh\nx\n```\n```console\n$ a \\\n  b\nout\n# c\n```\n<!-- not run: w -->\n\n```sh\nd\n```\n```yaml\ne: f\n```\n";
    let block = |line, commands: &str, marker| Block {
        line,
        commands: commands.to_owned(),
        marker,
    };
    let expected = [
        block(3, "x", Some(Marker::Run("s/x/y/".to_owned()))),
        block(6, "a \\\n  b\nc", None),
        block(14, "d", Some(Marker::NotRun)),
    ];
    assert_eq!(blocks(text), expected);
    assert_eq!(sed("s/x/y/", "x\n"), "y\n");
    assert_eq!(marker("<!-- not run: -->"), None);
}

#[test]
fn the_commands_of_the_guides_work_as_they_stand_there() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, INVENTORY).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "2", "--devices", &devices]);
    let programs = dir.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    symlink(DAVIT, programs.join("davit")).unwrap();
    symlink(&kubectl, programs.join("kubectl")).unwrap();
    kubectl_stdin(&cluster, &kubectl, &["apply", "-f", "-"], OBJECTS);
    eventually("a pod runs", Duration::from_secs(60), || {
        let status = Command::new(DAVIT)
            .args(["status"])
            .env("KUBECONFIG", &cluster.kubeconfig)
            .output()
            .unwrap();
        String::from_utf8_lossy(&status.stdout).contains("1 Running")
    });
    let mut faults = Vec::new();
    let mut number = 0;
    for page in GUIDES {
        let here = dir.path().join(page.replace('/', "-"));
        std::fs::create_dir(&here).unwrap();
        std::fs::copy(&cluster.kubeconfig, here.join("kubeconfig")).unwrap();
        let text = std::fs::read_to_string(tests_dir().join("..").join(page)).unwrap();
        for block in blocks(&text) {
            let place = format!("{page}:{}", block.line);
            match &block.marker {
                None => faults.push(format!("{place}: nothing says whether it is run")),
                Some(Marker::NotRun) => {}
                Some(Marker::Run(change)) => {
                    number += 1;
                    let commands = match change.as_str() {
                        "" => block.commands.clone(),
                        change => sed(change, &block.commands),
                    };
                    if let Some(fault) = fault(&here, &programs, &commands) {
                        faults.push(format!("{place}: {commands}\n{fault}"));
                    }
                }
            }
        }
    }
    println!("{number} blocks were run");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(number >= 12, "only {number} blocks are run");
}

/// What commands say that do not work.
fn fault(here: &Path, programs: &Path, commands: &str) -> Option<String> {
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("timeout");
    shell
        .args(["-k", "5", "120", "bash", "-euo", "pipefail", "-c", commands])
        .current_dir(here)
        .env("PATH", path)
        .env("BIN", programs)
        .env("HOME", here)
        .env("CHECKOUT", tests_dir().join("..").canonicalize().unwrap())
        .env("KUBECONFIG", here.join("kubeconfig"));
    let output = output(&mut shell);
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("$ {commands}\n{}", said(&output.stdout));
    (!output.status.success()).then(|| {
        format!(
            "{}: {}{}",
            output.status,
            said(&output.stdout),
            said(&output.stderr)
        )
    })
}

/// `docs/reference.md` is what the program says (`cargo xtask reference` writes it anew).
#[test]
fn the_reference_is_what_the_program_says() {
    let said = harness::run(Command::new(DAVIT).arg("reference"));
    let stands = std::fs::read_to_string(tests_dir().join("../docs/reference.md")).unwrap();
    let differs = said
        .lines()
        .zip(stands.lines())
        .find(|(said, stands)| said != stands);
    assert!(said == stands, "cargo xtask reference: {differs:?}");
}
