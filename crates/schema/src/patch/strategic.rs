//! Strategic merge patch: a merge patch that knows which lists are merged, and by which key.
//!
//! The directives are `$patch: replace|delete|merge` in objects and list elements,
//! `$deleteFromPrimitiveList/FIELD`, `$setElementOrder/FIELD` and `$retainKeys`.

use std::collections::{HashMap, HashSet};

use davit_api::field::quote;
use davit_api::kinds::{Field, FieldType, PatchStrategy, TypeBody, TypeId, TypeTable};
use serde_json::{Map, Value};

use super::PatchError;

mod order;

use order::{normalize_order, partition};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

type Object = Map<String, Value>;

/// Merges a patch into an object of the type `root`.
///
/// # Errors
/// When the patch is malformed (400) or does not fit the schema (422 or 500, as in the original).
pub fn strategic_merge_patch(
    types: &TypeTable,
    root: TypeId,
    document: Value,
    patch: Value,
) -> Result<Value, PatchError> {
    let (Value::Object(document), Value::Object(patch)) = (document, patch) else {
        return Err(PatchError::Malformed("invalid JSON document".to_owned()));
    };
    let merger = Merger { types };
    let root = FieldType::Named(root);
    merger
        .object(document, patch, Some(&root))
        .map(Value::Object)
}

fn malformed(text: &str) -> PatchError {
    PatchError::Malformed(text.to_owned())
}

fn no_merge_key(element: &Object, key: &str) -> PatchError {
    PatchError::Failed(format!(
        "map: {} does not contain declared merge key: {key}",
        Value::Object(element.clone())
    ))
}

fn bad_patch_type(directive: &Value, object: &Object) -> PatchError {
    PatchError::Failed(format!(
        "unknown patch type: {} in map: {}",
        directive
            .as_str()
            .map_or_else(|| directive.to_string(), str::to_owned),
        Value::Object(object.clone())
    ))
}

/// How a field merges.
struct Meta<'t> {
    ty: Option<&'t FieldType>,
    strategy: PatchStrategy,
    key: &'t str,
}

struct Merger<'t> {
    types: &'t TypeTable,
}

