//! Durations as Go writes them, `1m30s`, which may be negative: the judgement of a negative one is validation's.

use davit_api::time::{format_duration, parse_duration};
use jiff::SignedDuration;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// As Go writes it.
pub(super) fn show(duration: SignedDuration) -> String {
    format_duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// For fields of type `metav1.Duration`.
pub(super) fn serialize<S: Serializer>(value: &SignedDuration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&show(*value))
}

/// For fields of type `metav1.Duration`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SignedDuration, D::Error> {
    let nanos = parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)?;
    Ok(SignedDuration::from_nanos(nanos))
}
