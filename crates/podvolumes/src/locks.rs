//! Locks by name: of pods, and of volumes that several pods may use.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Locks of one kind. A name that nobody holds or waits for is forgotten.
#[derive(Debug)]
pub(super) struct Locks<L> {
    by_name: Mutex<HashMap<String, Weak<L>>>,
}

impl<L> Default for Locks<L> {
    fn default() -> Self {
        Self {
            by_name: Mutex::default(),
        }
    }
}

impl<L: Default> Locks<L> {
    /// The lock of this name.
    pub(super) fn of(&self, name: &str) -> Arc<L> {
        let mut all = self.by_name.lock();
        if let Some(lock) = all.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        all.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(L::default());
        all.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_lock_while_it_is_held() {
        let locks = Locks::<Mutex<()>>::default();
        let first = locks.of("a");
        assert!(Arc::ptr_eq(&first, &locks.of("a")));
        assert!(!Arc::ptr_eq(&first, &locks.of("b")));
        drop(first);
        let _ = locks.of("c");
        assert_eq!(locks.by_name.lock().len(), 1);
    }
}
