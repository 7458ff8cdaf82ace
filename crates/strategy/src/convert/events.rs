//! core/v1 Event and events.k8s.io/v1 Event: the same thing under other names.

use serde_json::Value;

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
}

pub(super) fn to_core(event: &mut Value) {
    let back: Vec<(&str, &str)> = NAMES.iter().map(|(core, new)| (*new, *core)).collect();
    rename(event, &back);
}
