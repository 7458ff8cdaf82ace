//! Go's regular expressions in terms of ours.

use regex::{Regex, RegexBuilder};

/// Compiles an expression in Go's syntax. The two differ little: Go knows `\C` and `\Q...\E`,
/// and accepts a brace that opens no repetition as itself.
///
/// # Errors
/// The reason, in one line.
pub(crate) fn regex(pattern: &str) -> Result<Regex, String> {
    let pattern = translated(pattern);
    RegexBuilder::new(&pattern)
        .size_limit(16 << 20)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let last = text.lines().last().unwrap_or_default();
                last.trim_start_matches("error: ").to_owned()
            }
            other => other.to_string(),
        })
}

fn translated(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix(r"\Q") {
            let (text, after) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            out.push_str(&regex::escape(text));
            rest = after;
        } else if c == '\\' {
            let mut pair = rest.chars();
            out.extend(pair.next());
            match pair.next() {
                // an escaped slash is a slash in Go
                Some('/') => {
                    out.pop();
                    out.push('/');
                }
                Some(class @ ('p' | 'P' | 'x')) if pair.as_str().starts_with('{') => {
                    out.push(class);
                    // the name of a class stands in braces of its own
                    let end = pair.as_str().find('}').map_or(0, |end| end + 1);
                    out.push_str(&pair.as_str()[..end]);
                    rest = &pair.as_str()[end..];
                    continue;
                }
                other => out.extend(other),
            }
            rest = pair.as_str();
        } else if c == '{' && !opens_repetition(rest) {
            out.push_str(r"\{");
            rest = &rest[1..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn opens_repetition(text: &str) -> bool {
    let Some((inside, _)) = text[1..].split_once('}') else {
        return false;
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        Some((low, high)) => !low.is_empty() && digits(low) && digits(high),
        None => !inside.is_empty() && digits(inside),
    }
}
