//! What operations cost while they run, in the units of the reference implementation.

use crate::value::Value;

/// Walking over text costs a tenth a character.
pub(crate) fn traversal(size: u64) -> u64 {
    size.div_ceil(10)
}

/// A quarter a character of a pattern.
fn pattern(size: u64) -> u64 {
    size.div_ceil(4)
}

/// The cost of a call; none where it follows from the size of the result (`join`).
pub(crate) fn call_cost(function: &str, member: bool, args: &[Value]) -> Option<u64> {
    let size = |n: usize| args.get(n).map_or(0, Value::cost_size);
    let text = |n: usize| matches!(args.get(n), Some(Value::String(_) | Value::Bytes(_)));
    Some(match function {
        "check" => 350_000,
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            args.first().map_or(1, walk)
        }
        "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP" | "isCIDR"
        | "quantity" | "isQuantity" => traversal(size(0)),
        "replace" | "split" | "ip.isCanonical" => traversal(2 * size(0)),
        "join" => return None,
        "find" | "findAll" => traversal(size(0).saturating_add(1)).saturating_mul(pattern(size(1))),
        "ip" if member => 1,
        "ip" => traversal(size(0)),
        "containsIP" => traversal(2 * size(0)) + if text(1) { traversal(size(1)) } else { 0 },
        "containsCIDR" => {
            let other = if text(1) { traversal(size(1)) } else { 0 };
            traversal(2 * size(0)) + traversal(size(0)) + 1 + other
        }
        "validate" | "semver" | "isSemver" if args.len() > 1 || function != "validate" => {
            let n = usize::from(function == "validate");
            match &args[0] {
                Value::Format(format) => format.cost(size(n)),
                _ => traversal(size(n)).max(1),
            }
        }
        "startsWith" | "endsWith" => traversal(size(0)),
        "bytes" | "string" if text(0) && !same_kind(function, &args[0]) => traversal(size(0)),
        "@in" if matches!(args.get(1), Some(Value::List(_))) => size(1),
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)).saturating_add(1),
        "sets.equivalent" => size(0)
            .saturating_mul(size(1))
            .saturating_mul(2)
            .saturating_add(1),
        "_==_" | "_!=_" => traversal(size(0).min(size(1))),
        "_<_" | "_<=_" | "_>_" | "_>=_" if text(0) => traversal(size(0).min(size(1))),
        "_+_" if text(0) => traversal(size(0).saturating_add(size(1))),
        "matches" => traversal(size(0).saturating_add(1)).saturating_mul(pattern(size(1))),
        "contains" => traversal(size(0)).saturating_mul(traversal(size(1))),
        "slice" => match (args.get(1), args.get(2)) {
            (Some(Value::Int(start)), Some(Value::Int(end))) => {
                new_list(1.0, u64::try_from(end.saturating_sub(*start)).unwrap_or(0))
            }
            _ => new_list(1.0, 0),
        },
        "lists.range" => match args.first() {
            Some(Value::Int(n)) => new_list(1.0, u64::try_from(*n).unwrap_or(0)),
            _ => new_list(1.0, 0),
        },
        "reverse" => new_list(1.0, size(0)),
        "flatten" => match args.get(1) {
            Some(Value::Int(depth)) => new_list(*depth as f64, size(0)),
            _ => new_list(1.0, size(0)),
        },
        "distinct" | "sort" => compared(args.first()),
        "@sortByAssociatedKeys" => compared(args.get(1)),
        _ => 1,
    })
}

/// A call that makes a list.
fn new_list(factor: f64, size: u64) -> u64 {
    // as the reference implementation: the product cut to a whole number
    ((size as f64 * factor) as u64).saturating_add(11)
}

/// A call that makes a list and compares each of its elements with each.
fn compared(list: Option<&Value>) -> u64 {
    let Some(Value::List(list)) = list else {
        return new_list(2.0, 0);
    };
    let factor = match list.items.first() {
        Some(Value::String(_) | Value::Bytes(_)) => 2.1,
        _ => 2.0,
    };
    let size = list.items.len() as u64;
    new_list(factor, size.saturating_mul(size))
}

/// `string("…")` and `bytes(b"…")` only hand their argument through.
fn same_kind(function: &str, value: &Value) -> bool {
    matches!(
        (function, value),
        ("string", Value::String(_)) | ("bytes", Value::Bytes(_))
    )
}

/// The cost of walking over a value as a tree, or more than anybody may spend.
fn walk(value: &Value) -> u64 {
    const MOST: u64 = 16 << 20;
    let mut left = MOST;
    let cost = walk_within(value, &mut left);
    if left == 0 { u64::MAX } else { cost }
}

/// Looks at so many values: a list may hold another one many times, and that one a third.
fn walk_within(value: &Value, left: &mut u64) -> u64 {
    *left = left.saturating_sub(1);
    if *left == 0 {
        return 0;
    }
    let mut each = |value: &Value| walk_within(value, left);
    match value {
        Value::String(text) => text.len() as u64 / 10,
        Value::Bytes(bytes) => bytes.len() as u64 / 10,
        Value::List(list) => list.items.iter().map(each).sum(),
        Value::Map(map) => map
            .entries
            .iter()
            .map(|(key, value)| each(&key.value()) + each(value))
            .sum(),
        _ => 1,
    }
}
