//! What a server answers, without what differs from server to server, and how two answers differ.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// One answer, masked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    /// Texts of `Warning` headers, sorted.
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Value,
}

/// Longer texts are cut in the lines that tell of a difference.
const SHOWN: usize = 400;

impl Answer {
    /// Two answers are the same when they have nothing left that differs.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.code == other.code && self.warnings == other.warnings && self.body == other.body
    }

    fn message(&self) -> String {
        let text = self.body["message"].as_str().unwrap_or_default();
        format!("{} {text}", self.code)
    }
}

/// The lines that tell how `ours` differs from `theirs`: what, the one, the other.
pub(crate) fn differences(theirs: &Answer, ours: &Answer) -> Vec<String> {
    if theirs.code != ours.code {
        return vec![line("code", &theirs.message(), &ours.message())];
    }
    let mut lines = BTreeSet::new();
    let (a, b) = (&theirs.warnings, &ours.warnings);
    lines.extend(
        a.iter()
            .filter(|w| !b.contains(w))
            .map(|w| line("warning", w, "-")),
    );
    lines.extend(
        b.iter()
            .filter(|w| !a.contains(w))
            .map(|w| line("warning", "-", w)),
    );
    let causes = |answer: &Answer| {
        let causes = answer.body["details"]["causes"].as_array().cloned();
        causes.unwrap_or_default()
    };
    let (a, b) = (causes(theirs), causes(ours));
    if theirs.code >= 400 && !a.is_empty() && !b.is_empty() {
        let text = |cause: &Value| {
            let part = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", part("field"), part("reason"), part("message"))
        };
        let (a, b): (Vec<_>, Vec<_>) = (a.iter().map(text).collect(), b.iter().map(text).collect());
        lines.extend(
            a.iter()
                .filter(|c| !b.contains(c))
                .map(|c| line("cause", c, "-")),
        );
        lines.extend(
            b.iter()
                .filter(|c| !a.contains(c))
                .map(|c| line("cause", "-", c)),
        );
        if lines.is_empty() && a != b {
            lines.insert(line("cause", "another order", "-"));
        }
        return lines.into_iter().collect();
    }
    differ("", &theirs.body, &ours.body, &mut lines);
    lines.into_iter().collect()
}

fn line(what: &str, theirs: &str, ours: &str) -> String {
    let short = |text: &str| {
        text.chars()
            .take(SHOWN)
            .collect::<String>()
            .replace('\n', " ")
    };
    format!("{what} | {} | {}", short(theirs), short(ours))
}

fn differ(at: &str, theirs: &Value, ours: &Value, lines: &mut BTreeSet<String>) {
    match (theirs, ours) {
        (a, b) if a == b => {}
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let place = format!("{at}.{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differ(&place, a, b, lines),
                    (Some(a), None) => drop(lines.insert(line(&place, &a.to_string(), "absent"))),
                    (None, Some(b)) => drop(lines.insert(line(&place, "absent", &b.to_string()))),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (a, b) in a.iter().zip(b) {
                differ(&format!("{at}[]"), a, b, lines);
            }
        }
        (a, b) => drop(lines.insert(line(at, &a.to_string(), &b.to_string()))),
    }
}

/// What is replaced in answers.
pub(crate) struct Mask<'a> {
    /// The name of the case, which stands in many texts.
    pub(crate) name: &'a str,
    /// What names begin with that the servers make up; or nothing.
    pub(crate) generate_name: String,
    /// The date of today, as in RFC 3339, and that of tomorrow.
    pub(crate) today: [String; 2],
}

