//! What stands in the file.

use super::{COMMANDS, checked, configurable, is_not_for_files, words_of_text};
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Longer files are not read.
const MAX_FILE: u64 = 1 << 20;

/// By command: the IDs of the flags that are set, with the words that set them.
pub(super) type Sections = BTreeMap<String, Vec<(String, Vec<OsString>)>>;

pub(super) fn read(path: &Path) -> Result<String, Vec<String>> {
    let bytes = davit_beneath::read_given(path, MAX_FILE)
        .map_err(|error| vec![format!("cannot be read: {error}")])?;
    String::from_utf8(bytes).map_err(|_| vec!["is not UTF-8".to_owned()])
}

/// Reads the sections of all commands, or finds everything that is wrong with them.
pub(super) fn sections(command: &Command, text: &str) -> Result<Sections, Vec<String>> {
    let document: Map<String, Value> =
        serde_saphyr::from_str(text).map_err(|error| vec![error.to_string()])?;
    let mut faults = Vec::new();
    let mut sections = Sections::new();
    for (field, wanted) in [("apiVersion", "davit.dev/v1"), ("kind", "Configuration")] {
        if document.get(field).and_then(Value::as_str) != Some(wanted) {
            faults.push(format!("{field}: must be {wanted}"));
        }
    }
    for (name, section) in &document {
        if ["apiVersion", "kind"].contains(&name.as_str()) {
            continue;
        }
        let Some(subcommand) = configurable(command, name) else {
            let commands = COMMANDS.join(", ");
            faults.push(format!("{name}: unknown field, expected one of {commands}"));
            continue;
        };
        let Some(fields) = section.as_object() else {
            faults.push(format!(
                "{name}: must be an object, its fields the flags of davit {name}"
            ));
            continue;
        };
        let mut set = Vec::new();
        let mut by_id = BTreeMap::new();
        for (field, value) in fields {
            match flag(command, subcommand, field, value) {
                Ok((id, words)) => match by_id.insert(id.clone(), field) {
                    None => set.push((id, words)),
                    Some(other) => faults.push(format!("{name}.{field}: is the same as {other}")),
                },
                Err(fault) => faults.push(format!("{name}.{field}: {fault}")),
            }
        }
        sections.insert(name.clone(), set);
    }
    if faults.is_empty() {
        Ok(sections)
    } else {
        Err(faults)
    }
}

/// The flag of a field and the words that set it.
fn flag(
    command: &Command,
    subcommand: &Command,
    field: &str,
    value: &Value,
) -> Result<(String, Vec<OsString>), String> {
    let Some(arg) = subcommand
        .get_arguments()
        .find(|arg| fields(arg).any(|f| f == field))
    else {
        return Err(unknown(subcommand, field));
    };
    let words = checked(command, subcommand.get_name(), words(arg, value)?)?;
    Ok((arg.get_id().to_string(), words))
}

/// The names that a flag has in the file.
fn fields(arg: &Arg) -> impl Iterator<Item = String> {
    let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
    longs
        .into_iter()
        .filter(|long| !is_not_for_files(long))
        .map(camel_case)
}

/// The field of a flag.
pub(super) fn camel_case(long: &str) -> String {
    let mut parts = long.split('-');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut name, part| {
        let mut letters = part.chars();
        name.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(letters.as_str());
        name
    })
}

fn unknown(subcommand: &Command, field: &str) -> String {
    let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    let near = subcommand
        .get_arguments()
        .flat_map(fields)
        .find(|known| plain(known) == plain(field));
    match near {
        Some(known) => format!("unknown field, did you mean {known}?"),
        None => format!(
            "unknown field, davit {} has no such flag",
            subcommand.get_name()
        ),
    }
}

fn words(arg: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(scalar).collect::<Result<_, _>>()?;
            words_of_list(arg, &values)
        }
        Value::Object(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| Ok(format!("{key}={}", scalar(value)?)));
            let pairs: Vec<String> = pairs.collect::<Result<_, String>>()?;
            words_of_text(arg, OsStr::new(&pairs.join(",")))
        }
        other => words_of_text(arg, OsStr::new(&scalar(other)?)),
    }
}

fn words_of_list(arg: &Arg, values: &[String]) -> Result<Vec<OsString>, String> {
    let many = arg.get_value_delimiter().is_some() || matches!(arg.get_action(), ArgAction::Append);
    if !many {
        return Err("must be one value, not a list".to_owned());
    }
    if let Some(delimiter) = arg.get_value_delimiter()
        && let Some(value) = values.iter().find(|value| value.contains(delimiter))
    {
        return Err(format!("{value:?} must be values of their own"));
    }
    let words = values
        .iter()
        .map(|value| words_of_text(arg, OsStr::new(value)));
    Ok(words.collect::<Result<Vec<_>, _>>()?.concat())
}

fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        Value::Null => Err("has no value".to_owned()),
        Value::Array(_) | Value::Object(_) => Err("is nested too deeply".to_owned()),
    }
}
