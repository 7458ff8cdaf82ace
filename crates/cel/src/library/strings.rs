//! Functions of text. Positions count code points.

use super::lists::position;
use super::{Native, failed, formatting};
use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::value::Value;

/// A part of a text takes as much as two values: its place in the list and a text of its own.
pub(super) const PART: usize = 2;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        return (name == "strings.quote").then_some(
            (|context, args| {
                let text = text(args, 0)?;
                context.effort.text(2 * text.len())?;
                quote(text)
            }) as Native,
        );
    }
    Some(match name {
        "contains" => |_, args| Ok(text(args, 0)?.contains(text(args, 1)?).into()),
        "startsWith" => |_, args| Ok(text(args, 0)?.starts_with(text(args, 1)?).into()),
        "endsWith" => |_, args| Ok(text(args, 0)?.ends_with(text(args, 1)?).into()),
        "charAt" => |_, args| {
            let (text, at) = (text(args, 0)?, number(args, 1)?);
            match usize::try_from(at).ok().and_then(|n| offset(text, n)) {
                Some(from) => {
                    let found = text[from..].chars().next();
                    Ok(found.map_or("".into(), |found| found.to_string().into()))
                }
                None => failed(format!("index out of range: {at}")),
            }
        },
        "indexOf" => |context, args| match &args[0] {
            Value::List(list) => position(&list.items, &args[1], false, context.effort),
            _ => index_of(args),
        },
        "lastIndexOf" => |context, args| match &args[0] {
            Value::List(list) => position(&list.items, &args[1], true, context.effort),
            _ => last_index_of(args),
        },
        "lowerAscii" => |_, args| Ok(text(args, 0)?.to_ascii_lowercase().into()),
        "upperAscii" => |_, args| Ok(text(args, 0)?.to_ascii_uppercase().into()),
        "trim" => |_, args| Ok(text(args, 0)?.trim().into()),
        "substring" => |_, args| substring(args),
        "replace" => |context, args| {
            let (text, old, new) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
            let times = match args.get(3) {
                None => -1,
                Some(_) => number(args, 3)?,
            };
            let times = usize::try_from(times).unwrap_or(usize::MAX);
            let found = text.matches(old).take(times).count();
            let made = found.saturating_mul(new.len()).saturating_add(text.len());
            context.effort.text(made)?;
            Ok(text.replacen(old, new, times).into())
        },
        "split" => |context, args| split(args, context.effort),
        "join" => |context, args| {
            let separator = match args.get(1) {
                None => "",
                Some(_) => text(args, 1)?,
            };
            let mut parts = Vec::new();
            for item in super::lists::items(args)? {
                let part = item.as_str().ok_or_else(EvalError::no_overload)?;
                context.effort.text(part.len() + separator.len())?;
                context.effort.look(1)?;
                parts.push(part);
            }
            Ok(parts.join(separator).into())
        },
        "format" => |context, args| formatting::format(args, context.effort),
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

/// Where the character of this number begins, or the text ends.
fn offset(text: &str, n: usize) -> Option<usize> {
    let ends = std::iter::once(text.len());
    text.char_indices().map(|(at, _)| at).chain(ends).nth(n)
}

fn index_of(args: &[Value]) -> Result<Value, EvalError> {
    let (all, wanted) = (text(args, 0)?, text(args, 1)?);
    let from = match args.get(2) {
        None => 0,
        Some(_) => number(args, 2)?,
    };
    let begin = usize::try_from(from).ok().and_then(|n| offset(all, n));
    let Some(begin) = begin else {
        return failed(format!("index out of range: {from}"));
    };
    let found = all[begin..].find(wanted);
    Ok(found.map_or(Value::Int(-1), |at| int(all[..begin + at].chars().count())))
}

fn last_index_of(args: &[Value]) -> Result<Value, EvalError> {
    let (all, wanted) = (text(args, 0)?, text(args, 1)?);
    let end = match args.get(2) {
        None => all.len(),
        Some(_) => {
            let from = number(args, 2)?;
            let begin = usize::try_from(from).ok().and_then(|n| offset(all, n));
            let Some(begin) = begin else {
                return failed(format!("index out of range: {from}"));
            };
            if wanted.is_empty() {
                return Ok(Value::Int(from));
            }
            // What begins there is looked at, too.
            offset(&all[begin..], wanted.chars().count()).map_or(all.len(), |more| begin + more)
        }
    };
    let found = all[..end].rfind(wanted);
    Ok(found.map_or(Value::Int(-1), |at| int(all[..at].chars().count())))
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

fn split(args: &[Value], effort: &EvaluationEffort) -> Result<Value, EvalError> {
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
            effort.values(PART)?;
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
        let mut parts = Vec::new();
        for part in text.splitn(most, separator) {
            effort.values(PART)?;
            parts.push(Value::from(part));
        }
        parts
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
