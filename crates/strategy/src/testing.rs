//! What tests of single kinds share.

use davit_api::field::ErrorList;
use serde_json::Value;

use crate::strategy;

/// One line for each fault.
pub(crate) fn lines(errors: &ErrorList) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The faults of a new object after its defaults, one a line.
pub(crate) fn faults(group: &str, version: &str, kind: &str, obj: &Value) -> String {
    let strategy = strategy(group, version, kind);
    let mut obj = obj.clone();
    strategy.default(&mut obj);
    strategy.prepare_for_create(&mut obj);
    lines(&strategy.validate(&obj))
}

/// Claims that a new object has no faults.
pub(crate) fn none(group: &str, version: &str, kind: &str, obj: &Value) {
    assert_eq!(faults(group, version, kind, obj), "", "{obj}");
}

/// The faults of an update, one a line.
pub(crate) fn update_faults(
    group: &str,
    version: &str,
    kind: &str,
    new: &Value,
    old: &Value,
) -> String {
    let strategy = strategy(group, version, kind);
    let (mut new, mut old) = (new.clone(), old.clone());
    strategy.default(&mut old);
    strategy.default(&mut new);
    strategy.prepare_for_update(&mut new, &old);
    lines(&strategy.validate_update(&new, &old))
}

/// The faults of a status update, one a line.
pub(crate) fn status_faults(
    group: &str,
    version: &str,
    kind: &str,
    new: &Value,
    old: &Value,
) -> String {
    let strategy = strategy(group, version, kind);
    let (mut new, mut old) = (new.clone(), old.clone());
    strategy.default(&mut old);
    strategy.default(&mut new);
    strategy.prepare_status_update(&mut new, &old);
    lines(&strategy.validate_status_update(&new, &old))
}
