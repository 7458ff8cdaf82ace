//! Merging what is applied into what is there, and taking fields away.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use davit_api::kinds::ListType;
use serde_json::{Map, Value};

use super::path::PathElement;
use super::set::Set;
use super::typed::{Atom, List, MapShape, Schema, TypeRef};

impl<'t> Schema<'t> {
    /// Both objects in one: values of `new` win, nothing is removed, lists and maps keep the order
    /// of `old` where `new` does not say otherwise. Both must fit the schema.
    pub fn merge(self, old: &Value, new: &Value) -> Value {
        self.merge_value(self.root(), Some(old), Some(new))
            .unwrap_or_else(|| Value::Object(Map::new()))
    }

    fn merge_value(
        self,
        ty: TypeRef<'t>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Option<Value> {
        let atom = match new {
            None => self.atom(ty, old),
            // A null takes the form of the other side.
            Some(Value::Null) if old.is_some() => {
                let (old_atom, new_atom) = (self.atom(ty, old), self.atom(ty, new));
                if old_atom.same_shape(&new_atom) {
                    old_atom
                } else {
                    new_atom
                }
            }
            Some(_) => self.atom(ty, new),
        };
        let leaf = || new.or(old).cloned();
        match atom {
            Atom::Scalar(_) => leaf(),
            Atom::List(list) => {
                let old_items = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let new_items = new.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let empty = old_items.is_empty() && new_items.is_empty();
                if list.kind == ListType::Atomic || empty {
                    return leaf();
                }
                self.merge_list(&list, old_items, new_items)
            }
            Atom::Map(map) => {
                let old_map = old.and_then(Value::as_object);
                let new_map = new.and_then(Value::as_object);
                let empty = |m: Option<&Map<_, _>>| m.is_none_or(Map::is_empty);
                if map.atomic || empty(old_map) && empty(new_map) {
                    return leaf();
                }
                self.merge_map(&map, old_map, new_map)
            }
            Atom::None => leaf(),
        }
    }

    fn merge_map(
        self,
        map: &MapShape<'t>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) -> Option<Value> {
        let mut out = Map::new();
        let only_new = new
            .into_iter()
            .flat_map(Map::keys)
            .filter(|key| !old.is_some_and(|old| old.contains_key(*key)));
        for key in old.into_iter().flat_map(Map::keys).chain(only_new) {
            let (old, new) = (old.and_then(|m| m.get(key)), new.and_then(|m| m.get(key)));
            if let Some(value) = self.merge_value(self.entry(map, key), old, new) {
                out.insert(key.clone(), value);
            }
        }
        (!out.is_empty()).then_some(Value::Object(out))
    }

    /// Elements of the old list keep their places, new ones stand where the new list has them, and
    /// those that both have follow the order of the new list.
    fn merge_list(self, list: &List<'t>, old: &[Value], new: &[Value]) -> Option<Value> {
        let (old_steps, old_values) = self.index(list, old);
        let (new_steps, new_values) = self.index(list, new);
        let in_old = |step: &PathElement| old_values.get(step).copied();
        let in_new = |step: &PathElement| new_values.get(step).copied();
        let mut shared: VecDeque<&PathElement> = new_steps
            .iter()
            .map(|(step, _)| step)
            .filter(|step| old_values.contains_key(step))
            .collect();
        let mut next_shared = shared.pop_front();
        let mut merged: BTreeSet<&PathElement> = BTreeSet::new();
        let mut out = Vec::with_capacity(old.len().max(new.len()));
        let (mut at_old, mut at_new) = (0, 0);
        while at_old < old_steps.len() || at_new < new_steps.len() {
            if let (Some((old_step, _)), Some((new_step, _))) =
                (old_steps.get(at_old), new_steps.get(at_new))
            {
                if old_step == new_step {
                    merged.insert(old_step);
                    out.extend(self.merge_value(list.item, in_old(old_step), in_new(old_step)));
                    (at_old, at_new) = (at_old + 1, at_new + 1);
                    next_shared = shared.pop_front();
                    continue;
                }
                if new_values.contains_key(old_step)
                    && next_shared.is_some_and(|next| next != old_step)
                {
                    // Both have it, but another one comes first.
                    at_old += 1;
                    continue;
                }
            }
            if let Some((step, value)) = old_steps.get(at_old) {
                if !new_values.contains_key(step) {
                    out.extend(self.merge_value(list.item, Some(value), None));
                    at_old += 1;
                    continue;
                }
                if merged.contains(step) {
                    at_old += 1;
                }
            }
            if let Some((step, _)) = new_steps.get(at_new) {
                merged.insert(step);
                out.extend(self.merge_value(list.item, in_old(step), in_new(step)));
                at_new += 1;
                if next_shared == Some(step) {
                    next_shared = shared.pop_front();
                }
            }
        }
        (!out.is_empty()).then_some(Value::Array(out))
    }

