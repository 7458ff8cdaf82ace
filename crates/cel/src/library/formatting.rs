//! `"%s …".format([…])`: what a clause takes, known types of arguments judged when the expression is
//! compiled, others when it runs.

use std::fmt::Write;

use super::conversions::show_double;
use super::{failed, time};
use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::types::Type;
use crate::value::Value;

/// Decimals of `%f` and `%e` where none are said.
const PRECISION: usize = 6;
/// Most decimals that can be asked for.
const MOST_DECIMALS: usize = 1000;

/// A part of a format string.
pub(crate) enum Piece {
    Text(String),
    Clause(Clause),
}

/// `%s`, `%.2f` and so on.
#[derive(Clone, Copy)]
pub(crate) struct Clause {
    verb: char,
    precision: usize,
}

/// Takes a format string apart.
///
/// # Errors
/// The first clause that is none.
pub(crate) fn parse(pattern: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            text.push('%');
            continue;
        }
        let mut precision = PRECISION;
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            let given = digits.parse().ok().filter(|given| *given <= MOST_DECIMALS);
            precision = given.ok_or("could not parse formatting clause: invalid precision")?;
        }
        let verb = chars.next().ok_or("unexpected end of string")?;
        if !matches!(verb, 's' | 'd' | 'f' | 'e' | 'b' | 'x' | 'X' | 'o') {
            return Err(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{verb}\""
            ));
        }
        pieces.push(Piece::Text(std::mem::take(&mut text)));
        pieces.push(Piece::Clause(Clause { verb, precision }));
    }
    pieces.push(Piece::Text(text));
    Ok(pieces)
}

impl Clause {
    /// Whether the clause takes values of the type; a dynamic one may turn out to fit.
    pub(crate) fn takes(self, ty: &Type) -> bool {
        match self.verb {
            _ if matches!(ty, Type::Dyn) => true,
            's' => matches!(
                ty,
                Type::List(_)
                    | Type::Map(..)
                    | Type::Int
                    | Type::Uint
                    | Type::Double
                    | Type::Bool
                    | Type::String
                    | Type::Timestamp
                    | Type::Bytes
                    | Type::Duration
                    | Type::Type(_)
                    | Type::Null
            ),
            'd' | 'o' => matches!(ty, Type::Int | Type::Uint),
            'f' | 'e' => matches!(ty, Type::Double | Type::String),
            'b' => matches!(ty, Type::Int | Type::Uint | Type::Bool),
            _ => matches!(ty, Type::Int | Type::Uint | Type::String | Type::Bytes),
        }
    }

    /// Whether the clause goes into lists and maps.
    pub(crate) fn is_deep(self) -> bool {
        self.verb == 's'
    }

    /// What is wrong with a value of the type.
    pub(crate) fn refusal(self, ty: &Type) -> String {
        let rule = match self.verb {
            's' => {
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, \
                 lists, types, durations, and timestamps"
            }
            'd' => "decimal clause can only be used on integers",
            'f' => "fixed-point clause can only be used on doubles",
            'e' => "scientific clause can only be used on doubles",
            'b' => "only integers and bools can be formatted as binary",
            'o' => "octal clause can only be used on integers",
            _ => "only integers, byte buffers, and strings can be formatted as hex",
        };
        format!(
            "error during formatting: {rule}, was given {}",
            ty.runtime_name()
        )
    }

    fn write(self, result: &mut String, arg: &Value) -> Result<(), EvalError> {
        match (self.verb, arg) {
            ('s', _) => self.write_text(result, arg)?,
            ('d', Value::Int(i)) => put(result, format_args!("{i}")),
            ('d', Value::Uint(u)) => put(result, format_args!("{u}")),
            ('f' | 'e', Value::Double(number)) => self.write_double(result, *number),
            ('f' | 'e', Value::String(text)) => match &**text {
                "NaN" => self.write_double(result, f64::NAN),
                "Infinity" => self.write_double(result, f64::INFINITY),
                "-Infinity" => self.write_double(result, f64::NEG_INFINITY),
                _ => return Err(EvalError::new(self.refusal(&Type::String))),
            },
            ('b', Value::Bool(b)) => put(result, format_args!("{}", u8::from(*b))),
            ('b', Value::Uint(u)) => put(result, format_args!("{u:b}")),
            ('b', Value::Int(i)) => radix(result, *i, |n| format!("{n:b}")),
            ('o', Value::Uint(u)) => put(result, format_args!("{u:o}")),
            ('o', Value::Int(i)) => radix(result, *i, |n| format!("{n:o}")),
            ('x', Value::Int(i)) => radix(result, *i, |n| format!("{n:x}")),
            ('X', Value::Int(i)) => radix(result, *i, |n| format!("{n:X}")),
            ('x', Value::Uint(u)) => put(result, format_args!("{u:x}")),
            ('X', Value::Uint(u)) => put(result, format_args!("{u:X}")),
            ('x' | 'X', Value::String(text)) => self.write_bytes(result, text.as_bytes()),
            ('x' | 'X', Value::Bytes(bytes)) => self.write_bytes(result, bytes),
            _ => return Err(EvalError::new(self.refusal(&arg.type_of()))),
        }
        Ok(())
    }

