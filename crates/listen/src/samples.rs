//! Reading pages of metrics of others, line by line (Prometheus' text format,
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>).

/// Labels of a sample that are read.
const LABELS_MAX: usize = 8;

/// One line of a page of metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricSample<'a> {
    /// The name of the series.
    pub name: &'a str,
    /// Names and values of its labels, eight at most.
    pub labels: Vec<(&'a str, String)>,
    /// What was measured; it may be no number, or infinite.
    pub value: f64,
    /// When, in milliseconds since the epoch, where the line says so.
    pub milliseconds: Option<i64>,
}

impl<'a> MetricSample<'a> {
    /// `name{label="value",…} value [milliseconds]`; nothing for what is another line, or cannot be read.
    pub fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let mut words = rest.split_ascii_whitespace();
        let value = words.next()?.parse().ok()?;
        let milliseconds = match words.next() {
            Some(time) => Some(time.parse().ok()?),
            None => None,
        };
        Some(Self {
            name,
            labels,
            value,
            milliseconds,
        })
    }

    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Labels up to the closing brace, and what follows it.
fn labels(text: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((found, rest));
        }
        if found.len() == LABELS_MAX {
            return None;
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        found.push((name, value));
        rest = after;
    }
}

/// A value up to its closing quote without its escapes, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_in_labels() {
        let (found, rest) = labels(r#"a="x\"y\\z\n", b="é"} 1"#).unwrap();
        assert_eq!(
            found,
            [("a", "x\"y\\z\n".to_owned()), ("b", "é".to_owned())]
        );
        assert_eq!(rest, " 1");
    }
}
