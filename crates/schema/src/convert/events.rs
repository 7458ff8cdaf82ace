//! core/v1 Event and events.k8s.io/v1 Event: the same thing under other names.

use serde_json::{Value, json};

use super::rename;

const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

pub(super) fn from_core(event: &mut Value) {
    rename(event, NAMES);
    // core/v1 writes these also when they are empty
    if let Some(event) = event.as_object_mut() {
        for name in ["reportingController", "reportingInstance"] {
            if event.get(name).and_then(Value::as_str) == Some("") {
                event.remove(name);
            }
        }
    }
}

pub(super) fn to_core(event: &mut Value) {
    let back: Vec<(&str, &str)> = NAMES.iter().map(|(core, new)| (*new, *core)).collect();
    rename(event, &back);
    if let Some(event) = event.as_object_mut() {
        for name in ["reportingComponent", "reportingInstance"] {
            event.entry(name).or_insert_with(|| json!(""));
        }
    }
}
