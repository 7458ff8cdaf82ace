//! One file for everything that flags say (docs/configuration.md): `davit up --configuration FILE`.
//!
//! ```yaml
//! apiVersion: davit.dev/v1
//! kind: Configuration
//! up:
//!   bindAddress: 0.0.0.0
//!   tlsSan: [box.example.com]
//! ```
//!
//! What the file and the environment say is turned into words of the command line where that does not have the flag, and
//! then read as if it had stood there: every value means, and is checked as, what the flag's is.

mod file;
mod show;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use show::{ConfigArgs, Setting, file_of, run, settings};

/// The commands that go on, and may be configured by a file.
const COMMANDS: [&str; 7] = [
    "up",
    "server",
    "scheduler",
    "controllers",
    "node",
    "proxy",
    "dns",
];
/// The flag that names the file.
const FLAG: &str = "configuration";
/// What names of environment variables begin with.
const ENVIRONMENT: &str = "DAVIT_";

/// Where the value of a flag comes from, what wins first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Flag,
    Environment,
    File,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// A command line that is complete.
#[derive(Debug)]
pub(crate) struct Completed {
    /// With what the environment and the file say.
    pub(crate) line: Vec<OsString>,
    /// Of the flags that were added, by their IDs.
    sources: BTreeMap<String, Source>,
}

/// Everything that is wrong, each with its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Faults(Vec<String>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

/// The commands with the flag that names the file.
pub(crate) fn with_flag(command: Command) -> Command {
    COMMANDS.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |command| {
            command.arg(
                Arg::new(FLAG)
                    .long(FLAG)
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .env("DAVIT_CONFIGURATION")
                    .hide_env(true)
                    .help("File of flags for this and other commands; flags and DAVIT_… variables win (docs/configuration.md)"),
            )
        })
    })
}

/// Adds to a command line what the environment and the file that it names say.
///
/// `environment` answers with the value of a variable. A line that cannot be understood, or of a command that takes no
/// file, stays as it is: whoever reads it will say so.
pub(crate) fn complete(
    command: &Command,
    line: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Completed, Faults> {
    let mut completed = Completed {
        line,
        sources: BTreeMap::new(),
    };
    let lenient = command.clone().ignore_errors(true);
    let Ok(matches) = lenient.try_get_matches_from(&completed.line) else {
        return Ok(completed);
    };
    let Some((name, given)) = matches.subcommand() else {
        return Ok(completed);
    };
    let Some(subcommand) = configurable(command, name) else {
        return Ok(completed);
    };
    let mut words = Vec::new();
    let mut add = |id: &str, source: Source, said: Vec<OsString>| {
        let known = completed.sources.contains_key(id) || is_given(given, id);
        if !known {
            completed.sources.insert(id.to_owned(), source);
            words.extend(said);
        }
    };
    let mut faults = Vec::new();
    for arg in subcommand.get_arguments() {
        let Some((variable, value)) =
            variable(arg).and_then(|v| Some((v.clone(), environment(&v)?)))
        else {
            continue;
        };
        match words_of_text(arg, &value).and_then(|words| checked(command, name, words)) {
            Ok(words) => add(arg.get_id().as_str(), Source::Environment, words),
            Err(fault) => faults.push(format!("{variable}: {fault}")),
        }
    }
    if let Some(path) = given.get_one::<PathBuf>(FLAG) {
        let sections = file::read(path).and_then(|text| file::sections(command, &text));
        match sections {
            Ok(mut sections) => {
                for (id, words) in sections.remove(name).unwrap_or_default() {
                    add(&id, Source::File, words);
                }
            }
            Err(in_file) => {
                faults.extend(
                    in_file
                        .into_iter()
                        .map(|f| format!("{}: {f}", path.display())),
                );
            }
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let at = position(&completed.line, command, name);
    completed.line.splice(at..at, words);
    Ok(completed)
}

/// The commands that a file has sections for.
///
/// # Errors
/// It cannot be read, or is wrong.
pub(crate) fn commands_in(command: &Command, file: &Path) -> anyhow::Result<Vec<String>> {
    let sections = file::read(file).and_then(|text| file::sections(command, &text));
    let faults = |faults: Vec<String>| anyhow::anyhow!("{}: {}", file.display(), faults.join("; "));
    Ok(sections.map_err(faults)?.into_keys().collect())
}

/// A command that takes the file.
fn configurable<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    COMMANDS
        .contains(&name)
        .then(|| command.find_subcommand(name))?
}

/// Whether the line, or a variable that the flag itself knows (`KUBECONFIG`), has a value for it.
fn is_given(given: &ArgMatches, id: &str) -> bool {
    matches!(
        given.value_source(id),
        Some(ValueSource::CommandLine | ValueSource::EnvVariable)
    )
}

/// Where the words of a subcommand begin: the first that is no flag is its name.
fn position(line: &[OsString], command: &Command, name: &str) -> usize {
    let is_name = |word: &OsString| {
        let found = word.to_str().and_then(|w| command.find_subcommand(w));
        found.is_some_and(|found| found.get_name() == name)
    };
    line.iter()
        .skip(1)
        .position(is_name)
        .map_or(line.len(), |at| at + 2)
}

/// The variable of a flag.
fn variable(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|long| !is_not_for_files(long))?;
    Some(format!(
        "{ENVIRONMENT}{}",
        long.to_uppercase().replace('-', "_")
    ))
}

/// Flags that mean the command line itself.
fn is_not_for_files(long: &str) -> bool {
    [FLAG, "help", "version", "verbose", "color"].contains(&long)
}

/// The words that give a flag this text.
fn words_of_text(arg: &Arg, text: &OsStr) -> Result<Vec<OsString>, String> {
    let long = arg.get_long().unwrap_or_default();
    match arg.get_action() {
        ArgAction::SetTrue => match text.to_str() {
            Some("true" | "1") => Ok(vec![format!("--{long}").into()]),
            Some("false" | "0") => Ok(Vec::new()),
            _ => Err("must be true or false".to_owned()),
        },
        _ => {
            let mut word = OsString::from(format!("--{long}="));
            word.push(text);
            Ok(vec![word])
        }
    }
}

/// Words that the command takes, as far as they alone can say.
fn checked(command: &Command, name: &str, words: Vec<OsString>) -> Result<Vec<OsString>, String> {
    use clap::error::ErrorKind;
    let line = ["davit".into(), name.into()]
        .into_iter()
        .chain(words.iter().cloned());
    match command.clone().try_get_matches_from(line) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
            ) =>
        {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            Err(first.trim_start_matches("error: ").to_owned())
        }
        _ => Ok(words),
    }
}

#[cfg(test)]
mod tests;
