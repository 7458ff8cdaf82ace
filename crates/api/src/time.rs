//! Instants and durations in the forms in which Kubernetes writes them.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::field::quote;

/// A text is no instant in RFC 3339 form; the text is that of Go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parsing time {}{why}", quote(.text))]
pub struct ParseTimeError {
    text: String,
    why: String,
}

/// The layout by which Go calls RFC 3339, in its elements.
const LAYOUT: [&str; 11] = [
    "2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05",
];

/// Parses RFC 3339 with any fraction and offset.
///
/// # Errors
/// When the text has another form or names no instant.
pub fn parse(text: &str) -> Result<Timestamp, ParseTimeError> {
    let error = |why: String| ParseTimeError {
        text: text.to_owned(),
        why,
    };
    // Go insists on this layout; the library would take spaces and shorter forms.
    if let Err((rest, element)) = shape(text) {
        let (rest, layout) = (quote(rest), quote("2006-01-02T15:04:05Z07:00"));
        return Err(error(match element {
            "" => format!(": extra text: {rest}"),
            _ => format!(" as {layout}: cannot parse {rest} as {}", quote(element)),
        }));
    }
    // The library takes a leap second.
    let leaps = text.get(17..19) == Some("60");
    instant(text)
        .filter(|_| !leaps)
        .ok_or_else(|| error(format!(": {} out of range", out_of_range(text))))
}

/// By how much the clocks of a cluster's machines may differ.
pub const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// How long ago something was. What is to come is of now, as clocks differ; by more than [`SKEW`], it was before the clock was set
/// back, and is as long ago as can be: whoever waits for it to be over would wait until that moment comes again.
pub fn age(since: Timestamp, now: Timestamp) -> Duration {
    let age = now.duration_since(since);
    let negative = if age < -SKEW {
        Duration::MAX
    } else {
        Duration::ZERO
    };
    Duration::try_from(age).unwrap_or(negative)
}

/// The instant of a text in RFC 3339 form.
///
/// Those of the library end a day before the year 9999 does, so that each has a date in every zone, and clients in Rust read
/// no other. What is later in that year, as certificates without an end say, is the last that there is.
#[must_use]
pub fn instant(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| {
        let at: DateTime = text.get(..19)?.parse().ok()?;
        let (_, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
        let minutes = match offset.as_bytes() {
            [.., b'Z' | b'z'] => 0,
            [sign, ..] => {
                let (hours, minutes) = offset.get(1..)?.split_once(':')?;
                let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
                if *sign == b'-' { -minutes } else { minutes }
            }
            [] => return None,
        };
        let utc = at.checked_sub(SignedDuration::from_mins(minutes)).ok()?;
        let last = TimeZone::UTC.to_datetime(Timestamp::MAX);
        (utc > last).then_some(Timestamp::MAX)
    })
}

/// Where a text leaves the layout: the rest and the element that was expected, none at the end.
fn shape(text: &str) -> Result<(), (&str, &'static str)> {
    let mut rest = text;
    for element in LAYOUT {
        let fits = rest.len() >= element.len()
            && rest.bytes().zip(element.bytes()).all(|(b, e)| {
                if e.is_ascii_digit() {
                    b.is_ascii_digit()
                } else {
                    b == e
                }
            });
        if !fits {
            return Err((rest, element));
        }
        rest = &rest[element.len()..];
    }
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 {
            rest = &fraction[digits..];
        }
    }
    let end = match rest.as_bytes() {
        [b'Z', ..] => 1,
        [b'+' | b'-', h1, h2, b':', m1, m2, ..]
            if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) =>
        {
            6
        }
        _ => return Err((rest, "Z07:00")),
    };
    if rest.len() > end {
        return Err((&rest[end..], ""));
    }
    Ok(())
}

/// The element of a well-formed text that names nothing.
fn out_of_range(text: &str) -> &'static str {
    let number = |range: std::ops::Range<usize>| text[range].parse::<u8>().unwrap_or(u8::MAX);
    if !(1..=12).contains(&number(5..7)) {
        "month"
    } else if number(11..13) > 23 {
        "hour"
    } else if number(14..16) > 59 {
        "minute"
    } else if number(17..19) > 59 {
        "second"
    } else {
        "day"
    }
}