impl Mask<'_> {
    pub(crate) fn text(&self, text: &str) -> String {
        let mut out = mask_uids(text);
        // a shorter one stands in other words, too
        if self.name.len() > 5 {
            out = out.replace(self.name, "NAME");
        }
        let word = |c: char| c.is_ascii_alphanumeric();
        out = mask_after(&out, "kube-api-access-", word, "XXXXX");
        // a dot alone stands in every version
        if self.generate_name != "." {
            out = mask_after(&out, &self.generate_name, word, "XXXXX");
        }
        let digit = |c: char| c.is_ascii_digit();
        let versions = [
            "resourceVersion\":\"",
            "resourceVersion\\\":\\\"",
            "resourceVersion:",
            "in record (",
            "ResourceVersion in object meta: ",
            "resource version: 99999999, current: ",
        ];
        for prefix in versions {
            out = mask_after(&out, prefix, digit, "MASKED");
        }
        out = mask_after(&out, "10.96.", |c| c.is_ascii_digit() || c == '.', "X");
        for day in &self.today {
            out = mask_after(
                &out,
                day,
                |c| c.is_ascii_digit() || ":.Z".contains(c),
                "NOW",
            );
        }
        out
    }

    pub(crate) fn value(&self, value: &mut Value) {
        match value {
            Value::Object(map) => self.object(map),
            Value::Array(list) => list.iter_mut().for_each(|item| self.value(item)),
            Value::String(text) if self.is_now(text) => *text = "NOW".to_owned(),
            Value::String(text) => *text = self.text(text),
            _ => {}
        }
    }

    fn is_now(&self, text: &str) -> bool {
        let is_time = text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z');
        is_time && self.today.iter().any(|day| text.starts_with(day.as_str()))
    }

    fn object(&self, map: &mut Map<String, Value>) {
        for (key, value) in map.iter_mut() {
            let masked = match key.as_str() {
                "resourceVersion" | "continue" | "token" | "kubernetes.io/created-by" => "MASKED",
                "clusterIP" | "nodePort" | "healthCheckNodePort" => "GIVEN",
                "clusterIPs" if value[0] != "None" => {
                    let count = value.as_array().map_or(0, Vec::len);
                    *value = Value::from(vec!["GIVEN"; count]);
                    continue;
                }
                "cells" => {
                    self.value(value);
                    let cells = value.as_array_mut().into_iter().flatten();
                    cells.for_each(mask_cell);
                    continue;
                }
                "managedFields" => {
                    self.value(value);
                    if let Value::Array(list) = value {
                        list.sort_by_cached_key(writer);
                    }
                    continue;
                }
                _ => {
                    self.value(value);
                    continue;
                }
            };
            let is_given =
                !matches!(&*value, Value::Null) && *value != "None" && *value != "" && *value != 0;
            if is_given && !value.is_object() && !value.is_array() {
                *value = Value::from(masked);
            }
        }
    }
}

/// Whose entry it is among the owners of fields.
fn writer(entry: &Value) -> String {
    ["manager", "operation", "subresource", "apiVersion"]
        .map(|key| entry[key].to_string())
        .join(" ")
}

/// Ages and the node ports that are given.
fn mask_cell(cell: &mut Value) {
    let Some(text) = cell.as_str() else { return };
    let is_age = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if text.strip_suffix('s').is_some_and(is_age) {
        *cell = Value::from("AGE");
    } else {
        *cell = Value::from(mask_after(text, ":3", |c| c.is_ascii_digit(), "GIVEN"));
    }
}

/// What follows a prefix, as long as it is of these characters, becomes `sign`.
fn mask_after(text: &str, prefix: &str, of: impl Fn(char) -> bool, sign: &str) -> String {
    let mut parts = text.split(prefix);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts.filter(|_| !prefix.is_empty()) {
        let rest = part.trim_start_matches(&of);
        out.push_str(prefix);
        if rest.len() < part.len() {
            out.push_str(sign);
        }
        out.push_str(rest);
    }
    if prefix.is_empty() {
        text.to_owned()
    } else {
        out
    }
}

/// Every UUID becomes `UID`.
fn mask_uids(text: &str) -> String {
    let is_uid = |bytes: &[u8]| {
        bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(byte),
        })
    };
    let mut out = text.to_owned();
    let mut at = 0;
    while at + 36 <= out.len() {
        if is_uid(&out.as_bytes()[at..at + 36]) {
            out.replace_range(at..at + 36, "UID");
        }
        at += 1;
    }
    out
}
