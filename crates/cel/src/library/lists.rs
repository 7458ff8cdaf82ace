//! Functions of lists.

use std::cmp::Ordering;

use super::{Native, failed, no_overload};
use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::value::{Value, find as find_value};

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        let range: Native = |context, args| {
            let end = number(args, 0)?;
            context.effort.values(usize::try_from(end).unwrap_or(0))?;
            Ok(Value::list((0..end).map(Value::Int).collect()))
        };
        return (name == "lists.range").then_some(range);
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
        "slice" => |_, args| slice(items(args)?, number(args, 1)?, number(args, 2)?),
        "flatten" => |context, args| {
            let depth = if args.len() == 1 { 1 } else { number(args, 1)? };
            let mut flat = Vec::new();
            flatten(items(args)?, depth, &mut flat, context.effort)?;
            Ok(Value::list(flat))
        },
        "sort" => |_, args| sort(items(args)?, items(args)?),
        "@sortByAssociatedKeys" => |_, args| sort(items(args)?, items(&args[1..])?),
        "reverse" => |_, args| Ok(Value::list(items(args)?.iter().rev().cloned().collect())),
        "distinct" => |context, args| {
            let mut distinct: Vec<Value> = Vec::new();
            for item in items(args)? {
                let known =
                    find_value(&distinct, |known| item.equals_within(known, context.effort));
                if known?.is_none() {
                    distinct.push(item.clone());
                }
            }
            Ok(Value::list(distinct))
        },
        _ => return None,
    })
}

pub(super) fn items(args: &[Value]) -> Result<&[Value], EvalError> {
    match args.first() {
        Some(Value::List(list)) => Ok(&list.items),
        _ => Err(EvalError::no_overload()),
    }
}

fn number(args: &[Value], n: usize) -> Result<i64, EvalError> {
    match args.get(n) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(EvalError::no_overload()),
    }
}

fn slice(items: &[Value], start: i64, end: i64) -> Result<Value, EvalError> {
    let wrong = |why: String| failed(format!("cannot slice({start}, {end}), {why}"));
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return wrong("negative indexes not supported".to_owned());
    };
    if from > to {
        return wrong("start index must be less than or equal to end index".to_owned());
    }
    match items.get(from..to) {
        Some(part) => Ok(Value::list(part.to_vec())),
        None => wrong(format!("list is length {}", items.len())),
    }
}

fn flatten(
    items: &[Value],
    depth: i64,
    into: &mut Vec<Value>,
    effort: &EvaluationEffort,
) -> Result<(), EvalError> {
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    effort.values(items.len())?;
    for item in items {
        match item {
            Value::List(nested) if depth > 0 => flatten(&nested.items, depth - 1, into, effort)?,
            other => into.push(other.clone()),
        }
    }
    Ok(())
}

/// The items in the order of their keys; equal keys keep the order of the items.
fn sort(items: &[Value], keys: &[Value]) -> Result<Value, EvalError> {
    if items.len() != keys.len() {
        return failed(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, \
             but got {} and {} elements respectively",
            items.len(),
            keys.len()
        ));
    }
    let Some(first) = keys.first() else {
        return Ok(Value::list(Vec::new()));
    };
    if first.order(first).is_none() && !matches!(first, Value::Double(_)) {
        return failed("list elements must be comparable");
    }
    let kind = first.type_of();
    if keys.iter().any(|key| key.type_of() != kind) {
        return failed("list elements must have the same type");
    }
    let mut pairs: Vec<(&Value, &Value)> = keys.iter().zip(items).collect();
    pairs.sort_by(|(a, _), (b, _)| a.order(b).unwrap_or(Ordering::Equal));
    let sorted = pairs.into_iter().map(|(_, item)| item.clone());
    Ok(Value::list(sorted.collect()))
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
pub(super) fn position(
    items: &[Value],
    wanted: &Value,
    last: bool,
    effort: &EvaluationEffort,
) -> Result<Value, EvalError> {
    let is_wanted = |item: &Value| item.equals_within(wanted, effort);
    let found = if last {
        let from_behind = find_value(items.iter().rev(), is_wanted)?;
        from_behind.map(|(n, _)| items.len() - 1 - n)
    } else {
        find_value(items, is_wanted)?.map(|(n, _)| n)
    };
    let place = found.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
    Ok(Value::Int(place))
}
