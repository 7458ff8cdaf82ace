//! Which store has the objects of which kind.

use davit_api::kinds::ResourceRow;
use davit_store::Store;
use std::sync::Arc;

/// A kind whose objects are in a store of their own.
#[derive(Clone)]
pub struct StoreOverride {
    /// The group of the resource, empty for the core group.
    pub group: String,
    /// Its plural name.
    pub plural: String,
    /// Where its objects are.
    pub store: Arc<dyn Store>,
}

impl StoreOverride {
    /// Whether it is about this resource.
    pub fn is_of(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}

impl std::fmt::Debug for StoreOverride {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreOverride({}/{})", self.group, self.plural)
    }
}

/// The stores of a server: one, but for the kinds that have another (`--etcd-servers-overrides`). Revisions of different
/// stores have nothing to do with one another.
#[derive(Clone)]
pub struct Stores {
    main: Arc<dyn Store>,
    others: Vec<StoreOverride>,
}

impl Stores {
    /// Everything in `main` but what is in `others`.
    pub fn new(main: Arc<dyn Store>, others: Vec<StoreOverride>) -> Self {
        Self { main, others }
    }

    /// What [`Stores::new`] was given.
    pub fn into_parts(self) -> (Arc<dyn Store>, Vec<StoreOverride>) {
        (self.main, self.others)
    }

    /// Where everything is that has no store of its own.
    pub fn main(&self) -> &Arc<dyn Store> {
        &self.main
    }

    /// Where the objects of a kind are, which is stored as `row` says.
    pub fn of(&self, row: &ResourceRow) -> &Arc<dyn Store> {
        let mut others = self.others.iter();
        let own = others.find(|other| other.is_of(row.group, row.plural));
        own.map_or(&self.main, |other| &other.store)
    }

    /// Every store, the main one first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Store>> {
        let others = self.others.iter().map(|other| &other.store);
        std::iter::once(&self.main).chain(others)
    }

    /// Whether there are others than the main one.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }
}
