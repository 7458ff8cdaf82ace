//! The functions themselves, found by name when an expression is compiled.

pub(crate) mod authorizer;
mod conversions;
pub(crate) mod format;
pub(crate) mod formatting;
mod lists;
mod net;
pub(crate) mod operators;
mod optional;
mod quantity;
pub(crate) mod regexes;
mod semver;
mod sets;
mod strings;
pub(crate) mod time;
pub(crate) mod urls;

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;

use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::value::Value;

/// What natives may look at besides their arguments.
pub(crate) struct Context<'a> {
    pub(crate) regexes: &'a HashMap<String, Regex>,
    /// Those that were computed on the way.
    pub(crate) computed: RefCell<HashMap<String, Regex>>,
    pub(crate) effort: &'a EvaluationEffort,
}

impl<'a> Context<'a> {
    pub(crate) fn new(regexes: &'a HashMap<String, Regex>, effort: &'a EvaluationEffort) -> Self {
        Self {
            regexes,
            computed: RefCell::default(),
            effort,
        }
    }
}

pub(crate) type Native = fn(&Context<'_>, &[Value]) -> Result<Value, EvalError>;

/// The implementation of a function for all its overloads.
pub(crate) fn find(name: &str, member: bool) -> Option<Native> {
    operators::find(name, member)
        .or_else(|| conversions::find(name, member))
        .or_else(|| strings::find(name, member))
        .or_else(|| lists::find(name, member))
        .or_else(|| regexes::find(name, member))
        .or_else(|| urls::find(name, member))
        .or_else(|| sets::find(name, member))
        .or_else(|| optional::find(name, member))
        .or_else(|| quantity::find(name, member))
        .or_else(|| semver::find(name, member))
        .or_else(|| net::find(name, member))
        .or_else(|| format::find(name, member))
        .or_else(|| time::find(name, member))
        .or_else(|| authorizer::find(name, member))
}

fn no_overload() -> Result<Value, EvalError> {
    Err(EvalError::no_overload())
}

fn failed(message: impl Into<String>) -> Result<Value, EvalError> {
    Err(EvalError::new(message))
}
