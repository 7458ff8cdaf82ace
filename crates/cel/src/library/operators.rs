//! Arithmetic, comparison, indexes, membership.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Native, failed, no_overload, time};
use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::value::{Key, List, ListKind, Places, Value, find as find_value};

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if member {
        return None;
    }
    Some(match name {
        "_+_" => |context, args| add(args, context.effort),
        "_-_" => |_, args| subtract(args),
        "_*_" => |_, args| match args {
            [Value::Int(a), Value::Int(b)] => int(a.checked_mul(*b)),
            [Value::Uint(a), Value::Uint(b)] => uint(a.checked_mul(*b)),
            [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a * b)),
            _ => no_overload(),
        },
        "_/_" => |_, args| match args {
            [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
                failed("division by zero")
            }
            [Value::Int(a), Value::Int(b)] => int(a.checked_div(*b)),
            [Value::Uint(a), Value::Uint(b)] => uint(a.checked_div(*b)),
            [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a / b)),
            _ => no_overload(),
        },
        "_%_" => |_, args| match args {
            [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
                failed("modulus by zero")
            }
            [Value::Int(a), Value::Int(b)] => int(a.checked_rem(*b)),
            [Value::Uint(a), Value::Uint(b)] => uint(a.checked_rem(*b)),
            _ => no_overload(),
        },
        "-_" => |_, args| match args {
            [Value::Int(a)] => int(a.checked_neg()),
            [Value::Double(a)] => Ok(Value::Double(-a)),
            _ => no_overload(),
        },
        "!_" => |_, args| match args {
            [Value::Bool(a)] => Ok(Value::Bool(!a)),
            _ => no_overload(),
        },
        "_==_" => |context, args| {
            if args[0].compares_with(&args[1]) {
                let is_equal = args[0].equals_within(&args[1], context.effort)?;
                Ok(Value::Bool(is_equal))
            } else {
                no_overload()
            }
        },
        "_!=_" => |context, args| {
            let is_equal = args[0].equals_within(&args[1], context.effort)?;
            Ok(Value::Bool(!is_equal))
        },
        "_<_" => |_, args| compare(args, Ordering::is_lt),
        "_<=_" => |_, args| compare(args, Ordering::is_le),
        "_>_" => |_, args| compare(args, Ordering::is_gt),
        "_>=_" => |_, args| compare(args, Ordering::is_ge),
        "@in" => |context, args| contains(&args[0], &args[1], context.effort),
        "cel.@mapInsert" => |context, args| map_insert(args.to_vec(), context.effort),
        _ => return None,
    })
}

fn int(value: Option<i64>) -> Result<Value, EvalError> {
    value.map_or_else(|| failed("integer overflow"), |v| Ok(Value::Int(v)))
}

fn uint(value: Option<u64>) -> Result<Value, EvalError> {
    value.map_or_else(
        || failed("unsigned integer overflow"),
        |v| Ok(Value::Uint(v)),
    )
}

fn add(args: &[Value], effort: &EvaluationEffort) -> Result<Value, EvalError> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_add(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_add(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a + b)),
        [Value::String(a), Value::String(b)] => {
            effort.text(a.len() + b.len())?;
            Ok(Value::string(format!("{a}{b}")))
        }
        [Value::Bytes(a), Value::Bytes(b)] => {
            effort.text(a.len() + b.len())?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        [Value::List(_), Value::List(_)] => concat(args.to_vec(), effort),
        [Value::Duration(a), Value::Duration(b)] => a
            .checked_add(*b)
            .map_or_else(|| failed("duration overflow"), |d| Ok(Value::Duration(d))),
        [Value::Timestamp(t), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(t)] => {
            time::shift(*t, Some(*d))
        }
        _ => no_overload(),
    }
}

fn subtract(args: &[Value]) -> Result<Value, EvalError> {
    match args {
        [Value::Int(a), Value::Int(b)] => int(a.checked_sub(*b)),
        [Value::Uint(a), Value::Uint(b)] => uint(a.checked_sub(*b)),
        [Value::Double(a), Value::Double(b)] => Ok(Value::Double(a - b)),
        [Value::Duration(a), Value::Duration(b)] => a
            .checked_sub(*b)
            .map_or_else(|| failed("duration overflow"), |d| Ok(Value::Duration(d))),
        [Value::Timestamp(t), Value::Duration(d)] => time::shift(*t, d.checked_neg()),
        [Value::Timestamp(a), Value::Timestamp(b)] => {
            let nanos = a.as_nanosecond() - b.as_nanosecond();
            i64::try_from(nanos)
                .map_or_else(|_| failed("duration overflow"), |d| Ok(Value::Duration(d)))
        }
        _ => no_overload(),
    }
}

