//! Where an expression finds its variables.

use std::collections::HashMap;

use crate::error::EvalError;
use crate::value::Value;

/// The variables of one evaluation.
pub trait Activation {
    /// The value of a variable; none when there is no such variable.
    fn variable(&self, name: &str) -> Option<Result<Value, EvalError>>;

    /// The value of `name.field` and what it cost to compute, for variables whose fields are
    /// computed when they are asked for, by an expression at that depth. None leads to [`Activation::variable`].
    fn member(
        &self,
        name: &str,
        field: &str,
        depth: usize,
    ) -> Option<Result<(Value, u64), EvalError>> {
        let _ = (name, field, depth);
        None
    }
}

impl Activation for () {
    fn variable(&self, _: &str) -> Option<Result<Value, EvalError>> {
        None
    }
}

impl<K: std::borrow::Borrow<str> + std::hash::Hash + Eq> Activation for HashMap<K, Value> {
    fn variable(&self, name: &str) -> Option<Result<Value, EvalError>> {
        self.get(name).cloned().map(Ok)
    }
}

impl Activation for [(&str, Value)] {
    fn variable(&self, name: &str) -> Option<Result<Value, EvalError>> {
        self.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| Ok(value.clone()))
    }
}

impl<const N: usize> Activation for [(&str, Value); N] {
    fn variable(&self, name: &str) -> Option<Result<Value, EvalError>> {
        self.as_slice().variable(name)
    }
}
