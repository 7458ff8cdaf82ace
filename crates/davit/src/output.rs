//! How commands print: formats and words.

use clap::ValueEnum;
use std::borrow::Cow;

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

/// Text for a terminal: control characters of what others wrote are shown, and do nothing. Lines stay lines.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| c.is_control() && c != '\n';
    if !text.contains(acts) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

/// `1 container`, `2 containers`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_no_cursor() {
        assert_eq!(printable("a\nb é"), "a\nb é");
        assert_eq!(
            printable("\x1b]0;x\x07\r\u{9b}2J\x7f"),
            "\\u{1b}]0;x\\u{7}\\r\\u{9b}2J\\u{7f}"
        );
    }
}
