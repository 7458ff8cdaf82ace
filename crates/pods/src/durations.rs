//! Durations as Go writes them: `10s`, `1m30s`, `1.5h`, `500ms`.

use std::time::Duration;

/// Units in nanoseconds; those whose name another one begins with come later.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 6e10),
    ("h", 3.6e12),
    ("\u{3bc}s", 1e3),
];

/// Reads a duration; zero is one, a negative one is none.
///
/// # Errors
/// What is wrong, for people.
pub fn parse(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a duration");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(bad());
    }
    let (mut rest, mut sum) = (text, 0.0_f64);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let end = end.ok_or_else(bad)?;
        let number: f64 = rest[..end].parse().map_err(|_| bad())?;
        let tail = &rest[end..];
        let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let unit = &tail[..letters.unwrap_or(tail.len())];
        let (_, nanos) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        sum += number * nanos;
        rest = &tail[unit.len()..];
    }
    Duration::try_from_secs_f64(sum / 1e9).map_err(|_| bad())
}

/// Reads a duration longer than zero.
///
/// # Errors
/// What is wrong, for people.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err(format!("{text:?} is not longer than zero")),
        duration => Ok(duration),
    }
}

/// Writes a duration as Go does: `1h0m0s`, `5m0s`, `1.5s`, `100ms`, `0s`.
pub fn show(duration: Duration) -> String {
    let below_a_second = duration.subsec_nanos();
    let seconds = duration.as_secs();
    if seconds == 0 && below_a_second != 0 {
        let (unit, size) = match below_a_second {
            0..1_000 => ("ns", 1.0),
            1_000..1_000_000 => ("\u{b5}s", 1e3),
            _ => ("ms", 1e6),
        };
        return format!("{}{unit}", f64::from(below_a_second) / size);
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let fraction = format!("{below_a_second:09}");
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let rest = format!("{}{point}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => rest,
        (0, _) => format!("{minutes}m{rest}"),
        _ => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("1h2m3s4ms", 3_723_004),
            ("1.5h", 5_400_000),
            ("10m0s", 600_000),
            ("0s", 0),
            ("0", 0),
        ] {
            assert_eq!(parse(text).unwrap().as_millis(), millis, "{text}");
        }
        for bad in ["", "10", "s", "1x", "-1s", "1..s"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse_positive("0s").is_err());
    }

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        for text in [
            "0s",
            "10s",
            "1.5s",
            "5m0s",
            "1h0m0s",
            "36h0m0.25s",
            "100ms",
            "1.5ms",
            "7ns",
        ] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
    }
}
