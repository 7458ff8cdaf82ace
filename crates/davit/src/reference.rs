//! `davit reference`: every command and flag as the program itself knows them, as a page of the docs or as manual pages.

mod man;

use anyhow::{Context, Result};
use clap::builder::PossibleValue;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Flags of `davit reference`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ReferenceArgs {
    /// Write manual pages into this directory instead of printing the page
    #[arg(long, value_name = "DIR")]
    man: Option<PathBuf>,
}

/// What the page begins with.
const BEGINNING: &str = "\
# Every command and flag

Made from the program by `cargo xtask reference`. `davit COMMAND --help` says the same; [configuration.md](configuration.md) says
how flags of commands that go on are given by a file or by variables.
";

/// A command with what is to be said about it.
struct Described {
    /// `davit token create`
    name: String,
    about: String,
    usage: String,
    aliases: Vec<String>,
    arguments: Vec<DescribedArgument>,
}

struct DescribedArgument {
    /// `-n, --namespace <NAMESPACE>`
    form: String,
    help: String,
}

/// Runs `davit reference`.
pub(crate) fn run(args: &ReferenceArgs, command: Command) -> Result<()> {
    let all = described(command);
    let Some(dir) = &args.man else {
        print!("{}", page(&all));
        return Ok(());
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for one in &all {
        let file = dir.join(format!("{}.1", one.name.replace(' ', "-")));
        std::fs::write(&file, man::text(one))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// All commands that are not hidden, each before those below it.
fn described(mut command: Command) -> Vec<Described> {
    command.build();
    let mut all = Vec::new();
    add(&mut all, "", &command);
    all
}

fn add(all: &mut Vec<Described>, above: &str, command: &Command) {
    let name = format!("{above} {}", command.get_name());
    let name = name.trim_start();
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !is_everywhere(arg, above);
    all.push(Described {
        name: name.to_owned(),
        about: command
            .get_long_about()
            .or(command.get_about())
            .map_or_else(String::new, ToString::to_string),
        usage: usage(command),
        aliases: command.get_visible_aliases().map(str::to_owned).collect(),
        arguments: command
            .get_arguments()
            .filter(is_shown)
            .map(argument)
            .collect(),
    });
    let below = command.get_subcommands();
    let mut below: Vec<&Command> = below
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
        .collect();
    below.sort_by_key(|subcommand| subcommand.get_name());
    for subcommand in below {
        add(all, name, subcommand);
    }
}

/// The flags of all commands are said once.
fn is_everywhere(arg: &Arg, above: &str) -> bool {
    let id = arg.get_id().as_str();
    id == "help" || (!above.is_empty() && (id == "verbose" || id == "color"))
}

fn usage(command: &Command) -> String {
    let text = command.clone().render_usage().to_string();
    let text = text.trim_start_matches("Usage: ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

fn argument(arg: &Arg) -> DescribedArgument {
    let help = arg.get_long_help().or(arg.get_help());
    let mut help = help.map_or_else(String::new, ToString::to_string);
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .collect();
    let takes = arg.get_action().takes_values();
    if takes && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let _infallible = write!(help, " [default: {}]", defaults.join(","));
    }
    let values = arg.get_possible_values();
    let shown: Vec<&str> = values
        .iter()
        .filter(|v| !v.is_hide_set())
        .map(PossibleValue::get_name)
        .collect();
    if takes && !shown.is_empty() && !arg.is_hide_possible_values_set() {
        let _infallible = write!(help, " [{}]", shown.join(", "));
    }
    DescribedArgument {
        form: form(arg),
        help,
    }
}

/// `-f, --file <FILE>...`
fn form(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut words: Vec<String> = [short, long].into_iter().flatten().collect();
    let is_flag = !words.is_empty();
    let mut out = words.join(", ");
    words.clear();
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        let names: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
        let names = match names.is_empty() {
            true => format!("<{}>", arg.get_id().as_str().to_uppercase()),
            false => names.join(" "),
        };
        if is_flag {
            out.push(' ');
        }
        out.push_str(&names);
    }
    let is_many = matches!(arg.get_action(), ArgAction::Append | ArgAction::Count);
    if is_many && !out.ends_with("...>") {
        out.push_str("...");
    }
    out
}

fn page(all: &[Described]) -> String {
    let mut out = String::from(BEGINNING);
    for one in all {
        // The page's title is the first heading: commands are below it.
        let _infallible = write!(out, "\n## {}\n\n{}\n", one.name, sentence(&one.about));
        if !one.aliases.is_empty() {
            let _infallible = writeln!(out, "\nAlso `{}`.", one.aliases.join("`, `"));
        }
        let _infallible = writeln!(out, "\n```text\n{}\n```", one.usage);
        if one.arguments.is_empty() {
            continue;
        }
        out.push_str("\n| | |\n|---|---|\n");
        for argument in &one.arguments {
            let _infallible = writeln!(out, "| `{}` | {} |", argument.form, cell(&argument.help));
        }
    }
    out
}

/// A text in a table.
fn cell(text: &str) -> String {
    let mut out = String::new();
    let mut is_code = false;
    for c in text.chars() {
        match c {
            '`' => is_code = !is_code,
            '|' => out.push('\\'),
            '<' | '*' | '[' if !is_code => out.push('\\'),
            _ => {}
        }
        out.push(if c == '\n' { ' ' } else { c });
    }
    out
}

fn sentence(text: &str) -> String {
    let text = cell(text);
    match text.ends_with(['.', '!', '?']) || text.is_empty() {
        true => text,
        false => text + ".",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    #[test]
    fn every_command_that_is_not_hidden_is_told_once() {
        let all = described(Args::full_command());
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        for name in [
            "davit",
            "davit up",
            "davit token create",
            "davit lab check device-plugin",
        ] {
            assert_eq!(
                names.iter().filter(|n| **n == name).count(),
                1,
                "{name}: {names:?}"
            );
        }
        assert!(
            !names
                .iter()
                .any(|name| name.contains("example-device") || name.contains("help"))
        );
        let up = all.iter().find(|one| one.name == "davit up").unwrap();
        let forms: Vec<&str> = up
            .arguments
            .iter()
            .map(|argument| argument.form.as_str())
            .collect();
        assert!(forms.contains(&"--data-dir <DIR>"), "{forms:?}");
        assert!(
            all.iter().all(|one| !one.about.is_empty()),
            "a command without a word"
        );
    }

    #[test]
    fn cells_have_no_markup_of_their_own() {
        assert_eq!(cell("a|b <c> `d<e>`\n[f]"), "a\\|b \\<c> `d<e>` \\[f]");
    }
}
