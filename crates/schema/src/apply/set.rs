//! Sets of fields.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::path::{Path, PathElement};
use super::typed::{Schema, TypeRef};

/// A set of paths.
///
/// A path is in the set or not independently of the paths above and below it: the set that owns
/// `.spec.replicas` need not own `.spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    pub(super) members: BTreeSet<PathElement>,
    pub(super) children: BTreeMap<PathElement, Set>,
}

impl Set {
    /// The set of paths of plain field names, as `["metadata", "labels"]`.
    pub fn of_fields<'a, P>(paths: impl IntoIterator<Item = P>) -> Self
    where
        P: IntoIterator<Item = &'a str>,
    {
        let mut set = Set::default();
        for path in paths {
            let path: Path = path.into_iter().map(PathElement::field).collect();
            set.insert(&path);
        }
        set
    }

    /// Adds a path. The empty path, the object itself, cannot be owned and is not added.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((last, way)) = path.split_last() else {
            return;
        };
        let mut set = self;
        for step in way {
            set = set.children.entry(step.clone()).or_default();
        }
        set.members.insert(last.clone());
    }

    /// Whether a path is in the set.
    pub fn contains(&self, path: &[PathElement]) -> bool {
        let Some((last, way)) = path.split_last() else {
            return false;
        };
        let mut set = self;
        for step in way {
            match set.children.get(step) {
                Some(child) => set = child,
                None => return false,
            }
        }
        set.members.contains(last)
    }

    /// Whether no path is in the set.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Set::is_empty)
    }

    /// How many paths are in the set.
    pub fn len(&self) -> usize {
        self.members.len() + self.children.values().map(Set::len).sum::<usize>()
    }

    /// The paths of either set.
    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.add(other.clone());
        out
    }

    /// Adds the paths of another set.
    pub(super) fn add(&mut self, other: Set) {
        self.members.extend(other.members);
        for (step, child) in other.children {
            match self.children.entry(step) {
                Entry::Occupied(mut mine) => mine.get_mut().add(child),
                Entry::Vacant(place) => {
                    place.insert(child);
                }
            }
        }
    }

    /// Whether a path is in both sets. Costs what the smaller one has: many small sets are asked about a large one.
    pub fn touches(&self, other: &Set) -> bool {
        let by_size = |a: usize, b: usize| if a < b { (self, other) } else { (other, self) };
        let (few, many) = by_size(self.members.len(), other.members.len());
        if few.members.iter().any(|step| many.members.contains(step)) {
            return true;
        }
        let (few, many) = by_size(self.children.len(), other.children.len());
        few.children.iter().any(|(step, below)| {
            let there = many.children.get(step);
            there.is_some_and(|there| there.touches(below))
        })
    }

    /// The paths of both sets.
    pub fn intersection(&self, other: &Set) -> Set {
        let children = self.children.iter().filter_map(|(step, child)| {
            let both = child.intersection(other.children.get(step)?);
            (!both.is_empty()).then(|| (step.clone(), both))
        });
        Set {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// The paths of this set that are not in the other.
    pub fn difference(&self, other: &Set) -> Set {
        self.without(other, false)
    }

    /// The paths of this set that are neither in the other nor below one that is.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        self.without(other, true)
    }

    /// Makes the set its [recursive difference](Set::recursive_difference) to another.
    pub(super) fn take_below(&mut self, other: &Set) {
        self.members.retain(|step| !other.members.contains(step));
        self.children.retain(|step, child| {
            if other.members.contains(step) {
                return false;
            }
            if let Some(theirs) = other.children.get(step) {
                child.take_below(theirs);
            }
            !child.is_empty()
        });
    }

    fn without(&self, other: &Set, recursive: bool) -> Set {
        let children = self.children.iter().filter_map(|(step, child)| {
            if recursive && other.members.contains(step) {
                return None;
            }
            let rest = match other.children.get(step) {
                Some(theirs) => child.without(theirs, recursive),
                None => child.clone(),
            };
            (!rest.is_empty()).then(|| (step.clone(), rest))
        });
        Set {
            members: self.members.difference(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// The paths below which there is none.
    pub fn leaves(&self) -> Set {
        let leaf = |step: &&PathElement| !self.children.contains_key(*step);
        Set {
            members: self.members.iter().filter(leaf).cloned().collect(),
            children: self
                .children
                .iter()
                .map(|(step, child)| (step.clone(), child.leaves()))
                .collect(),
        }
    }

    /// Every path, members of a level before those below it.
    pub fn paths(&self) -> Vec<Path> {
        fn walk(set: &Set, prefix: &mut Path, out: &mut Vec<Path>) {
            for member in &set.members {
                prefix.push(member.clone());
                out.push(prefix.clone());
                prefix.pop();
            }
            for (step, child) in &set.children {
                prefix.push(step.clone());
                walk(child, prefix, out);
                prefix.pop();
            }
        }
        let mut out = Vec::new();
        walk(self, &mut Vec::new(), &mut out);
        out
    }

    /// The paths below a step, if there are any.
    pub(super) fn below(&self, step: &PathElement) -> Option<&Set> {
        self.children.get(step).filter(|child| !child.is_empty())
    }

    /// Adds the declared fields on the way to every path, so that removing the set removes the
    /// structs with their content.
    pub(super) fn with_named_fields(&self, schema: Schema<'_>, ty: TypeRef<'_>) -> Set {
        let mut members = self.members.clone();
        let mut children = BTreeMap::new();
        for (step, child) in &self.children {
            let below = schema.child(ty, step);
            if let PathElement::Field(name) = step
                && schema.declares(ty, name)
            {
                members.insert(step.clone());
            }
            children.insert(step.clone(), child.with_named_fields(schema, below));
        }
        Set { members, children }
    }
}
