//! The ways cells are written: durations, label lists, selectors, containers.

use jiff::Timestamp;
use serde_json::Value;

static NULL: Value = Value::Null;

/// One object being printed.
pub(super) struct Row<'a> {
    pub(super) obj: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> Row<'a> {
    pub(super) fn new(obj: &'a Value, now: Timestamp) -> Self {
        Self { obj, now }
    }

    pub(super) fn at(&self, path: &[&str]) -> &'a Value {
        at(self.obj, path)
    }

    pub(super) fn str(&self, path: &[&str]) -> &'a str {
        self.at(path).as_str().unwrap_or_default()
    }

    /// An integer cell; 0 when missing.
    pub(super) fn int(&self, path: &[&str]) -> i64 {
        self.at(path).as_i64().unwrap_or(0)
    }

    pub(super) fn list(&self, path: &[&str]) -> &'a [Value] {
        self.at(path).as_array().map_or(&[], Vec::as_slice)
    }

    pub(super) fn name(&self) -> Value {
        Value::from(self.str(&["metadata", "name"]))
    }

    pub(super) fn age(&self) -> Value {
        Value::from(self.since(&["metadata", "creationTimestamp"]))
    }

    pub(super) fn deleting(&self) -> bool {
        !self.at(&["metadata", "deletionTimestamp"]).is_null()
    }

    /// Time since the moment at a path, `<unknown>` when there is none.
    pub(super) fn since(&self, path: &[&str]) -> String {
        self.since_time(self.time(path))
    }

    pub(super) fn since_time(&self, time: Option<Timestamp>) -> String {
        time.map_or_else(
            || "<unknown>".to_owned(),
            |t| human_duration(self.now.as_second() - t.as_second()),
        )
    }

    pub(super) fn time(&self, path: &[&str]) -> Option<Timestamp> {
        time(self.at(path))
    }

    /// A string cell, `or` when empty.
    pub(super) fn str_or(&self, path: &[&str], or: &str) -> Value {
        Value::from(non_empty(self.str(path), or))
    }

    /// An integer cell, `or` when missing.
    pub(super) fn int_or(&self, path: &[&str], or: &str) -> Value {
        match self.at(path) {
            Value::Number(n) => Value::from(n.to_string()),
            _ => Value::from(or),
        }
    }
}

pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter()
        .fold(value, |v, key| v.get(key).unwrap_or(&NULL))
}

pub(super) fn str_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

pub(super) fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

pub(super) fn non_empty<'a>(text: &'a str, or: &'a str) -> &'a str {
    if text.is_empty() { or } else { text }
}

/// A duration in the approximation kubectl shows: `45s`, `5m3s`, `3h25m`, `2d4h`, `400d`, `3y8d`.
/// Slightly negative durations (clocks that differ) count as zero.
pub fn human_duration(seconds: i64) -> String {
    let two = |big: i64, b: char, small: i64, s: char| match small {
        0 => format!("{big}{b}"),
        _ => format!("{big}{b}{small}{s}"),
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        i64::MIN..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, 'd', hours % 24, 'h'),
        _ if days < 365 * 2 => format!("{days}d"),
        _ if days < 365 * 8 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// `a=b,c=d` in the order of the keys, `<none>` when empty.
pub(super) fn labels(map: &Value) -> String {
    let mut pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    non_empty(&pairs.join(","), "<none>").to_owned()
}

/// A label selector (matchLabels and matchExpressions) in its text form, `<none>` when empty.
pub(super) fn selector(selector: &Value) -> String {
    let mut parts: Vec<(String, String)> = Vec::new();
    for (key, value) in at(selector, &["matchLabels"])
        .as_object()
        .into_iter()
        .flatten()
    {
        parts.push((
            key.clone(),
            format!("{key}={}", value.as_str().unwrap_or_default()),
        ));
    }
    for expression in list_at(selector, &["matchExpressions"]) {
        let key = str_at(expression, &["key"]);
        let mut values: Vec<&str> = list_at(expression, &["values"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match str_at(expression, &["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        parts.push((key.to_owned(), text));
    }
    parts.sort_by(|a, b| a.0.cmp(&b.0));
    let texts: Vec<String> = parts.into_iter().map(|(_, text)| text).collect();
    non_empty(&texts.join(","), "<none>").to_owned()
}

/// Names and images of the containers of a pod spec, each joined by commas.
pub(super) fn containers(pod_spec: &Value) -> [Value; 2] {
    ["name", "image"].map(|key| {
        let all: Vec<&str> = list_at(pod_spec, &["containers"])
            .iter()
            .map(|c| str_at(c, &[key]))
            .collect();
        Value::from(all.join(","))
    })
}

/// The first three entries, then how many more there are.
pub(super) fn first_three(entries: &[String], empty: &str) -> String {
    const SHOWN: usize = 3;
    let shown = entries[..entries.len().min(SHOWN)].join(",");
    if entries.len() > SHOWN {
        return format!("{shown} + {} more...", entries.len() - SHOWN);
    }
    non_empty(&shown, empty).to_owned()
}

/// `True`, `False`, or `<unset>` when missing.
pub(super) fn bool_text(value: &Value) -> Value {
    Value::from(match value.as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    })
}

/// The condition of a type in a list of conditions.
pub(super) fn condition<'a>(conditions: &'a [Value], kind: &str) -> Option<&'a Value> {
    conditions.iter().find(|c| str_at(c, &["type"]) == kind)
}

/// Whether a condition of a type is True.
pub(super) fn is_true(conditions: &[Value], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(|c| str_at(c, &["status"]) == "True")
}

/// An integer or a string as text; `or` when missing.
pub(super) fn int_or_string(value: &Value, or: &str) -> Value {
    match value {
        Value::Number(n) => Value::from(n.to_string()),
        Value::String(s) => Value::from(s.as_str()),
        _ => Value::from(or),
    }
}

/// RFC 3339 as stored; `<unknown>` when missing.
pub(super) fn created_at(row: &Row<'_>) -> Value {
    row.str_or(&["metadata", "creationTimestamp"], "<unknown>")
}
