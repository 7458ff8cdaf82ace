//! Defaults, and nulls that are no values.

use serde_json::Value;

use super::Node;

/// Whether null is no value here.
fn is_no_value(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.nullable
}

/// Drops nulls where null is no value and no default takes its place.
pub(super) fn drop_nulls(value: &mut Value, node: &Node) -> bool {
    let mut changed = false;
    match value {
        Value::Object(map) => map.retain(|key, inner| {
            let Some(node) = node.entry(key) else {
                return true;
            };
            if is_no_value(inner, node) {
                let kept = node.default.is_some();
                changed |= !kept;
                return kept;
            }
            changed |= drop_nulls(inner, node);
            true
        }),
        Value::Array(items) => {
            if let Some(item) = &node.items {
                for inner in items {
                    changed |= drop_nulls(inner, item);
                }
            }
        }
        _ => {}
    }
    changed
}

/// Writes declared defaults where nothing stands, or a null that is no value.
pub(super) fn apply(value: &mut Value, node: &Node) -> bool {
    let mut changed = false;
    match value {
        Value::Object(map) => {
            for (name, inner) in &node.properties {
                let Some(default) = &inner.default else {
                    continue;
                };
                if map
                    .get(name.as_str())
                    .is_none_or(|held| is_no_value(held, inner))
                {
                    map.insert(name.to_string(), (**default).clone());
                    changed = true;
                }
            }
            for (key, held) in map.iter_mut() {
                if let Some(inner) = node.entry(key) {
                    changed |= replace_null(held, inner) | apply(held, inner);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = &node.items {
                for held in items {
                    changed |= replace_null(held, item) | apply(held, item);
                }
            }
        }
        _ => {}
    }
    changed
}

fn replace_null(value: &mut Value, node: &Node) -> bool {
    match &node.default {
        Some(default) if is_no_value(value, node) => {
            *value = (**default).clone();
            true
        }
        _ => false,
    }
}