impl<'t> Merger<'t> {
    /// How a field of a struct or an entry of a map merges. Inside values without a schema nothing
    /// is known and everything merges plainly.
    fn lookup(&self, ty: Option<&'t FieldType>, name: &str) -> Result<Meta<'t>, PatchError> {
        let plain = |ty| Meta {
            ty,
            strategy: PatchStrategy::default(),
            key: "",
        };
        let Some(ty) = ty.map(|ty| self.types.resolve_type(ty)) else {
            return Ok(plain(None));
        };
        match ty {
            FieldType::Map(item) => Ok(plain(Some(item))),
            FieldType::Named(id) if matches!(self.types.get(*id).body, TypeBody::Struct { .. }) => {
                match self.types.field(*id, name) {
                    Some(field) => Ok(Meta {
                        ty: Some(&field.ty),
                        strategy: field.patch,
                        key: merge_key(field),
                    }),
                    None => Err(PatchError::Failed(format!(
                        "unable to find api field in struct {} for the json field {}",
                        self.types.get(*id).short_name(),
                        quote(name)
                    ))),
                }
            }
            _ => Ok(plain(None)),
        }
    }

    fn object(
        &self,
        mut original: Object,
        mut patch: Object,
        ty: Option<&'t FieldType>,
    ) -> Result<Object, PatchError> {
        if let Some(directive) = patch.remove(DIRECTIVE) {
            match directive.as_str() {
                Some("replace") => return Ok(without_directives(patch)),
                Some("delete") => return Ok(Object::new()),
                // Merging is what would happen anyway, but the original refuses the word here.
                _ => return Err(bad_patch_type(&directive, &patch)),
            }
        }
        retain_keys(&mut original, &mut patch)?;
        self.ordered_lists(&mut original, &mut patch, ty)?;
        for (key, value) in patch {
            let (key, is_delete_list) = match key.strip_prefix(DELETE_FROM_LIST) {
                Some(field) => (checked_suffix(field, DELETE_FROM_LIST)?, true),
                None => (key, false),
            };
            if value.is_null() {
                original.remove(&key);
                continue;
            }
            let Some(current) = original.remove(&key) else {
                if !is_delete_list && let Some(value) = added(value) {
                    original.insert(key, value);
                }
                continue;
            };
            let merged = match (current, value) {
                (Value::Object(current), Value::Object(value)) => {
                    let meta = self.lookup(ty, &key)?;
                    let merged = if meta.strategy.replace {
                        without_directives(value)
                    } else {
                        self.object(current, value, meta.ty)?
                    };
                    Some(Value::Object(merged))
                }
                (Value::Array(current), Value::Array(value)) => {
                    let meta = self.lookup(ty, &key)?;
                    Some(Value::Array(self.list(
                        current,
                        value,
                        &meta,
                        is_delete_list,
                    )?))
                }
                (current, _) if is_delete_list => Some(current),
                (_, value) => added(value),
            };
            if let Some(merged) = merged {
                original.insert(key, merged);
            }
        }
        Ok(original)
    }

    /// Handles `$setElementOrder` together with the list that it orders.
    fn ordered_lists(
        &self,
        original: &mut Object,
        patch: &mut Object,
        ty: Option<&'t FieldType>,
    ) -> Result<(), PatchError> {
        let directives: Vec<String> = patch
            .keys()
            .filter(|k| k.starts_with(SET_ORDER))
            .cloned()
            .collect();
        for directive in directives {
            let list = patch.remove(&directive);
            let Some(Value::Array(order)) = list else {
                return Err(malformed("invalid patch format of setElementOrder list"));
            };
            let field = checked_suffix(&directive[SET_ORDER.len()..], SET_ORDER)?;
            let current = take_list(original, &field)?;
            let change = take_list(patch, &field)?;
            let meta = self.lookup(ty, &field)?;
            if let Some(change) = &change {
                check_order(change, &order, meta.key)?;
            }
            let before = current.clone().unwrap_or_default();
            let merged = match (current, change) {
                (Some(current), None) => current,
                (None, Some(change)) => change.into_iter().filter_map(added).collect(),
                (Some(current), Some(change)) => self.list(current, change, &meta, false)?,
                (None, None) => continue,
            };
            let (ordered, server_only) = partition(merged, &order, meta.key)?;
            let list = normalize_order(ordered, server_only, &order, &before, meta.key)?;
            original.insert(field, Value::Array(list));
        }
        Ok(())
    }

    fn list(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        meta: &Meta<'t>,
        is_delete_list: bool,
    ) -> Result<Vec<Value>, PatchError> {
        if !meta.strategy.merge && !is_delete_list {
            return Ok(patch.into_iter().filter_map(added).collect());
        }
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        if !elements_are_objects(&original, &patch)? {
            if is_delete_list {
                let gone: HashSet<&Value> = patch.iter().collect();
                return Ok(original.into_iter().filter(|v| !gone.contains(v)).collect());
            }
            let mut seen: HashSet<&Value> = HashSet::with_capacity(original.len() + patch.len());
            let all = original.iter().chain(&patch);
            let merged = all.filter(|value| seen.insert(value)).cloned().collect();
            let (ordered, server_only) = partition(merged, &patch, "")?;
            return normalize_order(ordered, server_only, &patch, &original, "");
        }
        if meta.key.is_empty() {
            return Err(PatchError::Failed(
                "cannot merge lists without merge key for type struct".to_owned(),
            ));
        }
        self.list_of_objects(original, patch, meta)
    }

    fn list_of_objects(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        meta: &Meta<'t>,
    ) -> Result<Vec<Value>, PatchError> {
        let key = meta.key;
        let item = match meta.ty.map(|ty| self.types.resolve_type(ty)) {
            Some(FieldType::List(item)) => Some(&**item),
            _ => None,
        };
        let (original, patch) = special_elements(original, patch, key)?;
        let before = original.clone();
        let order = patch.clone();
        let mut merged = original;
        let mut places: HashMap<Value, usize> = HashMap::with_capacity(merged.len());
        for (at, element) in merged.iter().enumerate() {
            if let Some(value) = element.get(key) {
                places.entry(value.clone()).or_insert(at);
            }
        }
        for element in patch {
            let Value::Object(element) = element else {
                return Err(PatchError::Failed("list element is not a map".to_owned()));
            };
            let value = element
                .get(key)
                .ok_or_else(|| no_merge_key(&element, key))?;
            match places.get(value).copied() {
                Some(at) => {
                    let Value::Object(current) = merged[at].take() else {
                        return Err(PatchError::Failed(format!(
                            "value for key {at} is not a map."
                        )));
                    };
                    merged[at] = Value::Object(self.object(current, element, item)?);
                }
                None => {
                    let Some(new) = added(Value::Object(element)) else {
                        continue;
                    };
                    if let Some(value) = new.get(key) {
                        places.insert(value.clone(), merged.len());
                    }
                    merged.push(new);
                }
            }
        }
        let (ordered, server_only) = partition(merged, &order, key)?;
        normalize_order(ordered, server_only, &order, &before, key)
    }
}

fn merge_key(field: &Field) -> &str {
    field.patch_merge_key.as_deref().unwrap_or("")
}

/// The field that a directive with a prefix is about.
fn checked_suffix(suffix: &str, prefix: &str) -> Result<String, PatchError> {
    if suffix.is_empty() || suffix.contains('/') {
        return Err(malformed(if prefix == SET_ORDER {
            "invalid patch format of setElementOrder list"
        } else {
            "invalid patch format of primitive list"
        }));
    }
    Ok(suffix.to_owned())
}

fn take_list(object: &mut Object, field: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match object.remove(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(PatchError::Failed(format!(
            "expected a []interface {{}}, but received a {}",
            match other {
                Value::Object(_) => "map[string]interface {}",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                _ => "int64",
            }
        ))),
    }
}

/// Drops the fields of `original` that a `$retainKeys` of the patch does not name.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(keep) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let error = || malformed("invalid patch format of retainKeys");
    let Value::Array(keep) = keep else {
        return Err(error());
    };
    let keep: HashSet<&str> = keep.iter().filter_map(Value::as_str).collect();
    let named = |key: &str, value: &Value| {
        value.is_null()
            || key.starts_with(DELETE_FROM_LIST)
            || key.starts_with(SET_ORDER)
            || keep.contains(key)
    };
    if !patch.iter().all(|(k, v)| named(k, v)) {
        return Err(error());
    }
    original.retain(|key, _| keep.contains(key.as_str()));
    Ok(())
}

