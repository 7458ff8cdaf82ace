//! Lists as sets.

use super::lists::items;
use super::{Native, no_overload};
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if member {
        return None;
    }
    Some(match name {
        "sets.contains" => |_, args| two(args, holds),
        "sets.equivalent" => |_, args| two(args, |a, b| holds(a, b) && holds(b, a)),
        "sets.intersects" => {
            |_, args| two(args, |a, b| b.iter().any(|x| a.iter().any(|y| y.equals(x))))
        }
        _ => return None,
    })
}

fn two(
    args: &[Value],
    test: fn(&[Value], &[Value]) -> bool,
) -> Result<Value, crate::error::EvalError> {
    match args {
        [_, _] => Ok(Value::Bool(test(items(args)?, items(&args[1..])?))),
        _ => no_overload(),
    }
}

fn holds(a: &[Value], b: &[Value]) -> bool {
    b.iter().all(|x| a.iter().any(|y| y.equals(x)))
}
