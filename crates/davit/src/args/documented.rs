//! Every line of the docs that begins with `davit` is one that davit understands.

use super::Args;
use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

/// A line with its place.
struct DocumentedLine {
    file: PathBuf,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let mut pages: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    // The reference is made of the commands themselves.
    let is_page = |page: &PathBuf| {
        page.extension().is_some_and(|e| e == "md") && !page.ends_with("reference.md")
    };
    pages.retain(is_page);
    pages
}

/// Commands in blocks, and between backticks in a line.
fn lines_of(file: &Path) -> Vec<DocumentedLine> {
    let text = std::fs::read_to_string(file).unwrap().replace("\\\n", " ");
    let mut is_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
            continue;
        }
        let is_code = is_block || line.starts_with("    ");
        let commands: Vec<&str> = match is_code {
            true => vec![line],
            false => line.split('`').skip(1).step_by(2).collect(),
        };
        for command in commands {
            let command = command.trim().trim_start_matches(['$', '#']).trim_start();
            let command = command
                .strip_prefix("kubectl ")
                .filter(|c| c.starts_with("davit "))
                .unwrap_or(command);
            if command.starts_with("davit ") {
                found.push(DocumentedLine {
                    file: file.to_owned(),
                    text: command.to_owned(),
                });
            }
        }
    }
    found
}

/// The words as a shell has them, without what a reader would put in.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let line = line.replace("\\|", "|");
    for c in line.chars() {
        match c {
            c if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            ' ' if quote.is_none() => words.push(String::new()),
            ';' | '|' | '&' | '>' if quote.is_none() => break,
            c => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    let words = words
        .into_iter()
        .take_while(|word| !["#", "…", "..."].contains(&word.as_str()));
    // `[--flag]` may be left out.
    words
        .map(|word| word.trim_matches(['[', ']']).to_owned())
        .collect()
}

/// Whether it is understood as far as it goes. Values that stand for others may be none (`--port PORT`).
fn is_understood(words: &[String]) -> Result<(), String> {
    let stands_for_another = |word: &String| {
        let is_name = |c: char| c.is_ascii_uppercase() || "-_/.:{}=".contains(c);
        word.chars().all(is_name)
            || ["NAME", "$", "…", "..."]
                .iter()
                .any(|part| word.contains(part))
    };
    match Args::full_command().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::MissingSubcommand
            | ErrorKind::MissingRequiredArgument => Ok(()),
            ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::InvalidSubcommand
                if words.iter().skip(1).any(stands_for_another) =>
            {
                Ok(())
            }
            // `davit devices --node`: a flag is spoken of, not given.
            ErrorKind::InvalidValue | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues
                if words.last().is_some_and(|word| word.starts_with('-')) =>
            {
                Ok(())
            }
            _ => Err(error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()),
        },
    }
}

#[test]
fn every_davit_line_of_the_docs_is_understood() {
    let mut faults = Vec::new();
    let mut number = 0;
    for page in pages() {
        for line in lines_of(&page) {
            let words = words(&line.text).into_iter().map(Into::into);
            let words = super::with_kinds_apart(words).into_iter();
            let words: Vec<String> = words.map(|word| word.into_string().unwrap()).collect();
            number += 1;
            if let Err(fault) = is_understood(&words) {
                let file = line.file.file_name().unwrap_or_default().to_string_lossy();
                faults.push(format!("{file}: `{}`: {fault}", line.text));
            }
        }
    }
    assert!(number > 100, "only {number} lines were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_not_understood_is_found() {
    let understood = |line: &str| is_understood(&words(line)).is_ok();
    for line in [
        "davit up --demo   # a cluster",
        "davit explain pod NAME",
        "davit up --port PORT",
        "davit node --join …",
    ] {
        assert!(understood(line), "{line}");
    }
    for line in [
        "davit upp",
        "davit up --portt 1",
        "davit devices --output xml",
        "davit status extra",
    ] {
        assert!(!understood(line), "{line}");
    }
}
