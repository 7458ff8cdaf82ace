//! How commands print: formats and words.

use crate::plain::printable;
use clap::ValueEnum;

/// Instead of text in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// More columns
    Wide,
    /// One JSON document
    Json,
    /// YAML
    Yaml,
}

/// Instead of text in columns, for what lists things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListOutput {
    /// More columns
    Wide,
    /// One JSON document (with --watch: one a line)
    Json,
    /// YAML
    Yaml,
    /// Only names, a line each
    Name,
}

/// Names a line each, for programs and people.
pub(crate) fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| printable(name) + "\n").collect()
}

/// `1 container`, `2 containers`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