/// Whether the elements of two lists are objects.
///
/// # Errors
/// When they are lists, or not all of one kind.
fn elements_are_objects(a: &[Value], b: &[Value]) -> Result<bool, PatchError> {
    let kind = |v: &Value| match v {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(n) => 2 + u8::from(n.is_f64()),
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    };
    let mut all = a.iter().chain(b);
    let Some(first) = all.next().map(kind) else {
        return Ok(false);
    };
    if first == 5 {
        return Err(PatchError::Unprocessable(
            "lists of lists are not supported".to_owned(),
        ));
    }
    if !all.all(|v| kind(v) == first) {
        return Err(PatchError::Failed(format!(
            "list element types are not identical: {} {}",
            Value::from(a.to_vec()),
            Value::from(b.to_vec())
        )));
    }
    Ok(first == 6)
}

/// Applies the elements of a patch list that are directives and returns the others.
fn special_elements(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut gone: HashSet<Value> = HashSet::new();
    let mut replace = false;
    for element in patch {
        let Some(directive) = element.get(DIRECTIVE) else {
            plain.push(element);
            continue;
        };
        let object = element.as_object().cloned().unwrap_or_default();
        match directive.as_str() {
            Some("delete") => {
                let value = object.get(key).ok_or_else(|| no_merge_key(&object, key))?;
                gone.insert(value.clone());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(PatchError::Failed(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            _ => return Err(bad_patch_type(directive, &object)),
        }
    }
    if replace {
        // as they are, two of one key, too: a node has several addresses of a type
        return Ok((plain.into_iter().filter_map(added).collect(), Vec::new()));
    }
    if !gone.is_empty() {
        original.retain(|v| v.get(key).is_none_or(|value| !gone.contains(value)));
    }
    Ok((original, plain))
}

/// Checks that a patch list is a part of the order that comes with it, in the same order.
fn check_order(list: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if list.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted = list
        .iter()
        .filter(|v| v.get(DIRECTIVE).is_none())
        .peekable();
    for placed in order {
        let Some(item) = wanted.peek() else {
            break;
        };
        let equal = if key.is_empty() {
            *item == placed
        } else {
            let value = |v: &'_ Value| {
                let found = v.get(key).cloned();
                found.ok_or_else(|| no_merge_key(&v.as_object().cloned().unwrap_or_default(), key))
            };
            value(item)? == value(placed)?
        };
        if equal {
            wanted.next();
        }
    }
    if wanted.peek().is_some() {
        return Err(PatchError::Failed(format!(
            "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
            Value::from(list.to_vec()),
            Value::from(order.to_vec())
        )));
    }
    Ok(())
}

/// A value of the patch as it stands where nothing was before: without directives and nulls; none
/// if it was a deletion, or nothing but a directive.
fn added(value: Value) -> Option<Value> {
    match value {
        Value::Object(object) => {
            let directive = object.get(DIRECTIVE);
            if directive.and_then(Value::as_str) == Some("delete")
                || (directive.is_some() && object.len() == 1)
            {
                return None;
            }
            Some(Value::Object(without_directives(object)))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(added).collect()),
        other => Some(other),
    }
}

fn without_directives(object: Object) -> Object {
    object
        .into_iter()
        .filter(|(key, value)| {
            let directive = key == DIRECTIVE
                || key == RETAIN_KEYS
                || key.starts_with(DELETE_FROM_LIST)
                || key.starts_with(SET_ORDER);
            !directive && !value.is_null()
        })
        .filter_map(|(key, value)| Some((key, added(value)?)))
        .collect()
}

#[cfg(test)]
mod tests;
