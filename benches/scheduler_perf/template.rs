//! The templates of objects: YAML with the few actions of Go's templates that the workloads use.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// A template that is read once for many objects.
pub(crate) struct Template {
    text: String,
    /// The object, where it is the same each time.
    fixed: Option<Value>,
}

impl Template {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let fixed = match text.contains("{{") {
            true => None,
            false => Some(parse(&text, 0, 1).with_context(|| path.display().to_string())?),
        };
        Ok(Self { text, fixed })
    }

    /// One that is no file.
    pub(crate) fn of(object: Value) -> Self {
        Self {
            text: String::new(),
            fixed: Some(object),
        }
    }

    pub(crate) fn object(&self, index: usize, count: usize) -> Result<Value> {
        match &self.fixed {
            Some(object) => Ok(object.clone()),
            None => parse(&self.text, index, count),
        }
    }
}

fn parse(text: &str, index: usize, count: usize) -> Result<Value> {
    let filled = fill(text, index, count)?;
    Ok(serde_saphyr::from_str(&filled)?)
}

fn fill(text: &str, index: usize, count: usize) -> Result<String> {
    let mut parts = text.split("{{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((action, rest)) = part.split_once("}}") else {
            bail!("an action without an end");
        };
        out += &value(action, index, count)?.to_string();
        out += rest;
    }
    Ok(out)
}

fn value(action: &str, index: usize, count: usize) -> Result<usize> {
    let operand = |word: &str| -> Result<usize> {
        Ok(match word {
            ".Index" => index,
            ".Count" => count,
            number => number.parse().with_context(|| format!("{word:?}"))?,
        })
    };
    let words: Vec<&str> = action.split_whitespace().collect();
    match words.as_slice() {
        [one] => operand(one),
        [function, a, b] => {
            let (a, b) = (operand(a)?, operand(b)?);
            let value = match *function {
                "AddInt" => a.checked_add(b),
                "SubtractInt" => a.checked_sub(b),
                "MultiplyInt" => a.checked_mul(b),
                "DivideInt" => a.checked_div(b),
                "Mod" => a.checked_rem(b),
                other => bail!("function {other} is not known"),
            };
            value.with_context(|| format!("{action:?} has no value"))
        }
        _ => bail!("action {action:?} is not understood"),
    }
}
