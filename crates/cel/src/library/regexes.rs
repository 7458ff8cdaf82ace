//! Regular expressions, in the syntax of RE2.

use std::cell::Cell;
use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

use super::strings::{PART, text};
use super::{Context, Native, failed};
use crate::effort::EvaluationEffort;
use crate::error::{EvalError, shortened};
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("matches", _) => |context, args| {
            let text = text(args, 0)?;
            with(context, pattern(args)?, |regex| {
                Ok(regex.is_match(text).into())
            })
        },
        ("find", true) => |context, args| {
            let text = text(args, 0)?;
            with(context, pattern(args)?, |regex| {
                Ok(regex.find(text).map_or("", |m| m.as_str()).into())
            })
        },
        ("findAll", true) => |context, args| {
            let text = text(args, 0)?;
            let most = match args.get(2) {
                None => usize::MAX,
                Some(Value::Int(n)) => usize::try_from(*n).unwrap_or(usize::MAX),
                Some(_) => return Err(EvalError::no_overload()),
            };
            with(context, pattern(args)?, |regex| {
                let mut found = Vec::new();
                for part in regex.find_iter(text).take(most) {
                    context.effort.values(PART)?;
                    found.push(part.as_str().into());
                }
                Ok(Value::list(found))
            })
        },
        ("jsonpatch.escapeKey", false) => |context, args| {
            context.effort.text(2 * text(args, 0)?.len())?;
            let escaped = text(args, 0)?.replace('~', "~0").replace('/', "~1");
            Ok(escaped.into())
        },
        ("includes", true) => |context, args| match &args[0] {
            Value::List(list) if list.items.len() > 48 => {
                failed("includes: list is longer than 48 elements")
            }
            list @ Value::List(_) => super::operators::contains(&args[1], list, context.effort),
            scalar => Ok(scalar.equals_within(&args[1], context.effort)?.into()),
        },
        _ => return None,
    })
}

fn pattern(args: &[Value]) -> Result<&str, EvalError> {
    text(args, 1)
}

/// Uses the pattern, compiled: one that stands in the expression, or that was met before, is not compiled again.
fn with<T>(
    context: &Context<'_>,
    pattern: &str,
    work: impl FnOnce(&Regex) -> Result<T, EvalError>,
) -> Result<T, EvalError> {
    if let Some(known) = context.regexes.get(pattern) {
        return work(known);
    }
    let mut computed = context.computed.borrow_mut();
    if !computed.contains_key(pattern) {
        let regex = compute(pattern, context.effort)?;
        if computed.len() == KEPT {
            computed.clear();
        }
        computed.insert(pattern.to_owned(), regex);
    }
    computed
        .get(pattern)
        .map_or_else(|| Err(EvalError::no_overload()), work)
}

/// Compiles a pattern that was computed.
fn compute(pattern: &str, effort: &EvaluationEffort) -> Result<Regex, EvalError> {
    // What is made of a letter while a pattern is read.
    const LETTER: usize = 16;
    effort.text(SMALL + LETTER * pattern.len())?;
    let regex = match compile_within(pattern, SMALL) {
        Err(RegexFault::TooLarge) => {
            effort.text(COMPUTED)?;
            compile_within(pattern, COMPUTED)
        }
        found => found,
    };
    regex.map_err(|fault| EvalError::new(fault.to_string()))
}

/// Sizes of compiled patterns, bytes: what most have, what one may have that is computed, from an object perhaps (its length,
/// by which it costs, does not tell what repetitions make of it), and what one may have that stands in an expression.
const SMALL: usize = 32 << 10;
const COMPUTED: usize = 512 << 10;
const LITERAL: usize = 4 << 20;
/// Computed patterns that are kept while an expression is evaluated.
const KEPT: usize = 16;

/// Why a pattern is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum RegexFault {
    #[error("the regular expression is too large")]
    TooLarge,
    #[error("{0}")]
    Syntax(String),
}

/// Room for the patterns that stand in expressions: they are compiled when somebody writes one, and kept as long as it is.
#[derive(Debug)]
pub struct PatternRoom(Cell<u64>);

impl Default for PatternRoom {
    fn default() -> Self {
        Self::within(u64::MAX)
    }
}

impl PatternRoom {
    /// Bytes of all patterns of an expression.
    pub const EXPRESSION: u64 = 8 << 20;

