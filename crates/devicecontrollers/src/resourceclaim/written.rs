//! What was written and has not come back yet.

use std::collections::HashMap;
use std::sync::Arc;

use davit_client::{Informer, Object, ObjectKey};
use parking_lot::Mutex;

/// Versions of objects as they were written last, until the informer shows them. To act on what it shows before would be to do
/// again what has been done, which mostly ends in a conflict; the change that is on its way brings the key up once more.
pub(super) struct Written<K> {
    informer: Informer<K>,
    versions: Arc<Mutex<HashMap<ObjectKey, u64>>>,
}

impl<K> Clone for Written<K> {
    fn clone(&self) -> Self {
        Self {
            informer: self.informer.clone(),
            versions: self.versions.clone(),
        }
    }
}

fn version<K: Object>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_deref()?.parse().ok()
}

impl<K: Object> Written<K> {
    /// Nothing yet of what this informer shows.
    pub(super) fn new(informer: &Informer<K>) -> Self {
        Self {
            informer: informer.clone(),
            versions: Arc::default(),
        }
    }

    /// An object was written and is this now.
    pub(super) fn note(&self, key: &ObjectKey, object: &K) {
        let Some(version) = version(object) else {
            return;
        };
        self.versions.lock().insert(key.clone(), version);
        // Looked at after that: if it is gone already, nobody will ask any more.
        self.is_ahead(key);
    }

    /// Whether what the informer shows of an object is older than what was written.
    pub(super) fn is_ahead(&self, key: &ObjectKey) -> bool {
        let shown = self.informer.get(Some(&key.namespace), &key.name);
        let shown = shown.as_deref().map(version);
        let mut versions = self.versions.lock();
        let ahead = match (versions.get(key), shown) {
            (Some(written), Some(Some(shown))) => shown < *written,
            _ => false,
        };
        if !ahead {
            versions.remove(key);
        }
        ahead
    }
}
