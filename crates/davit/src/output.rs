//! How commands print: formats and words.

use clap::ValueEnum;

/// Instead of text in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// More columns
    Wide,
    /// One JSON document (with --watch: one a line)
    Json,
    /// YAML
    Yaml,
}

/// `1 container`, `2 containers`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
