//! The formats in which commands print.

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