/// `2006-01-02T15:04:05Z`: UTC, whole seconds, fractions dropped.
pub fn format(time: Timestamp) -> String {
    write(time, "")
}

/// `2006-01-02T15:04:05.000000Z`: UTC, six digits of fraction.
pub fn format_micro(time: Timestamp) -> String {
    let micros = time.as_microsecond().rem_euclid(1_000_000);
    write(time, &format!(".{micros:06}"))
}

fn write(time: Timestamp, fraction: &str) -> String {
    let seconds = time.as_nanosecond().div_euclid(1_000_000_000) as i64;
    let whole = Timestamp::from_second(seconds).unwrap_or(Timestamp::MIN);
    let t = whole.to_zoned(TimeZone::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}Z",
        t.year(),
        t.month(),
        t.day(),
        t.hour(),
        t.minute(),
        t.second()
    )
}

/// A text is no Go duration; the text is that of Go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// Not numbers with units, or out of range.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number without unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit that is none.
    #[error("time: unknown unit {} in duration {}", quote(.unit), quote(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

/// Parses a Go duration such as `1h30m`, `-1.5s` or `0` into nanoseconds.
///
/// # Errors
/// With the texts of Go.
pub fn parse_duration(text: &str) -> Result<i64, ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let limit = i128::from(i64::MAX) + i128::from(negative);
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, after) = rest.split_at(digits(rest));
        let (fraction, after) = match after.strip_prefix('.') {
            Some(f) => f.split_at(digits(f)),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Err(ParseDurationError::MissingUnit(text.to_owned()));
        }
        let scale: i128 = match unit {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => {
                return Err(ParseDurationError::UnknownUnit {
                    unit: unit.to_owned(),
                    text: text.to_owned(),
                });
            }
        };
        let number: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| invalid())?
        };
        total = number
            .checked_mul(scale)
            .and_then(|n| n.checked_add(fraction_of(fraction, scale)))
            .and_then(|n| total.checked_add(n))
            .filter(|n| *n <= limit)
            .ok_or_else(invalid)?;
        rest = after;
    }
    let signed = if negative { -total } else { total };
    i64::try_from(signed).map_err(|_| invalid())
}

/// The fraction of a unit; digits beyond the eighteenth cannot change a nanosecond.
fn fraction_of(digits: &str, scale: i128) -> i128 {
    let (mut value, mut unit) = (0i128, 1i128);
    for b in digits.bytes().take(18) {
        value = value * 10 + i128::from(b - b'0');
        unit *= 10;
    }
    value * scale / unit
}

