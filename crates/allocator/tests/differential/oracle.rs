//! The program that asks Kubernetes' own code.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const PART: &str = "peer-draoracle";

/// The answers to all questions, in order; none where the program is not there, which is printed.
///
/// # Panics
/// When the program is required here (`DAVIT_REQUIRED_PARTS`) but missing.
pub(crate) fn ask(questions: Vec<Value>) -> Option<Vec<Value>> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/.cache/{PART}"));
    if !program.is_file() {
        let required = std::env::var("DAVIT_REQUIRED_PARTS").unwrap_or_default();
        assert!(
            !required.split_whitespace().any(|part| part == PART),
            "{PART} is required here but missing"
        );
        println!("skipped: {PART} is not on this machine");
        return None;
    }
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let expected = questions.len();
    let writer = std::thread::spawn(move || {
        for question in questions {
            writeln!(input, "{question}").unwrap();
        }
    });
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answers: Vec<Value> = lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(answers.len(), expected, "an answer to every question");
    Some(answers)
}
