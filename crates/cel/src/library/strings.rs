//! Functions of text. Positions count code points.

use std::fmt::Write;

use super::conversions::show_double;
use super::lists::position;
use super::{Native, failed, time};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        return (name == "strings.quote").then_some((|_, args| quote(text(args, 0)?)) as Native);
    }
    Some(match name {
        "contains" => |_, args| Ok(text(args, 0)?.contains(text(args, 1)?).into()),
        "startsWith" => |_, args| Ok(text(args, 0)?.starts_with(text(args, 1)?).into()),
        "endsWith" => |_, args| Ok(text(args, 0)?.ends_with(text(args, 1)?).into()),
        "charAt" => |_, args| {
            let (text, at) = (chars(args)?, number(args, 1)?);
            match usize::try_from(at) {
                Ok(n) if n < text.len() => Ok(text[n].to_string().into()),
                Ok(n) if n == text.len() => Ok("".into()),
                _ => failed(format!("index out of range: {at}")),
            }
        },
        "indexOf" => |_, args| match &args[0] {
            Value::List(list) => Ok(position(&list.items, &args[1], false)),
            _ => index_of(args),
        },
        "lastIndexOf" => |_, args| match &args[0] {
            Value::List(list) => Ok(position(&list.items, &args[1], true)),
            _ => last_index_of(args),
        },
        "lowerAscii" => |_, args| Ok(text(args, 0)?.to_ascii_lowercase().into()),
        "upperAscii" => |_, args| Ok(text(args, 0)?.to_ascii_uppercase().into()),
        "trim" => |_, args| Ok(text(args, 0)?.trim().into()),
        "substring" => |_, args| substring(args),
        "replace" => |_, args| {
            let (text, old, new) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
            let times = match args.get(3) {
                None => -1,
                Some(_) => number(args, 3)?,
            };
            Ok(match usize::try_from(times) {
                Ok(times) => text.replacen(old, new, times),
                Err(_) => text.replace(old, new),
            }
            .into())
        },
        "split" => |_, args| split(args),
        "join" => |_, args| {
            let mut parts = Vec::new();
            for item in super::lists::items(args)? {
                parts.push(item.as_str().ok_or_else(EvalError::no_overload)?);
            }
            let separator = match args.get(1) {
                None => "",
                Some(_) => text(args, 1)?,
            };
            Ok(parts.join(separator).into())
        },
        "format" => |_, args| format(args),
        _ => return None,
    })
}

pub(super) fn text(args: &[Value], n: usize) -> Result<&str, EvalError> {
    args.get(n)
        .and_then(Value::as_str)
        .ok_or_else(EvalError::no_overload)
}

fn chars(args: &[Value]) -> Result<Vec<char>, EvalError> {
    Ok(text(args, 0)?.chars().collect())
}

fn number(args: &[Value], n: usize) -> Result<i64, EvalError> {
    match args.get(n) {
        Some(Value::Int(i)) => Ok(*i),
        _ => Err(EvalError::no_overload()),
    }
}

fn int(n: usize) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn index_of(args: &[Value]) -> Result<Value, EvalError> {
    let all = chars(args)?;
    let wanted: Vec<char> = text(args, 1)?.chars().collect();
    let from = match args.get(2) {
        None => 0,
        Some(_) => number(args, 2)?,
    };
    let Some(from) = usize::try_from(from).ok().filter(|n| *n <= all.len()) else {
        return failed(format!("index out of range: {from}"));
    };
    if wanted.is_empty() {
        return Ok(int(from));
    }
    let found = all[from..]
        .windows(wanted.len())
        .position(|window| window == wanted);
    Ok(found.map_or(Value::Int(-1), |n| int(from + n)))
}

fn last_index_of(args: &[Value]) -> Result<Value, EvalError> {
    let all = chars(args)?;
    let wanted: Vec<char> = text(args, 1)?.chars().collect();
    let from = match args.get(2) {
        None => all.len(),
        Some(_) => {
            let from = number(args, 2)?;
            match usize::try_from(from).ok().filter(|n| *n <= all.len()) {
                Some(from) => from,
                None => return failed(format!("index out of range: {from}")),
            }
        }
    };
    if wanted.is_empty() {
        return Ok(int(from));
    }
    let end = (from + wanted.len()).min(all.len());
    let found = all[..end]
        .windows(wanted.len())
        .rposition(|window| window == wanted);
    Ok(found.map_or(Value::Int(-1), int))
}

