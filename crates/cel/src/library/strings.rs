//! Functions of text. Positions count code points.

use super::lists::position;
use super::{Native, failed, formatting};
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
        "format" => |_, args| formatting::format(args),
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
