//! Pruning: what is not declared goes.

use serde_json::Value;
use std::fmt::Write as _;

use super::{Additional, Node};

/// Paths of what was pruned: `spec.a`, `spec.list[0].b`.
pub type Pruned = Vec<String>;

/// Most paths that are told.
const MAX_TOLD: usize = 100;

/// Drops what is not declared. The root of an object has apiVersion, kind and metadata without
/// declaring them.
pub(super) fn prune(value: &mut Value, node: &Node, root: bool) -> Pruned {
    let mut walk = Walk {
        path: String::new(),
        pruned: Vec::new(),
    };
    walk.value(value, Some(node), root);
    walk.pruned
}

struct Walk {
    path: String,
    pruned: Pruned,
}

impl Walk {
    fn value(&mut self, value: &mut Value, node: Option<&Node>, root: bool) {
        match value {
            Value::Object(map) => {
                let has_meta = root || node.is_some_and(|node| node.embedded);
                map.retain(|key, inner| {
                    if has_meta && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                        return true;
                    }
                    let len = self.enter(key);
                    let kept = self.entry(key, inner, node);
                    self.path.truncate(len);
                    kept
                });
            }
            Value::Array(items) => {
                let item = node.and_then(|node| node.items.as_deref());
                // below preserved fields nothing is known of the elements
                if item.is_none() && node.is_some_and(|node| node.preserve) {
                    return;
                }
                for (i, inner) in items.iter_mut().enumerate() {
                    let len = self.path.len();
                    let _ = write!(self.path, "[{i}]");
                    self.value(inner, item, false);
                    self.path.truncate(len);
                }
            }
            _ => {}
        }
    }

    /// Prunes a property; tells whether it stays.
    fn entry(&mut self, key: &str, value: &mut Value, node: Option<&Node>) -> bool {
        let Some(node) = node else {
            self.tell();
            return false;
        };
        if let Some(inner) = node.property(key) {
            self.value(value, Some(inner), false);
            return true;
        }
        match &node.additional {
            Additional::Schema(inner) => self.value(value, Some(inner), false),
            Additional::Any if node.preserve => {}
            Additional::Any => self.value(value, None, false),
            Additional::Unset if node.preserve => {}
            Additional::Unset => {
                self.tell();
                return false;
            }
        }
        true
    }

    fn enter(&mut self, key: &str) -> usize {
        let len = self.path.len();
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        len
    }

    fn tell(&mut self) {
        if self.pruned.len() < MAX_TOLD {
            self.pruned.push(self.path.clone());
        }
    }
}
