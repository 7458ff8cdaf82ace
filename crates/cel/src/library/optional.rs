//! Optional values.

use std::sync::Arc;

use super::lists::items;
use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("optional.of", false) => |_, args| Ok(Value::some(args[0].clone())),
        ("optional.none", false) => |_, _| Ok(Value::Optional(None)),
        ("optional.ofNonZeroValue", false) => |_, args| {
            Ok(if is_zero(&args[0]) {
                Value::Optional(None)
            } else {
                Value::some(args[0].clone())
            })
        },
        ("value", true) => |_, args| match &args[0] {
            Value::Optional(Some(inner)) => Ok((**inner).clone()),
            Value::Optional(None) => failed("optional.none() dereference"),
            _ => no_overload(),
        },
        ("hasValue", true) => |_, args| match &args[0] {
            Value::Optional(inner) => Ok(Value::Bool(inner.is_some())),
            _ => no_overload(),
        },
        ("first", true) => {
            |_, args| Ok(Value::Optional(items(args)?.first().cloned().map(Arc::new)))
        }
        ("last", true) => |_, args| Ok(Value::Optional(items(args)?.last().cloned().map(Arc::new))),
        ("optional.unwrap", false) | ("unwrapOpt", true) => |context, args| {
            context.effort.values(items(args)?.len())?;
            unwrap(items(args)?)
        },
        _ => return None,
    })
}

/// The values of those that have one.
fn unwrap(optionals: &[Value]) -> Result<Value, EvalError> {
    let mut values = Vec::new();
    for optional in optionals {
        match optional {
            Value::Optional(held) => values.extend(held.as_deref().cloned()),
            other => return failed(format!("value of type {} is not optional", other.type_of())),
        }
    }
    Ok(Value::list(values))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Int(0) | Value::Uint(0) => true,
        Value::Double(d) => *d == 0.0,
        Value::String(s) => s.is_empty(),
        Value::Bytes(b) => b.is_empty(),
        Value::List(list) => list.items.is_empty(),
        Value::Map(map) => map.entries.is_empty(),
        Value::Duration(nanos) => *nanos == 0,
        Value::Optional(inner) => inner.is_none(),
        _ => false,
    }
}