fn substring(args: &[Value]) -> Result<Value, EvalError> {
    let all = chars(args)?;
    let place = |n: i64| {
        usize::try_from(n)
            .ok()
            .filter(|n| *n <= all.len())
            .ok_or_else(|| EvalError::new(format!("index out of range: {n}")))
    };
    let (start, end) = match args.get(2) {
        None => (
            number(args, 1)?,
            i64::try_from(all.len()).unwrap_or(i64::MAX),
        ),
        Some(_) => (number(args, 1)?, number(args, 2)?),
    };
    if start > end {
        return failed(format!(
            "invalid substring range. start: {start}, end: {end}"
        ));
    }
    let (start, end) = (place(start)?, place(end)?);
    Ok(all[start..end].iter().collect::<String>().into())
}

fn split(args: &[Value]) -> Result<Value, EvalError> {
    let (text, separator) = (text(args, 0)?, text(args, 1)?);
    let most = match args.get(2) {
        None => -1,
        Some(_) => number(args, 2)?,
    };
    let most = match most {
        0 => return Ok(Value::list(Vec::new())),
        n => usize::try_from(n).unwrap_or(usize::MAX),
    };
    let parts: Vec<Value> = if separator.is_empty() {
        let mut rest = text;
        let mut parts = Vec::new();
        while let Some(first) = rest.chars().next() {
            let end = if parts.len() + 1 == most {
                rest.len()
            } else {
                first.len_utf8()
            };
            parts.push(Value::from(&rest[..end]));
            rest = &rest[end..];
        }
        parts
    } else {
        text.splitn(most, separator).map(Value::from).collect()
    };
    Ok(Value::list(parts))
}

#[allow(clippy::unnecessary_wraps, reason = "a native's signature")]
fn quote(text: &str) -> Result<Value, EvalError> {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    Ok(quoted.into())
}

/// `"%s …".format([…])` with the verbs s, d, f, e, b, x, X, o.
fn format(args: &[Value]) -> Result<Value, EvalError> {
    let pattern = text(args, 0)?;
    let mut given = super::lists::items(&args[1..])?.iter();
    let mut used = 0usize;
    let mut result = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            result.push(c);
            continue;
        }
        let mut precision = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut digits = String::new();
            while let Some(digit) = chars.peek().filter(|c| c.is_ascii_digit()) {
                digits.push(*digit);
                chars.next();
            }
            precision = digits.parse::<usize>().ok();
            if precision.is_none_or(|p| p > 1000) {
                return failed("invalid precision in formatting clause");
            }
        }
        let Some(verb) = chars.next() else {
            return failed("unexpected end of format string");
        };
        if verb == '%' {
            result.push('%');
            continue;
        }
        let Some(arg) = given.next() else {
            return failed(format!("index {used} out of range"));
        };
        used += 1;
        clause(&mut result, verb, precision, arg)?;
    }
    Ok(result.into())
}

