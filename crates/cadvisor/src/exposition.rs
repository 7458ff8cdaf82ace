//! Prometheus' text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::Write as _;

/// Labels in braces and a number with the time it was measured at, in nanoseconds since the epoch.
pub type Sample = (String, f64, Option<i64>);

/// Seconds of nanoseconds.
#[allow(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats"
)]
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A whole number as the format has it.
#[allow(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats"
)]
pub fn bytes(n: u64) -> f64 {
    n as f64
}

/// A value of a label in quotes.
pub fn quoted(value: &str) -> String {
    let escaped = value
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', r"\n");
    format!("\"{escaped}\"")
}

/// Writes all samples of one name; nothing when there are none.
pub fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: Vec<Sample>) {
    if samples.is_empty() {
        return;
    }
    // Writing into a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value, time) in samples {
        let _ = write!(out, "{name}{labels} {value}");
        if let Some(nanos) = time {
            let _ = write!(out, " {}", nanos / 1_000_000);
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        assert_eq!(quoted("a\"b\\c\nd"), r#""a\"b\\c\nd""#);
    }
}