/// Joins two lists. The left one decides how: sets keep one of equal elements, in lists by keys
/// the right one's elements replace theirs.
pub(crate) fn concat(values: Vec<Value>, effort: &EvaluationEffort) -> Result<Value, EvalError> {
    let mut values = values.into_iter();
    let (Some(Value::List(mut left)), Some(Value::List(right))) = (values.next(), values.next())
    else {
        return no_overload();
    };
    effort.values(right.items.len())?;
    if Arc::get_mut(&mut left).is_none() {
        effort.values(left.items.len())?;
    }
    let joined: &mut List = Arc::make_mut(&mut left);
    let List { items, kind } = joined;
    if matches!(kind, ListKind::Atomic) {
        items.extend(right.items.iter().cloned());
        return Ok(Value::List(left));
    }
    let mut places = Places::of(items, kind, effort)?;
    for item in &right.items {
        match places.find(item, items, effort)? {
            // equal elements of a set cannot be told apart
            Some(n) => items[n] = item.clone(),
            None => {
                places.add(items.len(), item, effort)?;
                items.push(item.clone());
            }
        }
    }
    Ok(Value::List(left))
}

pub(crate) fn map_insert(
    values: Vec<Value>,
    effort: &EvaluationEffort,
) -> Result<Value, EvalError> {
    let mut values = values.into_iter();
    let (mut first, second, third) = (values.next(), values.next(), values.next());
    if let Some(Value::Map(map)) = &mut first
        && Arc::get_mut(map).is_none()
    {
        effort.values(2 * map.entries.len())?;
    }
    if let Some(Value::Map(more)) = &second {
        effort.values(2 * more.entries.len())?;
    }
    match (first, second, third) {
        (Some(Value::Map(mut map)), Some(key), Some(value)) => {
            Arc::make_mut(&mut map).insert(&key, value)?;
            Ok(Value::Map(map))
        }
        (Some(Value::Map(mut map)), Some(Value::Map(more)), None) => {
            let into = Arc::make_mut(&mut map);
            for (key, value) in &more.entries {
                into.insert(&key.value(), value.clone())?;
            }
            Ok(Value::Map(map))
        }
        _ => no_overload(),
    }
}

fn compare(args: &[Value], wanted: fn(Ordering) -> bool) -> Result<Value, EvalError> {
    let nan = |value: &Value| matches!(value, Value::Double(d) if d.is_nan());
    match args[0].order(&args[1]) {
        Some(order) => Ok(Value::Bool(wanted(order))),
        None if nan(&args[0]) || nan(&args[1]) => Ok(Value::Bool(false)),
        None => no_overload(),
    }
}

pub(crate) fn contains(
    item: &Value,
    container: &Value,
    effort: &EvaluationEffort,
) -> Result<Value, EvalError> {
    match container {
        Value::List(list) => {
            let found = find_value(&list.items, |known| known.equals_within(item, effort))?;
            Ok(Value::Bool(found.is_some()))
        }
        Value::Map(map) => Ok(Value::Bool(
            Key::of(item).is_some_and(|key| map.entries.contains_key(&key)),
        )),
        _ => no_overload(),
    }
}

/// `a[b]`, `a[?b]` and `a.?b`.
pub(crate) fn index(operand: &Value, index: &Value, optional: bool) -> Result<Value, EvalError> {
    let found = match operand {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(inner)) => match lookup(inner, index) {
            Ok(Ok(value)) => Ok(Value::some(value)),
            Ok(Err(_)) => Ok(Value::Optional(None)),
            // what cannot be indexed has nothing there either
            Err(_) if optional => Ok(Value::Optional(None)),
            Err(fault) => Err(fault),
        },
        _ => match lookup(operand, index)? {
            Ok(value) if optional => Ok(Value::some(value)),
            Ok(value) => Ok(value),
            Err(_) if optional => Ok(Value::Optional(None)),
            Err(error) => Err(error),
        },
    }?;
    Ok(found)
}

/// The outer fault is one of types, the inner one that nothing is there.
fn lookup(operand: &Value, index: &Value) -> Result<Result<Value, EvalError>, EvalError> {
    match (operand, index) {
        (Value::List(list), Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            let Some(Key::Int(n)) = Key::of(index).map(|key| match key {
                Key::Uint(u) => i64::try_from(u).map_or(Key::Uint(u), Key::Int),
                other => other,
            }) else {
                return Err(EvalError::new("invalid list index"));
            };
            let item = usize::try_from(n).ok().and_then(|n| list.items.get(n));
            Ok(item
                .cloned()
                .ok_or_else(|| EvalError::new(format!("index out of bounds: {n}"))))
        }
        (Value::Map(map), _) => {
            let Some(key) = Key::of(index) else {
                return Ok(Err(EvalError::new("unsupported key type")));
            };
            if let Some(found) = map.find(&key) {
                return Ok(Ok(found.clone()));
            }
            if let (Some(_), Key::String(name)) = (&map.object, &key)
                && let Some(found) = map.get(&format!("__{name}__"))
            {
                return Ok(Ok(found.clone()));
            }
            Ok(Err(EvalError::no_such_key(&key.to_string())))
        }
        _ => Err(EvalError::no_overload()),
    }
}
