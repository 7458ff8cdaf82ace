//! What evaluations take of the machine, beside what they cost.
//!
//! Costs are counted as the reference implementation counts them, whose values share what they are joined of: there a list
//! that is joined with itself costs one and takes nothing. Here it takes twice the room, and comparing, showing or
//! flattening what holds itself many times takes as long as if it did, there as here.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::EvalError;
use crate::value::Value;

/// Bytes of a value in a list.
const VALUE: u64 = size_of::<Value>() as u64;
/// Bytes that are made as fast as one value is looked at.
const LOOK: u64 = 8;

/// What is left: bytes that may be made or read.
#[derive(Debug)]
pub struct EvaluationEffort(AtomicU64);

impl Default for EvaluationEffort {
    fn default() -> Self {
        Self::within(u64::MAX)
    }
}

impl EvaluationEffort {
    /// What one evaluation may take. A list of everything that is in the largest object is a tenth of it.
    pub const EVALUATION: u64 = 128 << 20;

    /// That of one evaluation, of so much for all.
    pub fn within(all: u64) -> Self {
        Self(AtomicU64::new(all.min(Self::EVALUATION)))
    }

    /// Gives back what was taken: what it was taken for is gone.
    pub fn renew(&self) {
        self.0.store(Self::EVALUATION, Ordering::Relaxed);
    }

    /// What is not taken yet.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes a part of it; when there is none nothing is done any more.
    ///
    /// # Errors
    /// [`EvalError::CostLimitExceeded`]: there is not so much.
    pub(crate) fn take(&self, part: u64) -> Result<(), EvalError> {
        // One evaluation is of one thread.
        let left = self.left().checked_sub(part);
        self.0.store(left.unwrap_or(0), Ordering::Relaxed);
        left.map(drop).ok_or(EvalError::CostLimitExceeded)
    }

    /// Values are looked at.
    pub(crate) fn look(&self, values: usize) -> Result<(), EvalError> {
        self.take((values as u64).saturating_mul(LOOK))
    }

    /// Whether two texts are equal is found out: far faster than they are read, and at once where their lengths differ.
    pub(crate) fn compare(&self, a: &[u8], b: &[u8]) -> Result<(), EvalError> {
        const AT_ONCE: u64 = 64;
        if a.len() != b.len() {
            return Ok(());
        }
        self.take(a.len() as u64 / AT_ONCE)
    }

    /// Text is looked at, or made.
    pub(crate) fn text(&self, bytes: usize) -> Result<(), EvalError> {
        self.take(bytes as u64)
    }

    /// A list of so many values is made, or that of a map's entries.
    pub(crate) fn values(&self, count: usize) -> Result<(), EvalError> {
        self.take((count as u64).saturating_mul(VALUE))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, EvalError, Type, Value};

    fn env() -> Env {
        Env::kubernetes().variable("d", Type::Dyn).build()
    }

    fn run(expression: &str) -> Result<Value, EvalError> {
        let program = env().compile(expression);
        let program = program.unwrap_or_else(|why| panic!("{}", why[0].message));
        program.run(&[("d", Value::string("x"))], 1_000_000).0
    }

    /// A value in which the first one is as often as two to the number of steps.
    fn doubled(first: &str, step: &str, steps: usize) -> String {
        format!("[{first}]{}[0]", step.repeat(steps))
    }

    #[test]
    fn what_costs_little_takes_no_more_than_there_is() {
        let list = doubled("[1, 1]", ".map(x, x + x)", 40);
        let tree = doubled("1", ".map(x, [x, x])", 40);
        let text = "lists.range(20000).map(i, 'aaaaaaaaaa').join()";
        let quotes = doubled("'\"'", ".map(x, strings.quote(x))", 60);
        for expression in [
            format!("size({list}) > 0"),
            format!("{tree} == {tree}"),
            format!("{tree} != {tree}"),
            format!("{tree} in [{tree}]"),
            format!("[{tree}].indexOf({tree}) == 0"),
            format!("sets.contains([{tree}], [{tree}])"),
            format!("sets.intersects([{tree}], [{tree}])"),
            format!("sets.equivalent([{tree}], [{tree}])"),
            format!("[{tree}, {tree}].distinct().size() > 0"),
            format!("'%s'.format([{tree}]).size() > 0"),
            format!("dyn([{tree}]).flatten(60).size() > 0"),
            format!("dyn([{tree}]).isSorted()"),
            format!("{quotes}.size() > 0"),
            format!("cel.bind(t, {text}, t.replace('a', t).size() > 0)"),
            format!("cel.bind(t, {text}, t.replace('', t).size() > 0)"),
            format!("cel.bind(t, {text}, lists.range(20000).map(i, t).join(t).size() > 0)"),
            format!("cel.bind(t, {text}, lists.range(90000).exists(i, t.charAt(199999) == 'b'))"),
            "lists.range(90000).exists(i, d.matches('(a{1000}){5}' + string(i)))".to_owned(),
            "cel.bind(l, lists.range(500000), lists.range(90000).all(i, l.exists(x, true) && l + [i] != []))"
                .to_owned(),
            "dyn([dyn([0]), dyn([1])] + lists.range(90000).map(i, dyn([i]))).sum() == dyn(1)".to_owned(),
        ] {
            let why = &expression[expression.len().saturating_sub(60)..];
            assert_eq!(run(&expression), Err(EvalError::CostLimitExceeded), "{why}");
        }
    }

