//! Conversions between the basic types, sizes, types.

use super::{Native, failed, no_overload, time};
use crate::error::EvalError;
use crate::value::Value;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    Some(match (name, member) {
        ("size", _) => |_, args| match &args[0] {
            Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
                let size = args[0].cost_size();
                Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
            }
            _ => no_overload(),
        },
        ("type", false) => |_, args| Ok(Value::Type(args[0].type_of())),
        ("dyn", false) => |_, args| Ok(args[0].clone()),
        ("int", false) => |_, args| to_int(&args[0]),
        ("uint", false) => |_, args| to_uint(&args[0]),
        ("double", false) => |_, args| match &args[0] {
            Value::Double(d) => Ok(Value::Double(*d)),
            Value::Int(i) => Ok(Value::Double(*i as f64)),
            Value::Uint(u) => Ok(Value::Double(*u as f64)),
            Value::String(s) => parse_double(s).map_or_else(
                || {
                    failed(format!(
                        "type conversion error from 'string' to 'double': {s}"
                    ))
                },
                |d| Ok(Value::Double(d)),
            ),
            _ => no_overload(),
        },
        ("bool", false) => |_, args| match &args[0] {
            Value::Bool(b) => Ok(Value::Bool(*b)),
            Value::String(s) => match &**s {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
                _ => failed(format!(
                    "type conversion error from 'string' to 'bool': {s}"
                )),
            },
            _ => no_overload(),
        },
        ("bytes", false) => |_, args| match &args[0] {
            Value::Bytes(_) => Ok(args[0].clone()),
            Value::String(s) => Ok(Value::Bytes(s.as_bytes().into())),
            _ => no_overload(),
        },
        ("string", false) => |_, args| to_string(&args[0]),
        ("timestamp", false) => |_, args| match &args[0] {
            Value::Timestamp(_) => Ok(args[0].clone()),
            Value::String(s) => time::parse_timestamp(s).map_or_else(
                || failed(format!("cannot parse timestamp: {s}")),
                |t| Ok(Value::Timestamp(t)),
            ),
            Value::Int(seconds) => jiff::Timestamp::from_second(*seconds)
                .ok()
                .filter(|t| time::in_range(*t))
                .map_or_else(|| failed("timestamp overflow"), |t| Ok(Value::Timestamp(t))),
            _ => no_overload(),
        },
        ("duration", false) => |_, args| match &args[0] {
            Value::Duration(_) => Ok(args[0].clone()),
            Value::String(s) => time::parse_duration(s).map_or_else(
                || failed(format!("cannot parse duration: {s}")),
                |d| Ok(Value::Duration(d)),
            ),
            Value::Int(nanos) => Ok(Value::Duration(*nanos)),
            _ => no_overload(),
        },
        _ => return None,
    })
}

fn to_int(value: &Value) -> Result<Value, EvalError> {
    let overflow = || EvalError::new("integer overflow");
    Ok(Value::Int(match value {
        Value::Int(i) => *i,
        Value::Uint(u) => i64::try_from(*u).map_err(|_| overflow())?,
        Value::Double(d)
            if *d > -9_223_372_036_854_775_808.0 && *d < 9_223_372_036_854_775_808.0 =>
        {
            *d as i64
        }
        Value::Double(_) => return Err(overflow()),
        Value::String(s) => s.parse().map_err(|_| {
            EvalError::new(format!("type conversion error from 'string' to 'int': {s}"))
        })?,
        Value::Timestamp(t) => t.as_second(),
        Value::Duration(nanos) => *nanos,
        _ => return no_overload(),
    }))
}

fn to_uint(value: &Value) -> Result<Value, EvalError> {
    let overflow = || EvalError::new("unsigned integer overflow");
    Ok(Value::Uint(match value {
        Value::Uint(u) => *u,
        Value::Int(i) => u64::try_from(*i).map_err(|_| overflow())?,
        Value::Double(d) if *d > -1.0 && *d < 18_446_744_073_709_551_616.0 => *d as u64,
        Value::Double(_) => return Err(overflow()),
        Value::String(s) => s.parse().map_err(|_| {
            EvalError::new(format!(
                "type conversion error from 'string' to 'uint': {s}"
            ))
        })?,
        _ => return no_overload(),
    }))
}

fn to_string(value: &Value) -> Result<Value, EvalError> {
    Ok(Value::string(match value {
        Value::String(_) => return Ok(value.clone()),
        Value::Bool(b) => b.to_string(),
        Value::Int(i) => i.to_string(),
        Value::Uint(u) => u.to_string(),
        Value::Double(d) => show_double(*d),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec())
            .map_err(|_| EvalError::new("invalid UTF-8 in bytes, cannot convert to string"))?,
        Value::Timestamp(t) => time::show_timestamp(*t),
        Value::Duration(nanos) => time::show_duration(*nanos),
        Value::Ip(ip) => ip.to_string(),
        Value::Cidr(cidr) => cidr.to_string(),
        Value::Quantity(quantity) => quantity.to_string(),
        Value::Semver(version) => version.to_string(),
        Value::Url(url) => url.to_string(),
        _ => return no_overload(),
    }))
}

pub(super) fn parse_double(text: &str) -> Option<f64> {
    let plain = text.trim_start_matches(['+', '-']);
    match plain.to_ascii_lowercase().as_str() {
        "inf" | "infinity" | "nan" => text.parse().ok(),
        _ if plain.starts_with(|c: char| c.is_ascii_digit() || c == '.') => text.parse().ok(),
        _ => None,
    }
}

/// As Go's shortest form: an exponent for very large and very small numbers.
pub(super) fn show_double(d: f64) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let size = d.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        let text = format!("{d:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, number) = match exponent.strip_prefix('-') {
            Some(number) => ('-', number),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{number:0>2}");
    }
    format!("{d}")
}
