//! Which paths an update adds, changes and removes.

use std::collections::BTreeMap;

use davit_api::kinds::ListType;
use serde_json::{Map, Value};

use super::path::{Path, PathElement, equal};
use super::set::Set;
use super::typed::{Atom, List, MapShape, Schema, TypeRef};

/// What differs between two objects. No path is in more than one of the sets.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Paths only the old object has.
    pub removed: Set,
    /// Paths both have, with different values.
    pub modified: Set,
    /// Paths only the new object has.
    pub added: Set,
}

impl Schema<'_> {
    /// What differs between two objects.
    pub fn compare(self, old: &Value, new: &Value) -> Comparison {
        let mut walker = Walker {
            schema: self,
            path: Vec::new(),
            out: Comparison::default(),
        };
        walker.value(self.root(), Some(old), Some(new));
        walker.out
    }
}

struct Walker<'t> {
    schema: Schema<'t>,
    path: Path,
    out: Comparison,
}

impl<'t> Walker<'t> {
    fn value(&mut self, ty: TypeRef<'t>, old: Option<&Value>, new: Option<&Value>) {
        let (old_atom, new_atom) = (self.schema.atom(ty, old), self.schema.atom(ty, new));
        let is_leaf = match (old, new) {
            (_, None) => self.atom(&old_atom, old, new),
            (None, _) => self.atom(&new_atom, old, new),
            _ if old_atom.same_shape(&new_atom) => self.atom(&new_atom, old, new),
            _ => {
                self.atom(&old_atom, old, new);
                self.atom(&new_atom, old, new)
            }
        };
        if !is_leaf {
            match (old, new) {
                (None, _) => self.out.added.insert(&self.path),
                (_, None) => self.out.removed.insert(&self.path),
                _ => {}
            }
        }
    }

    /// Compares values of a shape; true if they were compared as a whole.
    fn atom(&mut self, atom: &Atom<'t>, old: Option<&Value>, new: Option<&Value>) -> bool {
        match atom {
            Atom::Scalar(_) => self.leaf(old, new),
            Atom::List(list) => {
                let old_items = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let new_items = new.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let empty = old_items.is_empty() && new_items.is_empty();
                if list.kind == ListType::Atomic || empty {
                    return self.leaf(old, new);
                }
                self.list(list, old_items, new_items);
                false
            }
            Atom::Map(map) => {
                let old_map = old.and_then(Value::as_object);
                let new_map = new.and_then(Value::as_object);
                let empty = |m: Option<&Map<_, _>>| m.is_none_or(Map::is_empty);
                if map.atomic || empty(old_map) && empty(new_map) {
                    return self.leaf(old, new);
                }
                self.map(map, old_map, new_map);
                false
            }
            Atom::None => false,
        }
    }

    fn leaf(&mut self, old: Option<&Value>, new: Option<&Value>) -> bool {
        match (old, new) {
            (None, _) => self.out.added.insert(&self.path),
            (_, None) => self.out.removed.insert(&self.path),
            (Some(old), Some(new)) if !equal(old, new) => self.out.modified.insert(&self.path),
            _ => {}
        }
        true
    }

    fn map(
        &mut self,
        map: &MapShape<'t>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
    ) {
        let entry =
            |m: Option<&Map<String, Value>>, key: &String| m.is_some_and(|m| m.contains_key(key));
        let keys = old.into_iter().flat_map(Map::keys);
        let only_new = new
            .into_iter()
            .flat_map(Map::keys)
            .filter(|key| !entry(old, key));
        let keys: Vec<&String> = keys.chain(only_new).collect();
        for key in keys {
            self.path.push(PathElement::field(key));
            let ty = self.schema.entry(map, key);
            self.value(
                ty,
                old.and_then(|m| m.get(key)),
                new.and_then(|m| m.get(key)),
            );
            self.path.pop();
        }
    }

    fn list(&mut self, list: &List<'t>, old: &[Value], new: &[Value]) {
        let mut elements: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for value in old {
            if let Ok(step) = self.schema.element(list, value) {
                elements.entry(step).or_default().0.push(value);
            }
        }
        for value in new {
            if let Ok(step) = self.schema.element(list, value) {
                elements.entry(step).or_default().1.push(value);
            }
        }
        for (step, (old, new)) in elements {
            self.path.push(step);
            match (&old[..], &new[..]) {
                ([] | [_], [] | [_]) => {
                    self.value(list.item, old.first().copied(), new.first().copied());
                }
                // Elements that stand twice are compared as a whole.
                ([_, _, ..], [_, _, ..]) => {
                    let same = old.len() == new.len()
                        && old.iter().zip(&new).all(|(old, new)| equal(old, new));
                    if !same {
                        self.out.modified.insert(&self.path);
                    }
                }
                ([_, _, ..], _) => {
                    if let Some(new) = new.first() {
                        self.value(list.item, None, Some(new));
                    }
                    self.out.removed.insert(&self.path);
                }
                (_, _) => {
                    if let Some(old) = old.first() {
                        self.value(list.item, Some(old), None);
                    }
                    self.out.added.insert(&self.path);
                }
            }
            self.path.pop();
        }
    }
}
