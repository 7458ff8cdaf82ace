//! Manual pages.

use super::Described;
use std::fmt::Write as _;

/// The page of a command, for man(1).
pub(super) fn text(one: &Described) -> String {
    let title = one.name.replace(' ', "-");
    let mut out = format!(
        ".TH {} 1 \"\" \"davit {}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
        title.to_uppercase(),
        env!("CARGO_PKG_VERSION"),
        title,
        escaped(one.about.lines().next().unwrap_or_default()),
    );
    for line in one.usage.lines() {
        let _infallible = writeln!(out, ".B {}\n.br", escaped(line));
    }
    let _infallible = writeln!(out, ".SH DESCRIPTION\n{}", escaped(&one.about));
    if !one.arguments.is_empty() {
        out.push_str(".SH OPTIONS\n");
    }
    for argument in &one.arguments {
        let (form, help) = (escaped(&argument.form), escaped(&argument.help));
        let _infallible = writeln!(out, ".TP\n.B {form}\n{help}");
    }
    out.push_str(".SH SEE ALSO\n.BR davit (1),\n`davit COMMAND \\-\\-help`\n");
    out
}

/// What roff would take for its own.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text
        .lines()
        .map(|line| match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_of_a_text_is_a_request_of_roff() {
        assert_eq!(
            super::escaped(".so /etc/x\na-b\\c"),
            "\\&.so /etc/x\na\\-b\\ec"
        );
    }
}
