//! Lists as sets.

use super::lists::items;
use super::{Native, no_overload};
use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::value::{Value, find as find_value};

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if member {
        return None;
    }
    Some(match name {
        "sets.contains" => |context, args| two(args, |a, b| holds(a, b, context.effort)),
        "sets.equivalent" => |context, args| {
            two(args, |a, b| {
                Ok(holds(a, b, context.effort)? && holds(b, a, context.effort)?)
            })
        },
        "sets.intersects" => |context, args| {
            two(args, |a, b| {
                let shared = find_value(b, |item| has(a, item, context.effort))?;
                Ok(shared.is_some())
            })
        },
        _ => return None,
    })
}

fn two(
    args: &[Value],
    test: impl FnOnce(&[Value], &[Value]) -> Result<bool, EvalError>,
) -> Result<Value, EvalError> {
    match args {
        [_, _] => Ok(Value::Bool(test(items(args)?, items(&args[1..])?)?)),
        _ => no_overload(),
    }
}

fn has(items: &[Value], wanted: &Value, effort: &EvaluationEffort) -> Result<bool, EvalError> {
    let found = find_value(items, |item| item.equals_within(wanted, effort))?;
    Ok(found.is_some())
}

/// Whether all of `b` is in `a`.
fn holds(a: &[Value], b: &[Value], effort: &EvaluationEffort) -> Result<bool, EvalError> {
    let missing = find_value(b, |item| Ok(!has(a, item, effort)?))?;
    Ok(missing.is_none())
}
