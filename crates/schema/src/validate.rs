//! Declared limits: closed enumerations, minima and maxima, lengths, formats and immutability.
//!
//! This is the part of validation that the table of kinds states. Rules that relate fields, and
//! required fields, belong to each kind: a field that must be written need not be filled.

use std::collections::HashSet;

use davit_api::field::{self, ErrorList, FieldError, Path};
use davit_api::kinds::{
    Field, FieldType, ListType, TypeBody, TypeDef, TypeId, TypeTable, Validation,
};
use davit_api::names;
use davit_api::status::MOST_CAUSES;
use serde_json::Value;

mod format;

/// What is wrong with a new object.
pub fn validate(types: &TypeTable, root: TypeId, object: &Value) -> ErrorList {
    let mut walk = Walk {
        types,
        errors: ErrorList::new(),
    };
    walk.value(&FieldType::Named(root), object, None, &Path::root());
    walk.errors
}

/// What is wrong with an update. Values that did not change are not looked at again, so an object
/// stays writable when a limit is tightened.
pub fn validate_update(types: &TypeTable, root: TypeId, new: &Value, old: &Value) -> ErrorList {
    let mut walk = Walk {
        types,
        errors: ErrorList::new(),
    };
    walk.value(&FieldType::Named(root), new, Some(old), &Path::root());
    walk.errors
}

/// Enumerations that descriptions of the API state and nobody holds against a value: of what nothing has written since
/// phases of nodes were given up, and of what a new pod may say of itself.
const DESCRIBED_ONLY: [&str; 2] = ["core/v1.NodePhase", "core/v1.PodQOSClass"];

struct Walk<'t> {
    types: &'t TypeTable,
    errors: ErrorList,
}

impl<'t> Walk<'t> {
    fn value(&mut self, ty: &FieldType, new: &Value, old: Option<&Value>, path: &Path) {
        if old == Some(new) || self.errors.len() > MOST_CAUSES {
            return;
        }
        if let FieldType::Named(id) = ty {
            self.check_enum(*id, new, path);
        }
        match (self.types.resolve_type(ty), new) {
            (FieldType::List(item), Value::Array(items)) => {
                // Elements have no identity here, so one that was there before is one that stayed.
                let before = old.and_then(Value::as_array).into_iter().flatten();
                let before: HashSet<&Value> = before.collect();
                for (i, value) in items.iter().enumerate() {
                    if !before.contains(value) {
                        self.value(item, value, None, &path.index(i));
                    }
                }
            }
            (FieldType::Map(item), Value::Object(entries)) => {
                for (key, value) in entries {
                    let old = old.and_then(|o| o.get(key));
                    self.value(item, value, old, &path.key(key));
                }
            }
            (FieldType::Named(id), Value::Object(_)) => self.fields(*id, new, old, path),
            _ => {}
        }
    }

    fn fields(&mut self, id: TypeId, new: &Value, old: Option<&Value>, path: &Path) {
        let (None, Some(members)) = (old, new.as_object()) else {
            return self.changed_fields(id, new, old, path);
        };
        for (field, value) in self.types.members(id, members) {
            if value.is_null() {
                continue;
            }
            let path = path.child(&field.name);
            if let Some(validation) = &field.validation {
                self.limits(field, validation, value, &path);
            }
            self.value(&field.ty, value, None, &path);
        }
    }

    fn changed_fields(&mut self, id: TypeId, new: &Value, old: Option<&Value>, path: &Path) {
        for field in self.types.fields(id) {
            let value = new.get(&*field.name);
            let before = old.and_then(|o| o.get(&*field.name));
            if let Some(validation) = &field.validation
                && old.is_some()
                && value != before
            {
                let path = path.child(&field.name);
                self.errors.extend(change(validation, value, before, &path));
            }
            let Some(value) = value else {
                continue;
            };
            if value == before.unwrap_or(&Value::Null) {
                continue;
            }
            let path = path.child(&field.name);
            if let Some(validation) = &field.validation {
                self.limits(field, validation, value, &path);
            }
            self.value(&field.ty, value, before, &path);
        }
    }

