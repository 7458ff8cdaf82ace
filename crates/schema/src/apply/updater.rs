//! Who owns what after a request, and what an applied configuration makes of an object.

use std::collections::BTreeMap;

use serde_json::Value;

use super::compare::Comparison;
use super::conflict::{Conflict, Conflicts};
use super::filter::Filter;
use super::managers::{Manager, Managers, Owned};
use super::path::equal;
use super::set::Set;
use super::typed::Schema;

/// What stays the same during one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Updater<'a> {
    pub(super) schema: Schema<'a>,
    pub(super) filter: &'a Filter,
    /// The versions of the kind that are known; none for all.
    pub(super) versions: Option<&'a [&'a str]>,
}

type Ownership = BTreeMap<Manager, Owned>;

impl Updater<'_> {
    /// Tracks a change from `live` to `new` by a manager.
    pub(super) fn update(
        &self,
        live: &Value,
        new: &Value,
        api_version: &str,
        managers: Ownership,
        manager: &Manager,
    ) -> Ownership {
        let managers = self.reconcile(managers);
        let comparison = self.compare(live, new);
        let mut managers = self.settle(managers, &comparison, manager);
        let mine = managers.remove(manager).map(|owned| owned.set);
        let set = mine
            .unwrap_or_default()
            .difference(&comparison.removed)
            .union(&comparison.modified)
            .union(&comparison.added);
        let set = self.filter.filter(&set);
        if !set.is_empty() {
            let api_version = api_version.to_owned();
            managers.insert(manager.clone(), Owned { set, api_version });
        }
        managers
    }

    /// Merges an applied configuration into `live`. The object is none when nothing changes.
    pub(super) fn apply(
        &self,
        live: &Value,
        applied: &Value,
        api_version: &str,
        managers: Ownership,
        manager: &Manager,
        force: bool,
    ) -> Result<(Option<Value>, Ownership), Conflicts> {
        let mut managers = self.reconcile(managers);
        let merged = self.schema.merge(live, applied);
        let last = managers.remove(manager);
        let set = self.filter.filter(&self.schema.fields(applied));
        let api_version = api_version.to_owned();
        managers.insert(manager.clone(), Owned { set, api_version });
        let new = self.prune(merged, &managers, last.as_ref());
        let comparison = self.compare(live, &new);
        if !force {
            let conflicts = conflicts(&managers, &comparison, manager);
            if !conflicts.is_empty() {
                return Err(Conflicts(conflicts));
            }
        }
        let managers = self.settle(managers, &comparison, manager);
        Ok(((!equal(live, &new)).then_some(new), managers))
    }

    fn compare(&self, live: &Value, new: &Value) -> Comparison {
        let all = self.schema.compare(live, new);
        Comparison {
            removed: self.filter.filter(&all.removed),
            modified: self.filter.filter(&all.modified),
            added: self.filter.filter(&all.added),
        }
    }

    /// Takes from all others what the request changed and removed.
    fn settle(
        &self,
        mut managers: Ownership,
        comparison: &Comparison,
        manager: &Manager,
    ) -> Ownership {
        let changed = comparison.modified.union(&comparison.added);
        for (other, owned) in &mut managers {
            if other != manager {
                owned.set = owned
                    .set
                    .difference(&owned.set.intersection(&changed))
                    .difference(&comparison.removed);
            }
        }
        managers.retain(|_, owned| !owned.set.is_empty());
        managers
    }

    /// Takes away what the manager applied before, does not apply now, and nobody else owns.
    fn prune(&self, merged: Value, managers: &Ownership, last: Option<&Owned>) -> Value {
        let Some(last) = last.filter(|last| !last.set.is_empty()) else {
            return merged;
        };
        let schema = self.schema;
        let root = schema.root();
        let named = |set: &Set| set.with_named_fields(schema, root);
        let last = named(&last.set);
        let pruned = schema.remove(&merged, &last);
        // What others own comes back, and what went only because something above it did.
        let owned = managers
            .values()
            .fold(Set::default(), |all, owned| all.union(&owned.set));
        let merged_set = named(&schema.fields(&merged));
        let kept = named(&schema.fields(&pruned)).union(&named(&owned));
        let pruned = schema.remove(&merged, &merged_set.difference(&kept));
        let pruned_set = named(&schema.fields(&pruned));
        let gone = merged_set.difference(&pruned_set).intersection(&last);
        schema.remove(&merged, &gone)
    }

    /// Drops managers of versions that are not known and follows changes of the schema.
    fn reconcile(&self, managers: Ownership) -> Ownership {
        managers
            .into_iter()
            .filter(|(_, owned)| {
                self.versions
                    .is_none_or(|known| known.contains(&&*owned.api_version))
            })
            .map(|(manager, mut owned)| {
                if let Some(set) = self.schema.reconcile(&owned.set) {
                    owned.set = set;
                }
                (manager, owned)
            })
            .collect()
    }
}

fn conflicts(managers: &Ownership, comparison: &Comparison, manager: &Manager) -> Vec<Conflict> {
    let changed = comparison.modified.union(&comparison.added);
    managers
        .iter()
        .filter(|(other, _)| *other != manager)
        .flat_map(|(other, owned)| {
            let paths = owned.set.intersection(&changed).paths();
            paths.into_iter().map(|path| Conflict {
                manager: other.clone(),
                path,
            })
        })
        .collect()
}

/// The paths that are never tracked.
pub(super) fn untracked() -> Set {
    const METADATA: [&str; 9] = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let metadata = METADATA.map(|field| vec!["metadata", field]);
    let top = ["apiVersion", "kind", "metadata"].map(|field| vec![field]);
    Set::of_fields(top.into_iter().chain(metadata))
}

impl Managers {
    /// Takes the paths that are never tracked from a manager.
    pub(super) fn strip_untracked(&mut self, manager: &Manager) {
        if let Some(owned) = self.owned.get_mut(manager) {
            owned.set = owned.set.difference(&untracked());
            if owned.set.is_empty() {
                self.owned.remove(manager);
            }
        }
    }
}