    /// That of one expression, of so much for all.
    pub fn within(all: u64) -> Self {
        Self(Cell::new(all.min(Self::EXPRESSION)))
    }

    /// What is not taken yet.
    pub fn left(&self) -> u64 {
        self.0.get()
    }

    fn take(&self, bytes: usize) -> Result<(), String> {
        let left = self.left().checked_sub(bytes as u64);
        self.0.set(left.unwrap_or(0));
        let too_many = || "the regular expressions are too large together".to_owned();
        left.map(drop).ok_or_else(too_many)
    }
}

/// Room for the patterns of all expressions of an object, in bytes: one after the other takes of it.
#[derive(Debug)]
pub struct PatternBudget(pub u64);

impl PatternBudget {
    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// Compiles an expression in the room of one, as far as there is so much.
    pub fn compile<T>(&mut self, compile: impl FnOnce(&PatternRoom) -> T) -> T {
        let room = PatternRoom::within(self.0);
        let before = room.left();
        let compiled = compile(&room);
        self.0 -= before - room.left();
        compiled
    }
}

/// The patterns that stand in an expression.
pub(crate) struct LiteralPatterns<'a> {
    room: &'a PatternRoom,
    known: HashMap<String, Result<Regex, String>>,
}

impl<'a> LiteralPatterns<'a> {
    pub(crate) fn new(room: &'a PatternRoom) -> Self {
        Self {
            room,
            known: HashMap::new(),
        }
    }

    /// A pattern of RE2, compiled.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn get(&mut self, pattern: &str) -> Result<Regex, String> {
        if let Some(known) = self.known.get(pattern) {
            return known.clone();
        }
        let compiled = self.compile(pattern);
        self.known.insert(pattern.to_owned(), compiled.clone());
        compiled
    }

    /// It counts for the least size that it fits into; trying costs as much as having, and what is said with few letters of
    /// many (classes without regard to case) takes long, too.
    fn compile(&self, pattern: &str) -> Result<Regex, String> {
        const LETTER: usize = 1 << 10;
        self.room.take(LETTER * pattern.len())?;
        for size in [SMALL, COMPUTED] {
            self.room.take(size)?;
            match compile_within(pattern, size) {
                Err(RegexFault::TooLarge) => {}
                found => return found.map_err(|fault| fault.to_string()),
            }
        }
        self.room.take(LITERAL)?;
        compile_within(pattern, LITERAL).map_err(|fault| fault.to_string())
    }
}

fn compile_within(pattern: &str, size: usize) -> Result<Regex, RegexFault> {
    let shown = |why: &str| {
        let pattern = shortened(pattern);
        format!("error parsing regexp: {why}: `{pattern}`")
    };
    RegexBuilder::new(&translate(pattern))
        .size_limit(size)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let last = text.lines().last().unwrap_or_default();
                RegexFault::Syntax(shown(last.trim_start_matches("error: ")))
            }
            regex::Error::CompiledTooBig(_) => RegexFault::TooLarge,
            other => RegexFault::Syntax(shown(&other.to_string())),
        })
}

/// No name of a class, and no number of repetitions, is longer, and looking further costs as much for each that is open.
const LONGEST_NAME: usize = 64;

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
                let rest: String = chars[n..].iter().take(LONGEST_NAME).collect();
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
    let chars = &chars[..chars.len().min(LONGEST_NAME)];
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
        let matches =
            |pattern: &str, text: &str| compile_within(pattern, SMALL).unwrap().is_match(text);
        assert!(matches(r"^\d+$", "123"));
        assert!(!matches(r"^\d+$", "\u{0663}"));
        assert!(matches(r"^[[:alpha:]_[]+$", "a_["));
        assert!(matches(r"^a{b$", "a{b"));
        assert!(matches(r"^a{2}$", "aa"));
        assert!(matches(r"^\Qa.b\E$", "a.b"));
        assert!(!matches(r"^\Qa.b\E$", "axb"));
        assert!(matches(r"^[]a]+$", "]a"));
        assert!(matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "abc-1"));
        assert!(compile_within("(", SMALL).is_err());
    }

    #[test]
    fn patterns_that_unfold_are_refused_where_they_are_computed() {
        let bomb = "((a{100}){100}){100}";
        assert!(compile_within(bomb, LITERAL).is_err());
        assert!(compile_within("(a{1000}){100}", COMPUTED).is_err());
        assert!(compile_within("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", COMPUTED).is_ok());
    }
}
