//! What is to be told of a request besides its answer.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde_json::Value;

const TOTAL_RUNES: usize = 4096;
const CUT_RUNES: usize = 256;

/// What a request leaves behind while it is worked on: warnings for the client, each sent once,
/// annotations for the audit log, and the options the client sent.
#[derive(Debug, Default)]
pub struct Warnings {
    texts: Mutex<Vec<String>>,
    annotations: Mutex<BTreeMap<String, String>>,
    options: Mutex<Option<Value>>,
}

impl Warnings {
    /// Adds a warning, unless it is there, or there are more than can be shown: an object has room for many thousands, and each
    /// is compared with those before.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut held = self.texts.lock();
        if !text.is_empty() && held.len() < TOTAL_RUNES && !held.contains(&text) {
            held.push(text);
        }
    }

    /// Adds an audit annotation; the first value of a key stays.
    pub fn annotate(&self, key: impl Into<String>, value: impl Into<String>) {
        let mut held = self.annotations.lock();
        held.entry(key.into()).or_insert_with(|| value.into());
    }

    /// The audit annotations so far.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.annotations.lock().clone()
    }

    /// Keeps the request's options (`CreateOptions` and its relatives), which webhooks are shown.
    pub fn set_options(&self, options: Value) {
        *self.options.lock() = Some(options);
    }

    /// The request's options, if it has any.
    pub fn options(&self) -> Option<Value> {
        self.options.lock().clone()
    }

    /// The `Warning` header values, cut to the total budget.
    pub fn header_values(&self) -> Vec<String> {
        let held = self.texts.lock();
        let total: usize = held.iter().map(|text| text.chars().count()).sum();
        let cut = total > TOTAL_RUNES;
        let mut left = TOTAL_RUNES;
        let mut values = Vec::with_capacity(held.len());
        for text in held.iter() {
            let text: String = if cut {
                text.chars().take(CUT_RUNES).collect()
            } else {
                text.clone()
            };
            let length = text.chars().count();
            if length > left {
                break;
            }
            left -= length;
            values.push(format!("299 - \"{}\"", escape(&text)));
        }
        values
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_023_warnings_are_escaped_and_sent_once() {
        let warnings = Warnings::default();
        warnings.add("unknown field \"a\\b\"");
        warnings.add("unknown field \"a\\b\"");
        warnings.add("second");
        let values = warnings.header_values();
        assert_eq!(values[0], r#"299 - "unknown field \"a\\b\"""#);
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn no_more_are_kept_than_can_be_shown() {
        let warnings = Warnings::default();
        for i in 0..TOTAL_RUNES + 100 {
            warnings.add(format!("w{i}"));
        }
        assert_eq!(warnings.texts.lock().len(), TOTAL_RUNES);
        assert_eq!(warnings.header_values()[0], "299 - \"w0\"");
    }

    #[test]
    fn warnings_past_the_budget_are_cut_then_dropped() {
        let warnings = Warnings::default();
        for i in 0..40 {
            warnings.add(format!("{i:04}{}", "x".repeat(400)));
        }
        let values = warnings.header_values();
        assert_eq!(values.len(), TOTAL_RUNES / CUT_RUNES);
    }
}
