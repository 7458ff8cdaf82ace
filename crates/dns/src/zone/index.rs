//! The objects of one namespace.

use std::collections::HashMap;
use std::sync::Arc;

use super::service::ServiceRecord;
use super::slice::SliceRecord;

/// A namespace, its Services and slices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Namespace {
    /// Whether the Namespace object is known. Its informer may come later than that of Services.
    pub(super) declared: bool,
    /// How many entries have a Service, not only slices.
    pub(super) live: usize,
    pub(super) services: HashMap<Arc<str>, Entry>,
    /// Which Service each slice was for, since a removal does not say it.
    pub(super) slice_owners: HashMap<Arc<str>, Arc<str>>,
}

impl Namespace {
    /// Whether `ns.svc.Z` exists: names below it do (RFC 8020), or the object does.
    pub(super) fn exists(&self) -> bool {
        self.declared || self.live > 0
    }

    pub(super) fn is_unused(&self) -> bool {
        !self.declared && self.services.is_empty() && self.slice_owners.is_empty()
    }

    /// The Service of that name with its slices, when there is one.
    pub(super) fn service(&self, name: &str) -> Option<(&ServiceRecord, &Slices)> {
        let entry = self.services.get(name)?;
        Some((entry.service.as_ref()?, &entry.slices))
    }

    /// The entry of a name and the name itself, shared by all who point to it.
    pub(super) fn entry(&mut self, name: &str) -> (Arc<str>, &mut Entry) {
        let shared = self
            .services
            .get_key_value(name)
            .map(|(key, _)| key.clone());
        let shared = shared.unwrap_or_else(|| name.into());
        let entry = self.services.entry(shared.clone()).or_default();
        (shared, entry)
    }

    /// Forgets an entry that holds nothing any more.
    pub(super) fn prune(&mut self, name: &str) {
        let unused = |entry: &Entry| entry.service.is_none() && entry.slices.is_empty();
        if self.services.get(name).is_some_and(unused) {
            self.services.remove(name);
        }
    }
}

/// A Service and the slices that name it; either may come first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) service: Option<ServiceRecord>,
    pub(super) slices: Slices,
}

/// Slices by name, sorted. Most Services have one: a tree's node would cost more than all else of a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slices {
    records: Vec<(Arc<str>, SliceRecord)>,
}

impl Slices {
    fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.records.binary_search_by(|(key, _)| (**key).cmp(name))
    }

    pub(super) fn get(&self, name: &str) -> Option<&SliceRecord> {
        let position = self.position(name).ok()?;
        self.records.get(position).map(|(_, record)| record)
    }

    /// Puts a slice in and gives the one that was there.
    pub(super) fn insert(&mut self, name: Arc<str>, record: SliceRecord) -> Option<SliceRecord> {
        match self.position(&name) {
            Ok(position) => {
                let (_, old) = self.records.get_mut(position)?;
                Some(std::mem::replace(old, record))
            }
            Err(position) => {
                self.records.insert(position, (name, record));
                None
            }
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<SliceRecord> {
        let position = self.position(name).ok()?;
        let (_, record) = self.records.remove(position);
        if self.records.is_empty() {
            self.records = Vec::new();
        }
        Some(record)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &SliceRecord> {
        self.records.iter().map(|(_, record)| record)
    }
}