fn clause(
    result: &mut String,
    verb: char,
    precision: Option<usize>,
    arg: &Value,
) -> Result<(), EvalError> {
    let wrong = |what: &str| {
        EvalError::new(format!(
            "error during formatting: {what} clause cannot be used on {}",
            arg.type_of()
        ))
    };
    match (verb, arg) {
        ('s', _) => show(result, arg)?,
        ('d', Value::Int(i)) => put(result, format_args!("{i}")),
        ('d', Value::Uint(u)) => put(result, format_args!("{u}")),
        ('d', Value::Double(d)) if !d.is_finite() => result.push_str(&not_finite(*d)),
        ('d', _) => return Err(wrong("decimal")),
        ('f' | 'e', Value::Int(_) | Value::Uint(_) | Value::Double(_)) => {
            let number = match arg {
                Value::Int(i) => *i as f64,
                Value::Uint(u) => *u as f64,
                Value::Double(d) => *d,
                _ => 0.0,
            };
            let precision = precision.unwrap_or(6);
            if !number.is_finite() {
                result.push_str(&not_finite(number));
            } else if verb == 'f' {
                put(result, format_args!("{number:.precision$}"));
            } else {
                scientific(result, number, precision);
            }
        }
        ('f', _) => return Err(wrong("fixed-point")),
        ('e', _) => return Err(wrong("scientific notation")),
        ('b', Value::Bool(b)) => put(result, format_args!("{}", u8::from(*b))),
        ('b', Value::Uint(u)) => put(result, format_args!("{u:b}")),
        ('b', Value::Int(i)) => radix(result, *i, |n| format!("{n:b}")),
        ('b', _) => return Err(wrong("binary")),
        ('o', Value::Uint(u)) => put(result, format_args!("{u:o}")),
        ('o', Value::Int(i)) => radix(result, *i, |n| format!("{n:o}")),
        ('o', _) => return Err(wrong("octal")),
        ('x', Value::Int(i)) => radix(result, *i, |n| format!("{n:x}")),
        ('X', Value::Int(i)) => radix(result, *i, |n| format!("{n:X}")),
        ('x', Value::Uint(u)) => put(result, format_args!("{u:x}")),
        ('X', Value::Uint(u)) => put(result, format_args!("{u:X}")),
        ('x' | 'X', Value::String(_) | Value::Bytes(_)) => {
            let bytes = match arg {
                Value::String(s) => s.as_bytes(),
                Value::Bytes(b) => b,
                _ => &[],
            };
            for byte in bytes {
                if verb == 'x' {
                    put(result, format_args!("{byte:02x}"));
                } else {
                    put(result, format_args!("{byte:02X}"));
                }
            }
        }
        ('x' | 'X', _) => return Err(wrong("hexadecimal")),
        _ => {
            return Err(EvalError::new(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{verb}\""
            )));
        }
    }
    Ok(())
}

fn put(result: &mut String, args: std::fmt::Arguments<'_>) {
    // writing to a string cannot fail
    let _ = result.write_fmt(args);
}

fn radix(result: &mut String, number: i64, show: fn(u64) -> String) {
    if number < 0 {
        result.push('-');
    }
    result.push_str(&show(number.unsigned_abs()));
}

fn not_finite(number: f64) -> String {
    let text = if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    text.to_owned()
}

fn scientific(result: &mut String, number: f64, precision: usize) {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    put(result, format_args!("{digits}e{sign}{exponent:0>2}"));
}

/// The `%s` form of any value; map entries in the order of their shown keys.
fn show(result: &mut String, value: &Value) -> Result<(), EvalError> {
    match value {
        Value::Null => result.push_str("null"),
        Value::String(text) => result.push_str(text),
        Value::Double(d) if !d.is_finite() => result.push_str(&not_finite(*d)),
        Value::Double(d) => result.push_str(&show_double(*d)),
        Value::Type(ty) => put(result, format_args!("{ty}")),
        Value::Bytes(bytes) => result.push_str(&String::from_utf8_lossy(bytes)),
        Value::Bool(b) => put(result, format_args!("{b}")),
        Value::Int(i) => put(result, format_args!("{i}")),
        Value::Uint(u) => put(result, format_args!("{u}")),
        Value::Timestamp(t) => result.push_str(&time::show_timestamp(*t)),
        Value::Duration(d) => result.push_str(&time::show_duration(*d)),
        Value::List(list) => {
            result.push('[');
            for (n, item) in list.items.iter().enumerate() {
                if n > 0 {
                    result.push_str(", ");
                }
                show(result, item)?;
            }
            result.push(']');
        }
        Value::Map(map) => {
            result.push('{');
            for (n, (key, value)) in map.entries.iter().enumerate() {
                if n > 0 {
                    result.push_str(", ");
                }
                show(result, &key.value())?;
                result.push_str(": ");
                show(result, value)?;
            }
            result.push('}');
        }
        _ => {
            return Err(EvalError::new(format!(
                "error during formatting: string clause can only be used on strings, bools, bytes, \
                 ints, doubles, maps, lists, types, durations, and timestamps, was given {}",
                value.type_of()
            )));
        }
    }
    Ok(())
}
