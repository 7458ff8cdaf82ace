//! The newest versions of objects that this controller knows: what informers tell, and at once what it wrote itself.
//!
//! Binding makes four changes, whose events come back one by one. Judged by those alone, a half-done binding would look
//! like a broken one and be repaired against the rest of itself.

use davit_client::ObjectKey;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// Objects of a kind by name, and by the places that `places` puts them in.
pub(super) struct AssumeCache<K, P> {
    places: fn(&K) -> P,
    stored: Mutex<Stored<K, P>>,
}

struct Stored<K, P> {
    objects: HashMap<ObjectKey, Arc<K>>,
    by_place: HashMap<P, BTreeSet<ObjectKey>>,
}

impl<K: kube::Resource, P: Hash + Eq> AssumeCache<K, P> {
    pub(super) fn new(places: fn(&K) -> P) -> Self {
        Self {
            places,
            stored: Mutex::new(Stored {
                objects: HashMap::new(),
                by_place: HashMap::new(),
            }),
        }
    }

    /// Takes a version of an object and returns the newest, which is another if this one is older.
    pub(super) fn store(&self, object: Arc<K>) -> Arc<K> {
        let key = ObjectKey::of(&*object);
        let mut stored = self.stored.lock();
        if let Some(known) = stored.objects.get(&key) {
            if version(&**known) > version(&*object) {
                return known.clone();
            }
            let place = (self.places)(known);
            stored.leave(&place, &key);
        }
        let place = (self.places)(&object);
        let there = stored.by_place.entry(place).or_default();
        there.insert(key.clone());
        stored.objects.insert(key, object.clone());
        object
    }

    /// Forgets an object that is gone; returns its last version.
    pub(super) fn remove(&self, key: &ObjectKey) -> Option<Arc<K>> {
        let mut stored = self.stored.lock();
        let last = stored.objects.remove(key)?;
        let place = (self.places)(&last);
        stored.leave(&place, key);
        Some(last)
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.stored.lock().objects.get(key).cloned()
    }

    /// The objects in a place, by name.
    pub(super) fn at(&self, place: &P) -> Vec<Arc<K>> {
        let stored = self.stored.lock();
        let keys = stored.by_place.get(place).into_iter().flatten();
        keys.filter_map(|key| stored.objects.get(key).cloned())
            .collect()
    }
}

impl<K, P: Hash + Eq> Stored<K, P> {
    fn leave(&mut self, place: &P, key: &ObjectKey) {
        if let Some(there) = self.by_place.get_mut(place) {
            there.remove(key);
            if there.is_empty() {
                self.by_place.remove(place);
            }
        }
    }
}

/// Versions are numbers that grow; what is none is older than all.
fn version(object: &impl kube::Resource) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::json;

    fn volume(name: &str, version: &str, class: &str) -> Arc<PersistentVolume> {
        let volume = json!({"metadata": {"name": name, "resourceVersion": version},
            "spec": {"storageClassName": class}});
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn the_newest_version_stays_and_is_found_where_it_is() {
        let cache = AssumeCache::new(|v: &PersistentVolume| {
            davit_volume::class::volume_class(v).to_owned()
        });
        let names = |class: &str| -> Vec<String> {
            let found = cache.at(&class.to_owned());
            found
                .iter()
                .filter_map(|v| v.metadata.name.clone())
                .collect()
        };
        cache.store(volume("b", "9", "fast"));
        cache.store(volume("a", "9", "fast"));
        assert_eq!(names("fast"), ["a", "b"]);
        let newer = volume("a", "10", "slow");
        assert_eq!(cache.store(newer.clone()), newer);
        // as a number it is older, as a text it is not
        assert_eq!(cache.store(volume("a", "9", "fast")), newer);
        assert_eq!(
            (names("fast"), names("slow")),
            (vec!["b".to_owned()], vec!["a".to_owned()])
        );
        let key = ObjectKey::of(&*newer);
        assert_eq!(cache.remove(&key), Some(newer));
        assert_eq!((cache.get(&key), cache.remove(&key)), (None, None));
        assert!(names("slow").is_empty());
    }
}
