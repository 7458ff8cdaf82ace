//! Timestamps and durations.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::{Native, failed, no_overload};
use crate::error::EvalError;
use crate::value::Value;

/// The years 1 to 9999.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

pub(super) fn find(name: &str, member: bool) -> Option<Native> {
    if !member {
        return None;
    }
    Some(match name {
        "getFullYear" => |_, args| part(args, |t| i64::from(t.year())),
        "getMonth" => |_, args| part(args, |t| i64::from(t.month()) - 1),
        "getDayOfYear" => |_, args| part(args, |t| i64::from(t.day_of_year()) - 1),
        "getDayOfMonth" => |_, args| part(args, |t| i64::from(t.day()) - 1),
        "getDate" => |_, args| part(args, |t| i64::from(t.day())),
        "getDayOfWeek" => |_, args| part(args, |t| i64::from(t.weekday().to_sunday_zero_offset())),
        "getHours" => |_, args| span(args, 3_600_000_000_000, |t| i64::from(t.hour())),
        "getMinutes" => |_, args| span(args, 60_000_000_000, |t| i64::from(t.minute())),
        "getSeconds" => |_, args| span(args, 1_000_000_000, |t| i64::from(t.second())),
        "getMilliseconds" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Int(nanos % 1_000_000_000 / 1_000_000)),
            _ => part(args, |t| i64::from(t.millisecond())),
        },
        _ => return None,
    })
}

fn span(args: &[Value], unit: i64, of_time: fn(&jiff::Zoned) -> i64) -> Result<Value, EvalError> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / unit)),
        _ => part(args, of_time),
    }
}

fn part(args: &[Value], of: fn(&jiff::Zoned) -> i64) -> Result<Value, EvalError> {
    let (time, zone) = match args {
        [Value::Timestamp(time)] => (time, TimeZone::UTC),
        [Value::Timestamp(time), Value::String(name)] => match zone(name) {
            Some(zone) => (time, zone),
            None => return failed(format!("unknown time zone {name}")),
        },
        _ => return no_overload(),
    };
    Ok(Value::Int(of(&time.to_zoned(zone))))
}

/// A name of the time zone database or an offset such as `+02:00`.
fn zone(name: &str) -> Option<TimeZone> {
    if let Some((hours, minutes)) = name.split_once(':') {
        let negative = hours.starts_with('-');
        let hours: i32 = hours.trim_start_matches(['+', '-']).parse().ok()?;
        let minutes: i32 = minutes.parse().ok()?;
        let seconds = hours
            .checked_mul(3600)?
            .checked_add(minutes.checked_mul(60)?)?;
        let offset = Offset::from_seconds(if negative { -seconds } else { seconds }).ok()?;
        return Some(TimeZone::fixed(offset));
    }
    if matches!(name, "" | "UTC") {
        return Some(TimeZone::UTC);
    }
    TimeZone::get(name).ok()
}

pub(super) fn in_range(time: Timestamp) -> bool {
    (FIRST..=LAST).contains(&time.as_second())
}

pub(super) fn shift(time: Timestamp, nanos: Option<i64>) -> Result<Value, EvalError> {
    let shifted = nanos
        .and_then(|n| time.as_nanosecond().checked_add(i128::from(n)))
        .and_then(|n| Timestamp::from_nanosecond(n).ok())
        .filter(|t| in_range(*t));
    shifted.map_or_else(|| failed("timestamp overflow"), |t| Ok(Value::Timestamp(t)))
}

/// RFC 3339 with a `T` and an offset.
pub(crate) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || bytes[10] != b'T' || text.contains('[') {
        return None;
    }
    let zoned = text.ends_with('Z') || matches!(bytes[bytes.len() - 6], b'+' | b'-');
    davit_api::time::instant(text).filter(|t| zoned && in_range(*t))
}

pub(crate) fn show_timestamp(time: Timestamp) -> String {
    time.to_string()
}

/// Go's form: `1h2m3.5s`, also with `ms`, `us`, `ns`.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|n| *n > 0)?;
        let (number, tail) = rest.split_at(end);
        let (unit, tail) = tail.split_at(
            tail.find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(tail.len()),
        );
        let nanos: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        if whole.len() > 19 {
            return None;
        }
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        total = total.checked_add(whole.checked_mul(nanos)?)?;
        let mut scale = nanos;
        for digit in fraction.chars() {
            scale /= 10;
            total += i128::from(digit.to_digit(10)?) * scale;
        }
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// Seconds with a fraction: `3.5s`.
pub(crate) fn show_duration(nanos: i64) -> String {
    let mut text = String::new();
    let size = nanos.unsigned_abs();
    if nanos < 0 {
        text.push('-');
    }
    let _ = write!(text, "{}", size / 1_000_000_000);
    let fraction = size % 1_000_000_000;
    if fraction > 0 {
        let digits = format!("{fraction:09}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    text.push('s');
    text
}
