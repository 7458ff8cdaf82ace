//! Who owns what after a request, and what an applied configuration makes of an object.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::compare::Comparison;
use super::conflict::{Conflict, Conflicts};
use super::filter::Filter;
use super::managers::{Manager, Managers, Owned};
use super::path::equal;
use super::set::Set;
use super::typed::Schema;
use super::versions::Versions;

/// What stays the same during one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Updater<'a> {
    pub(super) schema: Schema<'a>,
    pub(super) filter: &'a Filter,
    /// The version of the request.
    pub(super) api_version: &'a str,
    /// The other versions of the kind; none when all versions look alike.
    pub(super) versions: Option<&'a dyn Versions>,
}

type Ownership = BTreeMap<Manager, Owned>;

/// A change, as it looks in each version in which somebody owns fields. Versions to which the
/// object cannot be converted are missing.
struct Changes(BTreeMap<String, Comparison>);

impl Updater<'_> {
    /// Tracks a change from `live` to `new` by a manager.
    pub(super) fn update(
        &self,
        live: &Value,
        new: &Value,
        managers: Ownership,
        manager: &Manager,
    ) -> Ownership {
        let managers = self.reconcile(managers);
        let changes = self.changes(live, new, &managers);
        let mut managers = settle(managers, &changes, manager);
        let mine = managers.remove(manager).map(|owned| owned.set);
        let Changes(mut changes) = changes;
        let comparison = changes
            .remove(self.api_version)
            .unwrap_or_else(|| self.compare(self.schema, live, new));
        let mut set = mine
            .map(|mine| mine.difference(&comparison.removed))
            .unwrap_or_default();
        set.add(comparison.modified);
        set.add(comparison.added);
        let set = self.filter.filter(set);
        if !set.is_empty() {
            let api_version = self.api_version.to_owned();
            managers.insert(manager.clone(), Owned { set, api_version });
        }
        managers
    }

    /// Merges an applied configuration into `live`. The object is none when nothing changes.
    pub(super) fn apply(
        &self,
        live: &Value,
        applied: &Value,
        managers: Ownership,
        manager: &Manager,
        force: bool,
    ) -> Result<(Option<Value>, Ownership), Conflicts> {
        let mut managers = self.reconcile(managers);
        let merged = self.schema.merge(live, applied);
        let last = managers.remove(manager);
        let set = self.filter.filter(self.schema.fields(applied));
        let api_version = self.api_version.to_owned();
        managers.insert(manager.clone(), Owned { set, api_version });
        let new = self.prune(merged, &managers, last.as_ref());
        let changes = self.changes(live, &new, &managers);
        if !force {
            let conflicts = conflicts(&managers, &changes, manager);
            if !conflicts.is_empty() {
                return Err(Conflicts(conflicts));
            }
        }
        let managers = settle(managers, &changes, manager);
        Ok(((!equal(live, &new)).then_some(new), managers))
    }

    fn compare(&self, schema: Schema<'_>, live: &Value, new: &Value) -> Comparison {
        let all = schema.compare(live, new);
        Comparison {
            removed: self.filter.filter(all.removed),
            modified: self.filter.filter(all.modified),
            added: self.filter.filter(all.added),
        }
    }

    /// The change from `live` to `new` in the versions of all managers.
    fn changes(&self, live: &Value, new: &Value, managers: &Ownership) -> Changes {
        let mut changes = BTreeMap::new();
        for owned in managers.values() {
            if changes.contains_key(&owned.api_version) {
                continue;
            }
            let compared = match self.other(&owned.api_version) {
                None => Some(self.compare(self.schema, live, new)),
                Some(versions) => {
                    let schema = versions.schema(&owned.api_version);
                    let there =
                        |object| versions.convert(object, self.api_version, &owned.api_version);
                    match (schema, there(live), there(new)) {
                        (Some(schema), Some(live), Some(new)) => {
                            Some(self.compare(schema, &live, &new))
                        }
                        _ => None,
                    }
                }
            };
            changes.extend(compared.map(|compared| (owned.api_version.clone(), compared)));
        }
        Changes(changes)
    }

    /// How to see objects in a version that may look otherwise; none when it looks as the request.
    fn other(&self, api_version: &str) -> Option<&dyn Versions> {
        self.versions.filter(|_| api_version != self.api_version)
    }

    /// Takes away what the manager applied before, does not apply now, and nobody else owns.
    fn prune(&self, merged: Value, managers: &Ownership, last: Option<&Owned>) -> Value {
        let Some(last) = last.filter(|last| !last.set.is_empty()) else {
            return merged;
        };
        let Some(versions) = self.other(&last.api_version) else {
            return self.prune_in(self.schema, self.api_version, &merged, managers, last);
        };
        // what was applied in another version is taken away as that version sees it
        let schema = versions.schema(&last.api_version);
        let there = versions.convert(&merged, self.api_version, &last.api_version);
        let (Some(schema), Some(there)) = (schema, there) else {
            return merged;
        };
        let pruned = self.prune_in(schema, &last.api_version, &there, managers, last);
        let back = versions.convert(&pruned, &last.api_version, self.api_version);
        back.unwrap_or(merged)
    }

    /// Prunes an object of the version in which `last` is.
    fn prune_in(
        &self,
        schema: Schema<'_>,
        api_version: &str,
        merged: &Value,
        managers: &Ownership,
        last: &Owned,
    ) -> Value {
        let root = schema.root();
        let named = |set: &Set| set.with_named_fields(schema, root);
        let last = named(&last.set);
        let mut pruned = schema.remove(merged, &last);
        // What others own comes back, and what went only because something above it did.
        let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
        for held in managers.values() {
            let all = owned.entry(&held.api_version).or_default();
            all.add(held.set.clone());
        }
        for (version, owned) in &owned {
            let same = *version == api_version || self.versions.is_none();
            if same {
                pruned = keep_owned(schema, merged, &pruned, owned);
                continue;
            }
            let Some(versions) = self.versions else {
                continue;
            };
            let there = |object| versions.convert(object, api_version, version);
            let schema = if *version == self.api_version {
                Some(self.schema)
            } else {
                versions.schema(version)
            };
            if let (Some(schema), Some(whole), Some(cut)) = (schema, there(merged), there(&pruned))
            {
                let kept = keep_owned(schema, &whole, &cut, owned);
                if let Some(back) = versions.convert(&kept, version, api_version) {
                    pruned = back;
                }
            }
        }
        let merged_set = named(&schema.fields(merged));
        let pruned_set = named(&schema.fields(&pruned));
        let gone = merged_set.difference(&pruned_set).intersection(&last);
        schema.remove(merged, &gone)
    }

    /// Drops managers of versions that are not known and follows changes of the schema.
    fn reconcile(&self, managers: Ownership) -> Ownership {
        managers
            .into_iter()
            .filter_map(|(manager, mut owned)| {
                let schema = match self.other(&owned.api_version) {
                    None => self.schema,
                    Some(versions) => versions.schema(&owned.api_version)?,
                };
                if let Some(set) = schema.reconcile(&owned.set) {
                    owned.set = set;
                }
                Some((manager, owned))
            })
            .collect()
    }
}

