//! Semantic versions.

use std::sync::Arc;

use semver::Version;

use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("semver", false) => |_, args| {
            let text = text(args)?;
            parse(args).map_or_else(
                || failed(format!("invalid semantic version: {text}")),
                |version| Ok(Value::Semver(Arc::new(version))),
            )
        },
        ("isSemver", false) => |_, args| {
            text(args)?;
            Ok(Value::Bool(parse(args).is_some()))
        },
        ("major", true) => |_, args| part(args, |v| v.major),
        ("minor", true) => |_, args| part(args, |v| v.minor),
        ("patch", true) => |_, args| part(args, |v| v.patch),
        _ => return None,
    })
}

fn text(args: &[Value]) -> Result<&str, EvalError> {
    args.first()
        .and_then(Value::as_str)
        .ok_or_else(EvalError::no_overload)
}

fn parse(args: &[Value]) -> Option<Version> {
    let text = args.first()?.as_str()?;
    if matches!(args.get(1), Some(Value::Bool(true))) {
        return Version::parse(&normalize(text)).ok();
    }
    Version::parse(text).ok()
}

/// `v1.02` is meant to be `1.2.0`.
fn normalize(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut parts: Vec<&str> = numbers
        .split('.')
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    while parts.len() < 3 {
        parts.push("0");
    }
    parts.join(".") + rest
}

fn part(args: &[Value], of: fn(&Version) -> u64) -> Result<Value, EvalError> {
    match args.first() {
        Some(Value::Semver(version)) => i64::try_from(of(version))
            .map_or_else(|_| failed("integer overflow"), |n| Ok(Value::Int(n))),
        _ => no_overload(),
    }
}
