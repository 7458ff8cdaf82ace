//! Kubernetes quantities, and the comparisons they share their names of with versions.

use std::cmp::Ordering;

use davit_api::quantity::{Format, Quantity};

use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("quantity", false) => |_, args| match &args[0] {
            Value::String(text) => match Quantity::parse(text) {
                Ok(quantity) => Ok(Value::Quantity(quantity)),
                Err(error) => failed(error.to_string()),
            },
            _ => no_overload(),
        },
        ("isQuantity", false) => |_, args| match &args[0] {
            Value::String(text) => Ok(Value::Bool(Quantity::parse(text).is_ok())),
            _ => no_overload(),
        },
        ("isGreaterThan", true) => |_, args| Ok(Value::Bool(order(args)?.is_gt())),
        ("isLessThan", true) => |_, args| Ok(Value::Bool(order(args)?.is_lt())),
        ("compareTo", true) => |_, args| Ok(Value::Int(order(args)? as i64)),
        ("sign", _) => |_, args| with(args, |q| Ok(Value::Int(i64::from(q.signum())))),
        ("isInteger", true) => |_, args| with(args, |q| Ok(Value::Bool(q.as_i64().is_some()))),
        ("asInteger", true) => |_, args| {
            with(args, |q| {
                q.as_i64().map_or_else(
                    || failed("cannot convert value to integer"),
                    |i| Ok(Value::Int(i)),
                )
            })
        },
        ("asApproximateFloat", true) => |_, args| with(args, |q| Ok(Value::Double(q.as_f64()))),
        ("add", true) => |_, args| arithmetic(args, Quantity::checked_add),
        ("sub", true) => |_, args| arithmetic(args, Quantity::checked_sub),
        _ => return None,
    })
}

fn with(args: &[Value], f: fn(Quantity) -> Result<Value, EvalError>) -> Result<Value, EvalError> {
    match args.first() {
        Some(Value::Quantity(quantity)) => f(*quantity),
        _ => no_overload(),
    }
}

fn order(args: &[Value]) -> Result<Ordering, EvalError> {
    match args {
        [Value::Quantity(a), Value::Quantity(b)] => Ok(a.cmp(b)),
        [Value::Semver(a), Value::Semver(b)] => Ok(a.cmp_precedence(b)),
        _ => Err(EvalError::no_overload()),
    }
}

fn arithmetic(
    args: &[Value],
    f: fn(Quantity, Quantity) -> Option<Quantity>,
) -> Result<Value, EvalError> {
    let (a, b) = match args {
        [Value::Quantity(a), Value::Quantity(b)] => (*a, *b),
        [Value::Quantity(a), Value::Int(b)] => (*a, Quantity::new(*b, Format::DecimalSi)),
        _ => return no_overload(),
    };
    f(a, b).map_or_else(
        || failed("quantity overflow"),
        |sum| Ok(Value::Quantity(sum)),
    )
}
