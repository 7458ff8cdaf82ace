//! Which paths an update adds, changes and removes.

use std::collections::BTreeMap;

use davit_api::kinds::ListType;
use serde_json::{Map, Value};

use super::path::{PathElement, equal};
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
    /// What differs between two objects. What stands in their `managedFields` does not count.
    pub fn compare(self, old: &Value, new: &Value) -> Comparison {
        let walker = Walker { schema: self };
        // The object itself cannot be owned, so that nothing is said of it as a whole.
        walker
            .value(self.root(), Some(old), Some(new), Depth::Root)
            .0
    }
}

/// Where a value stands, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Root,
    Metadata,
    Below,
}

/// What became of a value as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    Removed,
    Modified,
    Added,
}

impl Comparison {
    fn of(&mut self, fate: Difference) -> &mut Set {
        match fate {
            Difference::Removed => &mut self.removed,
            Difference::Modified => &mut self.modified,
            Difference::Added => &mut self.added,
        }
    }

    /// Enters what was found at a step, and what became of it as a whole.
    fn enter(&mut self, step: impl Fn() -> PathElement, below: Comparison, fates: Differences) {
        for (fate, set) in [
            (Difference::Removed, below.removed),
            (Difference::Modified, below.modified),
            (Difference::Added, below.added),
        ] {
            if !set.members.is_empty() || !set.children.is_empty() {
                self.of(fate).children.insert(step(), set);
            }
        }
        for fate in fates.into_iter().flatten() {
            self.of(fate).members.insert(step());
        }
    }
}

/// At most two: a value that became another kind of value is looked at as both.
type Differences = [Option<Difference>; 2];

struct Walker<'t> {
    schema: Schema<'t>,
}

impl<'t> Walker<'t> {
    /// What differs below a value, and what became of the value itself.
    fn value(
        &self,
        ty: TypeRef<'t>,
        old: Option<&Value>,
        new: Option<&Value>,
        place: Depth,
    ) -> (Comparison, Differences) {
        let mut out = Comparison::default();
        let (old_atom, new_atom) = (self.schema.atom(ty, old), self.schema.atom(ty, new));
        let mut atom = |atom: &Atom<'t>| self.atom(atom, old, new, place, &mut out);
        let mut fates = match (old, new) {
            (_, None) => [atom(&old_atom), None],
            (None, _) => [atom(&new_atom), None],
            _ if old_atom.same_shape(&new_atom) => [atom(&new_atom), None],
            _ => [atom(&old_atom), atom(&new_atom)],
        };
        match (old, new) {
            (None, _) => fates[0] = Some(Difference::Added),
            (_, None) => fates[0] = Some(Difference::Removed),
            _ => {}
        }
        (out, fates)
    }

    /// Compares values of a shape. Answers with what became of them if they were compared as a whole.
    fn atom(
        &self,
        atom: &Atom<'t>,
        old: Option<&Value>,
        new: Option<&Value>,
        place: Depth,
        out: &mut Comparison,
    ) -> Option<Difference> {
        match atom {
            Atom::Scalar(_) => leaf(old, new),
            Atom::List(list) => {
                let old_items = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let new_items = new.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let empty = old_items.is_empty() && new_items.is_empty();
                if list.kind == ListType::Atomic || empty {
                    return leaf(old, new);
                }
                self.list(list, old_items, new_items, out);
                None
            }
            Atom::Map(map) => {
                let old_map = old.and_then(Value::as_object);
                let new_map = new.and_then(Value::as_object);
                let empty = |m: Option<&Map<_, _>>| m.is_none_or(Map::is_empty);
                if map.atomic || empty(old_map) && empty(new_map) {
                    return leaf(old, new);
                }
                self.map(map, old_map, new_map, place, out);
                None
            }
            Atom::None => None,
        }
    }

    fn map(
        &self,
        map: &MapShape<'t>,
        old: Option<&Map<String, Value>>,
        new: Option<&Map<String, Value>>,
        place: Depth,
        out: &mut Comparison,
    ) {
        let of =
            |m: Option<&'_ Map<String, Value>>, key: &str| m.is_some_and(|m| m.contains_key(key));
        let in_old = old.into_iter().flat_map(Map::keys);
        let only_new = new.into_iter().flat_map(Map::keys);
        let only_new = only_new.filter(|key| !of(old, key));
        for key in in_old.chain(only_new) {
            if place == Depth::Metadata && key == "managedFields" {
                continue;
            }
            let (old, new) = (old.and_then(|m| m.get(key)), new.and_then(|m| m.get(key)));
            if is_same(old, new) {
                continue;
            }
            let below = match place {
                Depth::Root if key == "metadata" => Depth::Metadata,
                _ => Depth::Below,
            };
            let (found, fates) = self.value(self.schema.entry(map, key), old, new, below);
            out.enter(|| PathElement::field(key), found, fates);
        }
    }

    fn list(&self, list: &List<'t>, old: &[Value], new: &[Value], out: &mut Comparison) {
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
            let value = |old, new| self.value(list.item, old, new, Depth::Below);
            let (found, fates) = match (&old[..], &new[..]) {
                ([] | [_], [] | [_]) => {
                    let (old, new) = (old.first().copied(), new.first().copied());
                    if is_same(old, new) {
                        continue;
                    }
                    value(old, new)
                }
                // Elements that stand twice are compared as a whole.
                ([_, _, ..], [_, _, ..]) => {
                    let same = old.len() == new.len()
                        && old.iter().zip(&new).all(|(old, new)| equal(old, new));
                    let fate = (!same).then_some(Difference::Modified);
                    (Comparison::default(), [fate, None])
                }
                ([_, _, ..], _) => {
                    let new = new.first().copied();
                    let (found, [fate, _]) =
                        new.map_or_else(Default::default, |new| value(None, Some(new)));
                    (found, [fate, Some(Difference::Removed)])
                }
                (_, _) => {
                    let old = old.first().copied();
                    let (found, [fate, _]) =
                        old.map_or_else(Default::default, |old| value(Some(old), None));
                    (found, [fate, Some(Difference::Added)])
                }
            };
            out.enter(|| step.clone(), found, fates);
        }
    }
}

/// What became of a value that is compared as a whole.
fn leaf(old: Option<&Value>, new: Option<&Value>) -> Option<Difference> {
    match (old, new) {
        (None, _) => Some(Difference::Added),
        (_, None) => Some(Difference::Removed),
        (Some(old), Some(new)) => (!equal(old, new)).then_some(Difference::Modified),
    }
}

/// Whether both are there and the same, so that nothing below them differs.
fn is_same(old: Option<&Value>, new: Option<&Value>) -> bool {
    matches!((old, new), (Some(old), Some(new)) if equal(old, new))
}