    fn check_enum(&mut self, id: TypeId, value: &Value, path: &Path) {
        let TypeDef {
            body: TypeBody::Alias { of, values, closed },
            name,
            ..
        } = self.types.get(id)
        else {
            return;
        };
        if let FieldType::Named(inner) = of {
            self.check_enum(*inner, value, path);
        }
        let Some(text) = value.as_str() else {
            return;
        };
        // An empty value is a missing one, which is for each kind to judge.
        if *closed
            && !DESCRIBED_ONLY.contains(&&**name)
            && !text.is_empty()
            && !values.iter().any(|v| v == text)
        {
            let mut supported: Vec<&str> = values.iter().map(|v| &**v).collect();
            supported.sort_unstable();
            self.errors
                .push(FieldError::not_supported(path, text, &supported));
        }
    }

    fn limits(&mut self, field: &Field, limits: &Validation, value: &Value, path: &Path) {
        if let Some(n) = value.as_i64() {
            self.number(limits, n, path);
        }
        if let Some(text) = value.as_str()
            && (!text.is_empty() || field.nullable)
        {
            self.text(limits, text, path);
        }
        if let Some(items) = value.as_array() {
            self.items(limits, items, path);
        }
        if let (Some(name), Some(map)) = (&limits.each_key_format, value.as_object()) {
            for key in map.keys() {
                self.errors
                    .extend(field::invalid_each(path, key, format::check(name, key)));
            }
        }
    }

    fn number(&mut self, limits: &Validation, n: i64, path: &Path) {
        if let Some(min) = limits.minimum
            && n < min
        {
            let text = format!("must be greater than or equal to {min}");
            self.errors.push(FieldError::invalid(path, n, text));
        }
        if let Some(max) = limits.maximum
            && n > max
        {
            let text = format!("must be less than or equal to {max}");
            self.errors.push(FieldError::invalid(path, n, text));
        }
    }

    fn text(&mut self, limits: &Validation, text: &str, path: &Path) {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        if let Some(max) = limits.max_length.map(size)
            && text.chars().count() > max
        {
            self.errors.push(FieldError::too_long_characters(path, max));
        }
        if let Some(max) = limits.max_bytes.map(size)
            && text.len() > max
        {
            self.errors.push(FieldError::too_long(path, max));
        }
        let pool = limits.format.as_deref() == Some(format::POOL_NAME);
        if pool && text.len() > names::SUBDOMAIN_MAX {
            self.errors
                .push(FieldError::too_long(path, names::SUBDOMAIN_MAX));
        }
        if let Some(name) = &limits.format {
            self.errors
                .extend(field::invalid_each(path, text, format::check(name, text)));
        }
    }

    fn items(&mut self, limits: &Validation, items: &[Value], path: &Path) {
        if let Some(max) = limits.max_items.and_then(|n| usize::try_from(n).ok())
            && items.len() > max
        {
            self.errors
                .push(FieldError::too_many(path, items.len(), max));
            return;
        }
        let mut seen = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let identity = match limits.unique {
                Some(ListType::Set) => item.clone(),
                Some(ListType::Map) => limits
                    .unique_keys
                    .iter()
                    .map(|k| (k.to_string(), item[&**k].clone()))
                    .collect::<serde_json::Map<_, _>>()
                    .into(),
                _ => return,
            };
            if !seen.insert(identity.to_string()) {
                self.errors
                    .push(FieldError::duplicate(&path.index(i), identity));
            }
        }
    }
}

static NULL: Value = Value::Null;

/// Whether two values say the same: a null is what is not there.
fn is_alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter()
                .all(|(key, value)| is_alike(value, b.get(key).unwrap_or(&NULL)))
                && b.iter()
                    .all(|(key, value)| a.contains_key(key) || value.is_null())
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_alike(a, b))
        }
        (a, b) => a == b,
    }
}

/// Whether a field may change as it does.
fn change(
    limits: &Validation,
    new: Option<&Value>,
    old: Option<&Value>,
    path: &Path,
) -> Option<FieldError> {
    let shown = || new.cloned().unwrap_or(Value::Null);
    let set = |v: Option<&Value>| v.is_some_and(|v| !v.is_null());
    if is_alike(new.unwrap_or(&NULL), old.unwrap_or(&NULL)) {
        return None;
    }
    if limits.immutable || limits.no_modify && set(new) && set(old) {
        return Some(FieldError::invalid(path, shown(), "field is immutable"));
    }
    None
}

#[cfg(test)]
mod tests;