    /// The steps of the elements in order, and the element of each step; null for steps that stand
    /// twice, with which nothing is merged.
    #[allow(clippy::type_complexity)]
    fn index<'v>(
        self,
        list: &List<'t>,
        items: &'v [Value],
    ) -> (
        Vec<(PathElement, &'v Value)>,
        BTreeMap<PathElement, &'v Value>,
    ) {
        const TWICE: &Value = &Value::Null;
        let mut steps = Vec::with_capacity(items.len());
        let mut values: BTreeMap<PathElement, &Value> = BTreeMap::new();
        for item in items {
            let Ok(step) = self.element(list, item) else {
                continue;
            };
            values
                .entry(step.clone())
                .and_modify(|value| *value = TWICE)
                .or_insert(item);
            steps.push((step, item));
        }
        (steps, values)
    }

    /// The object without the elements and fields of a set. Structs and lists on the way stay, even
    /// when they become empty.
    pub(super) fn remove(self, object: &Value, set: &Set) -> Value {
        self.remove_value(self.root(), object, set)
            .unwrap_or(Value::Null)
    }

    fn remove_value(self, ty: TypeRef<'t>, value: &Value, set: &Set) -> Option<Value> {
        match (self.atom(ty, Some(value)), value) {
            (Atom::Scalar(_) | Atom::None, value) => Some(value.clone()),
            (Atom::List(list), Value::Array(items)) if list.kind != ListType::Atomic => {
                let mut out = Vec::with_capacity(items.len());
                let mut entered = false;
                for item in items {
                    let step = self.element(&list, item).ok();
                    if step.as_ref().is_some_and(|s| set.members.contains(s)) {
                        continue;
                    }
                    match step.as_ref().and_then(|step| set.below(step)) {
                        Some(below) => {
                            entered = true;
                            out.push(self.remove_below(list.item, item, below));
                        }
                        None => out.push(item.clone()),
                    }
                }
                (entered || !out.is_empty()).then_some(Value::Array(out))
            }
            (Atom::Map(map), Value::Object(entries)) if !map.atomic => {
                let mut out = Map::new();
                let mut entered = false;
                for (key, value) in entries {
                    let step = PathElement::field(key);
                    if set.members.contains(&step) {
                        continue;
                    }
                    let value = match set.below(&step) {
                        Some(below) => {
                            entered = true;
                            self.remove_below(self.entry(&map, key), value, below)
                        }
                        None => value.clone(),
                    };
                    out.insert(key.clone(), value);
                }
                (entered || !out.is_empty()).then_some(Value::Object(out))
            }
            _ => None,
        }
    }

    fn remove_below(self, ty: TypeRef<'t>, value: &Value, set: &Set) -> Value {
        self.remove_value(ty, value, set).unwrap_or(match value {
            Value::Object(_) => Value::Object(Map::new()),
            Value::Array(_) => Value::Array(Vec::new()),
            _ => Value::Null,
        })
    }
}