/// What is left of `merged` when only `pruned` and what is owned in its version stays.
fn keep_owned(schema: Schema<'_>, merged: &Value, pruned: &Value, owned: &Set) -> Value {
    let named = |set: &Set| set.with_named_fields(schema, schema.root());
    let merged_set = named(&schema.fields(merged));
    let kept = named(&schema.fields(pruned)).union(&named(owned));
    schema.remove(merged, &merged_set.difference(&kept))
}

/// Takes from all others what the request changed and removed.
fn settle(mut managers: Ownership, changes: &Changes, manager: &Manager) -> Ownership {
    managers.retain(|other, owned| {
        if other == manager {
            return !owned.set.is_empty();
        }
        let Some(change) = changes.0.get(&owned.api_version) else {
            return false;
        };
        for taken in [&change.modified, &change.added, &change.removed] {
            if owned.set.touches(taken) {
                owned.set = owned.set.difference(taken);
            }
        }
        !owned.set.is_empty()
    });
    managers
}

fn conflicts(managers: &Ownership, changes: &Changes, manager: &Manager) -> Vec<Conflict> {
    let changed = |change: &Comparison| change.modified.union(&change.added);
    let changed: BTreeMap<&str, Set> = changes.0.iter().map(|(v, c)| (&**v, changed(c))).collect();
    managers
        .iter()
        .filter(|(other, _)| *other != manager)
        .filter_map(|(other, owned)| {
            let changed = changed.get(&*owned.api_version)?;
            Some((other, owned.set.intersection(changed).paths()))
        })
        .flat_map(|(other, paths)| {
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
        static UNTRACKED: LazyLock<Set> = LazyLock::new(untracked);
        if let Some(owned) = self.owned.get_mut(manager) {
            owned.set = owned.set.difference(&UNTRACKED);
            if owned.set.is_empty() {
                self.owned.remove(manager);
            }
        }
    }
}