    /// Numbers as people of the language of the reference implementation (en-US) write them.
    fn write_double(self, result: &mut String, number: f64) {
        let precision = self.precision;
        if number.is_nan() {
            result.push_str("NaN");
        } else if number.is_infinite() {
            result.push_str(if number > 0.0 { "∞" } else { "-∞" });
        } else if self.verb == 'f' {
            grouped(result, &format!("{number:.precision$}"));
        } else {
            scientific(result, number, precision);
        }
    }

    fn write_bytes(self, result: &mut String, bytes: &[u8]) {
        for byte in bytes {
            if self.verb == 'x' {
                put(result, format_args!("{byte:02x}"));
            } else {
                put(result, format_args!("{byte:02X}"));
            }
        }
    }

    /// The `%s` form of a value.
    fn write_text(self, result: &mut String, value: &Value) -> Result<(), EvalError> {
        match value {
            Value::Null => result.push_str("null"),
            Value::String(text) => result.push_str(text),
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
                    self.write_literal(result, item)?;
                }
                result.push(']');
            }
            Value::Map(map) => {
                let mut entries = Vec::new();
                for (key, value) in &map.entries {
                    let (mut shown_key, mut shown) = (String::new(), String::new());
                    self.write_literal(&mut shown_key, &key.value())?;
                    self.write_literal(&mut shown, value)?;
                    entries.push((shown_key, shown));
                }
                entries.sort();
                let entries: Vec<String> = entries
                    .iter()
                    .map(|(key, value)| format!("{key}:{value}"))
                    .collect();
                put(result, format_args!("{{{}}}", entries.join(", ")));
            }
            other => return Err(EvalError::new(self.refusal(&other.type_of()))),
        }
        Ok(())
    }

    /// An element of a list or map, as it would be written in an expression.
    fn write_literal(self, result: &mut String, value: &Value) -> Result<(), EvalError> {
        match value {
            Value::String(text) => put(result, format_args!("{text:?}")),
            Value::Bytes(bytes) => {
                put(
                    result,
                    format_args!("b{:?}", String::from_utf8_lossy(bytes)),
                );
            }
            Value::Double(d) if d.is_finite() => put(result, format_args!("{d:.PRECISION$}")),
            Value::Double(d) => put(result, format_args!("{:?}", show_double(*d))),
            Value::Timestamp(t) => put(
                result,
                format_args!("timestamp({:?})", time::show_timestamp(*t)),
            ),
            Value::Duration(d) => put(
                result,
                format_args!("duration({:?})", time::show_duration(*d)),
            ),
            other => self.write_text(result, other)?,
        }
        Ok(())
    }
}

/// `"%s …".format([…])`.
pub(super) fn format(args: &[Value], effort: &EvaluationEffort) -> Result<Value, EvalError> {
    let pieces = parse(super::strings::text(args, 0)?).map_err(EvalError::new)?;
    let given = super::lists::items(&args[1..])?;
    let mut result = String::new();
    let mut used = 0;
    for piece in pieces {
        match piece {
            Piece::Text(text) => result.push_str(&text),
            Piece::Clause(clause) => {
                let Some(arg) = given.get(used) else {
                    return failed(format!("index {used} out of range"));
                };
                used += 1;
                show(arg, effort)?;
                clause.write(&mut result, arg)?;
            }
        }
    }
    effort.text(result.len())?;
    Ok(result.into())
}

/// Takes what showing a value takes, and all that it holds, at most: a value in a list and one of a map are shown apart
/// first, and a control character takes six.
fn show(value: &Value, effort: &EvaluationEffort) -> Result<(), EvalError> {
    const SHOWN: usize = 2;
    const ESCAPED: usize = 6;
    effort.values(SHOWN)?;
    match value {
        Value::String(text) => effort.text(ESCAPED * text.len()),
        Value::Bytes(bytes) => effort.text(ESCAPED * bytes.len()),
        Value::List(list) => list.items.iter().try_for_each(|item| show(item, effort)),
        Value::Map(map) => map.entries.iter().try_for_each(|(key, value)| {
            show(&key.value(), effort)?;
            show(value, effort)
        }),
        _ => Ok(()),
    }
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

/// Commas between each three digits before the point.
fn grouped(result: &mut String, number: &str) {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    let (whole, rest) = match digits.find('.') {
        Some(point) => digits.split_at(point),
        None => (digits, ""),
    };
    result.push_str(sign);
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            result.push(',');
        }
        result.push(digit);
    }
    result.push_str(rest);
}

/// `1.500000×10⁰³`.
fn scientific(result: &mut String, number: f64, precision: usize) {
    const RAISED: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ("⁻", rest),
        None => ("", exponent),
    };
    put(result, format_args!("{digits}×10{sign}"));
    for digit in format!("{exponent:0>2}").chars() {
        let digit = digit.to_digit(10).and_then(|n| usize::try_from(n).ok());
        result.extend(digit.map(|n| RAISED[n]));
    }
}
