//! Go's regular expressions in terms of ours.

use regex::{Regex, RegexBuilder};

/// Bytes that a compiled expression may take.
pub(super) const LARGEST: usize = 16 << 20;

/// Why an expression is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    /// Compiled it would take more bytes than it may.
    #[error("expression too large")]
    TooLarge,
    /// Something else, in one line.
    #[error("{0}")]
    Syntax(String),
}

/// Compiles an expression in Go's syntax into at most so many bytes. The two differ little: Go knows `\C` and `\Q...\E`,
/// and accepts a brace that opens no repetition as itself.
///
/// # Errors
/// [`PatternError`].
pub(super) fn regex(pattern: &str, largest: usize) -> Result<Regex, PatternError> {
    let pattern = translated(pattern);
    RegexBuilder::new(&pattern)
        .size_limit(largest)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let last = text.lines().last().unwrap_or_default();
                PatternError::Syntax(last.trim_start_matches("error: ").to_owned())
            }
            regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
            other => PatternError::Syntax(other.to_string()),
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
                    let end = braced(pair.as_str()).map_or(0, |name| name.len() + 2);
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

/// What stands in the braces at the beginning of a text. No name or number in them is long, and looking further would cost
/// as much for each of many that are open.
fn braced(text: &str) -> Option<&str> {
    const LONGEST: usize = 64;
    let inside = text.strip_prefix('{')?;
    let end = inside.bytes().take(LONGEST).position(|b| b == b'}')?;
    inside.get(..end)
}

fn opens_repetition(text: &str) -> bool {
    let Some(inside) = braced(text) else {
        return false;
    };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match inside.split_once(',') {
        Some((low, high)) => !low.is_empty() && digits(low) && digits(high),
        None => !inside.is_empty() && digits(inside),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stay_what_they_are_in_go() {
        for (go, ours) in [
            ("a{2,3}", "a{2,3}"),
            ("a{x}", r"a\{x}"),
            (r"\p{Greek}{2}", r"\p{Greek}{2}"),
            (r"\x{10FFFF}", r"\x{10FFFF}"),
            ("a{", r"a\{"),
        ] {
            assert_eq!(translated(go), ours);
        }
    }

    #[test]
    fn many_open_braces_take_no_longer_than_others() {
        for open in ["{", r"\p{", r"\x{"] {
            let pattern = open.repeat(1 << 16);
            assert!(translated(&pattern).len() >= pattern.len());
        }
    }
}
