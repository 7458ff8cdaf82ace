//! Functions of lists.

use std::cmp::Ordering;

use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        return None;
    }
    Some(match name {
        "isSorted" => |_, args| {
            let items = items(args)?;
            for pair in items.windows(2) {
                match pair[0].order(&pair[1]) {
                    Some(Ordering::Greater) => return Ok(Value::Bool(false)),
                    Some(_) => {}
                    None => return no_overload(),
                }
            }
            Ok(Value::Bool(true))
        },
        "sum" => |context, args| {
            let mut sum: Option<Value> = None;
            let add = super::find("_+_", false).ok_or_else(EvalError::no_overload)?;
            for item in items(args)? {
                sum = Some(match sum {
                    None => item.clone(),
                    Some(sum) => add(context, &[sum, item.clone()])?,
                });
            }
            Ok(sum.unwrap_or(Value::Int(0)))
        },
        "min" => |_, args| extreme(args, "min", Ordering::Less),
        "max" => |_, args| extreme(args, "max", Ordering::Greater),
        _ => return None,
    })
}

pub(super) fn items(args: &[Value]) -> Result<&[Value], EvalError> {
    match args.first() {
        Some(Value::List(list)) => Ok(&list.items),
        _ => Err(EvalError::no_overload()),
    }
}

fn extreme(args: &[Value], name: &str, wanted: Ordering) -> Result<Value, EvalError> {
    let mut best: Option<&Value> = None;
    for item in items(args)? {
        match best.map(|best| item.order(best)) {
            None => best = Some(item),
            Some(Some(order)) if order == wanted => best = Some(item),
            Some(Some(_)) => {}
            Some(None) => return no_overload(),
        }
    }
    best.cloned()
        .map_or_else(|| failed(format!("{name} called on empty list")), Ok)
}

/// `indexOf` and `lastIndexOf` of lists.
pub(super) fn position(items: &[Value], wanted: &Value, last: bool) -> Value {
    let found = if last {
        items.iter().rposition(|item| item.equals(wanted))
    } else {
        items.iter().position(|item| item.equals(wanted))
    };
    Value::Int(found.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX)))
}
