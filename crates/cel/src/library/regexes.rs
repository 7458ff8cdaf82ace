//! Regular expressions, in the syntax of RE2.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};

use super::strings::text;
use super::{Context, Native, failed};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("matches", _) => |context, args| {
            let regex = get(context, text(args, 1)?)?;
            Ok(regex.is_match(text(args, 0)?).into())
        },
        ("find", true) => |context, args| {
            let regex = get(context, text(args, 1)?)?;
            Ok(regex.find(text(args, 0)?).map_or("", |m| m.as_str()).into())
        },
        ("findAll", true) => |context, args| {
            let regex = get(context, text(args, 1)?)?;
            let most = match args.get(2) {
                None => usize::MAX,
                Some(Value::Int(n)) => usize::try_from(*n).unwrap_or(usize::MAX),
                Some(_) => return Err(EvalError::no_overload()),
            };
            let found = regex.find_iter(text(args, 0)?).take(most);
            Ok(Value::list(found.map(|m| m.as_str().into()).collect()))
        },
        ("jsonpatch.escapeKey", false) => |_, args| {
            let escaped = text(args, 0)?.replace('~', "~0").replace('/', "~1");
            Ok(escaped.into())
        },
        ("includes", true) => |_, args| match &args[0] {
            Value::List(list) if list.items.len() > 48 => {
                failed("includes: list is longer than 48 elements")
            }
            Value::List(list) => Ok(list.items.iter().any(|item| item.equals(&args[1])).into()),
            scalar => Ok(scalar.equals(&args[1]).into()),
        },
        _ => return None,
    })
}

fn get<'a>(context: &'a Context<'_>, pattern: &str) -> Result<Cow<'a, Regex>, EvalError> {
    match context.regexes.get(pattern) {
        Some(known) => Ok(Cow::Borrowed(known)),
        None => compile_within(pattern, COMPUTED)
            .map(Cow::Owned)
            .map_err(EvalError::new),
    }
}

/// The size of a compiled pattern that an expression has as a literal.
const LITERAL: usize = 4 << 20;
/// That of one that is computed, from an object perhaps: it is compiled each time it is met, and its length, by which it
/// costs, does not tell what repetitions in it make of it.
const COMPUTED: usize = 512 << 10;

/// Compiles a pattern of RE2.
pub(crate) fn compile(pattern: &str) -> Result<Regex, String> {
    compile_within(pattern, LITERAL)
}

fn compile_within(pattern: &str, size: usize) -> Result<Regex, String> {
    RegexBuilder::new(&translate(pattern))
        .size_limit(size)
        .build()
        .map_err(|error| {
            let why = match error {
                regex::Error::Syntax(text) => {
                    let last = text.lines().last().unwrap_or_default();
                    last.trim_start_matches("error: ").to_owned()
                }
                other => other.to_string(),
            };
            format!("error parsing regexp: {why}: `{pattern}`")
        })
}

/// RE2 and the regex library differ in a few forms: classes of letters are ASCII in RE2, brackets
/// and `&`, `~` in classes and lone braces are literal, and `\Q…\E` quotes.
fn translate(pattern: &str) -> String {
    let chars: Vec<char> = pattern.chars().collect();
    let mut result = String::with_capacity(pattern.len() + 8);
    let mut n = 0;
    let mut class: Option<usize> = None;
    while n < chars.len() {
        let c = chars[n];
        let next = chars.get(n + 1).copied();
        match (c, next) {
            ('\\', Some(escaped)) => {
                n += 2;
                match escaped {
                    'd' => result.push_str("[0-9]"),
                    'D' => result.push_str("[^0-9]"),
                    'w' => result.push_str("[0-9A-Za-z_]"),
                    'W' => result.push_str("[^0-9A-Za-z_]"),
                    's' => result.push_str("[\\t\\n\\f\\r ]"),
                    'S' => result.push_str("[^\\t\\n\\f\\r ]"),
                    'b' if class.is_none() => result.push_str("(?-u:\\b)"),
                    'B' if class.is_none() => result.push_str("(?-u:\\B)"),
                    'Q' => {
                        let rest = &chars[n..];
                        let end = rest.windows(2).position(|pair| pair == ['\\', 'E']);
                        let quoted = &rest[..end.unwrap_or(rest.len())];
                        result.push_str(&regex::escape(&quoted.iter().collect::<String>()));
                        n += quoted.len() + 2;
                    }
                    other => {
                        result.push('\\');
                        result.push(other);
                    }
                }
                continue;
            }
            ('[', _) if class.is_none() => {
                class = Some(n);
                result.push('[');
                if next == Some('^') {
                    result.push('^');
                    n += 1;
                }
                if chars.get(n + 1) == Some(&']') {
                    // a bracket in the first place is literal
                    result.push_str("\\]");
                    n += 1;
                }
            }
            ('[', Some(':')) => {
                let rest: String = chars[n..].iter().collect();
                if let Some(end) = rest.find(":]") {
                    result.push_str(&rest[..end + 2]);
                    n += rest[..end].chars().count() + 2;
                    continue;
                }
                result.push_str("\\[");
            }
            ('[' | '&' | '~', _) if class.is_some() => {
                result.push('\\');
                result.push(c);
            }
            (']', _) if class.is_some() => {
                class = None;
                result.push(']');
            }
            ('{', _) if class.is_none() && !is_repetition(&chars[n..]) => result.push_str("\\{"),
            _ => result.push(c),
        }
        n += 1;
    }
    result
}

/// `{2}`, `{2,}` or `{2,3}`.
fn is_repetition(chars: &[char]) -> bool {
    let text: String = chars.iter().skip(1).take_while(|c| **c != '}').collect();
    let closed = chars.contains(&'}');
    let (low, high) = text.split_once(',').unwrap_or((&text, ""));
    let digits = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    closed && !low.is_empty() && digits(low) && digits(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_re2() {
        let matches = |pattern: &str, text: &str| compile(pattern).unwrap().is_match(text);
        assert!(matches(r"^\d+$", "123"));
        assert!(!matches(r"^\d+$", "\u{0663}"));
        assert!(matches(r"^[[:alpha:]_[]+$", "a_["));
        assert!(matches(r"^a{b$", "a{b"));
        assert!(matches(r"^a{2}$", "aa"));
        assert!(matches(r"^\Qa.b\E$", "a.b"));
        assert!(!matches(r"^\Qa.b\E$", "axb"));
        assert!(matches(r"^[]a]+$", "]a"));
        assert!(matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "abc-1"));
        assert!(compile("(").is_err());
    }

    #[test]
    fn patterns_that_unfold_are_refused_where_they_are_computed() {
        let bomb = "((a{100}){100}){100}";
        assert!(compile(bomb).is_err());
        assert!(compile_within("(a{1000}){100}", COMPUTED).is_err());
        assert!(compile_within("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", COMPUTED).is_ok());
    }
}
