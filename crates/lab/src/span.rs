//! Spans of time in files: `500ms`, `3s`, `1m30s`, `1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A span of time, written as Go writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A text that is no span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a span of time such as 500ms, 3s or 1m30s")]
pub struct NotASpan(String);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let bad = || NotASpan(text.to_owned());
        if text == "0" {
            return Ok(Self::default());
        }
        let (mut rest, mut sum) = (text, 0_u64);
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            // `ms` stands before `m` in the table.
            let (unit, millis) = UNITS
                .iter()
                .find(|(unit, _)| rest.starts_with(unit))
                .ok_or_else(bad)?;
            rest = &rest[unit.len()..];
            sum = number
                .checked_mul(*millis)
                .and_then(|n| sum.checked_add(n))
                .ok_or_else(bad)?;
        }
        Ok(Self(Duration::from_millis(sum)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1000) {
            write!(f, "{}s", millis / 1000)
        } else {
            write!(f, "{millis}ms")
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written() {
        let millis = |text: &str| text.parse::<Span>().unwrap().0.as_millis();
        assert_eq!(millis("500ms"), 500);
        assert_eq!(millis("1m30s"), 90_000);
        assert_eq!(millis("1h"), 3_600_000);
        assert_eq!(millis("0"), 0);
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1d",
            "5 s",
            "99999999999999999999s",
            "é",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?}");
        }
        assert_eq!(Span(Duration::from_millis(1500)).to_string(), "1500ms");
        assert_eq!(Span(Duration::from_secs(90)).to_string(), "90s");
    }
}
