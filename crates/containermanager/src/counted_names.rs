//! Names that others choose, as labels of metrics: no label is ever forgotten, so their number has an end.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// All names that are not counted by themselves.
pub(crate) const OTHERS: &str = "<other>";

/// The names that are counted by themselves, the first so many; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct CountedNames {
    most: usize,
    names: Arc<Mutex<HashSet<String>>>,
}

impl CountedNames {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            names: Arc::default(),
        }
    }

    /// What something of this name is counted as.
    pub(crate) fn label(&self, name: &str) -> String {
        let mut names = self.names.lock();
        let is_counted =
            names.contains(name) || names.len() < self.most && names.insert(name.to_owned());
        let label = if is_counted { name } else { OTHERS };
        label.to_owned()
    }
}
