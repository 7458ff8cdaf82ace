//! Defaults, and nulls that are no values.

use serde_json::Value;

use super::Node;
use crate::raw::text_len;

/// How many bytes of text defaults add to an object at most: many times what a store takes, which refuses what would have had
/// more. A list of many empty objects, each with its defaults, would be more than there is memory for.
const ROOM: usize = 16 << 20;

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

/// Writes declared defaults where nothing stands, or a null that is no value, as long as there is room for them.
pub(super) fn apply(value: &mut Value, node: &Node) -> bool {
    let mut room = ROOM;
    fill(value, node, &mut room)
}

fn fill(value: &mut Value, node: &Node, room: &mut usize) -> bool {
    let mut changed = false;
    match value {
        Value::Object(map) => {
            for (name, inner) in &node.properties {
                let missing = |held: Option<&Value>| held.is_none_or(|v| is_no_value(v, inner));
                if missing(map.get(name.as_str()))
                    && let Some(default) = default_of(inner, room)
                {
                    map.insert(name.to_string(), default);
                    changed = true;
                }
            }
            for (key, held) in map.iter_mut() {
                if let Some(inner) = node.entry(key) {
                    changed |= replace_null(held, inner, room) | fill(held, inner, room);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = &node.items {
                for held in items {
                    changed |= replace_null(held, item, room) | fill(held, item, room);
                }
            }
        }
        _ => {}
    }
    changed
}

fn replace_null(value: &mut Value, node: &Node, room: &mut usize) -> bool {
    let default = is_no_value(value, node).then(|| default_of(node, room));
    match default.flatten() {
        Some(default) => {
            *value = default;
            true
        }
        None => false,
    }
}

/// The default, where there is one and room for it; what does not fit leaves none for others.
fn default_of(node: &Node, room: &mut usize) -> Option<Value> {
    let default = node.default.as_deref()?;
    let left = room.checked_sub(text_len(default));
    *room = left.unwrap_or_default();
    left.map(|_| default.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structural::Structural;
    use serde_json::json;

    #[test]
    fn defaults_have_an_end() {
        let text = "x".repeat(10_000);
        let item = json!({ "type": "object", "properties": { "a": { "type": "string", "default": text } } });
        let list = json!({ "type": "array", "items": item });
        let schema = json!({ "type": "object", "properties": { "l": list } });
        let schema = Structural::parse(&schema).unwrap();
        let filled = |items: usize| {
            let mut object = json!({ "l": vec![json!({}); items] });
            schema.default(&mut object);
            let has = |item: &&Value| item["a"].is_string();
            object["l"].as_array().unwrap().iter().filter(has).count()
        };
        assert_eq!(filled(1_000), 1_000);
        assert_eq!(filled(100_000), ROOM / 10_002);
    }
}
