//! What can go wrong with an expression.

use std::fmt;

/// A fault of an expression found before it runs, with the place in the source.
///
/// Displayed the way the reference implementation does, with the line of the source and a mark:
///
/// ```text
/// ERROR: <input>:1:5: undeclared reference to 'x' (in container '')
///  | 1 + x
///  | ....^
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileError {
    /// From 1.
    pub line: usize,
    /// From 1, in code points.
    pub column: usize,
    /// What is wrong, without the place.
    pub message: String,
    snippet: String,
}

impl CompileError {
    pub(crate) fn new(source: &[char], at: usize, message: impl Into<String>) -> Self {
        let at = at.min(source.len());
        let start = source[..at]
            .iter()
            .rposition(|c| *c == '\n')
            .map_or(0, |n| n + 1);
        let line = 1 + source[..at].iter().filter(|c| **c == '\n').count();
        let end = source[start..]
            .iter()
            .position(|c| *c == '\n')
            .map_or(source.len(), |n| start + n);
        Self {
            line,
            column: at - start + 1,
            message: message.into(),
            snippet: source[start..end].iter().collect(),
        }
    }

    /// A fault of the expression as a whole, without a place.
    pub(crate) fn whole(message: impl Into<String>) -> Self {
        Self {
            line: 0,
            column: 0,
            message: message.into(),
            snippet: String::new(),
        }
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return f.write_str(&self.message);
        }
        write!(
            f,
            "ERROR: <input>:{}:{}: {}\n | {}\n | ",
            self.line,
            self.column,
            self.message,
            self.snippet.replace('\t', " "),
        )?;
        // the mark of a wide character is a wide one
        let mut marks = self.snippet.chars().map(|c| !c.is_ascii());
        for _ in 1..self.column {
            f.write_str(if marks.next() == Some(true) {
                "．"
            } else {
                "."
            })?;
        }
        f.write_str(if marks.next() == Some(true) {
            "＾"
        } else {
            "^"
        })
    }
}

impl std::error::Error for CompileError {}

/// Faults of one expression that are told: as many as by the reference implementation, fewer of one that is very long, as
/// each shows its line.
pub(crate) fn most_faults(source: &[char]) -> usize {
    const MOST: usize = 100;
    const LETTERS: usize = 1 << 18;
    (LETTERS / source.len().max(1)).clamp(1, MOST)
}

/// All faults of one expression, one a paragraph, in the order of the source.
pub fn join_errors(errors: &[CompileError]) -> String {
    let mut errors: Vec<&CompileError> = errors.iter().collect();
    errors.sort_by_key(|error| (error.line, error.column));
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

/// A fault while an expression runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The expression's own fault; the text is the one of the reference implementation.
    #[error("{0}")]
    Failed(String),
    /// The budget was used up.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimitExceeded,
}

impl EvalError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    pub(crate) fn no_overload() -> Self {
        Self::Failed("no such overload".to_owned())
    }

    pub(crate) fn no_such_key(key: &str) -> Self {
        Self::Failed(format!("no such key: {}", shortened(key)))
    }
}

/// The beginning of a text from an object that an error names: an expression may go on after as many errors as it likes.
pub(crate) fn shortened(text: &str) -> &str {
    const LONGEST: usize = 1024;
    &text[..text.floor_char_boundary(LONGEST)]
}