/// Prints nanoseconds as Go prints a duration: `1h30m0s`, `1.5s`, `250ms`, `0s`.
pub fn format_duration(nanos: i64) -> String {
    let mut out = String::new();
    if nanos < 0 {
        out.push('-');
    }
    let n = nanos.unsigned_abs();
    if n == 0 {
        return "0s".to_owned();
    }
    if n < 1_000_000_000 {
        let (unit, scale) = match n {
            0..1_000 => ("ns", 1),
            1_000..1_000_000 => ("\u{b5}s", 1_000),
            _ => ("ms", 1_000_000),
        };
        push_decimal(&mut out, n, scale);
        out.push_str(unit);
        return out;
    }
    let seconds = n / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    if hours > 0 {
        let _ = write!(out, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(out, "{minutes}m");
    }
    push_decimal(&mut out, n % 60_000_000_000, 1_000_000_000);
    out.push('s');
    out
}

fn push_decimal(out: &mut String, value: u64, scale: u64) {
    let _ = write!(out, "{}", value / scale);
    let fraction = value % scale;
    if fraction > 0 {
        let width = scale.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn instants() {
        let t = parse("2024-02-29T12:34:56.789123456+02:00").unwrap();
        assert_eq!(format(t), "2024-02-29T10:34:56Z");
        assert_eq!(format_micro(t), "2024-02-29T10:34:56.789123Z");
        let t = parse("1969-12-31T23:59:59.5Z").unwrap();
        assert_eq!(format(t), "1969-12-31T23:59:59Z");
        for bad in [
            "",
            "now",
            "2024-02-30T00:00:00Z",
            "2024-02-29 12:34:56Z",
            "2024-02-29T12:34:56",
            "2024-02-29T12:34Z",
            "2024-02-29T12:34:56.Z",
            "2024-02-29T12:34:56+0200",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for (bad, error) in [
            (
                "soon",
                "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \"2006\"",
            ),
            (
                "2024-13-01T00:00:00Z",
                "parsing time \"2024-13-01T00:00:00Z\": month out of range",
            ),
            (
                "2024-02-30T00:00:00Z",
                "parsing time \"2024-02-30T00:00:00Z\": day out of range",
            ),
            (
                "2024-02-01T00:00:00Zx",
                "parsing time \"2024-02-01T00:00:00Zx\": extra text: \"x\"",
            ),
        ] {
            assert_eq!(parse(bad).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn what_was_before_the_clock_was_set_back_is_long_ago() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(age(at(10), at(70)), Duration::from_secs(60));
        assert_eq!(age(at(70), at(70)), Duration::ZERO);
        assert_eq!(age(at(72), at(70)), Duration::ZERO, "clocks differ");
        assert_eq!(age(at(1_000_000), at(70)), Duration::MAX);
    }

    #[test]
    fn the_year_9999_has_all_its_days() {
        let last = "9999-12-30T22:00:00Z";
        for text in [
            last,
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999999Z",
            "9999-12-31T23:59:59+14:00",
            "9999-12-31T09:59:59-14:00",
        ] {
            let at = parse(text).unwrap();
            assert_eq!(format(at), last, "{text}");
            assert_eq!(parse(&format_micro(at)).map(format), Ok(last.to_owned()));
        }
        assert_eq!(
            parse("0001-01-01T00:00:00Z").map(format).unwrap(),
            "0001-01-01T00:00:00Z"
        );
        for text in [
            // the year 10000 has five digits
            "9999-12-31T23:59:59-00:01",
            "10000-01-01T00:00:00Z",
            "9999-12-32T00:00:00Z",
            "9999-12-31T24:00:00Z",
            "9999-12-31T23:59:60Z",
            "2016-12-31T23:59:60Z",
            "9999-12-31T23:59:59+99:00",
            "9999-12-31T23:59:59",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["", "Z", "9999-12-31T23:59:59ü", "9999-12-31T23:59:59+9ü:9"] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, nanos, printed) in [
            ("0", 0, "0s"),
            ("5s", 5_000_000_000, "5s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("-1.5s", -1_500_000_000, "-1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("1m0.25s", 60_250_000_000, "1m0.25s"),
            ("100ns", 100, "100ns"),
            ("1us", 1000, "1\u{b5}s"),
        ] {
            assert_eq!(parse_duration(text).unwrap(), nanos, "{text}");
            assert_eq!(format_duration(nanos), printed);
        }
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("3", "time: missing unit in duration \"3\""),
            ("3x", "time: unknown unit \"x\" in duration \"3x\""),
            ("s", "time: invalid duration \"s\""),
            ("9999999h", "time: invalid duration \"9999999h\""),
        ] {
            assert_eq!(parse_duration(text).unwrap_err().to_string(), error);
        }
    }

    proptest! {
        #[test]
        fn durations_round_trip(n: i64) {
            prop_assert_eq!(parse_duration(&format_duration(n)).unwrap(), n);
        }

        #[test]
        fn parsing_never_panics(s in "\\PC*") {
            let _ = parse(&s);
            let _ = parse_duration(&s);
        }

        #[test]
        fn instants_round_trip(s in 0i64..4_000_000_000, us in 0i32..1_000_000) {
            let t = Timestamp::new(s, us * 1000).unwrap();
            prop_assert_eq!(parse(&format_micro(t)).unwrap(), t);
            prop_assert_eq!(parse(&format(t)).unwrap().as_second(), s);
        }
    }
}
