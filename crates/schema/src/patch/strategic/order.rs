//! Order of merged lists: what the patch names keeps the patch's order, what only the server has
//! keeps the server's, and both are woven together as far as the server's order allows.

use std::collections::HashMap;

use serde_json::Value;

use super::super::PatchError;
use super::no_merge_key;

/// What identifies an element: a field for objects, the value itself otherwise.
fn identity<'v>(value: &'v Value, key: &str) -> Result<&'v Value, PatchError> {
    if key.is_empty() {
        return Ok(value);
    }
    value
        .get(key)
        .ok_or_else(|| no_merge_key(&value.as_object().cloned().unwrap_or_default(), key))
}

/// Where each element of a list stands: looked up, for each would be compared with each otherwise.
struct Places<'v> {
    by_identity: HashMap<&'v Value, usize>,
    key: &'v str,
}

impl<'v> Places<'v> {
    fn of(list: &'v [Value], key: &'v str) -> Self {
        let mut by_identity = HashMap::with_capacity(list.len());
        for (at, value) in list.iter().enumerate() {
            let identity = if key.is_empty() {
                Some(value)
            } else {
                value.get(key)
            };
            if let Some(identity) = identity {
                by_identity.entry(identity).or_insert(at);
            }
        }
        Places { by_identity, key }
    }

    fn place(&self, value: &Value) -> Result<Option<usize>, PatchError> {
        Ok(self.by_identity.get(identity(value, self.key)?).copied())
    }
}

/// Splits a list into the elements that `by` holds and the others.
pub(super) fn partition(
    list: Vec<Value>,
    by: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let places = Places::of(by, key);
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for value in list {
        if places.place(&value)?.is_some() {
            inside.push(value);
        } else {
            outside.push(value);
        }
    }
    Ok((inside, outside))
}

/// Sorts both parts by their own order and merges them by the server's.
pub(super) fn normalize_order(
    patch_items: Vec<Value>,
    server_only: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    let server = Places::of(server_order, key);
    let patch_items = sorted(patch_items, &Places::of(patch_order, key))?;
    let server_only = sorted(server_only, &server)?;
    let mut out = Vec::with_capacity(patch_items.len() + server_only.len());
    let mut left = server_only.into_iter().peekable();
    let mut right = patch_items.into_iter().peekable();
    loop {
        let server_first = match (left.peek(), right.peek()) {
            (None, None) => return Ok(out),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => {
                let places = (server.place(l)?, server.place(r)?);
                matches!(places, (Some(l), Some(r)) if l < r)
            }
        };
        out.extend(if server_first {
            left.next()
        } else {
            right.next()
        });
    }
}

fn sorted(list: Vec<Value>, order: &Places<'_>) -> Result<Vec<Value>, PatchError> {
    let mut placed = Vec::with_capacity(list.len());
    for value in list {
        placed.push((order.place(&value)?, value));
    }
    placed.sort_by_key(|(place, _)| *place);
    Ok(placed.into_iter().map(|(_, value)| value).collect())
}