    #[test]
    fn what_people_write_is_evaluated() {
        for expression in [
            "lists.range(50000).map(x, x + 1).size() == 50000",
            "lists.range(20000).map(x, string(x)).join(',').split(',').size() == 20000",
            "cel.bind(l, lists.range(400), l.all(x, l.exists_one(y, x == y)))",
            "lists.range(300).map(x, [x]).flatten() == lists.range(300)",
            "lists.range(1000).all(i, d.matches('^' + d + '$'))",
            "lists.range(500).all(i, string(i).matches('^' + string(i) + '$'))",
            "cel.bind(l, lists.range(100000), lists.range(20000).all(i, l.exists(x, true)))",
            "'äöü'.charAt(1) == 'ö' && 'äöü'.charAt(3) == ''",
            "'äöüö'.indexOf('ö') == 1 && 'äöüö'.indexOf('ö', 2) == 3 && 'äöü'.indexOf('x') == -1",
            "'äöüö'.lastIndexOf('ö') == 3 && 'äöüö'.lastIndexOf('ö', 2) == 1",
            "'abab'.lastIndexOf('ab', 2) == 2 && 'abab'.lastIndexOf('', 2) == 2",
            "'abc'.indexOf('', 3) == 3 && 'abc'.lastIndexOf('') == 3",
            "['a', 'b', 'a'].lastIndexOf('a') == 2 && ['a', 'b', 'a'].indexOf('c') == -1",
        ] {
            assert_eq!(run(expression), Ok(Value::Bool(true)), "{expression}");
        }
        // Most of such texts differ in their first letters, or their lengths.
        let long = "x".repeat(1000);
        let texts = format!("lists.range(400).map(i, string(i + 1000) + '{long}')");
        let among = format!("cel.bind(l, {texts}, l.all(x, x in l))");
        assert_eq!(run(&among), Ok(Value::Bool(true)));
    }

    #[test]
    fn what_is_written_is_compiled_in_bounds() {
        let faults = |expression: &str| {
            let found = env().compile(expression).unwrap_err();
            found
                .into_iter()
                .map(|fault| fault.message)
                .collect::<Vec<_>>()
        };
        let types = (1..40).rev().fold("true".to_owned(), |inner, n| {
            let before = n - 1;
            format!("cel.bind(v{n}, {{v{before}: v{before}}}, {inner})")
        });
        let types = format!("cel.bind(v0, {{1: 1}}, {types})");
        assert_eq!(faults(&types)[0], "expression is too complex");
        // What lists without elements are lists of is found out later.
        let names: Vec<String> = (0..30).map(|n| format!("a{n}")).collect();
        let later = (1..30).map(|n| {
            let before = n - 1;
            format!("size(a{before} + [{{a{n}[0]: a{n}[0]}}]) > 0")
        });
        let later = later.collect::<Vec<_>>().join(" || ");
        let later = names
            .iter()
            .fold(later, |inner, name| format!("[[]].exists({name}, {inner})"));
        assert_eq!(faults(&later)[0], "expression is too complex");

        assert_eq!(faults(&format!("[{}]", "a,".repeat(500))).len(), 100);
        assert_eq!(faults(&format!("[{}]", "a,".repeat(1 << 16))).len(), 1);
        let patterns = (0..100).map(|n| format!("'a'.matches('.{{{}}}')", 900 + n));
        let patterns = patterns.collect::<Vec<_>>().join(" || ");
        let found = faults(&patterns);
        assert!(
            found.iter().all(|why| why == "invalid matches argument"),
            "{found:?}"
        );
        let patterns = patterns.replace("'a'.matches(", "matches('a', ");
        let found = faults(&patterns);
        assert!(found[0].contains("too large together"), "{found:?}");
    }
}
