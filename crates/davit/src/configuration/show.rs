//! `davit config show`: what is in force, and where it comes from.

use super::file::camel_case;
use super::{COMMANDS, Source, complete, is_not_for_files};
use crate::output::Output;
use anyhow::{Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Subcommand};
use serde::Serialize;
use std::ffi::OsString;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Clone, Subcommand)]
enum ConfigAction {
    /// Print what flags, environment and the file say of a command, and where each value comes from
    Show {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<Output>,
        /// The command, with the flags it would be started with: `davit config show up --configuration FILE`
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "COMMAND"
        )]
        line: Vec<OsString>,
    },
}

/// A flag that has a value.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The name that it has in the file.
    pub(super) name: String,
    values: Vec<String>,
    source: Source,
    /// Whether the flag takes several values.
    #[serde(skip)]
    many: bool,
}

impl Setting {
    /// Whether it stands on the command line.
    pub(crate) fn is_flag(&self) -> bool {
        self.source == Source::Flag
    }

    /// The value, if this is the setting of this name.
    pub(crate) fn value_of(&self, name: &str) -> Option<&str> {
        let values = self.values.first().map(String::as_str);
        values.filter(|_| self.name == name)
    }
}

/// Runs `davit config`.
pub(crate) fn run(args: ConfigArgs, command: &Command) -> Result<()> {
    let ConfigAction::Show { output, line } = args.action;
    let name = line[0].to_string_lossy().into_owned();
    let settings = settings(command, line, |name| std::env::var_os(name))?;
    match output {
        Some(Output::Json) => println!("{}", serde_json::to_string_pretty(&settings)?),
        Some(Output::Wide) => bail!("-o wide is for tables; without -o the output is YAML"),
        Some(Output::Yaml) | None => print!("{}", text(&name, &settings, true)),
    }
    Ok(())
}

/// The flags of a command line (without `davit`) that have a value.
///
/// # Errors
/// The line, or what it names, is wrong.
pub(crate) fn settings(
    command: &Command,
    line: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<Setting>> {
    let line = std::iter::once("davit".into()).chain(line).collect();
    let completed = complete(command, line, environment).map_err(|faults| anyhow!("{faults}"))?;
    let matches = command.clone().try_get_matches_from(&completed.line)?;
    let of = matches.subcommand().and_then(|(name, matches)| {
        let subcommand = command.find_subcommand(name)?;
        COMMANDS.contains(&name).then_some((subcommand, matches))
    });
    let Some((subcommand, matches)) = of else {
        bail!(
            "has no configuration: expected one of {}",
            COMMANDS.join(", ")
        );
    };
    let shown = subcommand.get_arguments().filter_map(|arg| {
        let long = arg.get_long().filter(|long| !is_not_for_files(long))?;
        let id = arg.get_id().as_str();
        let values = values(arg, matches)?;
        let source = match completed.sources.get(id) {
            Some(source) => *source,
            None => match matches.value_source(id)? {
                ValueSource::CommandLine => Source::Flag,
                ValueSource::EnvVariable => Source::Environment,
                _ => Source::Default,
            },
        };
        Some(Setting {
            name: camel_case(long),
            values,
            source,
            many: arg.get_value_delimiter().is_some()
                || matches!(arg.get_action(), ArgAction::Append),
        })
    });
    Ok(shown.collect())
}

/// The values of a flag as they were written; nothing if it has none.
fn values(arg: &Arg, matches: &ArgMatches) -> Option<Vec<String>> {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Some(vec![matches.get_flag(id).to_string()]);
    }
    let values: Vec<String> = matches
        .get_raw(id)?
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    (values.iter().any(|value| !value.is_empty())).then_some(values)
}

/// A file that says what these settings do.
pub(crate) fn file_of(name: &str, settings: &[Setting]) -> String {
    text(name, settings, false)
}

pub(super) fn text(name: &str, settings: &[Setting], with_sources: bool) -> String {
    let empty = if settings.is_empty() { " {}" } else { "" };
    let mut text = format!("apiVersion: davit.dev/v1\nkind: Configuration\n{name}:{empty}\n");
    for setting in settings {
        let quoted: Vec<String> = setting.values.iter().map(|value| scalar(value)).collect();
        let value = match (&quoted[..], setting.many) {
            ([one], false) => one.clone(),
            (many, _) => format!("[{}]", many.join(", ")),
        };
        let source = match with_sources {
            true => format!(" # {}", setting.source),
            false => String::new(),
        };
        text += &format!("  {}: {value}{source}\n", setting.name);
    }
    text
}

/// A value as YAML has it: quoted unless it is plain for sure.
fn scalar(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let is_plain = value
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric() || c == '/')
        && value.chars().all(plain)
        && !["null", "yes", "no", "on", "off", "y", "n"].contains(&value.to_lowercase().as_str());
    if is_plain {
        value.to_owned()
    } else {
        serde_json::Value::from(value).to_string()
    }
}
